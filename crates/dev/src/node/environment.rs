//! A container's command line and environment variables: `env`, `envFrom`, service variables, and
//! the expansion of `$(VAR)` exactly as in Kubernetes.

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
    /// Event messages about `envFrom` keys that are not valid variable names.
    pub(super) skipped: Vec<String>,
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
    let (own, skipped) = variables(store, pod, container).map_err(Blocked::config)?;
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
    Ok(CommandLine { program, args, env, working_dir, skipped })
}

/// The variables from the container's spec and from the services of its namespace.
fn variables(store: &Store, pod: &Value, container: &Value) -> Result<(Env, Vec<String>), String> {
    let services = service_variables(store, pod);
    let (mut env, skipped) = env_from(store, pod, container)?;
    for variable in array_at(container, "/env") {
        let text = text_at(variable, "/value");
        let value = match variable.get("valueFrom").filter(|_| text.is_empty()) {
            None => Some(expand(text, |name| env.get(name).or_else(|| services.get(name)))),
            Some(source) => value_from(store, pod, container, source)?,
        };
        if let Some(value) = value {
            env.insert(text_at(variable, "/name").to_owned(), value);
        }
    }
    for (name, value) in services {
        env.entry(name).or_insert(value);
    }
    Ok((env, skipped))
}

/// The fields of `envFrom` and `valueFrom`, their kind, and the kind's name in messages about each.
const SOURCES: [(&str, &str, Kind, &str, &str); 2] = [
    ("configMapRef", "configMapKeyRef", Kind::ConfigMap, "configMap", "ConfigMap"),
    ("secretRef", "secretKeyRef", Kind::Secret, "secret", "Secret"),
];

/// The variables of `envFrom`: every key that is a valid variable name.
fn env_from(store: &Store, pod: &Value, container: &Value) -> Result<(Env, Vec<String>), String> {
    let namespace = text_at(pod, "/metadata/namespace");
    let (mut env, mut skipped) = (Env::new(), Vec::new());
    for source in array_at(container, "/envFrom") {
        for (field, _, kind, word, _) in SOURCES {
            let Some(reference) = source.get(field) else { continue };
            let name = text_at(reference, "/name");
            let optional = sources::is_optional(reference);
            let data = sources::data(store, kind, namespace, name, optional)?.unwrap_or_default();
            let mut invalid: Vec<String> = Vec::new();
            for (key, value) in data {
                let name = format!("{}{key}", text_at(source, "/prefix"));
                if names::env_name(&name).is_empty() {
                    env.insert(name, text(value));
                } else {
                    invalid.push(name);
                }
            }
            if !invalid.is_empty() {
                skipped.push(format!(
                    "Keys [{}] from the EnvFrom {word} {namespace}/{name} were skipped since they \
                     are considered invalid environment variable names.",
                    invalid.join(", "),
                ));
            }
        }
    }
    Ok((env, skipped))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The value of a `valueFrom`. `None` if the source is optional and does not exist.
fn value_from(
    store: &Store,
    pod: &Value,
    container: &Value,
    source: &Value,
) -> Result<Option<String>, String> {
    if let Some(reference) = source.get("fieldRef") {
        return Ok(Some(sources::field(pod, text_at(reference, "/fieldPath"))));
    }
    if let Some(reference) = source.get("resourceFieldRef") {
        return sources::resource(pod, Some(container), reference).map(Some);
    }
    if source.get("fileKeyRef").is_some() {
        return Err("the embedded node takes no variables from files (fileKeyRef)".to_owned());
    }
    let namespace = text_at(pod, "/metadata/namespace");
    for (_, field, kind, _, word) in SOURCES {
        let Some(reference) = source.get(field) else { continue };
        let (name, key) = (text_at(reference, "/name"), text_at(reference, "/key"));
        let optional = sources::is_optional(reference);
        let data = sources::data(store, kind, namespace, name, optional)?;
        return match data.and_then(|mut data| data.remove(key)) {
            Some(value) => Ok(Some(text(value))),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {key} in {word} {namespace}/{name}")),
        };
    }
    Ok(None)
}

/// The service variables of the container's namespace (`enableServiceLinks`). The variables of the
/// API server are not included: `start` sets them for containers that have a token.
fn service_variables(store: &Store, pod: &Value) -> Env {
    let mut env = Env::new();
    if pod.pointer("/spec/enableServiceLinks").and_then(Value::as_bool) == Some(false) {
        return env;
    }
    let namespace = text_at(pod, "/metadata/namespace");
    for service in store.objects(Kind::Service, namespace) {
        let value = service.value();
        let ip = text_at(&value, "/spec/clusterIP");
        let api = namespace == "default" && service.key.name == "kubernetes";
        if ip.is_empty() || ip == "None" || api {
            continue;
        }
        let variable = |text: &str| text.replace('-', "_").to_ascii_uppercase();
        let prefix = variable(&service.key.name);
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        for (i, port) in array_at(&value, "/spec/ports").iter().enumerate() {
            let number = port["port"].to_string();
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            let lower = protocol.to_ascii_lowercase();
            let url = format!("{lower}://{host}:{number}");
            let mut set =
                |name: String, value: &str| env.insert(prefix.clone() + &name, value.to_owned());
            if i == 0 {
                set("_SERVICE_HOST".to_owned(), ip);
                set("_SERVICE_PORT".to_owned(), &number);
                set("_PORT".to_owned(), &url);
            }
            if let Some(name) = port["name"].as_str().filter(|name| !name.is_empty()) {
                set(format!("_SERVICE_PORT_{}", variable(name)), &number);
            }
            let link = format!("_PORT_{number}_{}", protocol.to_ascii_uppercase());
            set(format!("{link}_PROTO"), &lower);
            set(format!("{link}_PORT"), &number);
            set(format!("{link}_ADDR"), ip);
            set(link, &url);
        }
    }
    env
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

    /// A store with these objects in namespace `n`.
    fn store(objects: &[(Kind, Value)]) -> Store {
        let mut store = Store::new(9);
        for (kind, value) in objects {
            let mut value = value.clone();
            value["metadata"]["namespace"] = "n".into();
            store.put(*kind, value);
        }
        store
    }

    fn settings() -> Store {
        store(&[
            (
                Kind::ConfigMap,
                json!({"metadata": {"name": "m"}, "data": {"k": "v", "1a": "x", "a=b": "x"}}),
            ),
            (Kind::Secret, json!({"metadata": {"name": "s"}, "data": {"pass": "aHVudGVy"}})),
        ])
    }

    #[test]
    fn variables_come_from_configmaps_and_secrets_or_the_start_is_blocked() {
        let pod = json!({"metadata": {"namespace": "n"}});
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
            let line = command_line(&settings(), &pod, &container, &Env::new());
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

    #[test]
    fn keys_that_are_no_variable_names_are_skipped_and_reported() {
        let pod = json!({"metadata": {"namespace": "n"}});
        let container = json!({"command": ["p"], "envFrom": [{"configMapRef": {"name": "m"}}]});
        let line = command_line(&settings(), &pod, &container, &Env::new()).expect("it starts");
        assert_eq!(line.env.into_keys().collect::<Vec<_>>(), ["1a", "k"]);
        let message = "Keys [a=b] from the EnvFrom configMap n/m were skipped since they are \
                     considered invalid environment variable names.";
        assert_eq!(line.skipped, [message]);
    }

    #[test]
    fn services_give_variables_unless_service_links_are_disabled() {
        let port = |port: u16, protocol: &str, name: &str| json!({"port": port, "protocol": protocol, "name": name});
        let ports = [port(80, "TCP", "web-ui"), port(53, "UDP", "")];
        let store = store(&[
            (
                Kind::Service,
                json!({"metadata": {"name": "my-db"}, "spec": {"clusterIP": "10.0.0.1", "ports": ports}}),
            ),
            (
                Kind::Service,
                json!({"metadata": {"name": "none"}, "spec": {"clusterIP": "None", "ports": ports}}),
            ),
        ]);
        let container = json!({"command": ["p"], "env": [
            {"name": "URL", "value": "http://$(MY_DB_SERVICE_HOST)"},
            {"name": "MY_DB_PORT", "value": "mine"},
        ]});
        let mut pod = json!({"metadata": {"namespace": "n"}});
        let line = command_line(&store, &pod, &container, &Env::new()).expect("it starts");
        let env: Vec<String> = line.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            env,
            [
                "MY_DB_PORT=mine",
                "MY_DB_PORT_53_UDP=udp://10.0.0.1:53",
                "MY_DB_PORT_53_UDP_ADDR=10.0.0.1",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_80_TCP=tcp://10.0.0.1:80",
                "MY_DB_PORT_80_TCP_ADDR=10.0.0.1",
                "MY_DB_PORT_80_TCP_PORT=80",
                "MY_DB_PORT_80_TCP_PROTO=tcp",
                "MY_DB_SERVICE_HOST=10.0.0.1",
                "MY_DB_SERVICE_PORT=80",
                "MY_DB_SERVICE_PORT_WEB_UI=80",
                "URL=http://10.0.0.1",
            ]
        );
        pod["spec"] = json!({"enableServiceLinks": false});
        let line = command_line(&store, &pod, &container, &Env::new()).expect("it starts");
        assert_eq!(line.env["URL"], "http://$(MY_DB_SERVICE_HOST)");
    }
}
