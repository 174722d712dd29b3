//! How long the arguments and variables of a program may be. Kubernetes does not check it: a container with more fails at
//! its start with "argument list too long", which looks like a fault of its program.

use serde_json::{Map, Value};

/// The longest argument, or variable with its name and `=`, in bytes. Linux counts a NUL too (MAX_ARG_STRLEN, with pages of
/// 4 KiB).
const ONE_BYTES_MAX: usize = (128 << 10) - 1;
/// What all of them may have together, each with its NUL and a pointer: a quarter of the usual stack, 8 MiB (execve(2)).
const ALL_BYTES_MAX: usize = 2 << 20;
const NUL_AND_POINTER_BYTES: usize = 1 + size_of::<usize>();

const ONE_TOO_LONG: &str = "longer than Linux takes, 131,071 bytes: put it into a file";

/// The word as the kubelet must get it to leave it as it is: it reads `$$` as `$`, and `$(NAME)` as a variable of the
/// container.
pub fn literal(word: &str) -> String {
    word.replace('$', "$$")
}

/// What is wrong with an argument, or with a variable: then with its name and `=`.
pub fn argument_error(n_bytes: usize) -> Option<&'static str> {
    (n_bytes > ONE_BYTES_MAX).then_some(ONE_TOO_LONG)
}

/// What is wrong with a variable.
pub fn variable_too_long(name: &str, value: &str) -> Option<&'static str> {
    argument_error(name.len() + 1 + value.len())
}

/// What is wrong with arguments and variables together.
pub fn arguments_error(all: impl IntoIterator<Item = usize>) -> Option<String> {
    let n_bytes: usize = all.into_iter().map(|n_bytes| n_bytes + NUL_AND_POINTER_BYTES).sum();
    (n_bytes > ALL_BYTES_MAX).then(|| {
        format!(
            "its arguments and variables are longer than Linux takes together, 2 MiB: they need {n_bytes} bytes; put \
             some into a file"
        )
    })
}

/// The first field of a pod's spec with more than Linux takes, and what is wrong with it.
pub fn find_too_long(spec: &Map<String, Value>) -> Option<(String, String)> {
    ["initContainers", "containers"].into_iter().find_map(|list| {
        let mut containers = spec.get(list)?.as_array()?.iter().enumerate();
        containers.find_map(|(i, container)| of_container(&format!("spec.{list}[{i}]"), container))
    })
}

fn of_container(field: &str, container: &Value) -> Option<(String, String)> {
    let list = |key: &str| container[key].as_array().into_iter().flatten().enumerate();
    // As the program gets it: see `literal`.
    let text =
        |value: &Value| value.as_str().map_or(0, |text| text.len() - text.matches("$$").count());
    let words = ["command", "args"].into_iter().flat_map(|key| {
        list(key).map(move |(i, word)| (format!("{field}.{key}[{i}]"), text(word)))
    });
    let variables = list("env").map(|(i, entry)| {
        (format!("{field}.env[{i}]"), text(&entry["name"]) + 1 + text(&entry["value"]))
    });
    let all: Vec<(String, usize)> = words.chain(variables).collect();
    // What the kubelet runs beside it.
    let others = [
        "lifecycle/postStart",
        "lifecycle/preStop",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
    ];
    let others = others.into_iter().flat_map(|name| {
        let words = container.pointer(&format!("/{name}/exec/command")).and_then(Value::as_array);
        let name = name.replace('/', ".");
        words
            .into_iter()
            .flatten()
            .enumerate()
            .map(move |(i, word)| (format!("{field}.{name}.exec.command[{i}]"), text(word)))
    });
    let others: Vec<(String, usize)> = others.collect();
    let mut words = all.iter().chain(&others);
    let too_long =
        words.find_map(|(field, n)| Some((field.clone(), argument_error(*n)?.to_owned())));
    too_long.or_else(|| {
        Some((field.to_owned(), arguments_error(all.iter().map(|(_, n_bytes)| *n_bytes))?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::pod::build::PodContext;
    use crate::pod::build::tests::context;
    use crate::pod::template::Template;
    use serde_json::json;

    #[test]
    fn what_linux_takes_is_accepted_and_a_byte_more_is_not() {
        let text = |n_bytes: usize| "x".repeat(n_bytes);
        let env = |n_bytes: usize| json!([{"name": "A", "value": "b"}, {"name": "BIG", "value": text(n_bytes)}]);
        let containers = |main: Value| json!({"containers": [{"name": "side"}, main]});
        for (spec, want) in [
            (containers(json!({"args": ["a", text(131_071)]})), None),
            (containers(json!({"args": ["a", text(131_072)]})), Some("spec.containers[1].args[1]")),
            (
                containers(json!({"command": [text(140_000)]})),
                Some("spec.containers[1].command[0]"),
            ),
            (
                containers(
                    json!({"lifecycle": {"preStop": {"exec": {"command": ["a", text(131_072)]}}}}),
                ),
                Some("spec.containers[1].lifecycle.preStop.exec.command[1]"),
            ),
            (
                containers(json!({"readinessProbe": {"exec": {"command": [text(131_072)]}}})),
                Some("spec.containers[1].readinessProbe.exec.command[0]"),
            ),
            (containers(json!({"env": env(131_067)})), None),
            (containers(json!({"env": env(131_068)})), Some("spec.containers[1].env[1]")),
            (
                json!({"initContainers": [{"args": [text(140_000)]}], "containers": [{}]}),
                Some("spec.initContainers[0].args[0]"),
            ),
            // Characters of several bytes.
            (
                containers(json!({"args": ["\u{e4}".repeat(65_536)]})),
                Some("spec.containers[1].args[0]"),
            ),
            // Together: each with its NUL and a pointer.
            (containers(json!({"args": vec![text(65_527); 32]})), None),
            (containers(json!({"args": vec![text(65_528); 32]})), Some("spec.containers[1]")),
            (containers(json!({"args": vec![""; 240_000]})), Some("spec.containers[1]")),
            // The kubelet reads `$$` as `$`.
            (containers(json!({"args": ["$$".repeat(131_071)]})), None),
            (
                containers(json!({"env": [{"name": "A", "value": "$$".repeat(131_070)}]})),
                Some("spec.containers[1].env[0]"),
            ),
            // The value of another object has an unknown length.
            (containers(json!({"env": [{"name": "A", "valueFrom": {}}]})), None),
        ] {
            let found = find_too_long(spec.as_object().unwrap());
            assert_eq!(found.as_ref().map(|(field, _)| field.as_str()), want);
            let words = found.map(|(_, what)| what).unwrap_or_default();
            assert_eq!(words.contains("longer than Linux takes"), want.is_some(), "{words}");
        }
    }

    #[test]
    fn a_file_and_a_template_are_refused_with_the_field() {
        let big = "x".repeat(131_072);
        for (text, field) in [
            (format!("driver: {{command: [a, {big}]}}"), "driver.command[1]"),
            (format!("driver: {{command: [a], args: [{big}]}}"), "driver.args[0]"),
            (format!("executors: [{{image: i, args: [{big}]}}]"), "executors[0].args[0]"),
            (format!("executors: [{{image: i, env: {{A: {big}}}}}]"), "executors[0].env.A"),
            (
                format!("executors: [{{image: i, env: [{{name: A, value: {big}}}]}}]"),
                "executors[0].env[0].value",
            ),
            (
                format!("executors: [{{image: i, scale: {{command: [{big}]}}}}]"),
                "executors[0].scale.command[0]",
            ),
            (
                format!(
                    "credentials: [{{name: a, command: [{big}], every: 1h, secret: b, mount: /c}}]"
                ),
                "credentials[0].command[0]",
            ),
            (
                format!("driver: {{command: [&a {}, {}]}}", &big[2..], ["*a"; 16].join(",")),
                "driver.command",
            ),
        ] {
            let error = Config::parse("f", &text).unwrap_err().to_string();
            assert!(error.contains(&format!(": {field}: ")), "{error:.200}");
        }
        let pod =
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "A", "value": big}]}]}});
        let error = Template::from_json("t.yaml", pod).unwrap_err().to_string();
        let words = "t.yaml: spec.containers[0].env[0]: longer than Linux takes, 131,071 bytes: put it into a file";
        assert_eq!(error, words);
        // The placeholder's value is longer than its name.
        let pod = json!({"spec": {"containers": [{"name": "a", "args": [format!("{}{{{{DRIVER_HOST}}}}", &big[16..])]}]}});
        let template = Template::from_json("t.yaml", pod).unwrap();
        assert!(template.compile(&context()).is_ok());
        let driver_host = "a-long-name.of-the-driver".to_owned();
        let error = template.compile(&PodContext { driver_host, ..context() }).unwrap_err();
        assert_eq!(error.field, "spec.containers[0].args[0]");
    }
}
