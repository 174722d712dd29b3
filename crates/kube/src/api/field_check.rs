//! Refuses misspelt fields of pods on servers that would drop them silently.

use crate::api::preflight::version;
use crate::http::Http;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_encoding::pod_fields;

/// The parameter that asks the server to refuse unknown fields (KEP-2885). Older servers ignore it.
pub(super) const STRICT: &str = "&fieldValidation=Strict";
/// Servers from Kubernetes 1.25 on obey `fieldValidation`.
const STRICT_SINCE: (u32, u32) = (1, 25);

/// Checks the fields of a pod's JSON. Asks the server for its version if posse does not know a field:
/// servers that obey `fieldValidation` know their fields better.
///
/// # Errors
/// A refusal like that of a newer server.
pub(super) fn check_fields(http: &Http, body: &[u8]) -> Result<(), Refusal> {
    // The server reports a body that is not JSON.
    let Ok(pod) = serde_json::from_slice(body) else { return Ok(()) };
    let unknown = pod_fields::unknown(&pod);
    if unknown.is_empty() {
        return Ok(());
    }
    match version(http) {
        Ok(version) if is_strict(&version) => return Ok(()),
        Ok(_) => {}
        Err(refusal) => {
            log::warn!(
                "the server does not tell its version, so it may ignore the fields {}, which posse \
                 does not know: {refusal}",
                unknown.join(", ")
            );
            return Ok(());
        }
    }
    let fields: Vec<String> =
        unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
    let message = format!("strict decoding error: {}", fields.join(", "));
    let refusal = Refusal::local(RefusalClass::Invalid, message);
    Err(Refusal { code: 400, reason: "BadRequest".to_owned(), ..refusal })
}

/// True for `v1.25.0` and newer.
fn is_strict(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '+', '-']);
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (next(), next()) {
        (Some(major), Some(minor)) => (major, minor) >= STRICT_SINCE,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain_client;
    use posse_testing::{Answer, TestServer};

    #[test]
    fn only_servers_without_strict_validation_need_posses_check() {
        const TYPO: &[u8] = br#"{"spec": {"containers": [{"comand": ["x"]}]}}"#;
        for (version, body, is_refused, n_requests) in [
            ("v1.20.15", TYPO, true, 1),
            ("v1.24.0-eks.1", TYPO, true, 1),
            ("v1.25.0", TYPO, false, 1),
            ("v1.31.2+k3s1", TYPO, false, 1),
            ("v2.0.0", TYPO, false, 1),
            ("v1.20.15", br#"{"spec": {"containers": [{"command": ["x"]}]}}"#, false, 0),
        ] {
            let answer = format!("{{\"gitVersion\": \"{version}\"}}").into_bytes();
            let server = TestServer::start(None, move |_| {
                Answer::Reply(200, "Content-Type: application/json\r\n", answer.clone())
            });
            let got = check_fields(&plain_client(server.address), body);
            assert_eq!(got.is_err(), is_refused, "{version}");
            assert_eq!(server.seen().len(), n_requests, "{version}");
            if let Err(refusal) = got {
                assert_eq!(refusal.class, RefusalClass::Invalid);
                assert!(refusal.message.contains(r#""spec.containers[0].comand""#), "{refusal}");
            }
        }
    }
}
