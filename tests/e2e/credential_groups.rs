//! Credentials of some groups only, and Secrets that a killed run has left.

use std::fs;

use serde_json::{Value, json};

use crate::support::posse::Run;
use crate::support::scene::{Scene, is_running, name_of};
use crate::support::server::Server;
use crate::support::wait::{PATIENCE, wait_value};

const SECRET: &str = "shop-token";
const MOUNT: &str = "/var/posse/credentials/token";

/// Group `all` gets the credentials, group `none` does not. The command needs the file `there`.
fn run(scene: &Scene<'_>) -> Run {
    let there = scene.file("there").display().to_string();
    let entry = json!({
        "name": "token", "command": ["sh", "-c", "cp \"$0\" {{DIR}}/token", there], "every": "1s",
        "secret": SECRET, "mount": MOUNT,
    });
    let group = |name: &str| json!({"group": name, "count": 1, "template": "pod.json"});
    let mut none = group("none");
    none["credentials"] = json!([]);
    let settings =
        json!({"lease": false, "credentials": [entry], "executors": [group("all"), none]});
    scene.run().instance("one").settings(settings)
}

/// The running executor of a group.
fn wait_of(scene: &Scene<'_>, group: &str) -> Value {
    wait_value(PATIENCE, &format!("an executor of {group}"), || {
        let mut ours = scene.ours();
        let is_of = |pod: &Value| pod["metadata"]["labels"]["posse.dev/group"] == group;
        ours.retain(|pod| is_running(pod) && is_of(pod));
        ours.pop().ok_or("none yet")
    })
}

fn secret(scene: &Scene<'_>) -> Option<Value> {
    let path = format!("/api/v1/namespaces/{}/secrets/{SECRET}", scene.namespace);
    let answer = scene.admin.get(&path);
    (answer.code == 200).then_some(answer.body)
}

/// A group without credentials goes on while they cannot be fetched, and never sees them.
pub fn groups_choose_their_credentials(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = run(&scene).start();
    let without = wait_of(&scene, "none");
    let waiting = posse.wait_event("waiting", |event| event["for"] == "credentials");
    assert_eq!(waiting["group"], "all", "{waiting}");
    assert!(!without.to_string().contains(SECRET), "{without}");
    fs::write(scene.file("there"), "token").expect("writable");
    let with = wait_of(&scene, "all");
    assert!(with["spec"]["volumes"].to_string().contains(SECRET), "{with}");

    // A call that changes the group keeps its choice.
    let template = json!({"template": scene.template()});
    let (code, body) = posse.call("PUT", "/v1/groups/none", &template);
    assert_eq!(code, 200, "{body}");
    scene.remove(&without);
    let next = wait_value(PATIENCE, "its successor", || {
        let next = wait_of(&scene, "none");
        if name_of(&next) == name_of(&without) { Err("not yet") } else { Ok(next) }
    });
    assert!(!next.to_string().contains(SECRET), "{next}");
    posse.stop();
    assert_eq!(secret(&scene), None);
    scene.finish();
}

/// The Secret of a killed run stays; a cleanup deletes it when nothing of the application is left.
pub fn secrets_of_ended_runs(server: &dyn Server) {
    let scene = Scene::new(server);
    fs::write(scene.file("there"), "token").expect("writable");
    let posse = run(&scene).start();
    let pods = scene.wait_running(2);
    posse.kill();
    let path = format!("/api/v1/namespaces/{}/secrets", scene.namespace);
    let theirs = json!({"metadata": {"name": "theirs", "labels": {"posse.dev/app": "shop"}}});
    scene.admin.post(&path, &theirs).ok();

    let text = scene.cleanup(&["--secrets", "--yes"]);
    assert!(secret(&scene).is_some(), "its executors use it:\n{text}");
    pods.iter().for_each(|pod| scene.remove(pod));
    scene.wait_none();
    let text = scene.cleanup(&["--yes"]);
    assert!(secret(&scene).is_some(), "nobody asked for it:\n{text}");
    let text = scene.cleanup(&["--secrets"]);
    assert!(text.contains("secret shop-token: its application has ended"), "{text}");
    assert!(text.contains("--yes removes 0 executors and 1 secret"), "{text}");
    let text = scene.cleanup(&["--secrets", "-o", "name"]);
    assert!(text.contains("secret/shop-token"), "{text}");
    assert!(secret(&scene).is_some());
    let text = scene.cleanup(&["--secrets", "--yes"]);
    assert!(text.contains("removed 0 executors and 0 leases and 1 secret"), "{text}");
    assert_eq!(secret(&scene), None);
    assert_eq!(scene.admin.get(&format!("{path}/theirs")).code, 200, "it is not posse's");
    scene.finish();
}
