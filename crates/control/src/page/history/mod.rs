//! The past of a run, for its page: one record for each executor from its request to its end, and the
//! numbers over time. Limited: the executors that exist, the last that ended, a fixed number of samples.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use posse_base::sync::lock;
use posse_base::text::sanitize;
use posse_base::time::Millis;
use posse_core::model::event::{Budget, Event, ExecutorEvent, GroupEvent, Subject};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::status::{ExecutorStatus, State, Status};
use posse_wire::control::history_json::{EndJson, RecordJson, SampleJson};

/// The past of one run. One thread records its events; those who show it add what the status knows.
#[derive(Debug)]
pub struct History(Mutex<Recorded>);

#[derive(Debug)]
struct Recorded {
    /// Grows with each change. Readers ask for what changed after the version that they have.
    version: u64,
    executors: BTreeMap<ExecutorId, Record>,
    /// The executors that have ended, in the order of their ends.
    ended: VecDeque<ExecutorId>,
    /// Executors whose creates posse took back. They stay for a while, so that readers forget them too.
    gone: VecDeque<ExecutorId>,
    /// The highest version of a record that was removed. Who has an older version starts again.
    removed_version: u64,
    /// All that have ended, also those that are not kept.
    n_ended: u64,
    /// Executors that the last status did not show, although no event told their end.
    n_missing: usize,
    targets: BTreeMap<GroupName, u32>,
    counts: Counts,
    samples: Samples,
}

/// One executor.
#[derive(Debug)]
struct Record {
    changed: u64,
    group: GroupName,
    /// Before its end.
    state: State,
    /// When it entered this state.
    since: Millis,
    /// `None`: before this process.
    requested: Option<Millis>,
    running: Option<Millis>,
    node: Option<Box<str>>,
    end: Option<Box<EndJson>>,
    /// Since when the status has not shown it, although no event told its end.
    missing: Option<Millis>,
}

/// The executors that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    running: u32,
    starting: u32,
}

/// The target and the executors at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    changed: u64,
    at: Millis,
    target: u64,
    counts: Counts,
}

/// A sample for each change, at most one in each interval. The interval doubles if there are too many.
#[derive(Debug)]
struct Samples {
    points: Vec<Sample>,
    interval_ms: u64,
}

impl History {
    /// The history of a run whose groups start with these targets.
    pub fn new(targets: impl IntoIterator<Item = (GroupName, u32)>) -> Self {
        let mut recorded = Recorded {
            version: 0,
            executors: BTreeMap::new(),
            ended: VecDeque::new(),
            gone: VecDeque::new(),
            removed_version: 0,
            n_ended: 0,
            n_missing: 0,
            targets: targets.into_iter().collect(),
            counts: Counts::default(),
            samples: Samples { points: Vec::new(), interval_ms: SAMPLE_INTERVAL_MIN_MS },
        };
        recorded.next_version();
        recorded.take_sample(Millis::ZERO);
        Self(Mutex::new(recorded))
    }

    /// Adds an event. Events come in their order, some may be missing.
    pub fn record(&self, at: Millis, event: &Event) {
        lock(&self.0).record(at, event);
    }

    /// Adds what events do not tell: states, and executors that posse found at its start.
    pub fn observe(&self, status: &Status, now: Millis) {
        lock(&self.0).observe(status, now);
    }

    /// True if only the status tells how it goes on: the events do not tell when posse takes a create back.
    pub fn needs_status(&self) -> bool {
        let recorded = lock(&self.0);
        recorded.counts.starting > 0 || recorded.n_missing > 0
    }

    /// Calls `read` with what changed after version `since`; 0 reads everything. `None`: there is no such
    /// version, or it is too old.
    pub fn read<T>(&self, since: u64, read: impl FnOnce(Changes<'_>) -> T) -> Option<T> {
        let recorded = lock(&self.0);
        if since > recorded.version || (since > 0 && since < recorded.removed_version) {
            return None;
        }
        let records = recorded.executors.iter().filter(|(_, record)| record.changed > since);
        let samples = recorded.samples.points.iter().filter(|sample| sample.changed > since);
        Some(read(Changes {
            version: recorded.version,
            executors: records.map(|(id, record)| record.json(*id)).collect(),
            n_ended: recorded.n_ended,
            samples: samples.map(Sample::json).collect(),
        }))
    }
}

/// What changed after some version.
#[derive(Debug)]
pub struct Changes<'a> {
    /// The version that this leads to.
    pub version: u64,
    pub executors: Vec<RecordJson<'a>>,
    /// All executors that have ended; at most `ENDED_KEPT` of them are kept.
    pub n_ended: u64,
    pub samples: Vec<SampleJson>,
}

impl Recorded {
    fn next_version(&mut self) {
        self.version += 1;
    }

    fn record(&mut self, at: Millis, event: &Event) {
        self.next_version();
        match event {
            Event::Executor(subject, event) => self.record_executor(at, subject, event),
            Event::Group(group, GroupEvent::TargetChanged { target }) => {
                self.targets.insert(group.clone(), *target);
            }
            Event::Run(_) | Event::Cluster(_) | Event::Group(..) => {}
        }
        self.take_sample(at);
    }

    fn record_executor(&mut self, at: Millis, subject: &Subject, event: &ExecutorEvent) {
        match event {
            ExecutorEvent::Requested => self.change(subject, at, |one| {
                one.state = State::Requested;
                one.requested = Some(at);
            }),
            ExecutorEvent::Running { node, requested_at, .. } => self.change(subject, at, |one| {
                one.state = State::Running;
                one.requested = one.requested.or(*requested_at);
                one.running = Some(at);
                one.set_node(node.as_deref());
            }),
            ExecutorEvent::Draining { .. } => {
                self.change(subject, at, |one| one.state = State::Draining);
            }
            ExecutorEvent::Lost { node, reason, budget, exit_code, message } => {
                let end = EndJson {
                    at: at.0,
                    how: "lost",
                    reason: reason.as_str(),
                    budget: budget.map(Budget::as_str),
                    exit_code: *exit_code,
                    message: sanitize(message, MESSAGE_BYTES_MAX).into(),
                };
                self.change(subject, at, |one| one.end_on(node.as_deref(), end));
            }
            ExecutorEvent::Completed { node } => {
                let end = end_without_message(at, "completed", "completed");
                self.change(subject, at, |one| one.end_on(node.as_deref(), end));
            }
            ExecutorEvent::Deleted { cause } => {
                let end = end_without_message(at, "deleted", cause.as_str());
                self.change(subject, at, |one| one.end = Some(Box::new(end)));
            }
            ExecutorEvent::Ending { .. }
            | ExecutorEvent::Log { .. }
            | ExecutorEvent::MemoryGrown { .. }
            | ExecutorEvent::Ready
            | ExecutorEvent::SlotSkipped { .. } => {}
        }
    }

    /// Changes an executor that has not ended. A new one is added first.
    fn change(&mut self, subject: &Subject, at: Millis, change: impl FnOnce(&mut Record)) {
        let new = || Record::new(subject.group.clone(), State::Requested, at);
        let record = self.executors.entry(subject.id).or_insert_with(new);
        if record.end.is_some() {
            return;
        }
        // A new record was not counted yet.
        if record.changed > 0 {
            self.counts.remove(record);
        }
        let before = record.state;
        record.missing = None;
        change(record);
        if record.state != before {
            record.since = at;
        }
        record.changed = self.version;
        self.counts.add(record);
        if record.end.is_some() {
            self.on_end(subject.id);
        }
    }

    fn on_end(&mut self, id: ExecutorId) {
        self.n_ended += 1;
        self.ended.push_back(id);
        let oldest = if self.ended.len() > ENDED_KEPT { self.ended.pop_front() } else { None };
        self.remove(oldest);
    }

    fn remove(&mut self, id: Option<ExecutorId>) {
        let removed = id.and_then(|id| self.executors.remove(&id));
        let version = removed.map_or(0, |record| record.changed);
        self.removed_version = self.removed_version.max(version);
    }

    fn observe(&mut self, status: &Status, now: Millis) {
        self.next_version();
        let version = self.version;
        let mut shown = status.executors.iter().flat_map(|block| block.iter()).peekable();
        let (mut unknown, mut gone, mut n_missing) = (Vec::new(), Vec::new(), 0);
        // Both are in the order of the ids.
        for (id, record) in &mut self.executors {
            while let Some(one) = shown.next_if(|one| one.id < *id) {
                unknown.push(one);
            }
            let one = shown.next_if(|one| one.id == *id);
            match one.filter(|_| record.end.is_none()) {
                Some(one) => record.observe(one, version),
                None if record.end.is_some() => {}
                None => {
                    let missing = *record.missing.get_or_insert(now);
                    if now.since(missing) > MISSING_MS_MAX {
                        gone.push(*id);
                    } else {
                        n_missing += 1;
                    }
                }
            }
        }
        unknown.extend(shown);
        for one in unknown {
            // What has ended already may have been forgotten here.
            if matches!(one.state, State::Completed | State::Failed | State::Terminating) {
                continue;
            }
            let mut record = Record::new(one.group.clone(), one.state, one.since);
            record.observe(one, version);
            record.changed = version;
            self.executors.insert(one.id, record);
        }
        for id in gone {
            if let Some(record) = self.executors.get_mut(&id) {
                record.end = Some(Box::new(end_without_message(now, "gone", "unknown")));
                record.changed = version;
            }
            self.gone.push_back(id);
            let oldest = if self.gone.len() > GONE_KEPT { self.gone.pop_front() } else { None };
            self.remove(oldest);
        }
        self.n_missing = n_missing;
        self.targets = status.groups.iter().map(|one| (one.group.clone(), one.target)).collect();
        self.counts = Counts::default();
        self.executors.values().for_each(|record| self.counts.add(record));
        self.take_sample(now);
    }

    fn take_sample(&mut self, at: Millis) {
        let target = self.targets.values().copied().map(u64::from).sum();
        self.samples.add(Sample { changed: self.version, at, target, counts: self.counts });
    }
}

impl Record {
    fn new(group: GroupName, state: State, since: Millis) -> Self {
        Self {
            changed: 0,
            group,
            state,
            since,
            requested: None,
            running: None,
            node: None,
            end: None,
            missing: None,
        }
    }

    /// An event that names no node says nothing about it.
    fn set_node(&mut self, node: Option<&str>) {
        if let Some(node) = node {
            self.node = Some(node.into());
        }
    }

    fn end_on(&mut self, node: Option<&str>, end: EndJson) {
        self.set_node(node);
        self.end = Some(Box::new(end));
    }

    fn observe(&mut self, status: &ExecutorStatus, version: u64) {
        self.missing = None;
        let is_running = status.state == State::Running;
        let running = self.running.or_else(|| is_running.then_some(status.since));
        if (self.state, self.running, &self.node) == (status.state, running, &status.node) {
            return;
        }
        self.running = running;
        (self.state, self.since) = (status.state, status.since);
        self.node.clone_from(&status.node);
        self.changed = version;
    }

    fn json(&self, id: ExecutorId) -> RecordJson<'_> {
        RecordJson {
            id: id.0,
            group: self.group.as_str(),
            state: self.state.as_str(),
            since: self.since.0,
            requested: self.requested.map(|at| at.0),
            running: self.running.map(|at| at.0),
            node: self.node.as_deref(),
            end: self.end.as_deref(),
        }
    }
}

fn end_without_message(at: Millis, how: &'static str, reason: &'static str) -> EndJson {
    EndJson { at: at.0, how, reason, budget: None, exit_code: None, message: "".into() }
}

impl Counts {
    fn of(record: &Record) -> Self {
        let is_live = record.end.is_none() && record.missing.is_none();
        let is_starting = matches!(record.state, State::Requested | State::Pending);
        Self {
            running: u32::from(is_live && record.state == State::Running),
            starting: u32::from(is_live && is_starting),
        }
    }

    fn add(&mut self, record: &Record) {
        let one = Self::of(record);
        self.running += one.running;
        self.starting += one.starting;
    }

    fn remove(&mut self, record: &Record) {
        let one = Self::of(record);
        self.running -= one.running;
        self.starting -= one.starting;
    }
}

impl Sample {
    /// The number of its interval. The first sample, at 0, has one of its own.
    fn interval(&self, interval_ms: u64) -> u64 {
        self.at.0.div_ceil(interval_ms)
    }

    fn json(&self) -> SampleJson {
        let Counts { running, starting } = self.counts;
        SampleJson { at: self.at.0, target: self.target, running, starting }
    }
}

impl Samples {
    fn add(&mut self, mut sample: Sample) {
        if let Some(last) = self.points.last_mut() {
            if (last.target, last.counts) == (sample.target, sample.counts) {
                return;
            }
            sample.at = sample.at.max(last.at);
            if last.interval(self.interval_ms) == sample.interval(self.interval_ms) {
                *last = sample;
                return;
            }
        }
        self.points.push(sample);
        while self.points.len() > SAMPLES_MAX {
            self.interval_ms *= 2;
            let interval_ms = self.interval_ms;
            // The last sample of each interval stays: it is what holds until the next one.
            self.points.dedup_by(|later, earlier| {
                let is_same = later.interval(interval_ms) == earlier.interval(interval_ms);
                if is_same {
                    *earlier = *later;
                }
                is_same
            });
        }
    }
}

/// Ended executors that are kept. With their messages they take about 3 MB at most.
pub const ENDED_KEPT: usize = 4_096;

/// The longest message of an ended executor that is kept, bytes.
const MESSAGE_BYTES_MAX: usize = 512;

/// The most samples.
const SAMPLES_MAX: usize = 1_024;

/// The first interval of the samples.
const SAMPLE_INTERVAL_MIN_MS: u64 = 100;

/// Executors without a pod that are kept so that readers forget them too.
const GONE_KEPT: usize = 256;

/// An executor that the status has not shown for this time, without an event: the server refused its create,
/// and posse took it back. A status that is older than the executor is not older than this.
const MISSING_MS_MAX: u64 = 1_000;

#[cfg(test)]
mod tests;
