//! One description of each key of posse.yaml: what the parser accepts, what its errors expect, the tables of
//! docs/CONFIGURATION.md and the file that `posse init` writes come from it. The keys of a section stand beside
//! their parser.

use crate::config;
use crate::config::key::Key;
use crate::config::section::{self, ConfigError, SIMILARITY_MIN, Section};

/// All sections: their paths and keys. `driver.dev` has fewer keys than that of a group, and is left out.
pub const SECTIONS: &[(&str, &[Key])] = &[
    ("", config::TOP),
    ("allocation", config::ALLOCATION),
    ("credentials[]", config::credentials::KEYS),
    ("driver", config::driver::KEYS),
    ("driver.idle", config::idle::KEYS),
    ("executors[]", config::group::KEYS),
    ("executors[].beside", config::beside::KEYS),
    ("executors[].dev", config::dev::KEYS),
    ("executors[].scale", config::scale::KEYS),
    ("executors[].decommission", config::decommission::KEYS),
    ("executors[].oom_growth", config::nodes_and_memory::GROWTH_KEYS),
    ("executors[].gang", config::gang::KEYS),
    ("failures", config::FAILURES),
    ("heartbeat", config::HEARTBEAT),
    ("shutdown", config::SHUTDOWN),
    ("executors[].volumes_per_slot[]", config::volumes::KEYS),
];

/// Keys that were there before 0.2: where, and what stands for them.
#[rustfmt::skip]
const REMOVED: &[(&str, &str, &str)] = &[
    ("", "kubernetes_events", "posse writes no Events where its role does not permit it"),
    ("", "watch", "posse always watches"),
    ("allocation", "adopt_hold", "it is 5m"),
    ("allocation", "image_timeout", "it is half of `allocation.start_timeout`"),
    ("allocation", "node_loss_after", "it is 60s; for another time write `tolerations` into the pod of the group"),
    ("allocation", "unschedulable_max", "posse limits what does not run by itself; `allocation.pending_max` is a limit of your own"),
    ("allocation", "unschedulable_timeout", "an executor waits for its node for ever"),
    ("bad_nodes", "avoid_for", "it is 30m"),
    ("bad_nodes", "losses", "it is 3; for 0 write `bad_nodes: off`"),
    ("bad_nodes", "share", "it is 0.25, and one node at least"),
    ("bad_nodes", "window", "it is 10m"),
    ("driver", "annotations", "write `metadata.annotations` into `driver.pod`"),
    ("driver", "config_maps", "write `volumes` and `volumeMounts` into `driver.pod`"),
    ("driver", "files", "use `posse submit --file PATH`"),
    ("driver", "image_pull_secrets", "write `spec.imagePullSecrets` into `driver.pod`"),
    ("driver", "labels", "write `metadata.labels` into `driver.pod`"),
    ("driver", "node_loss_after", "it is 60s; for another time write `spec.tolerations` into `driver.pod`"),
    ("driver", "node_selector", "write `spec.nodeSelector` into `driver.pod`"),
    ("driver", "resources", "use `driver.cpu` and `driver.memory`, or write `resources` into `driver.pod`"),
    ("driver", "secrets", "write `volumes` and `volumeMounts` into `driver.pod`"),
    ("driver", "service_account", "write `spec.serviceAccountName` into `driver.pod`"),
    ("driver.dev", "args", "write the arguments into `driver.dev.command`"),
    ("driver.dev", "working_dir", "the driver has the folder of posse run"),
    ("driver.idle", "timeout", "it is 10s; let the command itself end sooner"),
    ("executors[]", "protect_for", "it is 24h"),
    ("executors[]", "sidecar_failure", "let the main container end when it needs another one that has failed"),
    ("executors[]", "slot_wait", "it is 60s with `volumes_per_slot`; with `slots: stable` there is no limit"),
    ("executors[].dev", "args", "write the arguments into `dev.command`, and none into `args`"),
    ("executors[].dev", "working_dir", "let `dev.command` change its folder, as in `[sh, -c, cd FOLDER && exec PROGRAM]`"),
    ("executors[].scale", "timeout", "it is 10s; let the command itself end sooner"),
    ("heartbeat", "first", "it is 2m, or `heartbeat.timeout` if that is longer"),
    ("heartbeat", "reason_wait", "it is 30s"),
    ("shutdown", "orphans", "executors whose driver is gone are deleted"),
];

/// A word that is this similar is hardly meant otherwise, although most words resemble one of all keys.
const SIMILARITY_CLOSE: f64 = 0.9;

/// The most places that a hint names.
const PLACES_MAX: usize = 3;

/// Rejects keys that this section does not have.
pub(super) fn only(section: &Section<'_>, keys: &[Key]) -> Result<(), ConfigError> {
    let mut known: Vec<&str> = keys.iter().map(|key| key.name).collect();
    known.sort_unstable();
    let here = place_of_path(&section.path);
    section.only_or(&known, |key| removed(key, &here).or_else(|| hint(key, &here, &known)))
}

/// The map at a key, which may have these keys; `None` if it is absent.
pub(super) fn map_at<'a>(
    parent: &Section<'a>,
    key: &str,
    keys: &[Key],
) -> Result<Option<Section<'a>>, ConfigError> {
    if parent.get(key).is_none() {
        return Ok(None);
    }
    let section = parent.section(key)?;
    only(&section, keys)?;
    Ok(Some(section))
}

/// What stands for a key that was known here once.
fn removed(key: &str, here: &str) -> Option<String> {
    let (_, _, instead) = REMOVED.iter().find(|(place, name, _)| *place == here && *name == key)?;
    Some(format!(" (it was removed: {instead})"))
}

/// What a person probably meant by a key that is unknown here. The same word in another section says more
/// than a word here that is only a little similar.
fn hint(key: &str, here: &str, known: &[&'static str]) -> Option<String> {
    // So Kubernetes calls it; it resembles `replace`.
    let key = if key == "replicas" { "count" } else { key };
    let all = || SECTIONS.iter().flat_map(|(_, keys)| keys.iter().map(|key| key.name));
    let similar_here = |min| section::did_you_mean(key, known.iter().copied(), min);
    let similar_elsewhere = |min| belongs(section::similar(key, all(), min)?, here);
    similar_here(SIMILARITY_CLOSE)
        .or_else(|| similar_elsewhere(1.0))
        .or_else(|| similar_here(SIMILARITY_MIN))
        .or_else(|| similar_elsewhere(SIMILARITY_CLOSE))
}

/// Where a key belongs: the sections that are nearest to `here`.
fn belongs(key: &str, here: &str) -> Option<String> {
    let having = SECTIONS.iter().filter(|(_, keys)| keys.iter().any(|known| known.name == key));
    let places: Vec<&str> = having.map(|(place, _)| *place).collect();
    let nearest = places.iter().map(|place| distance(here, place)).min()?;
    let near = places.iter().filter(|place| distance(here, place) == nearest);
    let near: Vec<String> = near.map(|place| shown(place)).collect();
    if near.len() > PLACES_MAX {
        return None;
    }
    // If it has another meaning elsewhere, this place is a guess.
    let verb = if near.len() == places.len() { "belongs" } else { "is known" };
    Some(format!(" (`{key}` {verb} {})", near.join(" or ")))
}

/// The place of a path with numbers, like `executors[0].scale`.
fn place_of_path(path: &str) -> String {
    path.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn shown(place: &str) -> String {
    if place.is_empty() { "at the top".to_owned() } else { format!("in `{place}`") }
}

/// The number of steps up and down from one place to another.
fn distance(from: &str, to: &str) -> usize {
    let parts = |place: &str| -> Vec<String> {
        place.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let (from, to) = (parts(from), parts(to));
    let n_common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    from.len() + to.len() - 2 * n_common
}

#[cfg(test)]
mod tests {
    use super::{REMOVED, SECTIONS};
    use crate::config::{Config, Preset};

    /// A file with these entries in one section.
    fn file(place: &str, entries: &[(&str, &str)]) -> String {
        let entries: Vec<String> =
            entries.iter().map(|(key, value)| format!("{key}: {value}")).collect();
        let map = format!("{{{}}}", entries.join(", "));
        let parts = place.rsplit('.').filter(|part| !part.is_empty());
        parts.fold(map, |inner, part| match part.strip_suffix("[]") {
            Some(list) => format!("{{{list}: [{inner}]}}"),
            None => format!("{{{part}: {inner}}}"),
        })
    }

    /// What a section needs beside the key that is tested.
    fn required(place: &str) -> &'static [(&'static str, &'static str)] {
        match place {
            "credentials[]" => &[
                ("name", "a"),
                ("command", "[a]"),
                ("every", "1h"),
                ("secret", "a"),
                ("mount", "/a"),
            ],
            "executors[].beside" => &[("labels", "{a: b}")],
            "executors[].decommission" => &[("after", "1s")],
            "driver.idle" | "executors[].scale" => &[("command", "[a]")],
            "executors[].volumes_per_slot[]" => &[("name", "a"), ("size", "1Gi")],
            _ => &[],
        }
    }

    #[test]
    fn a_default_that_is_written_changes_nothing() {
        let mut n_defaults = 0;
        for (place, keys) in SECTIONS {
            let without = file(place, required(place));
            for key in *keys {
                let Preset::Is(value) = key.default else { continue };
                let with = file(place, &[required(place), &[(key.name, value)]].concat());
                let [with, without] =
                    [&with, &without].map(|text| Config::parse("f", text).unwrap());
                assert_eq!(with, without, "{place}.{}: {value}", key.name);
                n_defaults += 1;
            }
        }
        assert!(n_defaults > 25, "{n_defaults}");
    }

    #[test]
    fn errors_expect_the_type_that_the_key_has() {
        for (place, keys) in SECTIONS {
            for key in *keys {
                let rest = required(place).iter().copied().filter(|(name, _)| *name != key.name);
                let rest: Vec<(&str, &str)> = rest.collect();
                let said = ["'x y'", "[[]]"].map(|wrong| {
                    let text = file(place, &[rest.as_slice(), &[(key.name, wrong)]].concat());
                    Config::parse("f", &text).map_or_else(|error| error.message, |_| String::new())
                });
                let place = if place.is_empty() { String::new() } else { format!("{place}.") };
                let path = format!("{place}{}", key.name).replace("[]", "[0]");
                let want = format!("{path}: expected {}", key.value);
                assert!(said.iter().any(|said| said.starts_with(&want)), "{want}: {said:?}");
            }
        }
    }

    #[test]
    fn a_removed_key_is_refused_with_what_stands_for_it() {
        for (place, key, instead) in REMOVED {
            let known = SECTIONS.iter().find(|(known, _)| known == place).map(|(_, keys)| *keys);
            assert!(known.is_none_or(|keys| keys.iter().all(|known| known.name != *key)), "{key}");
            let entries = [required(place), &[(*key, "x")]].concat();
            let error = Config::parse("f", &file(place, &entries)).unwrap_err().to_string();
            let place = if place.is_empty() { String::new() } else { format!("{place}.") };
            let path = format!("{place}{key}").replace("[]", "[0]");
            let want = format!(": {path}: unknown key (it was removed: {instead})");
            assert!(error.starts_with("f:1:") && error.contains(&want), "{want}: {error}");
        }
    }

    #[test]
    fn a_key_of_another_place_is_said_to_belong_there() {
        for (text, want) in [
            (
                "scale_down: any",
                "scale_down: unknown key (`scale_down` belongs in `executors[]`); ",
            ),
            ("scaleDown: any", "scaleDown: unknown key (`scale_down` belongs in `executors[]`); "),
            ("cout: 3", "cout: unknown key (`count` belongs in `executors[]`); "),
            ("image: x", "image: unknown key (`image` belongs in `driver` or in `executors[]`); "),
            ("pending_max: 1", "(`pending_max` belongs in `allocation`); "),
            ("keep_failde: 1", "(`keep_failed` belongs in `failures`); "),
            // A similar word here, and one that is less similar than the same word elsewhere.
            ("executers: []", "(did you mean `executors`?); "),
            (
                "executors: [{Image: x}]",
                "executors[0].Image: unknown key (did you mean `image`?); ",
            ),
            ("executors: [{beside: {label: {a: b}}}]", "(did you mean `labels`?); "),
            ("allocation: {image: x}", "(`image` belongs in `driver` or in `executors[]`); "),
            ("executors: [{namespace: x}]", "(`namespace` belongs at the top); "),
            (
                "driver: {count: 2}",
                "driver.count: unknown key (`count` belongs in `executors[]`); ",
            ),
            ("executors: [{mount: /x}, {}]", "in `executors[].volumes_per_slot[]`"),
            (
                "executors: [{posse_image: x}]",
                "executors[0].posse_image: unknown key (`posse_image` belongs in `driver`); ",
            ),
            // The nearest of several places is a guess.
            (
                "executors: [{after: 1s}]",
                "executors[0].after: unknown key (`after` belongs in `executors[].decommission`); ",
            ),
            ("executors: [{scale: {every: 1s, min: 1}}]", "(`min` is known in `executors[]`); "),
            ("name: x", "name: unknown key (`name` is known in `credentials[]`); "),
            (
                "executors: [{app: x}]",
                "executors[0].app: unknown key (`app` is known at the top); ",
            ),
            // Another word for it.
            ("replicas: 3", "replicas: unknown key (`count` belongs in `executors[]`); "),
            (
                "executors: [{replicas: 3}]",
                "executors[0].replicas: unknown key (did you mean `count`?); ",
            ),
            // Like nothing.
            ("command: [a]", "is known in `credentials[]` or in `driver` or in `executors[]`"),
            ("zzz: 3", "zzz: unknown key; known here: "),
        ] {
            let got = Config::parse("posse.yaml", text).unwrap_err().to_string();
            assert!(got.contains(want), "{text}\n got: {got}\nwant: {want}");
        }
    }
}
