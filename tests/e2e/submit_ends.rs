//! What `posse submit` says about a driver that fails.

use serde_json::{Value, json};

use super::submit::{allow, ask, expect, made, pod_of, pods_of, run, stop_and_finish};
use crate::support::embedded::Embedded;
use crate::support::posse::said;
use crate::support::scene::{Scene, name_of};
use crate::support::server::{Server, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// Without the log, submit shows the last lines of a driver that fails, and of a posse that cannot start it.
pub fn submit_shows_last_lines() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    let script = "echo the first words; echo the last words >&2; exit 5";
    let settings =
        |pod: Value, command: Value| json!({"driver": {"command": command, "pod": pod, "env": []}});
    let failing = settings(Value::Null, json!(["sh", "-c", script]));
    let output = run(&scene).settings(failing).once(&["submit", "--create-rbac"]);
    expect(
        &output,
        5,
        &["the last words", "ended: exit code 5", "`posse logs shop` prints its log"],
    );
    // The account `default` has no permissions.
    let forbidden = settings(pod_of("default"), json!(["true"]));
    let output = run(&scene).settings(forbidden).once(&["submit"]);
    expect(&output, 3, &["exit code 3", "leases.coordination.k8s.io", "is forbidden"]);
    stop_and_finish(scene);
}

/// An image that does not come is waited for for half of `start_timeout`; then nothing stays behind.
pub fn submit_gives_up_a_missing_image() {
    let own = Embedded::start_with(&[]);
    let scene = Scene::new(&own);
    // The embedded node pulls no image, which it says of a container without a command.
    let spec = json!({"initContainers": [{"name": "prep", "image": "nowhere/none:1"}], "containers": [{"name": "driver"}]});
    let settings = json!({
        "driver": {"command": ["sleep", "60"], "env": [], "pod": {"spec": spec}},
        "allocation": {"start_timeout": "2s"},
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
    let driver = |pod: Value| json!({"driver": {"command": ["true"], "pod": pod, "env": []}});
    let unplaced = driver(json!({"spec": {"serviceAccountName": null,
        "nodeSelector": {"no": "where"}, "containers": [{"name": "driver"}]}}));
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
    let output = run(&scene).settings(driver(Value::Null)).once(&["submit"]);
    expect(&output, 3, &["is not submitted", "use --create-rbac, which creates one"]);
    scene.finish();
}

/// `volume:` mounts posse's image where the server has image volumes; else nothing is created. A node without them is told in
/// its own words.
pub fn submit_with_a_mounted_image(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut pod = scene.template();
    pod["metadata"]["name"] = json!("probe");
    let image = json!({"reference": "registry.example.com/posse:1"});
    pod["spec"]["volumes"] = json!([{"name": "v", "image": image}]);
    let dry = format!("{}?dryRun=All", pods_path(&scene.namespace));
    let kept = scene.admin.post(&dry, &pod).ok()["spec"]["volumes"][0]["image"].clone();
    let mounted = || run(&scene).arg("--posse-image").arg("volume:registry.example.com/posse:1");
    if kept.is_null() {
        let words = [".image\"", "Kubernetes can since 1.35: without this word an init container"];
        expect(&mounted().once(&["submit"]), 4, &words);
        assert_eq!(made(&scene), [""; 0]);
        return scene.finish();
    }
    let submit = mounted().begin(&["submit"]);
    let driver = wait_value(PATIENCE, "the driver's pod", || {
        pods_of(&scene, "driver").pop().ok_or("none yet")
    });
    let mut volumes = driver["spec"]["volumes"].as_array().unwrap().iter();
    let volume = volumes.find(|volume| volume["name"] == "posse-bin").unwrap();
    assert_eq!(volume["image"], kept);
    assert_eq!(driver["spec"]["initContainers"], Value::Null);
    if server.real().is_none() {
        let words = [
            "does not start: FailedMount: MountVolume.SetUp failed for volume \"posse-bin\"",
            "the embedded node has no volumes of type \"image\"",
            "if the node has no image volumes, leave out `volume:` in driver.posse_image",
        ];
        wait_for(PATIENCE, "the node's words", || {
            let said = submit.stderr();
            words.iter().all(|words| said.contains(words))
        });
    }
    stop_and_finish(scene);
}

/// The pod of the attempt that decides stays, with its log; `explain` says how the application ended.
pub fn submit_keeps_the_last_log() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    let driver = json!({"driver": {"command": ["sh", "-c", "echo work; sleep 3; exit 3"], "env": [], "retries": 1,
        "pod": {"spec": {"serviceAccountName": null}}}});
    expect(
        &run(&scene).settings(driver).once(&["submit", "--create-rbac"]),
        3,
        &["2 of its pods failed"],
    );
    let pods = pods_of(&scene, "driver");
    assert_eq!(pods.len(), 2, "{pods:?}");
    expect(&ask(&scene, &["apps", "-o", "wide"]), 0, &["Failed", "  3  "]);
    expect(
        &ask(&scene, &["logs", "shop"]),
        0,
        &["work\n", "job shop-driver ends: 2 of 2 pods failed"],
    );
    let ended = ["application shop has ended: Failed, exit code 3", "`posse logs shop`"];
    expect(&ask(&scene, &["explain", "shop"]), 0, &ended);
    expect(&ask(&scene, &["apps", "nosuch"]), 1, &["there is no application nosuch"]);
    stop_and_finish(scene);
}

/// A quota counts the pod that has failed: the Job never gets another one, and everybody who looks is told why.
pub fn submit_under_a_quota_of_pods() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    allow(&scene, &json!({"count/pods": "1"}));
    let driver = json!({"driver": {"command": ["sh", "-c", "exit 3"], "env": [], "retries": 1,
        "pod": {"spec": {"serviceAccountName": null}}}});
    let submit = run(&scene).settings(driver);
    expect(&submit.once(&["submit", "--create-rbac", "--no-wait"]), 0, &["submitted"]);
    wait_value(PATIENCE, "the refused pod to be told", || {
        let output = ask(&scene, &["explain", "shop"]);
        let said = said(&output);
        if said.contains("exceeded quota") { Ok(()) } else { Err(said) }
    });
    let pod = name_of(&pods_of(&scene, "driver")[0]).to_owned();
    let words = [
        "Retrying",
        "job shop-driver cannot replace its pod: FailedCreate",
        "exceeded quota: room, requested: count/pods=1",
        &format!("its ended pods ({pod}) hold a part of it: raise the quota"),
    ];
    expect(&ask(&scene, &["explain", "shop"]), 0, &words);
    expect(&ask(&scene, &["apps", "-o", "wide"]), 0, &words);
    stop_and_finish(scene);
}

/// A container that a webhook has put beside the driver never ends: the driver's end is the application's.
pub fn submit_behind_a_side_car() {
    let own = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&own);
    let containers = json!([{"name": "proxy", "image": "proxy:1", "command": ["sleep", "900"]},
        {"name": "driver"}]);
    let settings = |code: u8| {
        json!({
            "driver": {"command": ["sh", "-c", format!("echo work; exit {code}")], "env": [], "retries": 1,
                "container": "driver", "pod": {"spec": {"serviceAccountName": null, "containers": containers}}},
            "shutdown": {"grace": "1s", "timeout": "1s"},
        })
    };
    let submit = |code: u8, words: &[&str]| {
        run(&scene).settings(settings(code)).once(&[&["submit", "--create-rbac"], words].concat())
    };
    expect(
        &submit(3, &[]),
        3,
        &[
            "has failed: exit code 3; proxy runs on in it",
            "2 of 2 pods failed, the last one with exit code 3",
        ],
    );
    expect(&ask(&scene, &["apps"]), 0, &["Failed"]);
    // What has ended is replaced. The Job fails, because the pod does, and the driver has succeeded.
    expect(&submit(0, &["--logs"]), 0, &["work\n", "application shop succeeded"]);
    expect(&ask(&scene, &["apps"]), 0, &["Succeeded"]);
    wait_for(PATIENCE, "the pod to end with its grace period", || {
        let pods = pods_of(&scene, "driver");
        pods.iter().all(|pod| pod["status"]["phase"] == "Failed") && pods.len() == 1
    });
    expect(&ask(&scene, &["apps"]), 0, &["Succeeded"]);
    expect(&ask(&scene, &["logs", "shop"]), 0, &["work\n"]);
    stop_and_finish(scene);
}
