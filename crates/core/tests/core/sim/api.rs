//! The simulated API server: when a request takes effect and how it is answered, with the faults of
//! the profile.

use posse_core::model::action::{Action, Patch};
use posse_core::model::fact::Fact;
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::{ForeignPod, Input, List, ListSource, PodAnswer, RecordError};
use posse_core::model::pod::Pod;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::task::TaskRun;

use super::check::{Check, CheckResult};
use super::cluster::{CreateError, is_over};
use super::node::{LOST_NODE, REST_MS, set_deadline};
use super::trace::trace;
use super::world::{Happening, PREFIX, Step, World};

/// What the server or the network does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    LateCommit,
    LoseAfter,
    LoseBefore,
    Throttle,
    Unauthorized,
    Unavailable,
}

impl World {
    pub fn send(&mut self, action: &Action) {
        if *action == Action::Poll {
            let (gen_, source) = (self.gen_, ListSource::Poll);
            self.after(0, Happening::ListSent { gen_, stream: None, source });
            return;
        }
        if *action == Action::Relist {
            self.open_stream();
            return;
        }
        let request = self.next_request(action.clone());
        if let Some(input) = self.drops_reservation(action) {
            self.after(1, Happening::Answer(request, Box::new(input)));
            return;
        }
        if let Some((ms, refusal)) = self.server_failure(action) {
            self.answer(request, ms, Err(refusal));
            return;
        }
        let fault = self.draw_fault(action);
        let ms = 1 + self.rng.below(self.profile.answer_ms);
        let timeout = ms + self.rng.below(10_000);
        if let Some(fault) = fault {
            trace(|| format!("{:>9}      {fault:?} of request {request}", self.now));
        }
        let refused = |class, code| refusal(class, code, "simulated");
        match fault {
            None => self.after(ms, Happening::Execute(request)),
            Some(Fault::LoseBefore) => {
                self.answer(request, timeout, Err(refused(RefusalClass::OutcomeUnknown, 0)))
            }
            Some(Fault::LoseAfter | Fault::LateCommit) => {
                let late = if fault == Some(Fault::LateCommit) { 50_000 } else { 1 };
                let commit = ms.min(5_000) + self.rng.below(late);
                let unheard = self.requests.get(&request).cloned();
                let twin = self.next_request(action.clone());
                self.outstanding.remove(&twin);
                if let Some(mut unheard) = unheard {
                    unheard.is_unheard = true;
                    self.requests.insert(twin, unheard);
                }
                self.after(commit, Happening::Execute(twin));
                let heard = if fault == Some(Fault::LateCommit) { timeout } else { timeout + ms };
                self.answer(request, heard, Err(refused(RefusalClass::OutcomeUnknown, 500)));
            }
            Some(Fault::Throttle) => {
                let mut refusal = refused(RefusalClass::Throttled, 429);
                refusal.retry_after_ms = self.rng.chance(50).then(|| 1_000 * self.rng.below(6));
                self.answer(request, ms, Err(refusal));
            }
            Some(Fault::Unauthorized) => {
                self.answer(request, ms, Err(refused(RefusalClass::Unauthorized, 401)));
            }
            Some(Fault::Unavailable) => {
                self.answer(request, ms, Err(refused(RefusalClass::Transient, 503)));
            }
        }
    }

    fn draw_fault(&mut self, action: &Action) -> Option<Fault> {
        let is_create = matches!(action, Action::Create { .. });
        // The runtime repeats a reservation until it is durable.
        if matches!(action, Action::ReserveIds { .. }) {
            return None;
        }
        let profile = &self.profile;
        for (percent, fault, holds) in [
            (profile.lose_before, Fault::LoseBefore, true),
            (profile.lose_after, Fault::LoseAfter, true),
            (profile.late_commit, Fault::LateCommit, is_create),
            (profile.throttle, Fault::Throttle, true),
            (profile.unauthorized, Fault::Unauthorized, true),
            (profile.unavailable, Fault::Unavailable, true),
        ] {
            if holds && self.rng.chance(percent) {
                return Some(fault);
            }
        }
        None
    }

    /// Answers a request that had no effect, or whose outcome the client does not learn.
    fn answer(&mut self, request: u64, ms: u64, refusal: Result<(), Refusal>) {
        let (Some(asked), Err(refusal)) = (self.requests.get(&request), refusal) else { return };
        let input = match asked.action.clone() {
            Action::Create { id, watermark, .. } => {
                Input::Created { id, watermark, answer: Err(refusal) }
            }
            Action::Get { id, watermark } => Input::Got { id, watermark, answer: Err(refusal) },
            Action::GetNode { name } => Input::GotNode { name, answer: Err(refusal) },
            Action::ReadPod { id, watermark } => {
                Input::PodRead { id, watermark, answer: Err(refusal) }
            }
            Action::Delete { uid, .. } => Input::Deleted { uid, answer: Err(refusal) },
            Action::Patch { uid, .. } => Input::Patched { uid, answer: Err(refusal) },
            Action::ReadLog { uid, .. } => Input::LogRead { uid, answer: Err(refusal) },
            Action::GiveUpClaims { .. } => Input::ClaimsGivenUp { n: 0 },
            Action::KeepOutput { output, .. } => Input::OutputKept { uid: output.uid },
            Action::Protect { id, uid, .. } => Input::Protected { id, uid, answer: Err(refusal) },
            Action::Resize { id, uid, .. } => Input::Resized { id, uid, answer: Err(refusal) },
            Action::List { .. } => Input::ListRefused { refusal },
            Action::Record { .. } => {
                Input::Recorded { answer: Err(RecordError::failed(refusal.message)) }
            }
            Action::ReserveIds { up_to } => Input::IdsReserved { up_to },
            Action::Poll | Action::Relist => return,
        };
        self.after(ms, Happening::Answer(request, Box::new(input)));
    }

    /// Checks what a create made, and disowns it if no record of it is left to a later process.
    fn note_created(
        &mut self,
        id: ExecutorId,
        gen_: u32,
        seen: &PodAnswer,
        is_heard: bool,
    ) -> CheckResult {
        Check::created(self, gen_, id.0, seen, !is_heard)?;
        if gen_ != self.gen_
            && self.core.is_some()
            && let PodAnswer::Ours(pod) = seen
            // An id that this process has asked for too it knows, whatever the Lease says.
            && !self.check.has_posted(pod.id.0, &pod.group)
        {
            self.disown_if_unrecorded(&pod.uid);
        }
        Ok(())
    }

    fn read(&mut self, id: ExecutorId) -> Result<PodAnswer, Refusal> {
        let answer = self.get(id);
        self.note_read(&answer);
        answer
    }

    /// Lets the request take effect.
    pub fn execute(&mut self, request: u64) -> CheckResult {
        let Some(asked) = self.requests.get(&request).cloned() else { return Ok(()) };
        let is_heard = !asked.is_unheard && asked.gen_ == self.gen_;
        let input = match asked.action {
            Action::Create { id, ref group, slot, ref overrides, watermark, .. } => {
                let answer =
                    self.create(id.0, group, (slot, overrides.attempt), overrides.task.clone());
                if let Ok(seen) = &answer {
                    self.note_avoided(seen, &overrides.avoid);
                    self.note_created(id, asked.gen_, seen, is_heard)?;
                }
                Input::Created { id, watermark, answer }
            }
            Action::Get { id, watermark } => Input::Got { id, watermark, answer: self.get(id) },
            Action::ReadPod { id, watermark } => {
                let answer = self.read(id);
                Input::PodRead { id, watermark, answer }
            }
            Action::GetNode { name } => {
                let answer = if *name == *LOST_NODE { Err(not_found()) } else { Ok(()) };
                Input::GotNode { name, answer }
            }
            Action::Delete { uid, name, grace_s, .. } => {
                let answer = self.delete(&uid, &name, grace_s == Some(0));
                Input::Deleted { uid, answer }
            }
            Action::Patch { uid, name, patch } => {
                let answer = self.patch(&uid, &name, patch);
                Input::Patched { uid, answer }
            }
            Action::Protect { id, uid, name, is_protected } => {
                let answer = self.patch_pod(&uid, &name, |pod| pod.is_protected = is_protected);
                Input::Protected { id, uid, answer }
            }
            Action::Resize { id, uid, .. } => Input::Resized { id, uid, answer: Err(not_found()) },
            Action::ReadLog { uid, name, .. } => {
                let answer = self.read_log(&uid, &name);
                Input::LogRead { uid, answer }
            }
            Action::GiveUpClaims { .. } => Input::ClaimsGivenUp { n: 0 },
            Action::KeepOutput { output, .. } => Input::OutputKept { uid: output.uid },
            Action::List { watermark } => {
                let (pods, version) = self.cluster.list();
                Input::List(List::whole(ListSource::Stop, pods, Some(version), watermark))
            }
            Action::Record { facts } => Input::Recorded { answer: self.record(facts, asked.gen_) },
            Action::ReserveIds { up_to } => {
                self.cluster.high_water = self.cluster.high_water.max(up_to.0);
                Input::IdsReserved { up_to }
            }
            Action::Poll | Action::Relist => return Ok(()),
        };
        if is_heard {
            let ms = 1 + self.rng.below(self.profile.answer_ms);
            self.after(ms, Happening::Answer(request, Box::new(input)));
        } else {
            self.requests.remove(&request);
        }
        Ok(())
    }

    /// Who takes a record over fences it: a write of an earlier process that is still under way has no effect.
    fn record(&mut self, facts: Vec<Fact>, gen_: u32) -> Result<(), RecordError> {
        let is_refused = !self.is_calm && self.rng.chance(12);
        if is_refused || gen_ != self.gen_ {
            return Err(RecordError::failed("refused".to_owned()));
        }
        self.cluster.record(facts);
        Ok(())
    }

    fn get(&self, id: ExecutorId) -> Result<PodAnswer, Refusal> {
        let name = format!("{PREFIX}{id}");
        match self.cluster.pods.get(name.as_str()) {
            Some(stored) if stored.is_labelled => Ok(PodAnswer::Ours(stored.pod.clone())),
            Some(stored) => {
                Ok(PodAnswer::Foreign(ForeignPod { name, uid: stored.pod.uid.clone() }))
            }
            None => Err(not_found()),
        }
    }

    /// What a read shows must be told: an executor that was over is not lost as disconnected.
    fn note_read(&mut self, answer: &Result<PodAnswer, Refusal>) {
        if let Ok(PodAnswer::Ours(pod)) = answer
            && is_over(pod)
        {
            self.driver.shown_over.insert(pod.uid.clone());
        }
    }

    fn read_log(&self, uid: &Uid, name: &str) -> Result<Vec<String>, Refusal> {
        match self.cluster.pods.get(name) {
            Some(stored) if stored.pod.uid == *uid => Ok(vec!["the last line".to_owned()]),
            _ => Err(not_found()),
        }
    }

    fn patch(&mut self, uid: &Uid, name: &str, patch: Patch) -> Result<(), Refusal> {
        let now_s = self.now / 1_000;
        if let Patch::Completed { rest_deadline_s: Some(seconds), .. }
        | Patch::Counted { rest_deadline_s: Some(seconds), .. } = patch
        {
            self.patch_pod(uid, name, |pod| set_deadline(pod, seconds))?;
            self.after(REST_MS, Happening::Node(uid.clone(), Step::SideCar));
        }
        self.patch_pod(uid, name, |pod| match patch {
            Patch::Completed { folded, .. } => {
                pod.completed = true;
                take_over(pod, folded);
            }
            Patch::Counted { folded, .. } => {
                pod.counted = Some(now_s);
                take_over(pod, folded);
            }
            Patch::LeftQueue { is_deleted } => pod.is_held_by_queue &= !is_deleted,
            Patch::Draining(draining, _) => pod.draining = Some(draining.into()),
        })
    }

    fn patch_pod(
        &mut self,
        uid: &Uid,
        name: &str,
        change: impl FnOnce(&mut Pod),
    ) -> Result<(), Refusal> {
        let found = self.cluster.pods.get(name).map(|s| s.pod.uid.clone());
        match found {
            None => Err(refusal(RefusalClass::NotFound, 404, "not found")),
            Some(other) if other != *uid => Err(refusal(RefusalClass::Conflict, 409, "other uid")),
            Some(_) => {
                self.cluster.update(uid, change);
                Ok(())
            }
        }
    }

    fn create(
        &mut self,
        id: u64,
        group: &posse_core::model::ids::GroupName,
        rank: (u32, u32),
        task: Option<Box<TaskRun>>,
    ) -> Result<PodAnswer, Refusal> {
        let name = format!("{PREFIX}{id}");
        if self.rng.chance(self.profile.refuse_template) {
            return Err(refusal(RefusalClass::Invalid, 422, "invalid"));
        }
        let is_labelled = !self.rng.chance(self.profile.strip);
        match self.cluster.create(&name, id, group, rank, (is_labelled, false), task) {
            Ok(pod) => {
                self.begin_life(&pod.uid);
                Ok(if is_labelled {
                    PodAnswer::Ours(pod)
                } else {
                    PodAnswer::Foreign(ForeignPod { name, uid: pod.uid })
                })
            }
            Err(CreateError::Exists) => Err(refusal(RefusalClass::Exists, 409, "already exists")),
            Err(CreateError::Quota) => Err(refusal(RefusalClass::Capacity, 403, "exceeded quota")),
        }
    }

    fn delete(
        &mut self,
        uid: &Uid,
        name: &str,
        is_forced: bool,
    ) -> Result<Option<posse_core::model::pod::Pod>, Refusal> {
        let found = self.cluster.pods.get(name).map(|stored| stored.pod.clone());
        match found {
            None => Err(not_found()),
            Some(pod) if pod.uid != *uid => Err(refusal(RefusalClass::Conflict, 409, "other uid")),
            Some(_) if is_forced => {
                self.cluster.remove(uid);
                Ok(None)
            }
            Some(_) => {
                self.delete_pod(uid);
                // Without our labels an answer shows nothing.
                let after = self.cluster.pods.get(name).filter(|stored| stored.is_labelled);
                let after = after.map(|stored| stored.pod.clone());
                Ok(after.filter(|_| self.rng.chance(70)))
            }
        }
    }
}

fn not_found() -> Refusal {
    refusal(RefusalClass::NotFound, 404, "not found")
}

pub fn refusal(class: RefusalClass, code: u16, message: &str) -> Refusal {
    Refusal { code, ..Refusal::local(class, message) }
}

fn take_over(pod: &mut Pod, folded: Option<String>) {
    if let Some(end) = pod.end.as_mut().filter(|_| folded.is_some()) {
        end.folded = folded.map(String::into_boxed_str);
    }
}
