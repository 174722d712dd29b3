//! `posse cleanup --node-dir`: folders on a node, by the application in their names.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::json;

use crate::support::posse::{command, said};
use crate::support::reaper::Guarded;
use crate::support::scene::Scene;
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_for};

/// Not the application of the other tests: while one of them runs, its folders stay.
const APP: &str = "node-dir";

/// The cleanup of a node's folder, with these flags, by somebody whose namespace is another one than
/// that of the runs.
fn cleanup(scene: &Scene<'_>, server: &dyn Server, words: &[&str]) -> Command {
    let kubeconfig = scene.file("cleanup.kubeconfig");
    fs::write(&kubeconfig, server.access(Who::Admin).kubeconfig("default")).expect("writable");
    let mut command = command(scene.dir.path());
    command.args(["cleanup", "--node-dir", "node"]);
    command.arg("--kubeconfig").arg(kubeconfig).args(words);
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("the binary can be started")
}

/// A cleanup that goes on, and ends with the test.
fn start_loop(scene: &Scene<'_>, server: &dyn Server, words: &[&str]) -> Guarded {
    Guarded::spawn(&mut cleanup(scene, server, words)).expect("the binary can be started")
}

fn end_loop(mut process: Guarded) {
    process.signal(Signal::TERM);
    wait_for(PATIENCE, "the end of the cleanup", || process.is_over());
    assert!(process.status().is_some_and(|status| status.success()), "{:?}", process.status());
}

/// Makes a folder as an executor of this run would, with files. It appears whole: a cleanup that runs may remove it at once.
fn make(scene: &Scene<'_>, name: &str) -> PathBuf {
    let (folder, unnamed) = (scene.file("node").join(name), scene.file("unnamed"));
    fs::create_dir_all(unnamed.join("blockmgr-1/00")).expect("writable");
    fs::write(unnamed.join("blockmgr-1/00/shuffle_0_0_0.data"), "x").expect("writable");
    fs::create_dir_all(scene.file("node")).expect("writable");
    fs::rename(&unnamed, &folder).expect("writable");
    folder
}

/// Folders of a run stay while it lasts, also without an executor, and go after its end. What has
/// another name, or is no folder, stays.
pub fn folders_of_ended_applications(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(0).settings(json!({"app": APP})).instance("one").start();
    posse.wait_ready();
    let (own, ended) = (make(&scene, "node-dir.one"), make(&scene, "ended.a1b2c"));
    let foreign = [make(&scene, "registeredExecutors.rdb"), make(&scene, "blockmgr-7")];
    let outside = scene.file("outside");
    fs::create_dir(&outside).expect("writable");
    std::os::unix::fs::symlink(&outside, scene.file("node").join("link.x1")).expect("writable");
    std::os::unix::fs::symlink(&outside, ended.join("link")).expect("writable");
    fs::write(outside.join("file"), "x").expect("writable");

    let run = |words: &[&str]| {
        let output = output(cleanup(&scene, server, words));
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let text = run(&["--all-apps"]);
    assert!(text.contains("ended.a1b2c: its run has ended"), "{text}");
    assert!(text.contains("the same with --yes removes 1 folder"), "{text}");
    assert!(!text.contains("node-dir.one") && ended.exists(), "{text}");
    let text = run(&["--app", APP, "--yes"]);
    assert!(text.contains("nothing to remove") && ended.exists(), "{text}");
    let text = run(&["--all-apps", "--yes"]);
    assert!(text.contains("removed 1 folder") && !ended.exists(), "{text}");
    assert!(own.exists(), "the run has no executor, but holds its Lease");

    // The next round finds folders of runs that nobody has told.
    let words = ["--all-apps", "--yes", "--every", "1s"];
    let loop_ = start_loop(&scene, server, &words);
    let late = make(&scene, "late.a1b2c");
    wait_for(PATIENCE, "the next round", || !late.exists());
    assert!(own.exists());
    posse.stop();
    wait_for(PATIENCE, "the folder of the run to be removed", || !own.exists());
    end_loop(loop_);
    assert!(foreign.iter().all(|folder| folder.exists()), "{foreign:?}");
    assert!(outside.join("file").exists() && scene.file("node").join("link.x1").exists());
    let missing = output(cleanup(&scene, server, &["--all-apps", "--every", "0s"]));
    assert_eq!(missing.status.code(), Some(2), "{}", said(&missing));
    scene.finish();
}

/// The end of a run is told to the nodes, by its Lease, and no round is waited for: also that of a run whose driver's pod is gone
/// with its node, whose Lease Kubernetes deletes. The folder of another run of the same application stays.
pub fn folders_go_when_their_run_ends(server: &dyn Server) {
    let scene = Scene::new(server);
    let start = |instance| {
        let run = scene.run().executors(0).settings(json!({"app": APP})).instance(instance).start();
        run.wait_ready();
        run
    };
    let (ending, lost, other) = (start("ending"), start("lost"), start("other"));
    let folder = |instance: &str| make(&scene, &format!("{APP}.{instance}"));
    let [of_ending, of_lost, of_other] = ["ending", "lost", "other"].map(folder);
    let ended = make(&scene, "ended.a1b2c");
    lost.kill();

    let words = ["--all-apps", "--yes", "--every", "1h"];
    let loop_ = start_loop(&scene, server, &words);
    wait_for(PATIENCE, "the first round", || !ended.exists());
    assert!(of_lost.exists(), "whoever holds its Lease may still live");
    ending.stop();
    wait_for(PATIENCE, "the folder of the run that ends to be removed", || !of_ending.exists());
    let lease = format!("{APP}-lost");
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", scene.namespace);
    scene.admin.delete(&format!("{leases}/{lease}"), &json!({})).ok();
    wait_for(PATIENCE, "the folder of the lost run to be removed", || !of_lost.exists());
    assert!(of_other.exists(), "this run holds its Lease");
    other.stop();
    wait_for(PATIENCE, "the folder of the last run to be removed", || !of_other.exists());
    end_loop(loop_);
    scene.finish();
}
