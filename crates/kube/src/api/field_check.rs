//! Refuses fields of pods that the server would drop silently: misspelt ones, and newer ones on an old server; and pods that
//! the server changes too much.

use serde_json::Value;

use super::{OBJECT_BYTES_MAX, call, unreadable, write};
use crate::http::{Http, Method};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_encoding::dropped_fields;
use posse_wire::k8s::status::{Verb, check_size};
use posse_wire::pod::webhook_changes::unusable_change;

/// The parameter that asks the server to refuse unknown fields (KEP-2885). Older servers ignore it.
pub(super) const STRICT: &str = "&fieldValidation=Strict";

/// The parameter that asks the server to check a request, and to keep nothing.
pub(super) const DRY_RUN: &str = "&dryRun=All";

/// Checks the size and the fields of a pod's JSON. If the server may not know a field, a dry run shows what it makes of it: it refuses
/// the field, keeps it, or drops it. `path`: where the pod would be created.
///
/// # Errors
/// The server's refusal of the field, or one like it if the server drops the field or etcd would not take the pod.
pub(super) fn check_fields(http: &Http, path: &str, body: &[u8]) -> Result<(), Refusal> {
    check_size(body)?;
    // The server reports a body that is not JSON.
    let Ok(pod) = serde_json::from_slice(body) else { return Ok(()) };
    let uncertain = dropped_fields::uncertain(&pod);
    if uncertain.is_empty() {
        return Ok(());
    }
    let path = format!("{path}{STRICT}{DRY_RUN}");
    let kept = match call(http, &write(Method::Post, path, body, OBJECT_BYTES_MAX), Verb::Create) {
        Ok((_, answer)) => {
            serde_json::from_slice::<Value>(&answer).map(|pod| dropped_fields::uncertain(&pod))
        }
        Err(refusal) if refusal.message.contains("unknown field") => return Err(refusal),
        Err(refusal) => {
            // The pod is refused for another reason, which its creation will tell.
            log::warn!(
                "the server may ignore the fields {}: it refuses to tell: {refusal}",
                uncertain.join(", ")
            );
            return Ok(());
        }
    };
    all_kept(&uncertain, &kept.unwrap_or_default())
}

/// Refuses a Job that the server accepts without a field of its pod, or whose pod a webhook changes so that posse could
/// not work with it.
pub(super) fn check_job_answer(sent: &Value, status: u16, answer: &[u8]) -> Result<(), Refusal> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|problem| unreadable(status, &problem.to_string()))?;
    let [sent, answer] = [sent, &answer].map(|job| &job["spec"]["template"]);
    all_kept(&dropped_fields::uncertain(sent), &dropped_fields::uncertain(answer))?;
    check_answer(sent.to_string().as_bytes(), status, answer.to_string().as_bytes())
}

/// Refuses a pod that the server accepts, but changes so that posse could not work with it.
pub(super) fn check_answer(sent: &[u8], status: u16, answer: &[u8]) -> Result<(), Refusal> {
    match unusable_change(sent, answer) {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(Refusal::local(RefusalClass::Invalid, why)),
        Err(problem) => Err(unreadable(status, &problem.to_string())),
    }
}

fn all_kept(sent: &[String], kept: &[String]) -> Result<(), Refusal> {
    let kept: Vec<String> = kept.iter().map(|path| without_places(path)).collect();
    let dropped = sent.iter().filter(|path| !kept.contains(&without_places(path)));
    let fields: Vec<String> = dropped.map(|path| format!("unknown field {path:?}")).collect();
    if fields.is_empty() {
        return Ok(());
    }
    let message = format!("strict decoding error: {}", fields.join(", "));
    Err(Refusal { code: 400, ..Refusal::local(RefusalClass::Invalid, message) })
}

/// The path without the places in lists: a webhook may put a container before another.
fn without_places(path: &str) -> String {
    let parts = path.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::plain_client;
    use posse_testing::{Answer, TestServer};

    #[test]
    fn the_servers_answer_shows_what_it_makes_of_a_field() {
        const TYPO: &str = r#"{"spec": {"containers": [{"name": "c", "comand": ["x"]}]}}"#;
        const DROPPED: &str = r#"{"spec": {"containers": [{"name": "s"}, {"name": "c"}]}}"#;
        const KEPT: &str =
            r#"{"spec": {"containers": [{"name": "s"}, {"name": "c", "comand": ["x"]}]}}"#;
        const STRICT_ERROR: &str = r#"{"kind": "Status", "code": 400, "reason": "BadRequest",
            "message": "strict decoding error: unknown field \"spec.containers[0].comand\""}"#;
        const HOST_USERS: &str = r#"{"spec": {"hostUsers": false, "containers": [{"name": "c"}]}}"#;
        const NO_QUOTA: &str =
            r#"{"kind": "Status", "code": 403, "reason": "Forbidden", "message": "quota"}"#;
        for (code, answer, body, is_refused, n_requests) in [
            (201, DROPPED, TYPO, true, 1),
            (201, KEPT, TYPO, false, 1),
            (400, STRICT_ERROR, TYPO, true, 1),
            (403, NO_QUOTA, TYPO, false, 1),
            (201, DROPPED, DROPPED, false, 0),
            (201, HOST_USERS, HOST_USERS, false, 1),
            (201, DROPPED, HOST_USERS, true, 1),
        ] {
            let server = TestServer::start(None, move |_| Answer::json(code, answer));
            let got = check_fields(&plain_client(server.address), "/pods?x=y", body.as_bytes());
            assert_eq!(got.is_err(), is_refused, "{code} {answer}");
            let seen = server.seen();
            assert_eq!(seen.len(), n_requests, "{code} {answer}");
            for one in seen {
                assert!(
                    one.line().contains("?x=y&fieldValidation=Strict&dryRun=All "),
                    "{}",
                    one.line()
                );
            }
            if let Err(refusal) = got {
                assert_eq!(refusal.class, RefusalClass::Invalid);
                let field =
                    if body == TYPO { "spec.containers[0].comand" } else { "spec.hostUsers" };
                assert!(refusal.message.contains(&format!("{field:?}")), "{refusal}");
            }
        }
    }

    #[test]
    fn a_job_is_accepted_only_with_the_pod_that_it_was_sent_with() {
        let job = || {
            json!({"spec": {"podReplacementPolicy": "Failed", "template": {
                "metadata": {"labels": {"posse.dev/app": "a"}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "driver"}],
                    "volumes": [{"name": "v", "image": {"reference": "x"}}]}}}})
        };
        let rule = json!([{"action": "RestartAllContainers"}]);
        for (place, key, value, words) in [
            // A field of the Job itself may be dropped, and one of the pod be added.
            ("/spec", "podReplacementPolicy", Value::Null, ""),
            ("/spec/template/spec", "priority", json!(0), ""),
            (
                "/spec/template/spec/volumes/0",
                "image",
                Value::Null,
                "unknown field \"spec.volumes[0].image\"",
            ),
            (
                "/spec/template/spec/containers/0",
                "restartPolicyRules",
                rule,
                "would restart containers in place",
            ),
            (
                "/spec/template/spec/containers/0",
                "restartPolicy",
                json!("Always"),
                "would restart containers in place",
            ),
            ("/spec/template/metadata", "labels", json!({}), "changes posse's labels"),
        ] {
            let mut answer = job();
            answer.pointer_mut(place).unwrap()[key] = value;
            let got = check_job_answer(&job(), 201, answer.to_string().as_bytes());
            let said = got.map_or_else(|refusal| refusal.to_string(), |()| String::new());
            assert_eq!(said.is_empty(), words.is_empty(), "{place}.{key}: {said}");
            assert!(said.contains(words), "{place}.{key}: {said}");
        }
        let unreadable = check_job_answer(&job(), 201, b"{").unwrap_err();
        assert_ne!(unreadable.class, RefusalClass::Invalid);
    }
}
