//! Commands about a submitted run from outside of the cluster: they reach it by a bridge in the driver's pod. Logs of
//! executors.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::Value;

use super::submit::{
    ask, expect, path, pods_of, run, stop_and_finish, wait_driver, wait_executors,
};
use crate::support::access::Access;
use crate::support::posse::{command, said};
use crate::support::scene::{APP, Scene, executor_id, is_running, name_of};
use crate::support::server::{End, Server, Who};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

fn ask_as(scene: &Scene<'_>, access: &Access, words: &[&str]) -> std::process::Output {
    scene.command(access, words).output().expect("the binary can be started")
}

/// Passes bytes between its own port and another one, until it is cut.
pub(super) struct Tunnel {
    pub(super) address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Tunnel {
    pub(super) fn start(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (open, to) = (Arc::<Mutex<Vec<TcpStream>>>::default(), to.to_owned());
        let connections = Arc::clone(&open);
        // The thread ends with the process of the tests.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect(&to).unwrap();
                let ways = [(&client, &server), (&server, &client)]
                    .map(|(from, into)| (from.try_clone().unwrap(), into.try_clone().unwrap()));
                // Before the first byte passes: a cut must reach each connection that somebody has used.
                connections.lock().unwrap().extend([client, server]);
                for (mut from, mut into) in ways {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut into);
                        let _ = into.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { address, open }
    }

    pub(super) fn cut(&self) {
        for stream in self.open.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Every client command works against a driver in the cluster.
pub fn submitted_run_is_reached(server: &dyn Server) {
    let scene = Scene::new(server);
    expect(&run(&scene).executors(2).once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 2);
    let with_app = |words: &[&str]| ask(&scene, &[words, &["--app", APP]].concat());
    expect(&with_app(&["status"]), 0, &["app shop", "running"]);
    wait_value(PATIENCE, "two running ones in the status", || {
        let output = with_app(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        if status["groups"][0]["running"] == 2 { Ok(()) } else { Err(status) }
    });
    expect(&with_app(&["scale", "3"]), 0, &["the target is 3 now"]);
    wait_executors(&scene, &driver, 3);
    expect(&with_app(&["kill", "1", "77"]), 1, &["killed: 1", "no such executor: 77"]);
    wait_value(PATIENCE, "a successor of executor 1", || {
        let pods = pods_of(&scene, "executor");
        let up = pods.iter().filter(|pod| is_running(pod)).map(executor_id).collect::<Vec<_>>();
        if up.len() == 3 && !up.contains(&1) { Ok(()) } else { Err(format!("{up:?}")) }
    });
    wait_value(PATIENCE, "three of three", || {
        let explained = said(&with_app(&["explain"]));
        if explained.contains("3 of 3 running") { Ok(()) } else { Err(explained) }
    });
    expect(&with_app(&["events"]), 0, &["executor_lost", "killed by a call"]);
    // The exit code and the errors of the command in the pod.
    expect(&with_app(&["scale", "--group", "nope", "1"]), 1, &["there is no such group"]);
    expect(&with_app(&["kill", "3", "--reason=-x y"]), 0, &["killed: 3"]);

    let followed = ask(&scene, &["logs", "shop/2"]);
    expect(&followed, 0, &[]);
    let all = ask(&scene, &["logs", APP, "--executors"]);
    expect(&all, 0, &[]);
    expect(&ask(&scene, &["logs", "shop/1", "--executors"]), 2, &["not both"]);
    expect(&ask(&scene, &["logs", "shop/x"]), 2, &["`x` is not the id of an executor"]);
    expect(&ask(&scene, &["logs", "shop/99"]), 1, &["has no executor 99"]);
    expect(&ask(&scene, &["status", "--app", "nope"]), 1, &["has no driver of application nope"]);
    scene.end(&driver, End::Exit(0));
    wait_for(PATIENCE, "the end of the driver", || {
        !pods_of(&scene, "driver").iter().any(is_running)
    });
    expect(&with_app(&["status"]), 1, &["is not running", "posse logs shop"]);
    stop_and_finish(scene);
}

/// A run of this host has the name of a submitted one. Who names the cluster never means it.
pub fn a_named_cluster_means_no_run_of_this_host(server: &dyn Server) {
    let scene = Scene::new(server);
    let on_host = ["run", "--dev", "--app", APP, "--image", "i", "--command", "sleep 600"];
    let mut on_host = {
        let mut run = command(scene.dir.path());
        run.args(on_host).args(["--executors", "2"]).stdout(Stdio::null()).stderr(Stdio::null());
        run.spawn().unwrap()
    };
    let of_host = || -> Value {
        let output = command(scene.dir.path()).args(["status", APP, "--json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    wait_value(PATIENCE, "the executors of the run on this host", || {
        let status = of_host();
        if status["groups"][0]["running"] == 2 { Ok(()) } else { Err(status) }
    });
    let before = of_host();

    expect(&run(&scene).executors(1).once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 1);
    let namespace = scene.namespace.clone();
    let there =
        |words: &[&str]| ask(&scene, &[words, &["-n", &namespace, "--context", "test"]].concat());
    let in_namespace = format!("app {APP}  instance ");
    wait_value(PATIENCE, "the submitted run", || {
        let said = said(&there(&["status", APP]));
        let is_there = said.contains(&in_namespace) && said.contains(&namespace);
        if is_there { Ok(()) } else { Err(said) }
    });
    expect(&there(&["scale", APP, "3"]), 0, &["the target is 3 now"]);
    wait_executors(&scene, &driver, 3);
    expect(&there(&["wait", APP, "--running", "3"]), 0, &[]);
    expect(&there(&["kill", APP, "1"]), 0, &["killed: 1"]);
    wait_value(PATIENCE, "its successor", || {
        let explained = said(&there(&["explain", APP]));
        if explained.contains("3 of 3 running") { Ok(()) } else { Err(explained) }
    });
    expect(&there(&["events", APP]), 0, &["killed by a call"]);
    expect(&there(&["task", "list", "--app", APP]), 0, &[]);
    expect(&there(&["logs", APP, "2"]), 0, &[]);
    expect(&there(&["explain", APP, "2"]), 0, &["executor 2"]);
    // There is no such application in the cluster, and the run of this host is not meant.
    for words in [&["scale", "other", "9"][..], &["kill", "other", "1"], &["status", "other"]] {
        expect(&there(words), 1, &["no driver of application other"]);
    }
    expect(&there(&["stop", APP]), 0, &["stopped"]);

    let after = of_host();
    assert_eq!(before["groups"], after["groups"], "the run of this host is as it was");
    assert_eq!(before["executors"], after["executors"]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&on_host), Signal::TERM)
        .unwrap();
    on_host.wait().unwrap();
    scene.finish();
}

/// A command that reads the cluster of a run on this host does not read another one.
pub fn another_cluster_is_not_read_for_a_run_of_this_host(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    posse.wait_event("executor_running", |_| true);
    let mut access = server.access(Who::Admin);
    let right = access.kubeconfig(&scene.namespace);
    access.url = "https://127.0.0.1:1".to_owned();
    let elsewhere = scene.kubeconfig(&access);
    let ask = |words: &[&str]| {
        let mut command = command(scene.dir.path());
        command.args(words).env("KUBECONFIG", &elsewhere);
        command
            .env("POSSE_CONTROL", format!("unix:{}", posse.control().socket.display()))
            .output()
            .unwrap()
    };
    let executor = format!("{APP}/1");
    for words in
        [&["exec", &executor, "true"][..], &["logs", &executor], &["logs", APP, "--executors"]]
    {
        expect(
            &ask(words),
            2,
            &["of this host uses the API server", "set KUBECONFIG as for the run"],
        );
    }
    expect(&ask(&["explain", &executor]), 0, &["the cluster was not read: application"]);
    std::fs::write(&elsewhere, right).unwrap();
    expect(&ask(&["explain", &executor]), 0, &["Running"]);
    posse.stop();
    scene.finish();
}

/// The lines of all executors, with their names in front, until the driver ends.
pub fn logs_of_all_executors(server: &dyn Server) {
    let scene = Scene::new(server);
    expect(&run(&scene).executors(3).once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 3);
    let pods = pods_of(&scene, "executor");
    scene.end(&pods[0], End::Exit(7));
    let words = format!("the last words of {}", name_of(&pods[0]));
    let want = format!("[default/{}] {words}", executor_id(&pods[0]));
    wait_value(PATIENCE, "its last words in the log of all", || {
        let output = said(&ask(&scene, &["logs", APP, "--executors"]));
        if output.contains(&want) { Ok(()) } else { Err(output) }
    });
    expect(
        &ask(&scene, &["logs", APP, "--executors", "--group", "other"]),
        1,
        &["shop has no executors of group other"],
    );
    stop_and_finish(scene);
}

/// A connection that is cut: who follows the events goes on, and none comes twice.
pub fn reach_that_fails(server: &dyn Server) {
    let scene = Scene::new(server);
    expect(&run(&scene).executors(1).once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let driver = wait_driver(&scene, "");
    wait_executors(&scene, &driver, 1);
    let mut access = server.access(Who::Admin);
    let tunnel = Tunnel::start(access.url.rsplit('/').next().unwrap());
    access.url = format!("https://{}", tunnel.address);
    let printed = scene.file("events");
    let words = ["events", "--follow", "-o", "json", "--app", APP];
    let mut follow = scene.command(&access, &words);
    follow.stdout(std::fs::File::create(&printed).unwrap()).stderr(Stdio::piped());
    let follower = follow.spawn().unwrap();
    wait_for(PATIENCE, "the first events", || {
        std::fs::read_to_string(&printed).unwrap().contains("executor_running")
    });
    tunnel.cut();
    expect(&ask(&scene, &["scale", "2", "--app", APP]), 0, &["the target is 2 now"]);
    wait_value(PATIENCE, "the events behind the cut", || {
        let text = std::fs::read_to_string(&printed).unwrap();
        let events = text.lines().map(|line| line.parse::<Value>().unwrap());
        let events: Vec<(Value, Value)> =
            events.map(|event| (event["event"].clone(), event["seq"].clone())).collect();
        assert!(events.iter().zip(1_u64..).all(|((_, seq), n)| *seq == n), "each once: {text}");
        let n_up = events.iter().filter(|(name, _)| name == "executor_running").count();
        if n_up == 2 { Ok(()) } else { Err(text) }
    });
    stop_and_finish(scene);
    let said = said(&follower.wait_with_output().unwrap());
    assert!(said.contains(" the connection was cut"), "{said}");
}

/// Lets the user `stranger` read pods, and nothing else.
pub(super) fn let_stranger_read(scene: &Scene<'_>) {
    let role = serde_json::json!({"metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    scene.admin.post(&path(scene, rbac, "roles"), &role).ok();
    let binding = serde_json::json!({"metadata": {"name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}});
    scene.admin.post(&path(scene, rbac, "rolebindings"), &binding).ok();
}

/// posse says in the server's words why no command can be run in the pod.
pub fn reach_without_a_node(server: &dyn Server) {
    let scene = Scene::new(server);
    let pods = path(&scene, "/api/v1", "pods");
    expect(&run(&scene).executors(1).once(&["submit", "--no-wait"]), 0, &["submitted"]);
    let driver = wait_driver(&scene, "");
    expect(
        &ask(&scene, &["status", "--app", APP]),
        1,
        &[&format!("no command can be run in pod {}", name_of(&driver))],
    );
    let_stranger_read(&scene);
    let stranger = server.access(Who::Stranger);
    wait_value(PATIENCE, "the refusal", || {
        let output = said(&ask_as(&scene, &stranger, &["status", "--app", APP]));
        match output.contains("pods/exec") || output.contains("\"pods\" in API group") {
            true => Ok(()),
            false => Err(format!("{pods}: {output}")),
        }
    });
    stop_and_finish(scene);
}
