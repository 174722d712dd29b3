//! The environment of one test: a namespace, a folder, a node, and helpers for pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::access::Access;
use super::audit;
use super::http::{Client, gone_in, gone_now};
use super::posse::{Run, command, read_events, said};
use super::runner;
use super::server::{End, Node, Server, Who, items, pods_path};
use super::wait::{PATIENCE, wait_value};

/// A folder that is removed when dropped, unless the test is failing: then its files are kept for
/// the report.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Short names, because a unix socket's path has at most 107 bytes.
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("posse-{}-{n}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // An error leaves the folder in the system's temporary folder, which does no harm.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The environment of one test.
pub struct Scene<'s> {
    pub server: &'s dyn Server,
    pub namespace: String,
    pub admin: Client,
    // Dropped before the folder, which it may read.
    node: Box<dyn Node>,
    pub dir: TempDir,
}

/// The grace period of deleted pods, if a test sets no other: longer than a busy machine takes to run a
/// trap. Nothing waits for its end, because a container whose delete is no longer held up ends at once.
pub const GRACE_S: u32 = 30;

/// The application of every test; each test has its own namespace.
pub const APP: &str = "shop";

impl<'s> Scene<'s> {
    pub fn new(server: &'s dyn Server) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace =
            format!("t{n}-{}", runner::test_name().replace("::", "-").replace('_', "-"));
        let dir = TempDir::new(&format!("t{n}"));
        server.open_namespace(&namespace);
        let node = server.node(&namespace, dir.path());
        let admin = Client::new(&server.access(Who::Admin), "test-admin");
        let scene = Self { server, namespace, admin, node, dir };
        let template = format!("{:#}", scene.template());
        fs::write(scene.file("pod.json"), template).expect("the folder can be written");
        scene
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A pod that runs until it is told to end, or for longer than any test. If containers really
    /// run, a file ends it, and another file makes it ignore TERM as long as it is there; with the
    /// test-side node nothing is executed. A container removes its files when it ends: a later pod may
    /// have the same name.
    pub fn template(&self) -> Value {
        let script = r#"told=; trap 'told=1' TERM
            up=$SCENE/$POSSE_POD_NAME.up; end=$SCENE/$POSSE_POD_NAME.end; turns=0
            touch "$up"
            while test -d "$SCENE" && test $turns -lt 3000 && ! test -e "$end"; do
                test -n "$told" && ! test -e "$SCENE/deaf" && rm -f "$up" && exit 143
                sleep 0.1; turns=$((turns + 1))
            done
            echo "the last words of $POSSE_POD_NAME"
            order=$(cat "$end"); rm -f "$up" "$end"
            case $order in
            kill) kill -9 $$$$ ;;
            oom) head -c 400000000 /dev/zero | tail -n 1 ;;
            *) exit "$order" ;;
            esac"#;
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"team": "till"}},
        "spec": {"terminationGracePeriodSeconds": GRACE_S, "containers": [{
            "name": "worker", "image": "example.com/worker:1", "command": ["sh", "-c", script],
            "env": [{"name": "SCENE", "value": self.dir.path().display().to_string()}],
        }]}})
    }

    /// Writes a template of that name, starting from the default one.
    pub fn write_template(&self, name: &str, shape: impl FnOnce(&mut Value)) {
        let mut template = self.template();
        shape(&mut template);
        fs::write(self.file(name), format!("{template:#}")).expect("the folder can be written");
    }

    /// A `posse run` that can be adjusted and started.
    pub fn run(&self) -> Run {
        self.run_with(&self.server.access(Who::Posse))
    }

    /// The same with another identity or address.
    pub fn run_with(&self, access: &Access) -> Run {
        Run::new(self.dir.path(), &self.namespace, access)
    }

    /// Writes a kubeconfig with this access.
    pub fn kubeconfig(&self, access: &Access) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.file(&format!("access{n}.kubeconfig"));
        fs::write(&path, access.kubeconfig(&self.namespace)).expect("the folder can be written");
        path
    }

    /// `posse WORDS` with this access.
    pub fn command(&self, access: &Access, words: &[&str]) -> Command {
        let mut command = command(self.dir.path());
        command.args(words).arg("--kubeconfig").arg(self.kubeconfig(access));
        command
    }

    /// What `posse cleanup` with these words says, as an administrator.
    pub fn cleanup(&self, words: &[&str]) -> String {
        self.cleanup_as(Who::Admin, words)
    }

    pub fn cleanup_as(&self, who: Who, words: &[&str]) -> String {
        let words = [&["cleanup", "--app", APP, "--namespace", &self.namespace], words].concat();
        let output = self.command(&self.server.access(who), &words).output();
        let output = output.expect("the binary can be started");
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    /// All pods of the namespace.
    pub fn pods(&self) -> Vec<Value> {
        items(&self.admin.get(&pods_path(&self.namespace)).ok())
    }

    pub fn pod(&self, name: &str) -> Option<Value> {
        let answer = self.admin.get(&format!("{}/{name}", pods_path(&self.namespace)));
        (answer.code == 200).then_some(answer.body)
    }

    /// The executors among them, of any instance and in any state.
    pub fn ours(&self) -> Vec<Value> {
        let mut pods = self.pods();
        pods.retain(is_ours);
        pods
    }

    /// A foreign pod.
    pub fn make_foreign(&self, name: &str) -> Value {
        let mut pod = self.template();
        pod["metadata"]["name"] = name.into();
        self.admin.post(&pods_path(&self.namespace), &pod).ok()
    }

    /// A foreign pod that ends like an executor: a driver's pod, whose posse runs beside it.
    pub fn make_driver_pod(&self, name: &str) -> Value {
        let mut pod = self.template();
        pod["metadata"]["name"] = name.into();
        let env = pod["spec"]["containers"][0]["env"].as_array_mut().expect("it has variables");
        env.push(json!({"name": "POSSE_POD_NAME", "value": name}));
        pod["spec"]["restartPolicy"] = "Never".into();
        self.admin.post(&pods_path(&self.namespace), &pod).ok()
    }

    /// Waits until exactly `n` executors run and none of ours is starting or ending. Retained pods
    /// do not count.
    #[track_caller]
    pub fn wait_running(&self, n: usize) -> Vec<Value> {
        wait_value(PATIENCE, &format!("exactly {n} running executors"), || {
            let mut ours = self.ours();
            ours.retain(|pod| !is_over(pod));
            ours.sort_by_key(executor_id);
            let up = |pod: &Value| is_running(pod) && self.listens(name_of(pod));
            if ours.len() == n && ours.iter().all(up) { Ok(ours) } else { Err(describe(&ours)) }
        })
    }

    /// Waits until exactly these executors run, by id: a lost one may run on for a moment.
    #[track_caller]
    pub fn wait_running_ids(&self, ids: &[u64]) {
        wait_value(PATIENCE, &format!("executors {ids:?} to run, and no others"), || {
            let mut ours = self.ours();
            ours.retain(|pod| !is_over(pod));
            let mut got: Vec<u64> = ours.iter().map(executor_id).collect();
            got.sort_unstable();
            if got == ids && ours.iter().all(is_running) { Ok(()) } else { Err(describe(&ours)) }
        });
    }

    /// True if the pod's container ignores TERM as it should: a container that has just started
    /// ends at any signal. If nothing is executed there is nothing to wait for.
    fn listens(&self, pod: &str) -> bool {
        self.server.real().is_some() || up_file(self.dir.path(), pod).exists()
    }

    /// Waits until no pod of posse is left.
    #[track_caller]
    pub fn wait_none(&self) {
        wait_value(PATIENCE, "no executor to be left", || {
            let ours = self.ours();
            if ours.is_empty() { Ok(()) } else { Err(describe(&ours)) }
        });
    }

    pub fn end(&self, pod: &Value, end: End) {
        self.node.end(name_of(pod), end);
    }

    pub fn hold_deletes(&self, hold: bool) {
        self.node.hold_deletes(hold);
    }

    pub fn hold_starts(&self, hold: bool) {
        self.node.hold_starts(hold);
    }

    pub fn cut_off(&self, node: &str) {
        self.node.cut_off(node);
    }

    pub fn connect(&self, node: &str) {
        self.node.connect(node);
    }

    /// Deletes a pod as `kubectl delete` does, with a grace period of `GRACE_S`.
    pub fn delete(&self, pod: &Value) {
        let path = format!("{}/{}", pods_path(&self.namespace), name_of(pod));
        self.admin.delete(&path, &gone_in(GRACE_S)).ok();
    }

    /// Removes a pod at once, like the pods of a lost node, without waiting for its containers.
    pub fn remove(&self, pod: &Value) {
        let path = format!("{}/{}", pods_path(&self.namespace), name_of(pod));
        self.admin.delete(&path, &gone_now(&pod["metadata"]["uid"])).ok_or_gone();
    }

    /// The end of a test: no executor is left, no Lease is held, and the records contain no
    /// violation.
    #[track_caller]
    pub fn finish(self) {
        self.wait_none();
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        wait_value(PATIENCE, "every Lease to be released or gone", || {
            let mut leases = items(&self.admin.get(&path).ok());
            leases.retain(|lease| {
                lease["spec"]["holderIdentity"].as_str().is_some_and(|h| !h.is_empty())
            });
            if leases.is_empty() { Ok(()) } else { Err(Value::from(leases)) }
        });
        self.finish_with_pods();
    }

    /// The same if pods may be left.
    #[track_caller]
    pub fn finish_with_pods(self) {
        if let Some(log) = self.server.audit_log() {
            audit::check(&log, &self.namespace);
        }
        let found = audit::event_violations(&self.runs());
        assert!(found.is_empty(), "the events show:\n{}", found.join("\n"));
    }

    /// The events of each run of this scene.
    fn runs(&self) -> Vec<Vec<Value>> {
        let files = fs::read_dir(self.dir.path()).expect("the folder can be read");
        let mut files: Vec<PathBuf> = files.map(|entry| entry.expect("readable").path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "events"));
        files.iter().map(|path| read_events(path)).collect()
    }
}

/// The file that a pod's container creates when it has started.
pub fn up_file(scene_dir: &Path, pod: &str) -> PathBuf {
    scene_dir.join(format!("{pod}.up"))
}

/// An executor of any instance.
pub fn is_ours(pod: &Value) -> bool {
    pod["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "posse"
}

pub fn is_running(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
}

/// In a final phase.
pub fn is_over(pod: &Value) -> bool {
    pod["status"]["phase"] == "Failed" || pod["status"]["phase"] == "Succeeded"
}

pub fn name_of(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().expect("a pod has a name")
}

pub fn uid_of(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("a pod has a uid")
}

/// The executor id in the label; 0 if there is none.
pub fn executor_id(pod: &Value) -> u64 {
    let label = &pod["metadata"]["labels"]["posse.dev/executor-id"];
    label.as_str().and_then(|id| id.parse().ok()).unwrap_or(0)
}

/// Pods in one line, for messages.
pub fn describe(pods: &[Value]) -> String {
    let one = |pod: &Value| {
        let ending = if pod["metadata"]["deletionTimestamp"].is_null() { "" } else { ", ending" };
        format!("{} ({}{ending})", name_of(pod), pod["status"]["phase"].as_str().unwrap_or("?"))
    };
    format!("{} pods: {}", pods.len(), pods.iter().map(one).collect::<Vec<_>>().join(" "))
}
