//! The key `volumes_per_slot` of a group.

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Amount, Name, Pairs, Path, Text, Words};
use crate::config::key::{Key, key, none, told, words};
use crate::config::pairs::{labels_but, pairs};
use crate::config::section::{ConfigError, Section};
use crate::config::{checked, only};
use crate::names;
use crate::pod::slot_volume::{KeepVolume, SlotVolume};
use posse_encoding::quantity::{Quantity, memory_error};

const KEY: &str = "volumes_per_slot";

/// Access modes that let an executor write.
const ACCESS: [(&str, &str); 3] = [
    ("ReadWriteOnce", "ReadWriteOnce"),
    ("ReadWriteOncePod", "ReadWriteOncePod"),
    ("ReadWriteMany", "ReadWriteMany"),
];
const KEEP: [(&str, KeepVolume); 2] = [
    (KeepVolume::Run.as_str(), KeepVolume::Run),
    (KeepVolume::Application.as_str(), KeepVolume::Application),
];

/// The keys of an entry.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("name", Name, told("required", ""), "The name of the volume in the pod, and the end of the claim's name."),
    key("size", Amount, told("required", ""), "The size that the claim asks for."),
    key("mount", Path, none(""),
        "The folder in the main container. Without it containers of the template mount the volume by its name, \
         for example with a `subPath`."),
    key("storage_class", Text, told("the cluster's default", ""), "The StorageClass."),
    key("access", Words(&words(&ACCESS)), Is("ReadWriteOnce"), "The access mode."),
    key("keep", Words(&words(&KEEP)), Is("run"),
        "When the claim is deleted: at the end of the run, or never by a run."),
    key("labels", Pairs, none(""), "Labels of the claim beside posse's own."),
    key("annotations", Pairs, none(""), "Annotations of the claim."),
];

/// `volumes_per_slot`: a list of volumes with different names and folders.
pub(super) fn volumes(group: &Section<'_>) -> Result<Vec<SlotVolume>, ConfigError> {
    let mut volumes: Vec<SlotVolume> = Vec::new();
    for section in group.sections(KEY)? {
        only(&section, KEYS)?;
        let volume = volume(&section)?;
        for other in &volumes {
            let (key, what) = match &volume.mount {
                _ if other.name == volume.name => ("name", &volume.name),
                Some(mount) if other.mount.as_ref() == Some(mount) => ("mount", mount),
                _ => continue,
            };
            let message = format!("{what} is in the list already; each volume needs its own");
            return Err(section.error(key, message));
        }
        volumes.push(volume);
    }
    Ok(volumes)
}

fn volume(section: &Section<'_>) -> Result<SlotVolume, ConfigError> {
    let missing = |key: &str, what: &str| section.error(key, format_args!("is missing: {what}"));
    // The rules for a volume's name are those for a group's.
    let name_error = |name: &str| {
        names::group_name_error(name).map(|_| {
            format!("`{name}` is not a name for a volume: it has at most 40 of [a-z0-9-] and no `-` at its ends")
        })
    };
    let mount_error = |mount: &str| {
        (!mount.starts_with('/') || mount.len() < 2 || mount.contains(':'))
            .then(|| format!("`{mount}` is not a folder: expected an absolute path without `:`"))
    };
    let size_error = |size: &str| {
        let is_zero = Quantity::parse(size).is_some_and(Quantity::is_zero);
        memory_error(size).or_else(|| is_zero.then(|| "must be more than 0".to_owned()))
    };
    Ok(SlotVolume {
        name: checked(section, "name", name_error)?
            .ok_or_else(|| missing("name", "a name for the volume, like scratch"))?,
        size: checked(section, "size", size_error)?
            .ok_or_else(|| missing("size", "an amount like 10Gi"))?,
        storage_class: section.text("storage_class")?,
        access: section.word("access", &ACCESS, ACCESS[0].1)?.to_owned(),
        mount: checked(section, "mount", mount_error)?,
        keep: section.word("keep", &KEEP, KeepVolume::Run)?,
        labels: labels_but(section, |_, _| None)?,
        annotations: pairs(section, "annotations")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(volumes: &str) -> Result<Vec<SlotVolume>, String> {
        let text = format!("executors: [{{image: x, volumes_per_slot: {volumes}}}]");
        let config = Config::parse("p.yaml", &text).map_err(|error| error.to_string())?;
        Ok(config.executors[0].volumes.clone())
    }

    #[test]
    fn volumes_have_defaults() {
        let got = read(
            "[{name: a, size: 1Gi, mount: /a}, {name: b, size: 500M, mount: /b, access: ReadWriteMany, keep: application, storage_class: fast, labels: {x: y}, annotations: {z: w w}}]",
        );
        let a = SlotVolume {
            name: "a".to_owned(),
            size: "1Gi".to_owned(),
            storage_class: None,
            access: "ReadWriteOnce".to_owned(),
            mount: Some("/a".to_owned()),
            keep: KeepVolume::Run,
            labels: Vec::new(),
            annotations: Vec::new(),
        };
        let b = SlotVolume {
            name: "b".to_owned(),
            size: "500M".to_owned(),
            storage_class: Some("fast".to_owned()),
            access: "ReadWriteMany".to_owned(),
            mount: Some("/b".to_owned()),
            keep: KeepVolume::Application,
            labels: vec![("x".to_owned(), "y".to_owned())],
            annotations: vec![("z".to_owned(), "w w".to_owned())],
        };
        assert_eq!(got, Ok(vec![a, b]));
        assert_eq!(read("[]"), Ok(Vec::new()));
    }

    #[test]
    fn wrong_volumes_are_errors_with_their_place() {
        let good = "name: a, size: 1Gi, mount: /a";
        for (text, want) in [
            ("{}", "volumes_per_slot: expected a list"),
            ("[{size: 1Gi, mount: /a}]", "volumes_per_slot[0].name: is missing"),
            ("[{name: a, mount: /a}]", "volumes_per_slot[0].size: is missing"),
            (
                &format!("[{{{good}, labels: {{posse.dev/app: b}}}}]"),
                "[0].labels: `posse.dev/app` is one of posse's own labels",
            ),
            ("[{name: A, size: 1Gi, mount: /a}]", "[0].name: `A` is not a name for a volume"),
            ("[{name: a, size: much, mount: /a}]", "[0].size: "),
            ("[{name: a, size: 0, mount: /a}]", "[0].size: must be more than 0"),
            ("[{name: a, size: 0.0Gi, mount: /a}]", "[0].size: must be more than 0"),
            ("[{name: a, size: 1Gi, mount: a}]", "[0].mount: `a` is not a folder"),
            ("[{name: a, size: 1Gi, mount: '/a:b'}]", "[0].mount: `/a:b` is not a folder"),
            (
                &format!("[{{{good}, access: ReadOnlyMany}}]"),
                "[0].access: expected ReadWriteOnce or",
            ),
            (&format!("[{{{good}, keep: always}}]"), "[0].keep: expected run or application"),
            (&format!("[{{{good}, class: x}}]"), "[0].class: unknown key"),
            (&format!("[{{{good}}}, {{{good}}}]"), "[1].name: a is in the list already"),
            (
                &format!("[{{{good}}}, {{name: b, size: 1Gi, mount: /a}}]"),
                "[1].mount: /a is in the list",
            ),
        ] {
            let got = read(text).unwrap_err();
            assert!(got.contains(want), "{text}: {got}");
        }
    }
}
