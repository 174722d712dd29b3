//! Secret variables of tasks: their values are in a Secret of posse's, and nowhere else.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::support::posse::{Posse, Run, said};
use crate::support::scene::{Scene, is_running, uid_of};
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
    let group = json!({"group": "default", "count": 0, "max": 1, "pod": scene.template()});
    scene.run().settings(json!({"executors": [group]})).instance("i")
}

/// Adds a task with the value of this file of the scene.
fn add(scene: &Scene<'_>, posse: &Posse, key: &str, file: &str) -> String {
    let value = format!("TOKEN=@{}", scene.file(file).display());
    let output =
        posse.ask(&["task", "add", "--name", key, "--retries", "1", "--secret-env", &value]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    said(&output)
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
    let secret = secret(scene).expect("the Secret");
    let encoded = &secret["data"][from["key"].as_str().expect("a key")];
    let bytes = BASE64_STANDARD.decode(encoded.as_str().expect("its value")).unwrap();
    String::from_utf8(bytes).unwrap()
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
