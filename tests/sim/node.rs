//! Owns the life of pods: scheduler, kubelet, evictions, and people who delete things.

use posse::core::ids::Uid;
use posse::core::pod::{ContainerState, End, Phase, Pod};

use super::cluster::{Cause, is_over};
use super::world::{Happening, Step, World};

const N_NODES: u64 = 3;

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
        let stored = stored.clone();
        self.cluster.blame(uid, Cause::Other);
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
                let node = format!("node-{}", self.rng.below(N_NODES));
                self.cluster.update(uid, |pod| {
                    pod.unschedulable = false;
                    pod.node = Some(node.clone().into());
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
                    self.cluster.blame(uid, Cause::Other);
                    self.cluster.remove(uid);
                } else {
                    self.delete_pod(uid);
                }
            }
            Step::Die if self.rng.chance(self.profile.die) => self.die(uid),
            Step::Die => {}
        }
    }

    /// A node goes: what was on it is told to end, hangs for a while, and is gone.
    pub fn lose_node(&mut self) {
        let node = format!("node-{}", self.rng.below(N_NODES));
        let on_it = |pod: &Pod| pod.node.as_deref() == Some(&*node) && !is_over(pod);
        let stored = self.cluster.pods.values().filter(|s| on_it(&s.pod));
        let uids: Vec<Uid> = stored.map(|s| s.pod.uid.clone()).collect();
        for uid in uids {
            self.cluster.blame(&uid, Cause::Cluster);
            if self.rng.chance(50) {
                // One write after the other, as the controllers do it.
                self.cluster.update(&uid, |pod| disrupt(pod, "DeletionByTaintManager"));
                self.cluster.update(&uid, |pod| pod.deleting = true);
            } else {
                self.cluster.update(&uid, |pod| {
                    disrupt(pod, "DeletionByPodGC");
                    pod.phase = Phase::Failed;
                });
                self.cluster.update(&uid, |pod| pod.deleting = true);
            }
            let ms = self.rng.below(60_000);
            self.after(ms, Happening::Node(uid, Step::Gone));
        }
    }

    fn die(&mut self, uid: &Uid) {
        let draw = self.rng.below(7);
        self.cluster.blame(
            uid,
            match draw {
                0 => Cause::Other,
                2 | 4 | 5 => Cause::Cluster,
                _ => Cause::App,
            },
        );
        match draw {
            0 => self.cluster.update(uid, |pod| end(pod, 0, "Completed")),
            1 => self.cluster.update(uid, |pod| end(pod, 137, "OOMKilled")),
            2 => {
                self.cluster.update(uid, |pod| disrupt(pod, "EvictionByEvictionAPI"));
                self.delete_pod(uid);
            }
            // A side-car goes on.
            3 => self.cluster.update(uid, |pod| {
                end(pod, 1, "Error");
                pod.phase = Phase::Running;
            }),
            // A drain: the executor ends at once, its side-car takes its time.
            4 => {
                self.cluster.update(uid, |pod| disrupt(pod, "EvictionByEvictionAPI"));
                self.cluster.update(uid, |pod| pod.deleting = true);
                self.cluster.update(uid, |pod| {
                    pod.container = ContainerState::Ended;
                    if let Some(end) = &mut pod.end {
                        (end.exit_code, end.container_reason) = (Some(143), "Error".into());
                    }
                });
                let ms = 1 + self.rng.below(20_000);
                self.after(ms, Happening::Node(uid.clone(), Step::Gone));
            }
            // The kubelet makes room by itself.
            5 => self.cluster.update(uid, |pod| {
                end(pod, 137, "Error");
                if let Some(end) = &mut pod.end {
                    end.pod_reason = "Evicted".into();
                }
            }),
            _ => self.cluster.update(uid, |pod| end(pod, 1, "Error")),
        }
    }
}

fn disrupt(pod: &mut Pod, reason: &str) {
    let mut end = pod.end.take().unwrap_or_default();
    end.disruption = reason.into();
    pod.end = Some(end);
}

fn end(pod: &mut Pod, code: i32, reason: &str) {
    pod.phase = if code == 0 { Phase::Succeeded } else { Phase::Failed };
    pod.container = ContainerState::Ended;
    pod.ready = false;
    let before = pod.end.take().unwrap_or_default();
    let end = End { exit_code: Some(code), container_reason: reason.into(), ..*before };
    pod.end = Some(Box::new(end));
}
