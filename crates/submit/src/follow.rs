//! Follows a driver to its end: reads its state, reports changes, waits for the next change. After any
//! connection error it reads the state again.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use jiff::Timestamp;

use crate::changes::{READ_RETRIES, wait_for_change};
use crate::driver_logs::{Chosen, DriverLogs, LOG_END};
use crate::give_up::{Start, try_no_more};
use crate::listener::{FollowEvent, Listener};
use crate::no_pod::{NO_ROOM, last_warning, why_no_pod};
use crate::plan::driver_selector;
use crate::state::{
    exit_code, image_problem, job_end, last_lines, newest, pod_line, reason_and_message,
    starts_since, volume_remedy,
};
use crate::stop::StopRequest;
use crate::workload::Workload;
use posse_base::text::age;
use posse_core::model::pod::ContainerState;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_kube::api::retry::Retries;
use posse_wire::k8s::job::Job;
use posse_wire::k8s::seen_event::pull;
use posse_wire::pod::details::PodDetails;

/// How often a Job without a live pod is read at least, in seconds.
const BETWEEN_S: u32 = 1;
/// How long the Events of a running driver's pod are not read again, in seconds.
const RUNNING_S: u32 = 10;
/// How often a run may be asked without an answer: it needs a moment before it listens.
const ASKS_MAX: u32 = 5;
/// How often at most the age of a pull is told, in seconds.
const PULL_STEP_S: i64 = 10;
/// How long the Events of a pod that is about to start are not read again, in seconds.
const STARTING_S: u32 = 3;
/// How often in a row the server may answer 401 or 403. A change of roles takes effect after a moment.
const FORBIDDEN_MAX: u32 = 5;
/// The subject of the reports on a Job without a live pod.
const NO_POD: &str = "no pod";

/// How a driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEnd {
    /// The driver's exit code; 1 if it failed without one.
    pub code: u8,
    /// Why it ended, if the driver did not end by itself; else empty.
    pub why: String,
}

/// Asks the run in the cluster what its groups wait for; the error says why it cannot be asked.
pub type RunWaits = Box<dyn Fn() -> Result<Vec<String>, String> + Send + Sync>;

/// Follows one driver.
#[expect(missing_debug_implementations, reason = "a closure has none")]
pub struct Follower {
    pub objects: Objects,
    pub app: String,
    /// Whether a Job or a bare Pod runs the driver.
    pub kind: Kind,
    pub name: String,
    pub uid: String,
    /// Report its log too.
    pub logs: bool,
    /// Only this many lines from the end of the first pod's log.
    pub tail: Option<u32>,
    /// How long a driver that does not start may miss its image, zero: for ever; `None`: it is only watched.
    pub gives_up: Option<Duration>,
    /// For a run that may write no Events.
    pub run_waits: Option<RunWaits>,
}

/// The state of a driver at one time.
struct Observation {
    /// `None` if it was deleted; also if another object has the name now.
    workload: Option<Workload>,
    pods: Vec<PodDetails>,
    version: String,
}

/// What has been reported already.
#[derive(Default)]
struct Reported {
    lines: BTreeMap<String, String>,
    failed: u64,
    /// The exit code of the newest pod.
    code: Option<u8>,
    /// How often the run in the newest pod may still be asked without an answer.
    n_asks: u32,
}

impl Follower {
    /// Follows the driver to its end. `None` if the listener wants no more reports.
    ///
    /// # Errors
    /// We are not permitted to read the driver's state.
    pub fn follow(&self, listener: Listener<'_>) -> Result<Option<DriverEnd>, Refusal> {
        let (mut driver_logs, logs) = DriverLogs::new(&self.objects);
        let (done_sender, done) = bounded::<()>(1);
        thread::scope(|scope| {
            let mut tail = self.tail;
            let read = move || {
                for log in &logs {
                    log.read(listener, tail.take());
                }
                drop(done_sender);
            };
            if let Err(error) =
                thread::Builder::new().name("log".to_owned()).spawn_scoped(scope, read)
            {
                log::warn!("the driver's log is not shown: {error}");
            }
            let driver_end = self.observe_to_the_end(listener, &mut driver_logs);
            let chosen = driver_logs.close();
            if done.recv_timeout(LOG_END) == Err(RecvTimeoutError::Timeout) {
                if matches!(driver_end, Ok(Some(_))) {
                    log::warn!(
                        "the driver's log is not shown to its end: the server did not send the rest within {} s",
                        LOG_END.as_secs()
                    );
                }
                chosen.iter().for_each(Chosen::end);
            }
            driver_end
        })
    }

    fn observe_to_the_end(
        &self,
        listener: Listener<'_>,
        logs: &mut DriverLogs,
    ) -> Result<Option<DriverEnd>, Refusal> {
        let n_asks = if self.run_waits.is_some() { ASKS_MAX } else { 0 };
        let mut reported = Reported { n_asks, ..Reported::default() };
        let mut start = Start::default();
        let (mut retries, mut n_refused) = (Retries::new(READ_RETRIES), 0);
        loop {
            let observation = match self.observe() {
                Ok(observation) => observation,
                Err(refusal) => {
                    let is_forbidden = matches!(
                        refusal.class,
                        RefusalClass::Forbidden | RefusalClass::Unauthorized
                    );
                    n_refused = if is_forbidden { n_refused + 1 } else { 0 };
                    if n_refused == FORBIDDEN_MAX {
                        return Err(refusal);
                    }
                    let line = format!("its state cannot be read: {refusal}; trying again");
                    if !reported.report(listener, "state", line) {
                        return Ok(None);
                    }
                    retries.wait(refusal.retry_after_ms);
                    continue;
                }
            };
            retries.on_success();
            n_refused = 0;
            reported.lines.remove("state");
            if !self.report(&observation, &mut reported, listener, logs) {
                return Ok(None);
            }
            if let Some(driver_end) = self.driver_end(&observation, &reported) {
                return Ok(Some(driver_end));
            }
            if let Some(driver_end) = self.give_up(&observation, &reported, &mut start, listener) {
                return Ok(Some(driver_end));
            }
            self.wait_for_change(&observation, reported.n_asks > 0);
        }
    }

    fn observe(&self) -> Result<Observation, Refusal> {
        let workload = Workload::get(&self.objects, self.kind, &self.name)?;
        let workload = workload.filter(|workload| workload.meta().uid == self.uid);
        if let Some(Workload::Pod(pod)) = &workload {
            let version = pod.meta.resource_version.clone();
            return Ok(Observation { pods: vec![(**pod).clone()], version, workload });
        }
        let (mut pods, version) = self.objects.pods(&driver_selector(Some(&self.app)))?;
        pods.retain(|pod| pod.meta.is_owned_by(&self.uid));
        Ok(Observation { workload, pods, version })
    }

    /// Reports changes. False if the listener wants no more.
    fn report(
        &self,
        observation: &Observation,
        reported: &mut Reported,
        listener: Listener<'_>,
        logs: &mut DriverLogs,
    ) -> bool {
        let mut listens = true;
        for pod in &observation.pods {
            let about = format!("{} {}", pod.uid(), image_problem(pod).unwrap_or_default());
            listens &= reported.report(listener, &about, pod_line(pod));
            if let Some(line) = self.why_no_start(pod) {
                listens &= reported.report(listener, &format!("{} start", pod.uid()), line);
            }
            if let Some(line) = self.why_run_waits(pod, &mut reported.n_asks) {
                listens &= reported.report(listener, &format!("{} run", pod.uid()), line);
            }
            let last_lines = if self.logs { Vec::new() } else { last_lines(pod) };
            for (i, line) in last_lines.iter().enumerate() {
                let about = format!("{} {i}", pod.uid());
                listens &= reported.report(listener, &about, format!("{}: {line}", pod.name()));
            }
        }
        if self.logs {
            logs.update(&observation.pods);
        }
        if let Some(pod) = newest(&observation.pods) {
            reported.code = exit_code(pod).or(reported.code);
        }
        let Some(Workload::Job(job)) = &observation.workload else { return listens };
        let n_failed = job.status.failed;
        if n_failed > reported.failed {
            reported.failed = n_failed;
            let line = format!("job {}: {n_failed} of its pods failed or were lost", self.name);
            listens &= reported.report(listener, "job", line);
        }
        if let Some(line) = why_no_pod(&self.objects, job, &observation.pods) {
            listens &= reported.report(listener, NO_POD, line);
        }
        listens
    }

    /// What keeps a node from starting the pod's containers, such as a volume: only an Event tells it. Or how long it has
    /// pulled an image.
    fn why_no_start(&self, pod: &PodDetails) -> Option<String> {
        let since = starts_since(pod)?;
        if let Some(why) = last_warning(&self.objects, pod.uid(), |seen| seen >= since) {
            return Some(format!("pod {} does not start: {why}{}", pod.name(), volume_remedy(pod)));
        }
        let events = self.objects.events(pod.uid()).unwrap_or_default();
        let (pulls, seconds) = pull(&events, Timestamp::now())?;
        let seconds = seconds / PULL_STEP_S * PULL_STEP_S;
        (seconds > 0).then(|| format!("pod {}: {pulls}, for {} so far", pod.name(), age(seconds)))
    }

    /// What the run in a running pod waits for, as its own Events tell it. Until it waits for nothing, a run without
    /// Events is asked.
    fn why_run_waits(&self, pod: &PodDetails, n_asks: &mut u32) -> Option<String> {
        if !pod.is_live() || pod.facts.container != ContainerState::Running {
            return None;
        }
        let told = last_warning(&self.objects, pod.uid(), |_| true);
        let asked = || {
            let ask = self.run_waits.as_ref().filter(|_| *n_asks > 0)?;
            match ask() {
                Ok(waits) if waits.is_empty() => *n_asks = 0,
                Ok(waits) => return Some(waits.join("; ")),
                Err(why) => {
                    log::debug!("the run cannot be asked what it waits for: {why}");
                    *n_asks -= 1;
                }
            }
            None
        };
        Some(format!("pod {}: {}", pod.name(), told.or_else(asked)?))
    }

    /// Ends a driver that cannot start.
    fn give_up(
        &self,
        observation: &Observation,
        reported: &Reported,
        start: &mut Start,
        listener: Listener<'_>,
    ) -> Option<DriverEnd> {
        let (limit, workload) = (self.gives_up?, observation.workload.as_ref()?);
        let tell = |line: String| listener(FollowEvent::Line(line));
        for line in start.end_rests(&self.objects, &observation.pods) {
            tell(line);
        }
        if reported.lines.get(NO_POD).is_some_and(|line| line.contains(NO_ROOM)) {
            let done = start.make_room(&self.objects, &self.app, &observation.pods);
            if let Some(line) = done {
                tell(line);
            }
        }
        if self.kind == Kind::Job && start.is_hopeless(&observation.pods) {
            match try_no_more(&self.objects, workload.meta()) {
                Ok(()) => {
                    tell(format!("job {}: it does not try again what cannot start", self.name))
                }
                Err(refusal) => tell(format!("job {} tries again: {refusal}", self.name)),
            };
        }
        let line = start.missing_image(&observation.pods, limit, Instant::now())?;
        tell(line);
        let why = format!("no image for {} s", limit.as_secs());
        let removed = StopRequest::new(&self.objects, &self.app, None);
        let why = match removed.and_then(|request| request.finish()) {
            Ok(_) => format!("{why}; the application is removed"),
            Err(refusal) => {
                format!("{why}; `posse stop {}` removes it, because: {refusal}", self.app)
            }
        };
        Some(DriverEnd { code: 1, why })
    }

    fn driver_end(&self, observation: &Observation, reported: &Reported) -> Option<DriverEnd> {
        let Some(workload) = &observation.workload else {
            let why = format!("{} {} was deleted", self.kind.word(), self.name);
            return Some(DriverEnd { code: reported.code.unwrap_or(1), why });
        };
        // The Job's own code comes first: the controller deletes the pod of a Job that posse ends.
        let code = workload.job().and_then(Job::exit_code).or(reported.code);
        let failed_code = code.filter(|code| *code != 0).unwrap_or(1);
        let (succeeded, why) = match workload {
            Workload::Job(job) => job_end(job, &observation.pods)?,
            Workload::Pod(pod) if pod.has_ended() => {
                (pod.has_succeeded(), reason_and_message(&pod.status.reason, &pod.status.message))
            }
            Workload::Pod(_) => return None,
        };
        Some(DriverEnd { code: if succeeded { 0 } else { failed_code }, why })
    }

    /// Waits until something may have changed.
    fn wait_for_change(&self, observation: &Observation, asks: bool) {
        let seconds = match observation.pods.iter().any(PodDetails::is_live) {
            // An Event is no change of the pod.
            true if asks || observation.pods.iter().any(|pod| starts_since(pod).is_some()) => {
                STARTING_S
            }
            true => RUNNING_S,
            // The Job finishes, which no pod shows, or its controller creates another pod, whose log may
            // be gone soon.
            false => BETWEEN_S,
        };
        let selector = driver_selector(Some(&self.app));
        wait_for_change(&self.objects, &selector, &observation.version, seconds);
    }
}

impl Reported {
    /// Reports a line if it differs from the last one about the same subject. False if the listener
    /// wants no more.
    fn report(&mut self, listener: Listener<'_>, about: &str, line: String) -> bool {
        if self.lines.get(about) == Some(&line) {
            return true;
        }
        self.lines.insert(about.to_owned(), line.clone());
        listener(FollowEvent::Line(line))
    }
}
