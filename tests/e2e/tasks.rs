//! Tasks: each runs once, over failures of everything, and the calls about them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use std::{env, fs, thread};

use posse_base::rng::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::e2e::openapi::below;
use crate::support::control::Control;
use crate::support::http::{gone_in, gone_now};
use crate::support::key_watch::KeyWatch;
use crate::support::posse::{Posse, said};
use crate::support::runner::is_in_full;
use crate::support::scene::{GRACE_S, Scene, executor_id, is_over, is_running, name_of, uid_of};
use crate::support::server::{End, Server, items, pods_path};
use crate::support::wait::{PATIENCE, wait_for, wait_value, wait_value_every};

const EXECUTORS: &str = "/v1/groups/default/executors";

/// Ends by itself; some fail. Two processes of one task at a time leave a note.
const SCRIPT: &str = r#"exec 9> "$SCENE/lock.$POSSE_KEY"
    flock -n 9 || echo "$POSSE_KEY" >> "$SCENE/twice"
    sleep "0.0$(($$ % 10))" 9>&-
    test $(($$ % 32)) != 0 || exit 1
    test $(($$ % 32)) != 16 || kill -9 $$$$
    echo "$POSSE_KEY" >> "$SCENE/done"
    exit 0"#;

/// More than bad luck spends.
const RETRIES: u32 = 20;

/// How often the driver looks.
const LOOK: Duration = Duration::from_millis(250);

fn key(n: usize) -> String {
    format!("task-{n}")
}

/// Adds these tasks, as a driver does again after each start of posse.
fn add(control: &Control, keys: &BTreeSet<String>) {
    for some in keys.iter().collect::<Vec<_>>().chunks(500) {
        let tasks: Vec<Value> =
            some.iter().map(|key| json!({"key": key, "retries": RETRIES})).collect();
        control.call("POST", EXECUTORS, &json!({"executors": tasks})).ok();
    }
}

/// The ends that this process has told: key and outcome. None is told twice.
fn ends(posse: &Posse) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for event in posse.events_of("task_ended") {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let before = all.insert(text("key"), text("outcome"));
        assert_eq!(before, None, "told twice: {event}");
    }
    all
}

/// How many tasks there are, and how many processes of posse work on them, one after another.
fn extent() -> (usize, usize) {
    if is_in_full() { (1_000, 7) } else { (150, 3) }
}

/// How many executors may exist at a time.
const MAX: u32 = 24;

/// What happens to the cluster besides the kills.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// A node is cut off. It comes back, or it is deleted with its pods.
    LostNode,
    /// The server is away for a while, and posse may be killed meanwhile.
    ServerRestart,
}

/// Tasks on a cluster where something goes wrong all the time.
struct Chaos<'s> {
    scene: &'s Scene<'s>,
    watch: KeyWatch,
    rng: Rng,
    /// Tasks whose end the driver has not heard of.
    open: BTreeSet<String>,
    /// The ends that it has heard of: key and outcome.
    told: BTreeMap<String, String>,
    /// The pods that the test has ended or left alone, by uid.
    met: BTreeSet<String>,
}

impl Chaos<'_> {
    /// Ends each pod that runs now in one way or another.
    fn meet_running(&mut self) {
        for pod in self.watch.running() {
            if self.met.insert(uid_of(&pod).to_owned()) {
                self.meet(&pod);
            }
        }
    }

    fn meet(&mut self, pod: &Value) {
        let (scene, name) = (self.scene, name_of(pod));
        let path = format!("{}/{name}", pods_path(&scene.namespace));
        let draw = self.rng.below(100);
        if draw < 6 {
            let answer = if draw < 3 {
                scene.admin.delete(&path, &gone_in(GRACE_S))
            } else {
                // The real server is older than policy/v1.
                let eviction = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction",
                    "metadata": {"name": name, "namespace": scene.namespace}});
                scene.admin.post(&format!("{path}/eviction"), &eviction)
            };
            // It may have gone with its node.
            assert!(matches!(answer.code, 200 | 201 | 404), "{name}: {}", answer.body);
        } else if scene.server.real().is_some() && scene.pod(name).is_some() {
            // It has not gone with its node. The embedded cluster's containers end by themselves.
            let end = match draw {
                6..9 => End::Exit(1),
                9..11 => End::OomKilled,
                11..13 => End::PodFailed("Evicted"),
                13..15 => End::Disrupted("PreemptionByScheduler"),
                _ => End::Exit(0),
            };
            scene.end(pod, end);
        }
    }

    /// What the driver of this process has heard so far.
    fn hear(&mut self, posse: &Posse) {
        for (key, outcome) in ends(posse) {
            self.open.remove(&key);
            let before = self.told.insert(key.clone(), outcome.clone());
            // A kill may come between the event and the mark on the pod: then it is told again.
            assert!(before.is_none_or(|before| before == outcome), "two ends of {key}");
        }
    }

    fn lose_a_node(&mut self) {
        let scene = self.scene;
        let nodes = items(&scene.admin.get("/api/v1/nodes").ok());
        let node = name_of(&nodes[below(&mut self.rng, nodes.len())]).to_owned();
        scene.cut_off(&node);
        let is_there = |pod: &Value| pod["spec"]["nodeName"] == *node;
        wait_for(PATIENCE, "its pods to be marked", || {
            !scene.ours().iter().any(|pod| is_there(pod) && is_running(pod) && !is_over(pod))
        });
        if self.rng.chance(50) {
            scene.admin.delete(&format!("/api/v1/nodes/{node}"), &json!({})).ok();
            for pod in scene.ours().iter().filter(|pod| is_there(pod)) {
                // It may be gone already.
                let path = format!("{}/{}", pods_path(&scene.namespace), name_of(pod));
                scene.admin.delete(&path, &gone_now(&pod["metadata"]["uid"]));
            }
            let again = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
            scene.admin.post("/api/v1/nodes", &again).ok();
        }
        scene.connect(&node);
    }

    /// The driver of one process, until so many tasks are open. Trouble comes somewhere on the way.
    fn drive(&mut self, posse: &Posse, trouble: Trouble, left_max: usize) {
        posse.wait_ready();
        add(&posse.control(), &self.open);
        let n_more = self.open.len().saturating_sub(left_max);
        let trouble_at = left_max + below(&mut self.rng, n_more.max(1));
        let mut trouble = Some(trouble);
        wait_value_every(LOOK, PATIENCE * 4, "tasks to end", || {
            self.meet_running();
            self.hear(posse);
            let n_open = self.open.len();
            match trouble.take_if(|_| n_open <= trouble_at) {
                Some(Trouble::LostNode) => self.lose_a_node(),
                Some(Trouble::ServerRestart) => {
                    self.scene.server.down();
                    if left_max > 0 && self.rng.chance(50) {
                        posse.signal(Signal::KILL);
                    }
                    self.scene.server.up();
                }
                None => {}
            }
            if n_open <= left_max || posse.is_over() {
                Ok(())
            } else {
                Err(format!("{n_open} are open"))
            }
        });
    }

    /// Kills posse at some moment. Its driver may have read the last events or not.
    fn kill(&mut self, posse: &Posse) {
        thread::sleep(Duration::from_millis(self.rng.below(100)));
        posse.signal(Signal::KILL);
        wait_for(PATIENCE, "posse to end", || posse.is_over());
        if self.rng.chance(50) {
            self.hear(posse);
        }
    }
}

/// Each of many tasks ends once for the driver, none is lost and none runs twice at a time: over
/// failures, evictions, lost nodes, restarts of the server and `kill -9` of posse.
pub fn tasks_run_once_over_faults(server: &dyn Server) {
    let seed =
        env::var("TASKS_SEED").map_or(1, |seed| seed.parse().expect("TASKS_SEED is a number"));
    println!("tasks_run_once_over_faults: TASKS_SEED={seed}");
    let own = server.fresh();
    let scene = Scene::new(&*own);
    scene.write_template("pod.json", |pod| {
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", SCRIPT]);
        pod["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/unreachable",
            "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]);
    });
    let group = json!({"count": 0, "max": MAX, "template": "pod.json"});
    let run =
        || scene.run().settings(json!({"executors": [group.clone()]})).instance("tasks").start();
    let (n_tasks, n_processes) = extent();
    let open: BTreeSet<String> = (0..n_tasks).map(key).collect();
    let (watch, rng) = (KeyWatch::start(&scene), Rng::new(seed));
    let mut chaos =
        Chaos { scene: &scene, watch, rng, open, told: BTreeMap::new(), met: BTreeSet::new() };
    for n in (0..n_processes).rev() {
        let trouble = if n % 2 == 0 { Trouble::LostNode } else { Trouble::ServerRestart };
        // This process is killed after about its share of the tasks.
        let n_ends = below(&mut chaos.rng, (2 * chaos.open.len() / (n + 1)).max(1));
        let left_max = if n == 0 { 0 } else { chaos.open.len().saturating_sub(n_ends).max(n) };
        let posse = run();
        chaos.drive(&posse, trouble, left_max);
        if n > 0 {
            chaos.kill(&posse);
        } else {
            assert_eq!(chaos.told.len(), n_tasks);
            check_the_end(&posse, &chaos.told);
            posse.stop();
        }
    }
    scene.wait_none();
    chaos.watch.finish(n_tasks);
    if scene.server.real().is_none() {
        assert!(!scene.file("twice").exists(), "{:?}", fs::read_to_string(scene.file("twice")));
        let done = fs::read_to_string(scene.file("done")).expect("readable");
        assert_eq!(done.lines().collect::<BTreeSet<_>>().len(), n_tasks);
    }
    scene.finish();
}

fn check_the_end(posse: &Posse, told: &BTreeMap<String, String>) {
    assert!(told.values().all(|outcome| outcome == "succeeded"), "{told:?}");
    let group = &posse.status()["groups"][0];
    assert_eq!((&group["open_tasks"], &group["target"]), (&json!(0), &json!(0)));
}

/// Said again, refused, failed, tried again and cancelled.
pub fn tasks_by_calls(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"count": 1, "template": "pod.json"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    scene.wait_running(1);
    let control = posse.control();
    let state = |key: &str| {
        control.call("GET", &format!("{EXECUTORS}/{key}"), &Value::Null).ok()["state"].clone()
    };
    let tasks = json!({"executors": [
        {"key": "a", "env": {"X": "1"}, "retries": 1}, {"key": "b"},
        {"key": "bad", "memory": "1Ei", "args": ["x"]}]});
    control.call("POST", EXECUTORS, &json!({"executors": [tasks["executors"][0]]})).ok();
    scene.wait_running(2);
    let said = control.call("POST", EXECUTORS, &tasks).ok();
    assert_eq!(said["executors"].as_array().unwrap().len(), 3);
    let other = json!({"executors": [{"key": "a", "env": {"X": "2"}, "retries": 1}]});
    let refused = control.call("POST", EXECUTORS, &other);
    assert_eq!((refused.code, &refused.body["field"]), (409, &json!("env")));
    assert_eq!(refused.body["error"], "the key a was given before with another env");
    let of = |key: &str| {
        let find = || {
            let mut ours = scene.ours();
            ours.retain(|pod| pod["metadata"]["labels"]["posse.dev/key"] == key);
            ours.retain(|pod| is_running(pod) && !is_over(pod));
            ours.pop().ok_or("it does not run")
        };
        wait_value(PATIENCE, "the task to run", find)
    };
    let first = of("a");
    let env = first["spec"]["containers"][0]["env"].as_array().unwrap().clone();
    assert!(env.contains(&json!({"name": "X", "value": "1"})), "{env:?}");
    assert!(env.contains(&json!({"name": "POSSE_KEY", "value": "a"})), "{env:?}");
    assert_eq!(first["metadata"]["labels"]["posse.dev/slot"], Value::Null);
    for code in [3, 4] {
        let pod = of("a");
        scene.end(&pod, End::Exit(code));
        wait_for(PATIENCE, "its end", || scene.pod(name_of(&pod)).is_none_or(|pod| is_over(&pod)));
    }
    wait_for(PATIENCE, "it to fail", || state("a") == "failed");
    let b = of("b");
    control.call("DELETE", &format!("{EXECUTORS}/b"), &Value::Null).ok();
    assert_eq!(state("b"), "cancelled");
    wait_for(PATIENCE, "its executor to be deleted", || scene.pod(name_of(&b)).is_none());
    let told = |key: &str| {
        let events = posse.events_of("task_ended");
        events.into_iter().find(|event| event["key"] == key)
    };
    wait_for(PATIENCE, "both to be told", || told("a").is_some() && told("b").is_some());
    let a = told("a").unwrap();
    assert_eq!((&a["exit_code"], &a["attempts"]), (&json!(4), &json!(2)), "{a}");
    control.call("DELETE", &format!("{EXECUTORS}/bad"), &Value::Null).ok();
    assert_eq!(control.call("GET", &format!("{EXECUTORS}/c"), &Value::Null).code, 404);
    posse.stop();
    scene.finish();
}

/// A driver that adds 100,000 keys is told the limits, and posse's memory is bounded.
pub fn too_many_tasks(server: &dyn Server) {
    let scene = Scene::new(server);
    // No pod is made: it is the number of keys that counts.
    let group = json!({"count": 0, "max": 0, "template": "pod.json"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    posse.wait_ready();
    let control = posse.control();
    let before_kb = resident_kb(&posse);
    let mut answers: BTreeMap<u16, usize> = BTreeMap::new();
    for first in (0..30_000).step_by(5_000) {
        let tasks: Vec<Value> = (first..first + 5_000).map(|n| json!({"key": key(n)})).collect();
        let said = control.call("POST", EXECUTORS, &json!({"executors": tasks}));
        *answers.entry(said.code).or_default() += 1;
        if said.code != 200 {
            assert_eq!(
                said.body["error"],
                "20000 tasks are open, 5000 are new, and the maximum is 20000: add fewer, or wait until \
                 some have ended"
            );
        }
    }
    assert_eq!(answers, [(200, 4), (429, 2)].into());
    let all: Vec<Value> = (0..100_000).map(|n| json!({"key": key(n)})).collect();
    let said = control.call("POST", EXECUTORS, &json!({"executors": all}));
    let error = said.body["error"].as_str().unwrap_or_default();
    assert_eq!((said.code, error.contains("more than 100000 values")), (400, true), "{error}");
    assert_eq!(control.group("default").unwrap()["open_tasks"], 20_000);
    let more_kb = resident_kb(&posse).saturating_sub(before_kb);
    assert!(more_kb < MORE_KB_MAX, "{more_kb} kB more than before");
    posse.stop();
    scene.finish();
}

/// The same by `posse task`: what a task changes reaches its pod, and a wait ends as the task does.
pub fn tasks_by_commands(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"count": 0, "max": 3, "template": "pod.json"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    posse.wait_event("started", |_| true);
    let control = posse.control();
    wait_for(PATIENCE, "the group", || control.group("default").is_some());
    let ask = |words: &[&str]| {
        let output = posse.ask(words);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let add =
        ["task", "add", "--name", "sim-3", "--cpu", "100m", "--memory", "64Mi", "-e", "X=$(Y)"];
    // The flags of `ask` come last, so the command is the template's.
    assert_eq!(ask(&[&add[..], &["--retries", "1"]].concat()), (Some(0), "sim-3".to_owned()));
    assert_eq!(ask(&[&add[..], &["--retries", "2"]].concat()).0, Some(1), "another task");
    let of = |id: u64| {
        scene.wait_running_ids(&[id]);
        scene.ours().into_iter().find(|pod| executor_id(pod) == id).expect("it runs")
    };
    let pod = of(1);
    assert_eq!(pod["metadata"]["labels"]["posse.dev/key"], "sim-3");
    let container = &pod["spec"]["containers"][0];
    let amounts = json!({"cpu": "100m", "memory": "64Mi"});
    assert_eq!(container["resources"]["limits"], amounts);
    // A kubelet makes `$(Y)` of it, which is what was said.
    let variable = json!({"name": "X", "value": "$$(Y)"});
    assert!(container["env"].as_array().unwrap().contains(&variable));
    assert_eq!(ask(&["task", "list", "-o", "name"]), (Some(0), "sim-3".to_owned()));
    assert_eq!(ask(&["task", "wait", "sim-3", "--timeout", "1s"]).0, Some(1), "it runs");
    scene.end(&pod, End::Exit(3));
    scene.end(&of(2), End::Exit(4));
    let output = posse.ask(&["task", "wait", "sim-3"]);
    assert_eq!(output.status.code(), Some(4), "its last exit code: {}", said(&output));
    let (code, table) = ask(&["task", "list"]);
    assert!(code == Some(0) && table.contains("failed"), "{table}");

    let (_, key) = ask(&["task", "add"]);
    assert_eq!(ask(&["task", "cancel", &key]).0, Some(0));
    assert_eq!(ask(&["task", "wait", &key]).0, Some(1), "it was cancelled");
    for words in
        [["task", "wait", "nobody"], ["task", "cancel", "nobody"], ["task", "logs", "nobody"]]
    {
        assert_eq!(ask(&words).0, Some(1), "{words:?}");
    }
    posse.stop();
    scene.finish();
}

/// Tasks that come after others, over a `kill -9` of posse.
pub fn tasks_in_order(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"count": 0, "template": "pod.json"});
    let run =
        || scene.run().settings(json!({"executors": [group.clone()]})).instance("order").start();
    let posse = run();
    let add_all = |posse: &Posse| {
        for after in [&["a"][..], &["b", "--after", "a"], &["c", "--after", "b:any"]] {
            let output = posse.ask(&[&["task", "add", "--name"], after].concat());
            assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        }
    };
    let of = |key: &str| {
        let find = || {
            let pods = scene.ours().into_iter();
            let mut of_it = pods.filter(|pod| pod["metadata"]["labels"]["posse.dev/key"] == key);
            of_it.find(is_running).ok_or("it does not run")
        };
        wait_value(PATIENCE, "the task to run", find)
    };
    let list = |posse: &Posse| said(&posse.ask(&["task", "list", "-o", "wide"]));
    posse.wait_ready();
    add_all(&posse);
    let circle = posse.ask(&["task", "add", "--name", "d", "--after", "d"]);
    assert!(said(&circle).contains("has no task or array d before it"), "{}", said(&circle));
    let a = of("a");
    assert!(list(&posse).contains("held"), "{}", list(&posse));
    posse.signal(Signal::KILL);
    wait_for(PATIENCE, "posse to end", || posse.is_over());
    let posse = run();
    posse.wait_ready();
    add_all(&posse);
    assert_eq!(scene.ours().len(), 1, "only a has started");
    scene.end(&a, End::Exit(0));
    scene.end(&of("b"), End::Exit(3));
    scene.end(&of("c"), End::Exit(0));
    let output = posse.ask(&["task", "wait"]);
    assert_eq!(output.status.code(), Some(3), "b's: {}", said(&output));
    let output = posse.ask(&["task", "add", "--name", "e", "--after", "b"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(posse.ask(&["task", "wait", "e"]).status.code(), Some(1), "it was skipped");
    assert!(list(&posse).contains("after: task b failed"), "{}", list(&posse));
    posse.stop();
    scene.finish();
}

/// An array, a deadline, and a task that is run again.
pub fn tasks_of_arrays_and_again(server: &dyn Server) {
    let scene = Scene::new(server);
    let group = json!({"count": 0, "template": "pod.json"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    posse.wait_ready();
    let ask = |words: &[&str]| {
        let output = posse.ask(&[&["task"], words].concat());
        let said = [&output.stdout, &output.stderr].map(|some| String::from_utf8_lossy(some));
        (output.status.code(), said.concat())
    };
    let added = ask(&["add", "--name", "sim", "--array", "7-9%1", "--deadline", "10m"]);
    assert!(added.0 == Some(0) && added.1.starts_with("sim-7\nsim-8\nsim-9\n"), "{added:?}");
    assert!(added.1.contains("its tasks end with posse"), "{added:?}");
    for (id, code) in [(1, 0), (2, 3), (3, 0)] {
        scene.wait_running_ids(&[id]);
        let pods = scene.ours();
        let pod = pods.iter().find(|pod| executor_id(pod) == id).expect("it runs");
        assert_eq!(pods.iter().filter(|pod| !is_over(pod)).count(), 1, "one at a time");
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 600);
        let index = json!({"name": "POSSE_TASK_INDEX", "value": (id + 6).to_string()});
        let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        assert!(env.contains(&index), "{env:?}");
        scene.end(pod, End::Exit(code));
    }
    assert_eq!(ask(&["wait"]).0, Some(3));
    assert_eq!(ask(&["retry", "sim-8"]).0, Some(0));
    assert!(ask(&["retry", "sim-7"]).1.contains("task sim-7 has succeeded"));
    assert_eq!(ask(&["retry", "nobody"]).0, Some(1));
    scene.wait_running_ids(&[4]);
    let again = scene.ours().into_iter().find(|pod| executor_id(pod) == 4).expect("it runs");
    scene.end(&again, End::Exit(0));
    assert_eq!(ask(&["wait"]), (Some(0), String::new()));
    if scene.server.real().is_none() {
        // The embedded node ends it, as a kubelet does.
        assert_eq!(ask(&["add", "--name", "late", "--deadline", "1s"]).0, Some(0));
        assert_eq!(ask(&["wait", "late"]).0, Some(143), "TERM ends it");
        let (_, list) = ask(&["list", "-o", "wide"]);
        assert!(list.contains("deadline_exceeded: "), "{list}");
    }
    posse.stop();
    scene.finish();
}

/// The output of ended tasks is there when their pods are gone, after a `kill -9` of posse, and when the run is over. The
/// test-side node of a real server has no logs: then the reason is there.
pub fn output_of_tasks_is_kept(server: &dyn Server) {
    let scene = Scene::new(server);
    let has_logs = scene.server.real().is_none();
    if has_logs {
        write_script(
            &scene,
            "if test $POSSE_KEY = bad; then echo why; exit 3; fi; echo one; echo two",
        );
    }
    let group = json!({"count": 0, "template": "pod.json"});
    let record = scene.file("record");
    let settings = json!({"executors": [group], "task_output": "kept", "record": record});
    let run = || scene.run().settings(settings.clone()).instance("outputs").start();
    let posse = run();
    posse.wait_ready();
    for key in ["good", "bad"] {
        let output = posse.ask(&["task", "add", "--name", key]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    if !has_logs {
        scene.wait_running(2);
        let is_bad = |pod: &Value| pod["metadata"]["labels"]["posse.dev/key"] == "bad";
        scene
            .ours()
            .iter()
            .for_each(|pod| scene.end(pod, End::Exit(if is_bad(pod) { 3 } else { 0 })));
    }
    assert_eq!(posse.ask(&["task", "wait"]).status.code(), Some(3));
    wait_kept(&scene);
    wait_recorded(&record);
    let pods = scene.ours();
    assert_eq!(pods.len(), 2, "the pods of ended tasks stay");
    pods.iter().for_each(|pod| scene.delete(pod));
    scene.wait_none();
    let check = |output: &Output, want: &str| {
        let told = said(output);
        match has_logs {
            true => assert_eq!(told, format!("exit status: 0: {want}")),
            false => assert!(
                output.status.code() == Some(1) && told.contains("was not kept: "),
                "{told}"
            ),
        }
    };
    let wants = [("good", "one\ntwo\n"), ("bad", "why\n")];
    for (key, want) in wants {
        check(&posse.ask(&["task", "logs", key]), want);
    }
    let unknown = posse.ask(&["task", "logs", "nobody"]);
    assert!(said(&unknown).contains("has no task nobody"), "{}", said(&unknown));
    posse.signal(Signal::KILL);
    wait_for(PATIENCE, "posse to end", || posse.is_over());
    // Their pods are gone. The record has the tasks, and the folder their output.
    let posse = run();
    posse.wait_ready();
    if has_logs {
        for (key, want) in wants {
            check(&posse.ask(&["task", "logs", key]), want);
        }
    }
    posse.stop();
    let texts = texts_of(&kept_in(&scene.file("kept")));
    assert!(!has_logs || texts.iter().eq(["one\ntwo\n", "why\n"]), "{texts:?}");
    scene.finish();
}

/// Without a key in the file, outputs are beside the file of events.
pub fn output_of_tasks_beside_events(server: &dyn Server) {
    let scene = Scene::new(server);
    write_script(&scene, "echo $POSSE_KEY; exit 4");
    let group = json!({"count": 0, "template": "pod.json"});
    let posse = scene.run().settings(json!({"executors": [group]})).start();
    posse.wait_ready();
    assert_eq!(posse.ask(&["task", "add", "--name", "a"]).status.code(), Some(0));
    assert_eq!(posse.ask(&["task", "wait"]).status.code(), Some(4));
    let events = posse.events_file().to_owned();
    // The end of the run waits for it.
    posse.stop();
    let mut folder = events.into_os_string();
    folder.push(".output");
    let texts = texts_of(&kept_in(Path::new(&folder)));
    assert!(texts.iter().eq(["a\n"]), "{texts:?}");
    scene.finish();
}

/// Waits for the output of two tasks.
/// A succeeded and a failed task are in this record.
fn wait_recorded(record: &Path) {
    wait_for(PATIENCE, "both ends to be in the record", || {
        let text = fs::read_to_string(record).unwrap_or_default();
        ["\"succeeded\"", "\"failed\""].iter().all(|outcome| text.contains(outcome))
    });
}

fn wait_kept(scene: &Scene<'_>) {
    let kept = || kept_in(&scene.file("kept"));
    wait_for(PATIENCE, "both to be kept", || kept().len() == 2);
    for path in kept() {
        assert_eq!(fs::metadata(&path).expect("it is there").mode() & 0o777, 0o600, "{path:?}");
    }
}

/// The files of tasks in a folder of outputs.
fn kept_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("default")).into_iter().flatten().flatten();
    let finished = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    finished.map(|entry| entry.path()).collect()
}

fn texts_of(files: &[PathBuf]) -> BTreeSet<String> {
    files.iter().map(|path| fs::read_to_string(path).expect("readable")).collect()
}

fn write_script(scene: &Scene<'_>, script: &str) {
    scene.write_template("pod.json", |pod| {
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    });
}

/// Much more than 20,000 open tasks and the calls that add them need.
const MORE_KB_MAX: u64 = 100_000;

fn resident_kb(posse: &Posse) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", posse.pid())).expect("it runs");
    let line =
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
