//! Decides the next step of a Job: which pods count as succeeded or failed, how many pods to create
//! or delete, and whether the job has finished. Pure: no clock, store or JSON.

use std::collections::BTreeSet;

use posse_base::time::Millis;

/// The parts of a Job's spec that matter here.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) parallelism: usize,
    /// `None`: one successful pod is enough.
    pub(super) completions: Option<usize>,
    pub(super) backoff_limit: u64,
    pub(super) deadline_seconds: Option<i64>,
    pub(super) suspend: bool,
    /// `podReplacementPolicy: Failed`: a terminating pod is replaced only after its end.
    pub(super) replace_failed_only: bool,
    pub(super) restarts_on_failure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Failed,
    Pending,
    Running,
    Succeeded,
}

/// The action of the job's `podFailurePolicy` for a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    Count,
    /// Fail the job with this message.
    FailJob(String),
    Ignore,
}

#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) uid: Box<str>,
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) deleting: bool,
    /// The object was deleted; the other fields are its last state.
    pub(super) gone: bool,
    pub(super) restarts: u64,
    pub(super) failure_action: FailureAction,
}

/// The counts of the job's pods so far. Each pod counts once, also after its deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct JobCounts {
    pub(super) succeeded: usize,
    pub(super) failed: u64,
    /// Existing pods that have been counted or that the job itself deleted.
    processed: BTreeSet<Box<str>>,
    /// The number of steps in a row that found failed pods and no successful one.
    failures_in_a_row: u32,
    last_failure: Millis,
}

/// Whether the job has finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    Failed { reason: &'static str, message: String },
    Open,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobStep {
    pub(super) outcome: Outcome,
    /// The uids of pods to delete.
    pub(super) delete: Vec<Box<str>>,
    /// The number of pods to create.
    pub(super) create: usize,
    /// The number of active pods after this step.
    pub(super) active: usize,
    pub(super) ready: usize,
    pub(super) terminating: usize,
    /// When to run the next step even if nothing changes.
    pub(super) due: Option<Millis>,
}

/// The real controller's base and maximum. After the first failure there is no delay.
const BACKOFF_MS: u64 = 10_000;
const BACKOFF_MS_MAX: u64 = 360_000;
/// The most pods to create or delete in one step.
const PODS_MAX: usize = 500;

/// Counts the pods that ended and decides what to do next. `age_seconds` is how long the job has
/// been active.
pub(super) fn next_step(
    spec: &Spec,
    counts: &mut JobCounts,
    pods: &[Pod],
    now: Millis,
    age_seconds: i64,
) -> JobStep {
    let fail_job = counts.count(spec, pods, now);
    let open: Vec<&Pod> = pods
        .iter()
        .filter(|pod| !pod.gone && !counts.processed.contains(&pod.uid) && !is_over(pod.phase))
        .collect();
    let terminating = pods.iter().filter(|pod| !pod.gone && pod.deleting && !is_over(pod.phase));
    let mut step = JobStep {
        outcome: Outcome::Open,
        delete: Vec::new(),
        create: 0,
        active: open.iter().filter(|pod| !pod.deleting).count(),
        ready: open.iter().filter(|pod| pod.ready).count(),
        terminating: terminating.count(),
        due: None,
    };
    if let Some((reason, message)) = failure(spec, counts, &open, fail_job, age_seconds) {
        counts.failed += u64::try_from(step.active).unwrap_or(u64::MAX);
        step.outcome = Outcome::Failed { reason, message };
        delete(&mut step, counts, open.iter().filter(|pod| !pod.deleting));
    } else if spec.suspend {
        delete(&mut step, counts, open.iter().filter(|pod| !pod.deleting));
    } else if is_complete(spec, counts, step.active) {
        step.outcome = Outcome::Complete;
        delete(&mut step, counts, open.iter().filter(|pod| !pod.deleting));
    } else {
        scale(spec, counts, &open, &mut step, now);
        let remaining = spec.deadline_seconds.map(|deadline| deadline - age_seconds);
        let remaining = remaining.and_then(|seconds| u64::try_from(seconds).ok());
        let deadline = remaining.map(|seconds| now.after(seconds.saturating_mul(1000)));
        step.due = [step.due, deadline].into_iter().flatten().min();
    }
    step
}

fn is_over(phase: Phase) -> bool {
    matches!(phase, Phase::Failed | Phase::Succeeded)
}

impl JobCounts {
    /// Counts each pod that has ended and was not counted yet. Returns a message if the failure
    /// policy fails the job.
    fn count(&mut self, spec: &Spec, pods: &[Pod], now: Millis) -> Option<String> {
        let mut fail_job = None;
        let (mut failed, mut succeeded) = (false, false);
        for pod in pods {
            let lost = pod.gone || (pod.deleting && !spec.replace_failed_only);
            if self.processed.contains(&pod.uid) || !(is_over(pod.phase) || lost) {
                continue;
            }
            self.processed.insert(pod.uid.clone());
            if pod.phase == Phase::Succeeded {
                self.succeeded += 1;
                succeeded = true;
                continue;
            }
            match &pod.failure_action {
                FailureAction::Count => {
                    self.failed += 1;
                    // A deleted pod is no sign that the next one will fail, so it adds no backoff.
                    failed |= pod.phase == Phase::Failed;
                }
                FailureAction::FailJob(message) => {
                    self.failed += 1;
                    fail_job.get_or_insert_with(|| message.clone());
                }
                FailureAction::Ignore => {}
            }
        }
        if succeeded {
            self.failures_in_a_row = 0;
        } else if failed {
            self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
            self.last_failure = now;
        }
        fail_job
    }

    /// Forgets all pods but these: a deleted pod is reported once.
    pub(super) fn retain(&mut self, present: &BTreeSet<Box<str>>) {
        self.processed.retain(|uid| present.contains(uid));
    }

    /// When the next pod may be created.
    fn may_create_at(&self) -> Millis {
        match self.failures_in_a_row {
            0 | 1 => Millis(0),
            n => {
                let delay = BACKOFF_MS << (n - 2).min(10);
                self.last_failure.after(delay.min(BACKOFF_MS_MAX))
            }
        }
    }
}

/// Reason and message if the job has failed.
fn failure(
    spec: &Spec,
    counts: &JobCounts,
    open: &[&Pod],
    fail_job: Option<String>,
    age_seconds: i64,
) -> Option<(&'static str, String)> {
    if let Some(message) = fail_job {
        return Some(("PodFailurePolicy", message));
    }
    let restarts: u64 = open.iter().map(|pod| pod.restarts).sum();
    let restarted = spec.restarts_on_failure && restarts > 0 && restarts >= spec.backoff_limit;
    if counts.failed > spec.backoff_limit || restarted {
        let message = "Job has reached the specified backoff limit";
        return Some(("BackoffLimitExceeded", message.to_owned()));
    }
    let late = spec.deadline_seconds.is_some_and(|deadline| age_seconds >= deadline);
    (late && !spec.suspend).then(|| {
        let message = "Job was active longer than specified deadline";
        ("DeadlineExceeded", message.to_owned())
    })
}

fn is_complete(spec: &Spec, counts: &JobCounts, active: usize) -> bool {
    match spec.completions {
        Some(completions) => counts.succeeded >= completions,
        None => counts.succeeded > 0 && active == 0,
    }
}

/// Deletes surplus pods. They do not count as failed.
fn delete<'p>(step: &mut JobStep, counts: &mut JobCounts, pods: impl Iterator<Item = &'p &'p Pod>) {
    for pod in pods.take(PODS_MAX) {
        counts.processed.insert(pod.uid.clone());
        step.delete.push(pod.uid.clone());
        step.active = step.active.saturating_sub(1);
        step.ready = step.ready.saturating_sub(usize::from(pod.ready));
    }
}

fn scale(spec: &Spec, counts: &mut JobCounts, open: &[&Pod], step: &mut JobStep, now: Millis) {
    let wanted = match spec.completions {
        Some(completions) => completions.saturating_sub(counts.succeeded).min(spec.parallelism),
        None if counts.succeeded > 0 => step.active.min(spec.parallelism),
        None => spec.parallelism,
    };
    if step.active > wanted {
        let excess = step.active - wanted;
        // Delete the pods that have progressed least first, and of these the youngest.
        let mut candidates: Vec<&&Pod> = open.iter().rev().filter(|pod| !pod.deleting).collect();
        candidates.sort_by_key(|pod| (pod.phase == Phase::Running, pod.ready));
        delete(step, counts, candidates.into_iter().take(excess));
        return;
    }
    let reserved = if spec.replace_failed_only { step.terminating } else { 0 };
    let missing = wanted.saturating_sub(step.active + reserved).min(PODS_MAX);
    if missing == 0 {
        return;
    }
    let earliest = counts.may_create_at();
    if now < earliest {
        step.due = Some(earliest);
        return;
    }
    step.create = missing;
    step.active += missing;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec {
        parallelism: 1,
        completions: Some(1),
        backoff_limit: 6,
        deadline_seconds: None,
        suspend: false,
        replace_failed_only: false,
        restarts_on_failure: false,
    };

    /// One word per pod: `p` pending, `r` running, `R` ready, `s` succeeded, `f` failed, `i` failed
    /// and ignored, `j` failed with the action FailJob; followed by `d` if it is being deleted, `g`
    /// if it is gone, and one `+` per restart.
    fn pods(words: &str) -> Vec<Pod> {
        let pod = |(n, word): (usize, &str)| Pod {
            uid: n.to_string().into(),
            phase: match &word[..1] {
                "p" => Phase::Pending,
                "r" | "R" => Phase::Running,
                "s" => Phase::Succeeded,
                _ => Phase::Failed,
            },
            ready: word.starts_with('R'),
            deleting: word[1..].contains('d'),
            gone: word[1..].contains('g'),
            restarts: word[1..].bytes().filter(|c| *c == b'+').count() as u64,
            failure_action: match &word[..1] {
                "i" => FailureAction::Ignore,
                "j" => FailureAction::FailJob("because".to_owned()),
                _ => FailureAction::Count,
            },
        };
        words.split_whitespace().enumerate().map(pod).collect()
    }

    /// A short form of the step: `+2` creates two pods, `-1` deletes one.
    fn summary(step: &JobStep, counts: &JobCounts) -> String {
        let outcome = match &step.outcome {
            Outcome::Complete => "complete ",
            Outcome::Failed { reason, .. } => &format!("{reason} "),
            Outcome::Open => "",
        };
        let (create, delete) = (step.create, step.delete.len());
        format!(
            "{outcome}+{create} -{delete} a{} s{} f{}",
            step.active, counts.succeeded, counts.failed
        )
    }

    #[test]
    fn the_next_step_follows_from_the_pods() {
        let spec = |change: fn(&mut Spec)| {
            let mut spec = SPEC;
            change(&mut spec);
            spec
        };
        let three = spec(|s| {
            s.parallelism = 3;
            s.completions = Some(5);
        });
        let any = spec(|s| {
            s.parallelism = 2;
            s.completions = None;
        });
        let strict = spec(|s| s.backoff_limit = 0);
        let waits = spec(|s| s.replace_failed_only = true);
        let paused = spec(|s| s.suspend = true);
        let restarting = spec(|s| {
            s.restarts_on_failure = true;
            s.backoff_limit = 2;
        });
        for (spec, words, want) in [
            (&SPEC, "", "+1 -0 a1 s0 f0"),
            (&SPEC, "p", "+0 -0 a1 s0 f0"),
            (&SPEC, "s", "complete +0 -0 a0 s1 f0"),
            (&SPEC, "f", "+1 -0 a1 s0 f1"),
            (&SPEC, "f r", "+0 -0 a1 s0 f1"),
            (&SPEC, "f s", "complete +0 -0 a0 s1 f1"),
            (&SPEC, "rd", "+1 -0 a1 s0 f1"),
            (&SPEC, "rg", "+1 -0 a1 s0 f1"),
            (&SPEC, "sg", "complete +0 -0 a0 s1 f0"),
            (&SPEC, "i", "+1 -0 a1 s0 f0"),
            (&SPEC, "j", "PodFailurePolicy +0 -0 a0 s0 f1"),
            (&waits, "rd", "+0 -0 a0 s0 f0"),
            (&waits, "fd", "+1 -0 a1 s0 f1"),
            (&strict, "f", "BackoffLimitExceeded +0 -0 a0 s0 f1"),
            (&three, "", "+3 -0 a3 s0 f0"),
            (&three, "s s s R", "+1 -0 a2 s3 f0"),
            (&three, "s s s s R R", "+0 -1 a1 s4 f0"),
            (&three, "j R R", "PodFailurePolicy +0 -2 a0 s0 f3"),
            (&any, "s R", "+0 -0 a1 s1 f0"),
            (&any, "s s", "complete +0 -0 a0 s2 f0"),
            (&any, "f R", "+1 -0 a2 s0 f1"),
            (&paused, "R", "+0 -1 a0 s0 f0"),
            (&paused, "", "+0 -0 a0 s0 f0"),
            (&restarting, "r+", "+0 -0 a1 s0 f0"),
            (&restarting, "r++", "BackoffLimitExceeded +0 -1 a0 s0 f1"),
        ] {
            let mut counts = JobCounts::default();
            let step = next_step(spec, &mut counts, &pods(words), Millis(5), 0);
            assert_eq!(summary(&step, &counts), want, "{words} of {spec:?}");
        }
    }

    #[test]
    fn failures_in_a_row_delay_the_next_pod() {
        let mut counts = JobCounts::default();
        let mut all = String::new();
        for (at, words, due) in [
            (0, "f", None),
            (1_000, "f", Some(11_000)),
            (12_000, "", None),
            (20_000, "f", Some(40_000)),
            (40_000, "", None),
            (50_000, "s f", None),
            (60_000, "f", None),
        ] {
            all.push_str(words);
            all.push(' ');
            let spec = Spec { completions: Some(9), ..SPEC };
            let step = next_step(&spec, &mut counts, &pods(&all), Millis(at), 0);
            assert_eq!(step.due, due.map(Millis), "{all} at {at}");
            assert_eq!(step.create, usize::from(due.is_none()), "{all} at {at}");
        }
    }

    #[test]
    fn pods_that_the_job_deleted_do_not_count_as_failed() {
        let mut counts = JobCounts::default();
        let paused = Spec { suspend: true, ..SPEC };
        assert_eq!(next_step(&paused, &mut counts, &pods("R"), Millis(0), 0).delete.len(), 1);
        let after = next_step(&SPEC, &mut counts, &pods("fd"), Millis(1), 0);
        assert_eq!((after.create, counts.failed), (1, 0));
    }

    #[test]
    fn a_job_fails_at_its_deadline() {
        let spec = Spec { deadline_seconds: Some(30), ..SPEC };
        let mut counts = JobCounts::default();
        let before = next_step(&spec, &mut counts, &pods("R"), Millis(5_000), 5);
        assert_eq!(before.due, Some(Millis(30_000)));
        let late = next_step(&spec, &mut counts, &pods("R"), Millis(30_000), 30);
        assert_eq!(summary(&late, &counts), "DeadlineExceeded +0 -1 a0 s0 f1");
    }
}
