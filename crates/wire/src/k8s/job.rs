//! Reads a Job: the one that runs a driver.

use serde::Deserialize;

use crate::error::WireError;
use crate::k8s::labels::EXIT_CODE;
use crate::k8s::object::{Condition, Meta, or_default};

/// A Job.
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
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct JobStatus {
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
    /// The bytes are not a Job in JSON.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        Ok(serde_json::from_slice(bytes)?)
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

    /// The application's exit code, if posse has ended the Job.
    pub fn exit_code(&self) -> Option<u8> {
        self.meta.annotation(EXIT_CODE)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_ends_with_a_true_condition() {
        let read = |text: &str| Job::parse(text.as_bytes()).unwrap();
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
        assert!(Job::parse(b"7").is_err());
    }
}
