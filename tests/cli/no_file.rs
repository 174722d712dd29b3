//! Commands without a configuration file: what they print, and which errors say the way.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Output;

use posse_testing::program;
use serde_json::Value;

/// A folder without a file.
fn empty_folder() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-file");
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn posse(args: &[&str]) -> Output {
    let folder = empty_folder();
    let mut command = program(env!("CARGO_BIN_EXE_posse"));
    command.args(args).current_dir(&folder).env_clear().env("HOME", &folder);
    command.output().unwrap()
}

/// The objects that a command prints, as JSON.
#[track_caller]
fn printed(args: &[&str]) -> Vec<Value> {
    let output = posse(&[args, &["-o", "json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["items"].as_array().unwrap().clone()
}

#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let output = posse(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?} does not say {word:?} but {said}");
    }
}

#[test]
fn render_prints_the_pod_of_a_command() {
    let words =
        ["render", "--image", "w:1", "--command", "python3 w.py --to '$(POSSE_DRIVER_HOST) x'"];
    let [pod] = &printed(&words)[..] else { panic!("one pod") };
    let container = &pod["spec"]["containers"][0];
    let command = serde_json::json!(["python3", "w.py", "--to", "$(POSSE_DRIVER_HOST) x"]);
    assert_eq!((&container["image"], &container["command"]), (&"w:1".into(), &command));
    assert_eq!(pod["metadata"]["labels"]["posse.dev/app"], "w");
}

/// A number as it is; `auto` as the run with these names would choose first.
#[test]
fn render_shows_the_drivers_port() {
    let port = |words: &[&str]| {
        let command = "w {{DRIVER_PORT}}";
        let args = [&["render", "--image", "w:1", "--command", command], words].concat();
        let [pod] = &printed(&args)[..] else { panic!("one pod") };
        let container = &pod["spec"]["containers"][0];
        let env = container["env"].as_array().unwrap();
        let port = env.iter().find(|one| one["name"] == "POSSE_DRIVER_PORT").unwrap();
        assert_eq!(port["value"], container["command"][1]);
        port["value"].as_str().unwrap().parse::<u16>().unwrap()
    };
    assert_eq!(port(&["--driver-port", "7077"]), 7_077);
    let auto = |instance| port(&["--driver-port=auto", "--instance", instance]);
    assert!((20_000..30_000).contains(&auto("a")), "{}", auto("a"));
    assert_eq!(auto("a"), auto("a"));
    assert_ne!(auto("a"), auto("b"));
}

/// The driver's container starts posse with the flags, which make the same executors there.
#[test]
fn the_driver_in_the_cluster_gets_the_flags() {
    let flags = ["--image", "w:1", "--posse-image", "p:1", "--executors", "3", "--cpu", "2"];
    let command = ["--command", "sh -c 'echo $A'", "--driver-port", "auto"];
    let command = [&command[..], &["--", "python3", "my_driver.py", "$$ $(POD)"]].concat();
    let output = posse(&[&["render", "--driver", "-o", "json"], &flags[..], &command].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let items = list["items"].as_array().unwrap();
    let job = items.iter().find(|item| item["kind"] == "Job").unwrap();
    assert_eq!(job["metadata"]["name"], "my-driver-driver");
    let spec = &job["spec"]["template"]["spec"];
    assert_eq!(spec["initContainers"][0]["image"], "p:1");
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "w:1");
    let args: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let given = args.iter().position(|arg| arg.starts_with("--app")).unwrap();
    // Kubernetes reads `$$` as `$`.
    let want = [
        "--app=my-driver",
        "--executors=3",
        "--command=sh -c 'echo $$A'",
        "--image=w:1",
        "--cpu=2",
        "--driver-port=auto",
        "--",
        "python3",
        "my_driver.py",
        "$$$$ $$(POD)",
    ];
    assert_eq!(args[given..], want);
    let config = items.iter().find(|item| item["kind"] == "ConfigMap").unwrap();
    assert_eq!(config["data"]["posse.yaml"], "{}\n");
}

#[test]
fn errors_say_the_way() {
    let dev = ["run", "--dev", "--app", "x", "--executors", "3"];
    let driver = ["--", "./driver.sh"];
    refused(
        &[&dev[..], &["--image", "busybox"], &driver].concat(),
        &["the command line: executors[0]: spec.containers[0].command", "give --command"],
    );
    refused(&[&dev[..], &driver].concat(), &["there is no ./posse.yaml", "--command", "-f FILE"]);
    refused(&["run", "--command", "w", "--", "d"], &["--command: give --image IMAGE"]);
    refused(&["submit", "--command", "w", "--", "d"], &["--command: give --image IMAGE"]);
    refused(&["run", "--dev", "--command", "a | b"], &["--command `a | b`: ", "sh -c '...'"]);
    refused(&["run", "--image", "i", "--cpu", "two"], &["--cpu", "a number of CPUs"]);
    refused(&["run", "--image", "i", "--memory", "1g"], &["--memory", "did you mean 1Gi"]);
    refused(&["run", "--image", "i", "--driver-port", "0"], &["expected auto or 1 to 65535"]);
    refused(
        &["render", "--image", "i", "--command", "w {{DRIVER_PORT}}"],
        &["spec.containers[0].command[1]", "{{DRIVER_PORT}} needs `driver.port: auto`"],
    );
    refused(&["submit", "--template", "no.yaml", "--app", "a"], &["no.yaml: cannot be read"]);
}
