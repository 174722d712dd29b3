//! What must hold after the last fault, in a steady minute, and after a stop.

use posse_core::model::ids::Uid;
use posse_core::model::pod::Pod;
use posse_core::model::settings::{Replace, ScaleDown};
use posse_core::model::status::State;
use posse_core::model::stop::StopResult;

use super::super::cluster::is_over;
use super::super::ranks;
use super::super::world::{PREFIX, World};
use super::{Check, CheckResult, OPEN_MS, fail};

impl Check {
    /// Long after the last fault every group has its target, and no other pod exists.
    pub fn converged(world: &World) -> CheckResult {
        let Some(core) = &world.core else { return fail("no process".to_owned()) };
        let mut n_owned = 0;
        for (name, group) in core.executors().groups().iter() {
            let ours: Vec<_> = world
                .cluster
                .pods
                .values()
                .filter(|s| s.is_ours() && s.pod.group == *name)
                .map(|s| &s.pod)
                .collect();
            let live = ours.iter().filter(|pod| !is_over(pod) && pod.draining.is_none());
            let n = u32::try_from(live.clone().count()).unwrap();
            let n_going = u32::try_from(ours.iter().filter(|pod| pod.deleting).count()).unwrap();
            let n_failed = ours.iter().filter(|pod| !pod.deleting && is_over(pod)).count();
            n_owned += ours.len();
            let target = group.spec.target;
            let mut fewest = target;
            if group.spec.replace == Replace::Gone || group.spec.has_stable_slots() {
                fewest = target.saturating_sub(n_going);
            }
            if group.spec.restarts_whole() && n_going > 0 {
                fewest = 0;
            }
            // Pods that are stuck never run.
            let n_stuck = live.filter(|pod| world.stuck.contains(&pod.uid)).count();
            if world.policy.pending_max > 0 && n_stuck > 0 {
                fewest = 0;
            }
            if world.profile.server_faults.is_bad(name) {
                fewest = 0;
            }
            if group.spec.pod.is_none() {
                // The group was found after a restart and not put again, so there is no template
                // for more.
                fewest = 0;
            }
            let too_many = match group.spec.scale_down {
                ScaleDown::Any => n > target,
                ScaleDown::Pending => false,
            };
            if n < fewest || too_many {
                let waiting = &group.wait;
                return fail(format!(
                    "{name}: {n} live of {target}, {n_going} going, {n_failed} failed, waiting \
                     {waiting:?}, {:?}, {:?}",
                    group.counts(),
                    group.tasks.throttles
                ));
            }
            ranks::are_complete(group, &ours, fewest == target)?;
            // One that waits for a stable slot counts, while a pod that goes still has it.
            let n_waiting = if group.spec.has_stable_slots() { n_going } else { 0 };
            let capacity = group.counts().capacity();
            if !(n..=n + n_waiting).contains(&capacity) && !world.profile.server_faults.is_bad(name)
            {
                return fail(format!("{name}: {capacity} counted, {n} live"));
            }
        }
        world.check.groups.converged(core, &world.cluster)?;
        // After a rollback, pods of a deleted group may exist again; they must be terminating.
        let is_stray =
            |pod: &Pod| pod.deleting && !core.executors().groups().contains_key(&pod.group);
        let all = world.cluster.pods.values().filter(|s| s.is_ours() && !is_stray(&s.pod));
        let n_all = all.count();
        if n_owned != n_all {
            return fail(format!("{n_owned} of {n_all} pods are in groups"));
        }
        let n_kept = core.executors().iter().filter(|(_, e)| e.state == State::Failed).count();
        if n_kept > world.policy.keep_failed as usize {
            return fail(format!("{n_kept} failed pods are kept"));
        }
        Ok(())
    }

    /// Nothing was left to do for a minute.
    pub fn quiet(&self, world: &World) -> CheckResult {
        if self.n_actions > 0 {
            return fail(format!("{} actions in a steady minute", self.n_actions));
        }
        if !self.logs_due.is_empty() {
            return fail(format!("no log was told of {:?}", self.logs_due));
        }
        // Each executor whose pod is gone was reported once.
        let Some(core) = &world.core else { return Ok(()) };
        world.tasks.are_kept()?;
        for uid in &self.owned {
            let is_there = core.snapshot().get(uid).is_some();
            if !is_there && !self.ended.contains(uid) && !self.was_counted(uid, world) {
                return fail(format!("the end of {uid} was never told"));
            }
        }
        Ok(())
    }

    fn was_counted(&self, uid: &Uid, world: &World) -> bool {
        // Reported by an earlier process, as its label shows, or before it had a uid.
        let life = world.cluster.lives.get(uid);
        life.is_some_and(|life| life.was_counted || self.nameless.contains(&life.id))
    }

    pub fn stopped(world: &mut World, result: &StopResult, is_last: bool) -> CheckResult {
        let Some(core) = &world.core else { return Ok(()) };
        let check = &mut world.check;
        let order = check.stop.expect("a stop was ordered");
        let named = result.remaining.iter().chain(&result.terminating).chain(&result.retained);
        check.named = named.cloned().collect();
        if order.keep || !check.is_held {
            if order.keep && !result.remaining.is_empty() {
                return fail(format!("left on purpose, and named: {:?}", result.remaining));
            }
            check.named = (1..5_000).map(|id| format!("{}{id}", PREFIX)).collect();
            return Ok(());
        }
        for (id, at) in &check.unknown {
            if !check.told_ids.contains_key(id) && world.now < at + OPEN_MS {
                return fail(format!("the stop did not await executor {id}: {result:?}"));
            }
        }
        for stored in world.cluster.pods.values() {
            let end = check.awaited_ends.get(&stored.pod.uid);
            if end.is_some_and(|at| world.now < *at) && check.n_restores == 0 {
                return fail(format!("the stop did not wait for {}: {result:?}", stored.pod.name));
            }
        }
        for stored in world.cluster.pods.values().filter(|stored| stored.is_ours()) {
            let name = stored.pod.name.to_string();
            let is_known = core.snapshot().get(&stored.pod.uid).is_some();
            let is_mine = check.posted.contains_key(&stored.pod.id.0) || is_known;
            if is_mine && check.doubt.is_none() && !check.named.contains(&name) {
                return fail(format!("{name} is left and not named; {result:?}"));
            }
        }
        if let Some(name) = check.named.iter().find(|name| name.starts_with("victim")) {
            return fail(format!("{name} is named, but it is not ours"));
        }
        if !order.keep_failed && !result.retained.is_empty() {
            return fail(format!("retained pods that were not wanted: {:?}", result.retained));
        }
        if is_last && !result.remaining.is_empty() {
            return fail(format!("the calm stop left {:?}", result.remaining));
        }
        if is_last && world.cluster.pods.values().any(|stored| stored.is_ours()) {
            return fail("the calm stop left pods".to_owned());
        }
        Ok(())
    }
}
