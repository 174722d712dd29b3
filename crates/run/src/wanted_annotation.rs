//! Writes how many executors a run wants now into an annotation of the driver's pod: `posse apps` reads it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::debug;
use serde_json::json;

use crate::events::EventLog;
use crate::worker::Worker;
use posse_control::RunHandle;
use posse_core::model::command::{Command, Reply};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::labels::EXECUTORS;
use posse_wire::pod::build::OwnerRef;

/// The thread's stack, bytes.
const STACK_BYTES: usize = 256 << 10;
/// The least time between two looks while something happens.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The least time between two patches: a driver may change its target all the time.
const INTERVAL: Duration = Duration::from_secs(5);
/// How long the thread waits for an event if nothing has changed.
const IDLE: Duration = Duration::from_secs(60);

/// Starts the thread, which ends with the log. `n_told`: what `posse submit` has written.
///
/// # Errors
/// The system cannot start a thread.
pub fn start(
    api: Objects,
    pod: OwnerRef,
    n_told: u64,
    log: Arc<EventLog>,
    core: Arc<dyn RunHandle>,
) -> io::Result<()> {
    let body = move || {
        let (mut n_told, has_changed) = (n_told, Cell::new(false));
        let mut next_at = Instant::now();
        let pause = || {
            if !has_changed.get() {
                return IDLE;
            }
            let left = next_at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return left;
            }
            has_changed.set(false);
            next_at = Instant::now() + LOOK_INTERVAL;
            if let Ok(Reply::Status(status)) = core.ask(Command::View, None) {
                let wanted = status.groups.iter().map(|group| u64::from(group.wanted)).sum();
                if wanted != n_told && tell(&api, &pod, wanted) {
                    (n_told, next_at) = (wanted, Instant::now() + INTERVAL);
                }
            }
            IDLE
        };
        log.for_each(|_, _| has_changed.set(true), pause);
    };
    Worker::start("wanted", STACK_BYTES, body).map(drop)
}

fn tell(api: &Objects, pod: &OwnerRef, wanted: u64) -> bool {
    let annotations = json!({ EXECUTORS: wanted.to_string() });
    let patch = json!({ "metadata": { "uid": pod.uid.to_string(), "annotations": annotations } });
    let told = api.patch(Kind::Pod, &pod.name, &patch);
    told.inspect_err(|refusal| debug!("the driver's pod does not show the target: {refusal}"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use posse_base::clock::Clock;
    use posse_control::Events as _;
    use posse_core::model::event::{Event, RunEvent};
    use posse_kube::api::objects::Objects;
    use posse_testing::{Answer, FakeCore, PATIENCE, TestServer, plain_client, sample_status};

    #[test]
    fn the_pod_shows_what_the_run_wants_if_that_has_changed() {
        let status = sample_status();
        let wanted: u64 = status.groups.iter().map(|group| u64::from(group.wanted)).sum();
        for n_told in [wanted, wanted + 1] {
            let seen = Arc::new(Mutex::new(Vec::new()));
            let patches = Arc::clone(&seen);
            let server = TestServer::start(None, move |seen| {
                assert!(
                    seen.head.starts_with("PATCH /api/v1/namespaces/n/pods/d"),
                    "{}",
                    seen.head
                );
                patches.lock().unwrap().push(seen.body.clone());
                Answer::json(200, "{}")
            });
            let api = Objects::new(plain_client(server.address), Some("n"));
            let pod = OwnerRef::pod("d", "u");
            let log = Arc::new(EventLog::new("r", Clock::start()));
            let core = Arc::new(FakeCore::default());
            core.status.set(status.clone()).unwrap();
            start(api, pod, n_told, Arc::clone(&log), Arc::clone(&core) as Arc<dyn RunHandle>)
                .unwrap();
            assert_eq!(log.newest(), 0);
            log.push(Event::Run(RunEvent::Missed { count: 1 }));
            let until = Instant::now() + PATIENCE;
            let is_done = || match n_told == wanted {
                true => !core.asked.lock().unwrap().is_empty(),
                false => !seen.lock().unwrap().is_empty(),
            };
            while !is_done() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            log.end();
            let bodies = seen
                .lock()
                .unwrap()
                .iter()
                .map(|body| String::from_utf8_lossy(body).into_owned())
                .collect::<Vec<_>>();
            let want = format!(
                r#"{{"metadata":{{"annotations":{{"posse.dev/executors":"{wanted}"}},"uid":"u"}}}}"#
            );
            assert_eq!(bodies, if n_told == wanted { vec![] } else { vec![want] });
        }
    }
}
