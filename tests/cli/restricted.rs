//! Pods that a namespace with Pod Security `restricted` admits: README's quick start, the file of
//! `posse init`, the examples, the manifests of deploy/. The rules are the table of the Pod Security
//! Standards, so that this needs no server that enforces them; `tests/e2e/pod_security.rs` compares
//! the table with a real server.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use posse_core::model::pod_text::PodOverrides;
use posse_encoding::yaml::Node;
use posse_testing::program;
use posse_wire::pod::build::PodContext;
use posse_wire::pod::staged::Staged;
use posse_wire::pod::template::Template;
use serde_json::{Value, json};

use super::readme::{posse, root};
use crate::pod_security::{admitted, changed, forbidden, violations};

#[test]
fn the_table_of_rules_refuses_what_the_standard_refuses() {
    assert_eq!(violations(&admitted()), [""; 0]);
    for (place, value, want) in forbidden() {
        let bad = changed(&admitted(), place, &value);
        let found = violations(&bad);
        assert!(found.iter().any(|field| field == want), "{place} {value}: {found:?}");
    }
    // Each container may say it instead of the pod.
    let own = json!({"containers": [{"name": "c", "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}}]});
    assert_eq!(violations(&own), [""; 0]);
}

/// The pod specs within an object: of a Pod, a Job, a CronJob, a Deployment.
fn specs(object: &Value) -> Vec<Value> {
    match object {
        Value::Object(map) if map.contains_key("containers") => vec![object.clone()],
        Value::Object(map) => map.values().flat_map(specs).collect(),
        Value::Array(items) => items.iter().flat_map(specs).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn rendered(folder: &Path, args: &[&str]) -> Vec<Value> {
    let mut render = program(env!("CARGO_BIN_EXE_posse"));
    render.current_dir(folder).env_clear().args(["render", "-o", "json"]).args(args);
    let done = render.output().unwrap();
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    let specs = specs(&serde_json::from_slice(&done.stdout).unwrap());
    assert!(!specs.is_empty(), "{args:?}");
    specs
}

#[track_caller]
fn all_pass(what: &str, specs: &[Value]) {
    for spec in specs {
        assert_eq!(violations(spec), [""; 0], "{what}: {spec:#}");
    }
}

/// README's `my-posse.yaml`, in the project's folder or in a copy of what it names.
fn quick_start() -> (PathBuf, String) {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("cat > my-posse.yaml <<'END'\n").unwrap();
    let folder = std::env::temp_dir().join(format!("posse-restricted-{}", std::process::id()));
    fs::create_dir_all(folder.join("deploy")).unwrap();
    fs::copy(root().join("deploy/executor.yaml"), folder.join("deploy/executor.yaml")).unwrap();
    (folder, rest.split("END\n").next().unwrap().to_owned())
}

#[test]
fn the_quick_start_and_the_file_of_init_pass() {
    let (folder, text) = quick_start();
    fs::write(folder.join("my-posse.yaml"), text).unwrap();
    all_pass("README's executors", &rendered(&folder, &["-f", "my-posse.yaml"]));
    let driver = ["-f", "my-posse.yaml", "-n", "analytics", "--driver", "--create-rbac"];
    all_pass("README's driver", &rendered(&folder, &driver));
    let mut init = program(env!("CARGO_BIN_EXE_posse"));
    assert!(
        init.current_dir(&folder).args(["init", "init.yaml"]).output().unwrap().status.success()
    );
    all_pass("init's executors", &rendered(&folder, &["-f", "init.yaml"]));
    // An image of the driver's own, with posse copied in.
    let text = fs::read_to_string(folder.join("init.yaml")).unwrap();
    let text =
        text.replace("  #image: reg", "  image: reg").replace("  #posse_image", "  posse_image");
    fs::write(folder.join("init.yaml"), text).unwrap();
    let specs = rendered(&folder, &["-f", "init.yaml", "-n", "analytics", "--driver"]);
    assert_eq!(specs[0]["initContainers"][0]["name"], "posse");
    all_pass("init's driver", &specs);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_example_and_manifest_passes() {
    let examples =
        ["wordcount/posse.yaml", "parts/posse.yaml", "queue/posse.yaml", "dask/posse.yaml"];
    for example in examples.into_iter().chain(["spark/standalone.yaml"]) {
        let path = format!("examples/{example}");
        all_pass(&path, &rendered(root(), &["-f", &path]));
    }
    let driver = ["-f", "examples/wordcount/posse.yaml", "-n", "analytics", "--driver"];
    all_pass("the word count's driver", &rendered(root(), &driver));
    let mut n_pods = 0;
    let folders = ["deploy", "examples/spark/history"];
    for entry in folders.into_iter().flat_map(|name| fs::read_dir(root().join(name)).unwrap()) {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        for document in fs::read_to_string(&path).unwrap().split("\n---\n") {
            let specs = specs(&Node::read(document).unwrap().to_json());
            n_pods += specs.len();
            all_pass(&path.display().to_string(), &specs);
        }
    }
    assert_eq!(n_pods, 5, "driver, executor, cleanup, stage, history server");
}

fn compiled(template: &Template, has_files: bool) -> Value {
    let any = || "any".to_owned();
    let staged = || Staged { secret: any(), image: Some("posse:1".to_owned()) };
    let context = PodContext {
        app: any(),
        instance: any(),
        namespace: any(),
        group: any(),
        driver_host: any(),
        staged: has_files.then(staged),
        ..PodContext::default()
    };
    let body = template.compile(&context).unwrap().render(1, 0, &PodOverrides::default());
    serde_json::from_slice::<Value>(&body).unwrap()["spec"].take()
}

#[test]
fn an_executor_of_an_image_alone_lacks_only_its_user() {
    for has_files in [false, true] {
        let mut template = Template::from_image("t", Some("busybox")).unwrap();
        template.harden().unwrap();
        let spec = compiled(&template, has_files);
        // The container that fetches files has a user of its own.
        assert_eq!(violations(&spec), ["executor runAsNonRoot"]);
        assert_eq!(spec["automountServiceAccountToken"], false);
        template.restrict().unwrap();
        assert_eq!(violations(&compiled(&template, has_files)), [""; 0]);
    }
}

#[test]
fn without_a_configuration_file_an_image_is_hardened_and_baseline_is_not() {
    let flags = ["--app", "a", "--image", "busybox"];
    let spec = &rendered(&std::env::temp_dir(), &flags)[0];
    assert_eq!(violations(spec), ["executor runAsNonRoot"]);
    let folder = std::env::temp_dir().join(format!("posse-baseline-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let text = "{app: a, executors: [{image: busybox, security: baseline}]}";
    fs::write(folder.join("posse.yaml"), text).unwrap();
    let spec = &rendered(&folder, &[])[0];
    assert!(spec["securityContext"].is_null() && spec["automountServiceAccountToken"].is_null());
    assert!(spec["containers"][0]["securityContext"].is_null(), "{spec}");
    fs::remove_dir_all(folder).unwrap();
}

/// What scrapes Spark's drivers finds that of the example for `posse submit`.
#[test]
fn the_pod_monitor_selects_the_driver_of_the_example() {
    let text = fs::read_to_string(root().join("examples/spark/history/pod-monitor.yaml")).unwrap();
    let monitor = Node::read(&text).unwrap().to_json();
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let file = "examples/spark/submit/posse.yaml";
    let text = posse(&["render", "-o", "json", "-n", "any", "--driver", "-f", file]);
    let list: Value = serde_json::from_str(&text).unwrap();
    let mut objects = list["items"].as_array().unwrap().iter();
    let job = objects.find(|object| object["kind"] == "Job").unwrap();
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert!(!wanted.is_empty());
    for (label, value) in wanted {
        assert_eq!(&labels[label], value, "{label} of {file}");
    }
}
