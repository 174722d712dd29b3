//! The files of configMap, secret, downwardAPI and projected volumes. Errors are worded as the
//! kubelet words them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::apiserver::api::Api;
use crate::node::sources::{self, Data};
use crate::schema::kind::Kind;
use crate::schema::status::joined;
use crate::storage::State;
use crate::storage::object::{array_at, text_at};

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
}

/// A volume's files by their paths in the volume.
pub(super) type Files = BTreeMap<String, File>;

const MODE_DEFAULT: u32 = 0o644;
/// The API server's default of `expirationSeconds`.
const EXPIRATION_SECONDS_DEFAULT: u64 = 3600;

/// Volume fields that refer to an object: field, kind, and the field that names the object. All of
/// them can also be sources of a projected volume.
const OBJECTS: [(&str, Kind, &str); 2] =
    [("configMap", Kind::ConfigMap, "name"), ("secret", Kind::Secret, "secretName")];

/// The files of a volume. `None` if its type holds no data of the cluster.
pub(super) fn files(
    api: &Api,
    state: &State,
    pod: &Value,
    volume: &Value,
) -> Option<Result<Files, String>> {
    let mut files = Files::new();
    for (field, kind, name) in OBJECTS {
        if let Some(source) = volume.get(field) {
            let name = text_at(source, &format!("/{name}"));
            let mode = mode(source, "defaultMode", MODE_DEFAULT);
            let added = object(state, pod, source, kind, name, mode, &mut files);
            return Some(added.map(|()| files));
        }
    }
    if let Some(source) = volume.get("downwardAPI") {
        let mode = mode(source, "defaultMode", MODE_DEFAULT);
        return Some(downward(pod, source, mode, &mut files).map(|()| files));
    }
    let source = volume.get("projected")?;
    let mode = mode(source, "defaultMode", MODE_DEFAULT);
    let mut errors = Vec::new();
    for part in array_at(source, "/sources") {
        if let Err(error) = projected(api, state, pod, part, mode, &mut files) {
            errors.push(error);
        }
    }
    Some(if errors.is_empty() { Ok(files) } else { Err(joined(errors)) })
}

fn projected(
    api: &Api,
    state: &State,
    pod: &Value,
    part: &Value,
    mode: u32,
    files: &mut Files,
) -> Result<(), String> {
    for (field, kind, _) in OBJECTS {
        if let Some(source) = part.get(field) {
            object(state, pod, source, kind, text_at(source, "/name"), mode, files)?;
        }
    }
    if let Some(source) = part.get("downwardAPI") {
        downward(pod, source, mode, files)?;
    }
    if let Some(source) = part.get("serviceAccountToken") {
        let seconds = source.get("expirationSeconds").and_then(Value::as_u64);
        let token = api.tokens.of_pod(
            state,
            pod,
            text_at(source, "/audience"),
            seconds.unwrap_or(EXPIRATION_SECONDS_DEFAULT),
            api.clock.wall(api.clock.now()),
        )?;
        let path = text_at(source, "/path").to_owned();
        files.insert(path, File { bytes: token.into_bytes(), mode });
    }
    Ok(())
}

fn mode(source: &Value, field: &str, default: u32) -> u32 {
    let given = source.get(field).and_then(Value::as_u64);
    given.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default) & 0o777
}

/// Adds the files of a configmap or a secret: all keys, or the keys of `items`.
fn object(
    state: &State,
    pod: &Value,
    source: &Value,
    kind: Kind,
    name: &str,
    mode_default: u32,
    files: &mut Files,
) -> Result<(), String> {
    let optional = sources::is_optional(source);
    let namespace = text_at(pod, "/metadata/namespace");
    let found = sources::data(&state.store, kind, namespace, name, optional)?;
    let data: Data = found.unwrap_or_default();
    let items = array_at(source, "/items");
    if items.is_empty() {
        let all = data.into_iter();
        files.extend(all.map(|(key, bytes)| (key, File { bytes, mode: mode_default })));
        return Ok(());
    }
    for item in items {
        let key = text_at(item, "/key");
        match data.get(key) {
            Some(bytes) => {
                let mode = mode(item, "mode", mode_default);
                let file = File { bytes: bytes.clone(), mode };
                files.insert(text_at(item, "/path").to_owned(), file);
            }
            None if optional => {}
            None => {
                let word = if kind == Kind::Secret { "secret" } else { "config" };
                return Err(format!("references non-existent {word} key: {key}"));
            }
        }
    }
    Ok(())
}

fn downward(
    pod: &Value,
    source: &Value,
    mode_default: u32,
    files: &mut Files,
) -> Result<(), String> {
    for item in array_at(source, "/items") {
        let text = match (item.get("fieldRef"), item.get("resourceFieldRef")) {
            (Some(reference), _) => sources::field(pod, text_at(reference, "/fieldPath")),
            (None, Some(_)) => return Err("the embedded node takes no resourceFieldRef".to_owned()),
            (None, None) => String::new(),
        };
        let file = File { bytes: text.into_bytes(), mode: mode(item, "mode", mode_default) };
        files.insert(text_at(item, "/path").to_owned(), file);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    fn shown(volume: &Value) -> Option<Result<String, String>> {
        let api = testing::api();
        let mut state = api.lock();
        let named = |name: &str| json!({"name": name, "namespace": "n"});
        let map = json!({"metadata": named("m"), "data": {"a": "1"}, "binaryData": {"b": "Mg=="}});
        state.store.put(Kind::ConfigMap, map);
        let secret = json!({"metadata": named("s"), "data": {"pass": "aHVudGVy"}});
        state.store.put(Kind::Secret, secret);
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"l": "x"}},
        });
        let files = files(&api, &state, &pod, volume)?;
        Some(files.map(|files| {
            let lines = files.iter().map(|(path, file)| {
                format!("{path}({:o})={}", file.mode, String::from_utf8_lossy(&file.bytes))
            });
            lines.collect::<Vec<_>>().join(" ")
        }))
    }

    #[test]
    fn files_come_from_objects_and_pod_fields() {
        let items = json!([{"key": "a", "path": "d/x", "mode": 0o400}]);
        let labels = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
        let cpu = json!({"path": "cpu", "resourceFieldRef": {"resource": "limits.cpu"}});
        for (volume, want) in [
            (json!({"configMap": {"name": "m"}}), Ok("a(644)=1 b(644)=2")),
            (
                json!({"configMap": {"name": "m", "defaultMode": 0o600, "items": items}}),
                Ok("d/x(400)=1"),
            ),
            (json!({"secret": {"secretName": "s", "defaultMode": 0o600}}), Ok("pass(600)=hunter")),
            (json!({"configMap": {"name": "x"}}), Err("configmap \"x\" not found")),
            (json!({"configMap": {"name": "x", "optional": true}}), Ok("")),
            (json!({"secret": {"secretName": "x"}}), Err("secret \"x\" not found")),
            (
                json!({"secret": {"secretName": "s", "items": items}}),
                Err("references non-existent secret key: a"),
            ),
            (json!({"secret": {"secretName": "s", "items": items, "optional": true}}), Ok("")),
            (
                json!({"configMap": {"name": "m", "items": [{"key": "z", "path": "z"}]}}),
                Err("references non-existent config key: z"),
            ),
            (json!({"downwardAPI": {"items": [labels]}}), Ok("labels(644)=l=\"x\"")),
            (
                json!({"downwardAPI": {"items": [labels, cpu]}}),
                Err("the embedded node takes no resourceFieldRef"),
            ),
            (
                json!({"projected": {"defaultMode": 0o440, "sources": [
                    {"configMap": {"name": "m", "items": items}},
                    {"secret": {"name": "s"}}, {"downwardAPI": {"items": [labels]}},
                ]}}),
                Ok("d/x(400)=1 labels(440)=l=\"x\" pass(440)=hunter"),
            ),
            (
                json!({"projected": {"sources": [
                    {"configMap": {"name": "x"}}, {"secret": {"name": "y"}},
                ]}}),
                Err("[configmap \"x\" not found, secret \"y\" not found]"),
            ),
        ] {
            let want = want.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(shown(&volume), Some(want), "{volume}");
        }
        assert_eq!(shown(&json!({"emptyDir": {}})), None);
    }
}
