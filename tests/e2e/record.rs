//! The record of a run: what was acknowledged is known to the next process, in the next pod of the driver's Job or on the
//! same host, and what is done is not done again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use posse_base::rng::Rng;
use serde_json::{Value, json};

use super::standby::find_process;
use super::submit;
use crate::support::posse::{Posse, Run, said};
use crate::support::proxy::{Proxy, ProxyAction};
use crate::support::runner::is_in_full;
use crate::support::scene::{APP, Scene, describe, is_running, name_of, uid_of};
use crate::support::server::{End, Server, Who, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

pub(super) fn queue(scene: &Scene<'_>) -> Value {
    let group = json!({"group": "default", "count": 0, "max": 1, "pod": scene.template()});
    json!({ "executors": [group], "driver": {"keep_executors": true} })
}

/// The running pod of this task.
pub(super) fn wait_task(scene: &Scene<'_>, key: &str) -> Value {
    wait_value(PATIENCE, &format!("task {key} to run"), || {
        let of_it = |pod: &Value| pod["metadata"]["labels"]["posse.dev/key"] == key;
        scene.ours().into_iter().find(|pod| of_it(pod) && is_running(pod)).ok_or("not yet")
    })
}

/// The words of this task's line in a list.
fn line_of(list: &str, key: &str) -> String {
    let line = list.lines().find(|line| line.split_whitespace().next() == Some(key));
    line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn records(scene: &Scene<'_>) -> Vec<Value> {
    let path = format!("/api/v1/namespaces/{}/configmaps", scene.namespace);
    let selector = "?labelSelector=app.kubernetes.io/component%3Drecord";
    scene.admin.get(&format!("{path}{selector}")).ok()["items"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// The kinds of what owns it, in their order.
fn owners(pod: &Value) -> Vec<&str> {
    let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.filter_map(|owner| owner["kind"].as_str()).collect()
}

/// The Job's next pod has all tasks: what has ended is not begun again, what waited waits, what ran runs on.
pub fn tasks_outlive_the_drivers_pod(server: &dyn Server) {
    let scene = Scene::new(server);
    submit::expect(
        &submit::run(&scene).settings(queue(&scene)).once(&["submit", "--no-wait"]),
        0,
        &["submitted"],
    );
    let first = submit::wait_driver(&scene, "");
    let task = |words: &[&str]| submit::ask(&scene, &[&["task"], words].concat());
    let list = || said(&task(&["list", "--app", APP]));
    wait_value(PATIENCE, "the driver to take a task", || {
        let output = task(&["add", "--app", APP, "--name", "a"]);
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    });
    submit::expect(&task(&["add", "--app", APP, "--name", "b"]), 0, &["b"]);
    std::fs::write(scene.file("one"), "canary").unwrap();
    let with_secret =
        ["add", "--app", APP, "--name", "c", "--after", "b", "--secret-env", "TOKEN=@one"];
    submit::expect(&task(&with_secret), 0, &["c"]);
    let pod = wait_task(&scene, "a");
    assert_eq!(owners(&pod), ["Job", "Lease"]);
    scene.end(&pod, End::Exit(0));
    let before = wait_task(&scene, "b");
    // Not in the pod, whose end it outlives.
    let owner = &records(&scene)[0]["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["name"]), (&json!("Job"), &json!("shop-driver")));
    // It does not end with the pod through which it asks.
    let waiting = submit::begin(&scene, &["task", "wait", "--app", APP]);
    wait_for(PATIENCE, "its way into the pod", || find_process(&first, "bridge").is_some());
    thread::sleep(Duration::from_secs(1));
    scene.delete(&first);
    submit::wait_driver(&scene, uid_of(&first));
    wait_value(PATIENCE, "the next pod to know all tasks", || {
        let list = list();
        let is_there = line_of(&list, "a") == "a succeeded 1 1 0 -"
            && !line_of(&list, "b").is_empty()
            && line_of(&list, "c").starts_with("c held - 0");
        if is_there { Ok(()) } else { Err(list) }
    });
    let adopted = wait_task(&scene, "b");
    assert_eq!(uid_of(&adopted), uid_of(&before), "it runs on");
    assert!(line_of(&list(), "b").starts_with("b running 2 1 "), "{}", list());
    scene.end(&adopted, End::Exit(0));
    let pod = wait_task(&scene, "c");
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let token = env.iter().find(|one| one["name"] == "TOKEN").expect("the variable");
    let path = format!("/api/v1/namespaces/{}/secrets/shop-tasks", scene.namespace);
    let secret = scene.admin.get(&path).ok();
    let key = token["valueFrom"]["secretKeyRef"]["key"].as_str().unwrap();
    assert!(secret["data"][key].is_string(), "{secret}");
    assert_eq!(secret["metadata"]["ownerReferences"][0]["kind"], "Job", "{secret}");
    scene.end(&pod, End::Exit(0));
    submit::expect(&waiting.wait_with_output().unwrap(), 0, &[]);
    assert!(list().contains("a    succeeded  1"), "{}", list());
    submit::stop_and_finish(scene);
}

/// A program begins anew in the Job's next pod, and its task goes on: two pods never work on one. What was the program's alone
/// ends.
pub fn a_task_outlives_a_killed_program(server: &dyn Server) {
    let scene = Scene::new(server);
    let run = submit::run(&scene).executors(1).settings(json!({"driver": {"retries": 1}}));
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let first = submit::wait_driver(&scene, "");
    submit::wait_executors(&scene, &first, 1);
    let old = submit::pods_of(&scene, "executor").remove(0);
    let task = |words: &[&str]| submit::ask(&scene, &[&["task"], words].concat());
    submit::expect(&task(&["add", "--app", APP, "--name", "a"]), 0, &["a"]);
    let before = wait_task(&scene, "a");
    submit::kill_container_of(&scene, &first);
    let second = submit::wait_driver(&scene, uid_of(&first));
    wait_value(PATIENCE, "an executor of the next pod in place of the old one", || {
        let pods = submit::pods_of(&scene, "executor");
        let is_new = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"] == uid_of(&second);
        let is_old_there = pods.iter().any(|pod| uid_of(pod) == uid_of(&old));
        if pods.iter().any(is_new) && !is_old_there { Ok(()) } else { Err(describe(&pods)) }
    });
    let after = wait_task(&scene, "a");
    assert_eq!(uid_of(&after), uid_of(&before), "it runs on");
    scene.end(&after, End::Exit(0));
    wait_value(PATIENCE, "the end of the task", || {
        let list = said(&task(&["list", "--app", APP]));
        if line_of(&list, "a") == "a succeeded 2 1 0 -" { Ok(()) } else { Err(list) }
    });
    submit::stop_and_finish(scene);
}

/// Who follows the events reads those of each pod of the Job, each once, until the Job ends.
pub fn events_go_on_with_the_next_pod(server: &dyn Server) {
    let scene = Scene::new(server);
    let mut settings = queue(&scene);
    settings["driver"]["retries"] = json!(2);
    submit::expect(
        &submit::run(&scene).settings(settings).once(&["submit", "--no-wait"]),
        0,
        &["submitted"],
    );
    let first = submit::wait_driver(&scene, "");
    wait_for(PATIENCE, "the run to answer", || {
        submit::ask(&scene, &["status", "--app", APP]).status.success()
    });
    let mut follower = submit::begin(&scene, &["events", APP, "--follow", "-o", "json"]);
    let mut is_in = |pod: &Value| {
        wait_for(PATIENCE, "its way into the pod", || {
            let ended = follower.try_wait().unwrap();
            assert_eq!(ended, None, "it follows the run no more");
            find_process(pod, "bridge").is_some()
        });
        thread::sleep(Duration::from_secs(1));
    };
    is_in(&first);
    scene.end(&first, End::Exit(7));
    let second = submit::wait_driver(&scene, uid_of(&first));
    is_in(&second);
    submit::kill_container_of(&scene, &second);
    let third = submit::wait_driver(&scene, uid_of(&second));
    is_in(&third);
    scene.end(&third, End::Exit(0));
    let output = follower.wait_with_output().unwrap();
    submit::expect(&output, 0, &[]);
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| line.parse().unwrap()).collect();
    let runs: Vec<&[Value]> = events.chunk_by(|one, next| one["run"] == next["run"]).collect();
    assert_eq!(runs.len(), 3, "{lines}");
    for of_run in &runs {
        let numbers = of_run.iter().map(|event| event["seq"].as_u64().unwrap());
        assert!(numbers.eq(1..=of_run.len() as u64), "each once, from the first: {lines}");
    }
    // Who is killed says no last word.
    let ends = runs.iter().map(|of_run| of_run.last().unwrap()["event"] == "stopped");
    assert!(ends.eq([true, false, true]), "{lines}");
    let told = said(&output).matches("following the next pod of the application").count();
    assert_eq!(told, 2, "{}", said(&output));
    submit::stop_and_finish(scene);
}

/// What somebody edits or deletes of the record is told, and written anew from what is known; a ConfigMap of others is left alone.
pub fn a_record_that_others_change(server: &dyn Server) {
    let scene = Scene::new(server);
    let path = submit::path(&scene, "/api/v1", "configmaps");
    let theirs = json!({"metadata": {"name": "shop-record-1"}, "data": {"a": "b"}});
    scene.admin.post(&path, &theirs).ok();
    let run = submit::run(&scene).settings(queue(&scene));
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    submit::wait_driver(&scene, "");
    let add = |key: &str| {
        let words = ["task", "add", "--app", APP, "--name", key];
        wait_value(PATIENCE, "the driver to take a task", || {
            let output = submit::ask(&scene, &words);
            if output.status.success() { Ok(()) } else { Err(said(&output)) }
        });
    };
    add("a");
    let ours = format!("{path}/shop-record-2");
    scene.admin.merge_patch(&ours, &json!({"data": {"lines": "rubbish\n"}})).ok();
    add("b");
    let told = "configmap shop-record-2: somebody has changed it: it is written anew";
    submit::expect(&submit::ask(&scene, &["logs", APP]), 0, &[told]);
    scene.admin.delete(&ours, &json!({})).ok();
    add("c");
    let told = "configmap shop-record-2 was deleted: it is written anew";
    submit::expect(&submit::ask(&scene, &["logs", APP]), 0, &[told]);
    let lines = scene.admin.get(&ours).ok()["data"]["lines"].clone();
    for key in ["a", "b", "c"] {
        let topic = format!(r#""task":["default","{key}"]"#);
        assert!(lines.as_str().unwrap().contains(&topic), "{key}: {lines}");
    }
    let theirs = scene.admin.get(&format!("{path}/shop-record-1")).ok();
    assert_eq!(theirs["data"], json!({"a": "b"}), "it is left alone");
    // Between two pods nobody can write it anew.
    let job = submit::path(&scene, "/apis/batch/v1", "jobs/shop-driver");
    let set_pods = |n| scene.admin.merge_patch(&job, &json!({"spec": {"parallelism": n}})).ok();
    set_pods(0);
    wait_for(PATIENCE, "the driver to go", || submit::pods_of(&scene, "driver").is_empty());
    for object in records(&scene) {
        scene.admin.delete(&format!("{path}/{}", name_of(&object)), &json!({})).ok();
    }
    set_pods(1);
    submit::wait_driver(&scene, "");
    wait_value(PATIENCE, "the loss to be told", || {
        let output = said(&submit::ask(&scene, &["logs", APP]));
        let told = "an earlier pod of the job has had a record, and it is gone";
        if output.contains(told) { Ok(()) } else { Err(output) }
    });
    submit::stop_and_finish(scene);
}

/// A full quota of ConfigMaps and a proxy that takes no bodies: calls say why they are not in the record, which has all of
/// them when the server takes it.
pub fn a_record_that_the_server_refuses(server: &dyn Server) {
    let scene = Scene::new(server);
    let driver = scene.make_driver_pod("driver");
    let is_small = Arc::new(AtomicBool::new(false));
    let small = Arc::clone(&is_small);
    let proxy = Proxy::start(&server.access(Who::Admin), move |request, _| {
        let is_write = matches!(request.method.as_str(), "POST" | "PUT");
        if is_write && request.path.contains("/configmaps") && small.load(Ordering::SeqCst) {
            return ProxyAction::Reply(413, json!("<h1>413 Request Entity Too Large</h1>"));
        }
        ProxyAction::Pass
    });
    let quotas = submit::path(&scene, "/api/v1", "resourcequotas");
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "room"},
        "spec": {"hard": {"count/configmaps": "0"}}});
    scene.admin.post(&quotas, &quota).ok();
    let wait_hard = |n: &str| {
        wait_value(PATIENCE, "the quota to be counted", || {
            let status = scene.admin.get(&format!("{quotas}/room")).ok()["status"].clone();
            let is_in_force = status["hard"]["count/configmaps"] == n
                && status["used"]["count/configmaps"].is_string();
            if is_in_force { Ok(()) } else { Err(status) }
        });
    };
    wait_hard("0");
    let run = || {
        let run = scene.run_with(&proxy.access()).settings(queue(&scene)).instance("i");
        run.in_pod("driver", uid_of(&driver)).start()
    };
    let posse = run();
    posse.wait_ready();
    let add = |posse: &Posse, key: &str| posse.ask(&["task", "add", "--name", key]);
    let refused = |key: &str, why: &str| {
        let begins = "is not in the record of the run yet, so a restart may forget it: repeat the call. Why: ";
        submit::expect(&add(&posse, key), 1, &[begins, why]);
    };
    refused("a", "exceeded quota: room, requested: count/configmaps=1");
    let hard = json!({"spec": {"hard": {"count/configmaps": "9"}}});
    scene.admin.merge_patch(&format!("{quotas}/room"), &hard).ok();
    wait_hard("9");
    wait_value(PATIENCE, "the same call to be answered", || {
        let output = add(&posse, "a");
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    });
    submit::expect(&add(&posse, "b"), 0, &[]);
    is_small.store(true, Ordering::SeqCst);
    refused("c", "413");
    is_small.store(false, Ordering::SeqCst);
    wait_for(PATIENCE, "it to be in the record without a call", || {
        let lines = records(&scene)[0]["data"]["lines"].to_string();
        ["a", "b", "c"].iter().all(|key| lines.contains(&format!(r#"[\"default\",\"{key}\"]"#)))
    });
    posse.kill();
    let posse = run();
    posse.wait_ready();
    for key in ["a", "b", "c"] {
        scene.end(&wait_task(&scene, key), End::Exit(0));
    }
    submit::expect(&posse.ask(&["task", "wait"]), 0, &[]);
    posse.stop();
    scene.remove(&driver);
    scene.finish();
}

fn work(scene: &Scene<'_>, n: u32) -> Value {
    let pod = scene.template();
    let group = json!({
        "group": "default", "count": 1, "completions": n, "restart": "on-failure", "pod": pod,
    });
    json!({ "executors": [group], "driver": {"keep_executors": true} })
}

fn slot(pod: &Value) -> &str {
    pod["metadata"]["labels"]["posse.dev/slot"].as_str().unwrap_or_default()
}

/// An index that is done is not begun again by the Job's next pod.
pub fn work_outlives_the_drivers_pod(server: &dyn Server) {
    let scene = Scene::new(server);
    submit::expect(
        &submit::run(&scene).settings(work(&scene, 3)).once(&["submit", "--no-wait"]),
        0,
        &["submitted"],
    );
    let mut driver = submit::wait_driver(&scene, "");
    let wait_index = |index: &str, other_than: &str| {
        wait_value(PATIENCE, &format!("index {index} to run"), || {
            let pods = submit::pods_of(&scene, "executor");
            let mut up = pods.iter().filter(|pod| is_running(pod) && uid_of(pod) != other_than);
            let found = up.find(|pod| slot(pod) == index).cloned();
            found.ok_or_else(|| crate::support::scene::describe(&pods))
        })
    };
    for index in ["0", "1"] {
        let pod = wait_index(index, "");
        scene.end(&pod, End::Exit(0));
        let next = wait_index(if index == "0" { "1" } else { "2" }, "");
        wait_value(PATIENCE, "the end to be in the record", || {
            let records = records(&scene);
            let text = records.iter().map(|one| one["data"]["lines"].as_str().unwrap_or_default());
            let want = if index == "0" { "\"completed\":[[0,0]]" } else { "\"completed\":[[0,1]]" };
            if text.collect::<String>().contains(want) { Ok(()) } else { Err(json!(records)) }
        });
        scene.delete(&driver);
        driver = submit::wait_driver(&scene, uid_of(&driver));
        wait_value(PATIENCE, "the next pod to go on", || {
            let status = said(&submit::ask(&scene, &["status", "--app", APP]));
            if status.contains("exec-") { Ok(()) } else { Err(status) }
        });
        assert_eq!(uid_of(&wait_index(slot(&next), "")), uid_of(&next), "it runs on");
        let begun = submit::pods_of(&scene, "executor").len();
        assert_eq!(begun, if index == "0" { 2 } else { 3 }, "what is done is not begun again");
    }
    submit::stop_and_finish(scene);
}

/// The record of work that is done stays where something else may come after this process: on a host until the exit
/// code is 0, in a Job as long as the Job.
pub fn done_work_stays_done(server: &dyn Server) {
    let scene = Scene::new(server);
    let record = scene.file("record");
    let is_held = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&is_held);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        if request.is_create() && held.load(Ordering::SeqCst) {
            let mut pod = request.json();
            pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
            request.body = pod.to_string().into_bytes();
        }
        ProxyAction::Pass
    });
    let mut settings = work(&scene, 2);
    settings["shutdown"] = json!({"timeout": "2s"});
    let run = || {
        let run = scene.run_with(&proxy.access()).settings(settings.clone()).instance("i");
        run.arg("--record").arg(&record.display().to_string())
    };
    let posse = run().start();
    for index in ["0", "1"] {
        let pod = wait_value(PATIENCE, "the next index", || {
            let pods = scene.ours();
            pods.into_iter().find(|pod| is_running(pod) && slot(pod) == index).ok_or("not yet")
        });
        scene.end(&pod, End::Exit(0));
    }
    posse.expect_exit(12);
    assert!(record.exists(), "the next process has to know that all is done");
    is_held.store(false, Ordering::SeqCst);
    for pod in scene.ours() {
        let path = format!("{}/{}", pods_path(&scene.namespace), name_of(&pod));
        scene.admin.merge_patch(&path, &json!({"metadata": {"finalizers": null}})).ok();
    }
    let posse = run().start();
    posse.expect_exit(0);
    assert!(posse.events_of("executor_requested").is_empty(), "nothing is done again");
    assert!(!record.exists(), "it is of no use any more");
    scene.finish();
    let scene = Scene::new(server);
    let mut settings = work(&scene, 1);
    settings["driver"] = json!({"command": null});
    let run = submit::run(&scene).settings(settings);
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let pod = wait_value(PATIENCE, "an executor", || {
        submit::pods_of(&scene, "executor").into_iter().find(is_running).ok_or("not yet")
    });
    scene.end(&pod, End::Exit(0));
    let job = submit::path(&scene, "/apis/batch/v1", "jobs/shop-driver");
    wait_value(PATIENCE, "the Job to be complete", || {
        let status = scene.admin.get(&job).ok()["status"].clone();
        if status["succeeded"] == 1 { Ok(()) } else { Err(status) }
    });
    let lines = records(&scene)[0]["data"]["lines"].to_string();
    assert!(lines.contains("completed"), "{lines}");
    submit::stop_and_finish(scene);
}

fn run(scene: &Scene<'_>) -> Run {
    scene.run().settings(queue(scene)).instance("i")
}

/// On a host the record is a file: a `kill -9` forgets no task.
pub fn a_killed_posse_forgets_no_task(server: &dyn Server) {
    let scene = Scene::new(server);
    let record = scene.file("record");
    let path = record.display().to_string();
    let posse = run(&scene).arg("--record").arg(&path).start();
    posse.wait_ready();
    for key in ["a", "b", "c"] {
        let output = posse.ask(&["task", "add", "--name", key]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    let pod = wait_task(&scene, "a");
    let called = json!({"template": scene.template(), "target": 1});
    assert_eq!(posse.control().put("called", &called).ok()["target"], 1);
    let of_call = || {
        let pods = scene.ours().into_iter();
        pods.filter(|pod| pod["metadata"]["labels"]["posse.dev/group"] == "called")
            .collect::<Vec<_>>()
    };
    wait_for(PATIENCE, "the group of the call", || of_call().iter().any(is_running));
    posse.kill();
    scene.end(&pod, End::Exit(0));
    of_call().iter().for_each(|pod| scene.delete(pod));
    let posse = run(&scene).arg("--record").arg(&path).start();
    posse.wait_ready();
    wait_for(PATIENCE, "the group again", || of_call().iter().any(is_running));
    // Nobody says them again.
    scene.end(&wait_task(&scene, "b"), End::Exit(0));
    scene.end(&wait_task(&scene, "c"), End::Exit(0));
    let output = posse.ask(&["task", "wait"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    posse.stop();
    assert!(record.exists(), "a later run of the instance may go on");
    // Of another application, and of a newer posse.
    let other = run(&scene).settings(json!({"app": "other"})).arg("--record").arg(&path);
    let output = other.once(&["run"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("is of application shop"), "{}", said(&output));
    scene.finish();
}

/// Two groups are deleted, and one is made again with a task of the same key. posse is killed before its deletes are sent.
pub fn a_deleted_group_ends_over_a_kill(server: &dyn Server) {
    let scene = Scene::new(server);
    let path = scene.file("record").display().to_string();
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let proxy = Proxy::start(&server.access(Who::Posse), move |request, _| {
        let is_end = matches!(request.method.as_str(), "DELETE" | "PATCH");
        if is_end && cut.load(Ordering::SeqCst) { ProxyAction::Cut } else { ProxyAction::Pass }
    });
    let run = || {
        let run = scene.run_with(&proxy.access()).settings(queue(&scene)).instance("i");
        run.arg("--record").arg(&path).start()
    };
    let posse = run();
    posse.wait_ready();
    let put = |group: &str, target: u32| {
        let called = json!({"template": scene.template(), "target": target});
        assert_eq!(posse.control().put(group, &called).ok()["target"], target);
    };
    let add = |word: &str| {
        let env = format!("WORD={word}");
        let words = ["task", "add", "--group", "again", "--name", "a", "--env", &env];
        let output = posse.ask(&words);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    };
    put("gone", 2);
    put("again", 0);
    add("old");
    let old = wait_task(&scene, "a");
    let is_gone = |pod: &Value| pod["metadata"]["labels"]["posse.dev/group"] == "gone";
    let n_of_gone = || scene.ours().iter().filter(|pod| is_gone(pod) && is_running(pod)).count();
    wait_for(PATIENCE, "the group of the call", || n_of_gone() == 2);
    is_cut.store(true, Ordering::SeqCst);
    for group in ["gone", "again"] {
        posse.control().delete(group).ok();
    }
    put("again", 0);
    add("new");
    posse.kill();
    is_cut.store(false, Ordering::SeqCst);
    let posse = run();
    posse.wait_ready();
    wait_for(PATIENCE, "the deleted group to end", || !scene.ours().iter().any(is_gone));
    let new = wait_value(PATIENCE, "the new task to run", || {
        let new = wait_task(&scene, "a");
        if uid_of(&new) == uid_of(&old) { Err("the old one runs") } else { Ok(new) }
    });
    let mut env = new["spec"]["containers"][0]["env"].as_array().unwrap().iter();
    assert!(env.any(|one| *one == json!({"name": "WORD", "value": "new"})), "{new}");
    scene.end(&new, End::Exit(0));
    let output = posse.ask(&["task", "wait"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let list = said(&posse.ask(&["task", "list"]));
    assert!(line_of(&list, "a").starts_with("a succeeded"), "{list}");
    posse.stop();
    scene.finish();
}

/// Executors that outlive the driver's pod dial the Service; the driver listens at its own address, to which that name may
/// not lead yet.
pub fn executors_dial_the_service(server: &dyn Server) {
    let scene = Scene::new(server);
    let told = scene.file("host");
    let script = format!("echo $POSSE_DRIVER_HOST >{}; exec sleep 1000", told.display());
    let mut settings = queue(&scene);
    settings["executors"][0]["count"] = json!(1);
    settings["driver"]["command"] = json!(["sh", "-c", script]);
    let run = submit::run(&scene).settings(settings);
    submit::expect(&run.once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let pod = wait_value(PATIENCE, "an executor", || {
        submit::pods_of(&scene, "executor").pop().ok_or("not yet")
    });
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let host = env.iter().find(|one| one["name"] == "POSSE_DRIVER_HOST").unwrap();
    assert_eq!(host["value"], format!("shop-driver.{}.svc", scene.namespace));
    wait_value(PATIENCE, "the driver to say where it listens", || {
        let host = std::fs::read_to_string(&told).unwrap_or_default();
        host.trim().parse::<IpAddr>().map_err(|_| host)
    });
    submit::stop_and_finish(scene);
}

/// How often posse is killed in a row.
fn n_kills() -> u64 {
    if is_in_full() { 50 } else { 8 }
}

/// posse is killed again and again, at moments of chance: what it has taken is done, and begun once.
pub fn a_loop_of_kills(server: &dyn Server) {
    let scene = Scene::new(server);
    let (path, begun) = (scene.file("record"), scene.file("begun"));
    let mut settings = queue(&scene);
    settings["executors"][0]["max"] = json!(3);
    settings["executors"][0]["pod"]["spec"]["containers"][0]["command"] =
        json!(["sh", "-c", r#"echo "$POSSE_KEY" >>"$SCENE/begun"; exec sleep "0.$(($$ % 10))""#]);
    let start = || {
        let run = scene.run().settings(settings.clone()).instance("i");
        run.arg("--record").arg(&path.display().to_string()).start()
    };
    let mut rng = Rng::new(1);
    let mut taken = Vec::new();
    for n in 0..n_kills() {
        let posse = start();
        // It may be killed before it has read its record.
        if rng.chance(75) {
            posse.wait_ready();
            for name in [format!("a{n}"), format!("b{n}")] {
                let output = posse.ask(&["task", "add", "--name", &name]);
                assert_eq!(output.status.code(), Some(0), "{}", said(&output));
                taken.push(name);
            }
        }
        thread::sleep(Duration::from_millis(rng.below(400)));
        posse.kill();
    }
    let posse = start();
    posse.wait_ready();
    let output = posse.ask(&["task", "wait"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let begun = std::fs::read_to_string(begun).unwrap();
    let mut begun: Vec<&str> = begun.lines().collect();
    begun.sort_unstable();
    taken.sort_unstable();
    assert_eq!(begun, taken);
    posse.stop();
    scene.finish();
}
