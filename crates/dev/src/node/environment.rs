//! A container's command line and environment variables: `env`, `envFrom`, and the expansion of `$(VAR)` exactly as in Kubernetes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::sources;
use crate::schema::kind::Kind;
use crate::schema::names;
use crate::storage::object::{array_at, text_at};
use crate::storage::store::Store;

/// The command line and environment of a container's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: Env,
    /// If empty, the folder that posse was started in.
    pub(super) working_dir: String,
}

pub(super) type Env = BTreeMap<String, String>;

/// Why a container cannot start yet: reason and message of its `waiting` state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Blocked {
    /// An object that the container's spec refers to is missing or invalid.
    pub(super) fn config(message: String) -> Self {
        Self { reason: "CreateContainerConfigError", message }
    }
}

/// Builds a container's command line. `base` holds the variables that every container gets in
/// addition to its spec's; `$(VAR)` in the spec cannot refer to them.
pub(super) fn command_line(
    store: &Store,
    pod: &Value,
    container: &Value,
    base: &Env,
) -> Result<CommandLine, Blocked> {
    let own = variables(store, pod, container).map_err(Blocked::config)?;
    let expanded = |list: &str| -> Vec<String> {
        let words = array_at(container, list).iter();
        words.map(|word| expand(word.as_str().unwrap_or_default(), |name| own.get(name))).collect()
    };
    let mut command = expanded("/command").into_iter();
    let Some(program) = command.next() else {
        let image = text_at(container, "/image");
        let args = match array_at(container, "/args").is_empty() {
            true => "",
            false => " (its args are none: `kubectl run` needs --command before them)",
        };
        return Err(Blocked {
            reason: "ErrImagePull",
            message: format!(
                "image \"{image}\" is not pulled: the embedded node runs commands of this machine \
                 only; give the container a command{args}"
            ),
        });
    };
    let args = command.chain(expanded("/args")).collect();
    let working_dir = text_at(container, "/workingDir").to_owned();
    let mut env = base.clone();
    env.extend(own);
    Ok(CommandLine { program, args, env, working_dir })
}

/// The variables from the container's spec.
fn variables(store: &Store, pod: &Value, container: &Value) -> Result<Env, String> {
    let mut env = env_from(store, pod, container)?;
    for variable in array_at(container, "/env") {
        let text = text_at(variable, "/value");
        let value = match variable.get("valueFrom").filter(|_| text.is_empty()) {
            None => Some(expand(text, |name| env.get(name))),
            Some(source) => value_from(store, pod, source)?,
        };
        if let Some(value) = value {
            env.insert(text_at(variable, "/name").to_owned(), value);
        }
    }
    Ok(env)
}

/// The fields of `envFrom` and `valueFrom`, and their kind.
const SOURCES: [(&str, &str, Kind); 2] = [
    ("configMapRef", "configMapKeyRef", Kind::ConfigMap),
    ("secretRef", "secretKeyRef", Kind::Secret),
];

/// The variables of `envFrom`: every key that is a valid variable name.
fn env_from(store: &Store, pod: &Value, container: &Value) -> Result<Env, String> {
    let namespace = text_at(pod, "/metadata/namespace");
    let mut env = Env::new();
    for source in array_at(container, "/envFrom") {
        for (field, _, kind) in SOURCES {
            let Some(reference) = source.get(field) else { continue };
            let name = text_at(reference, "/name");
            let optional = sources::is_optional(reference);
            let data = sources::data(store, kind, namespace, name, optional)?.unwrap_or_default();
            for (key, value) in data {
                let name = format!("{}{key}", text_at(source, "/prefix"));
                if names::env_name(&name).is_empty() {
                    env.insert(name, text(value));
                }
            }
        }
    }
    Ok(env)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The value of a `valueFrom`. `None` if the source is optional and does not exist.
fn value_from(store: &Store, pod: &Value, source: &Value) -> Result<Option<String>, String> {
    if let Some(reference) = source.get("fieldRef") {
        return Ok(Some(sources::field(pod, text_at(reference, "/fieldPath"))));
    }
    if let Some(other) = ["fileKeyRef", "resourceFieldRef"].iter().find(|o| source.get(o).is_some())
    {
        return Err(format!("the embedded node takes no variables by {other}"));
    }
    let namespace = text_at(pod, "/metadata/namespace");
    for (_, field, kind) in SOURCES {
        let Some(reference) = source.get(field) else { continue };
        let (name, key) = (text_at(reference, "/name"), text_at(reference, "/key"));
        let optional = sources::is_optional(reference);
        let data = sources::data(store, kind, namespace, name, optional)?;
        return match data.and_then(|mut data| data.remove(key)) {
            Some(value) => Ok(Some(text(value))),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {key} in {} {namespace}/{name}", kind.name())),
        };
    }
    Ok(None)
}

/// Replaces `$(VAR)` by the variable's value and `$$` by `$`. References to unknown variables stay.
pub(super) fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let after = &after[1..];
        rest = if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            after
        } else if let Some(reference) = after.strip_prefix('(') {
            match reference.split_once(')') {
                Some((name, after)) => {
                    match lookup(name) {
                        Some(value) => out.push_str(value),
                        None => out.push_str(&format!("$({name})")),
                    }
                    after
                }
                None => {
                    out.push_str("$(");
                    reference
                }
            }
        } else {
            out.push('$');
            after
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The cases of Kubernetes' `third_party/forked/golang/expansion/expand_test.go`.
    #[test]
    fn references_expand_as_in_kubernetes() {
        let env: BTreeMap<String, String> = [
            ("VAR_A", "A"),
            ("VAR_B", "B"),
            ("VAR_C", "C"),
            ("VAR_REF", "$(VAR_A)"),
            ("VAR_EMPTY", ""),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        for (text, want) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("___$(VAR_C)", "___C"),
            ("$(VAR_A)-$(VAR_A)", "A-A"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$(VAR_A)-$(VAR_REF)-$(VAR_EMPTY)", "A-$(VAR_A)-"),
            ("foo-$(VAR_UNKNOWN)", "foo-$(VAR_UNKNOWN)"),
            ("$$", "$"),
            ("$$$", "$$"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("f000-$$VAR_A", "f000-$VAR_A"),
            ("foo\\$(VAR_C)bar", "foo\\Cbar"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_A", "$(VAR_A"),
            ("$((VAR_A))", "$((VAR_A))"),
            ("$()", "$()"),
            ("foo$", "foo$"),
            ("$", "$"),
            ("$(VAR_A)$", "A$"),
            ("---$(VAR_A$(VAR_B)", "---$(VAR_A$(VAR_B)"),
        ] {
            assert_eq!(expand(text, |name| env.get(name)), want, "{text}");
        }
    }

    #[test]
    fn arguments_are_no_command() {
        let store = Store::new(1);
        let message = |container: Value| {
            command_line(&store, &json!({}), &container, &Env::new()).unwrap_err().message
        };
        let hint = "`kubectl run` needs --command before them";
        assert!(message(json!({"image": "y", "args": ["echo", "hi"]})).contains(hint));
        assert!(!message(json!({"image": "y"})).contains(hint));
    }

    #[test]
    fn variables_refer_to_earlier_variables_and_pod_fields() {
        let pod = json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u",
                "labels": {"a.b/c": "l"}, "annotations": {"k": "v"},
            },
            "spec": {"nodeName": "dev-node-0"},
            "status": {"podIP": "127.0.1.1", "hostIP": "127.0.0.1"},
        });
        let from = |path: &str| json!({"fieldRef": {"fieldPath": path}});
        let container = json!({
            "command": ["prog", "$(NAME)"], "args": ["$(BOTH)", "$(LATER)"],
            "env": [
                {"name": "NAME", "valueFrom": from("metadata.name")},
                {"name": "LABEL", "valueFrom": from("metadata.labels['a.b/c']")},
                {"name": "NOTE", "valueFrom": from("metadata.annotations['k']")},
                {"name": "IP", "valueFrom": from("status.podIP")},
                {"name": "BOTH", "value": "$(NAME)-$(LABEL)-$(NOTE)-$(IP)-$(AFTER)"},
                {"name": "AFTER", "value": "x"},
                {"name": "EMPTY"},
            ],
        });
        let line =
            command_line(&Store::new(9), &pod, &container, &Env::new()).expect("it has a command");
        assert_eq!(line.program, "prog");
        assert_eq!(line.args, ["p", "p-l-v-127.0.1.1-$(AFTER)", "$(LATER)"]);
        assert_eq!(line.env["EMPTY"], "");
    }

    #[test]
    fn a_container_that_cannot_start_has_a_reason() {
        for (container, reason) in [
            (json!({"image": "x", "args": ["a"]}), "ErrImagePull"),
            (
                json!({"command": ["a"], "env": [{"name": "A", "valueFrom":
                    {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                "CreateContainerConfigError",
            ),
            (
                json!({"command": ["a"], "env": [{"name": "A", "valueFrom":
                    {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}}]}),
                "CreateContainerConfigError",
            ),
        ] {
            let blocked = command_line(&Store::new(9), &json!({}), &container, &Env::new());
            assert_eq!(blocked.expect_err("blocked").reason, reason);
        }
    }

    #[test]
    fn variables_come_from_configmaps_and_secrets_or_the_start_is_blocked() {
        let pod = json!({"metadata": {"namespace": "n"}});
        let mut store = Store::new(9);
        let metadata = |name: &str| json!({"name": name, "namespace": "n"});
        let map = json!({"metadata": metadata("m"), "data": {"k": "v", "1a": "x", "a=b": "x"}});
        store.put(Kind::ConfigMap, map);
        let secret = json!({"metadata": metadata("s"), "data": {"pass": "aHVudGVy"}});
        store.put(Kind::Secret, secret);
        let from = |field: &str, name: &str, key: &str, optional: bool| {
            let reference = json!({"name": name, "key": key, "optional": optional});
            json!({"env": [{"name": "A", "valueFrom": {field: reference}}]})
        };
        let all = |field: &str, name: &str, optional: bool| json!({"envFrom": [{"prefix": "P_", field: {"name": name, "optional": optional}}]});
        for (mut container, want) in [
            (from("configMapKeyRef", "m", "k", false), Ok("A=v")),
            (from("secretKeyRef", "s", "pass", false), Ok("A=hunter")),
            (from("configMapKeyRef", "x", "k", false), Err("configmap \"x\" not found")),
            (from("secretKeyRef", "x", "k", false), Err("secret \"x\" not found")),
            (from("configMapKeyRef", "x", "k", true), Ok("")),
            (from("configMapKeyRef", "m", "y", true), Ok("")),
            (from("configMapKeyRef", "m", "y", false), Err("couldn't find key y in ConfigMap n/m")),
            (from("secretKeyRef", "s", "y", false), Err("couldn't find key y in Secret n/s")),
            (all("configMapRef", "m", false), Ok("P_1a=x P_k=v")),
            (all("secretRef", "s", false), Ok("P_pass=hunter")),
            (all("secretRef", "x", true), Ok("")),
            (all("secretRef", "x", false), Err("secret \"x\" not found")),
        ] {
            container["command"] = json!(["prog"]);
            let line = command_line(&store, &pod, &container, &Env::new());
            let result = line.map(|line| {
                let env = line.env.iter().map(|(name, value)| format!("{name}={value}"));
                env.collect::<Vec<_>>().join(" ")
            });
            let want = want.map(str::to_owned);
            assert_eq!(
                result,
                want.map_err(|text| Blocked::config(text.to_owned())),
                "{container}"
            );
        }
    }
}
