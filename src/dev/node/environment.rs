//! Owns a container's environment and command line: references to fields, and the expansion of
//! `$(VAR)` exactly as Kubernetes does it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::dev::object::{array_at, text_at};
use crate::dev::validate::subscript;

/// What a container's process is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Empty: the folder that posse was started in.
    pub(super) working_dir: String,
}

/// Why a container cannot be started, as its `waiting` state tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocked {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Puts a container's command line together. `base` is what every container has.
pub(super) fn command_line(
    pod: &Value,
    container: &Value,
    base: &BTreeMap<String, String>,
) -> Result<CommandLine, Blocked> {
    let mut env = base.clone();
    for variable in array_at(container, "/env") {
        let name = text_at(variable, "/name");
        let value = match variable.get("valueFrom") {
            None => Some(expand(text_at(variable, "/value"), &env)),
            Some(source) => referred(pod, source)?,
        };
        if let Some(value) = value {
            env.insert(name.to_owned(), value);
        }
    }
    let words = |list: &str| -> Vec<String> {
        let words = array_at(container, list).iter();
        words.map(|word| expand(word.as_str().unwrap_or_default(), &env)).collect()
    };
    let mut command = words("/command").into_iter();
    let Some(program) = command.next() else {
        let image = text_at(container, "/image");
        return Err(Blocked {
            reason: "ErrImagePull",
            message: format!(
                "image \"{image}\" is not pulled: the embedded node runs commands of this machine \
                 only; give the container a command"
            ),
        });
    };
    let args = command.chain(words("/args")).collect();
    let working_dir = text_at(container, "/workingDir").to_owned();
    Ok(CommandLine { program, args, env, working_dir })
}

/// The value of `valueFrom`; none where an optional source is absent.
fn referred(pod: &Value, source: &Value) -> Result<Option<String>, Blocked> {
    let path = text_at(source, "/fieldRef/fieldPath");
    if !path.is_empty() {
        return Ok(Some(field(pod, path)));
    }
    for (key, what) in [("configMapKeyRef", "configmap"), ("secretKeyRef", "secret")] {
        if let Some(reference) = source.get(key) {
            if reference.get("optional") == Some(&Value::Bool(true)) {
                return Ok(None);
            }
            return Err(Blocked {
                reason: "CreateContainerConfigError",
                message: format!("{what} \"{}\" not found", text_at(reference, "/name")),
            });
        }
    }
    Err(Blocked {
        reason: "CreateContainerConfigError",
        message: "the embedded node cannot fill in resourceFieldRef".to_owned(),
    })
}

fn field(pod: &Value, path: &str) -> String {
    if let Some((map, key)) = subscript(path) {
        let map = map.replace('.', "/");
        let value = pod.pointer(&format!("/{map}")).and_then(|map| map.get(key));
        return value.and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    match path {
        "status.podIPs" => text_at(pod, "/status/podIP").to_owned(),
        path => text_at(pod, &format!("/{}", path.replace('.', "/"))).to_owned(),
    }
}

/// `$(VAR)` becomes the variable's value, `$$` a single `$`, and what is unknown stays.
pub(super) fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
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
                    match env.get(name) {
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

    /// The cases are those of Kubernetes' own test of its expansion.
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
            assert_eq!(expand(text, &env), want, "{text}");
        }
    }

    #[test]
    fn variables_see_those_before_them_and_the_pods_fields() {
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
        let line = command_line(&pod, &container, &BTreeMap::new()).expect("it has a command");
        assert_eq!(line.program, "prog");
        assert_eq!(line.args, ["p", "p-l-v-127.0.1.1-$(AFTER)", "$(LATER)"]);
        assert_eq!(line.env["EMPTY"], "");
    }

    #[test]
    fn what_cannot_run_says_why() {
        for (container, reason) in [
            (json!({"image": "x", "args": ["a"]}), "ErrImagePull"),
            (
                json!({"command": ["a"], "env": [{"name": "A", "valueFrom":
                    {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                "CreateContainerConfigError",
            ),
        ] {
            let blocked = command_line(&json!({}), &container, &BTreeMap::new());
            assert_eq!(blocked.expect_err("blocked").reason, reason);
        }
    }
}
