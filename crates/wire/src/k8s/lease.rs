//! JSON of a Lease (`coordination.k8s.io/v1`).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::WireError;
use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::labels::{APP, COMPONENT, FORMAT, ID_HIGH_WATER, INSTANCE, MANAGED_BY, Selection};
use crate::pod::build::OwnerRef;
use crate::time::http_date_ms;
use posse_base::text::sanitize;
use posse_core::machines::lease::LeaseScope;
use posse_core::model::ids::{ExecutorId, STORED_ID_MAX, Uid};
use posse_core::model::lease::Record;
use posse_core::model::owner::{Owner, OwnerKind};

/// A Lease to write.
#[derive(Clone, Debug)]
pub struct LeaseObject<'a> {
    pub scope: LeaseScope,
    pub name: &'a str,
    pub namespace: &'a str,
    pub selection: &'a Selection,
    /// The holder's pod, and the Job whose run the Lease is of.
    pub owners: &'a [OwnerRef],
    /// Labels and annotations beside posse's own.
    pub common: &'a CommonMetadata,
    /// Content of the Lease. If `version_text` is not empty, the write replaces only that version.
    pub record: &'a Record,
}

/// Name of a Lease. The two scopes cannot collide: names of applications and instances contain no
/// dot.
pub fn name_of(scope: LeaseScope, selection: &Selection) -> String {
    match scope {
        LeaseScope::Application => format!("{}.exclusive", selection.app),
        LeaseScope::Instance => format!("{}-{}", selection.app, selection.instance),
    }
}

/// One of posse's Leases in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLease {
    pub name: String,
    pub scope: LeaseScope,
    pub selection: Selection,
    pub record: Record,
}

/// Reads a list of Leases and skips those of other programs.
///
/// # Errors
/// The bytes are not a list, or one of posse's Leases has no uid or version.
pub fn parse_list(bytes: &[u8]) -> Result<Vec<NamedLease>, WireError> {
    let list: Value = serde_json::from_slice(bytes)?;
    let items = list.get("items").ok_or(WireError::Missing("items"))?;
    let mut leases = Vec::new();
    for lease in items.as_array().into_iter().flatten() {
        if let Some((scope, selection)) = lease.get("metadata").and_then(named) {
            let name = name_of(scope, &selection);
            leases.push(NamedLease { name, scope, selection, record: record(lease)? });
        }
    }
    Ok(leases)
}

/// The run of a Lease that has posse's labels, if its name is that of this run too: somebody else's Lease may have our
/// labels.
fn named(meta: &Value) -> Option<(LeaseScope, Selection)> {
    let selection = selection(meta)?;
    let part = meta.get("labels")?.get(COMPONENT.0)?.as_str()?;
    let mut scopes = [LeaseScope::Application, LeaseScope::Instance].into_iter();
    let scope = scopes.find(|scope| part == scope.as_str())?;
    (meta.get("name")?.as_str()? == name_of(scope, &selection)).then_some((scope, selection))
}

/// The run that the labels name.
fn selection(meta: &Value) -> Option<Selection> {
    let label = |key: &str| Some(meta.get("labels")?.get(key)?.as_str()?.to_owned());
    Some(Selection { app: label(APP)?, instance: label(INSTANCE)? })
}

/// Whose Lease has ended, by a line of a watch: it is gone, or nobody holds it. The Lease of an application
/// names the instance that held it.
pub fn parse_end(line: &[u8]) -> Option<Selection> {
    let event: Value = serde_json::from_slice(line).ok()?;
    let lease = event.get("object")?;
    let held_by = || lease.get("spec")?.get("holderIdentity")?.as_str();
    let has_ended = match event.get("type")?.as_str()? {
        "DELETED" => true,
        "ADDED" | "MODIFIED" => held_by().is_none_or(str::is_empty),
        _ => false,
    };
    selection(lease.get("metadata")?).filter(|_| has_ended)
}

/// Reads a Lease.
///
/// # Errors
/// The bytes are not a Lease, or it has no uid or version.
pub fn parse(bytes: &[u8]) -> Result<Record, WireError> {
    record(&serde_json::from_slice(bytes)?)
}

/// Reads a Lease that the server has sent at this time, its `Date` header. `managedFields` say when it was stored, since
/// Kubernetes 1.18.
///
/// # Errors
/// As for `parse`.
pub fn parse_sent(bytes: &[u8], date: Option<&str>) -> Result<Record, WireError> {
    let lease: Value = serde_json::from_slice(bytes)?;
    let fields = lease.get("metadata").and_then(|meta| meta.get("managedFields")?.as_array());
    let times = fields.into_iter().flatten().map(|one| unix_ms(one.get("time")?.as_str()?));
    let stored = times.max().flatten();
    let unchanged_ms = date
        .and_then(http_date_ms)
        .zip(stored)
        .and_then(|(sent, stored)| u64::try_from(sent.saturating_sub(stored)).ok());
    Ok(Record { unchanged_ms, ..record(&lease)? })
}

fn record(lease: &Value) -> Result<Record, WireError> {
    let meta = lease.get("metadata").ok_or(WireError::Missing("metadata"))?;
    let text = |key: &str| meta.get(key).and_then(Value::as_str);
    let uid = text("uid").ok_or(WireError::Missing("metadata.uid"))?;
    let version = text("resourceVersion").ok_or(WireError::Missing("metadata.resourceVersion"))?;
    let spec = |key: &str| lease.get("spec")?.get(key);
    let number = |key: &str| spec(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let time = |key: &str| unix_ms(spec(key)?.as_str()?);
    // Its ids may mean something else: this process must neither take them nor judge who is alive.
    let annotation = |key: &str| meta.get("annotations")?.get(key)?.as_str();
    if let Some(format) = annotation(FORMAT).filter(|&format| format != "1") {
        return Err(WireError::Newer(sanitize(format, FORMAT_BYTES_MAX)));
    }
    let high_water = || annotation(ID_HIGH_WATER)?.parse().ok();
    let high_water = || high_water().filter(|&id| id <= STORED_ID_MAX);
    let manager = meta.get("labels").and_then(|labels| labels.get(MANAGED_BY.0)?.as_str());
    let is_ours = manager == Some(MANAGED_BY.1) && named(meta).is_some();
    let owners = meta.get("ownerReferences").and_then(Value::as_array);
    Ok(Record {
        uid: Uid::new(uid),
        version_text: version.to_owned(),
        holder: spec("holderIdentity").and_then(Value::as_str).unwrap_or_default().to_owned(),
        duration_s: number("leaseDurationSeconds").unwrap_or(0),
        acquired_ms: time("acquireTime"),
        renewed_ms: time("renewTime"),
        unchanged_ms: None,
        transitions: number("leaseTransitions").unwrap_or(0),
        id_high_water: high_water().map(ExecutorId),
        owner: owners.into_iter().flatten().find_map(owner_pod),
        is_ours,
    })
}

fn owner_pod(owner: &Value) -> Option<Owner> {
    let text = |key: &str| owner.get(key)?.as_str();
    let is_pod = text("kind") == Some("Pod");
    let (name, uid) = (text("name")?, text("uid")?);
    is_pod.then(|| Owner { kind: OwnerKind::Pod, name: name.to_owned(), uid: Uid::new(uid) })
}

impl LeaseObject<'_> {
    /// The request body.
    pub fn to_json(&self) -> Vec<u8> {
        let record = self.record;
        let version = &record.version_text;
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {
                    APP: self.selection.app, INSTANCE: self.selection.instance,
                    // It differs from an executor's, so that no pod selector matches a Lease.
                    COMPONENT.0: self.scope.as_str(),
                    MANAGED_BY.0: MANAGED_BY.1,
                },
                "annotations": {},
            },
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.duration_s,
                "acquireTime": record.acquired_ms.and_then(micro_time),
                "renewTime": record.renewed_ms.and_then(micro_time),
                "leaseTransitions": record.transitions,
            },
        });
        if let Some(id) = record.id_high_water {
            lease["metadata"]["annotations"][ID_HIGH_WATER] = json!(id.to_string());
        }
        self.common.lay_under_object(&mut lease);
        if !version.is_empty() {
            lease["metadata"]["resourceVersion"] = json!(version);
        }
        if !self.owners.is_empty() {
            lease["metadata"]["ownerReferences"] = json!(self.owners);
        }
        lease.to_string().into_bytes()
    }
}

fn unix_ms(text: &str) -> Option<i64> {
    text.parse::<Timestamp>().ok().map(Timestamp::as_millisecond)
}

/// Kubernetes' MicroTime: exactly six digits after the decimal point.
fn micro_time(unix_ms: i64) -> Option<String> {
    Timestamp::from_millisecond(unix_ms).ok().map(|time| format!("{time:.6}"))
}

/// The longest format that a message names, in bytes.
const FORMAT_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"wordcount-ab3de","namespace":"analytics","resourceVersion":"7","labels":{"app.kubernetes.io/component":"instance","app.kubernetes.io/managed-by":"posse","posse.dev/app":"wordcount","posse.dev/instance":"ab3de"},"annotations":{"posse.dev/id-high-water":"2000"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"driver","uid":"d"}]},"spec":{"holderIdentity":"me","leaseDurationSeconds":60,"acquireTime":"2026-01-01T00:00:00.000000Z","renewTime":"2026-01-01T00:00:01.500000Z","leaseTransitions":3}}"#;

    #[test]
    fn a_lease_is_read_back() {
        let record = Record {
            uid: Uid::new("u"),
            version_text: "7".to_owned(),
            holder: "me".to_owned(),
            duration_s: 60,
            acquired_ms: Some(1_767_225_600_000),
            renewed_ms: Some(1_767_225_601_500),
            unchanged_ms: None,
            transitions: 3,
            id_high_water: Some(ExecutorId(2_000)),
            owner: Some(Owner {
                kind: OwnerKind::Pod,
                name: "driver".to_owned(),
                uid: Uid::new("d"),
            }),
            is_ours: true,
        };
        let selection = Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() };
        let owner = OwnerRef::pod("driver", "d");
        let object = LeaseObject {
            scope: LeaseScope::Instance,
            name: &name_of(LeaseScope::Instance, &selection),
            namespace: "analytics",
            selection: &selection,
            owners: &[owner],
            common: &CommonMetadata::default(),
            record: &record,
        };
        let json: Value = serde_json::from_slice(&object.to_json()).unwrap();
        assert_eq!(json, serde_json::from_str::<Value>(OURS).unwrap());
        let served = OURS.replace(r#""resourceVersion""#, r#""uid":"u","resourceVersion""#);
        assert_eq!(parse(served.as_bytes()), Ok(record.clone()));
        for (from, to) in [
            (r#""app.kubernetes.io/managed-by":"posse","#, ""),
            (r#":"instance""#, r#":"controller""#),
            (r#""posse.dev/app":"wordcount""#, r#""posse.dev/app":"other""#),
            (r#""posse.dev/instance":"ab3de""#, r#""x":"y""#),
        ] {
            let other = parse(served.replacen(from, to, 1).as_bytes()).unwrap();
            assert!(!other.is_ours, "{from}");
        }
        let poisoned = served.replace("2000", "18446744073709551615");
        assert_eq!(parse(poisoned.as_bytes()).unwrap().id_high_water, None);
        let scope = LeaseScope::Application;
        let object = LeaseObject { scope, name: &name_of(scope, &selection), ..object };
        let json = String::from_utf8(object.to_json()).unwrap();
        assert!(json.contains(r#""name":"wordcount.exclusive""#), "{json}");
        assert!(json.contains(r#""app.kubernetes.io/component":"application""#), "{json}");
    }

    #[test]
    fn the_server_says_for_how_long_a_lease_is_unchanged() {
        let fields = r#""managedFields":[{"manager":"posse","time":"2026-01-01T00:00:05Z"},{"manager":"k","time":"2026-01-01T00:00:01Z"}]"#;
        let (early, late) = ("Thu, 01 Jan 2026 00:00:04 GMT", "Thu, 01 Jan 2026 00:01:30 GMT");
        for (fields, date, want) in [
            (fields, Some(late), Some(85_000)),
            (fields, Some(early), None),
            (fields, Some("today"), None),
            (fields, None, None),
            (r#""managedFields":[]"#, Some(late), None),
            (r#""managedFields":[{"time":"x"},{}]"#, Some(late), None),
            (r#""x":1"#, Some(late), None),
        ] {
            let with = format!(r#"{fields},"uid":"u","resourceVersion""#);
            let lease = OURS.replace(r#""resourceVersion""#, &with);
            let got = parse_sent(lease.as_bytes(), date).unwrap();
            assert_eq!(got.unchanged_ms, want, "{fields} {date:?}");
            let same = parse(lease.as_bytes()).unwrap();
            assert_eq!(same, Record { unchanged_ms: None, ..got });
        }
    }

    #[test]
    fn a_list_contains_only_leases_of_posse() {
        let ours = OURS.replace(r#""resourceVersion""#, r#""uid":"u","resourceVersion""#);
        let app = ours
            .replace(r#":"instance""#, r#":"application""#)
            .replace(r#""name":"wordcount-ab3de""#, r#""name":"wordcount.exclusive""#);
        let other_name = ours.replace(r#""name":"wordcount-ab3de""#, r#""name":"leader""#);
        let foreign = ours.replace(r#":"instance""#, r#":"controller""#);
        let list = format!(
            r#"{{"items":[{ours},{foreign},{other_name},{app},{{"metadata":{{"name":"x"}}}}]}}"#
        );
        let got = parse_list(list.as_bytes()).unwrap();
        let scopes: Vec<LeaseScope> = got.iter().map(|lease| lease.scope).collect();
        assert_eq!(scopes, [LeaseScope::Instance, LeaseScope::Application]);
        assert_eq!(
            (got[0].name.as_str(), got[0].selection.instance.as_str()),
            ("wordcount-ab3de", "ab3de")
        );
        assert_eq!(Ok(got[0].record.clone()), parse(ours.as_bytes()));
        assert_eq!(parse_list(br#"{"items":null}"#), Ok(Vec::new()));
        assert!(parse_list(b"[]").is_err());
    }

    #[test]
    fn a_lease_of_a_newer_format_is_told_and_not_read() {
        let with = |format: &str| {
            let high_water = r#""posse.dev/id-high-water""#;
            let format = format!(r#""posse.dev/format":"{format}",{high_water}"#);
            let ours = OURS.replace(r#""resourceVersion""#, r#""uid":"u","resourceVersion""#);
            ours.replace(high_water, &format)
        };
        assert_eq!(parse(with("1").as_bytes()).unwrap().id_high_water, Some(ExecutorId(2_000)));
        for format in ["2", "x"] {
            let lease = with(format);
            assert_eq!(parse(lease.as_bytes()), Err(WireError::Newer(format.to_owned())));
            // A list without it would make its executors orphans.
            let list = format!(r#"{{"items":[{lease}]}}"#);
            let error = parse_list(list.as_bytes()).expect_err("a newer one").to_string();
            assert!(error.contains("newer posse"), "{error}");
        }
    }

    #[test]
    fn the_end_of_a_lease_is_read_from_a_line_of_a_watch() {
        let ended = Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() };
        let released = OURS.replace(r#""holderIdentity":"me""#, r#""holderIdentity":"""#);
        let bare = OURS.replace(r#""holderIdentity":"me","#, "");
        let foreign = released.replace("posse.dev/instance", "x");
        for (kind, lease, want) in [
            ("ADDED", OURS, None),
            ("MODIFIED", OURS, None),
            ("DELETED", OURS, Some(&ended)),
            ("ADDED", &released, Some(&ended)),
            ("MODIFIED", &released, Some(&ended)),
            ("MODIFIED", &bare, Some(&ended)),
            ("MODIFIED", &foreign, None),
            ("BOOKMARK", &released, None),
            ("ERROR", r#"{"kind":"Status","code":410}"#, None),
        ] {
            let line = format!(r#"{{"type":"{kind}","object":{lease}}}"#);
            assert_eq!(parse_end(line.as_bytes()).as_ref(), want, "{line}");
        }
        for broken in ["", "{", "[]", r#"{"type":"DELETED"}"#, r#"{"object":{}}"#] {
            assert_eq!(parse_end(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn incomplete_leases_are_read() {
        let bare = br#"{"metadata":{"uid":"u","resourceVersion":"1"},"spec":{"holderIdentity":null,"renewTime":"yesterday"}}"#;
        let record = parse(bare).unwrap();
        assert_eq!((record.holder.as_str(), record.duration_s), ("", 0));
        assert_eq!((record.renewed_ms, record.id_high_water), (None, None));
        assert!(parse(b"{}").is_err());
        assert!(parse(br#"{"metadata":{"uid":"u"}}"#).is_err());
    }
}
