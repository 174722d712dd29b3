//! Classifies error answers of the API server: one table from code, reason and message to a class.
//! `core` decides what to do about a class.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::WireError;
use crate::fields::fields;
use crate::text::clipped;
use posse_core::model::pod_text::ETCD_BYTES_MAX;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_encoding::json;
use posse_encoding::protobuf::{MAGIC, message, message_of};

/// Limit of a server's message, bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Limit of the quote from an answer that is not a Status, bytes.
const QUOTE_BYTES_MAX: usize = 200;

/// What is wrong with an object of more than `ETCD_BYTES_MAX`.
const TOO_LARGE: &str = "the object is too large for etcd (1.5 MiB)";

/// The verb of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Delete,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

/// `metav1.Status` on the wire.
#[derive(Debug, Default)]
pub(super) struct RawApiStatus<'a> {
    kind: Cow<'a, str>,
    code: Option<u16>,
    reason: Cow<'a, str>,
    message: Cow<'a, str>,
    details: Option<RawDetails<'a>>,
}

fields!(RawApiStatus<'a>: |self, value|
    "kind" => self.kind = value.text()?,
    "code"(6) => self.code = value.number()?.and_then(|code| u16::try_from(code).ok()),
    "reason"(4) => self.reason = value.text()?,
    "message"(3) => self.message = value.text()?,
    "details"(5) => self.details = value.fields()?,
);

#[derive(Debug, Default)]
struct RawDetails<'a> {
    retry_after_seconds: Option<u64>,
    causes: Vec<RawCause<'a>>,
}

fields!(RawDetails<'a>: |self, value|
    "retryAfterSeconds"(5) => {
        // Protobuf has a 0 where JSON has nothing.
        let seconds = value.number()?.filter(|seconds| *seconds > 0);
        self.retry_after_seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    },
    "causes"(4) => value.items(&mut self.causes)?,
);

#[derive(Debug, Default)]
struct RawCause<'a> {
    reason: Cow<'a, str>,
}

fields!(RawCause<'a>: |self, value|
    "reason"(1) => self.reason = value.text()?,
);

/// Classifies an answer. `json`: its Content-Type is JSON.
pub fn refusal(
    status: u16,
    retry_after: Option<Duration>,
    json: bool,
    body: &[u8],
    verb: Verb,
) -> Refusal {
    let retry_after_ms =
        retry_after.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let read = if json || body.starts_with(MAGIC) { read_status(body).ok() } else { None };
    match read.flatten() {
        Some(read) => read.into_refusal(status, retry_after_ms, verb),
        None => Refusal {
            class: class_without_status(status),
            code: status,
            message: format!("the answer is not a Kubernetes Status: {}", quoted(body)),
            retry_after_ms,
        },
    }
}

/// Reads a Status. None: the body is another object.
pub(super) fn read_status(body: &[u8]) -> Result<Option<RawApiStatus<'_>>, WireError> {
    if let Some(status) = message_of(body, "Status")? {
        return Ok(Some(message(status)?));
    }
    let status: RawApiStatus<'_> = json::read(body)?.unwrap_or_default();
    Ok((status.kind == "Status").then_some(status))
}

/// Refuses an object that etcd would not take. `json`: the body of its create or update.
pub fn check_size(json: &[u8]) -> Result<(), Refusal> {
    let n_bytes = json.len();
    match n_bytes > ETCD_BYTES_MAX {
        true => {
            let message = format!("{TOO_LARGE}: it has {n_bytes} bytes");
            Err(Refusal::local(RefusalClass::Invalid, message))
        }
        false => Ok(()),
    }
}

/// The refusal for a successful answer with an unreadable body: the request may have been executed.
pub fn unreadable(status: u16, problem: &str) -> Refusal {
    let message = format!("the answer cannot be read: {problem}");
    Refusal { code: status, ..Refusal::local(RefusalClass::OutcomeUnknown, message) }
}

impl RawApiStatus<'_> {
    /// Classifies the object of an ERROR event in a watch, which carries its own code.
    pub(super) fn of_event(self) -> Refusal {
        let code = self.code.unwrap_or(0);
        self.into_refusal(code, None, Verb::Watch)
    }

    fn into_refusal(self, code: u16, retry_after_ms: Option<u64>, verb: Verb) -> Refusal {
        let reason = self.reason;
        let message = if self.message.is_empty() { &*reason } else { &*self.message };
        let mut message = clipped(message, MESSAGE_BYTES_MAX).to_owned();
        let details = self.details.as_ref();
        let told_ms = details
            .and_then(|details| details.retry_after_seconds)
            .map(|seconds| seconds.saturating_mul(1000));
        let causes = details.map(|details| details.causes.as_slice()).unwrap_or_default();
        let terminating = causes.iter().any(|cause| cause.reason == "NamespaceTerminating");
        let class = if terminating {
            RefusalClass::NamespaceGone
        } else {
            class(code, &reason, &message, verb)
        };
        if class == RefusalClass::Invalid && code == 500 {
            message = format!("{message}: {TOO_LARGE}");
        }
        Refusal { class, code, message, retry_after_ms: retry_after_ms.max(told_ms) }
    }
}

/// A row of the table. All conditions must hold.
struct Row {
    code: u16,
    /// The Status' reason. Empty: any.
    reason: &'static str,
    /// Part of its message. Empty: any.
    message_part: &'static str,
    /// The request's verb. None: any.
    verb: Option<Verb>,
    class: RefusalClass,
}

const fn row(
    code: u16,
    reason: &'static str,
    message_part: &'static str,
    class: RefusalClass,
) -> Row {
    Row { code, reason, message_part, verb: None, class }
}

const fn on_create(code: u16, message_part: &'static str, class: RefusalClass) -> Row {
    Row { code, reason: "", message_part, verb: Some(Verb::Create), class }
}

/// The first matching row counts. A 403 has no machine-readable cause, so the message decides.
const TABLE: &[Row] = &[
    row(401, "", "", RefusalClass::Unauthorized),
    row(403, "", "exceeded quota", RefusalClass::Capacity),
    row(403, "", "insufficient quota", RefusalClass::Capacity),
    row(403, "", "status unknown for quota", RefusalClass::Transient),
    row(403, "", "because it is being terminated", RefusalClass::NamespaceGone),
    row(403, "", "cannot set blockOwnerDeletion", RefusalClass::Invalid),
    row(403, "", "violates PodSecurity", RefusalClass::Invalid),
    // Of a new namespace, or of an account that comes with the run: it may be there soon.
    row(403, "", "error looking up service account", RefusalClass::NamespaceGone),
    // Until 1.23 a new account waits for its token; and after the start of an API server its admission plugins wait for
    // their caches.
    row(403, "", "API token found for service account", RefusalClass::Transient),
    row(403, "", "not yet ready to handle request", RefusalClass::Transient),
    row(403, "", "caches not synchronized", RefusalClass::Transient),
    row(403, "", "forbidden: User \"", RefusalClass::Forbidden),
    // The webhook of image policies is away (kubernetes, `plugin/pkg/admission/imagepolicy`; the words are client-go's).
    on_create(403, "is forbidden: Post \"", RefusalClass::WebhookBusy),
    on_create(403, "is forbidden: an error on the server ", RefusalClass::WebhookBusy),
    on_create(403, "is forbidden: the server ", RefusalClass::WebhookBusy),
    // LimitRange, "must specify", PriorityClass, webhooks.
    on_create(403, "", RefusalClass::Invalid),
    row(403, "", "", RefusalClass::Forbidden),
    row(404, "", "", RefusalClass::NotFound),
    on_create(405, "", RefusalClass::Invalid),
    row(405, "", "", RefusalClass::Forbidden),
    row(409, "AlreadyExists", "", RefusalClass::Exists),
    // The quota controller lost an update race three times.
    on_create(409, "on resourcequotas", RefusalClass::Transient),
    row(409, "", "", RefusalClass::Conflict),
    row(410, "", "", RefusalClass::Expired),
    row(429, "", "", RefusalClass::Throttled),
    // Before anything is stored: admission (apiserver, `admission/plugin/webhook` and `plugin/resourcequota`).
    row(500, "", "failed calling webhook \"", RefusalClass::WebhookBusy),
    // A webhook's patch that is none, does not fit the object, or makes none of its kind (apiserver,
    // `webhook/mutating/dispatcher.go`).
    row(500, "", "Internal error occurred: json: ", RefusalClass::WebhookBusy),
    row(500, "", "Internal error occurred: invalid character ", RefusalClass::WebhookBusy),
    row(500, "", "Internal error occurred: Unexpected kind: ", RefusalClass::WebhookBusy),
    row(500, "", "operation does not apply: ", RefusalClass::WebhookBusy),
    row(500, "", " failed: test failed", RefusalClass::WebhookBusy),
    row(500, "", "quantities must match the regular expression", RefusalClass::WebhookBusy),
    row(500, "", "unable to parse quantity's suffix", RefusalClass::WebhookBusy),
    row(500, "", "unable to parse numeric part of quantity", RefusalClass::WebhookBusy),
    // OpenShift gives each step of admission 13 s (apiserver-library-go, `admission/timeout/timeoutadmission.go`).
    row(500, "", "failed to complete mutation in ", RefusalClass::WebhookBusy),
    row(500, "", "failed to complete validation in ", RefusalClass::WebhookBusy),
    on_create(500, "resource quota evaluation timed out", RefusalClass::Transient),
    on_create(500, "API token found for service account", RefusalClass::Transient),
    // What etcd and its client answer instead of a write (etcd, `server/etcdserver/v3_server.go`, `apply/`). After the
    // first two the API server itself tries again with less (apiserver, `handlers/create.go`). Time-outs of etcd, a
    // change of its leader or its end leave the outcome open.
    row(500, "", "etcdserver: request is too large", RefusalClass::Invalid),
    row(500, "", "trying to send message larger than max", RefusalClass::Invalid),
    row(500, "", "etcdserver: corrupt cluster", RefusalClass::Transient),
    row(500, "", "etcdserver: mvcc: database space exceeded", RefusalClass::Transient),
    row(500, "", "etcdserver: no leader", RefusalClass::Transient),
    row(500, "", "etcdserver: too many requests", RefusalClass::Transient),
    row(500, "", "transport: Error while dialing", RefusalClass::Transient),
    // 503: refused before execution. Any other 5xx may arrive after the request was executed.
    row(503, "", "", RefusalClass::Transient),
    // An ERROR event may lack the code.
    row(0, "Expired", "", RefusalClass::Expired),
    row(0, "Gone", "", RefusalClass::Expired),
];

/// The API server passes on the code that an admission webhook gives with its verdict, so the code means
/// nothing else here: a 404 or 409 is not about the object, and a 503 not about the server
/// (apiserver, `admission/plugin/webhook/errors/statuserror.go`).
fn is_admission_verdict(message: &str) -> bool {
    message.starts_with("admission webhook \"") && message.contains("\" denied the request")
}

fn admission_class(code: u16, message: &str, verb: Verb) -> RefusalClass {
    match code {
        408 | 429 | 500.. => RefusalClass::WebhookBusy,
        // A webhook may keep quotas, for example for a tree of namespaces.
        403 if message.contains("exceeded quota") => RefusalClass::Capacity,
        _ if verb == Verb::Create => RefusalClass::Invalid,
        _ => RefusalClass::Forbidden,
    }
}

fn class(code: u16, reason: &str, message: &str, verb: Verb) -> RefusalClass {
    if is_admission_verdict(message) {
        return admission_class(code, message, verb);
    }
    let found = TABLE.iter().find(|row| {
        row.code == code
            && (row.reason.is_empty() || row.reason == reason)
            && message.contains(row.message_part)
            && row.verb.is_none_or(|wanted| wanted == verb)
    });
    match found {
        Some(row) => row.class,
        None if (400..500).contains(&code) && code != 408 => RefusalClass::Invalid,
        None => RefusalClass::OutcomeUnknown,
    }
}

/// An answer that is not a Status comes from a proxy between posse and the server. It proves
/// nothing about the object (a proxy's 404 does not mean that the pod is gone), and a 5xx may
/// arrive after the request was executed.
fn class_without_status(code: u16) -> RefusalClass {
    match code {
        401 => RefusalClass::Unauthorized,
        403 => RefusalClass::Forbidden,
        413 => RefusalClass::Invalid,
        429 => RefusalClass::Throttled,
        // It waited for the server: the request may have reached it.
        408 | 409 | 410 | 499 => RefusalClass::OutcomeUnknown,
        300..=499 => RefusalClass::Transient,
        _ => RefusalClass::OutcomeUnknown,
    }
}

fn quoted(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(QUOTE_BYTES_MAX)]);
    match text.trim() {
        "" => "an empty body".to_owned(),
        text => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! captured {
        ($name:literal) => {
            ($name, include_str!(concat!("../../../../fixtures/status/", $name, ".json")))
        };
    }

    #[test]
    fn answers_of_a_real_server() {
        use RefusalClass::*;
        use Verb::*;
        let table = [
            (captured!("400-bad-json"), Create, Invalid),
            (captured!("400-name-mismatch"), Create, Invalid),
            (captured!("401"), List, Unauthorized),
            (captured!("403-limit-range"), Create, Invalid),
            (captured!("403-namespace-terminating"), Create, NamespaceGone),
            (captured!("403-priority-class"), Create, Invalid),
            (captured!("403-quota-exceeded"), Create, Capacity),
            (captured!("403-quota-must-specify"), Create, Invalid),
            (captured!("403-rbac-create"), Create, Forbidden),
            (captured!("403-rbac-delete"), Delete, Forbidden),
            (captured!("403-rbac-lease"), Get, Forbidden),
            (captured!("403-rbac-list"), List, Forbidden),
            (captured!("404-delete"), Delete, NotFound),
            (captured!("404-namespace"), Create, NotFound),
            (captured!("404-pod"), Get, NotFound),
            (captured!("405-method"), Patch, Forbidden),
            (captured!("409-being-deleted"), Create, Exists),
            (captured!("409-exists"), Create, Exists),
            (captured!("409-lease-version"), Update, Conflict),
            (captured!("409-uid-precondition"), Delete, Conflict),
            (captured!("410-continue"), List, Expired),
            (captured!("413-too-large"), Create, Invalid),
            (captured!("415-media-type"), Create, Invalid),
            (captured!("422-invalid"), Create, Invalid),
            (captured!("504-version-too-large"), List, OutcomeUnknown),
        ];
        for ((name, body), verb, wanted) in table {
            let code: u16 = name[..3].parse().unwrap();
            let got = refusal(code, None, true, body.as_bytes(), verb);
            assert_eq!((got.class, got.code), (wanted, code), "{name}: {got:?}");
            assert!(!got.message.is_empty(), "{name}: {got:?}");
        }
    }

    /// Message texts from Kubernetes' source: the test server cannot be made to send them.
    #[rustfmt::skip]
    const HARD_TO_PROVOKE: &[(u16, RefusalClass, &[&str])] = &[
        (403, RefusalClass::Transient, &[
            "pods \"x\" is forbidden: status unknown for quota: compute, resources: pods",
            "pods \"x\" is forbidden: no API token found for service account a/b, retry after the token is automatically created and added to the service account",
            "pods \"x\" is forbidden: not yet ready to handle request",
            "pods \"x\" is forbidden: management.example.com/Override node and namespace caches not synchronized",
        ]),
        (403, RefusalClass::Capacity, &[
            "pods \"x\" is forbidden: insufficient quota to consume: pods",
        ]),
        (403, RefusalClass::Invalid, &[
            "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false",
            "pods \"x\" is forbidden: image policy webhook backend denied one or more images: no",
            "pods \"x\" is forbidden: pod rejected: RuntimeClass \"gvisor\" not found",
            "pods \"x\" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: User \"x\" cannot update resource",
            "admission webhook \"w.example.com\" denied the request: no",
        ]),
        (403, RefusalClass::NamespaceGone, &[
            "pods \"x\" is forbidden: error looking up service account a/b: serviceaccount \"b\" not found",
        ]),
        (403, RefusalClass::WebhookBusy, &[
            "pods \"x\" is forbidden: Post \"https://images.example.com:1323/policy?timeout=30s\": dial tcp 10.0.0.7:1323: connect: connection refused",
            "pods \"x\" is forbidden: an error on the server (\"\") has prevented the request from succeeding",
            "pods \"x\" is forbidden: the server is currently unable to handle the request",
        ]),
        (409, RefusalClass::Transient, &[
            "Operation cannot be fulfilled on resourcequotas \"compute\": the object has been modified; please apply your changes to the latest version and try again",
        ]),
        (429, RefusalClass::Throttled, &[
            "the server has received too many requests and has asked us to try again later",
        ]),
        (500, RefusalClass::WebhookBusy, &[
            "Internal error occurred: failed calling webhook \"w\": timeout",
            "Internal error occurred: admission plugin \"MutatingAdmissionWebhook\" failed to complete mutation in 13s",
            "Internal error occurred: admission plugin \"ResourceQuota\" failed to complete validation in 13s",
            "Internal error occurred: testing value /metadata/labels/a failed: test failed",
            "Internal error occurred: jsonpatch add operation does not apply: doc is missing path: \"/metadata/annotations/x\": missing value",
            "Internal error occurred: json: cannot unmarshal number into Go struct field EnvVar.spec.containers.env.value of type string",
            "Internal error occurred: json: cannot unmarshal object into Go value of type jsonpatch.Patch",
            "Internal error occurred: Internal error occurred: Unexpected kind: unknown",
            "Internal error occurred: invalid character '<' looking for beginning of value",
            "Internal error occurred: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            "Internal error occurred: unable to parse quantity's suffix",
            "Internal error occurred: unable to parse numeric part of quantity",
        ]),
        (500, RefusalClass::Transient, &[
            "Internal error occurred: resource quota evaluation timed out",
            "No API token found for service account \"b\", retry after the token is automatically created and added to the service account",
            "etcdserver: mvcc: database space exceeded",
            "etcdserver: no leader",
            "etcdserver: too many requests",
            "etcdserver: corrupt cluster",
            "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused\"",
        ]),
        (500, RefusalClass::OutcomeUnknown, &[
            "etcdserver: request timed out",
            "etcdserver: request timed out, possibly due to previous leader failure",
            "etcdserver: leader changed",
            "etcdserver: server stopped",
            "context deadline exceeded",
            "rpc error: code = Unavailable desc = error reading from server: EOF",
            "the server cannot complete the requested operation at this time",
        ]),
        (503, RefusalClass::Transient, &["the server is currently unable to handle the request"]),
        (504, RefusalClass::OutcomeUnknown, &["request did not complete within the allotted timeout"]),
        (418, RefusalClass::Invalid, &["no"]),
        (408, RefusalClass::OutcomeUnknown, &["no"]),
    ];

    #[test]
    fn the_code_of_a_webhook_is_a_verdict_on_the_object() {
        use RefusalClass::{Capacity, Forbidden, Invalid, WebhookBusy};
        let denied = "admission webhook \"w.example.com\" denied the request: ";
        for (code, why, verb, wanted) in [
            (400, "no", Verb::Create, Invalid),
            (401, "no", Verb::Create, Invalid),
            (403, "no", Verb::Create, Invalid),
            (403, "exceeded quota of the team", Verb::Create, Capacity),
            (404, "no such team", Verb::Create, Invalid),
            (409, "no", Verb::Create, Invalid),
            (410, "no", Verb::Create, Invalid),
            (422, "no", Verb::Create, Invalid),
            (429, "slow down", Verb::Create, WebhookBusy),
            (500, "no", Verb::Create, WebhookBusy),
            (503, "later", Verb::Create, WebhookBusy),
            (504, "later", Verb::Create, WebhookBusy),
            // Believed, it would mean that the pod is gone.
            (404, "no", Verb::Delete, Forbidden),
            (409, "no", Verb::Delete, Forbidden),
            (429, "slow down", Verb::Delete, WebhookBusy),
        ] {
            for reason in ["", "NotFound", "AlreadyExists", "TooManyRequests"] {
                let got = class(code, reason, &format!("{denied}{why}"), verb);
                assert_eq!(got, wanted, "{code} {reason} {verb:?} {why}");
            }
        }
        // The same words of somebody else.
        let quoted = "pods \"x\" not found: admission webhook \"w\" denied the request";
        assert_eq!(class(404, "NotFound", quoted, Verb::Delete), RefusalClass::NotFound);
    }

    #[test]
    fn answers_that_are_hard_to_provoke() {
        for &(code, wanted, messages) in HARD_TO_PROVOKE {
            for &message in messages {
                let body = serde_json::json!({"kind": "Status", "message": message, "code": code});
                let body = body.to_string();
                let got = refusal(code, None, true, body.as_bytes(), Verb::Create);
                assert_eq!((got.class, &*got.message), (wanted, message));
            }
        }
    }

    #[test]
    fn an_object_that_is_too_large_for_etcd_is_refused_for_good() {
        let of_client = "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2200000 vs. \
            2097152)";
        for message in ["etcdserver: request is too large", of_client] {
            for reason in ["", "InternalError"] {
                let body = serde_json::json!({"kind": "Status", "message": message, "reason": reason, "code": 500});
                let got = refusal(500, None, true, body.to_string().as_bytes(), Verb::Create);
                assert_eq!(got.class, RefusalClass::Invalid, "{message}");
                assert_eq!(got.message, format!("{message}: {TOO_LARGE}"));
            }
        }
        assert_eq!(check_size(&vec![b' '; 1_572_864]), Ok(()));
        let refusal = check_size(&vec![b' '; 1_572_865]).unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Invalid);
        let words = "the object is too large for etcd (1.5 MiB): it has 1572865 bytes";
        assert_eq!(refusal.to_string(), words);
    }

    #[test]
    fn answers_that_are_not_a_status_prove_nothing() {
        let html = b"<html><h1>Bad gateway</h1></html>";
        let table = [
            (400, RefusalClass::Transient),
            (404, RefusalClass::Transient),
            (406, RefusalClass::Transient),
            (408, RefusalClass::OutcomeUnknown),
            (431, RefusalClass::Transient),
            (451, RefusalClass::Transient),
            (499, RefusalClass::OutcomeUnknown),
            (409, RefusalClass::OutcomeUnknown),
            (410, RefusalClass::OutcomeUnknown),
            (429, RefusalClass::Throttled),
            (302, RefusalClass::Transient),
            (500, RefusalClass::OutcomeUnknown),
            (502, RefusalClass::OutcomeUnknown),
            (503, RefusalClass::OutcomeUnknown),
            (401, RefusalClass::Unauthorized),
            (403, RefusalClass::Forbidden),
        ];
        for (code, wanted) in table {
            for json in [true, false] {
                let got = refusal(code, None, json, html, Verb::Delete);
                assert_eq!(got.class, wanted, "{code}");
                assert!(got.message.contains("Bad gateway"), "{}", got.message);
            }
        }
        let got = refusal(404, None, true, br#"{"kind":"Pod"}"#, Verb::Get);
        assert_eq!(got.class, RefusalClass::Transient);
    }

    #[test]
    fn an_event_without_a_code_is_classified_by_its_reason() {
        let table = [
            ("Expired", RefusalClass::Expired),
            ("Gone", RefusalClass::Expired),
            ("", RefusalClass::OutcomeUnknown),
        ];
        for (reason, wanted) in table {
            let body = format!(r#"{{"kind":"Status","reason":"{reason}"}}"#);
            let status = read_status(body.as_bytes()).unwrap().unwrap();
            assert_eq!(status.of_event().class, wanted, "{reason}");
        }
    }

    #[test]
    fn the_longer_retry_after_counts() {
        let body = br#"{"kind":"Status","details":{"retryAfterSeconds":7}}"#;
        for (header, wanted) in [(None, 7_000), (Some(3), 7_000), (Some(30), 30_000)] {
            let header = header.map(Duration::from_secs);
            let got = refusal(429, header, true, body, Verb::Create);
            assert_eq!(got.retry_after_ms, Some(wanted));
        }
    }
}
