//! The key `gang` of a group.

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Duration, Integer, With, Words};
use crate::config::key::{Key, key, told, words};
use crate::config::only;
use crate::config::section::{ConfigError, Section};
use posse_core::model::settings::{EXECUTORS_MAX, Gang};

const KEY: &str = "gang";
/// Who starts the executors of a gang together.
const KINDS: [(&str, ()); 1] = [("none", ())];
/// The default of `timeout`, and of Kueue's `waitForPodsReady`.
const TIMEOUT_MS: u64 = 300_000;

/// The keys of `gang`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("min", With(&Integer, " from 1"), told("`count`", "4"), "How many executors must run together."),
    key("kind", Words(&words(&KINDS)), Is("none"), "Who starts them together. `none`: nobody but posse."),
    key("timeout", With(&Duration, " above 0s"), Is("5m"),
        "posse gives all executors back if fewer than `min` run together for this time."),
];

/// `count`: the target at the start; `max`: the highest one.
pub(super) fn gang(
    group: &Section<'_>,
    count: u32,
    max: Option<u32>,
) -> Result<Option<Gang>, ConfigError> {
    if group.get(KEY).is_none() {
        return Ok(None);
    }
    let section = group.section(KEY)?;
    only(&section, KEYS)?;
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
    section.word("kind", &KINDS, ())?;
    let timeout_ms = section.duration_ms("timeout", TIMEOUT_MS)?;
    if timeout_ms == 0 {
        let message = "must be longer than 0s: a gang needs time to start";
        return Err(section.error("timeout", message));
    }
    Ok(Some(Gang { min, give_back_after_ms: Some(timeout_ms) }))
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
            let want = Gang { min, give_back_after_ms: Some(timeout_ms) };
            assert_eq!(config.executors[0].spec.gang, Some(want), "{text}");
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
            ("gang: {kind: magic}", format!("1:37: {place}.kind: expected none, found `magic`")),
        ] {
            fails(&group(text), &want);
        }
    }
}
