//! Commands about a submitted run from outside of the cluster, which run in its driver's pod.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};

use serde_json::json;

use crate::nodes::cluster::{
    PATIENCE, POSSE_IMAGE, Scene, UNTIL_GO, expect, name_of, node_of, root, said,
};
use crate::nodes::machine::{share_nodes, take_node};
use crate::nodes::wait::{wait_for, wait_value};

const APP: &str = "reach";

fn ask(scene: &Scene, words: &[&str]) -> Output {
    scene.posse(&[words, &["--app", APP]].concat())
}

/// Every client command works against a driver on a node.
pub fn submitted_run_is_reached() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    let settings = json!({ "app": APP, "driver": { "posse_image": POSSE_IMAGE },
        "executors": [{ "count": 2, "template": "deploy/executor.yaml" }] });
    scene.write("posse.yaml", &settings.to_string());
    scene.submit();
    scene.wait_application("", 2, PATIENCE);

    expect(&ask(&scene, &["status"]), 0, &["app reach", "running"]);
    expect(&ask(&scene, &["scale", "3"]), 0, &["the target is 3 now"]);
    scene.wait_application("", 3, PATIENCE);
    expect(&ask(&scene, &["kill", "1", "77"]), 1, &["killed: 1", "no such executor: 77"]);
    wait_value(PATIENCE, "the loss of executor 1", || {
        let output = said(&ask(&scene, &["events"]));
        if output.contains("killed by a call") { Ok(()) } else { Err(output) }
    });
    scene.wait_application("", 3, PATIENCE);
    wait_value(PATIENCE, "three of three", || {
        let output = said(&ask(&scene, &["explain"]));
        if output.contains("3 of 3 running") { Ok(()) } else { Err(output) }
    });
    expect(&ask(&scene, &["explain", "2"]), 0, &["executor 2"]);
    expect(&ask(&scene, &["scale", "--group", "nope", "1"]), 1, &["there is no such group"]);
    let log = scene.posse(&["logs", APP, "--tail", "5"]);
    expect(&log, 0, &[]);
    // On a machine with several kubelets each removes the others' logs every minute, and then says so in the
    // log's place.
    let is_removed = said(&log).contains("no such file or directory");
    let is_told = said(&log).contains("executor 1 lost");
    assert!(log.stdout.is_empty() || is_removed || is_told, "{}", said(&log));
    expect(&scene.posse(&["logs", "reach/2"]), 0, &[]);
    expect(&scene.posse(&["logs", APP, "--executors"]), 0, &[]);

    expect(&scene.posse(&["stop", APP]), 0, &["application reach stopped"]);
    scene.finish();
}

/// A task's container, which is not root, reads and runs its files, also below a volume that can be written, and has the
/// processor time that it asked for.
pub fn task_reads_its_files() {
    let _nodes = share_nodes();
    let scene = Scene::new().create_namespace();
    scene.kubectl(&["create", "configmap", "settings", "--from-literal=known=of the template\n"]);
    let text = fs::read_to_string(root().join("deploy/executor.yaml")).unwrap();
    let text = text.replace(
        "  containers:\n    - name: worker\n",
        "  volumes: [{name: work, emptyDir: {}}, {name: settings, configMap: {name: settings}}]\n  \
         containers:\n    - name: worker\n      volumeMounts: [{name: work, mountPath: /job}, \
         {name: settings, mountPath: /settings}]\n",
    );
    assert!(text.contains("volumeMounts"), "{text}");
    scene.write("task.yaml", &text);
    let settings = json!({ "app": APP, "driver": { "posse_image": POSSE_IMAGE },
        "task_secrets": true, "executors": [{ "count": 0, "max": 2, "template": "task.yaml" }] });
    scene.write("posse.yaml", &settings.to_string());
    scene.submit();
    wait_value(PATIENCE, "the driver to answer", || {
        let output = ask(&scene, &["status"]);
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    });
    scene.write("token", "s3cr3t");
    scene.write("conf", "of the task\n");
    scene.write(
        "run.sh",
        "#!/bin/sh\nexec 2>&1\ncat /settings/known /job/in/conf; echo \"$TOKEN as $(id -u)\"\n\
         if echo x >>/job/in/conf; then exit 9; fi; ls -l /job/in\n\
         cd /sys/fs/cgroup; cat cpu.max || echo $(cat cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us)\n",
    );
    let add = |words: &[&str]| {
        let mut command = scene.command("posse");
        command.args(["task", "add", "--app", APP, "-n", &scene.namespace]).args(words);
        expect(&command.output().expect("posse is built"), 0, &[]);
    };
    let file = ["--file", "/job/in/conf=@conf"];
    let program = ["--file", "/opt/job/run.sh=@run.sh", "--", "/opt/job/run.sh"];
    let a = ["--name", "a", "--cpu", "300m", "--secret-env", "TOKEN=@token"];
    add(&[&a[..], &file, &program].concat());
    let waited = ask(&scene, &["task", "wait", "a"]);
    let list = said(&ask(&scene, &["task", "list", "-o", "wide"]));
    assert_eq!(waited.status.code(), Some(0), "{list}");
    let log = ask(&scene, &["task", "logs", "a"]);
    let want = "of the template\nof the task\ns3cr3t as 65532\n";
    expect(&log, 0, &[want, "can't create /job/in/conf", "-r-xr-xr-x", "30000 100000"]);
    // Nothing can be mounted there.
    for file in ["known", "new"] {
        add(&["--name", file, "--file", &format!("/settings/{file}=@conf")]);
        expect(&ask(&scene, &["task", "wait", file]), 128, &[]);
        let list = ask(&scene, &["task", "list", "-o", "wide"]);
        expect(&list, 0, &[&format!("rootfs at \"/settings/{file}\"")]);
    }
    expect(&scene.posse(&["stop", APP]), 0, &["application reach stopped"]);
    scene.finish();
}

/// The kubelet passes the command's output on. If it dies, the follower is told, and goes on when it is back.
pub fn connection_cut_by_a_kubelet() {
    let node = take_node();
    let scene = Scene::new().create_namespace();
    let mut spec = node.preferred();
    spec["containers"] = json!([{ "name": "driver" }]);
    let executors = json!([{ "count": 1, "template": "deploy/executor.yaml" }]);
    scene.write_driver(APP, UNTIL_GO, json!({ "pod": { "spec": spec } }), executors);
    scene.submit();
    let driver = scene.wait_application("", 1, PATIENCE);
    assert_eq!(node_of(&driver), node.name());

    let printed = scene.dir.path().join("events");
    let mut follow = scene.command("posse");
    follow.args(["events", "--follow", "-o", "json", "--app", APP, "-n", &scene.namespace]);
    follow.stdout(File::create(&printed).unwrap()).stderr(Stdio::piped());
    let mut follower = follow.spawn().unwrap();
    wait_for(PATIENCE, "the first events", || {
        fs::read_to_string(&printed).unwrap().contains("executor_running")
    });
    let dead = node.kill(false);
    let told = format!("pod {} does not answer: the connection was cut", name_of(&driver));
    let mut lines = BufReader::new(follower.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(&told)), "{told}");
    drop(dead);
    wait_value(PATIENCE, "the kubelet to be back", || {
        let output = ask(&scene, &["status"]);
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    });
    expect(&ask(&scene, &["scale", "2"]), 0, &[]);
    wait_for(PATIENCE, "the events behind the cut", || {
        fs::read_to_string(&printed).unwrap().matches("executor_running").count() >= 2
    });
    follower.kill().unwrap();
    follower.wait().unwrap();
    scene.finish();
}
