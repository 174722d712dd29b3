//! One run of the core by hand: a test provides the inputs and reads the actions and events.
#![allow(dead_code, clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};

use std::sync::Arc;

use posse_base::time::Millis;
use posse_core::model::act::Caller;
use posse_core::model::action::Action;
use posse_core::model::command::{AfterKill, Command, Reply};
use posse_core::model::event::{Event, ExecutorEvent, LossReason};
use posse_core::model::fact::{Fact, Knowledge, Topic};
use posse_core::model::ids::{ExecutorId, GroupName, Uid, Version};
use posse_core::model::input::{Input, List, ListSource, PodAnswer, PodEvent, RecordError};
use posse_core::model::pod::{ContainerState, End, Phase, Pod};
use posse_core::model::pod_text::{MemoryGrowth, MemoryStep, PodText, SlotClaim};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, Limit, Policy};
use posse_core::model::status::GroupStatus;
use posse_core::model::stop::StopOrder;
use posse_core::model::waiting::Waiting;
use posse_core::reconciler::{InstanceIdentity, Reconciler};

pub const PREFIX: &str = "app-x-exec-";
pub const STOP: StopOrder = StopOrder { keep: false, keep_failed: false, is_over: false };

pub fn spec(name: &str, target: u32) -> GroupSpec {
    GroupSpec { target, pod: Some(Arc::default()), ..GroupSpec::bare(GroupName::from(name)) }
}

/// A pod whose slot has a claim of its own.
pub fn pod_with_claims() -> Option<Arc<PodText>> {
    let claims = vec![SlotClaim { parts: Vec::new(), is_of_run: true }];
    Some(Arc::new(PodText { claims, ..PodText::default() }))
}

/// The same pod, whose memory may grow by these steps.
pub fn with_memory(pod: PodText, steps: &[&str]) -> Option<Arc<PodText>> {
    growing(pod, steps, None)
}

/// The same, in place from a part of the limit on. The first step has 1,024 bytes, each other one 1,024 more.
pub fn growing(
    pod: PodText,
    steps: &[&str],
    grow_at_permille: Option<u32>,
) -> Option<Arc<PodText>> {
    let steps = (1..).zip(["1Gi"].iter().chain(steps)).map(|(n, step)| MemoryStep {
        limit: (*step).to_owned(),
        request: (*step).to_owned(),
        limit_bytes: n * 1_024,
    });
    let container = "main".to_owned();
    let memory = MemoryGrowth { container, steps: steps.collect(), grow_at_permille };
    Some(Arc::new(PodText { memory, ..pod }))
}

/// The default policy without the `app` budget, which most rules do not need.
pub fn policy() -> Policy {
    Policy { failures_app: Limit::Off, ..Policy::default() }
}

pub fn refusal(class: RefusalClass, code: u16) -> Refusal {
    Refusal { code, ..Refusal::local(class, "the server's own words") }
}

/// An instance outside of a cluster, without a stored id high water.
pub fn identity() -> InstanceIdentity {
    InstanceIdentity {
        pod_prefix: PREFIX.to_owned(),
        owner: None,
        id_high_water: 0,
        is_id_high_water_stored: false,
        start_unix_ms: 1_000_000,
    }
}

/// The main container has ended with this code, and the pod with it.
pub fn end_with(code: i32) -> impl Fn(&mut Pod) {
    move |pod| {
        pod.phase = if code == 0 { Phase::Succeeded } else { Phase::Failed };
        pod.container = ContainerState::Ended;
        pod.end = Some(Box::new(End { exit_code: Some(code), ..End::default() }));
    }
}

/// A pod as the server has made it. Its uid, version and group are to be set.
pub fn new_pod(id: u64) -> Pod {
    let name = format!("{PREFIX}{id}").into();
    Pod { name, id: ExecutorId(id), attempt: 1, grace_s: 30, ..Pod::default() }
}

/// Executor ids as calls contain them.
pub fn set(ids: &[u64]) -> BTreeSet<ExecutorId> {
    ids.iter().copied().map(ExecutorId).collect()
}

/// A call that kills these executors.
pub fn kill(ids: &[u64], after: AfterKill, force: bool) -> Command {
    Command::Kill { executors: set(ids), after, force, is_silent: false, reason: None }
}

/// A call with heartbeats of these executors.
pub fn heard(ids: &[u64]) -> Command {
    Command::Heartbeat { executors: set(ids), memory: BTreeMap::new() }
}

#[derive(Clone, Debug)]
pub struct Run {
    pub core: Reconciler,
    pub now: u64,
    pub version: u64,
    pub pods: Vec<Pod>,
    pub events: Vec<Event>,
    pub asked: Vec<Action>,
    /// Requested LISTs beside the watch; they change nothing.
    pub n_polls: u32,
    /// What the record has.
    pub record: BTreeMap<Topic, Knowledge>,
    /// Writes of the record fail.
    pub is_record_broken: bool,
    /// The test answers the writes of the record itself; they are among those asked for.
    pub is_record_slow: bool,
}

impl Run {
    /// A run whose first LIST was empty and whose ids are reserved on the server.
    pub fn reserving(policy: Policy, groups: Vec<GroupSpec>) -> Self {
        let mut run = Self::before_list(policy, groups, true);
        run.list();
        run
    }

    /// A run before its first LIST.
    pub fn unlisted(policy: Policy, groups: Vec<GroupSpec>) -> Self {
        Self::with_identity(identity(), policy, groups)
    }

    fn before_list(policy: Policy, groups: Vec<GroupSpec>, is_stored: bool) -> Self {
        let identity = InstanceIdentity { is_id_high_water_stored: is_stored, ..identity() };
        Self::with_identity(identity, policy, groups)
    }

    /// The same with another identity.
    pub fn with_identity(
        identity: InstanceIdentity,
        policy: Policy,
        groups: Vec<GroupSpec>,
    ) -> Self {
        let mut run = Self::before_driver(identity, policy, groups);
        run.core.handle(Input::DriverReady, Millis(0));
        run
    }

    /// A run whose driver is not ready.
    pub fn before_driver(
        identity: InstanceIdentity,
        policy: Policy,
        groups: Vec<GroupSpec>,
    ) -> Self {
        let core = Reconciler::new(identity, policy, groups, 1, Millis(0));
        Self {
            core,
            now: 0,
            version: 10,
            pods: vec![],
            events: vec![],
            asked: vec![],
            n_polls: 0,
            record: BTreeMap::new(),
            is_record_broken: false,
            is_record_slow: false,
        }
    }

    /// A run whose first LIST was empty.
    pub fn new(policy: Policy, groups: Vec<GroupSpec>) -> Self {
        let mut run = Self::unlisted(policy, groups);
        run.list();
        run
    }

    pub fn tell(&mut self, input: Input) {
        self.core.handle(input, Millis(self.now));
        self.turn();
    }

    pub fn turn(&mut self) {
        self.core.turn(Millis(self.now));
        while let Some(event) = self.core.poll_event() {
            self.events.push(event);
        }
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Poll => self.n_polls += 1,
                Action::Record { facts } if !self.is_record_slow => {
                    let answer = self.write(facts);
                    self.core.handle(Input::Recorded { answer }, Millis(self.now));
                }
                other => self.asked.push(other),
            }
        }
    }

    pub fn stop(&mut self, order: StopOrder) {
        self.core.begin_stop(order, Millis(self.now));
        self.turn();
    }

    fn write(&mut self, facts: Vec<Fact>) -> Result<(), RecordError> {
        if self.is_record_broken {
            return Err(RecordError::failed("the disk is full".to_owned()));
        }
        for Fact { topic, knowledge } in facts {
            match knowledge {
                Some(knowledge) => self.record.insert(topic, knowledge),
                None => self.record.remove(&topic),
            };
        }
        Ok(())
    }

    /// The last write of a process that ends in order.
    pub fn write_last(&mut self) {
        let facts = self.core.take_unrecorded();
        assert_eq!(self.write(facts), Ok(()));
    }

    /// The facts of the record.
    pub fn facts(&self) -> Vec<Fact> {
        let facts = self.record.clone().into_iter();
        facts.map(|(topic, known)| Fact { topic, knowledge: Some(known) }).collect()
    }

    /// Lets time pass, with a turn at every deadline.
    pub fn wait(&mut self, ms: u64) {
        let end = self.now + ms;
        for _ in 0..10_000 {
            match self.core.next_deadline().filter(|at| at.0 <= end) {
                Some(at) => self.now = self.now.max(at.0),
                None => break,
            }
            self.turn();
        }
        self.now = end;
        self.turn();
    }

    /// The actions since the last call.
    pub fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.asked)
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The ids of the creates since the last call; there may be no other actions.
    pub fn creates(&mut self) -> Vec<u64> {
        let ids = self.take().into_iter().map(|action| match action {
            Action::Create { id, .. } => id.0,
            other => panic!("a create was due, not {other:?}"),
        });
        ids.collect()
    }

    /// The ids and slots of the creates since the last call. Other actions are discarded.
    pub fn slots_created(&mut self) -> Vec<(u64, u32)> {
        let creates = self.take().into_iter().filter_map(|action| match action {
            Action::Create { id, slot, .. } => Some((id.0, slot)),
            _ => None,
        });
        creates.collect()
    }

    /// The uids of the deletes and drain annotations since the last call; there may be no other
    /// actions.
    pub fn ends(&mut self) -> Vec<String> {
        let mut uids: Vec<String> = self
            .take()
            .into_iter()
            .map(|action| match action {
                Action::Delete { uid, .. } | Action::Patch { uid, .. } => uid.to_string(),
                other => panic!("an end was due, not {other:?}"),
            })
            .collect();
        uids.sort();
        uids
    }

    /// The uids of the deletes since the last call.
    pub fn deletes(&mut self) -> Vec<String> {
        let uid = |action| match action {
            Action::Delete { uid, .. } => Some(uid.to_string()),
            _ => None,
        };
        self.take().into_iter().filter_map(uid).collect()
    }

    pub fn next_version(&mut self) -> Option<Version> {
        self.version += 1;
        Some(Version(self.version))
    }

    pub fn pod(&mut self, group: &str, id: u64) -> Pod {
        Pod {
            uid: Uid::new(&format!("u{id}")),
            version: self.next_version(),
            group: GroupName::from(group),
            ..new_pod(id)
        }
    }

    /// The group of an executor.
    pub fn group_of(&self, id: u64) -> String {
        let executor = self.core.executors().get(ExecutorId(id)).expect("an executor");
        executor.group.as_str().to_owned()
    }

    /// The server accepts these creates.
    pub fn created(&mut self, ids: &[u64]) {
        for &id in ids {
            let group = self.group_of(id);
            let task = self.core.executors().get(ExecutorId(id)).unwrap().task.clone();
            let pod = Pod { task, ..self.pod(&group, id) };
            self.pods.push(pod.clone());
            let executor = self.core.executors().get(ExecutorId(id)).unwrap();
            let watermark =
                executor.create.as_ref().map(|create| create.watermark).unwrap_or_default();
            let answer = Ok(PodAnswer::Ours(pod));
            self.core
                .handle(Input::Created { id: ExecutorId(id), watermark, answer }, Millis(self.now));
        }
        self.turn();
    }

    pub fn refused(&mut self, id: u64, refusal: Refusal) {
        let watermark = self.core.watermark();
        self.tell(Input::Created { id: ExecutorId(id), watermark, answer: Err(refusal) });
    }

    /// The watch reports a change of these executors' pods.
    pub fn watch(&mut self, ids: &[u64], change: impl Fn(&mut Pod)) {
        let mut events = Vec::new();
        for &id in ids {
            let version = self.next_version();
            let pod = self.pods.iter_mut().find(|pod| pod.id.0 == id).expect("a pod");
            change(pod);
            pod.version = version;
            events.push(PodEvent::Applied(pod.clone()));
        }
        let epoch = self.core.watermark().epoch;
        self.tell(Input::Watch { epoch, events });
    }

    pub fn running(&mut self, ids: &[u64]) {
        self.watch(ids, |pod| {
            (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
            (pod.ready, pod.node) = (true, Some("node".into()));
        });
    }

    /// The server accepts these creates, and the pods run.
    pub fn start(&mut self, ids: &[u64]) {
        self.created(ids);
        self.running(ids);
    }

    pub fn failed(&mut self, ids: &[u64]) {
        self.watch(ids, end_with(1));
    }

    /// The watch reports that these pods, which were terminating, are gone.
    pub fn gone(&mut self, ids: &[u64]) {
        self.vanish(ids, |pod| (pod.deleting, pod.deletion_grace_s) = (true, 0));
    }

    /// The watch shows these pods no more, as they were after `change`.
    pub fn vanish(&mut self, ids: &[u64], change: impl Fn(&mut Pod)) {
        let mut events = Vec::new();
        for &id in ids {
            let version = self.next_version();
            let at = self.pods.iter().position(|pod| pod.id.0 == id).expect("a pod");
            let mut pod = self.pods.remove(at);
            pod.version = version;
            change(&mut pod);
            events.push(PodEvent::Deleted(pod));
        }
        let epoch = self.core.watermark().epoch;
        self.tell(Input::Watch { epoch, events });
    }

    /// A LIST shows a resourceVersion rollback.
    pub fn refused_by_history(&mut self) {
        let (watermark, version) = (self.core.watermark(), Some(Version(1)));
        let list = List::whole(ListSource::Poll, vec![], version, watermark);
        self.tell(Input::List(list));
    }

    /// A LIST of the existing pods.
    pub fn list(&mut self) {
        let version = self.next_version();
        let (pods, watermark) = (self.pods.clone(), self.core.watermark());
        self.tell(Input::List(List::whole(ListSource::Poll, pods, version, watermark)));
    }

    /// Answers the due read of this executor's pod with the pod as it was last seen.
    pub fn read_pod(&mut self, id: u64) {
        let id = ExecutorId(id);
        let is_read =
            |action: &Action| matches!(action, Action::ReadPod { id: of, .. } if *of == id);
        let at = self.asked.iter().position(is_read).expect("a read is due");
        self.asked.remove(at);
        let pod = self.pods.iter().find(|pod| pod.id == id).expect("a pod").clone();
        let watermark = self.core.watermark();
        self.tell(Input::PodRead { id, watermark, answer: Ok(PodAnswer::Ours(pod)) });
    }

    /// A call of the driver; returns the answer.
    pub fn call(&mut self, command: Command) -> Reply {
        let reply = self.core.command(command, Millis(self.now));
        self.turn();
        reply
    }

    /// The same call by somebody whose acts are noted.
    pub fn call_by(&mut self, command: Command, by: Caller) {
        self.core.call(command, by, Millis(self.now));
        self.turn();
    }

    /// The driver reports heartbeats of these executors every `every_ms` until `ms` have passed.
    pub fn beat(&mut self, executors: &[u64], every_ms: u64, ms: u64) {
        for _ in 0..ms / every_ms {
            self.call(heard(executors));
            self.wait(every_ms);
        }
    }

    /// The losses since the last call, with their reasons.
    pub fn losses(&mut self) -> Vec<(u64, LossReason)> {
        let losses = self.take_events().into_iter().filter_map(|event| match event {
            Event::Executor(subject, ExecutorEvent::Lost { reason, .. }) => {
                Some((subject.id.0, reason))
            }
            _ => None,
        });
        losses.collect()
    }

    pub fn target(&mut self, group: &str, target: u32) {
        self.core.set_target(&GroupName::from(group), target, Millis(self.now));
        self.turn();
    }

    pub fn group(&self, name: &str) -> GroupStatus {
        let groups = self.core.group_statuses();
        groups.into_iter().find(|group| group.group.as_str() == name).expect("a group")
    }

    pub fn waits_for(&self, name: &str) -> Option<&'static str> {
        self.group(name).waiting.map(Waiting::as_str)
    }

    /// `n` running executors of that group; other actions are discarded.
    pub fn with_running(policy: Policy, groups: Vec<GroupSpec>) -> Self {
        let mut run = Self::new(policy, groups);
        for _ in 0..100 {
            let ids = run.creates();
            if ids.is_empty() {
                break;
            }
            run.created(&ids);
            run.running(&ids);
        }
        run.events.clear();
        run
    }
}

/// A stop of the run that `start` gives deletes its pods when this answer has come, or two seconds later without it.
#[track_caller]
pub fn assert_stop_waits(start: impl Fn() -> Run, answer: impl Fn() -> Input) {
    for answers in [true, false] {
        let mut run = start();
        for action in run.take() {
            if let Action::Patch { uid, .. } = action {
                run.tell(Input::Patched { uid, answer: Ok(()) });
            }
        }
        run.stop(STOP);
        assert_eq!(run.deletes(), [""; 0]);
        if answers {
            run.tell(answer());
        }
        run.wait(if answers { 200 } else { 2_100 });
        assert_eq!(run.deletes().len(), 1, "{answers}");
    }
}
