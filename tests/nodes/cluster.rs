//! The cluster under test: kubectl, the posse binary, and what happens to a node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::nodes::wait::{wait_for, wait_value};
use crate::support::runner::test_name;

/// Names the kubeconfig of the cluster.
pub const NODES: &str = "POSSE_NODES";
/// The image with posse.
pub const POSSE_IMAGE: &str = "registry.example.com/posse:0.2.0";
/// The timeout of a step on a real node. Pods start and end in seconds and evictions take a minute, on a
/// quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A program that ends with the scenario.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One scenario's namespace and folder.
pub struct Scene {
    pub dir: tempdir::Folder,
    pub namespace: String,
    kubeconfig: PathBuf,
}

mod tempdir {
    //! A folder that is removed at the end.
    use std::path::{Path, PathBuf};

    pub struct Folder(PathBuf);

    impl Folder {
        pub fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("posse-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

impl Scene {
    /// A new namespace with the name of the scenario.
    pub fn new() -> Self {
        let name = test_name().rsplit("::").next().unwrap_or_default().replace('_', "-");
        Self::in_namespace(&name)
    }

    /// The same with a namespace of this name.
    pub fn in_namespace(namespace: &str) -> Self {
        let kubeconfig = PathBuf::from(std::env::var_os(NODES).expect("the runner checks it"));
        let dir = tempdir::Folder::new(namespace);
        std::os::unix::fs::symlink(root().join("deploy"), dir.path().join("deploy")).unwrap();
        let scene = Self { dir, namespace: namespace.to_owned(), kubeconfig };
        let _ = scene.try_kubectl(&["delete", "namespace", namespace, "--ignore-not-found"]);
        scene
    }

    /// Creates the namespace, and waits until it admits pods: its service account comes a moment later.
    pub fn create_namespace(self) -> Self {
        self.kubectl(&["create", "namespace", &self.namespace]);
        wait_value(PATIENCE, "the namespace to admit a pod", || {
            let probe = ["run", "probe", "--image=busybox:1.36", "--dry-run=server"];
            let output = self.try_kubectl(&[&["-n", &self.namespace], &probe[..]].concat());
            if output.status.success() { Ok(()) } else { Err(said(&output)) }
        });
        self
    }

    /// A command in the scene's folder, for this cluster.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let folder = Path::new(env!("CARGO_BIN_EXE_posse")).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("KUBECONFIG", &self.kubeconfig).env("PATH", path);
        command
    }

    /// The output of kubectl.
    pub fn try_kubectl(&self, args: &[&str]) -> Output {
        self.command("kubectl").args(args).output().expect("kubectl is on the PATH")
    }

    /// The output of kubectl in the scene's namespace, which must succeed.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(&[&["-n", &self.namespace], args].concat());
        assert!(output.status.success(), "kubectl {args:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The JSON of `kubectl get ... -o json`.
    #[track_caller]
    pub fn get(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[&["get"], args, &["-o", "json"]].concat());
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// The pods of the namespace.
    #[track_caller]
    pub fn pods(&self) -> Vec<Value> {
        self.get(&["pods"])["items"].as_array().cloned().unwrap_or_default()
    }

    /// The pods of the driver that are not being deleted.
    pub fn drivers(&self) -> Vec<Value> {
        self.of_component("driver")
    }

    /// The executors that are not being deleted.
    pub fn executors(&self) -> Vec<Value> {
        self.of_component("executor")
    }

    fn of_component(&self, component: &str) -> Vec<Value> {
        let mut pods = self.pods();
        pods.retain(|pod| {
            pod["metadata"]["labels"]["app.kubernetes.io/component"] == *component
                && pod["metadata"]["deletionTimestamp"].is_null()
        });
        pods
    }

    /// Waits for a running driver other than `not`, with `n` running executors of its own.
    #[track_caller]
    pub fn wait_application(&self, not: &str, n: usize, limit: Duration) -> Value {
        wait_value(limit, &format!("a driver with {n} executors"), || {
            let drivers = self.drivers();
            let driver = drivers.iter().find(|pod| is_ready(pod) && name_of(pod) != not);
            let Some(driver) = driver else { return Err(shown(&self.pods())) };
            // Executors that may outlive the driver's pod belong to its Job.
            let owners = [name_of(driver), owner_of(driver)];
            let mut own = self.executors();
            own.retain(|pod| is_ready(pod) && owners.contains(&owner_of(pod)));
            if own.len() == n { Ok(driver.clone()) } else { Err(shown(&self.pods())) }
        })
    }

    /// Writes a file into the scene's folder.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// Writes posse.yaml for a driver that is a shell script in busybox.
    pub fn write_driver(&self, app: &str, script: &str, driver: Value, executors: Value) {
        let mut settings = serde_json::json!({ "app": app, "executors": executors, "driver": {
            "image": "busybox:1.36", "posse_image": POSSE_IMAGE, "command": ["sh", "-c", script],
        }});
        for (key, value) in driver.as_object().cloned().unwrap_or_default() {
            settings["driver"][key] = value;
        }
        self.write("posse.yaml", &settings.to_string());
    }

    /// The output of posse.
    pub fn posse(&self, args: &[&str]) -> Output {
        let mut command = self.command("posse");
        command.args(args).args(["-n", &self.namespace]);
        command.output().expect("posse is built")
    }

    /// Submits posse.yaml, and does not wait for its end.
    #[track_caller]
    pub fn submit(&self) {
        let args = ["submit", "-f", "posse.yaml", "--create-rbac", "--no-wait"];
        expect(&self.posse(&args), 0, &["submitted"]);
    }

    /// The Job of an application.
    #[track_caller]
    pub fn job(&self, app: &str) -> Value {
        self.get(&["job", &format!("{app}-driver")])
    }

    /// Evicts a pod, as `kubectl drain` does.
    #[track_caller]
    pub fn evict(&self, pod: &str) {
        let output = self.try_evict(pod);
        assert!(output.status.success(), "{}", said(&output));
    }

    /// Asks for the eviction of a pod.
    pub fn try_evict(&self, pod: &str) -> Output {
        let body = serde_json::json!({ "apiVersion": "policy/v1beta1", "kind": "Eviction",
            "metadata": { "name": pod, "namespace": self.namespace } });
        self.write("eviction.json", &body.to_string());
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", self.namespace);
        self.try_kubectl(&["create", "--raw", &path, "-f", "eviction.json"])
    }

    /// Removes the namespace, and does not wait for that.
    pub fn finish(self) {
        self.kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }

    /// The events of an application's run, from its driver's pod, whose kubelet says that it runs; else what posse says.
    pub fn events(&self, app: &str) -> Result<Vec<Value>, String> {
        let output = self.posse(&["events", "-o", "json", "--app", app]);
        if !output.status.success() {
            return Err(said(&output));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The reasons of the losses of an application's executors.
    pub fn loss_reasons(&self, app: &str) -> Vec<String> {
        let mut events = self.events(app).unwrap();
        events.retain(|event| event["event"] == "executor_lost");
        let reason = |event: &Value| event["reason"].as_str().unwrap_or_default().to_owned();
        events.iter().map(reason).collect()
    }

    /// Ends the work of a driver whose script waits for the file `/tmp/go`.
    #[track_caller]
    pub fn let_go(&self, driver: &Value, app: &str) {
        self.kubectl(&["exec", name_of(driver), "-c", "driver", "--", "touch", "/tmp/go"]);
        wait_for(PATIENCE, "the job to be complete", || self.job(app)["status"]["succeeded"] == 1);
    }
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `Complete` or `Failed`, if the Job has ended. Newer servers say first that it will, by other conditions.
pub fn end_of(job: &Value) -> Option<&str> {
    let conditions = job["status"]["conditions"].as_array()?;
    let mut kinds = conditions.iter().filter_map(|condition| condition["type"].as_str());
    kinds.find(|kind| matches!(*kind, "Complete" | "Failed"))
}

pub fn name_of(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// The name of the pod's first owner.
pub fn owner_of(pod: &Value) -> &str {
    pod["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default()
}

/// The pod's node.
pub fn node_of(pod: &Value) -> &str {
    pod["spec"]["nodeName"].as_str().unwrap_or_default()
}

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// The pods in one line.
pub fn shown(pods: &[Value]) -> String {
    let one = |pod: &Value| {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let deleted = if pod["metadata"]["deletionTimestamp"].is_null() { "" } else { ", deleted" };
        format!("{} ({phase}{deleted}, {})", name_of(pod), node_of(pod))
    };
    pods.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Standard output and error of a command.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[track_caller]
pub fn expect(output: &Output, code: i32, words: &[&str]) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "it does not say {word:?} but {said}");
    }
}

/// The script of a driver that ends with `Scene::let_go`.
pub const UNTIL_GO: &str = "until test -e /tmp/go; do sleep 1; done; echo the work is done";
