//! Tests of the command line that need no server: accepted and refused arguments, exit codes,
//! messages.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Output;

use posse_testing::Folder;

use super::folder::text;

const GOOD_TEMPLATE: &str =
    "{apiVersion: v1, kind: Pod, spec: {containers: [{name: w, image: i}]}}";

/// A new folder for one call, with these files in it.
fn folder_with(files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    for (name, text) in files {
        folder.write(name, text);
    }
    folder
}

fn posse(folder: &Path, args: &[&str]) -> Output {
    super::folder::posse(folder, args).output().unwrap()
}

/// Checks that the call exits with 2 and prints all `words` to stderr and nothing to stdout.
#[track_caller]
fn refused(files: &[(&str, &str)], args: &[&str], words: &[&str]) {
    let folder = folder_with(files);
    let output = posse(folder.path(), args);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?} said:\n{said}");
    assert!(output.stdout.is_empty(), "{args:?} printed {}", text(&output.stdout));
    for word in words {
        assert!(said.contains(word), "{args:?} does not say {word:?} but:\n{said}");
    }
    assert!(!said.contains("panicked"), "{said}");
    let n_messages = said.lines().filter(|line| line.starts_with("posse: ")).count();
    assert_eq!(n_messages, 1, "{args:?} says one thing, in one way:\n{said}");
}

/// The commands that read a configuration.
const READERS: [&str; 4] = ["check", "render", "run", "submit"];

/// The same for one `posse.yaml`, with every command that reads one.
#[track_caller]
fn config_refused(config: &str, words: &[&str]) {
    for command in READERS {
        refused(&[("posse.yaml", config), ("pod.yaml", GOOD_TEMPLATE)], &[command], words);
    }
}

/// The same for a template.
#[track_caller]
fn template_refused(template: &str, words: &[&str]) {
    let config = "{app: a, executors: [{group: g, count: 1, template: pod.yaml}]}";
    for command in READERS {
        refused(&[("posse.yaml", config), ("pod.yaml", template)], &[command], words);
    }
}

/// Passed over, it would lead to another cluster than the user named.
#[test]
fn a_kubeconfig_variable_that_is_no_text_is_refused() {
    let folder = folder_with(&[]);
    let mut command = super::folder::posse(folder.path(), &["check"]);
    let output = command.env("KUBECONFIG", OsStr::from_bytes(b"/\xff/secret")).output().unwrap();
    let want = "posse: KUBECONFIG is not UTF-8: change it, or unset it\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(2), want));
}

/// A typing error comes before what follows from it.
#[test]
fn an_unknown_field_of_a_container_is_named() {
    let file =
        "app: a\nexecutors: [{pod: {spec: {containers: [{name: m, image: i, comand: [a]}]}}}]";
    let files = [("posse.yaml", file)];
    refused(
        &files,
        &["run", "--dev"],
        &["spec.containers[0].comand: a container has no such field"],
    );
}

#[test]
fn usage_errors() {
    for args in [&["run", "--executors", "-1"][..], &["scale", "a", "-3"], &["map", "-j", "-1"]] {
        refused(&[], args, &["invalid value '-"]);
    }
    for (args, part) in [
        (&["version"][..], "here: posse --version"),
        (&["apps", "-l", "a=b"], "here: posse apps 'NAME*'"),
        (&["logs", "a", "--since", "5m"], "here: --tail N"),
        (&["logs", "a", "-p"], "here: posse explain APP ID"),
        (&["submit", "--dry-run=server"], "here: --dry-run asks the server"),
        (&["apps", "-o", "jsonpath={.x}"], "use -o json"),
        (&["status", "a", "--watch"], "it was removed: watch posse status"),
        (&["task", "list", "a"], "--app a"),
        (&["scale", "a/3"], "write `posse scale a 3`"),
    ] {
        refused(&[], args, &[part]);
    }
    refused(&[], &["run", "--instance", "UPPER"], &["--instance"]);
}

#[test]
fn too_many_executors_are_an_error() {
    let max = "1000000";
    config_refused(
        "{app: a, executors: [{count: 4000000000, template: pod.yaml}]}",
        &["posse.yaml:1:30: executors[0].count", max, "4000000000"],
    );
    config_refused("{app: a, executors: [{max: 1000001, template: pod.yaml}]}", &["max", max]);
    let files = [("posse.yaml", "{app: a, executors: [{template: pod.yaml}]}")];
    refused(&files, &["run", "--executors", "4000000000"], &["--executors", max]);
    refused(&files, &["scale", "default", "1000001"], &["TARGET", max]);
}

#[test]
fn containers_without_a_command_are_an_error_on_the_embedded_cluster() {
    let dev = ["run", "--dev", "--", "true"];
    let shorthands = "{app: a, executors: [{image: i}]}";
    refused(&[("posse.yaml", shorthands)], &dev, &["executors[0]: spec.containers[0].command"]);
    let file = "{app: a, executors: [{template: pod.yaml, args: [x]}]}";
    let files = [("posse.yaml", file), ("pod.yaml", GOOD_TEMPLATE)];
    refused(&files, &dev, &["pod.yaml: spec.containers[0].command", "pulls no images"]);
    let init = "{kind: Pod, spec: {initContainers: [{name: i, image: i, command: []}], \
                containers: [{name: w, image: i, command: [w]}]}}";
    let files = [("posse.yaml", file), ("pod.yaml", init)];
    refused(&files, &dev, &["pod.yaml: spec.initContainers[0].command"]);
}

#[test]
fn containers_that_the_kubelet_would_restart_are_an_error_everywhere() {
    let pod = "{kind: Pod, spec: {containers: [{name: w, image: i, restartPolicy: Never,
        restartPolicyRules: [{action: RestartAllContainers}]}]}}";
    let words = ["pod.yaml: spec.containers[0].restartPolicyRules", "in place", "remove it"];
    let executors =
        [("posse.yaml", "{app: a, executors: [{template: pod.yaml}]}"), ("pod.yaml", pod)];
    let driver = "{app: a, driver: {template: pod.yaml}, executors: [{image: i}]}";
    let driver = [("posse.yaml", driver), ("pod.yaml", pod)];
    for command in [&["run"][..], &["run", "--dev"], &["render"], &["check"]] {
        refused(&executors, command, &words);
    }
    for files in [&executors, &driver] {
        refused(files, &["submit", "--dry-run", "--image", "i"], &words);
    }
}

#[test]
fn missing_files() {
    refused(&[], &["run", "-f", "nowhere.yaml"], &["nowhere.yaml"]);
    config_refused(
        "{app: a, executors: [{group: g, count: 1, template: nowhere.yaml}]}",
        &["nowhere.yaml"],
    );
    refused(
        &[("pod.yaml", GOOD_TEMPLATE)],
        &["run", "--app", "a", "--template", "pod.yaml", "--kubeconfig", "nowhere.kubeconfig"],
        &["nowhere.kubeconfig"],
    );
}

/// A kubeconfig (JSON is YAML) with this cluster and this user.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{{"name": "c", "cluster": {cluster}}}],
            "users": [{{"name": "u", "user": {user}}}],
            "contexts": [{{"name": "here", "context": {{"cluster": "c", "user": "u"}}}}]}}"#
    )
}

#[test]
fn errors_in_a_kubeconfig_name_file_and_field() {
    let check = |cluster: &str, user: &str, more: &[&str], word: &str| {
        let config = kubeconfig(cluster, user);
        let files = [("pod.yaml", GOOD_TEMPLATE), ("k", &*config)];
        let run = ["run", "--app", "a", "--template", "pod.yaml", "--kubeconfig", "k"];
        refused(&files, &[&run, more].concat(), &["k", word]);
    };
    let good = r#"{"server": "http://127.0.0.1:1"}"#;
    check(good, "{}", &["--context", "elsewhere"], "elsewhere");
    check("{}", "{}", &[], "server");
    let bad_ca = r#"{"server": "https://127.0.0.1:1", "certificate-authority-data": "?"}"#;
    check(bad_ca, "{}", &[], "certificate-authority-data");
    // Credentials are not sent over plain http, so they are not read.
    let secure = r#"{"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true}"#;
    check(secure, r#"{"tokenFile": "nowhere"}"#, &[], "nowhere");
    check(secure, r#"{"client-certificate": "nowhere.crt"}"#, &[], "client-");
    check(r#"{"server": "http://10.0.0.1:80"}"#, r#"{"token": "hush-hush"}"#, &[], "http");
}

/// The server may still be starting, so posse tries for 30 s and then names the server.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let config = kubeconfig(r#"{"server": "http://127.0.0.1:1"}"#, "{}");
    let folder = folder_with(&[("pod.yaml", GOOD_TEMPLATE), ("k", &config)]);
    let run = ["run", "--app", "a", "--template", "pod.yaml", "--kubeconfig", "k"];
    let output = posse(folder.path(), &run);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("127.0.0.1:1"), "{said}");
}

#[test]
fn errors_in_the_configuration_name_file_line_and_column() {
    let group = "executors:\n- group: g\n  count: 1\n  template: pod.yaml\n";
    config_refused(
        &format!("app: a\nexecutorss: 1\n{group}"),
        &["posse.yaml", "2:1", "executorss"],
    );
    config_refused(&format!("{group}  countt: 1\napp: a\n"), &["posse.yaml", "5:3", "countt"]);
    config_refused(&format!("app: a\nlease: perhaps\n{group}"), &["posse.yaml", "2:", "perhaps"]);
    config_refused("app: [a\n", &["posse.yaml"]);
    config_refused(&format!("app: Upper_Case\n{group}"), &["posse.yaml", "app"]);
    config_refused(&format!("app: {}\n{group}", "a".repeat(41)), &["posse.yaml", "app", "40"]);
    config_refused(
        &format!("app: a\nallocation: {{poll_interval: 5 minutes}}\n{group}"),
        &["posse.yaml", "poll_interval"],
    );
    config_refused(
        &format!("app: a\n{group}- group: g\n  count: 1\n  template: pod.yaml\n"),
        &["posse.yaml", "g"],
    );
    config_refused("executors: []\n", &["app"]);
}

#[test]
fn errors_in_a_template_name_the_field() {
    template_refused("{apiVersion: v1, kind: Pod, spec: {}}", &["pod.yaml", "containers"]);
    template_refused(
        "{apiVersion: v1, kind: Pod, spec: {containers: []}}",
        &["pod.yaml", "containers"],
    );
    template_refused("{apiVersion: v1, kind: Service}", &["pod.yaml", "Service"]);
    template_refused("just words", &["pod.yaml"]);
    template_refused(
        "{apiVersion: v1, kind: Pod, spec: {containers: [{name: w, image: 'i:{{COLOUR}}'}]}}",
        &["COLOUR"],
    );
}

#[test]
fn flags_for_one_group_refuse_several() {
    let config =
        "{app: a, executors: [{group: g, template: pod.yaml}, {group: h, template: pod.yaml}]}";
    let files = [("posse.yaml", config), ("pod.yaml", GOOD_TEMPLATE)];
    for flag in [["--executors", "2"], ["--image", "i"], ["--template", "pod.yaml"]] {
        refused(&files, &[&["run"], &flag[..]].concat(), &[flag[0]]);
    }
}

#[test]
fn flags_that_exclude_each_other() {
    let files = [("pod.yaml", GOOD_TEMPLATE)];
    let run = ["run", "--app", "a", "--template", "pod.yaml"];
    refused(&files, &[&run[..], &["--events", "-", "--", "true"]].concat(), &["--events"]);
    refused(&files, &[&run[..], &["--control", "10.0.0.1:80"]].concat(), &["--control"]);
    refused(&files, &[&run[..], &["--control", "127.0.0.1:80"]].concat(), &["token"]);
}

/// Settings that a driver in the cluster cannot use are refused before any request to a server.
#[test]
fn settings_for_a_driver_in_the_cluster_are_checked_first() {
    let submit = |driver: &str, args: &[&str], words: &[&str]| {
        let config = format!("app: a\ndriver: {driver}\n");
        refused(&[("posse.yaml", &config)], &[&["submit"], args].concat(), words);
    };
    submit("{command: [x]}", &[], &["posse.yaml: driver", "image, template or pod"]);
    let account = "{pod: {spec: {serviceAccountName: s, containers: [{name: d, image: i}]}}}";
    submit(account, &["--create-rbac"], &["driver.pod: spec.serviceAccountName"]);
    submit("{image: i}", &["--instance", "abc12"], &["--instance"]);
    submit("{image: i, kind: pod, retries: 2}", &[], &["driver.retries", "kind: job"]);
    submit("{template: none.yaml}", &[], &["none.yaml: cannot be read"]);
    submit("{pod: {spec: {}}}", &[], &["posse.yaml: driver.pod: spec.containers"]);
    submit("{image: i}", &["--no-wait", "--logs"], &["--logs", "--no-wait"]);
    submit("{image: i, container: x}", &["--kubeconfig", "none"], &["none"]);
    let files = [("posse.yaml", "app: a\ndriver: {image: i, container: x}\n")];
    refused(&files, &["render", "--driver"], &["none is named `x`; the containers are: driver"]);
    refused(&[], &["stop"], &["<APP>"]);
    refused(&[], &["logs", "Upper"], &["is not a name for an application"]);
}

/// The Role of `--create-rbac` has what the settings need, by the list that `check` asks for.
#[test]
fn the_role_of_a_driver_has_the_rules_for_its_settings() {
    let gang = "{count: 4, image: i, command: [a], gang: {kind: volcano, min: 4}}";
    let plain = "{count: 1, image: i, command: [a]}";
    for (group, record, want) in [
        (gang, "cluster", &["podgroups", "configmaps"][..]),
        (plain, "auto", &["configmaps"]),
        (plain, "off", &[]),
    ] {
        let config =
            format!("app: a\ndriver: {{image: i}}\nexecutors: [{group}]\nrecord: {record}\n");
        let folder = folder_with(&[("posse.yaml", &config)]);
        let output = posse(folder.path(), &["render", "--driver", "--create-rbac", "--", "x"]);
        let printed = text(&output.stdout);
        for resource in ["podgroups", "configmaps"] {
            let is_there = printed.contains(&format!("- {resource}\n"));
            assert_eq!(is_there, want.contains(&resource), "{record}, {resource}: {printed}");
        }
    }
}

#[test]
fn render_fills_a_template_in() {
    let template = "{apiVersion: v1, kind: Pod, spec: {containers: [{name: w, image: i, \
                    args: ['{{APP}}', '{{EXECUTOR_ID}}', '{{{{SLOT}}}}']}]}}";
    let folder = folder_with(&[("pod.yaml", template)]);
    let args = ["render", "--app", "shop", "--instance", "abc12", "--template", "pod.yaml"];
    let output = posse(folder.path(), &[&args[..], &["--namespace", "n", "-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let pod = &list["items"][0];
    assert_eq!(pod["metadata"]["name"], "shop-abc12-exec-1");
    let args = &pod["spec"]["containers"][0]["args"];
    assert_eq!(*args, serde_json::json!(["shop", "1", "{{SLOT}}"]));
}

/// If there is no run, client commands say so at once.
#[test]
fn client_commands_without_a_run() {
    for command in [&["status"][..], &["scale", "3"], &["events"], &["explain"]] {
        let folder = folder_with(&[]);
        let output = posse(folder.path(), &[command, &["--app", "nobody"]].concat());
        assert_ne!(output.status.code(), Some(0), "{command:?}");
        let said = text(&output.stderr);
        assert!(said.contains("nobody"), "{command:?} does not say whom it looked for:\n{said}");
    }
}
