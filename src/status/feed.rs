//! The threads that read a run's status and events for `posse status --watch`, so that a run that does
//! not answer never delays a key.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::Value;

use posse_base::text::sanitize;
use posse_control::client::Client;
use posse_core::policy::loss::MESSAGE_BYTES_MAX;
use posse_wire::control::status_json::StatusJson;

/// News for the screen.
pub(super) enum News {
    Event(Value),
    /// The run's last event was read.
    Ended,
    Status(Result<Box<StatusJson>, String>),
    /// A key was pressed.
    Key(u8),
}

/// News that wait for the screen; if the queue is full, the threads wait.
const NEWS_MAX: usize = 1_000;

/// The wait before the events of a run that does not answer are asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// The threads end with the process: each may be blocked in a read.
pub(super) struct Feed {
    pub news: Receiver<News>,
    /// Asks for one status. The queue has room for one.
    pub wanted: Sender<()>,
}

impl Feed {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(super) fn start(run: Client, has_keys: bool) -> io::Result<Self> {
        let run = Arc::new(run);
        let (sender, news) = bounded(NEWS_MAX);
        let (wanted, requests) = bounded::<()>(1);
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
        };
        let (source, out) = (Arc::clone(&run), sender.clone());
        spawn("events", Box::new(move || follow(&source, &out)))?;
        let out = sender.clone();
        spawn(
            "status",
            Box::new(move || {
                for () in requests {
                    let status = run.observe().map(Box::new);
                    // The words of a pod, which may be long.
                    let status =
                        status.map_err(|why| sanitize(&why.to_string(), MESSAGE_BYTES_MAX));
                    if out.send(News::Status(status)).is_err() {
                        return;
                    }
                }
            }),
        )?;
        if has_keys {
            spawn("keys", Box::new(move || read_keys(&sender)))?;
        }
        Ok(Self { news, wanted })
    }
}

/// Passes on the events until the run ends. After an error it asks again from the last event; a new run
/// at the same address refuses that, and begins with its first one.
fn follow(run: &Client, out: &Sender<News>) {
    let mut last = 0;
    loop {
        let after = last;
        let mut is_closed = false;
        let mut each = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            last = event["seq"].as_u64().unwrap_or(last);
            out.send(News::Event(event)).map_err(|_| {
                is_closed = true;
                io::Error::from(io::ErrorKind::BrokenPipe)
            })
        };
        match run.events(after, None, true, &mut each) {
            Ok(()) => {
                // Nobody listens any more if this fails.
                let _ = out.send(News::Ended);
                return;
            }
            Err(_) if is_closed => return,
            // The run does not know the last event.
            Err(error) if error.status() == Some(409) => last = 0,
            Err(_) => {}
        }
        thread::park_timeout(RETRY);
    }
}

fn read_keys(out: &Sender<News>) {
    let mut key = [0];
    while let Ok(1) = rustix::io::read(io::stdin(), &mut key) {
        if out.send(News::Key(key[0])).is_err() {
            return;
        }
    }
}
