//! The life of simulated pods: scheduler, kubelet, evictions, and deletions by people.

use std::sync::Arc;

use posse_base::rng::Rng;
use posse_core::model::action::Action;
use posse_core::model::ids::Uid;
use posse_core::model::input::PodAnswer;
use posse_core::model::pod::{
    ContainerState, End, Phase, Pod, Rest, StartProblem, StartProblemKind,
};
use posse_core::model::settings::RecordUse;

use super::cluster::{Cause, is_over};
use super::faults::{NodeFaults, at};
use super::trace::trace;
use super::world::{Happening, Step, World};
use crate::core_run::with_memory;

/// The grace period of a pod that ignores its signals. The node goes on with it although the stop
/// shortens it on the server.
const LONG_GRACE_S: u32 = 30;

/// The image of a shape that no node fits as long as there are faults.
pub const LATE_IMAGE: &str = "late";

/// A node whose object is deleted, with its pods.
pub const LOST_NODE: &str = "lost";

impl World {
    /// The same world with start and node problems.
    pub fn with_node_faults(seed: u64) -> Self {
        let mut world = Self::new(seed);
        let mut rng = Rng::new(!seed);
        world.profile.node_faults = NodeFaults::draw(&mut rng, &mut world.policy);
        for group in &mut world.groups {
            if rng.chance(50) {
                let pod = group.pod.take().map(Arc::unwrap_or_clone).unwrap_or_default();
                group.pod = with_memory(pod, &["2Gi", "3Gi"]);
            }
        }
        trace(|| format!("{:?}", world.profile.node_faults));
        world.node_faults_rng = rng;
        world
    }

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
            } else if pod.node.is_none() {
                // Nobody schedules it again.
                self.check.unbound(&pod.uid, self.now);
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
            let has_long_grace = self.node_faults_rng.chance(self.profile.node_faults.long_grace);
            let grace_s = if has_long_grace { LONG_GRACE_S } else { 2 };
            self.cluster.update(uid, |pod| (pod.deleting, pod.deletion_grace_s) = (true, grace_s));
            let ms = self.rng.below(2_000) + 1_000 * u64::from(grace_s - 2);
            self.after(ms, Happening::Node(uid.clone(), Step::Gone));
            if has_long_grace {
                self.check.late_ends.insert(uid.clone(), self.now + ms);
            }
        }
    }

    /// Half of the kills of a run with a record take the driver's pod: the garbage collector deletes its executors, and
    /// what its late creates would make. The next process owns none of these.
    pub fn lose_driver_pod(&mut self) {
        if self.policy.record != RecordUse::On || !self.calls_rng.chance(50) {
            return;
        }
        let ours = self.cluster.pods.values().filter(|stored| stored.is_ours());
        let uids: Vec<Uid> = ours.map(|stored| stored.pod.uid.clone()).collect();
        for uid in uids {
            self.delete_pod(&uid);
        }
        self.requests.retain(|_, request| !matches!(request.action, Action::Create { .. }));
    }

    /// The nodes whose pods did not end are back.
    pub fn free_the_stuck(&mut self) {
        for uid in std::mem::take(&mut self.stuck) {
            if self.cluster.pods.values().any(|s| s.pod.uid == uid && s.pod.deleting) {
                self.after(10, Happening::Node(uid, Step::Gone));
            }
        }
    }

    pub fn schedule_unlabelling(&mut self, end: u64) {
        // Drawn from a copy, so that older seeds keep their meaning.
        let mut rng = self.rng.clone();
        if rng.chance(20) {
            for _ in 0..=rng.below(6) {
                self.at(rng.below(end), Happening::Unlabel(rng.below(1_000)));
            }
        }
    }

    /// Somebody removes a label of one of our pods, which lives on.
    pub fn unlabel(&mut self, draw: u64) {
        let ours = self.cluster.pods.values().filter(|s| s.is_ours() && !is_over(&s.pod));
        // What posse itself ends is over.
        let ours = ours.filter(|stored| !self.check.is_going(&stored.pod.uid));
        let ours: Vec<Uid> = ours.map(|stored| stored.pod.uid.clone()).collect();
        let nth = draw.checked_rem(ours.len() as u64).unwrap_or(0);
        if let Some(uid) = ours.get(usize::try_from(nth).unwrap()) {
            trace(|| format!("{:>9} {uid} loses its label", self.now));
            self.cluster.unlabel(uid);
        }
    }

    pub fn live(&mut self, uid: &Uid, step: Step) {
        let Some(stored) = self.cluster.pods.values().find(|s| s.pod.uid == *uid) else { return };
        let pod = stored.pod.clone();
        if stored.is_impostor() {
            return;
        }
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
            Step::SideCar => self.end_side_car(uid, &pod),
            _ if is_over(&pod) => {}
            Step::Bind => {
                let is_bound = pod.node.is_some();
                if !is_bound && self.has_no_node(&pod) {
                    return self.wait_unbound(uid, StartProblemKind::Unschedulable, 20 * ms);
                }
                if !is_bound && self.rng.chance(self.profile.unschedulable) {
                    return self.wait_unbound(uid, StartProblemKind::Unschedulable, 20 * ms);
                }
                if !is_bound && self.node_faults_rng.chance(self.profile.node_faults.gated) {
                    return self.wait_unbound(uid, StartProblemKind::Gated, 20 * ms);
                }
                let node = pod.node.clone().or_else(|| self.place(uid));
                let Some(node) = node else {
                    return self.wait_unbound(uid, StartProblemKind::Unschedulable, 5_000);
                };
                if self.rng.chance(self.profile.stuck / 4) && !self.is_calm {
                    self.stuck.insert(uid.clone());
                }
                let is_lost = self.stuck.contains(uid) && self.rng.chance(50);
                let node = if is_lost { LOST_NODE.into() } else { node };
                self.cluster.update(uid, |pod| {
                    pod.start_problem = stuck(StartProblemKind::Creating);
                    pod.node = Some(node);
                });
                self.check.bound(uid, self.now);
                self.after(ms, Happening::Node(uid.clone(), Step::Run));
            }
            Step::Run if self.is_held_up(uid, &pod) => {}
            Step::Run => {
                self.cluster.update(uid, |pod| {
                    pod.start_problem = None;
                    pod.phase = Phase::Running;
                    pod.container = ContainerState::Running;
                });
                self.check.running(uid, self.now);
                if self.profile.ends_at_once > 0 && self.rng.chance(self.profile.ends_at_once) {
                    return self.end_at_once(uid);
                }
                self.after(ms, Happening::Node(uid.clone(), Step::Ready));
                let ms = 1 + self.rng.below(self.profile.die_ms);
                self.after(ms, Happening::Node(uid.clone(), Step::Die));
            }
            Step::Ready => self.cluster.update(uid, |pod| pod.ready = true),
            Step::Die => self.meet_end(uid, &pod),
        }
    }

    /// No node fits the pod.
    fn has_no_node(&self, pod: &Pod) -> bool {
        let image = pod.task.as_ref().and_then(|run| run.task.image.as_deref());
        let is_late = image == Some(LATE_IMAGE) && !self.is_calm;
        is_late || self.profile.server_faults.is_unplaced(&pod.group)
    }

    /// What may happen to a running executor.
    fn meet_end(&mut self, uid: &Uid, pod: &Pod) {
        if self.impostors_rng.chance(self.profile.max_age) {
            self.cluster.blame(uid, Cause::Other);
            self.cluster.update(uid, |pod| {
                end(pod, 137, "Error");
                if let Some(end) = &mut pod.end {
                    (end.pod_reason, end.has_max_age) = ("DeadlineExceeded".into(), true);
                }
            });
        } else if self.is_lost_with_its_node(pod) {
            self.lose_with_its_node(uid);
        } else if self.rng.chance(self.profile.delete_by_others) {
            if self.rng.chance(30) {
                self.cluster.blame(uid, Cause::Other);
                self.cluster.remove(uid);
            } else {
                self.delete_pod(uid);
            }
        } else if self.rng.chance(self.profile.die) {
            self.die(uid);
        } else if self.profile.has_work {
            self.cluster.blame(uid, Cause::Other);
            self.cluster.update(uid, |pod| end(pod, 0, "Completed"));
        }
    }

    pub fn note_avoided(&mut self, seen: &PodAnswer, avoid: &Arc<Vec<String>>) {
        if let PodAnswer::Ours(pod) = seen {
            self.avoided.insert(pod.uid.clone(), Arc::clone(avoid));
        }
    }

    /// The scheduler reports why it does not bind the pod, and tries again later.
    fn wait_unbound(&mut self, uid: &Uid, kind: StartProblemKind, ms: u64) {
        self.cluster.update(uid, |pod| pod.start_problem = stuck(kind));
        self.check.unbound(uid, self.now);
        self.after(ms, Happening::Node(uid.clone(), Step::Bind));
    }

    /// A node for the pod; none if the pod avoids all of them.
    fn place(&mut self, uid: &Uid) -> Option<Box<str>> {
        let n = self.profile.node_faults.n_nodes.max(1);
        let first = self.node_faults_rng.below(n);
        let names = (0..n).map(|i| format!("n{}", (first + i) % n));
        let avoided = self.avoided.get(uid);
        let mut free = names.filter(|name| avoided.is_none_or(|all| !all.contains(name)));
        free.next().map(Into::into)
    }

    fn is_on_bad_node(&self, pod: &Pod) -> bool {
        let bad = self.profile.node_faults.bad_node.map(|i| format!("n{i}"));
        bad.is_some() && pod.node.as_deref() == bad.as_deref()
    }

    /// True if this start goes wrong; another attempt follows.
    fn is_held_up(&mut self, uid: &Uid, pod: &Pod) -> bool {
        let node_faults = self.profile.node_faults.clone();
        let rng = &mut self.node_faults_rng;
        let kind = match (rng.chance(node_faults.image_error), rng.chance(node_faults.config_error))
        {
            (true, _) => StartProblemKind::Image,
            (false, true) => StartProblemKind::Config,
            (false, false) if rng.chance(node_faults.stuck_start) => StartProblemKind::Creating,
            (false, false) if self.is_on_bad_node(pod) => StartProblemKind::Creating,
            (false, false) => return false,
        };
        let ms = 5_000 + self.node_faults_rng.below(20_000);
        self.cluster.update(uid, |pod| pod.start_problem = stuck(kind));
        self.after(ms, Happening::Node(uid.clone(), Step::Run));
        true
    }

    fn is_lost_with_its_node(&mut self, pod: &Pod) -> bool {
        self.is_on_bad_node(pod) || self.node_faults_rng.chance(self.profile.node_faults.node_loss)
    }

    /// The node is lost, or runs short of a resource.
    fn lose_with_its_node(&mut self, uid: &Uid) {
        self.cluster.blame(uid, Cause::Cluster);
        let pod_reason = ["NodeLost", "Evicted"][at(&mut self.node_faults_rng, 2)];
        self.cluster.update(uid, |pod| {
            pod.phase = Phase::Failed;
            pod.end = Some(Box::new(End { pod_reason: pod_reason.into(), ..End::default() }));
        });
        self.check.lost_by_node(uid);
    }

    /// A node is lost: its pods are deleted, stay terminating for a while, and are gone.
    pub fn lose_node(&mut self) {
        let node = format!("n{}", self.rng.below(self.profile.node_faults.n_nodes.max(1)));
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

    /// A retained pod's side-car ends, too.
    fn end_side_car(&mut self, uid: &Uid, pod: &Pod) {
        if !pod.deleting && pod.container == ContainerState::Ended {
            self.cluster.update(uid, |pod| {
                pod.phase = Phase::Failed;
                set_rest(pod, None);
            });
        }
    }

    /// Its command returns, or its node evicts it, as soon as it runs.
    fn end_at_once(&mut self, uid: &Uid) {
        let is_evicted = self.rng.chance(50);
        self.cluster.blame(uid, if is_evicted { Cause::Cluster } else { Cause::Other });
        self.cluster.update(uid, |pod| {
            end(pod, if is_evicted { 137 } else { 0 }, "Error");
            if let Some(end) = pod.end.as_mut().filter(|_| is_evicted) {
                end.pod_reason = "Evicted".into();
            }
        });
    }

    fn die(&mut self, uid: &Uid) {
        let draw = if self.profile.only_crashes { 1 } else { self.rng.below(7) };
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
            // A side-car continues to run.
            3 => {
                self.cluster.update(uid, |pod| {
                    end(pod, 1, "Error");
                    pod.phase = Phase::Running;
                    set_rest(pod, Some(Rest { from_s: 9, deadline_s: None }));
                });
                let ms = 1 + self.impostors_rng.below(60_000);
                // Another one ends only by the deadline that posse sets.
                if ms > REST_MS {
                    self.after(ms, Happening::Node(uid.clone(), Step::SideCar));
                }
            }
            // A drain: the executor ends at once, its side-car ends later.
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
            // The kubelet evicts the pod by itself.
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

/// How long side-cars run on after the deadline was set.
pub const REST_MS: u64 = 30_000;

/// Something runs on in the pod, or has ended.
fn set_rest(pod: &mut Pod, rest: Option<Rest>) {
    if let Some(end) = &mut pod.end {
        end.rest = rest;
    }
}

pub fn set_deadline(pod: &mut Pod, seconds: u32) {
    if let Some(rest) = pod.end.as_mut().and_then(|end| end.rest.as_mut()) {
        rest.deadline_s = Some(seconds);
    }
}

pub fn end(pod: &mut Pod, code: i32, reason: &str) {
    pod.phase = if code == 0 { Phase::Succeeded } else { Phase::Failed };
    pod.container = ContainerState::Ended;
    pod.ready = false;
    let before = pod.end.take().unwrap_or_default();
    let end = End { exit_code: Some(code), container_reason: reason.into(), ..*before };
    pod.end = Some(Box::new(end));
}

fn stuck(kind: StartProblemKind) -> Option<Box<StartProblem>> {
    Some(Box::new(StartProblem { kind, message: format!("{kind:?}").into(), n_started: 0 }))
}
