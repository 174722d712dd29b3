//! Groups whose work ends: the worlds in which they are played, and what must hold for each index.

use std::collections::{BTreeMap, BTreeSet};

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::event::{Event, ExecutorEvent};
use posse_core::model::ids::{GroupName, Uid};
use posse_core::model::pod::Pod;
use posse_core::model::settings::{Decommission, GroupSpec, RecordUse, Restart};
use posse_core::reconciler::Reconciler;
use posse_core::state::executors::has_ended;

use super::check::{CheckResult, fail};
use super::cluster::Cluster;
use super::faults::{Profile, policy};
use super::groups::group;
use super::world::{CALM_MS, World};

/// What was told as done.
#[derive(Debug, Default)]
pub struct Work {
    /// The indexes of groups with `completions` that are done, and by which pod.
    done: BTreeMap<(GroupName, u32), Uid>,
}

impl Work {
    /// What the next process can know: the pods that stay, whatever the one before has `sent`, and what the record has.
    pub fn on_start<'a>(&mut self, cluster: &Cluster, sent: impl Iterator<Item = &'a Action>) {
        let deleted: BTreeSet<&Uid> = sent
            .filter_map(|action| match action {
                Action::Delete { uid, .. } => Some(uid),
                _ => None,
            })
            .collect();
        let stays = |pod: &Pod, uid: &Uid| pod.uid == *uid && !pod.deleting;
        let is_there = |uid: &Uid| cluster.pods.values().any(|s| stays(&s.pod, uid));
        self.done.retain(|(name, index), uid| {
            let is_seen = is_there(uid) && !deleted.contains(uid);
            is_seen || cluster.has_recorded_work(name, *index)
        });
    }

    pub fn on_event(&mut self, event: &Event, core: &Reconciler, cluster: &Cluster) -> CheckResult {
        let Event::Executor(subject, ExecutorEvent::Completed { .. }) = event else {
            return Ok(());
        };
        let group = core.executors().groups().get(&subject.group);
        let Some(uid) = &subject.uid else { return fail(format!("{event:?} without a uid")) };
        if cluster.n_restores > 0 {
            return Ok(());
        }
        let pod = cluster.pods.values().map(|s| &s.pod).find(|pod| pod.uid == *uid);
        // It may be gone since.
        if let Some(pod) = pod.filter(|pod| exit_code(pod) != Some(0)) {
            return fail(format!("{event:?}, but {pod:?}"));
        }
        if let Some(slot) = cluster.lives.get(uid).and_then(|life| life.slot)
            && group.is_some_and(|group| group.spec.completions.is_some())
            && let Some(other) = self.done.insert((subject.group.clone(), slot), uid.clone())
            && other != *uid
            && cluster.pods.values().any(|stored| stored.pod.uid == other)
        {
            return fail(format!("{event:?}: {other} had done this part of the work"));
        }
        Ok(())
    }

    pub fn on_action(&self, action: &Action, core: &Reconciler, cluster: &Cluster) -> CheckResult {
        let Action::Create { id, group: name, slot, .. } = action else { return Ok(()) };
        let Some(group) = core.executors().groups().get(name) else { return Ok(()) };
        let Some(completions) = group.spec.completions else { return Ok(()) };
        let n_used = group.counts().capacity() + group.work.n_completed() + group.work.n_given_up();
        if *slot >= completions || n_used > completions {
            return fail(format!("{action:?}: more than {completions}"));
        }
        if cluster.n_restores > 0 {
            return Ok(());
        }
        if let Some(uid) = self.done.get(&(name.clone(), *slot)) {
            return fail(format!("{action:?}, but {uid} has done it"));
        }
        let works = |pod: &Pod| {
            let is_same = pod.group == *name && pod.slot == Some(*slot) && pod.id != *id;
            is_same && !has_ended(pod)
        };
        let known = core.snapshot().pods().find(|pod| works(pod));
        if let Some(other) = known {
            return fail(format!("{action:?}, but {other:?} works on it"));
        }
        Ok(())
    }

    /// Long after the last fault all work is done.
    fn finished(&self, core: &Reconciler, n_restores: u32) -> CheckResult {
        for (name, group) in core.executors().groups().iter() {
            let (n, failed) = (group.work.n_completed(), group.work.n_given_up());
            let said = format!("{name}: {n} completed, {failed} given up, {:?}", group.spec);
            if !group.is_finished() {
                return fail(format!(
                    "{said}: not finished, {:?} {:?}",
                    group.wait,
                    group.counts()
                ));
            }
            if failed > 0 && group.spec.restart != Restart::Never {
                return fail(format!("{said}: given up"));
            }
            let Some(completions) = group.spec.completions else { continue };
            let n_told = self.done.keys().filter(|(of, _)| of == name).count();
            if n_restores == 0 && (n + failed != completions || n_told != n as usize) {
                return fail(format!("{said}: {n_told} of {completions} were told"));
            }
        }
        Ok(())
    }
}

fn exit_code(pod: &Pod) -> Option<i32> {
    pod.end.as_ref().and_then(|end| end.exit_code)
}

fn work_group(name: &str, rng: &mut Rng) -> GroupSpec {
    let restart = if rng.chance(60) { Restart::OnFailure } else { Restart::Never };
    let after_ms = 1 + rng.below(30_000);
    GroupSpec {
        target: 1 + u32::try_from(rng.below(5)).unwrap(),
        min: 0,
        max: None,
        restart,
        completions: rng.chance(70).then(|| 1 + u32::try_from(rng.below(12)).unwrap()),
        decommission: rng.chance(30).then_some(Decommission {
            after_ms,
            label: None,
            by_term: false,
        }),
        ..group(name, rng)
    }
}

impl World {
    /// A world of groups whose work ends, with all faults but a stop.
    pub fn with_work(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x776F_726B);
        let profile = Profile::draw_with_work(&mut rng);
        let policy = policy(&mut rng);
        let groups = (0..profile.n_groups).map(|i| work_group(&format!("g{i}"), &mut rng));
        let groups = groups.collect();
        Self::with(rng, profile, policy, groups)
    }

    /// The same with a record. Half of the kills take the driver's pod, and all executors with it.
    pub fn with_recorded_work(seed: u64) -> Self {
        let mut world = Self::with_work(seed);
        world.policy.record = RecordUse::On;
        world
    }

    /// Faults, and then time for all of the work.
    pub fn run_work(&mut self) -> CheckResult {
        let calm = self.schedule_faults();
        self.run_until(calm)?;
        // The last call may have set a target of 0.
        let names: Vec<GroupName> = self.groups.iter().map(|group| group.name.clone()).collect();
        for name in names {
            if let Some(core) = &mut self.core {
                core.set_target(&name, 2, Millis(self.now));
            }
        }
        self.wake();
        self.run_until(calm + 4 * CALM_MS)?;
        let Some(core) = &self.core else { return fail("no process".to_owned()) };
        self.check.work.finished(core, self.cluster.n_restores)?;
        self.run_last_stop()
    }
}
