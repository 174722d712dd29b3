//! What `posse submit` says about a driver that fails.

use serde_json::{Value, json};

use super::submit::{ask, expect, run, stop_and_finish};
use crate::support::embedded::Embedded;
use crate::support::posse::said;
use crate::support::scene::Scene;
use crate::support::wait::{PATIENCE, wait_value};

/// Without the log, submit shows the last lines of a driver that fails, and of a posse that cannot start it.
pub fn submit_shows_last_lines() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    let script = "echo the first words; echo the last words >&2; exit 5";
    let settings = |account: Value, command: Value| json!({"driver": {"command": command, "service_account": account, "env": []}});
    let failing = settings(Value::Null, json!(["sh", "-c", script]));
    let output = run(&scene).settings(failing).once(&["submit", "--create-rbac"]);
    expect(
        &output,
        5,
        &["the last words", "ended: exit code 5", "`posse logs shop` prints its log"],
    );
    // The account `default` has no permissions.
    let forbidden = settings(json!("default"), json!(["true"]));
    let output = run(&scene).settings(forbidden).once(&["submit"]);
    expect(&output, 3, &["exit code 3", "leases.coordination.k8s.io", "is forbidden"]);
    stop_and_finish(scene);
}

/// An image that does not come is waited for until `image_timeout`; then nothing stays behind.
pub fn submit_gives_up_a_missing_image() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    // The embedded node pulls no image, which it says of a container without a command.
    let containers = json!([{"name": "driver"}, {"name": "side", "image": "nowhere/none:1"}]);
    let settings = json!({
        "driver": {"command": ["true"], "env": [],
            "pod": {"spec": {"containers": containers}}},
        "allocation": {"image_timeout": "1s"},
    });
    let output = run(&scene).settings(settings).once(&["submit"]);
    expect(&output, 1, &["ErrImagePull", "no image for 1 s; the application is removed"]);
    expect(&ask(&scene, &["stop", "shop"]), 1, &["there is no application shop"]);
    scene.finish();
}

/// A driver that has not started has no log, and an account that the last submit made is gone with it.
pub fn submit_says_what_is_missing() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    let driver = |placed: Value| {
        json!({"driver": {"command": ["true"], "service_account": null, "env": [],
            "node_selector": placed}})
    };
    let unplaced = driver(json!({"no": "where"}));
    let output = run(&scene).settings(unplaced).once(&["submit", "--create-rbac", "--no-wait"]);
    expect(&output, 0, &["submitted"]);
    let output = wait_value(PATIENCE, "the reason of the pending driver", || {
        let output = ask(&scene, &["logs", "shop"]);
        let is_told = said(&output).contains("there is no log yet: pod shop-driver-")
            && said(&output).contains("is waiting: Unschedulable");
        if is_told { Ok(output) } else { Err(said(&output)) }
    });
    expect(&output, 1, &[]);
    expect(&ask(&scene, &["stop", "shop"]), 0, &["stopped"]);
    let output = run(&scene).settings(driver(json!({}))).once(&["submit"]);
    expect(&output, 3, &["is not submitted", "use --create-rbac, which creates one"]);
    scene.finish();
}
