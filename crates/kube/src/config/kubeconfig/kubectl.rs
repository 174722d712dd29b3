//! A table of kubeconfigs with what kubectl makes of each: the server that it asks, the namespace, and what it sends
//! as its identity. Where a kubectl is installed, it is asked, too.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::version::{TLS12, TLS13};

use crate::config::Sources;
use crate::http::{Http, Method, Request};
use crate::testing::sources;
use posse_testing::{Answer, Authority, Folder, Seen, TestServer};

/// Both name the servers A, B and C, the last of which wants a client certificate.
const CLUSTERS: &str = "
clusters:
- {name: a, cluster: {server: 'A', certificate-authority: ca.pem}}
- {name: b, cluster: {server: 'B', certificate-authority: ca.pem}}
- {name: c, cluster: {server: 'C', certificate-authority: ca.pem}}
";
const USERS: &str = "
users:
- {name: t, user: {token: tok}}
- {name: v, user: {token: other}}
";
const CONTEXTS: &str = "
contexts:
- {name: x, context: {cluster: a, user: t, namespace: ns}}
- {name: other, context: {cluster: b, user: v}}
";
const CURRENT: &str = "
current-context: x
";

/// What a plugin prints.
const PRINTED: &str = r#"{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential",
    "status":{"token":"printed"}}"#;

/// Its `exp` is far away.
const ID_TOKEN: &str = "e30.eyJleHAiOjg5MzQ0NDg1NTAwMH0.e30";

/// Its `exp` has a fraction.
const HALF: &str = "e30.eyJleHAiOjg5MzQ0NDg1NTAuNX0.e30";

fn oidc(id_token: &str) -> String {
    format!(
        "{{auth-provider: {{name: oidc, config: {{idp-issuer-url: 'https://127.0.0.1:1', client-id: k, \
         id-token: {id_token}}}}}}}"
    )
}

/// kubectl 1.20 runs the plugin of this row. Newer ones do not need it.
const BESIDE_A_PLUGIN: &str = "a certificate beside a plugin";

/// A row: its name, the files, `$KUBECONFIG` (none: `~/.kube/config`), `--context`, and the answer of kubectl:
/// server, namespace, identity; `nothing` if it asks no server.
struct Row {
    name: &'static str,
    files: Vec<(&'static str, String)>,
    kubeconfig: Option<&'static str>,
    context: Option<&'static str>,
    want: &'static str,
    /// kubectl asks the terminal for a user name before it sends anything. Other programs of client-go do not.
    asks_for_user: bool,
}

fn one(name: &'static str, text: &str, want: &'static str) -> Row {
    Row {
        name,
        files: vec![("config", text.to_owned())],
        kubeconfig: Some("config"),
        context: None,
        want,
        asks_for_user: false,
    }
}

/// A user `u` of the context `x`, whose cluster is `a` or another one.
fn user(name: &'static str, cluster: &str, user: &str, want: &'static str) -> Row {
    let text = format!(
        "{CLUSTERS}{CURRENT}contexts: [{{name: x, context: {{cluster: {cluster}, user: u}}}}]\n\
         users: [{{name: u, user: {user}}}]\n"
    );
    one(name, &text, want)
}

/// A cluster `k` of the context `x`, with a token.
fn cluster(name: &'static str, cluster: &str, want: &'static str) -> Row {
    let text = format!(
        "{CURRENT}{USERS}contexts: [{{name: x, context: {{cluster: k, user: t}}}}]\n\
         clusters: [{{name: k, cluster: {cluster}}}]\n"
    );
    one(name, &text, want)
}

fn two(name: &'static str, first: &str, second: &str, want: &'static str) -> Row {
    Row {
        files: vec![("config", first.to_owned()), ("sub/config", second.to_owned())],
        kubeconfig: Some("missing:config:config:sub/config:"),
        ..one(name, "", want)
    }
}

fn table() -> Vec<Row> {
    [chosen(), beside(), absent(), formats(), clusters(), users(), files()]
        .into_iter()
        .flatten()
        .collect()
}

/// Which context is chosen.
fn chosen() -> Vec<Row> {
    let whole = format!("{CURRENT}{CONTEXTS}{CLUSTERS}{USERS}");
    vec![
        one("current-context", &whole, "A ns tok"),
        Row { context: Some("other"), ..one("--context", &whole, "B default other") },
        Row { context: Some("z"), ..one("--context without such a context", &whole, "nothing") },
        Row {
            files: vec![(".kube/config", whole.clone()), ("ca.pem", String::new())],
            kubeconfig: None,
            ..one("home", "", "A ns tok")
        },
        one(
            "an empty name",
            &whole
                .replace("current-context: x", "current-context: ''")
                .replace("name: x", "name: ''"),
            "A ns tok",
        ),
        one(
            "no names at all",
            &whole.replace("current-context: x", "").replace("name: x, ", ""),
            "A ns tok",
        ),
        one(
            "nothing chosen",
            &whole.replace("current-context: x", "current-context: ''"),
            "nothing",
        ),
        one(
            "a context that does not exist",
            &whole.replace("current-context: x", "current-context: z"),
            "nothing",
        ),
        one("an empty file", "", "nothing"),
        one("lists that are null", "clusters: null\ncontexts: null\nusers: null\n", "nothing"),
    ]
}

/// What is broken or odd beside the chosen context.
fn beside() -> Vec<Row> {
    let whole = format!("{CURRENT}{CONTEXTS}{CLUSTERS}{USERS}");
    [
        ("another context without a name", "contexts:", "- context: {cluster: b, user: v}"),
        ("another context that is null", "contexts:", "- {name: z, context: null}"),
        ("a cluster without a name", "clusters:", "- cluster: {server: 'B'}"),
        ("a cluster that is null", "clusters:", "- {name: z, cluster: null}"),
        (
            "a cluster without a server",
            "clusters:",
            "- {name: z, cluster: {certificate-authority: none}}",
        ),
        ("a user without a name", "users:", "- user: {token: third}"),
        (
            "a user of a removed provider",
            "users:",
            "- {name: z, user: {auth-provider: {name: gcp}}}",
        ),
        (
            "a user whose files do not exist",
            "users:",
            "- {name: z, user: {tokenFile: none, client-certificate: none, client-key: none}}",
        ),
        ("a user with a plugin of no version", "users:", "- {name: z, user: {exec: {command: x}}}"),
        (
            "a user with half a certificate",
            "users:",
            "- {name: z, user: {client-certificate-data: YWE=}}",
        ),
    ]
    .map(|(name, list, entry)| {
        let text = whole.replace(list, &format!("{list}\n{entry}"));
        one(name, &text, "A ns tok")
    })
    .into()
}

/// What the chosen context leaves out.
fn absent() -> Vec<Row> {
    let whole = format!("{CURRENT}{CONTEXTS}{CLUSTERS}{USERS}");
    let beside = |list: &str, entry: &str| whole.replace(list, &format!("{list}\n{entry}"));
    vec![
        Row {
            asks_for_user: true,
            ..one("no user", &whole.replace(", user: t", ""), "A ns nobody")
        },
        Row {
            asks_for_user: true,
            ..one("a user that is empty", &whole.replace("user: t", "user: ''"), "A ns nobody")
        },
        one(
            "the user without a name",
            &beside("users:", "- user: {token: third}").replace(", user: t", ""),
            "A ns third",
        ),
        one(
            "the cluster without a name",
            &whole.replace("name: a, ", "").replace("cluster: a, ", ""),
            "A ns tok",
        ),
        one(
            "an empty namespace",
            &whole.replace("namespace: ns", "namespace: ''"),
            "A default tok",
        ),
        one(
            "a namespace that is null",
            &whole.replace("namespace: ns", "namespace: null"),
            "A default tok",
        ),
    ]
}

/// How the file is written.
fn formats() -> Vec<Row> {
    let whole = format!("{CURRENT}{CONTEXTS}{CLUSTERS}{USERS}");
    vec![
        one("CRLF", &whole.replace('\n', "\r\n"), "A ns tok"),
        one("a byte order mark", &format!("\u{feff}{whole}"), "A ns tok"),
        one(
            "JSON",
            r#"{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"a","user":"t"}}],"clusters":[{"name":"a","cluster":{"server":"A","insecure-skip-tls-verify":true}}],"users":[{"name":"t","user":{"token":"tok"}}]}"#,
            "A default tok",
        ),
        one(
            "a key twice",
            &whole.replace("namespace: ns", "namespace: other, namespace: ns"),
            "A ns tok",
        ),
        one("a second document", &format!("{whole}---\nkind: Config\n"), "A ns tok"),
        one(
            "unknown keys",
            &format!("{whole}\nx-mine: [1, {{a: b}}]\npreferences: {{colors: true}}\n"),
            "A ns tok",
        ),
    ]
}

fn clusters() -> Vec<Row> {
    vec![
        cluster(
            "authority as data",
            "{server: 'A', certificate-authority-data: CADATA}",
            "A default tok",
        ),
        cluster(
            "no verification",
            "{server: 'A', insecure-skip-tls-verify: true}",
            "A default tok",
        ),
        cluster(
            "a server name",
            "{server: 'A', certificate-authority: ca.pem, tls-server-name: kube.internal}",
            "A default tok",
        ),
        cluster(
            "a path",
            "{server: 'A/prefix/', certificate-authority: ca.pem}",
            "A/prefix default tok",
        ),
        cluster(
            "nulls",
            "{server: 'A', certificate-authority: ca.pem, proxy-url: null, tls-server-name: '', insecure-skip-tls-verify: null, extensions: null}",
            "A default tok",
        ),
    ]
}

fn users() -> Vec<Row> {
    let exec = "apiVersion: client.authentication.k8s.io/v1beta1, command: /bin/sh";
    vec![
        user(
            "user name and password",
            "a",
            "{username: me, password: pw}",
            "A default basic:bwu6chc=",
        ),
        user("a token's file", "a", "{tokenFile: token}", "A default filed"),
        user("a token and its file", "a", "{token: tok, tokenFile: token}", "A default filed"),
        user(
            "a certificate",
            "c",
            "{client-certificate: me.crt, client-key: me.key}",
            "C default nobody",
        ),
        user(
            "a certificate as data",
            "c",
            "{client-certificate-data: CRTDATA, client-key-data: KEYDATA}",
            "C default nobody",
        ),
        user(
            BESIDE_A_PLUGIN,
            "c",
            &format!(
                "{{client-certificate: me.crt, client-key: me.key, exec: {{{exec}, args: [-c, 'exit 7']}}}}"
            ),
            "C default nobody",
        ),
        user(
            "a plugin",
            "a",
            &format!("{{exec: {{{exec}, args: [PLUGIN]}}}}"),
            "A default printed",
        ),
        user(
            "a plugin with nulls",
            "a",
            &format!("{{exec: {{{exec}, args: [PLUGIN], env: null}}, auth-provider: null}}"),
            "A default printed",
        ),
        user(
            "a plugin beside a token",
            "a",
            &format!("{{token: tok, exec: {{{exec}, args: [-c, 'exit 7']}}}}"),
            "A default tok",
        ),
        user("an id-token", "a", &oidc(ID_TOKEN), "A default e30.eyjlehaiojg5mzq0ndg1ntawmh0.e30"),
        user("half a second", "a", &oidc(HALF), "A default e30.eyjlehaiojg5mzq0ndg1ntaunx0.e30"),
        user(
            "a token beside an id-token",
            "a",
            &oidc(ID_TOKEN).replace("{auth", "{token: tok, auth"),
            "A default tok",
        ),
        user("an id-token that has expired", "a", &oidc("e30.eyJleHAiOjF9.e30"), "nothing"),
        user("no id-token", "a", &oidc("''"), "nothing"),
        user("a removed provider", "a", "{token: tok, auth-provider: {name: gcp}}", "nothing"),
        user(
            "somebody else",
            "a",
            "{token: tok, as: jane, as-groups: [dev]}",
            "A default tok as jane in dev",
        ),
    ]
}

/// Several files.
fn files() -> Vec<Row> {
    let whole = format!("{CURRENT}{CONTEXTS}{CLUSTERS}{USERS}");
    vec![
        two(
            "the first current context",
            &whole,
            &whole.replace("current-context: x", "current-context: other"),
            "A ns tok",
        ),
        two(
            "the only current context",
            &format!("current-context: ''\n{CONTEXTS}"),
            &format!("current-context: other\n{USERS}{}", CLUSTERS.replace("ca.pem", "../ca.pem")),
            "B default other",
        ),
        two(
            "the first entry of a name",
            "clusters: [{name: a, cluster: {server: 'B', insecure-skip-tls-verify: true}}]\nusers: [{name: t, user: {token: first}}]",
            &whole.replace("ca.pem", "../ca.pem").replace("'A',", "'A', tls-server-name: nobody,"),
            "B ns first",
        ),
        two(
            "paths of the second file",
            "clusters: null\ncontexts: null\nusers: null\n",
            &format!(
                "{CURRENT}{CONTEXTS}{}users: [{{name: t, user: {{tokenFile: ../token}}}}]",
                CLUSTERS.replace("ca.pem", "../ca.pem")
            ),
            "A ns filed",
        ),
    ]
}

/// As much of an API server as kubectl needs to ask for pods.
fn answer(seen: &Seen) -> Answer {
    let path = path_of(seen);
    let body = match path.trim_start_matches("/prefix") {
        "/api" => r#"{"kind":"APIVersions","versions":["v1"]}"#,
        "/apis" => r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#,
        "/api/v1" => {
            r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list"]}]}"#
        }
        _ => r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#,
    };
    Answer::json(200, body)
}

fn path_of(seen: &Seen) -> &str {
    let path = seen.line().split(' ').nth(1).unwrap_or_default();
    path.split('?').next().unwrap_or_default()
}

/// The servers, and the files that the kubeconfigs name.
struct World {
    servers: [(&'static str, TestServer); 3],
    authority: Authority,
    pair: (String, String),
}

impl World {
    fn new() -> Self {
        let (authority, clients) = (Authority::new(), Authority::new());
        let start = |clients| {
            let names = ["127.0.0.1", "kube.internal"];
            let tls = authority.server(&names, &[&TLS12, &TLS13], clients);
            TestServer::start(Some(tls), answer)
        };
        let servers = [("A", start(None)), ("B", start(None)), ("C", start(Some(&clients)))];
        let pair = clients.issue(&["me"]);
        Self { servers, authority, pair }
    }

    /// Writes the files of a row.
    fn write(&self, row: &Row) -> Folder {
        let folder = Folder::new();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        for sub in ["sub", ".kube"] {
            std::fs::create_dir(folder.path().join(sub)).unwrap();
        }
        for name in ["ca.pem", ".kube/ca.pem"] {
            write(name, &self.authority.pem);
        }
        write("token", "filed\n");
        write("plugin", &format!("cat <<'END'\n{PRINTED}\nEND\n"));
        write("me.crt", &self.pair.0);
        write("me.key", &self.pair.1);
        for (name, text) in row.files.iter().filter(|(name, _)| !name.ends_with(".pem")) {
            let mut text = text.clone();
            for (letter, server) in &self.servers {
                for key in ["server: '", "\"server\":\""] {
                    let url = format!("{key}https://{}", server.address);
                    text = text.replace(&format!("{key}{letter}"), &url);
                }
            }
            text = text.replace("PLUGIN", folder.path().join("plugin").to_str().unwrap());
            for (word, data) in [
                ("CADATA", &self.authority.pem),
                ("CRTDATA", &self.pair.0),
                ("KEYDATA", &self.pair.1),
            ] {
                text = text.replace(word, &BASE64_STANDARD.encode(data));
            }
            write(name, &text);
        }
        folder
    }

    /// Which server was asked for pods, of which namespace, and by whom.
    fn asked(&self) -> String {
        let mut asked = "nothing".to_owned();
        for (letter, server) in &self.servers {
            for seen in server.seen() {
                let path = path_of(&seen).to_owned();
                let Some((prefix, rest)) = path.split_once("/api/v1/namespaces/") else { continue };
                let namespace = rest.split('/').next().unwrap_or_default();
                let who = seen.header("authorization").unwrap_or("nobody").to_lowercase();
                let who = who.replace("bearer ", "").replace("basic ", "basic:");
                asked = format!("{letter}{prefix} {namespace} {who}");
                if let Some(user) = seen.header("impersonate-user") {
                    let group = seen.header("impersonate-group").unwrap_or_default();
                    asked.push_str(&format!(" as {user} in {group}"));
                }
            }
        }
        asked
    }
}

fn kubeconfig_list(row: &Row, folder: &Folder) -> Option<String> {
    let list = row.kubeconfig?.split(':').map(|name| match name {
        "" => PathBuf::new(),
        name => folder.path().join(name),
    });
    Some(std::env::join_paths(list).unwrap().into_string().unwrap())
}

fn ask_ourselves(row: &Row, folder: &Folder) -> Result<(), String> {
    let list = kubeconfig_list(row, folder);
    let env = |name: &str| match name {
        "KUBECONFIG" => list.clone(),
        "HOME" => Some(folder.path().display().to_string()),
        _ => None,
    };
    let sources = Sources { context: row.context, ..sources(None, &env) };
    let cluster = sources.resolve().map_err(|error| error.to_string())?;
    let path = format!("/api/v1/namespaces/{}/pods", cluster.namespace);
    let http = Http::connect(cluster).map_err(|error| error.to_string())?;
    let request = Request {
        method: Method::Get,
        path,
        content_type: "",
        body: None,
        timeout: Duration::from_secs(20),
        body_bytes_max: 1 << 20,
    };
    http.call(&request).map(drop).map_err(|error| error.to_string())
}

fn ask_kubectl(program: &Path, row: &Row, folder: &Folder) -> String {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", folder.path());
    command.env("KUBERNETES_MASTER", "http://127.0.0.1:1");
    if let Some(list) = kubeconfig_list(row, folder) {
        command.env("KUBECONFIG", list);
    }
    command.args(["get", "pods", "--request-timeout=20s", "--cache-dir"]);
    command.arg(folder.path().join("cache")).stdin(Stdio::null()).current_dir("/");
    if let Some(context) = row.context {
        command.args(["--context", context]);
    }
    String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned()
}

/// The kubectls of this machine, and that of the tests (`.ci/clients`).
fn installed() -> Vec<PathBuf> {
    let of_tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/kubectl-1.20");
    let folders =
        std::env::var_os("PATH").into_iter().chain(std::env::var_os("KUBEBUILDER_ASSETS"));
    let folders: Vec<PathBuf> =
        folders.flat_map(|list| std::env::split_paths(&list).collect::<Vec<_>>()).collect();
    let mut programs: Vec<PathBuf> = folders
        .into_iter()
        .map(|folder| folder.join("kubectl"))
        .chain([of_tests])
        .filter_map(|program| std::fs::canonicalize(program).ok())
        .collect();
    programs.sort();
    programs.dedup();
    programs
}

#[test]
fn kubeconfigs_mean_what_they_mean_to_kubectl() {
    let world = World::new();
    let kubectls = installed();
    let mut wrong = Vec::new();
    for row in table() {
        let folder = world.write(&row);
        let said = ask_ourselves(&row, &folder);
        let ours = world.asked();
        if ours != row.want {
            wrong.push(format!("{}: {ours} instead of {}: {said:?}", row.name, row.want));
        }
        for kubectl in &kubectls {
            if row.name == BESIDE_A_PLUGIN && kubectl.ends_with("kubectl-1.20") {
                continue;
            }
            let said = ask_kubectl(kubectl, &row, &folder);
            let its = world.asked();
            let asks = row.asks_for_user && said.contains("EOF");
            if its != row.want && !asks {
                let kubectl = kubectl.display();
                wrong.push(format!(
                    "{}: {kubectl}: {its} instead of {}: {said}",
                    row.name, row.want
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if kubectls.is_empty() {
        println!("NOT TESTED with kubectl: none is in PATH, and .ci/clients has brought none");
    }
    println!("{} kubeconfigs, asked {kubectls:?}", table().len());
}
