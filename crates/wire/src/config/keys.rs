//! One description of each key of posse.yaml: what the parser accepts, what its errors expect, the tables of
//! docs/CONFIGURATION.md and the file that `posse init` writes come from it. The keys of a section stand beside
//! their parser.

use crate::config;
use crate::config::key::Key;

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
pub(super) const REMOVED: &[(&str, &str, &str)] = &[
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
            ("executors: [{name: w}]", "executors[0].name: unknown key (did you mean `group`?); "),
            // Like nothing.
            ("command: [a]", "is known in `credentials[]` or in `driver` or in `executors[]`"),
            ("zzz: 3", "zzz: unknown key; known here: "),
        ] {
            let got = Config::parse("posse.yaml", text).unwrap_err().to_string();
            assert!(got.contains(want), "{text}\n got: {got}\nwant: {want}");
        }
    }
}
