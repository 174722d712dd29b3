//! Reads a Job: the one that runs a driver.

use jiff::Timestamp;
use serde::Deserialize;

use crate::error::WireError;
use crate::k8s::labels::EXIT_CODE;
use crate::k8s::object::{Condition, Meta, or_default};

/// Clocks differ: the Job's deadline may be over for its controller, and not for us.
const DEADLINE_SLACK_S: u64 = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Job {
    #[serde(rename = "metadata", deserialize_with = "or_default")]
    pub meta: Meta,
    #[serde(deserialize_with = "or_default")]
    pub spec: JobSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: JobStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    /// How many pods it may have at a time; 1 if absent.
    pub parallelism: Option<u64>,
    #[serde(deserialize_with = "or_default")]
    pub suspend: bool,
    /// How long the Job may take, in seconds from its start.
    #[serde(rename = "activeDeadlineSeconds")]
    pub deadline_s: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobStatus {
    #[serde(rename = "startTime")]
    pub start_time: Option<String>,
    /// How many of its pods have failed.
    #[serde(deserialize_with = "or_default")]
    pub failed: u64,
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

/// How a Job finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobOutcome<'a> {
    Complete,
    /// The condition has the reason and a message.
    Failed(&'a Condition),
}

impl Job {
    /// Reads a Job.
    ///
    /// # Errors
    /// The bytes are not a Job with a uid in JSON.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let job: Self = serde_json::from_slice(bytes)?;
        // An answer that is another object must not say that another Job has the name now.
        if job.meta.uid.is_empty() { Err(WireError::Missing("metadata.uid")) } else { Ok(job) }
    }

    /// `None` if it has not finished.
    pub fn outcome(&self) -> Option<JobOutcome<'_>> {
        let conditions = self.status.conditions.iter().filter(|condition| condition.is_true());
        conditions.into_iter().find_map(|condition| match condition.kind.as_str() {
            "Complete" => Some(JobOutcome::Complete),
            "Failed" => Some(JobOutcome::Failed(condition)),
            _ => None,
        })
    }

    /// True if it makes another pod after one that is deleted now. `now`: for its deadline, which it finds out at
    /// about the time at which it deletes its pods.
    pub fn goes_on(&self, now: Timestamp) -> bool {
        let may_have_pods = self.spec.parallelism != Some(0) && !self.spec.suspend;
        let start = self.status.start_time.as_ref().and_then(|text| text.parse::<Timestamp>().ok());
        let is_late = start.zip(self.spec.deadline_s).is_some_and(|(start, deadline_s)| {
            let lasts_s = u64::try_from(now.as_second() - start.as_second()).unwrap_or(0);
            lasts_s + DEADLINE_SLACK_S >= deadline_s
        });
        let conditions = self.status.conditions.iter().filter(|condition| condition.is_true());
        let mut kinds = conditions.map(|condition| condition.kind.as_str());
        let is_ending = kinds.any(|kind| {
            matches!(kind, "Complete" | "Failed" | "FailureTarget" | "SuccessCriteriaMet")
        });
        may_have_pods && self.meta.deletion_timestamp.is_none() && !is_late && !is_ending
    }

    /// The application's exit code, if posse has ended the Job.
    pub fn exit_code(&self) -> Option<u8> {
        self.meta.annotation(EXIT_CODE)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_on_until_it_ends_or_is_stopped() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        for (rest, goes_on) in [
            ("{}", true),
            (
                r#"{"spec":{"parallelism":2,"activeDeadlineSeconds":606},"status":{"startTime":"2026-01-01T00:00:00Z"}}"#,
                true,
            ),
            (
                r#"{"spec":{"activeDeadlineSeconds":605},"status":{"startTime":"2026-01-01T00:00:00Z"}}"#,
                false,
            ),
            (r#"{"spec":{"parallelism":0}}"#, false),
            (r#"{"spec":{"suspend":true}}"#, false),
            (r#"{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}"#, false),
            (r#"{"status":{"conditions":[{"type":"FailureTarget","status":"True"}]}}"#, false),
            (r#"{"status":{"conditions":[{"type":"Failed","status":"False"}]}}"#, true),
        ] {
            let job: Job = serde_json::from_str(rest).unwrap();
            assert_eq!(job.goes_on(now), goes_on, "{rest}");
        }
    }

    #[test]
    fn a_job_ends_with_a_true_condition() {
        let read = |text: &str| serde_json::from_str::<Job>(text).unwrap();
        let young = read(r#"{"metadata":{"name":"j"},"spec":{"suspend":null},"status":null}"#);
        assert_eq!((young.outcome(), young.exit_code(), young.status.failed), (None, None, 0));
        let ended = |kind: &str, status: &str| {
            read(&format!(
                r#"{{"metadata":{{"annotations":{{"{EXIT_CODE}":"7"}}}},"status":{{"failed":2,"conditions":[
                    {{"type":"SuccessCriteriaMet","status":"True"}},
                    {{"type":"{kind}","status":"{status}","reason":"R","message":null}}]}}}}"#
            ))
        };
        assert_eq!(ended("Complete", "True").outcome(), Some(JobOutcome::Complete));
        assert_eq!(ended("Failed", "False").outcome(), None);
        let failed = ended("Failed", "True");
        assert!(matches!(failed.outcome(), Some(JobOutcome::Failed(why)) if why.reason == "R"));
        assert_eq!((failed.exit_code(), failed.status.failed), (Some(7), 2));
        for other in ["7", "{}", r#"{"kind":"Status","metadata":{},"status":"Failure"}"#] {
            assert!(Job::parse(other.as_bytes()).is_err(), "{other}");
        }
    }
}
