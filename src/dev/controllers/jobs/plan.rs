//! Owns what a Job does next: which of its pods count as succeeded or failed, how many more there
//! have to be, whether it is over. Pure: no clock, store or JSON in here.

use std::collections::BTreeSet;

use crate::core::model::time::Millis;

/// What the job asks for.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) parallelism: usize,
    /// None: one success is enough.
    pub(super) completions: Option<usize>,
    pub(super) backoff_limit: u64,
    pub(super) deadline_seconds: Option<i64>,
    pub(super) indexed: bool,
    pub(super) suspend: bool,
    /// Pods that are on their way out hold their place until they have ended.
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

/// What the job's failure policy says to the failure of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Count,
    /// The message that the job fails with.
    FailJob(String),
    Ignore,
}

#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) uid: Box<str>,
    pub(super) phase: Phase,
    pub(super) ready: bool,
    pub(super) deleting: bool,
    /// Its object is no more; this is what it was last.
    pub(super) gone: bool,
    pub(super) restarts: u64,
    pub(super) index: Option<usize>,
    pub(super) verdict: Verdict,
}

/// What has been counted of the job's pods. Each counts once, whether or not it stays.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    pub(super) succeeded: usize,
    pub(super) failed: u64,
    pub(super) indexes: BTreeSet<usize>,
    /// Pods that are done with: counted, or ended by the job itself.
    settled: BTreeSet<Box<str>>,
    /// How often in a row pods were found failed and none succeeded.
    failures_in_a_row: u32,
    last_failure: Millis,
}

/// How the job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    Failed { reason: &'static str, message: String },
    Open,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) outcome: Outcome,
    /// Pods to end, by uid.
    pub(super) end: Vec<Box<str>>,
    /// Pods to create, each with its index where the job has them.
    pub(super) create: Vec<Option<usize>>,
    /// How many run, or are about to, when this has been done.
    pub(super) active: usize,
    pub(super) ready: usize,
    pub(super) terminating: usize,
    /// When to look again although nothing changed.
    pub(super) due: Option<Millis>,
}

/// The real controller's base and cap. The first failure is replaced at once.
const BACKOFF_MS: u64 = 10_000;
const BACKOFF_MS_MAX: u64 = 360_000;
/// Pods created or ended in one step.
const PODS_MAX: usize = 500;

/// Counts what ended and decides. `age_seconds` is how long the job has been active.
pub(super) fn step(
    spec: &Spec,
    past: &mut Past,
    pods: &[Pod],
    now: Millis,
    age_seconds: Option<i64>,
) -> Step {
    let fail_job = past.count(spec, pods, now);
    let open: Vec<&Pod> = pods
        .iter()
        .filter(|pod| !pod.gone && !past.settled.contains(&pod.uid) && !is_over(pod.phase))
        .collect();
    let terminating = pods.iter().filter(|pod| !pod.gone && pod.deleting && !is_over(pod.phase));
    let mut step = Step {
        outcome: Outcome::Open,
        end: Vec::new(),
        create: Vec::new(),
        active: open.iter().filter(|pod| !pod.deleting).count(),
        ready: open.iter().filter(|pod| pod.ready).count(),
        terminating: terminating.count(),
        due: None,
    };
    if let Some((reason, message)) = failure(spec, past, &open, fail_job, age_seconds) {
        past.failed += u64::try_from(step.active).unwrap_or(u64::MAX);
        step.outcome = Outcome::Failed { reason, message };
        end(&mut step, past, open.iter().filter(|pod| !pod.deleting));
    } else if spec.suspend {
        end(&mut step, past, open.iter().filter(|pod| !pod.deleting));
    } else if is_complete(spec, past, step.active) {
        step.outcome = Outcome::Complete;
        end(&mut step, past, open.iter().filter(|pod| !pod.deleting));
    } else {
        scale(spec, past, &open, &mut step, now);
        let left = spec.deadline_seconds.zip(age_seconds).map(|(most, age)| most - age);
        let left = left.and_then(|seconds| u64::try_from(seconds).ok());
        let deadline = left.map(|seconds| now.after(seconds.saturating_mul(1000)));
        step.due = [step.due, deadline].into_iter().flatten().min();
    }
    step
}

fn is_over(phase: Phase) -> bool {
    matches!(phase, Phase::Failed | Phase::Succeeded)
}

impl Past {
    /// Counts each pod that has ended and was not counted; the message to fail with where the
    /// policy says so.
    fn count(&mut self, spec: &Spec, pods: &[Pod], now: Millis) -> Option<String> {
        let mut fail_job = None;
        let (mut failed, mut succeeded) = (false, false);
        for pod in pods {
            let lost = pod.gone || (pod.deleting && !spec.replace_failed_only);
            if self.settled.contains(&pod.uid) || !(is_over(pod.phase) || lost) {
                continue;
            }
            self.settled.insert(pod.uid.clone());
            if pod.phase == Phase::Succeeded {
                let fresh = pod.index.is_none_or(|index| self.indexes.insert(index));
                self.succeeded += usize::from(fresh);
                succeeded = true;
                continue;
            }
            match &pod.verdict {
                Verdict::Count => {
                    self.failed += 1;
                    // One that somebody deleted says nothing about the next.
                    failed |= pod.phase == Phase::Failed;
                }
                Verdict::FailJob(message) => {
                    self.failed += 1;
                    fail_job.get_or_insert_with(|| message.clone());
                }
                Verdict::Ignore => {}
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

    pub(super) fn has_counted(&self) -> bool {
        self.succeeded > 0 || self.failed > 0
    }

    /// Forgets pods that are no more: they are told of once.
    pub(super) fn keep(&mut self, present: &BTreeSet<Box<str>>) {
        self.settled.retain(|uid| present.contains(uid));
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

/// Why the job fails, where it does.
fn failure(
    spec: &Spec,
    past: &Past,
    open: &[&Pod],
    fail_job: Option<String>,
    age_seconds: Option<i64>,
) -> Option<(&'static str, String)> {
    if let Some(message) = fail_job {
        return Some(("PodFailurePolicy", message));
    }
    let restarts: u64 = open.iter().map(|pod| pod.restarts).sum();
    let restarted = spec.restarts_on_failure && restarts > 0 && restarts >= spec.backoff_limit;
    if past.failed > spec.backoff_limit || restarted {
        let message = "Job has reached the specified backoff limit";
        return Some(("BackoffLimitExceeded", message.to_owned()));
    }
    let late = spec.deadline_seconds.zip(age_seconds).is_some_and(|(most, age)| age >= most);
    (late && !spec.suspend).then(|| {
        let message = "Job was active longer than specified deadline";
        ("DeadlineExceeded", message.to_owned())
    })
}

fn is_complete(spec: &Spec, past: &Past, active: usize) -> bool {
    match spec.completions {
        Some(completions) => past.succeeded >= completions,
        None => past.succeeded > 0 && active == 0,
    }
}

/// Ends pods that the job has too many of; these do not count as failed.
fn end<'p>(step: &mut Step, past: &mut Past, pods: impl Iterator<Item = &'p &'p Pod>) {
    for pod in pods.take(PODS_MAX) {
        past.settled.insert(pod.uid.clone());
        step.end.push(pod.uid.clone());
        step.active = step.active.saturating_sub(1);
        step.ready = step.ready.saturating_sub(usize::from(pod.ready));
    }
}

fn scale(spec: &Spec, past: &mut Past, open: &[&Pod], step: &mut Step, now: Millis) {
    let wanted = match spec.completions {
        Some(completions) => completions.saturating_sub(past.succeeded).min(spec.parallelism),
        None if past.succeeded > 0 => step.active.min(spec.parallelism),
        None => spec.parallelism,
    };
    if step.active > wanted {
        let excess = step.active - wanted;
        // What has come least far goes first, and of those the youngest.
        let stages = [(false, false), (false, true), (true, false), (true, true)];
        let running = stages.into_iter().flat_map(|stage| {
            let fits = move |pod: &&&Pod| {
                !pod.deleting && (pod.phase == Phase::Running, pod.ready) == stage
            };
            open.iter().rev().filter(fits)
        });
        end(step, past, running.take(excess));
        return;
    }
    let held = if spec.replace_failed_only { step.terminating } else { 0 };
    let missing = wanted.saturating_sub(step.active + held).min(PODS_MAX);
    if missing == 0 {
        return;
    }
    let at = past.may_create_at();
    if now < at {
        step.due = Some(at);
        return;
    }
    step.create = match spec.indexed {
        false => vec![None; missing],
        true => {
            let mut taken: BTreeSet<usize> = BTreeSet::new();
            taken.extend(open.iter().filter_map(|pod| pod.index));
            let free = |index: &usize| !past.indexes.contains(index) && !taken.contains(index);
            let all = 0..spec.completions.unwrap_or_default();
            all.filter(free).take(missing).map(Some).collect()
        }
    };
    step.active += step.create.len();
}

/// `0-2,5`: as `status.completedIndexes` tells them.
pub(super) fn ranges(indexes: &BTreeSet<usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            Some(_) | None => runs.push((*index, *index)),
        }
    }
    let texts = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec {
        parallelism: 1,
        completions: Some(1),
        backoff_limit: 6,
        deadline_seconds: None,
        indexed: false,
        suspend: false,
        replace_failed_only: false,
        restarts_on_failure: false,
    };

    /// `p` pending, `r` running, `R` ready, `s` succeeded, `f` failed, `i` failed and ignored, `j`
    /// failed for the whole job; after it `d` being deleted, `g` gone.
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
            index: None,
            verdict: match &word[..1] {
                "i" => Verdict::Ignore,
                "j" => Verdict::FailJob("because".to_owned()),
                _ => Verdict::Count,
            },
        };
        words.split_whitespace().enumerate().map(pod).collect()
    }

    /// What is done, in short: `+2` creates two, `-1` ends one.
    fn told(step: &Step, past: &Past) -> String {
        let verdict = match &step.outcome {
            Outcome::Complete => "complete ",
            Outcome::Failed { reason, .. } => &format!("{reason} "),
            Outcome::Open => "",
        };
        let (create, end) = (step.create.len(), step.end.len());
        format!("{verdict}+{create} -{end} a{} s{} f{}", step.active, past.succeeded, past.failed)
    }

    #[test]
    fn a_job_goes_on_from_its_pods() {
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
            let mut past = Past::default();
            let step = step(spec, &mut past, &pods(words), Millis(5), Some(0));
            assert_eq!(told(&step, &past), want, "{words} of {spec:?}");
        }
    }

    #[test]
    fn failures_in_a_row_delay_the_next_pod() {
        let mut past = Past::default();
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
            let step = step(&spec, &mut past, &pods(&all), Millis(at), None);
            assert_eq!(step.due, due.map(Millis), "{all} at {at}");
            assert_eq!(step.create.len(), usize::from(due.is_none()), "{all} at {at}");
        }
    }

    #[test]
    fn what_the_job_ended_itself_is_no_failure() {
        let mut past = Past::default();
        let paused = Spec { suspend: true, ..SPEC };
        assert_eq!(step(&paused, &mut past, &pods("R"), Millis(0), None).end.len(), 1);
        let after = step(&SPEC, &mut past, &pods("fd"), Millis(1), None);
        assert_eq!((after.create.len(), past.failed), (1, 0));
    }

    #[test]
    fn deadlines_end_jobs_and_wake_them() {
        let spec = Spec { deadline_seconds: Some(30), ..SPEC };
        let mut past = Past::default();
        let before = step(&spec, &mut past, &pods("R"), Millis(5_000), Some(5));
        assert_eq!(before.due, Some(Millis(30_000)));
        let late = step(&spec, &mut past, &pods("R"), Millis(30_000), Some(30));
        assert_eq!(told(&late, &past), "DeadlineExceeded +0 -1 a0 s0 f1");
    }

    #[test]
    fn indexes_are_each_done_once() {
        let spec = Spec { indexed: true, parallelism: 2, completions: Some(4), ..SPEC };
        let mut past = Past::default();
        let mut done = pods("s f R");
        for (pod, index) in done.iter_mut().zip([0, 1, 2]) {
            pod.index = Some(index);
        }
        let next = step(&spec, &mut past, &done, Millis(0), None);
        assert_eq!(next.create, [Some(1)]);
        assert_eq!(ranges(&past.indexes), "0");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8].into()), "0-2,5,7,8");
    }
}
