//! A real control plane on loopback: etcd, kube-apiserver and kube-controller-manager from
//! `$KUBEBUILDER_ASSETS`, with its own certificates, users, permissions and audit log.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::access::Access;
use super::certs::{Authority, ISSUER, Pair, TokenSigner, TokenSubject};
use super::http::Client;
use super::node::TestNode;
use super::reaper::Guarded;
use super::scene::{Scene, TempDir};
use super::server::{Node, Server, Who, create_namespace};
use super::wait::{PATIENCE, wait_for, wait_value};

/// The names of the Node objects that the test-side node binds pods to.
pub const NODES: [&str; 2] = ["node-a", "node-b"];

const START_LIMIT: Duration = Duration::from_secs(90);

const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources:
  - {group: "", resources: [pods, pods/binding, pods/status]}
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: scheduling.volcano.sh, resources: [podgroups]}
  - {group: scheduling.x-k8s.io, resources: [podgroups]}
  - {group: events.k8s.io, resources: [events]}
  - {group: authorization.k8s.io, resources: [selfsubjectaccessreviews]}
- level: None
"#;

/// For benchmarks, which count the calls of others than posse too.
const AUDIT_EVERYTHING: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"#;

struct Ports {
    api: u16,
    etcd: u16,
    peer: u16,
}

/// Certificates of the identities.
struct Users {
    admin: Pair,
    node: Pair,
    posse: Pair,
    stranger: Pair,
}

/// A running control plane. Ends when dropped.
pub struct Real {
    // Before the folder, because its processes end first.
    apiserver: Mutex<Option<Guarded>>,
    _controllers: Option<Guarded>,
    etcd: Mutex<Option<Guarded>>,
    assets: PathBuf,
    /// Further arguments of the API server.
    arguments: &'static [&'static str],
    dir: TempDir,
    ports: Ports,
    authority: Authority,
    signer: TokenSigner,
    users: Users,
}

impl Real {
    /// Starts one whose plugin PodSecurityPolicy admits only pods that a policy allows; none if the
    /// server has no such plugin any more.
    pub fn start_with_pod_policies(assets: &Path) -> Option<Self> {
        let controllers = Some("garbagecollector,job,namespace");
        let arguments = &["--enable-admission-plugins=PodSecurityPolicy"];
        knows(assets, "kube-apiserver", "PodSecurityPolicy")
            .then(|| Self::start_with(assets, controllers, arguments, AUDIT_POLICY))
    }

    /// Starts one; `controllers` are needed for quotas, owner references and jobs, and cost a
    /// second.
    pub fn start(assets: &Path, controllers: bool) -> Self {
        Self::start_with(
            assets,
            controllers.then_some("garbagecollector,job,namespace,resourcequota"),
            &[],
            AUDIT_POLICY,
        )
    }

    /// Starts one with every controller that needs no kubelet.
    pub fn start_whole(assets: &Path) -> Self {
        Self::start_with(assets, Some("*,-nodelifecycle"), &[], AUDIT_POLICY)
    }

    /// Starts one without controllers, whose audit log has every request.
    pub fn start_audited(assets: &Path) -> Self {
        Self::start_with(assets, None, &[], AUDIT_EVERYTHING)
    }

    fn start_with(
        assets: &Path,
        controllers: Option<&str>,
        arguments: &'static [&'static str],
        audit_policy: &str,
    ) -> Self {
        let real = Self::try_start(assets, controllers, arguments, audit_policy)
            .unwrap_or_else(|e| panic!("the real server does not start: {e}"));
        real.furnish();
        real
    }

    fn try_start(
        assets: &Path,
        controllers: Option<&str>,
        arguments: &'static [&'static str],
        audit_policy: &str,
    ) -> Result<Self, String> {
        let dir = TempDir::new("real");
        let authority = Authority::new("test-ca");
        let signer = TokenSigner::new();
        let users = Users {
            admin: authority.user("admin", Some("system:masters")),
            node: authority.user("test-node", None),
            posse: authority.user("posse-test", None),
            stranger: authority.user("stranger", None),
        };
        write_files(dir.path(), &authority, &signer, audit_policy);
        let ports = Ports { api: free_port(), etcd: free_port(), peer: free_port() };
        let etcd = spawn_etcd(assets, dir.path(), &ports)?;
        let apiserver = spawn_apiserver(assets, dir.path(), &ports, arguments)?;
        let mut real = Self {
            apiserver: Mutex::new(Some(apiserver)),
            _controllers: None,
            etcd: Mutex::new(Some(etcd)),
            assets: assets.to_owned(),
            arguments,
            dir,
            ports,
            authority,
            signer,
            users,
        };
        real.wait_ready()?;
        if let Some(controllers) = controllers {
            let access = real.access(Who::Admin);
            let controllers = format!("--controllers={controllers}");
            let controllers =
                real.spawn_component("kube-controller-manager", &access, &[&controllers])?;
            real._controllers = Some(controllers);
        }
        Ok(real)
    }

    /// Waits until the server is ready; an error if it has ended.
    fn wait_ready(&self) -> Result<(), String> {
        let admin = self.client(Who::Admin, "test-admin");
        wait_value(START_LIMIT, "the real server to be ready", || {
            let mut apiserver = self.apiserver.lock().expect("nobody panics in here");
            if apiserver.as_mut().is_none_or(Guarded::is_over) {
                return Ok(Err(tail(&self.dir.path().join("apiserver.log"))));
            }
            drop(apiserver);
            match admin.try_call("GET", "/readyz", "application/json", &Value::Null) {
                Ok(answer) if answer.code == 200 => Ok(Ok(())),
                Ok(answer) => Err(format!("/readyz answers {}", answer.code)),
                Err(e) => Err(e.to_string()),
            }
        })
    }

    /// Starts a scheduler or a controller manager, with these arguments besides its usual ones.
    pub fn spawn_component(
        &self,
        program: &str,
        access: &Access,
        more: &[&str],
    ) -> Result<Guarded, String> {
        let file = |kind: &str| self.dir.path().join(format!("{program}.{kind}"));
        fs::write(file("kubeconfig"), access.kubeconfig("default")).map_err(|e| e.to_string())?;
        let mut command = Command::new(self.assets.join(program));
        command
            .arg(format!("--kubeconfig={}", file("kubeconfig").display()))
            .args(["--leader-elect=false", "--secure-port=0"])
            // The insecure port, which Kubernetes 1.24 removed.
            .args(knows(&self.assets, program, "--port ").then_some("--port=0"))
            .args(more);
        spawn(&mut command, &file("log"))
    }

    /// Creates the nodes, and the roles for namespaces.
    fn furnish(&self) {
        let admin = self.client(Who::Admin, "test-admin");
        for node in NODES {
            let room = json!({"cpu": "64", "memory": "256Gi", "pods": "10000"});
            let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node},
                "status": {"capacity": room, "allocatable": room}});
            admin.post("/api/v1/nodes", &body).ok();
        }
        for (name, rules) in [("posse-test", posse_rules()), ("test-node", node_rules())] {
            let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": name}, "rules": rules});
            admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &body).ok();
        }
    }

    /// The process of the API server, for benchmarks.
    pub fn apiserver_pid(&self) -> u32 {
        let apiserver = self.apiserver.lock().expect("nobody panics in here");
        apiserver.as_ref().expect("it runs").pid()
    }

    pub fn client(&self, who: Who, name: &'static str) -> Client {
        Client::new(&self.access(who), name)
    }

    /// Access with a token instead of a certificate.
    pub fn access_without_user(&self) -> Access {
        Access {
            url: format!("https://127.0.0.1:{}", self.ports.api),
            ca: Some(self.authority.cert.clone()),
            ..Access::default()
        }
    }

    /// Binds a role in a namespace to a subject and waits until the server applies it.
    pub fn bind_role(&self, namespace: &str, role: &str, subject: &Value) {
        let admin = self.client(Who::Admin, "test-admin");
        let name = format!("{role}-{}", subject["name"].as_str().expect("a subject has a name"));
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": role}});
        let path =
            format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings");
        admin.post(&path, &body).ok();
        let user = match subject["kind"].as_str() {
            Some("ServiceAccount") => {
                format!("system:serviceaccount:{namespace}:{}", subject["name"].as_str().unwrap())
            }
            _ => subject["name"].as_str().unwrap().to_owned(),
        };
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes":
                {"namespace": namespace, "verb": "list", "resource": "pods"}}});
        wait_for(PATIENCE, "the rights to be in force", || {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            admin.post(path, &review).ok()["status"]["allowed"] == true
        });
    }

    /// Removes what `bind_role` created; the server applies it at once.
    pub fn unbind_role(&self, namespace: &str, role: &str, user: &str) {
        let path = format!(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/{role}-{user}"
        );
        let now = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        self.client(Who::Admin, "test-admin").delete(&path, &now).ok();
    }

    fn backup(&self) -> PathBuf {
        self.dir.path().join("etcd.backup")
    }

    /// Changes the data while no process uses it.
    fn without_etcd(&self, change: impl FnOnce()) {
        self.down();
        drop(self.etcd.lock().expect("nobody panics in here").take());
        change();
        let again = wait_value(PATIENCE, "etcd to start again", || {
            spawn_etcd(&self.assets, self.dir.path(), &self.ports)
        });
        *self.etcd.lock().expect("nobody panics in here") = Some(again);
        self.up();
    }
}

impl Server for Real {
    fn access(&self, who: Who) -> Access {
        let pair = match who {
            Who::Admin => &self.users.admin,
            Who::Node => &self.users.node,
            Who::Posse => &self.users.posse,
            Who::Stranger => &self.users.stranger,
        };
        Access { client: Some(pair.clone()), ..self.access_without_user() }
    }

    fn open_namespace(&self, namespace: &str) {
        create_namespace(&self.client(Who::Admin, "test-admin"), namespace);
        let user =
            |name| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name});
        self.bind_role(namespace, "posse-test", &user("posse-test"));
        self.bind_role(namespace, "test-node", &user("test-node"));
    }

    fn node(&self, namespace: &str, _dir: &Path) -> Box<dyn Node> {
        Box::new(TestNode::start(&self.access(Who::Node), namespace))
    }

    fn fresh(&self) -> Box<dyn Server> {
        Box::new(Self::start(&self.assets, false))
    }

    fn down(&self) {
        let apiserver = self.apiserver.lock().expect("nobody panics in here").take();
        drop(apiserver.expect("it was up"));
    }

    fn up(&self) {
        let again = wait_value(PATIENCE, "the server to start again", || {
            spawn_apiserver(&self.assets, self.dir.path(), &self.ports, self.arguments)
        });
        *self.apiserver.lock().expect("nobody panics in here") = Some(again);
        self.wait_ready().expect("it starts again on its old port");
    }

    fn freeze(&self) {
        let mut apiserver = self.apiserver.lock().expect("nobody panics in here");
        apiserver.as_mut().expect("a stopped server is not frozen").freeze();
    }

    fn thaw(&self) {
        let mut apiserver = self.apiserver.lock().expect("nobody panics in here");
        apiserver.as_mut().expect("a stopped server is not frozen").signal(Signal::CONT);
    }

    /// Compacts etcd, too: the API server alone would read its history again.
    fn compact(&self) {
        let etcd =
            Access { url: format!("http://127.0.0.1:{}", self.ports.etcd), ..Access::default() };
        let etcd = Client::new(&etcd, "test-admin");
        self.down();
        let range = etcd.post("/v3/kv/range", &json!({"key": "Lw==", "count_only": true})).ok();
        let newest = &range["header"]["revision"];
        assert!(newest.is_string(), "etcd tells its revision: {range}");
        etcd.post("/v3/kv/compaction", &json!({"revision": newest, "physical": true})).ok();
        self.up();
    }

    fn back_up(&self) {
        self.without_etcd(|| copy_folder(&self.dir.path().join("etcd"), &self.backup()));
    }

    fn restore(&self) {
        self.without_etcd(|| {
            let data = self.dir.path().join("etcd");
            fs::remove_dir_all(&data).expect("etcd's folder can be removed");
            copy_folder(&self.backup(), &data);
        });
    }

    fn audit_log(&self) -> Option<PathBuf> {
        Some(self.dir.path().join("audit.log"))
    }

    fn real(&self) -> Option<&Real> {
        Some(self)
    }
}

/// A service account with the permissions of `posse run`, for tests about tokens.
pub struct Account<'s> {
    real: &'s Real,
    namespace: String,
    name: String,
    uid: String,
}

impl<'s> Account<'s> {
    pub fn new(scene: &Scene<'s>, name: &str) -> Self {
        let real = scene.server.real().expect("only the real server knows service accounts");
        Self::with_role(real, &scene.namespace, name, "posse-test")
    }

    /// One with the permissions of this ClusterRole in a namespace.
    pub fn with_role(real: &'s Real, namespace: &str, name: &str, role: &str) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let body =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
        let admin = real.client(Who::Admin, "test-admin");
        let uid = admin.post(&path, &body).ok()["metadata"]["uid"].clone();
        let subject = json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
        real.bind_role(namespace, role, &subject);
        let uid = uid.as_str().expect("a new object has a uid").to_owned();
        Self { real, namespace: namespace.to_owned(), name: name.to_owned(), uid }
    }

    /// A token that expires `ttl_s` seconds from now. The server tolerates a clock difference of a
    /// minute and caches valid tokens for ten seconds, so it works that much longer.
    pub fn token(&self, ttl_s: i64) -> String {
        self.token_for(ISSUER, ttl_s)
    }

    /// The same for another audience than the API server.
    pub fn token_for(&self, audience: &str, ttl_s: i64) -> String {
        let subject = TokenSubject {
            namespace: &self.namespace,
            account: &self.name,
            account_uid: &self.uid,
        };
        self.real.signer.token(&subject, audience, ttl_s)
    }

    pub fn access(&self, ttl_s: i64) -> Access {
        Access { token: Some(self.token(ttl_s)), ..self.real.access_without_user() }
    }
}

/// The permissions that `posse run` needs at most.
fn posse_rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"],
         "verbs": ["get", "list", "watch", "create", "delete", "patch"]},
        {"apiGroups": [""], "resources": ["pods/resize"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"],
         "verbs": ["create", "delete", "get", "list"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
         "verbs": ["get", "create", "update"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["shop-token"],
         "verbs": ["get", "update", "delete"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["shop-tasks"],
         "verbs": ["get", "patch", "delete"]},
    ])
}

fn node_rules() -> Value {
    json!([{"apiGroups": [""], "resources": ["pods", "pods/status", "pods/binding"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"]}])
}

fn write_files(dir: &Path, authority: &Authority, signer: &TokenSigner, audit_policy: &str) {
    let server = authority.server();
    for (name, text) in [
        ("ca.crt", authority.cert.as_str()),
        ("server.crt", &server.cert),
        ("server.key", &server.key),
        ("sa.pub", &signer.public_pem()),
        ("sa.key", &signer.private_pem()),
        ("audit.yaml", audit_policy),
    ] {
        fs::write(dir.join(name), text).expect("the test's own folder can be written");
    }
}

/// A port without a listener. Neither Linux (from 32768, `ip_local_port_range`) nor posse (from 20000) gives it to
/// somebody who asks for any port, so it stays free.
pub fn free_port() -> u16 {
    const PORTS: Range<u32> = 11_000..20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at once begin at different ports.
    let first = std::process::id().wrapping_mul(97);
    loop {
        let n =
            first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (PORTS.end - PORTS.start);
        let port = u16::try_from(PORTS.start + n).expect("ports are small");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// True if the help of this program has these words.
fn knows(assets: &Path, program: &str, words: &str) -> bool {
    let output = Command::new(assets.join(program)).arg("--help").output();
    let help = output.unwrap_or_else(|e| panic!("{program} --help: {e}"));
    String::from_utf8_lossy(&help.stdout).contains(words)
}

fn spawn(command: &mut Command, log: &Path) -> Result<Guarded, String> {
    let log = File::options().create(true).append(true).open(log).map_err(|e| e.to_string())?;
    let errors = log.try_clone().map_err(|e| e.to_string())?;
    Guarded::spawn(command.stdout(log).stderr(errors))
        .map_err(|e| format!("{}: {e}", command.get_program().display()))
}

fn spawn_etcd(assets: &Path, dir: &Path, ports: &Ports) -> Result<Guarded, String> {
    let client = format!("http://127.0.0.1:{}", ports.etcd);
    let peer = format!("http://127.0.0.1:{}", ports.peer);
    let mut command = Command::new(assets.join("etcd"));
    command
        .arg(format!("--data-dir={}", dir.join("etcd").display()))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        .arg("--unsafe-no-fsync");
    spawn(&mut command, &dir.join("etcd.log"))
}

fn spawn_apiserver(
    assets: &Path,
    dir: &Path,
    ports: &Ports,
    arguments: &[&str],
) -> Result<Guarded, String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new(assets.join("kube-apiserver"));
    command
        .arg(format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd))
        .arg(format!("--secure-port={}", ports.api))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg(format!("--client-ca-file={}", file("ca.crt")))
        .arg(format!("--tls-cert-file={}", file("server.crt")))
        .arg(format!("--tls-private-key-file={}", file("server.key")))
        .arg(format!("--service-account-key-file={}", file("sa.pub")))
        .arg(format!("--service-account-signing-key-file={}", file("sa.key")))
        .arg(format!("--service-account-issuer={ISSUER}"))
        .arg("--authorization-mode=RBAC")
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .arg("--disable-admission-plugins=ServiceAccount")
        .arg(format!("--audit-policy-file={}", file("audit.yaml")))
        .arg(format!("--audit-log-path={}", file("audit.log")))
        .arg("--audit-log-maxsize=1000")
        .args(arguments);
    spawn(&mut command, &dir.join("apiserver.log"))
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the test's own folder can be written");
    for entry in fs::read_dir(from).expect("the folder can be read") {
        let entry = entry.expect("the folder can be read");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a file has a type").is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("the folder can be written");
        }
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
