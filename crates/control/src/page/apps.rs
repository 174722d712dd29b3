//! The page of all applications of a namespace or a cluster. All its readers share one list.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use serde_json::{Value, json};

use super::{Opened, begin, files, serve};
use crate::access::Door;
use crate::answer::Answer;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_base::sync::lock;
use posse_core::machines::shared_list::{PACE_MS, SharedList, Turn};
use posse_core::model::refusal::Refusal;
use posse_serve::token::Token;
use posse_serve::{Handler, Request, Responder, Server};
use posse_wire::config::listen_addr::ListenAddr;

/// Where the applications come from.
pub trait Apps: Send + Sync {
    /// Reads them all, each as `posse apps -o json` shows it. May block for the time-outs of the calls.
    ///
    /// # Errors
    /// The API server's refusal, or why it does not answer.
    fn read(&self) -> Result<Vec<Value>, Refusal>;
}

/// What is shown, for the page's head.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The URL of the API server.
    pub server: String,
    /// `None`: all of the cluster.
    pub namespace: Option<String>,
}

/// The running listener. Dropping it stops it.
#[derive(Debug)]
pub struct AppsServer {
    _server: Server,
    address: SocketAddr,
}

impl AppsServer {
    /// Starts the listener's threads. `seed`: for the jitter of later tries.
    ///
    /// # Errors
    /// The system refuses the address or a thread.
    pub fn start(
        at: ListenAddr,
        token: Token,
        (apps, shown): (Arc<dyn Apps>, Shown),
        seed: u64,
    ) -> io::Result<Self> {
        let open = Opened::at(at, Some(token), &files::APPS)?;
        let list = List { plan: SharedList::new(Rng::new(seed)), state: State::default() };
        let reader = Reader {
            door: open.door,
            apps,
            shown,
            clock: Clock::start(),
            list: Mutex::new(list),
            read: Condvar::new(),
        };
        let server = serve(open.listener, Arc::new(reader))?;
        Ok(Self { _server: server, address: open.address })
    }

    /// The address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What was read last.
#[derive(Clone, Default)]
struct State {
    /// A JSON array.
    apps: Option<Arc<[u8]>>,
    /// How many applications are not in it.
    n_left_out: usize,
    /// Why the last read failed.
    error: Option<String>,
}

struct List {
    plan: SharedList,
    state: State,
}

/// Handles requests.
struct Reader {
    door: Door,
    apps: Arc<dyn Apps>,
    shown: Shown,
    clock: Clock,
    list: Mutex<List>,
    /// The first read has ended.
    read: Condvar,
}

impl Handler for Reader {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        self.door.refuse(request)
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        let Some(responder) = begin(&self.door, &request, responder)? else { return Ok(()) };
        match request.path.as_str() {
            "/v1/apps" => self.answer().send(responder),
            _ => Answer::error(404, "there is no such call", None).send(responder),
        }
    }
}

impl Reader {
    /// The last state with its age. If it may be read again, this reader does so first, for all.
    fn answer(&self) -> Answer {
        let mut list = lock(&self.list);
        loop {
            match list.plan.ask(self.clock.now()) {
                Turn::Last => break,
                Turn::Wait => {
                    list = self.read.wait(list).unwrap_or_else(PoisonError::into_inner);
                }
                Turn::Read => {
                    drop(list);
                    let found = self.apps.read();
                    list = lock(&self.list);
                    self.note(&mut list, found);
                    self.read.notify_all();
                    break;
                }
            }
        }
        let age_ms = list.plan.age_ms(self.clock.now());
        let state = list.state.clone();
        drop(list);
        self.body(state, age_ms)
    }

    fn note(&self, list: &mut List, found: Result<Vec<Value>, Refusal>) {
        match found {
            Ok(mut apps) => {
                let n_left_out = apps.len().saturating_sub(APPS_MAX);
                apps.truncate(APPS_MAX);
                let text = Value::from(apps).to_string().into_bytes();
                list.state = State { apps: Some(text.into()), n_left_out, error: None };
                list.plan.on_success(self.clock.now());
            }
            Err(refusal) => {
                list.state.error = Some(refusal.to_string());
                list.plan.on_failure(self.clock.now(), refusal.retry_after_ms);
            }
        }
    }

    fn body(&self, state: State, age_ms: Option<u64>) -> Answer {
        let head = json!({
            "server": self.shown.server,
            "namespace": self.shown.namespace,
            "pace_ms": PACE_MS,
            "age_ms": age_ms,
            "error": state.error,
            "left_out": state.n_left_out,
        });
        let mut head = head.to_string();
        // The list is large and stays the same, so it is not written again for each reader.
        head.truncate(head.len() - 1);
        head.push_str(",\"apps\":");
        let apps = state.apps.unwrap_or_else(|| Arc::from(&b"[]"[..]));
        let parts = vec![head.into_bytes().into(), apps, Arc::from(&b"}"[..])];
        Answer::ok_in_parts(Arc::new(parts))
    }
}

/// Applications in one answer, the first by name. A page of more helps nobody: names on the command line choose.
const APPS_MAX: usize = 5_000;
