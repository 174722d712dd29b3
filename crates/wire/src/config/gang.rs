//! The key `gang` of a group.

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Duration, Integer, With, Words};
use crate::config::key::{Key, key, preset_ms, told, words};
use crate::config::map_at;
use crate::config::section::{ConfigError, Section};
use crate::pod::build::gang::{GangKind, PodGang};
use posse_core::model::settings::{EXECUTORS_MAX, Together};

/// Who starts the executors of a gang together.
const KINDS: [(&str, Option<GangKind>); 5] = [
    ("none", None),
    ("native", Some(GangKind::Native)),
    ("volcano", Some(GangKind::Volcano)),
    ("coscheduling", Some(GangKind::Coscheduling)),
    ("yunikorn", Some(GangKind::Yunikorn)),
];

/// The keys of `gang`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("min", With(&Integer, " from 1"), told("`count`", "4"), "How many executors must run together."),
    key("kind", Words(&words(&KINDS)), Is("none"), "Who starts them together: the scheduler of this name, or, with `none`, nobody but posse."),
    key("timeout", With(&Duration, " above 0s"), Is("5m"),
        "How long an incomplete gang may hold room. `native` and `volcano` hold none and have no `timeout`."),
];

/// What the core and the pods need to know of the gang. `count`: the target at the start; `max`: the highest one;
/// `queue`: the group's.
pub(super) fn gang(
    group: &Section<'_>,
    count: u32,
    max: Option<u32>,
    queue: Option<&str>,
) -> Result<(Together, Option<PodGang>), ConfigError> {
    let Some(section) = map_at(group, "gang", KEYS)? else { return Ok((Together::No, None)) };
    let min = section.number_up_to("min", EXECUTORS_MAX)?.unwrap_or(count);
    if min == 0 {
        let message = "must be at least 1: it is the number of executors that run together";
        return Err(section.error("min", message));
    }
    // Without a count of its own the group gets its target later.
    for (key, limit) in [("count", Some(count).filter(|count| *count > 0)), ("max", max)] {
        if let Some(limit) = limit.filter(|limit| min > *limit) {
            let message = format!(
                "{min} is above {key}, which is {limit}, so the gang would never be complete: lower \
                 it, or raise {key}"
            );
            return Err(section.error("min", message));
        }
    }
    let kind = section.word("kind", &KINDS, None)?;
    if matches!(kind, Some(GangKind::Native | GangKind::Volcano))
        && section.get("timeout").is_some()
    {
        let message = "excludes this `kind`, whose scheduler holds nothing while a gang waits; leave \
                       `timeout` out";
        return Err(section.error("timeout", message));
    }
    let timeout_ms = section.duration_ms("timeout", preset_ms(KEYS, "timeout"))?;
    if timeout_ms == 0 {
        let message = "must be longer than 0s: a gang needs time to start";
        return Err(section.error("timeout", message));
    }
    let is_queue_needed = matches!(kind, Some(GangKind::Volcano | GangKind::Yunikorn));
    if queue.is_some() && !is_queue_needed && kind.is_some() {
        let message = "excludes `queue`, which admits executors one by one; for a gang in a queue of Kueue \
                       write `queue_group: true` instead";
        return Err(section.error("kind", message));
    }
    let give_back_after_ms = kind.is_none().then_some(timeout_ms);
    let timeout_s = timeout_ms.div_ceil(1_000);
    let pods = kind.map(|kind| PodGang {
        kind,
        min,
        timeout_s,
        queue: queue.map(str::to_owned).filter(|_| is_queue_needed),
        as_created: None,
    });
    Ok((Together::Gang { min, give_back_after_ms }, pods))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::tests::fails;

    #[test]
    fn a_gang_has_a_size_that_the_group_can_reach() {
        let group = |text: &str| format!("executors: [{{image: x, {text}}}]");
        for (text, min, timeout_ms) in [
            ("count: 4, gang: {}", 4, 300_000),
            ("count: 4, gang: {min: 3, kind: none, timeout: 30s}", 3, 30_000),
            ("count: 0, max: 9, gang: {min: 9}", 9, 300_000),
            ("scale: {command: [a]}, gang: {min: 9}", 9, 300_000),
        ] {
            let config = Config::parse("posse.yaml", &group(text)).unwrap();
            let want = Together::Gang { min, give_back_after_ms: Some(timeout_ms) };
            assert_eq!(config.executors[0].spec.together, want, "{text}");
            assert_eq!(config.executors[0].pod.gang, None, "{text}");
        }
        let place = "executors[0].gang";
        for (text, want) in [
            (
                "count: 4, gang: {min: 5}",
                format!("1:46: {place}.min: 5 is above count, which is 4, so the gang would"),
            ),
            (
                "count: 0, max: 4, gang: {min: 5}",
                format!("1:54: {place}.min: 5 is above max, which is 4, so the gang would"),
            ),
            ("count: 0, gang: {}", format!("1:40: {place}.min: must be at least 1")),
            ("gang: {timeout: 0s}", format!("1:40: {place}.timeout: must be longer than 0s")),
            (
                "gang: {kind: magic}",
                format!("1:37: {place}.kind: expected none or native or volcano"),
            ),
            (
                "gang: {kind: native, timeout: 1m}",
                format!("1:54: {place}.timeout: excludes this `kind`, whose scheduler holds"),
            ),
            (
                "queue: a, gang: {kind: native}",
                format!("1:47: {place}.kind: excludes `queue`, which admits executors one by one"),
            ),
        ] {
            fails(&group(text), &want);
        }
        fails(
            "allocation: {pending_max: 2}\nexecutors: [{image: x, count: 3, gang: {kind: native}}]",
            "1:27: allocation.pending_max: is below 3, the number of executors of a group that start",
        );
    }

    #[test]
    fn a_gang_of_a_scheduler_is_given_back_by_none() {
        for (text, kind, timeout_s, queue) in [
            ("count: 3, gang: {kind: native}", GangKind::Native, 300, None),
            ("count: 3, queue: a, gang: {kind: volcano}", GangKind::Volcano, 300, Some("a")),
            (
                "count: 3, gang: {kind: coscheduling, timeout: 1500ms}",
                GangKind::Coscheduling,
                2,
                None,
            ),
            (
                "count: 3, queue: a, gang: {kind: yunikorn, timeout: 1m}",
                GangKind::Yunikorn,
                60,
                Some("a"),
            ),
        ] {
            let file = format!("executors: [{{image: x, {text}}}]");
            let group = Config::parse("posse.yaml", &file).unwrap().executors.remove(0);
            let want = Together::Gang { min: 3, give_back_after_ms: None };
            assert_eq!(group.spec.together, want, "{text}");
            let queue = queue.map(str::to_owned);
            assert_eq!(
                group.pod.gang,
                Some(PodGang { kind, min: 3, timeout_s, queue, as_created: None }),
                "{text}"
            );
            // It is no queue of Kueue.
            assert_eq!(group.pod.queue, None, "{text}");
        }
    }
}
