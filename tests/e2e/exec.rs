//! `posse exec` against servers that refuse, and over connections that are cut.

use std::fs::DirBuilder;
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use super::reach::{Tunnel, let_stranger_read};
use super::submit::{expect, pods_of, run, stop_and_finish, wait_driver, wait_executors};
use crate::support::access::Access;
use crate::support::posse::{command, said};
use crate::support::scene::{APP, Scene, name_of};
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_value};

/// `posse exec` with this kubeconfig.
fn exec(scene: &Scene<'_>, access: &Access, words: &[&str]) -> Command {
    let kubeconfig = scene.kubeconfig(access);
    let mut command = command(scene.dir.path());
    // Other tests on this host have runs of the same application.
    let namespace = ["-n", &scene.namespace];
    command.arg("exec").arg("--kubeconfig").arg(kubeconfig).args(namespace).args(words);
    command
}

/// Who may not run commands is told which rule is missing.
pub fn exec_without_the_permission(server: &dyn Server) {
    let scene = Scene::new(server);
    let posse = scene.run().executors(1).start();
    let running = posse.wait_event("executor_running", |_| true);
    let (pod, id) = (running["pod"].as_str().unwrap(), &running["executor"]);
    let by_id = format!("{APP}/{id}");
    let_stranger_read(&scene);
    let stranger = server.access(Who::Stranger);
    let rule = r#"{apiGroups: [""], resources: [pods/exec], verbs: [create, get]}"#;
    for target in [by_id.as_str(), pod] {
        wait_value(PATIENCE, "the refusal", || {
            let output = exec(&scene, &stranger, &[target, "true"]).output().unwrap();
            let said = said(&output);
            let is_refused = said.contains("pods/exec") && said.contains(rule);
            if output.status.code() == Some(1) && is_refused { Ok(()) } else { Err(said) }
        });
    }
    let absent = format!("{APP}/99");
    let output = exec(&scene, &server.access(Who::Admin), &[&absent, "true"]).output().unwrap();
    expect(&output, 1, &["has no executor 99 now"]);
    posse.stop();
    scene.finish();
}

/// The control sockets of two other runs on this host.
fn other_runs(scene: &Scene<'_>) -> [UnixListener; 2] {
    let user = rustix::process::geteuid().as_raw();
    let folder = scene.file(&format!("posse-{user}"));
    DirBuilder::new().mode(0o700).recursive(true).create(&folder).unwrap();
    ["aaaaa", "bbbbb"]
        .map(|instance| UnixListener::bind(folder.join(format!("other.{instance}.sock"))).unwrap())
}

/// posse does not take a cut for the end of the command. Other runs on this host do not matter to the pod of
/// a namespace that is named.
pub fn exec_over_a_connection_that_is_cut(server: &dyn Server) {
    let scene = Scene::new(server);
    let _others = other_runs(&scene);
    expect(&run(&scene).executors(1).once(&["submit", "--no-wait"]), 0, &["submitted"]);
    wait_executors(&scene, &wait_driver(&scene, ""), 1);
    let pod = pods_of(&scene, "executor").remove(0);
    let mut access = server.access(Who::Admin);
    let tunnel = Tunnel::start(access.url.rsplit('/').next().unwrap());
    access.url = format!("https://{}", tunnel.address);
    let printed = scene.file("printed");
    let script = "echo begun; exec sleep 1000";
    let mut command = exec(&scene, &access, &["-i", name_of(&pod), "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    command.stdout(std::fs::File::create(&printed).unwrap());
    let mut child = command.spawn().unwrap();
    wait_value(PATIENCE, "its output", || {
        let out = std::fs::read_to_string(&printed).unwrap();
        if let Some(end) = child.try_wait().unwrap() {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("{end}: {out} {said}");
        }
        if out == "begun\n" { Ok(()) } else { Err(out) }
    });
    tunnel.cut();
    let said = ["the connection was cut", "the command may still run there"];
    expect(&child.wait_with_output().unwrap(), 1, &said);
    stop_and_finish(scene);
}
