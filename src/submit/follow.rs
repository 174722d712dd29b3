//! Owns following a driver to its end: looks, says what changed, waits for the next change. A cut
//! connection, a version that is too old, a server that is away only make it look again.

use std::collections::BTreeMap;
use std::io::BufRead as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde_json::Value;

use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::objects::{Kind, Objects};
use crate::submit::listener::{FollowEvent, Listener};
use crate::submit::logs::LogFollower;
use crate::submit::plan::driver_selector;
use crate::submit::state::{
    State, exit_code, has_begun, is_final, job_end, name_of, newest, pod_line, reason_and_message,
    state, uid_of,
};
use crate::submit::workload::is_owned;

/// How long a watch of the pods may wait for a change.
const WATCH_S: u32 = 30;
/// Changes that come so soon after one another are looked at once.
const SETTLE: Duration = Duration::from_millis(100);
/// How often a Job is looked at whose pod tells nothing more.
const POLL: Duration = Duration::from_millis(500);
/// The first wait after a server did not answer, and the longest.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// So often in a row may the server refuse our rights: a change of roles takes a moment.
const NOT_ALLOWED_MAX: u32 = 5;
/// What the end of a log may take once the driver is over.
const LOG_END: Duration = Duration::from_secs(10);
/// Pods that may wait for their logs to be read.
const PODS_MAX: usize = 100;
/// The longest line of a watch that is read to its end, bytes.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The driver's own exit code; 1 where it left none and did not end well.
    pub code: u8,
    /// Why it is over, where that is not the driver's own end.
    pub why: String,
}

/// One driver.
#[derive(Debug)]
pub struct Follower {
    pub objects: Objects,
    pub app: String,
    /// What keeps its pods: a Job, or the pod itself.
    pub kind: Kind,
    pub name: String,
    pub uid: String,
    /// Read its log, too.
    pub logs: bool,
    /// Of the first pod's log only the last so many lines.
    pub tail: Option<u32>,
}

/// What one look shows.
struct Look {
    /// None: it is gone, or another has its name.
    workload: Option<Value>,
    pods: Vec<Value>,
    version: String,
}

/// What was said already.
#[derive(Default)]
struct Memory {
    lines: BTreeMap<String, String>,
    failed: u64,
    /// The code of the pod that was made last.
    code: Option<u8>,
    has_logs_of: Vec<String>,
}

impl Follower {
    /// Follows it to its end. None where nobody listens any more.
    ///
    /// # Errors
    /// The server's refusal to let us look.
    pub fn follow(&self, say: Listener<'_>) -> Result<Option<Ending>, Refusal> {
        let (sender, pods) = bounded::<String>(PODS_MAX);
        let (done_sender, done) = bounded::<()>(1);
        let (log_objects, streams) = self.objects.with_own_streams();
        let is_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            if self.logs {
                let (tail, is_ended) = (self.tail, &is_ended);
                let mut reader = LogFollower { objects: log_objects, say, tail, is_ended };
                let read = move || {
                    for pod in &pods {
                        reader.follow(&pod);
                        reader.tail = None;
                    }
                    drop(done_sender);
                };
                if let Err(error) =
                    thread::Builder::new().name("log".to_owned()).spawn_scoped(scope, read)
                {
                    log::warn!("the driver's log is not read: {error}");
                }
            } else {
                drop((pods, done_sender));
            }
            let ending = self.look_to_the_end(say, &sender);
            drop(sender);
            if done.recv_timeout(LOG_END) == Err(RecvTimeoutError::Timeout) {
                is_ended.store(true, Ordering::Release);
                streams.shutdown();
            }
            ending
        })
    }

    fn look_to_the_end(
        &self,
        say: Listener<'_>,
        logs: &Sender<String>,
    ) -> Result<Option<Ending>, Refusal> {
        let mut memory = Memory::default();
        let (mut wait, mut n_refused) = (BACKOFF, 0);
        loop {
            let look = match self.look() {
                Ok(look) => look,
                Err(refusal) => {
                    let is_rights = matches!(
                        refusal.class,
                        RefusalClass::Forbidden | RefusalClass::Unauthorized
                    );
                    n_refused = if is_rights { n_refused + 1 } else { 0 };
                    if n_refused == NOT_ALLOWED_MAX {
                        return Err(refusal);
                    }
                    let line = format!("it cannot be looked at: {refusal}; trying again");
                    if !memory.say(say, "look", line) {
                        return Ok(None);
                    }
                    thread::park_timeout(wait);
                    wait = (wait * 2).min(BACKOFF_MAX);
                    continue;
                }
            };
            (wait, n_refused) = (BACKOFF, 0);
            memory.lines.remove("look");
            if !self.tell(&look, &mut memory, say, logs) {
                return Ok(None);
            }
            if let Some(ending) = self.ending(&look, &memory) {
                return Ok(Some(ending));
            }
            self.wait_for_change(&look);
        }
    }

    fn look(&self) -> Result<Look, Refusal> {
        let workload = self.objects.get(self.kind, &self.name)?;
        let workload = workload.filter(|object| uid_of(object) == self.uid);
        if self.kind == Kind::Pod {
            return Ok(Look {
                pods: workload.iter().cloned().collect(),
                version: version_of(&workload),
                workload,
            });
        }
        let (mut pods, version) =
            self.objects.list(Kind::Pod, &driver_selector(Some(&self.app)), &|pod| pod)?;
        pods.retain(|pod| is_owned(pod, &self.uid));
        Ok(Look { workload, pods, version })
    }

    /// Says what is new; false once nobody listens.
    fn tell(
        &self,
        look: &Look,
        memory: &mut Memory,
        say: Listener<'_>,
        logs: &Sender<String>,
    ) -> bool {
        let mut listens = true;
        for pod in &look.pods {
            listens &= memory.say(say, uid_of(pod), pod_line(pod));
            if self.logs
                && has_begun(pod)
                && !memory.has_logs_of.iter().any(|uid| uid == uid_of(pod))
            {
                memory.has_logs_of.push(uid_of(pod).to_owned());
                if logs.try_send(name_of(pod).to_owned()).is_err() {
                    log::warn!("the log of pod {} is not read: too many wait", name_of(pod));
                }
            }
        }
        if let Some(pod) = newest(&look.pods) {
            memory.code = exit_code(pod).or(memory.code);
        }
        let Some(job) = look.workload.as_ref().filter(|_| self.kind == Kind::Job) else {
            return listens;
        };
        let n_failed = job["status"]["failed"].as_u64().unwrap_or(0);
        if n_failed > memory.failed {
            memory.failed = n_failed;
            let n_tries = job["spec"]["backoffLimit"].as_u64().unwrap_or(0).saturating_add(1);
            let line = format!("job {}: {n_failed} of {n_tries} tries failed", self.name);
            listens &= memory.say(say, "job", line);
        }
        if look.pods.is_empty() && state(Some(job), &[]) == State::Pending {
            listens &= memory.say(say, "no pod", self.why_no_pod());
        }
        listens
    }

    /// What was last recorded about a Job that has no pod.
    fn why_no_pod(&self) -> String {
        let events = self.objects.events(&self.uid).unwrap_or_default();
        let warnings = events.iter().filter(|event| event["type"] == "Warning");
        let last = warnings.max_by_key(|event| {
            let seen = [&event["lastTimestamp"], &event["metadata"]["creationTimestamp"]];
            seen.iter().find_map(|time| time.as_str()).unwrap_or_default().to_owned()
        });
        match last.map(reason_and_message) {
            Some(why) => format!("job {} has no pod: {why}", self.name),
            None => format!("job {} has no pod yet", self.name),
        }
    }

    fn ending(&self, look: &Look, memory: &Memory) -> Option<Ending> {
        let Some(workload) = &look.workload else {
            let why = format!("{} {} was removed", self.kind.word(), self.name);
            return Some(Ending { code: memory.code.unwrap_or(1), why });
        };
        let failed_code = memory.code.filter(|code| *code != 0).unwrap_or(1);
        if self.kind == Kind::Pod {
            let ended = is_final(workload).then(|| workload["status"]["phase"] == "Succeeded")?;
            let code = if ended { 0 } else { failed_code };
            return Some(Ending { code, why: reason_and_message(&workload["status"]) });
        }
        job_end(workload).map(|(is_well, why)| {
            let code = if is_well { 0 } else { failed_code };
            Ending { code, why }
        })
    }

    /// Waits until something may have changed.
    fn wait_for_change(&self, look: &Look) {
        let has_live = look.pods.iter().any(|pod| !is_final(pod));
        if !has_live {
            // The Job's own word is awaited, or another pod.
            return thread::park_timeout(POLL);
        }
        let asked = Instant::now();
        let selector = driver_selector(Some(&self.app));
        let changed = self.objects.watch(Kind::Pod, &selector, &look.version, WATCH_S);
        let told = changed.map(|mut stream| {
            let mut line = Vec::new();
            let mut reader = std::io::Read::take(stream.reader(), LINE_BYTES_MAX);
            reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0)
        });
        match told {
            Ok(true) => thread::park_timeout(SETTLE),
            // A clean end says nothing; one that comes at once must not make us turn in a circle.
            Ok(false) => thread::park_timeout(BACKOFF.saturating_sub(asked.elapsed())),
            Err(refusal) => {
                log::debug!("no watch of the driver's pods: {refusal}");
                thread::park_timeout(BACKOFF);
            }
        }
    }
}

impl Memory {
    /// Says a line where it differs from the last one about the same; false once nobody listens.
    fn say(&mut self, say: Listener<'_>, about: &str, line: String) -> bool {
        if self.lines.get(about) == Some(&line) {
            return true;
        }
        self.lines.insert(about.to_owned(), line.clone());
        say(FollowEvent::Line(line))
    }
}

fn version_of(workload: &Option<Value>) -> String {
    let version =
        workload.as_ref().and_then(|object| object["metadata"]["resourceVersion"].as_str());
    version.unwrap_or("0").to_owned()
}
