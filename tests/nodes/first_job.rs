//! docs/FIRST_JOB.md word by word: from one command on this machine to a job in the cluster.

use std::fs;

use crate::nodes::cluster::{PATIENCE, Scene, root, said, shown};
use crate::nodes::machine::share_nodes;
use crate::nodes::wait::wait_for;

/// The namespace on the page.
const NAMESPACE: &str = "my-team";
/// The driver's last line: once from the written project, once with a worker killed, once from the page's own
/// file, once from the cluster.
const RESULT: &str = "sum of squares: 338350";
/// The variable that names the configuration of buildah's store with the base images; `.ci/nodes` sets it.
const STORE: &str = "CONTAINERS_STORAGE_CONF";

/// The commands on the page, except the one that builds posse.
fn commands() -> String {
    let page = fs::read_to_string(root().join("docs/FIRST_JOB.md")).unwrap();
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let text: String = blocks.collect();
    assert!(text.contains("\ndocker push ") && text.contains("\nposse submit "), "{text}");
    let lines = text.lines().filter(|line| !line.starts_with("cargo install --path ."));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// All commands of the page succeed in this order, and the result is right each time.
pub fn from_a_script_to_a_cluster() {
    let _nodes = share_nodes();
    if std::env::var_os(STORE).is_none() {
        println!("NOT TESTED: {STORE} is not set");
        return;
    }
    let scene = Scene::in_namespace(NAMESPACE);
    let programs = root().join("tests/nodes");
    let mut shell = scene.command("sh");
    let path = shell.get_envs().find_map(|(name, value)| value.filter(|_| name == "PATH"));
    let path = path.unwrap().to_str().unwrap().to_owned();
    shell.env("PATH", format!("{}:{path}", programs.display()));
    let output = shell.args(["-e", "-c", &commands()]).output().unwrap();
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("my script"), "{text}");
    assert_eq!(text.matches(RESULT).count(), 4, "{text}");
    wait_for(PATIENCE, "the executors to be gone", || scene.executors().is_empty());
    assert_eq!(scene.job("my-job")["status"]["succeeded"], 1, "{}", shown(&scene.pods()));
    scene.finish();
}
