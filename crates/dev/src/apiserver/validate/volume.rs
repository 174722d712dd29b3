//! Validates the volumes of a pod. Disk and cloud volumes that no node here supports are not
//! checked.

use serde_json::Value;

use super::container::Volumes;
use super::{Causes, join, named};
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

/// In the order in which the real server looks for a second source.
const SOURCES: [&str; 8] = [
    "emptyDir",
    "hostPath",
    "secret",
    "persistentVolumeClaim",
    "downwardAPI",
    "configMap",
    "projected",
    "image",
];

/// Validates all volumes of a pod or a template; returns the valid ones.
pub(super) fn check_all<'a>(spec: &'a Value, path: &str, causes: &mut Causes) -> Volumes<'a> {
    let volumes = array_at(spec, "/volumes");
    let mut good = Volumes::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let name = text_at(volume, "/name");
        let mut wrong = Vec::new();
        source(volume, &path, &mut wrong);
        named(volume, &path, &mut wrong);
        if good.contains(name) {
            wrong.push(Cause::duplicate(join(&path, "name"), name));
        }
        if wrong.is_empty() {
            good.insert(name);
        }
        causes.append(&mut wrong);
    }
    good
}

fn source(volume: &Value, path: &str, causes: &mut Causes) {
    let n_all = volume.as_object().map_or(0, |members| members.len());
    let mut n_given = 0;
    for name in SOURCES.into_iter().filter(|name| volume.get(name).is_some()) {
        n_given += 1;
        if n_given > 1 {
            let detail = "may not specify more than 1 volume type";
            causes.push(Cause::forbidden(join(path, name), detail));
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
