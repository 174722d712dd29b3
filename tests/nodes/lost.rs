//! Nodes that are lost, drained, deleted or restarted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes::cluster::{
    PATIENCE, POSSE_IMAGE, Scene, UNTIL_GO, expect, is_ready, name_of, node_of, owner_of, said,
    shown,
};
use crate::nodes::machine::{MortalNode, is_node_ready, node, share_nodes, take_node};
use crate::nodes::wait::{stays_true, wait_for, wait_value};

/// From the death of the driver's node to the last new executor: 150 s on a quiet machine, with a node
/// that is `NotReady` after 16 s. With Kubernetes' own tolerations it is 330 s.
const DRIVER_BACK: Duration = Duration::from_secs(300);
/// From the node's `NotReady` to the last new executor: 70 s on a quiet machine.
const EXECUTORS_BACK: Duration = Duration::from_secs(150);
/// A Node that is deleted: the pod garbage collector waits 40 s and looks every 20 s.
const DELETED_BACK: Duration = Duration::from_secs(300);

/// Two executors on the node as long as it lives, and two on others.
fn executors(node: &MortalNode) -> Value {
    let group = |name: &str, more: Value| {
        let container = json!({ "name": "worker", "image": "busybox:1.36",
            "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"] });
        let mut spec = json!({ "containers": [container], "terminationGracePeriodSeconds": 5 });
        for (key, value) in more.as_object().cloned().unwrap_or_default() {
            spec[key] = value;
        }
        json!({ "group": name, "count": 2, "pod": { "spec": spec } })
    };
    json!([group("near", node.preferred()), group("far", node.avoided())])
}

/// A driver that the node does not take along, or, with `on_it`, one that begins there.
fn driver(node: &MortalNode, on_it: bool) -> Value {
    let mut spec = if on_it { node.preferred() } else { node.avoided() };
    spec["containers"] = json!([{ "name": "driver" }]);
    json!({ "retries": 0, "pod": { "spec": spec } })
}

/// A submitted application, two of its executors on the node. Returns its driver.
fn submit(scene: &Scene, node: &MortalNode, on_it: bool) -> Value {
    scene.write_driver("app", UNTIL_GO, driver(node, on_it), executors(node));
    scene.submit();
    let driver = scene.wait_application("", 4, PATIENCE);
    assert_eq!(node_of(&driver) == node.name(), on_it, "{}", shown(&scene.pods()));
    assert_eq!(on_node(&scene.executors(), &node.name()), 2, "{}", shown(&scene.pods()));
    driver
}

fn on_node(pods: &[Value], node: &str) -> usize {
    pods.iter().filter(|pod| node_of(pod) == node).count()
}

fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| name_of(pod).to_owned()).collect()
}

/// Waits until four executors run, none of them on this node.
#[track_caller]
fn wait_replaced(scene: &Scene, node: &str, limit: Duration) {
    wait_value(limit, "new executors on other nodes", || {
        let mut pods = scene.executors();
        pods.retain(|pod| is_ready(pod) && node_of(pod) != node);
        if pods.len() == 4 { Ok(()) } else { Err(shown(&scene.pods())) }
    });
}

/// Driver and executors are back on other nodes, the executors of the lost driver are gone from
/// reachable nodes, and the dead node's return changes nothing.
pub fn driver_node_lost() {
    let mortal = take_node();
    let scene = Scene::new().create_namespace();
    let first = submit(&scene, &mortal, true);
    let node = mortal.name();
    let died_at = Instant::now();
    let dead = mortal.kill(true);
    let second = scene.wait_application(name_of(&first), 4, DRIVER_BACK);
    println!("driver's node lost -> back: {:.0} s", died_at.elapsed().as_secs_f64());
    assert_ne!(node_of(&second), node);
    wait_value(PATIENCE, "no old executor on a reachable node", || {
        let mut old = scene.pods();
        old.retain(|pod| owner_of(pod) == name_of(&first) && node_of(pod) != node);
        if old.is_empty() { Ok(()) } else { Err(shown(&old)) }
    });
    let before = names(&scene.executors());
    drop(dead);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    wait_value(PATIENCE, "the pods of the dead node to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    assert_eq!(names(&scene.drivers()), [name_of(&second)]);
    assert_eq!(names(&scene.executors()), before);
    scene.let_go(&second, "app");
    assert_eq!(names(&scene.drivers()), [name_of(&second)], "the work is done once");
    scene.finish();
}

/// Waits until the taint manager has deleted the driver's pod. Returns when that was seen.
#[track_caller]
fn wait_evicted(scene: &Scene, driver: &Value) -> Instant {
    wait_for(PATIENCE, "the eviction", || {
        !scene.drivers().iter().any(|pod| name_of(pod) == name_of(driver))
    });
    Instant::now()
}

fn say_back(died_at: Instant, evicted_at: Instant) {
    let [all, ours] = [died_at, evicted_at].map(|at| at.elapsed().as_secs_f64());
    println!("driver's node lost -> back: {all:.1} s, of which posse needs {ours:.1} s");
}

/// The kubelet of the driver's node dies, and its containers live on. The driver ends itself, and waits for no executor on its node.
pub fn driver_cut_off() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let first = submit(&scene, &mortal, true);
    let died_at = Instant::now();
    let dead = mortal.kill(false);
    let evicted_at = wait_evicted(&scene, &first);
    let second = scene.wait_application(name_of(&first), 4, DRIVER_BACK);
    say_back(died_at, evicted_at);
    drop(dead);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    wait_value(PATIENCE, "the old pods to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    scene.let_go(&second, "app");
    scene.finish();
}

/// Work without a program, with a driver that can act on two nodes. Each task and index waits for a file of this machine.
struct Queue {
    scene: Scene,
    app: &'static str,
    standby: usize,
}

/// How many tasks are at work at a time.
const AT_WORK: usize = 20;

impl Queue {
    /// Tasks. The driver is on one of `nodes`, with a standby on the other, and the executors are not on `avoided`.
    fn submit(app: &'static str, nodes: [&str; 2], avoided: Value, standby: usize) -> Self {
        Self::submit_group(app, nodes, json!({ "count": 0, "max": AT_WORK }), avoided, standby)
    }

    /// The same with a group of its own.
    fn submit_group(
        app: &'static str,
        nodes: [&str; 2],
        mut group: Value,
        avoided: Value,
        standby: usize,
    ) -> Self {
        let scene = Scene::new().create_namespace();
        fs::set_permissions(scene.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let script = "key=${POSSE_KEY:-$POSSE_SLOT}; echo $key >>/shared/begun; \
                      until test -e /shared/go || test -e /shared/go-$key; do sleep 1; done; echo $key >>/shared/done";
        let mut spec = avoided;
        spec["containers"] = json!([{ "name": "worker", "image": "busybox:1.36", "command": ["sh", "-c", script],
            "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] }]);
        spec["volumes"] = json!([{ "name": "shared", "hostPath": { "path": scene.dir.path() } }]);
        spec["terminationGracePeriodSeconds"] = json!(1);
        group["pod"] = json!({ "spec": spec });
        let names = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes });
        let mut spec = json!({
            "tolerations": [{ "key": "posse.dev/test", "value": nodes[0], "effect": "NoSchedule" }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
                { "nodeSelectorTerms": [{ "matchExpressions": [names] }] } } },
            "containers": [{ "name": "driver" }],
        });
        // With a preferred node the pods would be on it together.
        if standby == 0 {
            let first =
                json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes[..1] });
            spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
                json!([{ "weight": 100, "preference": { "matchExpressions": [first] } }]);
        }
        let driver = json!({ "image": POSSE_IMAGE, "posse_image": POSSE_IMAGE, "standby": standby, "retries": 9, "pod": { "spec": spec } });
        let settings = json!({ "app": app, "driver": driver, "executors": [group] });
        scene.write("posse.yaml", &settings.to_string());
        scene.submit();
        Self { scene, app, standby }
    }

    fn task(&self, words: &[&str]) -> Output {
        let mut command = self.scene.command("posse");
        let reached = ["--app", self.app, "-n", &self.scene.namespace];
        command.args(["task", words[0]]).args(reached).args(&words[1..]);
        command.output().expect("posse is built")
    }

    /// Adds tasks until so many are known, and waits until as many as can are at work. Returns their pods.
    fn add(&self, n: usize) -> Vec<String> {
        let array = format!("1-{n}");
        wait_value(PATIENCE, "the leader to take the tasks", || {
            let output = self.task(&["add", "--name", "t", "--array", &array]);
            if output.status.success() { Ok(()) } else { Err(said(&output)) }
        });
        self.wait_at_work(n, "")
    }

    /// Waits until as many of `n` tasks as can are at work, on other nodes than this one.
    #[track_caller]
    fn wait_at_work(&self, n: usize, other_than: &str) -> Vec<String> {
        wait_value(PATIENCE, "tasks at work", || {
            let mut pods = self.scene.executors();
            pods.retain(|pod| is_ready(pod) && node_of(pod) != other_than);
            if pods.len() == n.min(AT_WORK) { Ok(names(&pods)) } else { Err(shown(&pods)) }
        })
    }

    /// The pod of the driver that acts, if it is another one and all that stand by are ready.
    #[track_caller]
    fn wait_leader(&self, other_than: &str, stands_by: bool) -> Value {
        let is_leader = |pod: &&Value| pod["metadata"]["labels"]["posse.dev/leader"] == "true";
        wait_value(PATIENCE, "a leader", || {
            let mut pods = self.scene.drivers();
            pods.retain(is_ready);
            let is_whole = pods.len() == 1 + self.standby || !stands_by;
            let found = pods.iter().find(|pod| is_leader(pod) && name_of(pod) != other_than);
            found.cloned().filter(|_| is_whole).ok_or_else(|| shown(&self.scene.pods()))
        })
    }

    /// The lines of a file that the tasks write, sorted.
    fn told(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.scene.dir.path().join(file)).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    /// Lets the tasks end, and returns how often each was begun, by its key.
    #[track_caller]
    fn end(&self, n: usize) -> BTreeMap<String, u64> {
        self.scene.write("go", "");
        let waited = wait_value(PATIENCE, "the leader to wait for", || {
            let output = self.task(&["wait"]);
            if output.status.code() == Some(0) { Ok(output) } else { Err(said(&output)) }
        });
        expect(&waited, 0, &[]);
        let list = String::from_utf8(self.task(&["list", "-o", "json"]).stdout).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        let tasks = list["tasks"].as_array().or(list.as_array()).expect("a list").iter();
        let attempts: BTreeMap<String, u64> = tasks
            .map(|task| {
                (task["key"].as_str().unwrap().to_owned(), task["attempts"].as_u64().unwrap())
            })
            .collect();
        assert_eq!(attempts.len(), n, "{attempts:?}");
        let done = self.told("done");
        assert_eq!(done, attempts.keys().cloned().collect::<Vec<_>>(), "each is done once");
        let mut begun = BTreeMap::new();
        self.told("begun").into_iter().for_each(|key| *begun.entry(key).or_default() += 1);
        assert_eq!(begun, attempts);
        attempts
    }
}

/// The tasks of a driver whose node is lost go on: those at work are not disturbed, and each is done once.
fn queue_outlives(mortal: &MortalNode, standby: usize) {
    const TASKS: usize = 200 + AT_WORK;
    let queue = Queue::submit("app", [&mortal.name(), "node-0"], mortal.avoided(), standby);
    let mut first = queue.wait_leader("", true);
    while node_of(&first) != mortal.name() {
        queue.scene.kubectl(&["delete", "pod", name_of(&first)]);
        first = queue.wait_leader(name_of(&first), true);
    }
    let at_work = queue.add(TASKS);
    let died_at = Instant::now();
    let dead = mortal.kill(true);
    let since = match standby {
        0 => wait_evicted(&queue.scene, &first),
        _ => died_at,
    };
    let second = queue.wait_leader(name_of(&first), false);
    say_back(died_at, since);
    if standby > 0 {
        // It does not wait for the eviction of the lost driver.
        let known = names(&queue.scene.drivers());
        assert!(known.contains(&name_of(&first).to_owned()), "it is evicted: {known:?}");
    }
    assert_ne!(node_of(&second), mortal.name());
    assert_eq!(names(&queue.scene.executors()), at_work, "they run on");
    let attempts = queue.end(TASKS);
    assert!(attempts.values().all(|n| *n == 1), "each is begun once: {attempts:?}");
    if standby > 0 {
        let apps = queue.scene.posse(&["apps", "-o", "wide"]);
        expect(&apps, 0, &[name_of(&second), ", silent, after "]);
        let words = ["leader ", "stands by: ", "; took over "];
        expect(&queue.scene.posse(&["status", "--app", "app"]), 0, &words);
    }
    drop(dead);
    queue.scene.finish();
}

pub fn driver_node_lost_with_a_standby() {
    queue_outlives(&take_node(), 1);
}

pub fn driver_node_lost_without_a_standby() {
    queue_outlives(&take_node(), 0);
}

/// Each node of a run is drained in turn: the run goes on, and a task is begun again only if its pod was evicted.
pub fn nodes_drained_in_turn() {
    let _nodes = share_nodes();
    const NODES: [&str; 2] = ["node-0", "node-1"];
    let queue = Queue::submit("drained", NODES, json!({}), 0);
    let mut before = queue.wait_leader("", true);
    queue.add(AT_WORK);
    let mut n_evicted = 0;
    for node in NODES {
        let scene = &queue.scene;
        n_evicted += on_node(&scene.executors(), node);
        let moves = node_of(&before) == node;
        let selector = "--pod-selector=posse.dev/app=drained";
        let drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", selector];
        expect(&scene.try_kubectl(&drain), 0, &["drained"]);
        let after = queue.wait_leader(if moves { name_of(&before) } else { "" }, true);
        assert_eq!(name_of(&after) == name_of(&before), !moves, "{}", shown(&scene.pods()));
        queue.wait_at_work(AT_WORK, node);
        scene.kubectl(&["uncordon", node]);
        before = after;
    }
    let attempts = queue.end(AT_WORK);
    let n_begun = AT_WORK + n_evicted;
    assert_eq!(attempts.values().sum::<u64>(), n_begun as u64, "{attempts:?}");
    queue.scene.finish();
}

/// `kill -9` of each posse that acts, one after another: a standby goes on, and no task is begun twice.
pub fn each_leader_killed() {
    let _nodes = share_nodes();
    let queue = Queue::submit("killed", ["node-0", "node-1"], json!({}), 1);
    let mut leader = queue.wait_leader("", true);
    let at_work = queue.add(2 * AT_WORK);
    for _ in 0..4 {
        let statuses = leader["status"]["containerStatuses"].as_array().unwrap();
        let posse = statuses.iter().find(|one| one["name"] == "driver").unwrap();
        node(node_of(&leader)).kill_container(posse["containerID"].as_str().unwrap());
        leader = queue.wait_leader(name_of(&leader), true);
        assert_eq!(names(&queue.scene.executors()), at_work, "they run on");
    }
    let attempts = queue.end(2 * AT_WORK);
    assert!(attempts.values().all(|n| *n == 1), "each is begun once: {attempts:?}");
    queue.scene.finish();
}

/// What is done is not done again, and what is at work runs on, when the driver's pod is deleted.
pub fn done_indexes_outlive_the_driver() {
    let _nodes = share_nodes();
    let work = json!({ "count": 2, "completions": 8, "restart": "on-failure" });
    let queue = Queue::submit_group("indexes", ["node-0", "node-1"], work, json!({}), 0);
    let scene = &queue.scene;
    let driver = queue.wait_leader("", true);
    let indexes = |n: usize| (0..n).map(|index| index.to_string()).collect::<Vec<_>>();
    indexes(5).iter().for_each(|index| scene.write(&format!("go-{index}"), ""));
    let at_work = || {
        let mut pods = scene.executors();
        pods.retain(is_ready);
        names(&pods)
    };
    wait_value(PATIENCE, "five indexes to be done, and two at work", || {
        let (done, at_work) = (queue.told("done"), at_work());
        let is_so = done == indexes(5) && at_work.len() == 2 && queue.told("begun") == indexes(7);
        if is_so { Ok(()) } else { Err(format!("{done:?} {}", shown(&scene.pods()))) }
    });
    let before = at_work();
    scene.kubectl(&["delete", "pod", name_of(&driver)]);
    queue.wait_leader(name_of(&driver), true);
    assert_eq!(at_work(), before, "they run on");
    scene.write("go", "");
    wait_for(PATIENCE, "the job", || scene.job("indexes")["status"]["succeeded"] == 1);
    assert_eq!((queue.told("begun"), queue.told("done")), (indexes(8), indexes(8)));
    queue.scene.finish();
}

/// Executors on a lost node are replaced, their terminating pods hold nothing up and are shown as such.
pub fn executors_node_lost() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let dead = mortal.kill(true);
    wait_for(PATIENCE, "the node to be NotReady", || !is_node_ready(&node));
    let since = Instant::now();
    wait_replaced(&scene, &node, EXECUTORS_BACK);
    println!("NotReady -> executors replaced: {:.0} s", since.elapsed().as_secs_f64());
    let words = ["exec", name_of(&driver), "-c", "driver", "--", "/opt/posse/posse", "status"];
    let status = scene.kubectl(&words);
    assert_eq!(status.matches("terminating").count(), 2, "{status}");
    // The end of the application does not wait for them.
    scene.let_go(&driver, "app");
    expect(&scene.posse(&["apps"]), 0, &["Succeeded"]);
    drop(dead);
    wait_value(PATIENCE, "the pods of the lost node to go", || {
        let pods = scene.pods();
        if pods.len() == 1 { Ok(()) } else { Err(shown(&pods)) }
    });
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    scene.finish();
}

/// A kubelet dies, and its containers live on unseen: their executors are replaced, and end when the
/// kubelet is back.
pub fn kubelet_lost() {
    let mortal = take_node();
    let name = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let mut old = scene.executors();
    old.retain(|pod| node_of(pod) == name);
    let ids: Vec<String> = old.iter().map(container_id).collect();
    let dead = mortal.kill(false);
    wait_replaced(&scene, &name, PATIENCE);
    let live = node(&name).containers().unwrap();
    assert!(ids.iter().all(|id| live.contains(id)), "{ids:?} of {live:?}");
    let lost = scene.loss_reasons("app");
    assert_eq!(lost.len(), 2, "{lost:?}");
    // Before condition DisruptionTarget (1.25) this looks like a deletion.
    assert!(lost.iter().all(|reason| reason == "node_lost" || reason == "deleted"), "{lost:?}");
    let before = names(&scene.executors());
    drop(dead);
    wait_for(PATIENCE, "the old containers to end", || {
        let live = node(&name).containers().unwrap_or_else(|_| ids.clone());
        !ids.iter().any(|id| live.contains(id))
    });
    wait_value(PATIENCE, "the old pods to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    assert_eq!(names(&scene.executors()), before);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&name));
    scene.let_go(&driver, "app");
    scene.finish();
}

fn container_id(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    id.trim_start_matches("containerd://").to_owned()
}

/// The Node of a dead machine is deleted: its pods are gone, and their executors are replaced.
pub fn node_deleted() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let dead = mortal.kill(true);
    scene.kubectl(&["delete", "node", &node, "--wait=false"]);
    wait_replaced(&scene, &node, DELETED_BACK);
    let lost = scene.loss_reasons("app");
    assert_eq!(lost.len(), 2, "{lost:?}");
    assert!(lost.iter().all(|reason| reason == "node_lost" || reason == "deleted"), "{lost:?}");
    drop(dead);
    wait_for(PATIENCE, "the node to be back", || is_node_ready(&node));
    wait_value(PATIENCE, "the pods of the deleted node to go", || {
        let pods = scene.pods();
        if pods.len() == 5 { Ok(()) } else { Err(shown(&pods)) }
    });
    scene.let_go(&driver, "app");
    scene.finish();
}

/// A kubelet and a containerd that are restarted lose no executor; `kubectl drain` moves them, and
/// charges no failure budget.
pub fn node_restarted_and_drained() {
    let mortal = take_node();
    let node = mortal.name();
    let scene = Scene::new().create_namespace();
    let driver = submit(&scene, &mortal, false);
    let before = names(&scene.executors());
    for program in ["kubelet", "containerd"] {
        drop(mortal.stop(program));
        // A kubelet reports every 4 s, and a node is lost after 16 s.
        stays_true(Duration::from_secs(20), &format!("executors outlive {program}"), || {
            names(&scene.executors()) == before
        });
        wait_value(PATIENCE, "all executors to be ready", || {
            let executors = scene.executors();
            let is_whole = executors.iter().all(is_ready) && is_node_ready(&node);
            if is_whole { Ok(()) } else { Err(shown(&executors)) }
        });
    }
    assert_eq!(names(&scene.executors()), before);
    assert_eq!(scene.loss_reasons("app"), [""; 0]);
    let selector = "--pod-selector=posse.dev/app=app,posse.dev/group=near";
    let drain = ["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", selector];
    // It asks for all namespaces; only this scenario has pods on the node.
    expect(&scene.try_kubectl(&drain), 0, &["drained"]);
    wait_replaced(&scene, &node, PATIENCE);
    scene.kubectl(&["uncordon", &node]);
    let lost = scene.loss_reasons("app");
    assert!(lost.iter().all(|reason| reason == "evicted" || reason == "deleted"), "{lost:?}");
    assert_eq!(lost.len(), 2, "{lost:?}");
    scene.let_go(&driver, "app");
    scene.finish();
}
