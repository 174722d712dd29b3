//! What README and deploy/ say, as they say it.

use std::fs;
use std::process::Command;

use crate::nodes::cluster::{
    PATIENCE, Scene, expect, is_ready, name_of, root, said, share_nodes, shown,
};
use crate::support::wait::{wait_for, wait_value};

/// The namespace in README and deploy/.
const NAMESPACE: &str = "analytics";

/// Both scenarios use the namespace of the documentation.
static DOCUMENTED: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// The README's commands for a real cluster, without the build of the image.
fn quick_start() -> String {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once("## Quick start: a real cluster").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let from = block.find("kubectl create namespace").unwrap();
    block[from..].to_owned()
}

#[track_caller]
fn shell(scene: &Scene, script: &str) -> String {
    let mut command: Command = scene.command("sh");
    let output = command.args(["-e", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// The README's quick start works word by word. The image is that of deploy/Dockerfile.
pub fn quick_start_of_the_readme() {
    let _one = DOCUMENTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _nodes = share_nodes();
    let scene = Scene::in_namespace(NAMESPACE);
    let script = quick_start();
    let (start, stop) = script.split_once("posse stop").unwrap();
    let shown_text = shell(&scene, start);
    assert!(shown_text.contains("my-app"), "{shown_text}");
    let driver = scene.wait_application("", 3, PATIENCE);
    let context = &driver["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true, "{driver}");
    assert_eq!(driver["spec"]["securityContext"]["runAsUser"], 65532, "{driver}");
    shell(&scene, &format!("posse stop{stop}"));
    wait_value(PATIENCE, "nothing to be left", || {
        let pods = scene.pods();
        if pods.is_empty() { Ok(()) } else { Err(shown(&pods)) }
    });
    scene.finish();
}

/// The manifests in deploy/ work as they are: the driver comes back after an eviction, and the
/// commands for applications know it.
pub fn manifests_applied_by_hand() {
    let _one = DOCUMENTED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let _nodes = share_nodes();
    let scene = Scene::in_namespace(NAMESPACE).create_namespace();
    let settings = "app: my-app\nexecutors:\n  - {count: 3, template: executor.yaml}\n";
    scene.write("my-posse.yaml", settings);
    scene.kubectl(&["apply", "-f", "deploy/rbac.yaml"]);
    let files =
        ["--from-file=posse.yaml=my-posse.yaml", "--from-file=executor.yaml=deploy/executor.yaml"];
    scene.kubectl(&[&["create", "configmap", "my-app"], &files[..]].concat());
    scene.kubectl(&["create", "-f", "deploy/driver.yaml"]);
    let first = scene.wait_application("", 3, PATIENCE);
    let status = scene.kubectl(&["exec", name_of(&first), "--", "posse", "status"]);
    assert!(status.contains("my-app"), "{status}");
    // posse has the permission to change its Job.
    assert_eq!(scene.job("my-app")["spec"]["backoffLimit"], 50);
    scene.evict(name_of(&first));
    scene.wait_application(name_of(&first), 3, PATIENCE);
    expect(&scene.posse(&["apps"]), 0, &["my-app", "Running"]);
    expect(&scene.posse(&["stop", "my-app"]), 0, &["application my-app stopped"]);
    wait_for(PATIENCE, "no pod to be left", || scene.pods().is_empty());
    clean_up(&scene);
    scene.finish();
}

/// The CronJob runs, started by hand. A cluster before 1.21 has it in v1beta1, as its comment says.
fn clean_up(scene: &Scene) {
    let manifest = fs::read_to_string(root().join("deploy/cleanup.yaml")).unwrap();
    let is_old = scene.kubectl(&["api-resources", "--api-group=batch"]).contains("v1beta1");
    let manifest = match is_old {
        true => manifest.replace("batch/v1\nkind: CronJob", "batch/v1beta1\nkind: CronJob"),
        false => manifest,
    };
    scene.write("cleanup.yaml", &manifest);
    scene.kubectl(&["apply", "-f", "cleanup.yaml"]);
    let spec = scene.get(&["cronjobs"])["items"][0]["spec"]["jobTemplate"]["spec"].clone();
    let job = serde_json::json!({ "apiVersion": "batch/v1", "kind": "Job", "spec": spec,
        "metadata": { "name": "by-hand" } });
    scene.write("job.json", &job.to_string());
    scene.kubectl(&["create", "-f", "job.json"]);
    wait_value(PATIENCE, "the cleanup to succeed", || {
        let job = scene.get(&["job", "by-hand"]);
        if job["status"]["succeeded"] == 1 { Ok(()) } else { Err(job["status"].to_string()) }
    });
    assert!(!scene.pods().iter().any(is_ready), "{}", shown(&scene.pods()));
}
