//! Tasks, one index and a record. At each step the next process may take the run over, while what the one before
//! has sent is still on its way. Only one of them sends: the Lease's model shows why.
//!
//! Always true: a task that was acknowledged is known to the next process, what is done is not begun again, and no two
//! pods work on the same. A restore may cost what was written last, until the core has found it out and written it again.
//! One of a takeover, a fault and a restore is tried with two tasks; with `POSSE_TESTS=all` with three, and
//! each pair with two or one.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use super::super::chunks::{Objects, lines};
use super::{Model, explore, fingerprint};
use crate::core_run::{Run, end_with, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::machines::record::{
    Chunk, ChunkedRecord, FoundChunk, ObjectVersion, RecordFailure, RecordNotice, RecordStore,
};
use posse_core::model::action::Action;
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::fact::{Fact, Knowledge, Topic};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::input::{Input, RecordError};
use posse_core::model::pod::{Phase, Pod};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, Policy, RecordUse, Restart};
use posse_core::model::task::Task;

/// One call adds them.
const TASKS: [&str; 3] = ["a", "b", "c"];
const INDEX: &str = "index 0";

/// How often what may happen.
#[derive(Clone, Copy, Debug)]
struct Times {
    takeovers: u32,
    /// An answer is lost, or a write and its answer.
    faults: u32,
    /// The server goes back to before the last write.
    restores: u32,
}

#[derive(Clone, Debug)]
enum Request {
    List,
    Write(Chunk),
    Delete(u64, String),
}

#[derive(Clone, Debug)]
enum Answer {
    Listed(Vec<FoundChunk>),
    Written(Result<ObjectVersion, Refusal>),
    Deleted(Result<(), Refusal>),
}

/// The objects of the record on the server.
#[derive(Clone, Debug, Default)]
struct Server {
    objects: Objects,
    /// Before the last write, if it may be restored.
    before: Option<BTreeMap<u64, Chunk>>,
}

impl Server {
    fn execute(&mut self, request: &Request) -> Answer {
        match request {
            Request::List => Answer::Listed(self.objects.list()),
            Request::Write(chunk) => {
                let before = self.before.is_some().then(|| self.objects.chunks.clone());
                let written = self.objects.write(chunk);
                self.before = before.filter(|_| written.is_ok()).or_else(|| self.before.take());
                Answer::Written(written)
            }
            Request::Delete(number, uid) => {
                self.objects.delete(*number, uid);
                Answer::Deleted(Ok(()))
            }
        }
    }
}

/// Gives the answers that are known, and then notes the next request.
struct Script {
    answers: std::vec::IntoIter<Answer>,
    asked: Option<Request>,
    process: u64,
}

impl Script {
    fn answer<T>(
        &mut self,
        request: Request,
        read: impl Fn(Answer) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        match self.answers.next() {
            Some(answer) => read(answer),
            None => {
                self.asked.get_or_insert(request);
                Err(refusal(RefusalClass::Forbidden, 403))
            }
        }
    }
}

impl RecordStore for Script {
    const FORMAT: u32 = 1;
    // Few facts fill an object, so two tasks have several.
    const CHUNK_BYTES_MAX: usize = 50;
    const TAIL_BYTES_MAX: usize = 25;

    fn list(&mut self) -> Result<Vec<FoundChunk>, Refusal> {
        self.answer(Request::List, |answer| match answer {
            Answer::Listed(found) => Ok(found),
            other => panic!("{other:?}"),
        })
    }

    fn write(&mut self, chunk: &Chunk) -> Result<ObjectVersion, Refusal> {
        self.answer(Request::Write(chunk.clone()), |answer| match answer {
            Answer::Written(answer) => answer,
            other => panic!("{other:?}"),
        })
    }

    fn delete(&mut self, number: u64, uid: &str) -> Result<(), Refusal> {
        self.answer(Request::Delete(number, uid.to_owned()), |answer| match answer {
            Answer::Deleted(answer) => answer,
            other => panic!("{other:?}"),
        })
    }

    fn tell(&mut self, _: RecordNotice) {}

    /// Each process begins at a time of its own.
    fn unix_ms(&self) -> u64 {
        self.process + 1
    }
}

/// What writes the record, in the middle of an order.
#[derive(Clone, Debug, Default)]
struct Writer {
    /// Of which process it is.
    process: u64,
    /// None: it is being opened.
    record: Option<ChunkedRecord>,
    facts: Vec<Fact>,
    answers: Vec<Answer>,
    /// The server was restored in the middle, so the core does not believe the answer.
    is_in_doubt: bool,
}

enum Written {
    Asks(Request),
    Opened(Result<(ChunkedRecord, Vec<Fact>), RecordFailure>),
    Appended(ChunkedRecord, Result<(), RecordFailure>),
}

impl Writer {
    fn asks(&self) -> bool {
        matches!(self.next(), Written::Asks(_))
    }

    fn next(&self) -> Written {
        let mut script = Script {
            answers: self.answers.clone().into_iter(),
            asked: None,
            process: self.process,
        };
        let done = match self.record.clone() {
            None => Written::Opened(ChunkedRecord::open(&mut script)),
            Some(mut record) => {
                let done = record.append(&mut script, lines(&self.facts));
                Written::Appended(record, done)
            }
        };
        script.asked.map_or(done, Written::Asks)
    }
}

/// What was promised before this change of a process was in the record.
#[derive(Clone, Debug)]
struct Promise {
    change: u64,
    tasks: BTreeSet<String>,
    done: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct World {
    left: Times,
    server: Server,
    /// The process that has the Lease, and the pods. It decides once its record is open.
    run: Rc<Run>,
    /// A fingerprint of what the run shows, once somebody has asked for it.
    shown: OnceCell<u64>,
    process: u64,
    is_open: bool,
    writer: Option<Writer>,
    /// The record between two orders.
    record: Option<ChunkedRecord>,
    /// What an earlier process has sent, and sends after it.
    late: Option<Writer>,
    /// What the call will add. None: it was made.
    tasks: Option<&'static [&'static str]>,
    promises: Vec<Promise>,
    /// The tasks that were acknowledged, and what has ended well.
    known: BTreeSet<String>,
    done: BTreeSet<String>,
}

fn groups() -> Vec<GroupSpec> {
    let index = GroupSpec { restart: Restart::OnFailure, completions: Some(1), ..spec("w", 1) };
    vec![GroupSpec { max: Some(1), ..spec("g", 0) }, index]
}

/// What a pod works on.
fn work(pod: &Pod) -> String {
    pod.task.as_ref().map_or_else(|| INDEX.to_owned(), |run| run.task.key.to_string())
}

/// Names the versions, which are V and a number, by their order.
fn named(text: &str) -> String {
    let parts = || text.split('V').skip(1);
    let number = |part: &str| part.split('"').next().and_then(|n| n.parse::<u64>().ok());
    let order: BTreeSet<u64> = parts().filter_map(number).collect();
    let mut named = text.split('V').next().unwrap_or_default().to_owned();
    for part in parts() {
        named.push('V');
        let rank = number(part).and_then(|n| order.iter().position(|of| *of == n));
        named.extend(rank.map(|rank| rank.to_string()));
        named.push_str(part.trim_start_matches(|c: char| rank.is_some() && c.is_ascii_digit()));
    }
    named
}

impl World {
    fn new(left: Times, tasks: &'static [&'static str]) -> Self {
        let policy = Policy {
            record: RecordUse::On,
            ends_with_work: true,
            outlives_driver: true,
            ..policy()
        };
        let mut run = Run::unlisted(policy, groups());
        run.is_record_slow = true;
        Self {
            left,
            server: Server { before: (left.restores > 0).then(BTreeMap::new), ..Server::default() },
            run: Rc::new(run),
            shown: OnceCell::new(),
            process: 0,
            is_open: false,
            writer: Some(Writer::default()),
            record: None,
            late: None,
            tasks: Some(tasks),
            promises: vec![],
            known: BTreeSet::new(),
            done: BTreeSet::new(),
        }
    }

    fn run_mut(&mut self) -> &mut Run {
        self.shown = OnceCell::new();
        Rc::make_mut(&mut self.run)
    }

    /// The next process begins. The pods of what has ended and is recorded have gone.
    fn take_over(&mut self) {
        self.late = self.writer.take().filter(|writer| writer.record.is_some());
        let before = std::mem::replace(&mut self.run, Self::new(self.left, &[]).run);
        let stays = |pod: &&Pod| pod.phase == Phase::Running || !self.is_recorded(pod);
        let pods = before.pods.iter().filter(stays).cloned().collect();
        let run = self.run_mut();
        (run.pods, run.version, run.now) = (pods, before.version, before.now);
        self.process += 1;
        let writer = Writer { process: self.process, ..Writer::default() };
        (self.is_open, self.record, self.writer) = (false, None, Some(writer));
        self.promises.clear();
    }

    /// The writer has all answers of its order.
    fn finish(&mut self, written: Written) -> Result<(), String> {
        self.writer = None;
        match written {
            Written::Asks(_) => unreachable!("it waits for an answer"),
            Written::Opened(opened) => {
                let (record, facts) = opened.map_err(|why| format!("not opened: {why:?}"))?;
                self.record = Some(record);
                self.is_open = true;
                let run = self.run_mut();
                run.core.restore(facts, Millis(run.now));
                run.list();
                self.act()?;
                self.check_known()?;
            }
            Written::Appended(_, Err(RecordFailure::TakenOver)) => {
                self.take_over();
            }
            Written::Appended(record, written) => {
                self.record = Some(record);
                let failed = |why| RecordError::failed(format!("{why:?}"));
                self.run_mut().tell(Input::Recorded { answer: written.map_err(failed) });
                self.keep_promises();
                self.act()?;
            }
        }
        Ok(())
    }

    fn keep_promises(&mut self) {
        let (_, n_recorded) = self.run.core.recorded();
        for promise in std::mem::take(&mut self.promises) {
            if promise.change <= n_recorded {
                self.known.extend(promise.tasks);
                self.done.extend(promise.done);
            } else {
                self.promises.push(promise);
            }
        }
    }

    fn call(&mut self, keys: &[&str]) {
        self.tasks = None;
        let tasks = keys.iter().map(|key| Task { key: (*key).into(), ..Task::default() });
        let tasks = tasks.map(Arc::new).collect();
        let add = Command::Group(GroupName::from("g"), GroupCommand::AddTasks { tasks });
        assert!(matches!(self.run_mut().call(add), Reply::Tasks(_)));
        let tasks = keys.iter().map(|key| (*key).to_owned()).collect();
        let (change, _) = self.run.core.recorded();
        self.promises.push(Promise { change, tasks, done: BTreeSet::new() });
    }

    /// The server does what the core asks for, but for writes of the record.
    fn act(&mut self) -> Result<(), String> {
        self.run_mut().events.clear();
        while !self.run.asked.is_empty() {
            match self.run_mut().asked.remove(0) {
                Action::Record { facts } => {
                    self.server.objects.learn(&facts);
                    let record = self.record.take();
                    self.writer =
                        Some(Writer { process: self.process, record, facts, ..Writer::default() });
                }
                Action::Create { id, slot, .. } => {
                    let run = self.run_mut();
                    run.start(&[id.0]);
                    if run.group_of(id.0) == "w" {
                        run.watch(&[id.0], |pod| {
                            (pod.slot, pod.restart) = (Some(slot), Restart::OnFailure);
                        });
                    }
                    self.check_begun(id)?;
                }
                Action::Patch { uid, .. } => {
                    let of_it = |pod: &&Pod| pod.uid == uid;
                    let run = self.run_mut();
                    let id = run.pods.iter().find(of_it).map(|pod| pod.id.0);
                    run.watch(&id.into_iter().collect::<Vec<_>>(), |pod| pod.completed = true);
                    run.tell(Input::Patched { uid, answer: Ok(()) });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_begun(&self, id: ExecutorId) -> Result<(), String> {
        let begun = work(self.run.pods.iter().find(|pod| pod.id == id).unwrap());
        let is_other = |pod: &&Pod| pod.phase == Phase::Running && work(pod) == begun;
        if self.run.pods.iter().filter(is_other).count() > 1 {
            return Err(format!("two pods work on {begun}"));
        }
        if self.done.contains(&begun) {
            return Err(format!("{begun} is done, and begins again"));
        }
        Ok(())
    }

    /// The end of this pod's work is known without it.
    fn is_recorded(&self, pod: &Pod) -> bool {
        let found = self.server.objects.list().into_iter().flat_map(|found| found.facts);
        let topic = match &pod.task {
            Some(run) => Topic::Progress(pod.group.clone(), Arc::clone(&run.task.key)),
            None => Topic::work(&pod.group, 0),
        };
        let mut known = found.filter(|fact| fact.topic == topic).filter_map(|fact| fact.knowledge);
        known.any(|known| match known {
            Knowledge::Progress(progress) => progress.end.is_some(),
            Knowledge::Work { ended, .. } => ended.contains(0),
            _ => false,
        })
    }

    /// A fingerprint of the core, which is what it shows and has not recorded, and of the pods.
    fn shown(&self) -> u64 {
        let mut core = self.run.core.clone();
        let tasks = Command::Group(GroupName::from("g"), GroupCommand::ShowTasks { key: None });
        let tasks = core.command(tasks, Millis(self.run.now));
        let unrecorded = core.take_unrecorded();
        let pods = self.run.pods.iter();
        let pods: Vec<_> = pods.map(|pod| (work(pod), pod.id, pod.phase, pod.completed)).collect();
        fingerprint(&(tasks, unrecorded, pods))
    }

    fn requests(&self, request: &Request, all: &mut Vec<(String, Self)>) -> Result<(), String> {
        let what = match request {
            Request::Write(chunk) => {
                format!("write {} of {}, {} lines", chunk.number, chunk.epoch, chunk.lines.len())
            }
            other => format!("{other:?}"),
        };
        let mut answered = self.clone();
        let answer = answered.server.execute(request);
        let mut push = |mut world: Self, answer: Answer, how: &str| {
            let writer = world.writer.as_mut().unwrap();
            writer.answers.push(answer);
            let next = writer.next();
            all.push((format!("{what}{how}"), world));
            let world = &mut all.last_mut().unwrap().1;
            if matches!(next, Written::Asks(_)) { Ok(()) } else { world.finish(next) }
        };
        let executed = answered.server.clone();
        push(answered, answer, "")?;
        if self.left.faults == 0 || !matches!(request, Request::Write(_)) {
            return Ok(());
        }
        let unknown = || Answer::Written(Err(refusal(RefusalClass::OutcomeUnknown, 0)));
        let mut lost = self.clone();
        lost.left.faults -= 1;
        let unanswered = Self { server: executed, ..lost.clone() };
        push(lost, unknown(), ", lost")?;
        push(unanswered, unknown(), ", its answer is lost")
    }

    /// What an earlier process has sent arrives, and it goes on as if it had the Lease. It tells its caller.
    fn arrive_late(&self) -> Result<Option<(String, Self)>, String> {
        let mut world = self.clone();
        let Some(mut writer) = world.late.take() else { return Ok(None) };
        if let Written::Asks(request) = writer.next() {
            let answer = world.server.execute(&request);
            writer.answers.push(answer);
            if let Written::Appended(_, Ok(())) = writer.next()
                && !writer.is_in_doubt
            {
                let keys =
                    writer.facts.iter().filter_map(|fact| match (&fact.topic, &fact.knowledge) {
                        (Topic::Task(_, key), Some(_)) => Some(key.to_string()),
                        _ => None,
                    });
                world.known.extend(keys);
                if world.is_open {
                    world.check_known()?;
                }
            }
            world.late = Some(writer).filter(Writer::asks);
        }
        Ok(Some(("what the process before has sent arrives".to_owned(), world)))
    }

    fn check_known(&mut self) -> Result<(), String> {
        for key in self.known.clone() {
            let (group, key) = (GroupName::from("g"), Some(Arc::from(key.as_str())));
            let show = Command::Group(group, GroupCommand::ShowTasks { key: key.clone() });
            if self.run_mut().call(show) == Reply::UnknownTask {
                return Err(format!("task {key:?} was acknowledged, and is not known"));
            }
        }
        Ok(())
    }

    /// The server goes back to before the last write. The core finds that out by the pods.
    fn restore(&self) -> Option<(String, Self)> {
        let mut world = self.clone();
        world.left.restores = world.left.restores.checked_sub(1)?;
        world.server.objects.chunks = world.server.before.take()?;
        for writer in world.writer.iter_mut().chain(&mut world.late) {
            writer.is_in_doubt = true;
        }
        world.run_mut().refused_by_history();
        world.run_mut().list();
        let (change, _) = world.run.core.recorded();
        let (tasks, done) = (std::mem::take(&mut world.known), std::mem::take(&mut world.done));
        world.promises.push(Promise { change, tasks, done });
        Some(("the server is restored".to_owned(), world))
    }
}

impl Model for World {
    /// Without what only counts: versions have names by their order.
    fn key(&self) -> impl Debug {
        let Self { left, server, is_open, writer, record, late, tasks, known, done, .. } = self;
        let objects = (&server.objects.chunks, &server.before, writer, record, late);
        let (_, n_recorded) = self.run.core.recorded();
        let promises = self.promises.iter();
        let promises: Vec<_> =
            promises.map(|one| (one.change > n_recorded, &one.tasks, &one.done)).collect();
        let shown = self.shown.get_or_init(|| self.shown());
        let rest = (left, is_open, tasks, known, done);
        format!("{} {shown:?} {rest:?} {promises:?}", named(&format!("{objects:?}")))
    }

    fn next(&self) -> Result<Vec<(String, Self)>, String> {
        let mut all = Vec::new();
        all.extend(self.arrive_late()?);
        if let Some(Written::Asks(request)) = self.writer.as_ref().map(Writer::next) {
            self.requests(&request, &mut all)?;
        }
        if !self.is_open {
            return Ok(all);
        }
        if let Some(left) = self.left.takeovers.checked_sub(1) {
            let mut world = self.clone();
            world.left.takeovers = left;
            world.take_over();
            all.push(("the next process takes over".to_owned(), world));
        }
        let mut push = |what: String, change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            world.act()?;
            all.push((what, world));
            Ok::<(), String>(())
        };
        if let Some(keys) = self.tasks {
            push(format!("a call adds {keys:?}"), &|world| world.call(keys))?;
        }
        if self.writer.is_none() && !self.promises.is_empty() {
            push("time goes on after a write that has failed".to_owned(), &|world| {
                world.run_mut().wait(2_000);
            })?;
        }
        for pod in self.run.pods.iter().filter(|pod| pod.phase == Phase::Running) {
            push(format!("{} has ended", work(pod)), &|world| {
                world.done.insert(work(pod));
                world.run_mut().watch(&[pod.id.0], end_with(0));
            })?;
        }
        all.extend(self.restore());
        Ok(all)
    }
}

#[test]
fn what_was_acknowledged_is_known_and_what_is_done_is_not_begun_again() {
    let is_in_full = std::env::var_os("POSSE_TESTS").is_some_and(|extent| extent == "all");
    let n_tasks = if is_in_full { 3 } else { 2 };
    let mut all = [(1, 0, 0), (0, 1, 0), (0, 0, 1)].map(|times| (times, n_tasks)).to_vec();
    if is_in_full {
        // With two tasks the last one has millions of states.
        all.extend([((1, 1, 0), 2), ((0, 1, 1), 2), ((1, 0, 1), 1)]);
    }
    for ((takeovers, faults, restores), n_tasks) in all {
        let n = explore(World::new(Times { takeovers, faults, restores }, &TASKS[..n_tasks]));
        assert!(n > 1_000, "{n} states are too few");
    }
}
