//! Validates volumes, claims, config maps and secrets.

use serde_json::{Map, Value};

use super::{Causes, join, push_invalid, rules};
use crate::apiserver::codec::decode;
use crate::schema::base64;
use crate::schema::names;
use crate::schema::status::Cause;
use crate::storage::object::text_at;
use posse_encoding::quantity::Quantity;

const DATA_BYTES_MAX: usize = 1 << 20;
/// The fields of a volume that are not its source.
const SETTINGS: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];
const IMMUTABLE: &str = "field is immutable when `immutable` is set";

/// The size that a claim requests.
pub(super) fn requested(resources: &Value, path: &str, causes: &mut Causes) {
    let field = format!("{path}[storage]");
    match resources.pointer("/requests/storage").and_then(Quantity::of) {
        None => causes.push(Cause::required(field, "")),
        Some(size) if size.is_negative() || size.is_zero() => {
            causes.push(Cause::invalid(field, &size.canonical(), "must be greater than zero"));
        }
        Some(_) => {}
    }
}

/// The capacity of a volume: `storage` only.
pub(super) fn capacity(capacity: &Value, path: &str, causes: &mut Causes) {
    let amounts = capacity.as_object();
    let n_amounts = amounts.map_or(0, Map::len);
    if n_amounts == 0 {
        causes.push(Cause::required(path, ""));
        causes.push(Cause::not_supported_raw(path, &"null", &["storage"]));
    } else if n_amounts > 1 || capacity.get("storage").is_none() {
        causes.push(Cause::not_supported_raw(path, capacity, &["storage"]));
    }
    for (name, amount) in amounts.into_iter().flatten() {
        let field = format!("{path}[{name}]");
        let Some(size) = Quantity::of(amount) else { continue };
        if size.is_negative() || size.is_zero() {
            causes.push(Cause::invalid(field, &size.canonical(), "must be greater than zero"));
        }
    }
}

/// A volume has a source. Only hostPath is checked further, the only one that a node here supports.
pub(super) fn volume_type(spec: &Value, path: &str, causes: &mut Causes) {
    let members = spec.as_object().into_iter().flatten();
    if members.filter(|(name, _)| !SETTINGS.contains(&name.as_str())).count() == 0 {
        causes.push(Cause::required(path, "must specify a volume type"));
    }
    if let Some(source) = spec.get("hostPath") {
        rules::check("HostPathVolumeSource", source, &join(path, "hostPath"), causes);
    }
}

/// In a claim's spec the volume name may be set once, and the size of a bound claim may grow.
pub(super) fn claim_update(old: &Value, new: &Value, causes: &mut Causes) {
    let mut kept = new["spec"].clone();
    let old_spec = &old["spec"];
    if text_at(old, "/spec/volumeName").is_empty()
        && let Some(fields) = kept.as_object_mut()
    {
        fields.remove("volumeName");
    }
    let size = |claim: &Value| claim.pointer("/spec/resources/requests/storage").cloned();
    if text_at(new, "/status/phase") == "Bound"
        && let (Some(slot), Some(was)) =
            (kept.pointer_mut("/resources/requests/storage"), size(old))
    {
        *slot = was;
    }
    if kept != *old_spec {
        let detail = "spec is immutable after creation except resources.requests for bound claims";
        causes.push(Cause::forbidden("spec", detail));
    }
    let amount = |claim| size(claim).as_ref().and_then(Quantity::of);
    if let (Some(was), Some(is)) = (amount(old), amount(new))
        && was.exceeds(is)
    {
        let detail = "field can not be less than previous value";
        causes.push(Cause::forbidden("spec.resources.requests.storage", detail));
    }
}

/// The source of a volume is immutable.
pub(super) fn volume_update(old: &Value, new: &Value, causes: &mut Causes) {
    let source = |volume: &Value| {
        let mut spec = volume["spec"].clone();
        if let Some(fields) = spec.as_object_mut() {
            fields.retain(|name, _| !SETTINGS.contains(&name.as_str()));
        }
        spec
    };
    if source(old) != source(new) {
        let detail = "spec.persistentvolumesource is immutable after creation";
        causes.push(Cause::forbidden("spec.persistentvolumesource", detail));
    }
}

fn members<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    of.get(name).and_then(Value::as_object).into_iter().flatten()
}

fn decoded_bytes(value: &Value) -> usize {
    base64::decode(value.as_str().unwrap_or_default()).map_or(0, |bytes| bytes.len())
}

/// The data of a ConfigMap.
pub(super) fn config_map(map: &Value, causes: &mut Causes) {
    let mut n_bytes = 0;
    for (key, value) in members(map, "data") {
        let field = format!("data[{key}]");
        push_invalid(causes, &field, key, names::config_key(key));
        if map.pointer("/binaryData").is_some_and(|data| data.get(key).is_some()) {
            let detail = "duplicate of key present in binaryData";
            causes.push(Cause::invalid(field, key, detail));
        }
        n_bytes += value.as_str().unwrap_or_default().len();
    }
    for (key, value) in members(map, "binaryData") {
        push_invalid(causes, &format!("binaryData[{key}]"), key, names::config_key(key));
        n_bytes += decoded_bytes(value);
    }
    if n_bytes > DATA_BYTES_MAX {
        causes.push(Cause::too_long("[]", DATA_BYTES_MAX));
    }
}

/// The data of a Secret and the keys that its type requires.
pub(super) fn secret(secret: &Value, causes: &mut Causes) {
    let mut n_bytes = 0;
    for (key, value) in members(secret, "data") {
        push_invalid(causes, &format!("data[{key}]"), key, names::config_key(key));
        n_bytes += decoded_bytes(value);
    }
    if n_bytes > DATA_BYTES_MAX {
        causes.push(Cause::too_long("data", DATA_BYTES_MAX));
    }
    let data = |key: &str| secret.get("data").and_then(|data| data.get(key));
    let mut require = |field: String| causes.push(Cause::required(field, ""));
    match text_at(secret, "/type") {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            let annotations = secret.pointer("/metadata/annotations");
            let account = annotations.and_then(|all| all.get(ACCOUNT)).and_then(Value::as_str);
            if account.is_none_or(str::is_empty) {
                require(format!("metadata.annotations[{ACCOUNT}]"));
            }
        }
        "kubernetes.io/basic-auth" => {
            let keys = ["username", "password"];
            if keys.iter().all(|key| data(key).is_none()) {
                keys.iter().for_each(|key| require(format!("data[{key}]")));
            }
        }
        "kubernetes.io/ssh-auth"
            if data("ssh-privatekey").is_none_or(|key| decoded_bytes(key) == 0) =>
        {
            require("data[ssh-privatekey]".to_owned());
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].iter().filter(|key| data(key).is_none()) {
                require(format!("data[{key}]"));
            }
        }
        "kubernetes.io/dockercfg" => registry(".dockercfg", data(".dockercfg"), causes),
        "kubernetes.io/dockerconfigjson" => {
            registry(".dockerconfigjson", data(".dockerconfigjson"), causes);
        }
        _ => {}
    }
}

/// The registry login is a JSON object.
fn registry(key: &str, value: Option<&Value>, causes: &mut Causes) {
    let field = format!("data[{key}]");
    let Some(value) = value else {
        causes.push(Cause::required(field, ""));
        return;
    };
    let bytes = base64::decode(value.as_str().unwrap_or_default()).unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<Map<String, Value>>(&bytes) {
        let error = match error.is_eof() {
            true => "unexpected end of JSON input".to_owned(),
            false => decode::go_syntax_error(&bytes, &error),
        };
        causes.push(Cause::invalid(field, "<secret contents redacted>", &error));
    }
}

/// The data of an immutable object must not change.
pub(super) fn data_update(old: &Value, new: &Value, causes: &mut Causes) {
    let is_set = |of: &Value| of.get("immutable") == Some(&Value::Bool(true));
    if !is_set(old) {
        return;
    }
    if !is_set(new) {
        causes.push(Cause::forbidden("immutable", IMMUTABLE));
    }
    for field in ["data", "binaryData"] {
        if old.get(field) != new.get(field) {
            causes.push(Cause::forbidden(field, IMMUTABLE));
        }
    }
}

pub(super) fn secret_update(old: &Value, new: &Value, causes: &mut Causes) {
    if old["type"] != new["type"] {
        let kind = text_at(new, "/type");
        causes.push(Cause::invalid("type", kind, "field is immutable"));
    }
    data_update(old, new, causes);
}
