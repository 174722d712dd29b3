//! Parses the query parameters and option bodies of requests, with kube-apiserver's errors.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::apiserver::codec::decode;
use crate::apiserver::route::Target;
use crate::apiserver::selector::{FieldSelector, LabelSelector};
use crate::apiserver::table::Form;
use crate::schema::kind::Kind;
use crate::schema::status::{StatusError, go_quoted};
use crate::storage::deletion::{DeleteOptions, Propagation};
use crate::storage::object::{Object, array_at};
use posse_serve::Request;

/// The version of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    /// The newest version.
    Now,
    /// Exactly this version.
    Exact(u64),
    /// This version or a newer one; 0 is any version.
    NotOlderThan(u64),
}

/// The options of a list or a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
    pub(crate) at: VersionMatch,
    pub(crate) limit: usize,
    pub(crate) page: Option<ContinueToken>,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    /// Of a watch; zero for a negative `timeoutSeconds`.
    pub(crate) timeout: Option<Duration>,
    /// `sendInitialEvents`; if absent, the version decides.
    pub(crate) initial_events: Option<bool>,
    pub(crate) form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContinueToken {
    /// `None` continues with the newest version.
    pub(crate) version: Option<u64>,
    /// The last name of the page before, with its namespace if the list is over all namespaces.
    pub(crate) after: String,
}

impl ContinueToken {
    pub(crate) fn encode(&self) -> String {
        let version = self.version.map_or_else(|| json!(-1), |version| json!(version));
        let start = format!("{}\u{0}", self.after);
        let token = json!({ "v": "meta.k8s.io/v1", "rv": version, "start": start });
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn parse(token: &str) -> Result<Self, StatusError> {
        let refuse = || {
            let message = "invalid continue token: continue key is not valid";
            Err(StatusError::bad_request(message))
        };
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(token) else { return refuse() };
        let Ok(value) = serde_json::from_slice::<Value>(&bytes) else { return refuse() };
        let (Some(version), Some(start)) =
            (value.get("rv").and_then(Value::as_i64), value.get("start").and_then(Value::as_str))
        else {
            return refuse();
        };
        let version = match version {
            -1 => None,
            version => match u64::try_from(version) {
                Ok(version) => Some(version),
                Err(_) => return refuse(),
            },
        };
        Ok(Self { version, after: start.trim_end_matches('\u{0}').to_owned() })
    }
}

impl ListOptions {
    pub(crate) fn parse(target: &Target, request: &Request) -> Result<Self, StatusError> {
        let text = |name: &str| request.query(name).unwrap_or_default();
        let limit = whole_number(text("limit"))?.unwrap_or_default();
        let timeout = whole_number(text("timeoutSeconds"))?;
        let watch = flag(request, "watch");
        let labels = LabelSelector::parse(text("labelSelector"))?;
        let fields = FieldSelector::parse(text("fieldSelector"))?;
        check_fields(target.kind, &fields)?;
        let initial_events = request.query("sendInitialEvents").map(is_true);
        let version = resource_version(text("resourceVersion"))?;
        let page = match text("continue") {
            "" => None,
            _ if watch => None,
            token => Some(ContinueToken::parse(token)?),
        };
        // A list at any version comes from the real server's cache, which has no pages.
        let unlimited = page.is_none() && version == Some(0);
        let limit = if unlimited { 0 } else { usize::try_from(limit).unwrap_or_default() };
        let at = match (text("resourceVersionMatch"), version) {
            (_, None) => VersionMatch::Now,
            ("Exact", Some(version)) => VersionMatch::Exact(version),
            // The legacy rule: a list with a limit and a version means exactly that version.
            ("", Some(version)) if limit > 0 && version > 0 && !watch => {
                VersionMatch::Exact(version)
            }
            (_, Some(version)) => VersionMatch::NotOlderThan(version),
        };
        Ok(Self {
            labels,
            fields,
            at,
            limit,
            page,
            watch,
            bookmarks: flag(request, "allowWatchBookmarks"),
            timeout: timeout
                .filter(|seconds| *seconds != 0)
                .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
            initial_events,
            form: Form::of(request),
        })
    }

    /// True if the list has no selector, so that the server knows `remainingItemCount`.
    pub(crate) fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.labels.matches(|name| object.label(name))
            && self.fields.matches(|name| object.field(name))
    }
}

/// The selectable fields besides `metadata.name` and `metadata.namespace`.
const SELECTABLE: [(Kind, &[&str]); 5] = [
    (
        Kind::Event,
        &[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "reason",
            "reportingComponent",
            "type",
        ],
    ),
    (Kind::Namespace, &["status.phase"]),
    (Kind::Node, &["spec.unschedulable"]),
    (
        Kind::Pod,
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        ],
    ),
    (Kind::Secret, &["type"]),
];

fn check_fields(kind: Kind, fields: &FieldSelector) -> Result<(), StatusError> {
    const COMMON: [&str; 2] = ["metadata.name", "metadata.namespace"];
    let own = SELECTABLE.iter().find(|(known, _)| *known == kind).map(|(_, fields)| *fields);
    let known =
        |field: &str| COMMON.contains(&field) || own.is_some_and(|fields| fields.contains(&field));
    let Some(term) = fields.terms.iter().find(|term| !known(&term.field)) else { return Ok(()) };
    Err(StatusError::bad_request(format!("field label not supported: {}", term.field)))
}

/// Parses a `resourceVersion`; `None` if empty.
pub(crate) fn resource_version(text: &str) -> Result<Option<u64>, StatusError> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            let text = go_quoted(text);
            StatusError::bad_request(format!(
                "resourceVersion: Invalid value: {text}: strconv.ParseUint: parsing {text}: \
                 invalid syntax"
            ))
        }),
    }
}

/// Parses an integer of a query; `None` if empty.
pub(crate) fn whole_number(text: &str) -> Result<Option<i64>, StatusError> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            let message = format!("strconv.ParseInt: parsing {}: invalid syntax", go_quoted(text));
            StatusError::bad_request(message)
        }),
    }
}

/// Go's conversion: each value but `0` and `false` is true.
fn is_true(text: &str) -> bool {
    !(text == "0" || text.eq_ignore_ascii_case("false"))
}

pub(crate) fn flag(request: &Request, name: &str) -> bool {
    request.query(name).is_some_and(is_true)
}

/// True if a write must not be stored.
pub(crate) fn dry_run(request: &Request) -> bool {
    request.query("dryRun").is_some_and(|text| !text.is_empty())
}

/// Parses the options of a delete: the body if there is one, else the query.
pub(crate) fn delete(request: &Request) -> Result<DeleteOptions, StatusError> {
    let given = match request.body.is_empty() {
        true => query_options(request)?,
        false => decode::value(&request.body).map_err(|error| {
            let message = format!("couldn't get version/kind; json parse error: {error}");
            StatusError::bad_request(message)
        })?,
    };
    let wrong = |what: &str| StatusError::bad_request(format!("DeleteOptions: {what}"));
    if given.get("kind").is_some_and(|kind| kind != "DeleteOptions") {
        return Err(wrong("the body is of another kind"));
    }
    let grace = given.get("gracePeriodSeconds").filter(|seconds| !seconds.is_null());
    let grace = grace.map(|seconds| {
        seconds.as_i64().ok_or_else(|| wrong("gracePeriodSeconds is no whole number"))
    });
    let propagation = match given.get("propagationPolicy").and_then(Value::as_str) {
        None => None,
        Some("Background" | "Foreground") => Some(Propagation::Background),
        Some("Orphan") => Some(Propagation::Orphan),
        Some(other) => return Err(wrong(&format!("unknown propagationPolicy {other}"))),
    };
    let text = |pointer: &str| given.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    Ok(DeleteOptions {
        grace_seconds: grace.transpose()?,
        uid: text("/preconditions/uid"),
        version: text("/preconditions/resourceVersion"),
        dry_run: !array_at(&given, "/dryRun").is_empty(),
        propagation,
    })
}

/// The options of the query in the form of a body.
fn query_options(request: &Request) -> Result<Value, StatusError> {
    let mut given = json!({});
    for (name, text) in &request.query {
        match name.as_str() {
            "gracePeriodSeconds" => given[name] = json!(whole_number(text)?),
            "propagationPolicy" if !text.is_empty() => given[name] = text.as_str().into(),
            "dryRun" if !text.is_empty() => given[name] = json!([text]),
            _ => {}
        }
    }
    Ok(given)
}
