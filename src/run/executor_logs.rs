//! `--executor-logs`: prints what the executors of a run write, while it runs.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use posse_base::text::printable;
use posse_kube::api::objects::Objects;
use posse_kube::http::{Http, StreamHandle};
use posse_run::run::settings::RunSettings;
use posse_submit::executor_logs::ExecutorLogs;
use posse_submit::listener::FollowEvent;

/// How long the last lines may take after the end of the run.
const LAST_LINES: Duration = Duration::from_millis(500);

/// The thread that prints the logs.
pub(super) struct ExecutorLogPrinter {
    is_over: Arc<AtomicBool>,
    streams: StreamHandle,
    ended: Receiver<()>,
}

impl ExecutorLogPrinter {
    /// Starts printing to stderr.
    pub(super) fn start(http: &Http, namespace: &str, of: &RunSettings) -> io::Result<Self> {
        let (objects, streams) = Objects::new(http.clone(), Some(namespace)).with_own_streams();
        let (app, instance) = (of.app.clone(), of.instance.clone());
        let logs = ExecutorLogs { objects, app, instance, group: None, tail: None };
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, (sender, ended)) = (Arc::clone(&is_over), channel());
        let read = move || {
            let _sender = sender;
            let print = |event: FollowEvent| {
                if let FollowEvent::Log(line) = event {
                    let text = String::from_utf8_lossy(&line);
                    // Without stderr there is nobody to tell.
                    let _ = io::stderr().write_all(printable(&text).as_bytes());
                }
                !over.load(Ordering::Acquire)
            };
            if let Err(refusal) = logs.follow(&print, &|| over.load(Ordering::Acquire)) {
                log::warn!("the executors' logs are not shown: {refusal}");
            }
        };
        thread::Builder::new().name("executor-logs".to_owned()).spawn(read)?;
        Ok(Self { is_over, streams, ended })
    }

    /// Waits for the last lines.
    pub(super) fn stop(self) {
        self.is_over.store(true, Ordering::Release);
        // An error means that the thread has ended.
        let _ = self.ended.recv_timeout(LAST_LINES);
        self.streams.shutdown();
    }
}
