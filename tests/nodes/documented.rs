//! What README and deploy/ say, as they say it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::nodes::cluster::{
    PATIENCE, Running, Scene, UNTIL_GO, expect, is_ready, name_of, node_of, root, said, shown,
};
use crate::nodes::machine::{MortalNode, share_nodes, take_node};
use crate::nodes::wait::{wait_for, wait_value};

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
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "spec": spec,
        "metadata": { "name": "by-hand" } });
    scene.write("job.json", &job.to_string());
    scene.kubectl(&["create", "-f", "job.json"]);
    wait_value(PATIENCE, "the cleanup to succeed", || {
        let job = scene.get(&["job", "by-hand"]);
        if job["status"]["succeeded"] == 1 { Ok(()) } else { Err(job["status"].to_string()) }
    });
    assert!(!scene.pods().iter().any(is_ready), "{}", shown(&scene.pods()));
}

/// `deploy/stage.yaml` on a volume of this machine, which all nodes reach: an application gets its files, also executors that
/// start after the node of the server was lost.
pub fn stage_server() {
    let mortal = take_node();
    let scene = Scene::new().create_namespace();
    let address = address_of_a_node(&scene);
    serve_on(&scene, &mortal, &address);
    let first = wait_server(&scene, "");
    assert_eq!(node_of(&first), mortal.name());
    let (forward, port) = forward(&scene);
    // These nodes have no DNS.
    let service = scene.get(&["-n", STAGE, "service", STAGE]);
    let names = json!([{ "ip": service["spec"]["clusterIP"], "hostnames": ["posse-stage.posse-stage.svc"] }]);
    let worker = json!({ "name": "worker", "image": "busybox:1.36",
        "command": ["sh", "-c", "trap 'exit 0' TERM; grep staged $POSSE_FILES_DIR/words.txt || exit 9
            while :; do sleep 1; done"] });
    let elsewhere = |container: Value| {
        let mut spec = mortal.avoided();
        (spec["hostAliases"], spec["containers"]) = (names.clone(), json!([container]));
        json!({ "spec": spec })
    };
    let executors = json!([{ "count": 2, "pod": elsewhere(worker) }]);
    let pod = elsewhere(json!({ "name": "driver" }));
    let script = format!("grep staged $POSSE_FILES_DIR/words.txt || exit 9; {UNTIL_GO}");
    scene.write_driver("app", &script, json!({ "retries": 0, "pod": pod }), executors);
    scene.write("words.txt", "these words were staged\n");
    let url = format!("https://localhost:{port}");
    let output = scene.posse(&[
        "submit",
        "-f",
        "posse.yaml",
        "--create-rbac",
        "--no-wait",
        "--file",
        "words.txt",
        "--stage-url",
        &url,
        "--stage-pod-url",
        "https://posse-stage.posse-stage.svc:8443",
        "--stage-ca",
        "tls.crt",
        "--stage-token-file",
        "token",
    ]);
    expect(&output, 0, &["submitted"]);
    let driver = scene.wait_application("", 2, PATIENCE);
    drop(forward);
    put_by_a_node_port(&scene, &address);
    let lost_at = Instant::now();
    let dead = mortal.kill(true);
    let second = wait_server(&scene, name_of(&first));
    println!(
        "stage server's node lost -> served by another one: {:.0} s",
        lost_at.elapsed().as_secs_f64()
    );
    assert_ne!(node_of(&second), mortal.name());
    let old = name_of(&scene.executors()[0]).to_owned();
    scene.kubectl(&["delete", "pod", &old, "--wait=false"]);
    wait_value(PATIENCE, "an executor that fetched from the next server", || {
        let mut pods = scene.executors();
        pods.retain(|pod| is_ready(pod) && name_of(pod) != old);
        if pods.len() == 2 { Ok(()) } else { Err(shown(&scene.pods())) }
    });
    scene.let_go(&driver, "app");
    // Its pods are on the node until the kubelet is back.
    drop(dead);
    scene.kubectl(&["delete", "namespace", STAGE]);
    scene.kubectl(&["delete", "pv", STAGE]);
    scene.finish();
}

/// The stage server, which begins on this node. Its certificate has this address, too.
fn serve_on(scene: &Scene, node: &MortalNode, address: &str) {
    let bundles = scene.dir.path().join("bundles");
    fs::create_dir(&bundles).unwrap();
    // fsGroup does not change the owner of a hostPath.
    fs::set_permissions(&bundles, fs::Permissions::from_mode(0o777)).unwrap();
    let _ = scene.try_kubectl(&["delete", "pv", STAGE, "--ignore-not-found"]);
    let volume = json!({ "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": STAGE }, "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "50Gi" },
            "hostPath": { "path": bundles } } });
    scene.write("volume.json", &volume.to_string());
    scene.kubectl(&["create", "-f", "volume.json"]);
    shell(scene, &certificate().replace("DNS:localhost", &format!("DNS:localhost,IP:{address}")));
    for step in stage_steps() {
        shell(scene, &step.replace("-n analytics", &format!("-n {}", scene.namespace)));
    }
    let mut spec =
        scene.get(&["-n", STAGE, "deployment", STAGE])["spec"]["template"]["spec"].clone();
    let mut preferred = node.preferred();
    let more = preferred["tolerations"].as_array_mut().map(std::mem::take).unwrap_or_default();
    spec["tolerations"].as_array_mut().unwrap().extend(more);
    let patch = json!({ "spec": { "template": { "spec": {
        "tolerations": spec["tolerations"], "affinity": preferred["affinity"] } } } });
    let patch = patch.to_string();
    scene.kubectl(&["-n", STAGE, "patch", "deployment", STAGE, "-p", &patch]);
    let rolled = ["rollout", "status", "deployment/posse-stage", "--timeout=300s"];
    scene.kubectl(&[&["-n", STAGE], &rolled[..]].concat());
}

fn address_of_a_node(scene: &Scene) -> String {
    let nodes = scene.get(&["nodes"]);
    let addresses = nodes["items"][0]["status"]["addresses"].as_array().unwrap();
    let internal = addresses.iter().find(|one| one["type"] == "InternalIP").unwrap();
    internal["address"].as_str().unwrap().to_owned()
}

/// Files reach the server by a port of a node, which kube-proxy leads to the Service.
fn put_by_a_node_port(scene: &Scene, address: &str) {
    let patch = json!({ "spec": { "type": "NodePort" } }).to_string();
    scene.kubectl(&["-n", STAGE, "patch", "service", STAGE, "-p", &patch]);
    let service = scene.get(&["-n", STAGE, "service", STAGE]);
    let url = format!("https://{address}:{}", service["spec"]["ports"][0]["nodePort"]);
    let put = ["stage", "put", "--url", &url, "--ca", "tls.crt", "--token-file", "token"];
    wait_value(PATIENCE, "files by a port of a node", || {
        let output = scene.posse(
            &[&put[..], &["--secret-file", "ticket", "--app", "by-port", "words.txt"]].concat(),
        );
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    });
}

/// Waits until the only server, or another one than `not`, is ready.
fn wait_server(scene: &Scene, not: &str) -> Value {
    wait_value(PATIENCE, "a stage server", || {
        let of = scene.get(&["-n", STAGE, "pods"])["items"].as_array().cloned().unwrap_or_default();
        let is_it = |pod: &&Value| {
            is_ready(pod) && name_of(pod) != not && pod["metadata"]["deletionTimestamp"].is_null()
        };
        of.iter().find(is_it).cloned().ok_or_else(|| shown(&of))
    })
}

/// The namespace, the Service and the volume.
const STAGE: &str = "posse-stage";

/// The command of docs/STAGING.md that makes a certificate and a token.
fn certificate() -> String {
    let text = fs::read_to_string(root().join("docs/STAGING.md")).unwrap();
    let from = text.find("openssl req").unwrap();
    let (block, _) = text[from..].split_once("```").unwrap();
    block.to_owned()
}

/// The commands in deploy/stage.yaml after that.
fn stage_steps() -> Vec<String> {
    let text = fs::read_to_string(root().join("deploy/stage.yaml")).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("#   "));
    let steps = lines.filter(|line| line.starts_with("kubectl ") && !line.contains("port-forward"));
    steps.filter(|line| !line.ends_with('\\')).map(str::to_owned).collect()
}

/// Forwards a port of this machine to the stage server. kubectl chooses it, and says which.
fn forward(scene: &Scene) -> (Running, u16) {
    let said = scene.dir.path().join("forward");
    let mut forward = scene.command("kubectl");
    forward.args(["-n", STAGE, "port-forward", "service/posse-stage", ":8443"]);
    let forward = forward.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null()).spawn();
    let forward = Running(forward.unwrap());
    let port = wait_value(PATIENCE, "the forwarded port", || {
        let text = fs::read_to_string(&said).unwrap_or_default();
        let rest = text.split_once("Forwarding from 127.0.0.1:").map(|(_, rest)| rest);
        rest.and_then(|rest| rest.split_once(' ')?.0.parse::<u16>().ok()).ok_or(text)
    });
    (forward, port)
}
