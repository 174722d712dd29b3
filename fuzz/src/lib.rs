//! Fuzz targets: what reads bytes from outside. Each takes any bytes and must not panic, hang or grow
//! without limit; some also check what they got.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use posse_core::model::pod_text::PodOverrides;
use posse_base::text::{is_unsafe, one_line, printable, printable_json, sanitize};
use posse_kube::config::Sources;
use posse_serve::{Handler, Limits, Listen, Request, Responder, Server};
use posse_wire::pod::build::{PodContext, PodSettings};
use posse_wire::bundle::{Label, Ticket, parse_accepted};
use posse_wire::config::Config;
use posse_wire::control::{self, PutGroup};
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::k8s::exec_channels::{Channel, CommandEnd, command_end};
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::status::{Verb, refusal};
use posse_wire::pod::template::Template;
use posse_wire::control::status_json;
use posse_wire::k8s::{list, watch};
use posse_wire::pod;
use serde_json::Value;

/// A target: its name, its function, and the folders below the repository with its first inputs.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static str]);

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("http_request", http_request, &["fuzz/seeds/http_request"]),
    ("control_body", control_body, &["fuzz/seeds/control_body"]),
    ("watch_line", watch_line, &["fixtures/watch", "fixtures/pods", "fixtures/protobuf"]),
    ("status", status, &["fixtures/status", "fixtures/protobuf"]),
    ("kubeconfig", kubeconfig, &["fixtures/kubeconfig"]),
    ("posse_yaml", posse_yaml, &["fixtures/config"]),
    ("template", template, &["fixtures/template"]),
    ("stage_index", stage_index, &["fuzz/seeds/stage_index"]),
    ("ticket", ticket, &["fuzz/seeds/ticket"]),
    ("exec_message", exec_message, &["fuzz/seeds/exec_message"]),
    ("yaml", yaml, &["fixtures/config", "fixtures/template", "fixtures/kubeconfig"]),
];

struct Echo;

impl Handler for Echo {
    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        let _ = (request.header("host"), request.query("a"));
        responder.send(200, &[("content-type", "text/plain")], &request.body)
    }
}

/// The bytes of one connection to a server: any number of requests.
pub fn http_request(bytes: &[u8]) {
    static SERVER: OnceLock<(Server, SocketAddr)> = OnceLock::new();
    let (_, address) = SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let wait = Duration::from_millis(200);
        let limits = Limits {
            read_timeout: wait,
            idle_timeout: wait,
            body_bytes_max: 4 << 10,
            ..Limits::default()
        };
        let server = Server::start(Listen::Tcp(listener), limits, "fuzz", Arc::new(Echo));
        (server.expect("threads start"), address)
    });
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out can be set");
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            panic!("the server neither answers nor closes the connection")
        }
        _ => assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "not an answer"),
    }
}

/// Bodies of calls and of answers of the control API; a template becomes a pod.
pub fn control_body(bytes: &[u8]) {
    if let Ok(PutGroup::Whole(group)) = control::parse_put_group(bytes) {
        assert!(!format!("{group:?}").contains("template"), "a template may contain secrets");
        if let Ok(template) = Template::from_json("group", group.template) {
            build(&template);
        }
    }
    let _ = control::parse_kill(bytes);
    let _ = control::parse_executors(bytes);
    let _ =
        (control::parse_error(bytes), control::parse_target(bytes), control::parse_killed(bytes));
    let _ = status_json::StatusJson::parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = (control::parse_id(text), ControlAddr::parse(text));
    }
}

fn selection() -> Selection {
    Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() }
}

/// A line of a watch, a page of a LIST, a pod.
pub fn watch_line(bytes: &[u8]) {
    for event in [watch::Encoded::Json(bytes), watch::Encoded::Protobuf(bytes)] {
        let _ = watch::parse_event(event, &selection());
    }
    let _ = list::read_page(&mut &*bytes, &selection());
    let _ = pod::parse(bytes, &selection());
}

/// An answer other than success, and texts on their way to a terminal.
pub fn status(bytes: &[u8]) {
    for code in [400, 403, 409, 410, 429, 500] {
        let refusal = refusal(code, None, true, bytes, Verb::Create);
        assert!(refusal.message.len() <= bytes.len().max(4 << 10));
        let line = sanitize(&refusal.to_string(), 256);
        assert!(line.len() <= 256 && !line.contains(is_unsafe));
    }
    let text = String::from_utf8_lossy(bytes);
    assert!(!one_line(&text).contains(is_unsafe));
    assert!(!printable(&text).contains(|c| is_unsafe(c) && c != '\n' && c != '\t'));
    if let Ok(value) = serde_json::from_str::<Value>(&text) {
        let json = value.to_string();
        let safe = printable_json(&json);
        assert!(!safe.contains(is_unsafe));
        assert_eq!(serde_json::from_str::<Value>(&safe).ok(), Some(value), "the value stays");
    }
}

/// A kubeconfig. Plugins that it names are not started, files that it names may be read.
pub fn kubeconfig(bytes: &[u8]) {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let folder = ["/dev/shm", "/tmp"].into_iter().find(|folder| Path::new(folder).is_dir());
        Path::new(folder.unwrap_or(".")).join(format!("posse-fuzz-{}", std::process::id()))
    });
    std::fs::write(file, bytes).expect("the folder can be written");
    let sources = Sources {
        kubeconfig: Some(file),
        context: None,
        env: &|_| None,
        service_account_dir: Path::new("/nonexistent"),
        ca_bundles: &[],
    };
    match sources.resolve() {
        Ok(cluster) => drop(format!("{cluster:?}")),
        Err(error) => drop(error.to_string()),
    }
}

/// A posse.yaml.
pub fn posse_yaml(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Err(error) = Config::parse("posse.yaml", text)
    {
        assert!(error.to_string().starts_with("posse.yaml"), "{error}");
    }
}

/// A template, and the pod made of it.
pub fn template(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(template) = Template::parse("pod.yaml", text)
    {
        build(&template);
    }
}

fn build(template: &Template) {
    let context = PodContext {
        app: "w".to_owned(),
        instance: "a1b2c".to_owned(),
        namespace: "n".to_owned(),
        group: "default".to_owned(),
        driver_host: "10.1.2.3".to_owned(),
        driver_port: Some(7077),
        settings: PodSettings { max_age_s: Some(3_600), ..PodSettings::default() },
        ..PodContext::default()
    };
    if template.check(&PodSettings::default(), true).is_ok()
        && let Ok(compiled) = template.compile(&context)
    {
        let body = compiled.render(7, 3, &PodOverrides::default());
        let pod: Result<Value, _> = serde_json::from_slice(&body);
        let name = pod.expect("a pod is JSON")["metadata"]["name"].clone();
        assert_eq!(name, "w-a1b2c-exec-7", "the name is posse's");
    }
}

/// The line in front of a staged bundle.
pub fn stage_index(bytes: &[u8]) {
    if let Some(label) = Label::parse(bytes) {
        assert_eq!(Label::parse(label.to_line().as_bytes()), Some(label));
    }
}

/// A ticket for staged files, and the answer to an upload.
pub fn ticket(bytes: &[u8]) {
    let _ = parse_accepted(bytes);
    if let Ok(ticket) = Ticket::parse(bytes) {
        assert!(ticket.bundles.iter().all(|one| !one.file.contains('/') && one.file != ".."));
        assert_eq!(Ticket::parse(ticket.to_json().as_bytes()), Ok(ticket));
    }
}

/// A WebSocket message of `pods/exec`, and how the command ended.
pub fn exec_message(bytes: &[u8]) {
    if let Some((Channel::Error, content)) = Channel::split(bytes)
        && let CommandEnd::Failed(text) = command_end(content)
    {
        // One wrong byte becomes a character of three.
        assert!(text.len() <= 3 * bytes.len() + 64, "the text is the server's");
    }
}

/// YAML of any kind.
pub fn yaml(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(node) = posse_encoding::yaml::Node::read(text)
    {
        let json = node.to_json().to_string();
        let _ = posse_encoding::yaml::Node::read(&json).map(|again| again.to_json());
    }
}
