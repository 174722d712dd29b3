//! `driver.standby`: another pod of the Job waits for the run's Lease, and takes over without a new pod.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::record::{queue, wait_task};
use super::submit;
use crate::support::posse::said;
use crate::support::scene::{APP, Scene, describe, is_running, name_of, uid_of};
use crate::support::server::{End, Server};
use crate::support::wait::{PATIENCE, stays_true, wait_for, wait_value};

/// Settings with a standby.
fn with_standby(mut settings: Value) -> Value {
    settings["driver"]["standby"] = json!(1);
    settings
}

fn leads(pod: &Value) -> bool {
    pod["metadata"]["labels"]["posse.dev/leader"] == "true"
}

/// The pod that acts, and one that stands by. The program of the driver runs in the first one alone.
#[track_caller]
fn wait_both(scene: &Scene<'_>, other_than: &str) -> (Value, Value) {
    wait_value(PATIENCE, "a leader and a standby", || {
        let pods = submit::pods_of(scene, "driver");
        let up: Vec<&Value> =
            pods.iter().filter(|pod| is_running(pod) && uid_of(pod) != other_than).collect();
        let leader = up.iter().find(|pod| leads(pod) && is_up(scene, pod));
        let standby = up.iter().find(|pod| !leads(pod));
        let both = leader.zip(standby).map(|(leader, standby)| {
            assert!(!is_up(scene, standby), "a standby runs no program of the driver");
            ((*leader).clone(), (*standby).clone())
        });
        both.ok_or_else(|| describe(&pods))
    })
}

/// The driver's program runs in this pod.
fn is_up(scene: &Scene<'_>, pod: &Value) -> bool {
    scene.file(&format!("{}.up", name_of(pod))).exists()
}

/// The leader's pod is deleted: the standby goes on with its tasks, and its commands reach it.
pub fn a_standby_takes_over(server: &dyn Server) {
    let scene = Scene::new(server);
    let run = submit::run(&scene).settings(with_standby(queue(&scene)));
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let (first, _) = wait_both(&scene, "");
    let task = |words: &[&str]| submit::ask(&scene, &[&["task"], words].concat());
    for key in ["a", "b"] {
        wait_value(PATIENCE, "the leader to take a task", || {
            let output = task(&["add", "--app", APP, "--name", key]);
            if output.status.success() { Ok(()) } else { Err(said(&output)) }
        });
    }
    let at_work = wait_task(&scene, "a");
    scene.delete(&first);
    let (leader, _) = wait_both(&scene, uid_of(&first));
    wait_value(PATIENCE, "the standby to know the tasks", || {
        let list = said(&task(&["list", "--app", APP]));
        let is_known = list.lines().any(|line| line.starts_with("a "))
            && list.lines().any(|line| line.starts_with("b "));
        if is_known { Ok(()) } else { Err(list) }
    });
    assert_eq!(uid_of(&wait_task(&scene, "a")), uid_of(&at_work), "it runs on");
    submit::expect(&submit::ask(&scene, &["logs", APP]), 0, &["took over: from shop-driver-"]);
    let apps = submit::ask(&scene, &["apps"]);
    submit::expect(&apps, 0, &[name_of(&leader), "Running"]);
    let (leader, standby) = wait_both(&scene, uid_of(&first));
    let from = format!(" ago from {}, released, after ", name_of(&first));
    let standby = format!("leader {}; stands by: {}; ", name_of(&leader), name_of(&standby));
    wait_value(PATIENCE, "the standby to be shown", || {
        let status = said(&submit::ask(&scene, &["status", "--app", APP]));
        let is_shown = status.contains(&standby) && status.contains(&from);
        if is_shown { Ok(()) } else { Err(status) }
    });
    let events = submit::ask(&scene, &["events", "--app", APP]);
    submit::expect(&events, 0, &["took_over", "from shop-driver-", ", released, after "]);
    for key in ["a", "b"] {
        scene.end(&wait_task(&scene, key), End::Exit(0));
    }
    submit::expect(&task(&["wait", "--app", APP]), 0, &[]);
    let begun = submit::pods_of(&scene, "executor").len();
    assert!(begun <= 2, "{begun} executors: nothing is done twice");
    submit::stop_and_finish(scene);
}

/// The process of posse in the pod of a driver.
fn process_of(pod: &Value) -> Pid {
    find_process(pod, "run").expect("it runs")
}

/// The process in the pod that has this argument.
pub(super) fn find_process(pod: &Value, argument: &str) -> Option<Pid> {
    let name = format!("POD_NAME={}", name_of(pod));
    let mut all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let read = |file: &str| std::fs::read(entry.path().join(file)).ok();
        let has = |bytes: &[u8], word: &str| {
            bytes.split(|byte| *byte == 0).any(|one| one == word.as_bytes())
        };
        let is_it = has(&read("environ")?, &name) && has(&read("cmdline")?, argument);
        is_it.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    });
    all.next().and_then(Pid::from_raw)
}

/// A leader that stands still is followed (how soon, the tables of the Lease say). When it goes on, it acts no more.
pub fn a_standby_follows_a_silent_leader(server: &dyn Server) {
    let scene = Scene::new(server);
    let run = submit::run(&scene).settings(with_standby(queue(&scene)));
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let (first, second) = wait_both(&scene, "");
    let process = process_of(&first);
    kill_process(process, Signal::STOP).unwrap();
    let leader = wait_value(Duration::from_secs(60), "the standby to lead", || {
        let pods = submit::pods_of(&scene, "driver");
        let leader = pods
            .iter()
            .find(|pod| leads(pod) && is_up(&scene, pod) && uid_of(pod) != uid_of(&first));
        leader.cloned().ok_or_else(|| describe(&pods))
    });
    assert_eq!(uid_of(&leader), uid_of(&second));
    let pods = submit::pods_of(&scene, "driver");
    assert_eq!(pods.iter().filter(|pod| leads(pod)).count(), 1, "{}", describe(&pods));
    let takeover = &leader["metadata"]["annotations"]["posse.dev/takeover"];
    let takeover: Value = serde_json::from_str(takeover.as_str().unwrap()).unwrap();
    assert_eq!(
        (&takeover["from"], &takeover["cause"]),
        (&json!(name_of(&first)), &json!("silent"))
    );
    let apps = submit::ask(&scene, &["apps", "shop", "-o", "json"]);
    let apps: Value = serde_json::from_slice(&apps.stdout).unwrap();
    assert_eq!(apps[0]["driver"]["pod"], name_of(&leader), "{apps}");
    assert_eq!(apps[0]["driver"]["takeover"], takeover, "{apps}");
    kill_process(process, Signal::CONT).unwrap();
    wait_value(PATIENCE, "the first one to end", || {
        let pod = scene.pod(name_of(&first)).unwrap_or_default();
        let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        if state["exitCode"] == 13 { Ok(()) } else { Err(state.clone()) }
    });
    submit::expect(&submit::ask(&scene, &["logs", APP]), 0, &["took over: from shop-driver-"]);
    submit::stop_and_finish(scene);
}

/// A driver that ends with 0 ends its standby, and completes the Job.
pub fn a_standby_ends_with_its_leader(server: &dyn Server) {
    let scene = Scene::new(server);
    let submit = submit::run(&scene).settings(with_standby(json!({}))).begin(&["submit"]);
    let (leader, standby) = wait_both(&scene, "");
    scene.end(&leader, End::Exit(0));
    submit.expect_exit(0);
    assert!(!is_up(&scene, &standby));
    let job = submit::path(&scene, "/apis/batch/v1", "jobs/shop-driver");
    wait_value(PATIENCE, "the Job to be complete", || {
        let job = scene.admin.get(&job).ok();
        let conditions = job["status"]["conditions"].as_array();
        let mut kinds = conditions.into_iter().flatten().map(|one| &one["type"]);
        if kinds.any(|kind| kind == "Complete") { Ok(()) } else { Err(job["status"].clone()) }
    });
    let pods = submit::pods_of(&scene, "driver");
    assert_eq!(pods.len(), 2, "{}", describe(&pods));
    assert!(pods.iter().all(|pod| pod["status"]["phase"] == "Succeeded"), "{}", describe(&pods));
    submit::stop_and_finish(scene);
}

/// What Kubernetes says of such a Job: after a pod that ends with 0 it makes no other one, and is complete when all have ended.
pub fn both_pods_complete_a_job(server: &dyn Server) {
    let scene = Scene::new(server);
    let submit = submit::run(&scene).settings(with_standby(json!({}))).begin(&["submit"]);
    let pods = wait_value(PATIENCE, "both pods", || {
        let pods = submit::pods_of(&scene, "driver");
        let is_pair = pods.len() == 2 && pods.iter().all(is_running);
        if is_pair { Ok(pods) } else { Err(describe(&pods)) }
    });
    scene.end(&pods[0], End::Exit(0));
    stays_true(Duration::from_secs(3), "no other pod", || {
        submit::pods_of(&scene, "driver").len() == 2
    });
    scene.end(&pods[1], End::Exit(0));
    submit.expect_exit(0);
    submit::stop_and_finish(scene);
}

/// A driver that fails is followed by its standby, which goes on with its executors, and its failures count.
pub fn a_standby_follows_a_failure(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut settings = with_standby(queue(&scene));
    settings["driver"]["retries"] = json!(1);
    settings["executors"][0]["count"] = json!(1);
    let submit = submit::run(&scene).settings(settings).begin(&["submit"]);
    let (first, _) = wait_both(&scene, "");
    let executor = || {
        wait_value(PATIENCE, "an executor", || {
            let mut pods = submit::pods_of(&scene, "executor").into_iter().filter(is_running);
            pods.next().ok_or("not yet")
        })
    };
    let before = executor();
    scene.end(&first, End::Exit(7));
    let (leader, third) = wait_both(&scene, uid_of(&first));
    assert_eq!(uid_of(&executor()), uid_of(&before), "it runs on");
    scene.end(&leader, End::Exit(5));
    submit.expect_exit(5);
    wait_for(PATIENCE, "the executor to end", || submit::pods_of(&scene, "executor").is_empty());
    assert!(!is_up(&scene, &third), "no retry is left");
    wait_for(PATIENCE, "the standby to be gone", || {
        !submit::pods_of(&scene, "driver").iter().any(is_running)
    });
    submit::stop_and_finish(scene);
}
