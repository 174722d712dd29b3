//! The security fields that posse adds to executors' pods, in the terms of the Pod Security
//! Standards (KEP-2579).

use serde_json::{Map, Value, json};

use crate::pod::template::{Template, TemplateError, containers_mut};

/// A user that is not root and owns nothing. The one of posse's image and of submitted drivers.
const USER: u32 = 65532;

/// The key `security` of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// posse adds nothing.
    Baseline,
    /// posse adds what the level `restricted` requires and the pod does not say: also a user that
    /// is not root.
    Restricted,
}

impl Template {
    /// Adds what the level `restricted` requires, except a user: whether an image works without
    /// root cannot be known. Without a token, because a pod of an image alone makes no API calls.
    /// What the pod already says stays.
    ///
    /// # Errors
    /// A field that has to be extended has the wrong type.
    pub fn harden(&mut self) -> Result<(), TemplateError> {
        self.spec.entry("automountServiceAccountToken").or_insert(Value::Bool(false));
        self.restrict_pod(false)
    }

    /// Adds everything that the level `restricted` requires.
    ///
    /// # Errors
    /// A field that has to be extended has the wrong type.
    pub fn restrict(&mut self) -> Result<(), TemplateError> {
        self.restrict_pod(true)
    }

    fn restrict_pod(&mut self, needs_user: bool) -> Result<(), TemplateError> {
        let mut spec = std::mem::take(&mut self.spec);
        let done = self.restrict_spec(&mut spec, needs_user);
        self.spec = spec;
        done
    }

    fn restrict_spec(
        &self,
        spec: &mut Map<String, Value>,
        needs_user: bool,
    ) -> Result<(), TemplateError> {
        let pod = self.map(spec, "securityContext", "spec.securityContext")?;
        add(pod, "seccompProfile", seccomp);
        if needs_user {
            add(pod, "runAsNonRoot", || Value::Bool(true));
            add(pod, "runAsUser", || json!(USER));
        }
        for (field, container) in containers_mut(spec) {
            let field = format!("{field}.securityContext");
            let context = self.map(container, "securityContext", &field)?;
            add(context, "allowPrivilegeEscalation", || Value::Bool(false));
            let capabilities =
                self.map(context, "capabilities", &format!("{field}.capabilities"))?;
            add(capabilities, "drop", || json!(["ALL"]));
        }
        Ok(())
    }
}

/// The security context of a container that posse adds to a pod. It has a user of its own unless
/// the pod has one.
pub fn own_container(spec: &Map<String, Value>) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "seccompProfile": seccomp(),
    });
    let of_pod = |key: &str| spec.get("securityContext").and_then(|pod| pod.get(key));
    if of_pod("runAsUser").is_none_or(|user| user.is_null() || *user == 0) {
        context["runAsUser"] = json!(USER);
    }
    context["runAsNonRoot"] = Value::Bool(true);
    context
}

fn seccomp() -> Value {
    json!({ "type": "RuntimeDefault" })
}

fn add(map: &mut Map<String, Value>, key: &str, value: impl FnOnce() -> Value) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_what_it_does_not_say_itself() {
        let pod = json!({"spec": {
            "securityContext": {"runAsUser": 185},
            "initContainers": [{"name": "i", "image": "x",
                                "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}],
            "containers": [{"name": "a", "image": "x",
                            "securityContext": {"allowPrivilegeEscalation": true}}],
        }});
        let mut template = Template::from_json("t", pod.clone()).unwrap();
        template.restrict().unwrap();
        assert_eq!(
            Value::Object(template.spec.clone()),
            json!({
                "securityContext": {"runAsUser": 185, "runAsNonRoot": true,
                                    "seccompProfile": {"type": "RuntimeDefault"}},
                "initContainers": [{"name": "i", "image": "x", "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}}],
                "containers": [{"name": "a", "image": "x", "securityContext": {
                    "allowPrivilegeEscalation": true, "capabilities": {"drop": ["ALL"]}}}],
            })
        );
        let mut template = Template::from_json("t", pod).unwrap();
        template.harden().unwrap();
        assert_eq!(template.spec["automountServiceAccountToken"], false);
        assert!(template.spec["securityContext"].get("runAsNonRoot").is_none());
        let bad = json!({"spec": {"securityContext": 1, "containers": [{"name": "a"}]}});
        let error = Template::from_json("t", bad).unwrap().restrict().unwrap_err();
        assert_eq!(error.to_string(), "t: spec.securityContext: expected a map, found `1`");
    }

    #[test]
    fn an_added_container_runs_as_the_pods_user_or_its_own() {
        for (pod, user) in [
            (json!({}), json!(USER)),
            (json!({"securityContext": {"runAsNonRoot": true}}), json!(USER)),
            (json!({"securityContext": {"runAsUser": 0}}), json!(USER)),
            (json!({"securityContext": {"runAsUser": 185}}), Value::Null),
        ] {
            let context = own_container(pod.as_object().unwrap());
            assert_eq!((&context["runAsUser"], &context["runAsNonRoot"]), (&user, &json!(true)));
        }
    }
}
