//! The examples in real containers, driver and executors in one image with Python and the project's
//! `examples/`, `clients/python/` and `fixtures/text/` in its root folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::nodes::cluster::{
    PATIENCE, POSSE_IMAGE, Scene, end_of, expect, is_ready, name_of, root, said, shown,
};
use crate::nodes::machine::{node, share_nodes};
use crate::nodes::wait::{wait_for, wait_value};

/// `.ci/nodes` makes it.
const IMAGE: &str = "registry.example.com/examples:0.1.0";

/// A namespace, unless the nodes lack the image.
fn scene() -> Option<Scene> {
    if !node("node-0").has_image(IMAGE) {
        println!("NOT TESTED: the nodes have no image {IMAGE}");
        return None;
    }
    Some(Scene::new().create_namespace())
}

/// The example's posse.yaml with its texts replaced.
#[track_caller]
fn settings(name: &str, edits: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(root().join(format!("examples/{name}/posse.yaml"))).unwrap();
    for (from, to) in edits {
        assert!(text.contains(from), "{from} is not in {name}");
        text = text.replace(from, to);
    }
    text
}

/// The keys of a driver that the image has, and posse from its own image.
fn driver() -> String {
    format!("driver:\n  image: {IMAGE}\n  posse_image: {POSSE_IMAGE}\n  retries: 0\n")
}

/// Driver and executors share a folder of this machine; one executor is killed.
pub fn word_count() {
    let _nodes = share_nodes();
    let Some(scene) = scene() else { return };
    let shared = scene.dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let volumes = format!("volumes: [{{name: shared, hostPath: {{path: {}}}}}]", shared.display());
    let mount = "volumeMounts: [{name: shared, mountPath: /shared}]";
    let driver = format!(
        "driver:\n  retries: 0\n  pod: {{spec: {{{volumes}, \
         containers: [{{name: driver, {mount}}}]}}}}\n"
    );
    let text = settings(
        "wordcount",
        &[
            ("/tmp", "/shared"),
            ("driver:\n", &driver),
            ("busybox:1.36", IMAGE),
            ("        containers:\n", &format!("        {volumes}\n        containers:\n")),
            ("            resources:\n", &format!("            {mount}\n            resources:\n")),
        ],
    );
    scene.write("posse.yaml", &text);
    scene.submit();
    wait_value(PATIENCE, "an executor to count", || {
        let pods = scene.executors();
        let Some(pod) = pods.iter().find(|pod| is_ready(pod)) else { return Err(shown(&pods)) };
        // In the middle of the work.
        let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
        node(pod["spec"]["nodeName"].as_str().unwrap()).kill_container(id);
        Ok(())
    });
    // The driver compares the result itself, and fails if it is wrong.
    wait_end(&scene, "wordcount");
    wait_for(PATIENCE, "the executors to be gone", || scene.executors().is_empty());
    scene.finish();
}

/// The queue's driver sets the number of its executors, reads posse's events and gets heartbeats.
pub fn queue() {
    let _nodes = share_nodes();
    let Some(scene) = scene() else { return };
    let edits = [
        ("driver:\n", &*driver()),
        ("python:3.12-slim", IMAGE),
        // Without DNS no executor finds the next driver.
        ("keep_executors: true", "keep_executors: false"),
    ];
    scene.write("posse.yaml", &settings("queue", &edits));
    scene.submit();
    wait_end(&scene, "queue");
    wait_for(PATIENCE, "the executors to be gone", || scene.executors().is_empty());
    scene.finish();
}

/// A Dask scheduler gets workers for the work that a client in its pod submits.
pub fn dask() {
    let _nodes = share_nodes();
    let Some(scene) = scene() else { return };
    let edits = [
        ("driver:\n", &*driver()),
        ("registry.example.com/dask:2026.8.0", IMAGE),
        (
            "command: [dask, scheduler]",
            "command: [env, PYTHONPATH=clients/python, dask, scheduler]",
        ),
    ];
    scene.write("posse.yaml", &settings("dask", &edits));
    scene.submit();
    let driver = scene.wait_application("", 1, PATIENCE);
    let client = "import base64, sys, time
from dask.distributed import Client
from distributed.security import Security
key, cert = (base64.b64decode(word).decode() for word in sys.argv[1:])
tls = Security(tls_ca_file=cert, tls_client_key=key, tls_client_cert=cert, require_encryption=True)
client = Client('tls://127.0.0.1:8786', timeout=120, security=tls)
def work(n):
    time.sleep(2)
    return n * n
futures = client.map(work, range(60))
print('sum', sum(client.gather(futures)), 'workers', len(client.scheduler_info(n_workers=-1)['workers']))";
    let keys = "jsonpath={.data.key\\.pem} {.data.cert\\.pem}";
    let keys = wait_value(PATIENCE, "the run's key", || {
        let found = scene.kubectl(&["get", "secret", "dask-tls", "--ignore-not-found", "-o", keys]);
        if found.trim().is_empty() { Err(found) } else { Ok(found) }
    });
    let mut args = vec!["exec", name_of(&driver), "-c", "driver", "--", "python3", "-c", client];
    args.extend(keys.split_whitespace());
    let answer = scene.kubectl(&args);
    assert!(answer.contains("sum 70210"), "{answer}");
    // The scheduler asked for more workers than it began with.
    let started = scene.events("dask").unwrap();
    let n = started.iter().filter(|event| event["event"] == "executor_running").count();
    assert!(n > 1, "{n}: {answer}");
    expect(&scene.posse(&["stop", "dask"]), 0, &["stopped"]);
    wait_for(PATIENCE, "no pod to be left", || scene.pods().is_empty());
    scene.finish();
}

/// Waits until the application's Job is complete.
#[track_caller]
fn wait_end(scene: &Scene, app: &str) {
    wait_value(PATIENCE, "the job to end", || {
        let job = scene.job(app);
        match end_of(&job) {
            Some("Complete") => Ok(()),
            Some("Failed") => panic!("{job}: {}", said(&scene.posse(&["logs", app]))),
            _ => Err(shown(&scene.pods())),
        }
    });
}
