//! What `posse cleanup` reads: executors of any instance, and the pods that own them.

use crate::error::WireError;
use crate::k8s::job::{Job, JobOutcome};
use crate::pod::{OwnerFacts, read_pod};
use posse_core::model::ids::Uid;
use posse_core::model::pod::Phase;
use posse_core::policy::orphans::OrphanCandidate;

/// Reads an executor.
///
/// # Errors
/// The bytes are not a pod with a name and a uid.
pub fn parse(bytes: &[u8]) -> Result<OrphanCandidate, WireError> {
    read_pod(bytes)?.unwrap_or_default().orphan()
}

/// Reads the facts about a pod that owns others.
///
/// # Errors
/// The bytes are not a pod with a uid.
pub fn parse_owner(bytes: &[u8]) -> Result<OwnerFacts, WireError> {
    read_pod(bytes)?.unwrap_or_default().owner_facts()
}

/// Reads the same of a Job.
///
/// # Errors
/// The bytes are not a Job with a uid.
pub fn parse_job(bytes: &[u8]) -> Result<OwnerFacts, WireError> {
    let job = Job::parse(bytes)?;
    let phase = match job.outcome() {
        Some(JobOutcome::Complete) => Phase::Succeeded,
        Some(JobOutcome::Failed(_)) => Phase::Failed,
        None => Phase::Running,
    };
    let is_deleting = job.meta.deletion_timestamp.is_some();
    Ok(OwnerFacts { uid: Uid::new(&job.meta.uid), phase, is_deleting, job: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::owner::{Owner, OwnerKind};

    #[test]
    fn reads_executors() {
        let pods = [
            r#"{"metadata":{"name":"a-k-exec-1","uid":"u1","labels":{"posse.dev/app":"a","posse.dev/instance":"k","x":"y",
             "kueue.x-k8s.io/pod-group-name":"g"},"finalizers":["y","kueue.x-k8s.io/managed"],
             "ownerReferences":[{"kind":"Pod","name":"other","uid":"o0"},
                                {"kind":"Pod","name":"driver","uid":"o1","controller":true}]},
             "status":{"phase":"Running"}}"#,
            r#"{"metadata":{"name":"b","uid":"u2","ownerReferences":
              [{"kind":"Job","name":"driver","uid":"o1"},
               {"kind":"Lease","name":"l","uid":"o2","controller":true}]},"status":null}"#,
            r#"{"metadata":{"name":"c","uid":"u3","ownerReferences":
              [{"kind":"ReplicaSet","name":"r","uid":"o3","controller":true}]},"status":null}"#,
        ];
        let first = OrphanCandidate {
            name: "a-k-exec-1".to_owned(),
            uid: Uid::new("u1"),
            has_executor_name: true,
            app: Some("a".to_owned()),
            instance: Some("k".to_owned()),
            owner: Some(Owner {
                kind: OwnerKind::Pod,
                name: "driver".to_owned(),
                uid: Uid::new("o1"),
            }),
            phase: Phase::Running,
            is_held_by_queue: true,
        };
        let second = OrphanCandidate {
            is_held_by_queue: false,
            name: "b".to_owned(),
            uid: Uid::new("u2"),
            has_executor_name: false,
            app: None,
            instance: None,
            owner: Some(Owner {
                kind: OwnerKind::Job,
                name: "driver".to_owned(),
                uid: Uid::new("o1"),
            }),
            phase: Phase::Pending,
        };
        let third = OrphanCandidate {
            name: "c".to_owned(),
            uid: Uid::new("u3"),
            owner: None,
            ..second.clone()
        };
        assert_eq!(pods.map(|pod| parse(pod.as_bytes()).unwrap()), [first, second, third]);
        for bad in ["[]", "{}", "null", r#"{"metadata":{"name":"a"}}"#] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    fn facts(phase: Phase, is_deleting: bool, job: Option<Owner>) -> Result<OwnerFacts, WireError> {
        Ok(OwnerFacts { uid: Uid::new("o1"), phase, is_deleting, job })
    }

    #[test]
    fn reads_owners() {
        let driver = br#"{"metadata":{"uid":"o1","deletionTimestamp":null},
            "status":{"phase":"Succeeded"}}"#;
        assert_eq!(parse_owner(driver), facts(Phase::Succeeded, false, None));
        let young = br#"{"metadata":{"uid":"o1"}}"#;
        assert_eq!(parse_owner(young), facts(Phase::Pending, false, None));
        let of_job = br#"{"metadata":{"uid":"o1","deletionTimestamp":"2026-01-01T00:00:00Z",
            "ownerReferences":[{"kind":"Job","name":"x","uid":"j0"},
                               {"kind":"Job","name":"d","uid":"j1","controller":true}]},
            "status":{"phase":"Running"}}"#;
        let job = Owner { kind: OwnerKind::Job, name: "d".to_owned(), uid: Uid::new("j1") };
        assert_eq!(parse_owner(of_job), facts(Phase::Running, true, Some(job)));
        // The driver has ended, and another container runs on.
        for (code, want) in [(0, Phase::Succeeded), (3, Phase::Failed)] {
            let behind = format!(
                r#"{{"metadata":{{"uid":"o1","annotations":{{"posse.dev/container":"driver"}}}},
                    "spec":{{"restartPolicy":"Never","containers":[{{"name":"proxy"}},{{"name":"driver"}}]}},
                    "status":{{"phase":"Running","containerStatuses":[
                        {{"name":"proxy","state":{{"running":{{}}}}}},
                        {{"name":"driver","state":{{"terminated":{{"exitCode":{code}}}}}}}]}}}}"#
            );
            assert_eq!(parse_owner(behind.as_bytes()), facts(want, false, None));
            // The kubelet starts it again.
            let again = behind.replace("Never", "Always");
            assert_eq!(parse_owner(again.as_bytes()), facts(Phase::Running, false, None));
        }
        // Nobody knows in which of these containers posse runs.
        for code in [0, 1] {
            let steps = format!(
                r#"{{"metadata":{{"uid":"o1"}},
                    "spec":{{"restartPolicy":"Never","containers":[{{"name":"step-clone"}},{{"name":"step-run"}}]}},
                    "status":{{"phase":"Running","containerStatuses":[
                        {{"name":"step-clone","state":{{"terminated":{{"exitCode":{code}}}}}}},
                        {{"name":"step-run","state":{{"running":{{}}}}}}]}}}}"#
            );
            assert_eq!(parse_owner(steps.as_bytes()), facts(Phase::Running, false, None));
        }
        assert!(parse_owner(br#"{"metadata":{}}"#).is_err());
        for (status, want) in [
            ("{}", Phase::Running),
            (r#"{"conditions":[{"type":"Complete","status":"True"}]}"#, Phase::Succeeded),
            (r#"{"conditions":[{"type":"Failed","status":"True"}]}"#, Phase::Failed),
        ] {
            let job = format!(r#"{{"metadata":{{"uid":"o1"}},"status":{status}}}"#);
            assert_eq!(parse_job(job.as_bytes()), facts(want, false, None));
        }
        assert!(parse_job(br#"{"metadata":{}}"#).is_err());
    }
}
