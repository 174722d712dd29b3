//! A client that reaches its run through another process, as `posse bridge` is one.

use std::fmt;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use posse_control::address::bind;
use posse_control::api::{ControlServer, Tokens};
use posse_control::client::{Client, ClientError, Dialer, RunSelector, Stream};
use posse_serve::token::Token;
use posse_testing::{Fixture, PATIENCE, subject};
use posse_wire::config::control_addr::ControlAddr;

/// Joins each connection to the run that `selector` finds, and tells when it has ended.
#[derive(Debug)]
struct Bridges {
    selector: RunSelector,
    n_dialed: Arc<AtomicUsize>,
    ended: mpsc::Sender<()>,
}

impl fmt::Display for Bridges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pod p")
    }
}

impl Dialer for Bridges {
    fn dial(&self) -> io::Result<Box<dyn Stream>> {
        self.n_dialed.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = UnixStream::pair()?;
        let client = Client::find(&self.selector).map_err(io::Error::other)?;
        let ended = self.ended.clone();
        thread::spawn(move || {
            let input = theirs.try_clone().unwrap();
            client.join(input, &mut &theirs).unwrap();
            // As the end of its process does.
            theirs.shutdown(Shutdown::Both).unwrap();
            ended.send(()).unwrap();
        });
        Ok(Box::new(ours))
    }
}

fn through(selector: RunSelector) -> (Client, Arc<AtomicUsize>, mpsc::Receiver<()>) {
    let (sender, ended) = mpsc::channel();
    let n_dialed = Arc::new(AtomicUsize::new(0));
    let bridges = Bridges { selector, n_dialed: Arc::clone(&n_dialed), ended: sender };
    (Client::through(Box::new(bridges)), n_dialed, ended)
}

fn selector(fixture: &Fixture) -> RunSelector {
    let folders = vec![fixture.folder.path().to_owned()];
    RunSelector { app: Some("w".into()), folders, ..RunSelector::default() }
}

#[test]
fn a_bridge_serves_several_calls_and_ends_with_its_client() {
    let fixture = Fixture::new();
    let (client, n_dialed, ended) = through(selector(&fixture));
    assert_eq!(client.status().unwrap().executors.len(), 2);
    assert_eq!(client.scale("default", 70).unwrap(), 20);
    let refused = client.scale("other", 1).unwrap_err();
    assert_eq!(refused.status(), Some(404));
    assert_eq!(n_dialed.load(Ordering::Relaxed), 1, "the connection is used again");
    fixture.events.push("{\"seq\":1}\n");
    let mut lines = Vec::new();
    let mut each = |line: &str| {
        lines.push(line.to_owned());
        Ok(())
    };
    client.events(0, None, false, &mut each).unwrap();
    assert_eq!((lines.len(), n_dialed.load(Ordering::Relaxed)), (1, 2));
    ended.recv_timeout(PATIENCE).expect("it ends with the events");
    drop(client);
}

#[test]
fn a_bridge_ends_when_its_client_closes() {
    let fixture = Fixture::new();
    let (client, _, ended) = through(selector(&fixture));
    client.status().unwrap();
    drop(client);
    ended.recv_timeout(PATIENCE).expect("the bridge ends");
}

#[test]
fn a_bridge_brings_the_token_of_its_run() {
    let fixture = Fixture::new();
    let file = fixture.folder.path().join("token");
    fs::write(&file, "s3cret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let tokens = Tokens { control: Some(Token::read_private(&file).unwrap()), read: None };
    let bound = bind(&ControlAddr::parse("127.0.0.1:0").unwrap()).unwrap();
    let server =
        ControlServer::start(bound, tokens, subject(&fixture.core, &fixture.events)).unwrap();
    let (control, token_file) = (Some(server.address().to_string()), Some(file));
    let (client, ..) = through(RunSelector { control, token_file, ..RunSelector::default() });
    assert_eq!(client.status().unwrap().executors.len(), 2);
    assert!(!format!("{client:?}").contains("s3cret"));
}

#[test]
fn a_bridge_that_leads_nowhere_says_why() {
    let missing = RunSelector { app: Some("none".into()), ..RunSelector::default() };
    let error = through(missing).0.status().unwrap_err();
    assert!(matches!(error, ClientError::NoBridge(_)), "{error:?}");
    assert!(error.to_string().starts_with("no live run of application none"), "{error}");
}
