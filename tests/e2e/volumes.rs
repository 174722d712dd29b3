//! A volume for each slot: created once, handed to the slot's next executor, and removed when it is
//! no longer wanted.

use serde_json::{Value, json};

use crate::support::posse::Posse;
use crate::support::scene::{Scene, executor_id, is_over, is_running, name_of, uid_of};
use crate::support::server::{End, Server, items};
use crate::support::wait::{PATIENCE, wait_value};

const MOUNT: &str = "/posse-slot-data";

pub fn claims_path(scene: &Scene<'_>) -> String {
    format!("/api/v1/namespaces/{}/persistentvolumeclaims", scene.namespace)
}

/// The claims, without those that are being deleted: the real server here has no controller that
/// lets protected claims go.
fn claims(scene: &Scene<'_>) -> Vec<Value> {
    let mut claims = items(&scene.admin.get(&claims_path(scene)).ok());
    claims.retain(|claim| claim["metadata"]["deletionTimestamp"].is_null());
    claims
}

fn names(claims: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = claims.iter().map(name_of).collect();
    names.sort_unstable();
    names
}

fn groups(count: u32) -> Value {
    let volume = |name: &str, keep: &str| json!({"name": name, "size": "1Mi", "mount": format!("{MOUNT}-{name}"), "keep": keep});
    let volumes = [volume("scratch", "run"), volume("cache", "application")];
    let group = json!({"count": count, "template": "pod.json", "volumes_per_slot": volumes});
    json!({"exclusive": true, "executors": [group]})
}

/// Each executor adds its id to a file in both volumes.
fn write_template(scene: &Scene<'_>) {
    scene.write_template("pod.json", |pod| {
        let container = &mut pod["spec"]["containers"][0];
        let script = container["command"][2].as_str().expect("a script");
        let note = |name: &str| {
            let file = format!("{MOUNT}-{name}/seen");
            format!(
                "echo $POSSE_EXECUTOR_ID >> {file}; cp {file} \"$SCENE/$POSSE_POD_NAME.{name}\""
            )
        };
        let script = format!("{}; {}; {script}", note("scratch"), note("cache"));
        container["command"] = json!(["sh", "-c", script]);
    });
}

/// What an executor has read in one of its volumes.
#[track_caller]
fn seen(scene: &Scene<'_>, pod: &Value, volume: &str) -> String {
    let file = scene.file(&format!("{}.{volume}", name_of(pod)));
    wait_value(PATIENCE, "the executor to read its volume", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.ends_with('\n') { Ok(text.replace('\n', " ")) } else { Err(text) }
    })
}

/// The claim that a pod has mounted under a name.
pub fn claim_of<'a>(pod: &'a Value, volume: &str) -> &'a str {
    let volumes = pod["spec"]["volumes"].as_array().expect("a list");
    let found = volumes.iter().find(|one| one["name"] == volume).expect("it has the volume");
    found["persistentVolumeClaim"]["claimName"].as_str().expect("a claim")
}

/// The uids of the claims that outlive a run.
fn kept(claims: &[Value]) -> Vec<String> {
    let kept = claims.iter().filter(|claim| name_of(claim).ends_with("cache"));
    kept.map(|claim| uid_of(claim).to_owned()).collect()
}

/// A cleanup leaves the volumes of a run alone, and deletes them after its end.
fn cleaned_up(scene: &Scene<'_>, posse: Posse, before: &[Value]) {
    let text = scene.cleanup(&["--volumes", "--yes"]);
    assert_eq!(kept(&claims(scene)), kept(before), "a run uses them:\n{text}");
    posse.stop();
    scene.wait_none();
    let text = scene.cleanup(&["--volumes"]);
    assert!(text.contains("volume shop-default-0-cache: its application has ended"), "{text}");
    assert!(text.contains("--yes removes 0 executors and 2 volumes"), "{text}");
    assert_eq!(kept(&claims(scene)), kept(before));
    let mut shared = groups(1);
    shared["exclusive"] = false.into();
    let refused = scene.run().settings(shared).start();
    refused.expect_exit(2);
    assert!(refused.stderr().contains("needs `exclusive: true`"), "{}", refused.stderr());
    let text = scene.cleanup(&["--volumes", "--yes"]);
    assert!(text.contains("removed 0 executors and 0 leases and 2 volumes"), "{text}");
}

/// Two slots, two volumes each. A successor gets the volumes of its slot; those of the run go with
/// the run, the others are found again, until a person removes them.
pub fn volumes_of_slots(server: &dyn Server) {
    let scene = Scene::new(server);
    let is_real = server.real().is_some();
    write_template(&scene);
    let posse = scene.run().instance("one").settings(groups(2)).start();
    let pods = scene.wait_running(2);
    let before = claims(&scene);
    let want = [
        "shop-default-0-cache",
        "shop-default-1-cache",
        "shop-one-default-0-scratch",
        "shop-one-default-1-scratch",
    ];
    assert_eq!(names(&before), want);
    for pod in &pods {
        let slot = pod["metadata"]["labels"]["posse.dev/slot"].as_str().expect("a slot");
        assert_eq!(claim_of(pod, "scratch"), format!("shop-one-default-{slot}-scratch"));
        assert_eq!(claim_of(pod, "cache"), format!("shop-default-{slot}-cache"));
    }
    // Another process creates the successor.
    posse.kill();
    let posse = scene.run().instance("one").settings(groups(2)).start();
    posse.wait_ready();
    scene.end(&pods[0], End::Exit(1));
    let slot_of = |pod: &Value| pod["metadata"]["labels"]["posse.dev/slot"].clone();
    let next = wait_value(PATIENCE, "a successor in the slot", || {
        let mut ours = scene.ours();
        ours.retain(|pod| is_running(pod) && uid_of(pod) != uid_of(&pods[0]));
        ours.retain(|pod| slot_of(pod) == slot_of(&pods[0]));
        ours.pop().ok_or("none yet")
    });
    assert_eq!(claim_of(&next, "scratch"), claim_of(&pods[0], "scratch"));
    if !is_real {
        let ids = format!("{} {} ", executor_id(&pods[0]), executor_id(&next));
        assert_eq!(seen(&scene, &next, "scratch"), ids);
        assert_eq!(seen(&scene, &next, "cache"), ids);
    }
    posse.stop();
    scene.wait_none();
    wait_value(PATIENCE, "the volumes of the run to be gone", || {
        let left = claims(&scene);
        if names(&left) == want[..2] { Ok(()) } else { Err(format!("{:?}", names(&left))) }
    });

    // The next run of the application finds its volumes, and its own are new.
    let posse = scene.run().instance("two").settings(groups(1)).start();
    let pod = scene.wait_running(1).remove(0);
    let after = claims(&scene);
    assert_eq!(kept(&after), kept(&before));
    if !is_real {
        assert_eq!(seen(&scene, &pod, "scratch"), "1 ");
        assert_eq!(seen(&scene, &pod, "cache").split(' ').count(), 4);
    }
    cleaned_up(&scene, posse, &before);
    wait_value(PATIENCE, "no volume to be left", || {
        let left = claims(&scene);
        if left.is_empty() { Ok(()) } else { Err(format!("{:?}", names(&left))) }
    });
    scene.finish();
}

/// The volumes of slots whose work is done give way to those of slots that a quota keeps waiting; with a record of the run
/// also that of the last one.
pub fn volumes_of_done_slots(server: &dyn Server) {
    for (instance, quota) in [(None, 2), (Some("one"), 1)] {
        let scene = Scene::new(server);
        let hard = json!({"persistentvolumeclaims": quota.to_string()});
        let quotas = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
        scene.admin.post(&quotas, &json!({"metadata": {"name": "q"}, "spec": {"hard": hard}})).ok();
        let volumes = json!([{"name": "scratch", "size": "1Mi", "mount": MOUNT}]);
        let group = json!({"count": 1, "completions": 4, "restart": "on-failure", "template": "pod.json",
            "volumes_per_slot": volumes});
        let mut run = scene.run().settings(json!({"executors": [group]}));
        if let Some(instance) = instance {
            run = run.instance(instance);
        }
        let posse = run.start();
        for n in 1..=4 {
            let pod = scene.wait_running(1).remove(0);
            scene.end(&pod, End::Exit(0));
            posse.wait_group("the slot to be done", |group| group["completed"] == n);
        }
        assert_eq!(posse.wait_exit(PATIENCE), 0, "{}", posse.stderr());
        wait_value(PATIENCE, "no volume to be left", || {
            let left = claims(&scene);
            if left.is_empty() { Ok(()) } else { Err(format!("{:?}", names(&left))) }
        });
        scene.finish();
    }
}

/// A claim that was deleted by hand, a full quota of claims, and a claim of somebody else.
pub fn volumes_that_are_not_there(server: &dyn Server) {
    let scene = Scene::new(server);
    write_template(&scene);
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", scene.namespace);
    let quota = |n: u32| json!({"spec": {"hard": {"persistentvolumeclaims": n.to_string()}}});
    let mut full = quota(2);
    full["metadata"] = json!({"name": "claims"});
    scene.admin.post(&quotas, &full).ok();
    let posse = scene.run().instance("one").settings(groups(2)).start();
    let pod = scene.wait_running(1).remove(0);
    let waiting = posse.wait_event("waiting", |event| event["for"] == "quota");
    let words = waiting["message"].as_str().unwrap_or_default();
    assert!(words.contains("claim shop-") && words.contains("exceeded quota"), "{waiting}");
    scene.admin.merge_patch(&format!("{quotas}/claims"), &quota(9)).ok();
    scene.wait_running(2);

    let name = claim_of(&pod, "scratch").to_owned();
    let path = format!("{}/{name}", claims_path(&scene));
    let uid = scene.admin.get(&path).ok()["metadata"]["uid"].clone();
    scene.admin.delete(&path, &json!({})).ok();
    assert!(scene.admin.get(&path).ok()["metadata"]["deletionTimestamp"].is_string());
    scene.end(&pod, End::Exit(1));
    wait_value(PATIENCE, "a new volume for the slot, and its executor", || {
        let found = scene.admin.get(&path).body;
        let mut ours = scene.ours();
        ours.retain(|pod| is_running(pod) && !is_over(pod));
        let is_new = found["metadata"]["uid"].is_string() && found["metadata"]["uid"] != uid;
        if is_new && ours.len() == 2 { Ok(()) } else { Err(found) }
    });
    posse.stop();
    scene.wait_none();

    let theirs = json!({"metadata": {"name": "shop-three-default-0-scratch"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    let uid = scene.admin.post(&claims_path(&scene), &theirs).ok()["metadata"]["uid"].clone();
    let posse = scene.run().instance("three").settings(groups(1)).start();
    // No other pod was accepted, so the run ends at once.
    posse.may_end();
    let refused = posse.wait_event("create_refused", |_| true);
    let words = refused["message"].as_str().unwrap_or_default();
    assert!(words.contains("claim shop-three-default-0-scratch exists and is not"), "{refused}");
    posse.wait_exit(PATIENCE);
    let path = format!("{}/shop-three-default-0-scratch", claims_path(&scene));
    assert_eq!(scene.admin.get(&path).ok()["metadata"]["uid"], uid, "it is left alone");
    scene.finish();
}
