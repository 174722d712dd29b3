//! Owns the life of pods: scheduler, kubelet, evictions, and people who delete things.

use posse::core::ids::Uid;
use posse::core::pod::{ContainerState, End, Phase, Pod};

use super::cluster::is_over;
use super::world::{Happening, Step, World};

/// A node whose object is gone, with whatever stood on it.
pub const LOST_NODE: &str = "lost";

impl World {
    pub fn begin_life(&mut self, uid: &Uid) {
        let ms = 1 + self.rng.below(2_000);
        self.after(ms, Happening::Node(uid.clone(), Step::Bind));
    }

    pub fn revive_after_restore(&mut self) {
        let pods: Vec<_> = self.cluster.pods.values().map(|s| s.pod.clone()).collect();
        for pod in pods {
            let step = if pod.deleting { Step::Gone } else { Step::Bind };
            if !self.stuck.contains(&pod.uid) {
                self.after(500, Happening::Node(pod.uid, step));
            }
        }
    }

    pub fn delete_pod(&mut self, uid: &Uid) {
        let Some(stored) = self.cluster.pods.values().find(|s| s.pod.uid == *uid) else { return };
        if stored.pod.node.is_none() || stored.pod.phase.is_final() {
            self.cluster.remove(uid);
        } else if !stored.pod.deleting {
            self.cluster.update(uid, |pod| pod.deleting = true);
            let ms = self.rng.below(2_000);
            self.after(ms, Happening::Node(uid.clone(), Step::Gone));
        }
    }

    pub fn live(&mut self, uid: &Uid, step: Step) {
        let Some(stored) = self.cluster.pods.values().find(|s| s.pod.uid == *uid) else { return };
        let pod = stored.pod.clone();
        if self.stuck.contains(uid) && (pod.deleting || matches!(step, Step::Die | Step::Gone)) {
            return;
        }
        let ms = 1 + self.rng.below(1_500);
        match step {
            Step::Gone if pod.deleting => {
                if self.rng.chance(30) && !pod.phase.is_final() {
                    self.cluster.update(uid, |pod| end(pod, 143, "Error"));
                    self.after(ms, Happening::Node(uid.clone(), Step::Gone));
                } else {
                    self.cluster.remove(uid);
                }
            }
            Step::Gone => {}
            _ if is_over(&pod) => {}
            Step::Bind => {
                if pod.node.is_none() && self.rng.chance(self.profile.unschedulable) {
                    self.cluster.update(uid, |pod| pod.unschedulable = true);
                    self.after(20 * ms, Happening::Node(uid.clone(), Step::Bind));
                    return;
                }
                if self.rng.chance(self.profile.stuck / 4) && !self.is_calm {
                    self.stuck.insert(uid.clone());
                }
                let is_lost = self.stuck.contains(uid) && self.rng.chance(50);
                let node = if is_lost { LOST_NODE } else { "node" };
                self.cluster.update(uid, |pod| {
                    pod.unschedulable = false;
                    pod.node = Some(node.into());
                });
                self.after(ms, Happening::Node(uid.clone(), Step::Run));
            }
            Step::Run => {
                self.cluster.update(uid, |pod| {
                    pod.phase = Phase::Running;
                    pod.container = ContainerState::Running;
                });
                self.after(ms, Happening::Node(uid.clone(), Step::Ready));
                let ms = 1 + self.rng.below(self.profile.die_ms);
                self.after(ms, Happening::Node(uid.clone(), Step::Die));
            }
            Step::Ready => self.cluster.update(uid, |pod| pod.ready = true),
            Step::Die if self.rng.chance(self.profile.delete_by_others) => {
                if self.rng.chance(30) {
                    self.cluster.remove(uid);
                } else {
                    self.delete_pod(uid);
                }
            }
            Step::Die if self.rng.chance(self.profile.die) => self.die(uid),
            Step::Die => {}
        }
    }

    fn die(&mut self, uid: &Uid) {
        match self.rng.below(5) {
            0 => self.cluster.update(uid, |pod| end(pod, 0, "Completed")),
            1 => self.cluster.update(uid, |pod| end(pod, 137, "OOMKilled")),
            2 => {
                self.cluster.update(uid, |pod| {
                    let disruption = "EvictionByEvictionAPI".into();
                    pod.end = Some(Box::new(End { disruption, ..End::default() }));
                });
                self.delete_pod(uid);
            }
            // A side-car goes on.
            3 => self.cluster.update(uid, |pod| pod.container = ContainerState::Ended),
            _ => self.cluster.update(uid, |pod| end(pod, 1, "Error")),
        }
    }
}

fn end(pod: &mut Pod, code: i32, reason: &str) {
    pod.phase = if code == 0 { Phase::Succeeded } else { Phase::Failed };
    pod.container = ContainerState::Ended;
    pod.ready = false;
    let end = End { exit_code: Some(code), container_reason: reason.into(), ..End::default() };
    pod.end = Some(Box::new(end));
}
