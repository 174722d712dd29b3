//! The key `queue_group` of a group: what excludes it.

use crate::config::section::{ConfigError, Section};
use posse_core::model::settings::GroupSpec;

/// Refuses what does not fit a group of fixed size that a queue admits as a whole.
pub(super) fn check(
    section: &Section<'_>,
    spec: &GroupSpec,
    has_queue: bool,
) -> Result<(), ConfigError> {
    let count = spec.target;
    let refuse = |key: &str, what: String| Err(section.error(key, what));
    if !has_queue {
        return refuse("queue_group", "needs `queue`, the queue that admits the group".to_owned());
    }
    for (key, what) in [
        ("gang", "the queue admits all executors together already"),
        ("scale", "a group in a queue has a fixed size"),
        ("oom_growth", "the queue has admitted the memory that is written"),
    ] {
        if section.get(key).is_some() {
            return refuse(key, format!("excludes `queue_group: true`: {what}; leave `{key}` out"));
        }
    }
    if count == 0 {
        return refuse("count", "must be at least 1 with `queue_group: true`".to_owned());
    }
    for (key, limit) in [("min", spec.min), ("max", spec.max.unwrap_or(count))] {
        if section.get(key).is_some() && limit != count {
            let what = format!(
                "is {limit} and not {count}, the group's count: with `queue_group: true` its size is \
                 fixed; leave `{key}` out"
            );
            return refuse(key, what);
        }
    }
    match spec.completions {
        Some(n) if n != count => {
            let what = format!(
                "must be {count}, the group's count: for its queue an executor that has completed stays a \
                 member, so no other one may begin"
            );
            refuse("completions", what)
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::config::tests::fails;

    #[test]
    fn a_group_of_a_queue_has_a_fixed_size() {
        let config = |text: &str| {
            let file = format!("executors: [{{image: x, queue_group: true, {text}}}]");
            Config::parse("posse.yaml", &file).map_err(|error| error.to_string())
        };
        for text in [
            "count: 3, queue: a",
            "count: 3, min: 3, max: 3, queue: a",
            "count: 3, queue: a, on_loss: group",
            "count: 3, queue: a, restart: on-failure, completions: 3",
        ] {
            let group = config(text).unwrap().executors.remove(0);
            assert_eq!((group.spec.min, group.spec.max), (3, Some(3)), "{text}");
            assert_eq!(group.pod.queue_group, Some(3), "{text}");
            assert!(group.spec.has_stable_slots(), "{text}");
        }
        for (text, want) in [
            ("count: 3", "queue_group: needs `queue`"),
            ("count: 3, queue: a, gang: {min: 2}", "gang: excludes `queue_group: true`: the queue"),
            ("queue: a, scale: {command: [a]}", "scale: excludes `queue_group: true`: a group"),
            ("queue: a, oom_growth: 2, memory: 1Gi, memory_max: 4Gi", "oom_growth: excludes"),
            ("count: 0, queue: a", "count: must be at least 1"),
            ("count: 3, max: 4, queue: a", "max: is 4 and not 3"),
            ("count: 3, min: 1, queue: a", "min: is 1 and not 3"),
            ("count: 3, queue: a, slots: lowest", "slots: excludes `queue_group: true`: a succ"),
            ("count: 3, queue: a, replace: terminating", "replace: excludes `queue_group: true`"),
            ("count: 3, queue: a, restart: on-failure", "restart: excludes `queue_group: true`"),
            (
                "count: 3, queue: a, restart: on-failure, completions: 4",
                "completions: must be 3, the group's count",
            ),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(&format!("executors[0].{want}")), "{text}: {error}");
        }
        fails(
            "executors: [{image: x, queue_group: 3}]",
            "1:37: executors[0].queue_group: expected",
        );
    }
}
