//! The threads that read a run's status and events for `posse status --watch`, so that a run that does
//! not answer never delays a key.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::Value;

use crate::control_client::FoundRun;
use crate::exit::{Code, Failure};
use crate::remote::Words;
use posse_base::text::sanitize;
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

/// The most bytes of one answer of a driver's pod.
const ANSWER_BYTES_MAX: usize = 64 << 20;

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
    pub(super) fn start(run: FoundRun, has_keys: bool) -> io::Result<Self> {
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
                    let status = status(&run).map(Box::new);
                    // The words of a pod, which may be long.
                    let status = status.map_err(|why| sanitize(&why.message, MESSAGE_BYTES_MAX));
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
fn follow(run: &FoundRun, out: &Sender<News>) {
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
        match events(run, after, &mut each) {
            Ok(()) => {
                // Nobody listens any more if this fails.
                let _ = out.send(News::Ended);
                return;
            }
            Err(_) if is_closed => return,
            Err(Refusal::Unknown) => last = 0,
            Err(Refusal::Cut) => {}
        }
        thread::park_timeout(RETRY);
    }
}

/// Why there are no more events now.
enum Refusal {
    /// The run does not know the last event.
    Unknown,
    Cut,
}

fn events(
    run: &FoundRun,
    after: u64,
    each: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<(), Refusal> {
    match run {
        FoundRun::Here(client) => {
            client.events(after, None, true, each).map_err(|error| match error.status() {
                Some(409) => Refusal::Unknown,
                Some(_) | None => Refusal::Cut,
            })
        }
        FoundRun::InCluster(run) => {
            let words = Words::new("events")
                .flag("--follow", true)
                .flag("--json", true)
                .option("--after", Some(after));
            let mut lines = Lines { rest: Vec::new(), each };
            match run.exec(words, &mut lines, &mut io::sink()) {
                Ok(Code::Clean) => Ok(()),
                Ok(_) => Err(Refusal::Unknown),
                Err(_) => Err(Refusal::Cut),
            }
        }
    }
}

fn status(run: &FoundRun) -> Result<StatusJson, Failure> {
    match run {
        FoundRun::Here(client) => Ok(client.observe()?),
        FoundRun::InCluster(run) => {
            let (mut answer, mut errors) = (Limited::default(), Limited::default());
            let words = Words::new("status").flag("--json", true).flag("--observe", true);
            let code = run.exec(words, &mut answer, &mut errors)?;
            StatusJson::parse(&answer.0).map_err(|_| {
                let said = String::from_utf8_lossy(&errors.0).trim().to_owned();
                Failure::new(code, format!("the driver's pod gave no status: {said}"))
            })
        }
    }
}

/// Passes on whole lines.
struct Lines<'a> {
    rest: Vec<u8>,
    each: &'a mut dyn FnMut(&str) -> io::Result<()>,
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.rest.len() + bytes.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            (self.each)(String::from_utf8_lossy(&line[..end]).trim_end())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes up to a limit.
#[derive(Default)]
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_lines() {
        let mut seen = Vec::new();
        let mut each = |line: &str| {
            seen.push(line.to_owned());
            Ok(())
        };
        let mut lines = Lines { rest: Vec::new(), each: &mut each };
        for piece in [&b"on"[..], b"e\ntwo\n", b"", b"thr"] {
            lines.write_all(piece).unwrap();
        }
        assert_eq!(seen, ["one", "two"]);
    }
}
