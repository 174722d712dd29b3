//! Pods of others with our labels, silly ids and silly slots. They appear, change and go at random,
//! and posse must neither count nor touch them.

use posse_base::rng::Rng;
use posse_core::model::action::Action;
use posse_core::model::event::{ClusterEvent, DeleteCause, Event};
use posse_core::model::ids::{GroupName, ID_MAX, Uid};
use posse_core::model::pod::{ContainerState, Draining, Phase};

use super::check::{Check, CheckResult, fail};
use super::cluster::Cluster;
use super::faults::at;
use super::node::{LOST_NODE, end};
use super::world::{Happening, PREFIX, Step, World};

const IMPOSTORS_MAX: usize = 12;
/// Ids that no run reaches.
const FAR: u64 = 50_000;
/// The longest time until the Lease's next renewal, which restores the id high water.
const RENEW_MS: u64 = 10_000;

impl World {
    /// The same world with impostors, and for half of the seeds an owner of all executors. From a
    /// separate random stream, so that older seeds keep their meaning.
    pub fn with_impostors(mut self, seed: u64) -> Self {
        let mut rng = Rng::new(seed.rotate_left(16));
        self.cluster.owner = rng.chance(50).then(|| Uid::new("driver"));
        if rng.chance(60) {
            self.profile.impostors = 1 + rng.below(5);
        }
        if rng.chance(40) {
            self.profile.max_age = 1 + rng.below(40);
        }
        self.impostors_rng = rng;
        self
    }

    pub fn impersonate(&mut self) {
        if self.profile.impostors == 0 {
            return;
        }
        let pods = self.cluster.pods.values().filter(|s| s.is_impostor());
        let known: Vec<Uid> = pods.map(|stored| stored.pod.uid.clone()).collect();
        let rng = &mut self.impostors_rng;
        let ms = 1 + rng.below(20_000 / self.profile.impostors);
        let draw = rng.below(8);
        match draw {
            0..=2 if known.len() < IMPOSTORS_MAX => self.make_impostor(),
            3 if !known.is_empty() => {
                let uid = &known[at(&mut self.impostors_rng, known.len() as u64)];
                self.cluster.remove(uid);
            }
            _ if known.is_empty() => {}
            _ => {
                let uid = known[at(&mut self.impostors_rng, known.len() as u64)].clone();
                self.change_impostor(&uid);
            }
        }
        self.after(ms, Happening::Impostor);
    }

    /// A foreign pod takes a name of ours.
    pub fn squat(&mut self) {
        let id = self.cluster.high_water.min(1_000 * self.rng.below(3)) + 1 + self.rng.below(20);
        let name = format!("{PREFIX}{id}");
        let group = GroupName::from("other");
        if self.cluster.create(&name, id, &group, (0, 1), (false, true), None).is_ok()
            && self.profile.foreign > 0
        {
            let ms = self.rng.below(20_000);
            self.after(ms, Happening::Foreign);
        }
    }

    fn make_impostor(&mut self) {
        let owner = self.cluster.owner.clone();
        let high_water = self.cluster.high_water;
        let rng = &mut self.impostors_rng;
        let silly = [u64::MAX, ID_MAX + 7][at(rng, 2)];
        let far = high_water + FAR + rng.below(50);
        let near = [1 + rng.below(30), high_water + 1 + rng.below(20), 0][at(rng, 3)];
        let has_our_name = rng.chance(50);
        // With our name and our owner, or without any record, only a silly id gives a pod away.
        let is_silly = !self.profile.is_high_water_kept && owner.is_none() || rng.chance(50);
        let id = match (has_our_name, is_silly) {
            (_, true) => silly,
            (true, false) => far,
            (false, false) => near,
        };
        let others = [None, Some(Uid::new("other"))][at(rng, 2)].clone();
        let pod_owner = if rng.chance(50) && (!has_our_name || is_silly) { owner } else { others };
        let name = if has_our_name {
            format!("{PREFIX}{id}")
        } else {
            format!("victim-{}", rng.below(1_000))
        };
        let group = GroupName::from(["g0", "g1", "other", ""][at(rng, 4)]);
        let slot = [0, 1, 1_000_000, u32::MAX][at(rng, 4)];
        let is_counted = rng.chance(20);
        if let Ok(pod) = self.cluster.create(&name, id, &group, (slot, 1), (true, true), None) {
            self.cluster.update(&pod.uid, |pod| {
                pod.owner = pod_owner;
                pod.counted = is_counted.then_some(1);
            });
        }
    }

    fn change_impostor(&mut self, uid: &Uid) {
        let draw = self.impostors_rng.below(6);
        self.cluster.update(uid, |pod| match draw {
            0 => (pod.phase, pod.container) = (Phase::Running, ContainerState::Running),
            1 => end(pod, 1, "Error"),
            2 => pod.deleting = true,
            3 => (pod.node, pod.deleting) = (Some(LOST_NODE.into()), true),
            4 => {
                let cause = DeleteCause::ScaledDown;
                pod.draining = Some(Box::new(Draining { cause, until_unix_ms: Some(1) }));
            }
            _ => pod.slot = Some(999_999),
        });
    }

    /// Without an owner, the pods whose ids a restore removed from the Lease are nobody's: neither
    /// the owner nor the record shows that an earlier process made them.
    pub fn disown_unrecorded(&mut self) {
        self.high_water_at_start = self.cluster.high_water;
        let pods = self.cluster.pods.values().filter(|stored| stored.is_labelled);
        let uids: Vec<Uid> = pods.map(|stored| stored.pod.uid.clone()).collect();
        for uid in uids {
            self.disown_if_unrecorded(&uid);
        }
    }

    /// The Lease says that another holder has used ids above this one, so the pods with them are ours after all.
    pub fn own_above(&mut self, before: u64) {
        self.high_water_at_start = self.high_water_at_start.max(self.cluster.high_water);
        let lives = self.cluster.lives.iter().filter(|_| self.profile.is_high_water_kept);
        let disowned = lives.filter(|(_, life)| life.is_disowned && life.id > before);
        let uids: Vec<Uid> = disowned.map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.disown_if_unrecorded(&uid);
        }
    }

    /// The same for one pod, which a request of an earlier process may have made.
    pub fn disown_if_unrecorded(&mut self, uid: &Uid) {
        let has_record = self.profile.is_high_water_kept && self.cluster.owner.is_none();
        let high_water = self.high_water_at_start;
        let Some(stored) = self.cluster.pods.values_mut().find(|s| s.pod.uid == *uid) else {
            return;
        };
        let Some(life) = self.cluster.lives.get_mut(uid) else { return };
        // Without a record, the next process's first LIST shows that an id was used.
        let is_recorded = stored.pod.id.0 <= high_water || !self.profile.is_high_water_kept;
        if is_recorded && life.is_disowned {
            // The id was reserved again since. The steps of its life that came meanwhile had no effect.
            let was_foreign = std::mem::take(&mut stored.is_foreign);
            life.is_foreign = false;
            if was_foreign {
                let step = if stored.pod.deleting { Step::Gone } else { Step::Bind };
                self.after(500, Happening::Node(uid.clone(), step));
            }
        } else if !is_recorded && has_record && self.cluster.n_restores > 0 && !stored.is_foreign {
            (stored.is_foreign, life.is_foreign, life.is_disowned) = (true, true, true);
        }
    }

    /// The Lease's next renewal stores the id high water again.
    pub fn renew_after_restore(&mut self, high_water: u64) {
        let ms = self.impostors_rng.below(RENEW_MS);
        let gen_ = self.gen_;
        self.after(ms, Happening::Renew { gen_, high_water });
    }

    pub fn n_impostors(&self) -> usize {
        self.cluster.pods.values().filter(|stored| stored.is_impostor()).count()
    }
}

impl Check {
    /// Foreign pods are reported once.
    pub(super) fn on_foreign_pod(&mut self, event: &Event, cluster: &Cluster) -> CheckResult {
        let Event::Cluster(ClusterEvent::ForeignPod { uid, .. }) = event else { return Ok(()) };
        let is_disowned = cluster.lives.get(uid).is_some_and(|life| life.is_disowned);
        if !is_foreign(uid, cluster) && !is_disowned {
            return fail(format!("{event:?}, but posse made it"));
        }
        if !self.foreign_told.insert(uid.clone()) && cluster.n_restores == 0 {
            return fail(format!("{event:?} is told twice"));
        }
        Ok(())
    }

    /// No request touches a foreign pod.
    pub(super) fn spares_foreign_pods(&self, action: &Action, cluster: &Cluster) -> CheckResult {
        match action {
            Action::Delete { uid, .. }
            | Action::Patch { uid, .. }
            | Action::Protect { uid, .. }
            | Action::ReadLog { uid, .. }
                if is_foreign(uid, cluster) =>
            {
                fail(format!("{action:?} of somebody else's pod"))
            }
            _ => Ok(()),
        }
    }
}

pub fn is_foreign(uid: &Uid, cluster: &Cluster) -> bool {
    cluster.lives.get(uid).is_some_and(|life| life.is_foreign)
}
