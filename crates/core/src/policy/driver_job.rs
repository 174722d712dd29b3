//! Decides whether a driver in a Job is tried again: which ends of its earlier pods count as failures,
//! and when the Job has to end. The Job's own count includes drained, evicted and lost pods.

use std::ops::RangeInclusive;

use crate::model::event::LossReason;
use crate::model::ids::Uid;
use crate::model::pod::{Phase, Pod};
use crate::policy::loss::{Loss, classify};
use crate::state::executors::has_ended;

/// Exit codes that another pod would end with as well: invalid input, a refused template, a spent
/// failure budget.
const FINAL_CODES: [i32; 3] = [2, 4, 11];
/// Another driver of the application has taken over: not a failure.
const TAKEN_OVER_CODE: i32 = 13;
/// 128 plus the number of a signal: Linux has 64.
const SIGNAL_CODES: RangeInclusive<i32> = 129..=192;
/// A pod that ends its Job is there for so long at least, in milliseconds. The Job's controller deletes what runs
/// when the Job ends, and with it a log that nobody could open yet: a kubelet tells only then that a container runs.
const SHOWN_MS: u64 = 2_000;
/// How many pods in a row may end before posse runs in one: the Job's limit is this much above the
/// number of its failed pods, and every pod renews it.
const UNCOUNTED_MAX: u64 = 50;

/// The earlier pods of a Job that failed by the driver's own doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedPods {
    pub n: u64,
    /// The exit code of the last one; none if its pod has no code.
    pub last_code: Option<i32>,
    /// Another one has ended with 0: this pod has stood by for it.
    pub is_done: bool,
}

/// How a pod of the Job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodEnd {
    /// The exit code of posse.
    pub code: u8,
    /// A signal was the first reason: the pod is drained, or the Job is stopped.
    pub is_signalled: bool,
    /// The run ended because it had nothing more to do: another pod would find nothing either.
    pub is_idle: bool,
    /// Other containers of the pod have not ended with 0: the Job will see a failed pod, whatever the code.
    pub has_rest: bool,
}

/// Why a Job must not create another pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// This exit code would occur again.
    Final { code: u8 },
    /// `n` pods failed, the last one with this exit code, and no retry is left.
    Spent { n: u64, code: u8 },
    /// The driver has ended with 0: its pod will not, or this one has stood by for it.
    Done,
}

impl JobEnd {
    /// The end that an earlier pod has written into its Job.
    pub fn told(code: u8) -> Self {
        if code == 0 { Self::Done } else { Self::Final { code } }
    }

    /// The application's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Final { code } | Self::Spent { code, .. } => code,
            Self::Done => 0,
        }
    }
}

impl FailedPods {
    /// Counts the pods of this Job whose driver failed, except our own pod. A pod that was evicted, drained,
    /// preempted, deleted or lost with its node did not fail by its own doing. Without a program, neither did one in which
    /// posse was killed: the next one goes on, however often that has happened in the life of the Job.
    pub fn of(pods: &[Pod], job: &Uid, ours: &Uid, has_program: bool) -> Self {
        let is_earlier =
            |pod: &&Pod| pod.owner.as_ref() == Some(job) && pod.uid != *ours && has_ended(pod);
        let losses = pods.iter().filter(is_earlier).map(|pod| (pod, classify(pod, false)));
        let mut failed: Vec<(&Pod, Option<i32>)> = losses
            .filter(|(_, loss)| loss.caused_by_app() && loss.exit_code != Some(TAKEN_OVER_CODE))
            .filter(|(pod, loss)| has_program || !is_killed(pod, loss))
            .map(|(pod, loss)| (pod, loss.exit_code))
            .collect();
        failed.sort_by_key(|(pod, _)| pod.version);
        let n = u64::try_from(failed.len()).unwrap_or(u64::MAX);
        let is_done = pods.iter().filter(is_earlier).any(|pod| pod.phase == Phase::Succeeded);
        Self { n, last_code: failed.last().and_then(|(_, code)| *code), is_done }
    }

    /// Whether the Job has to end before the driver is started: a pod that was killed together
    /// with posse could not end it.
    pub fn at_start(&self, retries: u32) -> Option<JobEnd> {
        let code = self.last_code.map_or(1, |code| u8::try_from(code & 0xff).unwrap_or(1));
        match self.last_code {
            _ if self.is_done => Some(JobEnd::Done),
            Some(last) if FINAL_CODES.contains(&last) => Some(JobEnd::Final { code }),
            _ if self.n > u64::from(retries) => Some(JobEnd::Spent { n: self.n, code }),
            _ => None,
        }
    }

    /// Whether the Job has to end with this pod.
    pub fn at_end(&self, end: PodEnd, retries: u32) -> Option<JobEnd> {
        let PodEnd { code, is_signalled, is_idle, has_rest } = end;
        let number = i32::from(code);
        let n = self.n.saturating_add(1);
        match code {
            0 if has_rest && !is_signalled => Some(JobEnd::Done),
            _ if is_signalled || number == 0 || number == TAKEN_OVER_CODE => None,
            code if is_idle || FINAL_CODES.contains(&number) => Some(JobEnd::Final { code }),
            code => (n > u64::from(retries)).then_some(JobEnd::Spent { n, code }),
        }
    }
}

/// The main container has ended by a signal, or because there was no memory for it.
fn is_killed(pod: &Pod, loss: &Loss) -> bool {
    let is_of_signal = |code| {
        SIGNAL_CODES.contains(&code) || pod.end.as_ref().is_some_and(|end| end.signal.is_some())
    };
    loss.exit_code.is_some_and(|code| {
        loss.reason == LossReason::OomKilled
            || loss.reason == LossReason::AppError && is_of_signal(code)
    })
}

/// How long the end of a Job waits for the log of its last pod to be opened. `lives_ms`: since when that one runs;
/// `n_failed`: `status.failed`, none if it is unknown. A Job without a failure runs its pod to the end.
pub fn end_wait_ms(lives_ms: u64, n_failed: Option<u64>) -> u64 {
    if n_failed == Some(0) { 0 } else { SHOWN_MS.saturating_sub(lives_ms) }
}

/// The `backoffLimit` of a Job whose failures posse counts. `n_failed`: `status.failed`.
pub fn backoff_limit(n_failed: u64) -> u64 {
    // The field is a signed number of 32 bits.
    n_failed.saturating_add(UNCOUNTED_MAX).min(0x7fff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::{ContainerState, End, InitEnd};
    use crate::testing::pod;

    /// A pod of the Job that ended at `version`: exit code, the container's reason, the pod's reason.
    fn ended(version: u64, code: i32, container_reason: &str, pod_reason: &str) -> Pod {
        let end = End {
            exit_code: Some(code),
            container_reason: container_reason.into(),
            pod_reason: pod_reason.into(),
            ..End::default()
        };
        Pod {
            owner: Some(Uid::new("job")),
            phase: Phase::Failed,
            container: ContainerState::Ended,
            end: Some(Box::new(end)),
            ..pod(version, version)
        }
    }

    fn failed(pods: &[Pod]) -> FailedPods {
        FailedPods::of(pods, &Uid::new("job"), &Uid::new("uid-9"), true)
    }

    #[test]
    fn only_failures_of_the_drivers_own_doing_count() {
        let deleted = Pod { deleting: true, ..ended(1, 143, "Error", "") };
        let drained = |mut pod: Pod| {
            let end = pod.end.as_mut().expect("it has ended");
            end.disruption = "EvictionByEvictionAPI".into();
            pod
        };
        let of_other_job = Pod { owner: Some(Uid::new("old")), ..ended(1, 1, "Error", "") };
        // Its side-car runs on.
        let running = Pod { phase: Phase::Running, ..ended(1, 1, "Error", "") };
        let alive = Pod {
            phase: Phase::Running,
            container: ContainerState::Running,
            ..ended(1, 1, "", "")
        };
        // Its side-car failed.
        let done = ended(1, 0, "Completed", "");
        for (pod, counts) in [
            (ended(1, 1, "Error", ""), true),
            (ended(1, 3, "Error", ""), true),
            (ended(1, 137, "OOMKilled", ""), true),
            (ended(1, 128, "StartError", ""), true),
            (ended(1, 1, "Error", "DeadlineExceeded"), true),
            (ended(1, 13, "Error", ""), false),
            (ended(1, 137, "Error", "Evicted"), false),
            (ended(1, 137, "Error", "NodeLost"), false),
            (ended(1, 143, "Error", "Terminated"), false),
            (ended(1, 137, "ContainerStatusUnknown", ""), false),
            (deleted, false),
            (drained(ended(1, 1, "Error", "")), false),
            (of_other_job, false),
            (running, true),
            (alive, false),
            (done, false),
            (ended(9, 1, "Error", ""), false),
        ] {
            assert_eq!(failed(std::slice::from_ref(&pod)).n, u64::from(counts), "{pod:?}");
        }
    }

    /// Else a queue loses all that it has acknowledged because somebody has killed its posse four times in a month.
    #[test]
    fn without_a_program_only_posses_own_exit_codes_count() {
        const OVER_ITS_REQUEST: &str = "The node was low on resource: memory. Container w was \
            using 9Gi, request is 1Gi, has larger consumption of memory. ";
        let evicted = |message: &str| {
            let mut pod = ended(1, 137, "Error", "Evicted");
            pod.end.as_mut().expect("it has ended").pod_message = message.into();
            pod
        };
        let by_signal = |mut pod: Pod, signal| {
            pod.end.as_mut().expect("it has ended").signal = Some(signal);
            pod
        };
        // posse has not begun.
        let of_init = |mut pod: Pod| {
            let end = pod.end.as_mut().expect("it has ended");
            let [name, reason, message] = ["copy", "OOMKilled", ""].map(Into::into);
            end.init = Some(Box::new(InitEnd { name, exit_code: 137, reason, message }));
            (end.exit_code, pod.container) = (None, ContainerState::Waiting);
            pod
        };
        for (pod, counts) in [
            (ended(1, 137, "Error", ""), false),
            (ended(1, 137, "OOMKilled", ""), false),
            // The kernel has killed another process of the container.
            (ended(1, 1, "OOMKilled", ""), false),
            (evicted(OVER_ITS_REQUEST), false),
            (ended(1, 143, "Error", ""), false),
            (ended(1, 139, "Error", ""), false),
            (by_signal(ended(1, 9, "Error", ""), 9), false),
            (ended(1, 1, "Error", ""), true),
            (ended(1, 3, "Error", ""), true),
            (ended(1, 4, "Error", ""), true),
            (ended(1, 128, "Error", ""), true),
            (ended(1, 128, "StartError", ""), true),
            (ended(1, 193, "Error", ""), true),
            (ended(1, 255, "Error", ""), true),
            (ended(1, 137, "Error", "DeadlineExceeded"), true),
            (of_init(ended(1, 137, "", "")), true),
        ] {
            let pods = std::slice::from_ref(&pod);
            let of = |has_program| {
                FailedPods::of(pods, &Uid::new("job"), &Uid::new("uid-9"), has_program)
            };
            assert_eq!(of(false).n, u64::from(counts), "{pod:?}");
            assert_eq!(of(true).n, 1, "{pod:?}");
        }
    }

    #[test]
    fn a_job_ends_when_its_retries_are_spent_or_the_code_is_final() {
        let none = failed(&[]);
        let two = failed(&[ended(5, 7, "Error", ""), ended(3, 1, "Error", "")]);
        assert_eq!((two.n, two.last_code), (2, Some(7)));
        let end = |code| PodEnd { code, is_signalled: false, is_idle: false, has_rest: false };
        let spent = |n, code| Some(JobEnd::Spent { n, code });
        for (earlier, code, retries, want) in [
            (&none, 0, 0, None),
            (&none, 1, 0, spent(1, 1)),
            (&none, 1, 1, None),
            (&none, 3, 3, None),
            (&two, 137, 2, spent(3, 137)),
            (&two, 137, 3, None),
            (&none, 2, 3, Some(JobEnd::Final { code: 2 })),
            (&none, 4, 3, Some(JobEnd::Final { code: 4 })),
            (&none, 11, 3, Some(JobEnd::Final { code: 11 })),
            (&none, 12, 3, None),
            (&two, 13, 0, None),
        ] {
            assert_eq!(earlier.at_end(end(code), retries), want, "{code} of {retries}");
            let behind = PodEnd { has_rest: true, ..end(code) };
            let want_behind = if code == 0 { Some(JobEnd::Done) } else { want };
            assert_eq!(earlier.at_end(behind, retries), want_behind, "{code} of {retries}");
            let drained = PodEnd { is_signalled: true, has_rest: true, ..end(code) };
            let idle = PodEnd { is_idle: true, ..end(code) };
            let is_failed = ![0, 13].contains(&code);
            let want_idle = is_failed.then_some(JobEnd::Final { code });
            assert_eq!(earlier.at_end(idle, retries), want_idle, "{code}");
            assert_eq!(earlier.at_end(drained, retries), None, "{code} of {retries}");
        }
    }

    #[test]
    fn a_start_ends_the_job_of_a_pod_that_could_not() {
        let killed = ended(1, 137, "OOMKilled", "");
        let final_code = ended(2, 4, "Error", "");
        for (pods, retries, want) in [
            (vec![], 0, None),
            (vec![killed.clone()], 1, None),
            (vec![killed.clone()], 0, Some(JobEnd::Spent { n: 1, code: 137 })),
            (vec![killed, final_code], 9, Some(JobEnd::Final { code: 4 })),
        ] {
            assert_eq!(failed(&pods).at_start(retries), want, "{pods:?} of {retries}");
        }
        let done = Pod { phase: Phase::Succeeded, ..ended(1, 0, "Completed", "") };
        assert_eq!(failed(&[done]).at_start(0), Some(JobEnd::Done), "this one has stood by");
        let unknown = FailedPods { n: 1, ..FailedPods::default() };
        assert_eq!(unknown.at_start(0).map(JobEnd::code), Some(1));
    }

    #[test]
    fn the_limit_is_above_what_the_job_has_counted() {
        assert_eq!(backoff_limit(0), 50);
        assert_eq!(backoff_limit(10), 60);
        assert_eq!(backoff_limit(u64::MAX), 2_147_483_647);
    }

    /// Else a Job that has failed pods ends with `backoffLimit: 0` at once, and this pod is deleted.
    #[test]
    fn the_last_pod_of_a_job_lives_long_enough_for_its_log() {
        for (lives_ms, n_failed, want) in [
            (100, Some(1), 1_900),
            (100, None, 1_900),
            (100, Some(0), 0),
            (2_000, Some(3), 0),
            (60_000, Some(3), 0),
        ] {
            assert_eq!(end_wait_ms(lives_ms, n_failed), want, "{lives_ms} {n_failed:?}");
        }
    }
}
