//! Validates the volumes of a pod. Disk and cloud volumes that no node here supports are not
//! checked.

use std::collections::BTreeSet;

use serde_json::Value;

use super::container::{Volumes, field_ref, resource_ref};
use super::{Causes, join, rules};
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};
use posse_encoding::quantity::Quantity;

/// In the order in which the real server looks for a second source.
const SOURCES: [(&str, &str); 8] = [
    ("emptyDir", ""),
    ("hostPath", "HostPathVolumeSource"),
    ("secret", "SecretVolumeSource"),
    ("persistentVolumeClaim", "PersistentVolumeClaimVolumeSource"),
    ("downwardAPI", "DownwardAPIVolumeSource"),
    ("configMap", "ConfigMapVolumeSource"),
    ("projected", "ProjectedVolumeSource"),
    ("image", "ImageVolumeSource"),
];
/// The fields that a downward API file may show.
const FILE_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// Validates all volumes of a pod or a template; returns the valid ones.
pub(super) fn check_all<'a>(spec: &'a Value, path: &str, causes: &mut Causes) -> Volumes<'a> {
    let volumes = array_at(spec, "/volumes");
    let mut taken = BTreeSet::new();
    let mut good = Volumes::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let field = join(&path, "name");
        let name = text_at(volume, "/name");
        let mut wrong = Vec::new();
        source(volume, &path, &mut wrong);
        rules::check("NamedItem", volume, &path, &mut wrong);
        if taken.contains(name) {
            wrong.push(Cause::duplicate(field, name));
        }
        if wrong.is_empty() {
            taken.insert(name);
            good.insert(name);
        }
        causes.append(&mut wrong);
    }
    good
}

fn source(volume: &Value, path: &str, causes: &mut Causes) {
    let n_all = volume.as_object().map_or(0, |members| members.len());
    let mut n_given = 0;
    for (name, of) in SOURCES {
        let Some(source) = volume.get(name) else { continue };
        n_given += 1;
        if n_given > 1 {
            // The real server's spelling.
            let name = if name == "downwardAPI" { "downwarAPI" } else { name };
            let detail = "may not specify more than 1 volume type";
            causes.push(Cause::forbidden(join(path, name), detail));
            continue;
        }
        rules::check(of, source, &join(path, name), causes);
        if name == "emptyDir"
            && Quantity::of(&source["sizeLimit"]).is_some_and(Quantity::is_negative)
        {
            let field = join(path, "emptyDir.sizeLimit");
            let detail = "SizeLimit field must be a valid resource quantity";
            causes.push(Cause::forbidden(field, detail));
        }
    }
    if volume.get("ephemeral").is_some() {
        // Nothing would make its claim, and the pod would wait for ever.
        let detail = "the embedded cluster has no ephemeral volumes";
        causes.push(Cause::forbidden(join(path, "ephemeral"), detail));
    }
    // Any other member except the name is a source that is not checked here.
    if n_given == 0 && n_all < 2 {
        causes.push(Cause::required(path, "must specify a volume type"));
    }
}

pub(super) fn downward_source(file: &Value, path: &str, causes: &mut Causes) {
    match (file.get("fieldRef"), file.get("resourceFieldRef")) {
        (Some(field), amount) => {
            field_ref(field, &FILE_FIELDS, &join(path, "fieldRef"), causes);
            if amount.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                causes.push(Cause::invalid(path, "resource", detail));
            }
        }
        (None, Some(amount)) => {
            resource_ref(amount, true, &join(path, "resourceFieldRef"), causes);
        }
        (None, None) => {
            let detail = "one of fieldRef and resourceFieldRef is required";
            causes.push(Cause::required(path, detail));
        }
    }
}

/// The sources of a projected volume must not write the same file.
pub(super) fn projected(volume: &Value, path: &str, causes: &mut Causes) {
    let mut taken = BTreeSet::new();
    for (i, source) in array_at(volume, "/sources").iter().enumerate() {
        let at = format!("{path}.sources[{i}]");
        for (kind, of) in [
            ("secret", "KeyToPath"),
            ("configMap", "KeyToPath"),
            ("downwardAPI", "DownwardAPIVolumeFile"),
        ] {
            let Some(source) = source.get(kind) else { continue };
            let field = join(&at, kind);
            let name = text_at(source, "/name");
            let of_keys = of == "KeyToPath";
            if of_keys && name.is_empty() {
                causes.push(Cause::required(join(&field, "name"), ""));
            }
            for (k, file) in array_at(source, "/items").iter().enumerate() {
                let item = if of_keys { format!("{field}.items[{k}]") } else { field.clone() };
                rules::check(of, file, &item, causes);
                let file = text_at(file, "/path");
                if !file.is_empty() && !taken.insert(file) {
                    let shown = if of_keys { name } else { file };
                    causes.push(Cause::invalid(path, shown, "conflicting duplicate paths"));
                }
            }
        }
        if let Some(token) = source.get("serviceAccountToken") {
            token_source(token, path, &join(&at, "serviceAccountToken"), causes);
        }
        if source.as_object().is_some_and(|members| members.len() > 1) {
            let detail = "may not specify more than 1 volume type per source";
            causes.push(Cause::forbidden(at, detail));
        }
    }
}

fn token_source(token: &Value, volume: &str, path: &str, causes: &mut Causes) {
    const SECONDS_MIN: i64 = 600;
    const SECONDS_MAX: i64 = 1 << 32;
    let seconds = token["expirationSeconds"].as_i64().unwrap_or_default();
    let field = join(path, "expirationSeconds");
    if seconds < SECONDS_MIN {
        let detail = "may not specify a duration less than 10 minutes";
        causes.push(Cause::invalid_raw(&field, &seconds, detail));
    }
    if seconds > SECONDS_MAX {
        let detail = "may not specify a duration larger than 2^32 seconds";
        causes.push(Cause::invalid_raw(&field, &seconds, detail));
    }
    if text_at(token, "/path").is_empty() {
        causes.push(Cause::required(join(volume, "path"), ""));
    }
}
