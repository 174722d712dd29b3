//! Reads the logs of an application's executors side by side, each line with its executor in front.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::changes::{READ_RETRIES, WATCH_S, wait_for_change};
use crate::listener::{FollowEvent, Listener};
use crate::logs::LogFollower;
use crate::state::has_begun;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::Objects;
use posse_kube::api::retry::Retries;
use posse_wire::k8s::labels::{EXECUTOR_ID, GROUP, INSTANCE, executor_selector};
use posse_wire::pod::details::PodDetails;

/// Logs that are read at the same time; each has a thread and a connection.
const READERS_MAX: usize = 200;
/// How long the end of the run may be missed, in seconds.
const END_S: u32 = 2;
const STACK_BYTES: usize = 256 << 10;

/// Which logs to read.
#[derive(Clone, Debug)]
pub struct ExecutorLogs {
    pub objects: Objects,
    pub app: String,
    /// Only those of this run; none: of all runs of the application.
    pub instance: Option<String>,
    pub group: Option<String>,
    /// Only this many lines from the end of each log.
    pub tail: Option<u32>,
}

/// One executor whose log can be read.
struct Source {
    pod: String,
    uid: String,
    prefix: String,
}

impl ExecutorLogs {
    /// Reads the logs that exist, one after the other. Gives the number of executors, and of those whose log could be
    /// read.
    ///
    /// # Errors
    /// The executors cannot be listed.
    pub fn read(&self, listener: Listener<'_>) -> Result<(usize, usize), Refusal> {
        let (pods, _) = self.objects.pods(&self.selector())?;
        let is_ended = AtomicBool::new(false);
        let mut n_read = 0;
        for source in pods.iter().filter(|pod| has_begun(pod)).map(source) {
            if is_ended.load(Ordering::Acquire) {
                break;
            }
            let listener = &|event| source.report(event, listener, &is_ended);
            let follower = self.log_follower(listener, &is_ended, &|| false);
            n_read += usize::from(follower.read_once(&source.pod));
        }
        Ok((pods.len(), n_read))
    }

    /// Reads the logs, and those of new executors, side by side until `is_over` and all are read.
    ///
    /// # Errors
    /// We are not permitted to list the executors.
    pub fn follow(
        &self,
        listener: Listener<'_>,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Refusal> {
        let (is_ended, n_readers) = (&AtomicBool::new(false), &AtomicUsize::new(0));
        let (mut known, mut is_limit_told) = (BTreeSet::new(), false);
        let mut retries = Retries::new(READ_RETRIES);
        thread::scope(|scope| {
            while !is_ended.load(Ordering::Acquire) {
                let (sources, version) = match self.sources() {
                    Ok(found) => found,
                    Err(refusal) if refusal.class == RefusalClass::Forbidden => {
                        is_ended.store(true, Ordering::Release);
                        return Err(refusal);
                    }
                    Err(_) if is_over() => return Ok(()),
                    Err(refusal) => {
                        log::debug!("the executors cannot be listed: {refusal}");
                        retries.wait(refusal.retry_after_ms);
                        continue;
                    }
                };
                retries.on_success();
                // Pods that stay behind were read to their end.
                let is_read = sources.iter().all(|source| known.contains(&source.uid));
                let is_idle = is_read && n_readers.load(Ordering::Acquire) == 0;
                if is_idle && is_over() {
                    return Ok(());
                }
                for source in sources {
                    if known.contains(&source.uid) {
                        continue;
                    }
                    if n_readers.load(Ordering::Acquire) >= READERS_MAX {
                        if !std::mem::replace(&mut is_limit_told, true) {
                            log::warn!(
                                "{READERS_MAX} logs are read at the same time; another one begins \
                                 when one of these has ended"
                            );
                        }
                        break;
                    }
                    known.insert(source.uid.clone());
                    n_readers.fetch_add(1, Ordering::AcqRel);
                    let read = move || {
                        let listener = &|event| source.report(event, listener, is_ended);
                        self.log_follower(listener, is_ended, is_over).follow(&source.pod);
                        n_readers.fetch_sub(1, Ordering::AcqRel);
                    };
                    let builder = thread::Builder::new().name("log".to_owned());
                    if let Err(error) = builder.stack_size(STACK_BYTES).spawn_scoped(scope, read) {
                        n_readers.fetch_sub(1, Ordering::AcqRel);
                        log::warn!("an executor's log is not shown: {error}");
                    }
                }
                self.wait(&version, &|| n_readers.load(Ordering::Acquire) == 0 && is_over());
            }
            Ok(())
        })
    }

    /// Waits for a change of the pods, or for the end, which changes none.
    fn wait(&self, version: &str, is_over: &dyn Fn() -> bool) {
        for _ in 0..WATCH_S / END_S {
            if wait_for_change(&self.objects, &self.selector(), version, END_S) || is_over() {
                return;
            }
        }
    }

    fn log_follower<'a>(
        &self,
        listener: Listener<'a>,
        is_ended: &'a AtomicBool,
        is_over: &'a (dyn Fn() -> bool + Sync),
    ) -> LogFollower<'a> {
        LogFollower { objects: self.objects.clone(), listener, tail: self.tail, is_ended, is_over }
    }

    /// The executors that have started, and the version of the list.
    fn sources(&self) -> Result<(Vec<Source>, String), Refusal> {
        let (pods, version) = self.objects.pods(&self.selector())?;
        Ok((pods.iter().filter(|pod| has_begun(pod)).map(source).collect(), version))
    }

    fn selector(&self) -> String {
        let mut selector = executor_selector(&self.app);
        for (label, value) in [(INSTANCE, &self.instance), (GROUP, &self.group)] {
            if let Some(value) = value {
                selector.push_str(&format!(",{label}={value}"));
            }
        }
        selector
    }
}

impl Source {
    /// Passes an event on, with the executor in front of a line of the log. If the listener wants no
    /// more, all readers end.
    fn report(&self, event: FollowEvent, listener: Listener<'_>, is_ended: &AtomicBool) -> bool {
        let event = match event {
            FollowEvent::Log(line) => {
                let mut whole = self.prefix.clone().into_bytes();
                whole.extend_from_slice(&line);
                if !whole.ends_with(b"\n") {
                    whole.push(b'\n');
                }
                FollowEvent::Log(whole)
            }
            line @ FollowEvent::Line(_) => line,
        };
        let goes_on = listener(event);
        if !goes_on {
            is_ended.store(true, Ordering::Release);
        }
        goes_on
    }
}

fn source(pod: &PodDetails) -> Source {
    let label = |name: &str| pod.meta.label(name).unwrap_or("?");
    Source {
        pod: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        prefix: format!("[{}/{}] ", label(GROUP), label(EXECUTOR_ID)),
    }
}
