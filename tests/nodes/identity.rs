//! The driver's pod as posse knows it, its token, and its process.

use serde_json::{Value, json};

use crate::nodes::cluster::{
    PATIENCE, POSSE_IMAGE, Scene, is_ready, name_of, node_of, owner_of, shown,
};
use crate::nodes::machine::{node, share_nodes};
use crate::nodes::wait::{wait_for, wait_value};

/// Where a pod finds its token.
const TOKEN_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The kubelet looks at a changed Secret every minute, and at most as long as it caches it.
const TOKEN_CHANGES: std::time::Duration = std::time::Duration::from_secs(240);

/// How a bare pod runs posse.
struct Row {
    name: &'static str,
    env: Value,
    /// The volume with the token; none: the token that every pod gets.
    token: Option<Value>,
    /// Whether a shell is PID 1.
    in_shell: bool,
}

/// A folder as the one that every pod gets, with this token.
fn account(token: Value) -> Value {
    json!({ "name": "token", "projected": { "sources": [
        token,
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [
            { "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
    ] } })
}

/// A pod that runs posse without a Job, and restarts its container.
fn pod(row: &Row) -> Value {
    let run = format!("/opt/posse/posse run --app {} -f /etc/posse/posse.yaml", row.name);
    let command = match row.in_shell {
        // With a second command the shell stays.
        true => vec!["sh".to_owned(), "-c".to_owned(), format!("{run}; exit $?")],
        false => run.split(' ').map(str::to_owned).collect(),
    };
    let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
    let mut mounts = vec![mount("bin", "/opt/posse"), mount("config", "/etc/posse")];
    let mut env = row.env.as_array().cloned().unwrap_or_default();
    // `posse events --app` runs posse in the container.
    env.push(json!({ "name": "PATH", "value": "/opt/posse:/bin" }));
    let mut volumes = vec![
        json!({ "name": "bin", "emptyDir": {} }),
        json!({ "name": "config", "configMap": { "name": "posse" } }),
    ];
    if let Some(token) = &row.token {
        mounts.push(mount("token", TOKEN_DIR));
        volumes.push(token.clone());
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": row.name,
        "labels": { "posse.dev/app": row.name, "app.kubernetes.io/component": "driver" } }, "spec": {
        "serviceAccountName": "posse-driver", "restartPolicy": "Always",
        "automountServiceAccountToken": row.token.is_none(), "terminationGracePeriodSeconds": 15,
        "initContainers": [{ "name": "posse", "image": POSSE_IMAGE,
            "command": ["posse", "copy", "/opt/posse"], "volumeMounts": [mount("bin", "/opt/posse")] }],
        "containers": [{ "name": "driver", "image": "busybox:1.36", "command": command,
            "env": env, "volumeMounts": mounts }],
        "volumes": volumes,
    } })
}

/// A namespace with the permissions of deploy/rbac.yaml, and a configuration of one executor.
fn prepared() -> Scene {
    let scene = Scene::new().create_namespace();
    scene.kubectl(&["apply", "-f", "deploy/rbac.yaml"]);
    let settings = json!({
        "shutdown": { "grace": "5s", "timeout": "5s" },
        "executors": [{ "count": 1, "template": "executor.yaml" }],
    });
    scene.write("posse.yaml", &settings.to_string());
    let files = ["--from-file=posse.yaml", "--from-file=executor.yaml=deploy/executor.yaml"];
    scene.kubectl(&[&["create", "configmap", "posse"], &files[..]].concat());
    scene
}

fn start(scene: &Scene, row: &Row) {
    scene.write("pod.json", &pod(row).to_string());
    scene.kubectl(&["create", "-f", "pod.json"]);
}

/// Waits for a running executor of this pod, and returns it.
#[track_caller]
fn wait_executor(scene: &Scene, driver: &str) -> Value {
    wait_value(PATIENCE, &format!("an executor of {driver}"), || {
        let mut own = scene.executors();
        own.retain(|pod| is_ready(pod) && owner_of(pod) == driver);
        let pods = scene.pods();
        own.pop().ok_or_else(|| format!("{} {}", shown(&pods), log_of(scene, driver)))
    })
}

fn log_of(scene: &Scene, driver: &str) -> String {
    let args = ["-n", &scene.namespace, "logs", driver, "-c", "driver", "--tail=5"];
    String::from_utf8_lossy(&scene.try_kubectl(&args).stdout).into_owned()
}

/// The pod is known by POD_NAME, by the claim in its token, and by its host name; as process 1 and
/// below a shell. In each case the executors belong to the pod, a restarted container adopts them, and
/// nothing is left when the pod is deleted.
pub fn driver_pod_is_known() {
    let _nodes = share_nodes();
    let scene = prepared();
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let by_name = json!([field("POD_NAME", "metadata.name"), field("POD_UID", "metadata.uid")]);
    let claim =
        account(json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } }));
    let rows = [
        Row { name: "by-name", env: by_name, token: None, in_shell: false },
        Row { name: "by-claim", env: json!([]), token: Some(claim.clone()), in_shell: false },
        // Before 1.21 the token that every pod gets names no pod.
        Row { name: "by-host-name", env: json!([]), token: None, in_shell: false },
        Row { name: "in-shell", env: json!([]), token: Some(claim), in_shell: true },
    ];
    rows.iter().for_each(|row| start(&scene, row));
    for row in &rows {
        let before = wait_executor(&scene, row.name);
        // Its kubelet may say later than the executor's that the container runs.
        let driver = wait_value(PATIENCE, "the driver to be ready", || {
            let pod = scene.get(&["pod", row.name]);
            if is_ready(&pod) { Ok(pod) } else { Err(pod["status"].to_string()) }
        });
        let owner = &before["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], driver["metadata"]["uid"], "{}", row.name);
        let first_run = scene.events(row.name).unwrap()[0]["run"].clone();
        let id = driver["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();
        node(node_of(&driver)).kill_container(id);
        wait_value(PATIENCE, "the container to be restarted", || {
            let pod = scene.get(&["pod", row.name]);
            let n = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
            // Below a shell the next process has another identity: it ends until the Lease expires.
            let is_back = n > Some(0) && is_ready(&pod);
            if is_back { Ok(()) } else { Err(pod["status"].to_string()) }
        });
        wait_value(PATIENCE, "the next process to know the executor", || {
            let uid = &before["metadata"]["uid"];
            let events = scene.events(row.name)?;
            let mut of_next = events.iter().filter(|event| event["run"] != first_run);
            let is_known =
                of_next.any(|event| event["event"] == "executor_running" && event["uid"] == *uid);
            if is_known { Ok(()) } else { Err(json!(events).to_string()) }
        });
        assert_eq!(scene.executors().iter().filter(|pod| owner_of(pod) == row.name).count(), 1);
    }
    for row in &rows {
        scene.kubectl(&["delete", "pod", row.name, "--wait=false"]);
    }
    wait_value(PATIENCE, "nothing to be left", || {
        let pods = scene.pods();
        if pods.is_empty() { Ok(()) } else { Err(shown(&pods)) }
    });
    scene.finish();
}

/// A token that the server gives for the account, bound to this Secret: it is worth nothing when the
/// Secret is deleted.
fn bound_token(scene: &Scene, secret: &str) -> String {
    scene.kubectl(&["create", "secret", "generic", secret, "--from-literal=for=binding"]);
    let uid = scene.get(&["secret", secret])["metadata"]["uid"].clone();
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "expirationSeconds": 600, "boundObjectRef": {
            "apiVersion": "v1", "kind": "Secret", "name": secret, "uid": uid } } });
    scene.write("request.json", &request.to_string());
    let account = "serviceaccounts/posse-driver/token";
    let path = format!("/api/v1/namespaces/{}/{account}", scene.namespace);
    let answer = scene.kubectl(&["create", "--raw", &path, "-f", "request.json"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// The file with the token is replaced while posse runs, and the old token becomes worthless: posse goes
/// on with the new one. (A kubelet replaces a token of 10 minutes after 8; the server gives none that is
/// shorter. Here the token comes from a Secret, in the same kind of volume.)
pub fn token_replaced() {
    let _nodes = share_nodes();
    let scene = prepared();
    let first = bound_token(&scene, "bound-first");
    scene.kubectl(&[
        "create",
        "secret",
        "generic",
        "token",
        &format!("--from-literal=token={first}"),
    ]);
    let volume = account(json!({ "secret": { "name": "token" } }));
    let row = Row { name: "rotated", env: json!([]), token: Some(volume), in_shell: false };
    start(&scene, &row);
    let before = wait_executor(&scene, "rotated");
    let second = bound_token(&scene, "bound-second");
    let patch = json!({ "stringData": { "token": second } }).to_string();
    scene.kubectl(&["patch", "secret", "token", "-p", &patch]);
    scene.kubectl(&["delete", "secret", "bound-first"]);
    let path = format!("{TOKEN_DIR}/token");
    wait_value(TOKEN_CHANGES, "the kubelet to replace the file", || {
        let shown = scene.kubectl(&["exec", "rotated", "-c", "driver", "--", "cat", &path]);
        if shown.trim() == second { Ok(()) } else { Err("the file has the first token") }
    });
    // The watch and the writes go on.
    scene.kubectl(&["delete", "pod", name_of(&before), "--wait=false"]);
    wait_for(PATIENCE, "another executor", || {
        let mut own = scene.executors();
        own.retain(|pod| is_ready(pod) && name_of(pod) != name_of(&before));
        own.len() == 1
    });
    let driver = scene.get(&["pod", "rotated"]);
    assert_eq!(driver["status"]["containerStatuses"][0]["restartCount"], 0, "{driver}");
    scene.kubectl(&["delete", "pod", "rotated", "--wait=false"]);
    wait_for(PATIENCE, "nothing to be left", || scene.pods().is_empty());
    scene.finish();
}
