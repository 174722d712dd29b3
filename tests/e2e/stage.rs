//! Files for the pods: `posse stage serve`, `put` and `get` as processes, over TLS, with kill -9,
//! on a full disk, beside a cluster.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posse_base::rng::Rng;
use posse_encoding::yaml::Node;
use posse_wire::bundle::{Label, hex};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::submit::pod_of;
use crate::support::http::{Client, gone_now};
use crate::support::real::Account;
use crate::support::runner::is_in_full;
use crate::support::scene::{Scene, TempDir};
use crate::support::server::{Server, Who, pods_path};
use crate::support::stage::{SHARED, StageServer, TLS, TOKEN, furnish};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

/// The memory limit of the server.
const MEMORY_KB_MAX: u64 = 64 << 10;

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn serve(dir: &Path) -> StageServer {
    StageServer::start(dir, &[&TLS[..], &SHARED].concat())
}

/// Files are uploaded and downloaded over TLS; clients without token, authority or TLS get an
/// error.
pub fn stage_over_tls() {
    let dir = TempDir::new("tls");
    furnish(dir.path());
    let server = serve(dir.path());
    let file = |name: &str| dir.path().join(name);
    fs::write(file("a.jar"), vec![7; 3_000_000]).unwrap();
    fs::write(file("data.csv"), "x,y\n").unwrap();
    let good = ["--ca", "ca.pem", "--token-file", "token"];
    let put = |args: &[&str]| server.put("ns", "wc", &[args, &["a.jar", "data.csv"]].concat());
    let done = put(&[&good[..], &["--secret-file", "ticket"]].concat());
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(text(&done.stdout).contains("3000000  a.jar\n"), "{}", text(&done.stdout));
    let ticket = fs::read_to_string(file("ticket")).unwrap();
    assert_eq!(fs::metadata(file("ticket")).unwrap().mode() & 0o777, 0o600);
    let done = server.get(&["--secret-file", "ticket"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "out/a.jar\nout/data.csv\n");
    assert_eq!(fs::read(file("out/a.jar")).unwrap(), fs::read(file("a.jar")).unwrap());
    assert_eq!(fs::read(file("out/data.csv")).unwrap(), b"x,y\n");

    // With --ca the authority in the ticket is not used.
    fs::create_dir(file("other")).unwrap();
    furnish(&file("other"));
    fs::write(file("wrong"), "wr0ng").unwrap();
    for (args, words) in [
        (&["--token-file", "token"][..], "SSL_CERT_FILE: absent.pem: "),
        (&["--token-file", "token", "--ca", "other/ca.pem"], "invalid peer certificate"),
        (&["--ca", "ca.pem", "--token-file", "wrong"], "valid bearer token is required (401)"),
    ] {
        let mut put = Command::new(env!("CARGO_BIN_EXE_posse"));
        put.current_dir(dir.path()).env_clear().env("SSL_CERT_FILE", "absent.pem");
        put.args(["stage", "put", "--url", &server.url, "-n", "ns", "--app", "wc"]).args(args);
        let done = put.arg("data.csv").output().unwrap();
        assert!(!done.status.success(), "{args:?}");
        assert!(text(&done.stderr).contains(words), "{args:?}: {}", text(&done.stderr));
    }
    let mut plain = TcpStream::connect(server.address()).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).unwrap();
    // As JSON: behind an Ingress without TLS to the Service, `stage get` tells it.
    let want = "\r\n\r\n{\"error\":\"this port requires TLS: use https://, \
                also from an Ingress to the Service\"}\n";
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with(want), "{answer}");

    let mut ticket: Value = serde_json::from_str(&ticket).unwrap();
    let secret = ticket["bundles"][0]["secret"].as_str().unwrap().to_owned();
    ticket["bundles"][0]["secret"] = "wr0ng".into();
    fs::write(file("ticket"), ticket.to_string()).unwrap();
    fs::remove_file(file("out/a.jar")).unwrap();
    let done = server.get(&["--secret-file", "ticket"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("a.jar: there is no such bundle"),
        "{}",
        text(&done.stderr)
    );
    assert!(!file("out/a.jar").exists());
    for told in [server.log(), text(&done.stderr)] {
        assert!(!told.contains(&secret) && !told.contains(TOKEN), "{told}");
    }
}

/// A renewed certificate is used without a restart.
pub fn stage_certificate_renewed() {
    let dir = TempDir::new("renew");
    furnish(dir.path());
    let args = [&TLS[..], &SHARED, &["--idle", "1s"]].concat();
    let server = StageServer::start(dir.path(), &args);
    fs::write(dir.path().join("f"), "f").unwrap();
    server.put_one("ns", "wc", "f");
    furnish(dir.path());
    wait_value(PATIENCE, "the new certificate to be shown", || {
        let args = ["--ca", "ca.pem", "--token-file", "token", "--timeout", "0s", "f"];
        let done = server.put("ns", "wc", &args);
        if done.status.success() { Ok(()) } else { Err(text(&done.stderr)) }
    });
}

/// A gigabyte, or a quarter of it, is uploaded and downloaded, and the server's memory stays small.
pub fn stage_gigabyte_through_64_mb() {
    let bytes = if is_in_full() { 1 << 30 } else { 1 << 28 };
    let dir = TempDir::new("large");
    furnish(dir.path());
    let server = serve(dir.path());
    let large = dir.path().join("large");
    File::create(&large).unwrap().set_len(bytes).unwrap();
    let ticket = server.put_one("ns", "wc", "large");
    fs::write(dir.path().join("ticket"), ticket.to_string()).unwrap();
    let done = server.get(&["--secret-file", "ticket"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(fs::metadata(dir.path().join("out/large")).unwrap().len(), bytes);
    let peak = server.peak_kb();
    println!("    {bytes} bytes in and out: at most {peak} kB of memory");
    assert!(peak <= MEMORY_KB_MAX, "{peak} kB");
}

/// One upload over a raw socket, so that a test controls what is sent when.
struct Upload {
    stream: TcpStream,
}

impl Upload {
    fn begin(server: &StageServer, bytes: &[u8]) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "POST /v1/bundles?namespace=ns&app=wc&file=f&sha256={} HTTP/1.1\r\nhost: x\r\n\
             authorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n",
            sha256(bytes),
            bytes.len()
        )
        .unwrap();
        Self { stream }
    }

    /// The status of the answer, if there is one.
    fn answer(mut self) -> Option<u16> {
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        // The server may have been killed; its earlier answer counts.
        let _ = self.stream.read_to_end(&mut answer);
        text(&answer).split(' ').nth(1)?.parse().ok()
    }
}

/// Checks that the stored bundles are complete and that there are no other files; returns their
/// number.
#[track_caller]
fn all_whole(server: &StageServer) -> usize {
    let (whole, others) = server.stored();
    assert!(others.is_empty(), "{others:?}");
    for path in &whole {
        let content = fs::read(path).unwrap();
        let end = content.iter().position(|byte| *byte == b'\n').expect("a label");
        let label = Label::parse(&content[..end]).expect("a label");
        let bytes = &content[end + 1..];
        assert_eq!((bytes.len() as u64, sha256(bytes)), (label.bytes, label.sha256), "{path:?}");
    }
    whole.len()
}

/// kill -9 during uploads: afterwards each bundle is stored completely or not at all.
pub fn stage_kill_9_in_uploads() {
    const ROUNDS: u64 = 20;
    let dir = TempDir::new("kill");
    furnish(dir.path());
    let args = [&["--insecure"][..], &SHARED].concat();
    let bytes = vec![b'k'; 2_000_000];
    let (mut n_whole, mut n_none) = (0, 0);
    let mut server = StageServer::start(dir.path(), &args);
    for seed in 0..ROUNDS {
        let before = all_whole(&server);
        let mut rng = Rng::new(seed);
        let mut upload = Upload::begin(&server, &bytes);
        // In every second round the whole bundle is sent, so that the kill comes while it is
        // written.
        let n = if rng.chance(50) { bytes.len() as u64 } else { rng.below(bytes.len() as u64) };
        upload.stream.write_all(&bytes[..usize::try_from(n).unwrap()]).unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(12_000)));
        server.kill();
        let answer = upload.answer();
        server = StageServer::start(dir.path(), &args);
        let n_new = all_whole(&server) - before;
        assert!(n_new <= 1, "seed {seed}");
        assert!(n_new == 1 || answer.is_none(), "seed {seed}: {answer:?}, and there is nothing");
        assert!(n_new == 0 || n == bytes.len() as u64, "seed {seed}: whole after {n} bytes");
        if n_new == 1 { n_whole += 1 } else { n_none += 1 }
    }
    println!("    {ROUNDS} kills: {n_whole} bundles whole, {n_none} not there");
    assert!(n_none > 0, "no kill came in time");
}

/// A small disk, if it can be mounted.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path, size: &str) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=700");
        let mut mount = Command::new("mount");
        match mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output() {
            Ok(done) if done.status.success() => Some(Self(path)),
            Ok(done) => {
                println!("NOT TESTED: a full disk: {}", text(&done.stderr).trim());
                None
            }
            Err(error) => {
                println!("NOT TESTED: a full disk: mount: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // If the mount is busy, it ends with its last user.
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// A full disk gives 507, before a bundle or within it; nothing of the bundle stays, and freed
/// space is used.
pub fn stage_disk_full() {
    let dir = TempDir::new("full");
    let store = dir.path().join("store");
    let Some(_disk) = SmallDisk::mount(&store, "4m") else { return };
    furnish(dir.path());
    let server = StageServer::start(dir.path(), &[&["--insecure"][..], &SHARED].concat());
    let bytes = vec![b'd'; 3_000_000];
    let too_large = vec![b'd'; 5_000_000];
    assert_eq!(Upload::begin(&server, &too_large).answer(), Some(507));

    let mut upload = Upload::begin(&server, &bytes);
    upload.stream.write_all(&bytes[..100_000]).unwrap();
    wait_for(PATIENCE, "the upload to have begun", || !server.stored().1.is_empty());
    // Another file fills the disk meanwhile.
    let filler = store.join("filler");
    fs::write(&filler, vec![0; 2_000_000]).unwrap();
    // The server may close the connection before it has read everything.
    let _ = upload.stream.write_all(&bytes[100_000..]);
    assert_eq!(upload.answer(), Some(507));
    let half = |path: &Path| path.extension().is_some_and(|ending| ending == "new");
    let (whole, others) = server.stored();
    assert!(whole.is_empty() && !others.iter().any(|path| half(path)), "{others:?}");

    fs::remove_file(filler).unwrap();
    // A process that another test has just begun may hold the filler open until it runs its program.
    wait_for(PATIENCE, "an upload to fit again", || {
        let mut upload = Upload::begin(&server, &bytes);
        let _ = upload.stream.write_all(&bytes);
        upload.answer() == Some(201)
    });
    assert_eq!(all_whole(&server), 1);
}

/// An executor's pod, with the labels that posse sets.
fn make_pod(scene: &Scene<'_>, name: &str, app: &str) -> Value {
    let mut pod = scene.template();
    pod["metadata"]["name"] = name.into();
    pod["metadata"]["labels"] = json!({"posse.dev/app": app});
    scene.admin.post(&pods_path(&scene.namespace), &pod).ok()
}

/// A bundle stays as long as its application has a pod, and is dropped with the last one; a bundle
/// for which no pod appears is dropped when nobody fetches it.
pub fn stage_keeps_bundles_while_pods_exist(server: &dyn Server) {
    let scene = Scene::new(server);
    let dir = scene.dir.path();
    furnish(dir);
    fs::write(dir.join("f"), "f").unwrap();
    fs::write(dir.join("kubeconfig"), server.access(Who::Posse).kubeconfig("default")).unwrap();
    let pod = make_pod(&scene, "driver", "shop");
    let times = ["--idle", "1s", "--gone", "1s", "--kubeconfig", "kubeconfig"];
    let stage = StageServer::start(dir, &[&TLS[..], &SHARED, &times].concat());
    let id_of = |ticket: Value| ticket["bundles"][0]["id"].as_str().unwrap().to_owned();
    let kept = id_of(stage.put_one(&scene.namespace, "shop", "f"));
    // When this bundle is dropped for its age, the older one has been checked as well.
    let unused = id_of(stage.put_one(&scene.namespace, "nobody", "f"));
    let holds = |id: &str| {
        let (whole, _) = stage.stored();
        whole.iter().any(|path| path.file_stem().is_some_and(|stem| stem == id))
    };
    wait_for(PATIENCE, "what nobody fetches to go", || !holds(&unused));
    assert!(holds(&kept), "its pod is there");
    let path = format!("{}/driver", pods_path(&scene.namespace));
    scene.admin.delete(&path, &gone_now(&pod["metadata"]["uid"])).ok();
    wait_for(PATIENCE, "the bundle to go with its pod", || !holds(&kept));
    assert!(stage.log().contains("no pod of its application is left"), "{}", stage.log());
}

/// With TokenReview a user who may create pods in a namespace may upload bundles for it, and no one
/// else.
pub fn stage_token_review(server: &dyn Server) {
    let scene = Scene::new(server);
    let dir = scene.dir.path();
    furnish(dir);
    fs::write(dir.join("f"), "f").unwrap();
    let real = server.real().expect("only the real server knows who somebody is");
    let reviewer = Account::new(&scene, "stage");
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding", "metadata": {"name": scene.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": "system:auth-delegator"},
        "subjects": [{"kind": "ServiceAccount", "name": "stage", "namespace": scene.namespace}]});
    let kubeconfig = reviewer.access(600).kubeconfig("default");
    fs::write(dir.join("kubeconfig"), kubeconfig).unwrap();
    let args = [&TLS[..], &["--token-review", "--kubeconfig", "kubeconfig"]].concat();
    let stage = StageServer::start(dir, &args);
    let author = Account::new(&scene, "author");
    let token = |ttl_s: i64| author.token_for("posse-stage", ttl_s);
    let put = |token: &str, namespace: &str| {
        fs::write(dir.join("own"), token).unwrap();
        let args = ["--ca", "ca.pem", "--token-file", "own", "--timeout", "0s", "f"];
        let done = stage.put(namespace, "shop", &args);
        (done.status.code(), text(&done.stderr))
    };
    // Without permission for TokenReview no token can be checked.
    let (code, words) = put(&token(600), &scene.namespace);
    assert!(code == Some(1) && words.contains("(503)"), "{words}");
    assert!(stage.log().contains("system:auth-delegator"), "{}", stage.log());
    let admin = Client::new(&real.access(Who::Admin), "test-admin");
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).ok();
    wait_value(PATIENCE, "the right to review to be in force", || {
        let (code, words) = put(&token(600), &scene.namespace);
        if code == Some(0) { Ok(()) } else { Err(words) }
    });
    let (code, words) = put(&token(600), "default");
    let who = format!("system:serviceaccount:{}:author", scene.namespace);
    let want = format!("{who} may not create pods in namespace default (403)");
    assert!(code == Some(1) && words.contains(&want), "{words}");
    // The last one is made for the API server, where the stage server could use it.
    for token in [token(-600), "nobodys".to_owned(), author.token(600)] {
        let (code, words) = put(&token, &scene.namespace);
        assert!(code == Some(1) && words.contains("(401)"), "{words}");
    }
    let path =
        format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{}", scene.namespace);
    admin.delete(&path, &json!({"apiVersion": "v1", "kind": "DeleteOptions"})).ok();
}

/// `posse submit --file`: a dry run sends no bytes; then the files are sent, the Job's own Secret
/// has the ticket, and, if containers really run, the driver and its executor find the files.
pub fn submit_takes_files_along(server: &dyn Server) {
    let scene = Scene::new(server);
    let dir = scene.dir.path();
    furnish(dir);
    let stage = serve(dir);
    fs::write(dir.join("a.jar"), "for the driver").unwrap();
    fs::write(dir.join("data.csv"), "for the executor").unwrap();
    let script = r#"cp "$POSSE_FILES_DIR/a.jar" "$SCENE/driver.got"; turns=0
        while ! test -e "$SCENE/executor.got" && test $turns -lt 1200; do
            sleep 0.1; turns=$((turns + 1))
        done"#;
    let executor = r#"cp "$POSSE_FILES_DIR/data.csv" "$SCENE/executor.part"
        mv "$SCENE/executor.part" "$SCENE/executor.got"; sleep 60"#;
    let mut pod = scene.template();
    pod["spec"]["containers"][0]["command"][2] = executor.into();
    let env = json!([{"name": "SCENE", "value": dir.display().to_string()}]);
    let settings = json!({
        "executors": [{"group": "default", "count": 1, "pod": pod}],
        "driver": {"command": ["sh", "-c", script], "image": "example.com/driver:1",
                   "pod": pod_of("default"), "env": env},
    });
    let submit = |words: &[&str]| {
        let run = scene.run_with(&server.access(Who::Admin)).settings(settings.clone());
        let files = ["--file", "a.jar", "--file", "data.csv", "--stage-url", &stage.url];
        let known = ["--stage-ca", "ca.pem", "--stage-token-file", "token"];
        let done = run.once(&[&["submit"][..], words, &files, &known].concat());
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let shown = submit(&["--dry-run"]);
    assert!(shown.contains("kind: Secret\n") && shown.contains("mountPath: \"/var/posse/files\""));
    assert_eq!(stage.stored().0.len(), 0, "nothing was sent");
    let secrets = format!("/api/v1/namespaces/{}/secrets", scene.namespace);
    let secret = format!("{secrets}/shop-driver");
    assert_eq!(scene.admin.get(&secret).code, 404);

    let is_real = server.real().is_some();
    submit(if is_real { &["--no-wait"] } else { &[] });
    let kept = scene.admin.get(&secret).ok();
    assert_eq!(kept["metadata"]["ownerReferences"][0]["kind"], "Job", "{kept}");
    let ticket = STANDARD.decode(kept["data"]["ticket"].as_str().unwrap()).unwrap();
    fs::write(dir.join("ticket"), &ticket).unwrap();
    let done = stage.get(&["--secret-file", "ticket"]);
    assert_eq!(text(&done.stdout), "out/a.jar\nout/data.csv\n", "{}", text(&done.stderr));
    let ticket: Value = serde_json::from_slice(&ticket).unwrap();
    for bundle in ticket["bundles"].as_array().unwrap() {
        let secret = bundle["secret"].as_str().unwrap();
        let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", scene.namespace);
        for path in [jobs, pods_path(&scene.namespace)] {
            assert!(!scene.admin.get(&path).ok().to_string().contains(secret), "{path}");
        }
    }
    if !is_real {
        assert_eq!(fs::read(dir.join("driver.got")).unwrap(), b"for the driver");
        assert_eq!(fs::read(dir.join("executor.got")).unwrap(), b"for the executor");
    }
    let done = scene.command(&server.access(Who::Admin), &["stop", "shop"]).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    wait_for(PATIENCE, "the Secret to go with its Job", || scene.admin.get(&secret).code == 404);
}

/// The server accepts `deploy/stage.yaml`, and the binary accepts its arguments.
pub fn stage_manifest(server: &dyn Server) {
    let scene = Scene::new(server);
    let dir = scene.dir.path();
    furnish(dir);
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy");
    let read = |name: &str| fs::read_to_string(deploy.join(name)).unwrap();
    let manifest = format!("{}\n---\n{}", read("stage.yaml"), read("stage-access.yaml"));
    let mut args = Vec::new();
    for document in manifest.split("\n---\n") {
        let mut object = Node::read(document).expect("it is YAML").to_json();
        let kind = object["kind"].as_str().unwrap();
        let root = match object["apiVersion"].as_str().unwrap() {
            "v1" => "/api/v1".to_owned(),
            version => format!("/apis/{version}"),
        };
        let plural = format!("{}s", kind.to_lowercase());
        let path = match kind {
            "Namespace" => format!("{root}/{plural}?dryRun=All"),
            _ => format!("{root}/namespaces/{}/{plural}?dryRun=All", scene.namespace),
        };
        let kind = kind.to_owned();
        // Its own namespace is not there in a dry run.
        let namespace = object["metadata"].as_object_mut().unwrap().remove("namespace");
        assert!(namespace.is_none_or(|namespace| namespace == "posse-stage"), "{kind}");
        let answer = scene.admin.post(&path, &object);
        assert_eq!(answer.code, 201, "{kind}: {}", answer.body);
        if kind == "Deployment" {
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            args = container["args"].as_array().unwrap().clone();
        }
    }
    let places = [
        ("/etc/posse-stage/tls/tls.crt", "cert.pem"),
        ("/etc/posse-stage/tls/tls.key", "key.pem"),
        ("/etc/posse-stage/token/token", "token"),
        ("/var/lib/posse-stage", "store"),
    ];
    let here = |arg: &Value| {
        let arg = arg.as_str().unwrap().to_owned();
        places.iter().fold(arg, |arg, (there, here)| arg.replace(there, here))
    };
    let args: Vec<String> = args.iter().map(here).collect();
    assert_eq!(args[..3], ["stage", "serve", "--dir=store"]);
    let args: Vec<&str> = args[3..].iter().map(String::as_str).collect();
    let stage = StageServer::start(dir, &args);
    fs::write(dir.join("f"), "f").unwrap();
    stage.put_one(&scene.namespace, "shop", "f");
}
