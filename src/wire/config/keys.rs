//! The keys of posse.yaml by section, and what is said about a key that is in none or in the wrong one.

use crate::wire::section::{self, ConfigError, SIMILARITY_MIN, Section};

/// All keys by section. `executors` lists the keys of each group.
pub const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "allocation",
            "app",
            "bad_nodes",
            "control",
            "credentials",
            "driver",
            "exclusive",
            "executors",
            "failures",
            "heartbeat",
            "kubernetes_events",
            "lease",
            "metrics",
            "namespace",
            "page",
            "shutdown",
            "watch",
        ],
    ),
    (
        "allocation",
        &[
            "adopt_hold",
            "image_timeout",
            "in_flight_max",
            "node_loss_after",
            "pending_max",
            "poll_interval",
            "start_timeout",
            "unschedulable_max",
            "unschedulable_timeout",
        ],
    ),
    ("bad_nodes", &["avoid_for", "losses", "share", "window"]),
    ("credentials", &["command", "env", "every", "expires", "mount", "name", "secret", "timeout"]),
    (
        "driver",
        &[
            "annotations",
            "args",
            "command",
            "config_maps",
            "container",
            "cpu",
            "deadline",
            "dev",
            "env",
            "host",
            "image",
            "image_pull_secrets",
            "kind",
            "labels",
            "memory",
            "node_loss_after",
            "node_selector",
            "pod",
            "port",
            "posse_image",
            "ready",
            "resources",
            "retries",
            "secrets",
            "service_account",
            "silence",
            "template",
        ],
    ),
    (
        "executors",
        &[
            "args",
            "beside",
            "command",
            "completions",
            "container",
            "count",
            "cpu",
            "credentials",
            "decommission",
            "dev",
            "env",
            "group",
            "image",
            "max",
            "max_age",
            "memory",
            "memory_max",
            "min",
            "on_loss",
            "oom_growth",
            "pod",
            "replace",
            "resources",
            "restart",
            "scale",
            "scale_down",
            "security",
            "sidecar_failure",
            "slot_wait",
            "slots",
            "template",
            "volumes_per_slot",
        ],
    ),
    ("beside", &["labels", "required"]),
    ("dev", &["args", "command", "env", "working_dir"]),
    ("scale", &["command", "every", "idle_after", "per_executor", "timeout"]),
    ("decommission", &["after", "label", "signal"]),
    ("failures", &["app", "cluster", "keep_failed", "log_lines", "start", "window"]),
    ("heartbeat", &["first", "reason_wait", "timeout"]),
    ("shutdown", &["grace", "orphans", "timeout"]),
    (
        "volumes_per_slot",
        &["access", "annotations", "keep", "labels", "mount", "name", "size", "storage_class"],
    ),
];

/// A word that is this similar is hardly meant otherwise, although most words resemble one of all keys.
const SIMILARITY_CLOSE: f64 = 0.9;

/// The most places that a hint names.
const PLACES_MAX: usize = 3;

/// Rejects keys that `KEYS` does not list for this section.
pub(super) fn only(section: &Section<'_>, name: &str) -> Result<(), ConfigError> {
    let known = KEYS.iter().find(|(section, _)| *section == name);
    let (_, known) = known.expect("every section has a line in KEYS");
    section.only_or(known, |key| hint(key, &place_of_path(section.path()), known))
}

/// What a person probably meant by a key that is unknown here. The same word in another section says more
/// than a word here that is only a little similar.
fn hint(key: &str, here: &str, known: &[&'static str]) -> Option<String> {
    // So Kubernetes calls it; it resembles `replace`.
    let key = if key == "replicas" { "count" } else { key };
    let all = || KEYS.iter().flat_map(|(_, keys)| keys.iter().copied());
    let similar_here = |min| section::did_you_mean(key, known.iter().copied(), min);
    let similar_elsewhere = |min| belongs(section::similar(key, all(), min)?, here);
    similar_here(SIMILARITY_CLOSE)
        .or_else(|| similar_elsewhere(1.0))
        .or_else(|| similar_here(SIMILARITY_MIN))
        .or_else(|| similar_elsewhere(SIMILARITY_CLOSE))
}

/// Where a key belongs: the sections that are nearest to `here`.
fn belongs(key: &str, here: &str) -> Option<String> {
    let having = KEYS.iter().filter(|(_, keys)| keys.contains(&key));
    let places: Vec<String> = having.map(|(section, _)| place(section)).collect();
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

/// The path of a section of `KEYS`. That of `driver.dev` has fewer keys, and is left out.
fn place(section: &str) -> String {
    match section {
        "credentials" | "executors" => format!("{section}[]"),
        "beside" | "decommission" | "dev" | "scale" => format!("executors[].{section}"),
        "volumes_per_slot" => format!("executors[].{section}[]"),
        top => top.to_owned(),
    }
}

/// The same from a path with numbers, like `executors[0].scale`.
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
    use crate::wire::config::Config;

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
            ("executors: [{timeout: 1s}]", "(`timeout` is known in `executors[].scale`); "),
            ("executors: [{scale: {every: 1s, min: 1}}]", "(`min` belongs in `executors[]`); "),
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
