//! Secret variables and files of tasks: their values are in a Secret of posse's, and nowhere else.

use std::fs;
use std::process::Output;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::submit;
use crate::support::posse::{Posse, Run, said};
use crate::support::scene::{APP, Scene, is_running, uid_of};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// What only the Secret and the pod's container may have.
const CANARY: &str = "canary-81d2c05b";

fn secret(scene: &Scene<'_>) -> Option<Value> {
    let path = format!("/api/v1/namespaces/{}/secrets/shop-tasks", scene.namespace);
    let answer = scene.admin.get(&path);
    (answer.code == 200).then_some(answer.body)
}

fn run(scene: &Scene<'_>) -> Run {
    let mut pod = scene.template();
    pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data/"}]);
    let group = json!({"group": "default", "count": 0, "max": 1, "pod": pod});
    // With a record the values stay for the tasks that are left.
    let settings = json!({"executors": [group], "record": "off"});
    scene.run().settings(settings).instance("i")
}

/// Adds a task with the value of this file of the scene.
fn add(scene: &Scene<'_>, posse: &Posse, key: &str, file: &str) -> String {
    add_with(scene, posse, &[key, "--retries", "1", "--secret-env"], &format!("TOKEN=@{file}"))
}

/// The last word has the name of a file of the scene behind `=@`.
fn add_with(scene: &Scene<'_>, posse: &Posse, words: &[&str], last: &str) -> String {
    let output = try_add(scene, posse, words, last);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    said(&output)
}

fn try_add(scene: &Scene<'_>, posse: &Posse, words: &[&str], last: &str) -> Output {
    let (name, file) = last.split_once("=@").expect("a file");
    let last = format!("{name}=@{}", scene.file(file).display());
    posse.ask(&[&["task", "add", "--name"], words, &[last.as_str()]].concat())
}

fn wait_running(scene: &Scene<'_>, key: &str) -> Value {
    wait_value(PATIENCE, &format!("task {key} to run"), || {
        let of_it = |pod: &Value| pod["metadata"]["labels"]["posse.dev/key"] == key;
        scene.ours().into_iter().find(|pod| of_it(pod) && is_running(pod)).ok_or("not yet")
    })
}

/// The value that this pod gets for its variable.
fn value_of(scene: &Scene<'_>, pod: &Value) -> String {
    let env = pod["spec"]["containers"][0]["env"].as_array().expect("variables");
    let token = env.iter().find(|one| one["name"] == "TOKEN").expect("the variable");
    let from = &token["valueFrom"]["secretKeyRef"];
    assert_eq!(from["name"], "shop-tasks", "{token}");
    stored_at(scene, &from["key"])
}

fn stored_at(scene: &Scene<'_>, key: &Value) -> String {
    let secret = secret(scene).expect("the Secret");
    let encoded = &secret["data"][key.as_str().expect("a key")];
    let bytes = BASE64_STANDARD.decode(encoded.as_str().expect("its value")).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The content of the file that this pod has at the path.
fn content_of(scene: &Scene<'_>, pod: &Value, path: &str) -> String {
    let with = |list: &Value, field: &str, text: &Value| {
        let found = list.as_array().expect("a list").iter().find(|one| one[field] == *text);
        found.unwrap_or_else(|| panic!("{field} {text}: {list}")).clone()
    };
    let mount = with(&pod["spec"]["containers"][0]["volumeMounts"], "mountPath", &json!(path));
    assert_eq!(mount["readOnly"], true, "{mount}");
    let source = &with(&pod["spec"]["volumes"], "name", &mount["name"])["secret"];
    assert_eq!(source["secretName"], "shop-tasks", "{source}");
    stored_at(scene, &with(&source["items"], "path", &mount["subPath"])["key"])
}

/// Nothing that posse shows or stores has a value. `said`: what its commands printed.
fn assert_no_canary(scene: &Scene<'_>, posse: &Posse, said: &[String]) {
    let events: Vec<String> = posse.events().iter().map(Value::to_string).collect();
    let pods: Vec<String> = scene.pods().iter().map(Value::to_string).collect();
    let kube = scene.admin.get(&format!("/api/v1/namespaces/{}/events", scene.namespace));
    let list = crate::support::posse::said(&posse.ask(&["task", "list", "-o", "json"]));
    let cmdline = fs::read(format!("/proc/{}/cmdline", posse.pid())).unwrap();
    let mut texts = vec![
        posse.stderr(),
        posse.stdout(),
        events.join(""),
        posse.status().to_string(),
        pods.join(""),
        kube.body.to_string(),
        list,
        String::from_utf8_lossy(&cmdline).into_owned(),
    ];
    texts.extend(said.iter().cloned());
    let encoded = BASE64_STANDARD.encode(CANARY);
    for text in texts {
        assert!(!text.contains(CANARY) && !text.contains(&encoded), "{text}");
    }
}

/// Over a `kill -9`, a failure with a retry, and a task that waits meanwhile.
pub fn secret_env_of_tasks(server: &dyn Server) {
    let scene = Scene::new(server);
    fs::write(scene.file("one"), CANARY).unwrap();
    fs::write(scene.file("two"), format!("{CANARY}-2\n")).unwrap();
    let posse = run(&scene).start();
    posse.wait_ready();
    let mut texts = vec![add(&scene, &posse, "a", "one"), add(&scene, &posse, "b", "two")];
    add(&scene, &posse, "c", "one");
    let stored = secret(&scene).expect("the Secret");
    let labels = &stored["metadata"]["labels"];
    assert_eq!(
        (&labels["posse.dev/app"], stored["data"].as_object().unwrap().len()),
        (&json!("shop"), 2)
    );
    assert_eq!(value_of(&scene, &wait_running(&scene, "a")), CANARY);
    let (code, answer) = posse.call(
        "POST",
        "/v1/groups/default/executors",
        &json!({"executors": [{"key": "a", "retries": 1, "secret_env": {"TOKEN": "another"}}]}),
    );
    assert_eq!((code, &answer["field"]), (409, &json!("secret_env")), "{answer}");
    assert_no_canary(&scene, &posse, &texts);
    posse.kill();

    // The next process finds the values, and tasks that it does not know get the same keys again.
    let posse = run(&scene).start();
    posse.wait_ready();
    for (key, file) in [("a", "one"), ("b", "two"), ("c", "one")] {
        texts.push(add(&scene, &posse, key, file));
    }
    let again = secret(&scene).expect("the Secret");
    assert_eq!(uid_of(&again), uid_of(&stored));
    let values = |of: &Value| of["data"].as_object().unwrap().values().cloned().collect::<Vec<_>>();
    let canary = json!(BASE64_STANDARD.encode(CANARY));
    assert!(values(&again).contains(&canary), "{again}");
    let first = wait_running(&scene, "a");
    scene.end(&first, End::Exit(1));
    let is_next = || uid_of(&wait_running(&scene, "a")) != uid_of(&first);
    wait_for(PATIENCE, "the next attempt", is_next);
    let next = wait_running(&scene, "a");
    assert_eq!(value_of(&scene, &next), CANARY);
    scene.end(&next, End::Exit(0));
    let b = wait_running(&scene, "b");
    assert_eq!(value_of(&scene, &b), format!("{CANARY}-2"));
    scene.end(&b, End::Exit(0));
    assert_eq!(value_of(&scene, &wait_running(&scene, "c")), CANARY);
    assert_no_canary(&scene, &posse, &texts);
    posse.stop();
    assert_eq!(secret(&scene), None, "it goes with the run");
    scene.finish();
}

/// Over a `kill -9`, a failure, and `posse task retry`.
pub fn files_of_tasks(server: &dyn Server) {
    const PATH: &str = "/etc/app/app.conf";
    let scene = Scene::new(server);
    let content = format!("{CANARY}\n");
    fs::write(scene.file("one"), &content).unwrap();
    let mut posse = run(&scene).start();
    posse.wait_ready();
    let file = format!("{PATH}=@one");
    let mut texts = Vec::new();
    for is_again in [false, true] {
        texts.push(add_with(&scene, &posse, &["a", "--file"], &file));
        let words = ["b", "--secret-env", &format!("TOKEN=@{}", scene.file("one").display())];
        texts.push(add_with(&scene, &posse, &[&words[..], &["--file"]].concat(), "/run/b.sh=@one"));
        let stored = secret(&scene).expect("the Secret");
        // A variable has no newline at its end, so it is another value.
        assert_eq!(stored["data"].as_object().unwrap().len(), 2, "{stored}");
        let pod = wait_running(&scene, "a");
        assert_eq!(content_of(&scene, &pod, PATH), content);
        if !is_again {
            posse.kill();
            posse = run(&scene).start();
            posse.wait_ready();
        }
    }
    for (key, path, field, want) in [
        ("a", "/etc/app/other", "files", 409),
        ("new", "/data", "files", 400),
        ("new", "/", "executors[0].files./", 400),
    ] {
        let task = json!({"key": key, "files": {path: "x"}});
        let body = json!({"executors": [task]});
        let (code, answer) = posse.call("POST", "/v1/groups/default/executors", &body);
        assert_eq!((code, &answer["field"]), (want, &json!(field)), "{answer}");
    }
    let refused = try_add(&scene, &posse, &["new", "--file"], "/data=@one");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let want = "files: task new: /data is no place for a file, because the template of group default has a volume at /data";
    assert!(said(&refused).contains(want), "{}", said(&refused));
    let first = wait_running(&scene, "a");
    scene.end(&first, End::Exit(1));
    let b = wait_running(&scene, "b");
    assert_eq!(
        (value_of(&scene, &b), content_of(&scene, &b, "/run/b.sh")),
        (CANARY.to_owned(), content.clone())
    );
    scene.end(&b, End::Exit(0));
    assert_eq!(posse.ask(&["task", "wait"]).status.code(), Some(1));
    texts.push(said(&posse.ask(&["task", "retry", "a"])));
    let is_next = || uid_of(&wait_running(&scene, "a")) != uid_of(&first);
    wait_for(PATIENCE, "the next attempt", is_next);
    let next = wait_running(&scene, "a");
    assert_eq!(content_of(&scene, &next, PATH), content);
    assert_no_canary(&scene, &posse, &texts);
    scene.end(&next, End::Exit(0));
    posse.stop();
    assert_eq!(secret(&scene), None, "it goes with the run");
    scene.finish();
}

/// In a submitted run they go through `pods/exec`, by stdin, in more than a pipe takes at once.
pub fn values_of_a_submitted_queue(server: &dyn Server) {
    let scene = Scene::new(server);
    let large = format!("{CANARY} \"é\"\n").repeat(10_000);
    fs::write(scene.file("one"), CANARY).unwrap();
    fs::write(scene.file("large"), &large).unwrap();
    let group = json!({"group": "default", "count": 0, "max": 1, "pod": scene.template()});
    let driver = json!({"retries": 0});
    let settings = json!({"executors": [group], "task_secrets": true, "driver": driver});
    let run = submit::run(&scene).settings(settings);
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let driver = submit::wait_driver(&scene, "");
    let add = |more: &[&str]| {
        let words = ["task", "add", "--app", APP, "--name", "a"];
        submit::ask(&scene, &[&words, more].concat())
    };
    let both = ["--secret-env", "TOKEN=@one", "--file", "/etc/large=@large"];
    wait_value(PATIENCE, "the driver to take a task", || {
        let output = add(&both);
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    });
    let pod = wait_running(&scene, "a");
    assert_eq!(value_of(&scene, &pod), CANARY);
    assert_eq!(content_of(&scene, &pod, "/etc/large"), large);
    submit::expect(&add(&both), 0, &["a"]);
    // The task has both, so one alone is another task.
    submit::expect(&add(&both[..2]), 1, &["files"]);
    submit::expect(&add(&both[2..]), 1, &["secret_env"]);
    let words = ["task", "add", "--app", APP, "--name", "b", "--file", "/etc/a/=@one"];
    submit::expect(&submit::ask(&scene, &words), 1, &["executors[0].files./etc/a/"]);
    scene.end(&pod, End::Exit(0));
    submit::expect(&submit::ask(&scene, &["task", "wait", "--app", APP]), 0, &[]);
    let logs = said(&submit::ask(&scene, &["logs", APP]));
    assert!(!logs.contains(CANARY), "{logs}");
    // No pod follows that would need the values.
    let words = ["task", "add", "--app", APP, "--name", "c", "--secret-env", "TOKEN=@one"];
    submit::expect(&submit::ask(&scene, &words), 0, &["c"]);
    wait_running(&scene, "c");
    scene.end(&driver, End::Exit(7));
    wait_for(PATIENCE, "the driver to end", || {
        let drivers = submit::pods_of(&scene, "driver");
        drivers.iter().all(|pod| pod["status"]["phase"] == "Failed")
    });
    assert!(secret(&scene).is_none());
    submit::stop_and_finish(scene);
}

/// The call is refused with the rule to add, and adds nothing; `check` says it before.
pub fn secret_env_without_permission(server: &dyn Server) {
    let scene = Scene::new(server);
    fs::write(scene.file("one"), CANARY).unwrap();
    let none = json!({"app": "not-granted", "task_secrets": true});
    let posse = run(&scene).settings(none.clone()).start();
    posse.wait_ready();
    let value = format!("TOKEN=@{}", scene.file("one").display());
    let output = posse.ask(&["task", "add", "--name", "a", "--secret-env", &value]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for want in
        ["cannot get resource \"secrets\"", "patch and delete for the secret not-granted-tasks"]
    {
        assert!(said(&output).contains(want), "{}", said(&output));
    }
    let list = said(&posse.ask(&["task", "list"]));
    assert!(list.contains("there are no tasks"), "{list}");
    assert_no_canary(&scene, &posse, &[said(&output)]);
    posse.stop();
    let granted = said(&run(&scene).settings(json!({"task_secrets": true})).once(&["check"]));
    assert!(granted.contains("secret shop-tasks can be written"), "{granted}");
    let output = run(&scene).settings(none).once(&["check"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("not-granted-tasks"), "{}", said(&output));
    scene.finish();
}
