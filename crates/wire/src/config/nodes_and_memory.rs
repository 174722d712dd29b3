//! The keys `oom_growth` and `memory_max` (memory scaling after an OOM kill) and `bad_nodes`.

use crate::config::key::Type;
use crate::config::key::{Key, key, none, told};
use crate::config::only;
use crate::config::section::{ConfigError, Section, word};
use crate::pod::memory::MemoryScaling;
use posse_core::model::settings::BadNodes;
use posse_encoding::quantity::{is_decimal, memory_error};
use posse_encoding::yaml::{Kind, Node};

/// Allowed range of `oom_growth`, in thousandths.
const GROWTH_PERMILLE: std::ops::RangeInclusive<u32> = 1_050..=10_000;

/// `bad_nodes`.
pub(super) const OFF: Type = Type::Words(&["off"]);

/// `oom_growth`, and its `factor`.
pub(super) const GROWTH: Type = Type::Own {
    page: "number from 1.05 to 10, or map",
    expected: "a factor from 1.05 to 10, like 1.25",
};
/// The factor of a map without one, in thousandths.
const GROWTH_PERMILLE_DEFAULT: u32 = 1_250;
/// Allowed range of `grow_at`, in thousandths: below it, memory that has grown would be short again at once.
const GROW_AT_PERMILLE: std::ops::RangeInclusive<u32> = 500..=1_000;

/// The keys of `oom_growth` as a map.
#[rustfmt::skip]
pub(super) const GROWTH_KEYS: &[Key] = &[
    key("factor", FACTOR, told("`1.25`", "1.25"), "The memory factor, as `oom_growth` without a map."),
    key("grow_at", GROW_AT, none("0.9"),
        "The part of its limit from which on a running executor gets more memory in place."),
];

const FACTOR: Type =
    Type::Own { page: "number from 1.05 to 10", expected: "a factor from 1.05 to 10, like 1.25" };
const GROW_AT: Type = Type::Own {
    page: "number from 0.5 to 1",
    expected: "a part of the limit from 0.5 to 1, like 0.9",
};

/// `bad_nodes`: nothing, or `off`.
pub(super) fn bad_nodes(top: &Section<'_>) -> Result<BadNodes, ConfigError> {
    const KEY: &str = "bad_nodes";
    let default = BadNodes::default();
    let Some(node) = top.get(KEY) else { return Ok(default) };
    if word(node).as_deref() == Some("off") {
        return Ok(BadNodes { losses: 0, ..default });
    }
    // It was a map, and the error tells what stands for its keys.
    if matches!(node.kind, Kind::Map(_)) {
        only(&top.section(KEY)?, &[])?;
    }
    Err(top.expected(KEY, node, OFF))
}

/// `oom_growth` and `memory_max`: both or neither.
pub(super) fn memory_scaling(section: &Section<'_>) -> Result<Option<MemoryScaling>, ConfigError> {
    let max = section.text("memory_max")?;
    let Some((permille, grow_at_permille)) = growth(section)? else {
        return match max {
            Some(_) => Err(section.error("memory_max", "does nothing without oom_growth")),
            None => Ok(None),
        };
    };
    let Some(max) = max else {
        return Err(section.error("memory_max", "is missing; oom_growth needs an upper limit"));
    };
    match memory_error(&max) {
        Some(why) => Err(section.error("memory_max", why)),
        None => Ok(Some(MemoryScaling { permille, max, grow_at_permille })),
    }
}

/// `oom_growth`: the factor, and `grow_at`.
fn growth(section: &Section<'_>) -> Result<Option<(u32, Option<u32>)>, ConfigError> {
    const KEY: &str = "oom_growth";
    let is_map = |node: &Node| matches!(node.kind, Kind::Map(_));
    if !section.get(KEY).is_some_and(is_map) {
        let factor = within(section, KEY, GROWTH, &GROWTH_PERMILLE)?;
        return Ok(factor.map(|factor| (factor, None)));
    }
    let map = section.section(KEY)?;
    only(&map, GROWTH_KEYS)?;
    let factor = within(&map, "factor", FACTOR, &GROWTH_PERMILLE)?;
    let grow_at = within(&map, "grow_at", GROW_AT, &GROW_AT_PERMILLE)?;
    Ok(Some((factor.unwrap_or(GROWTH_PERMILLE_DEFAULT), grow_at)))
}

/// A number in this range, in thousandths.
fn within(
    section: &Section<'_>,
    key: &str,
    expected: Type,
    range: &std::ops::RangeInclusive<u32>,
) -> Result<Option<u32>, ConfigError> {
    let number = permille(section, key, expected)?;
    if number.is_some_and(|number| !range.contains(&number)) {
        return Err(section.error(key, format_args!("expected {expected}")));
    }
    Ok(number)
}

/// A number with up to three decimals, in thousandths.
fn permille(section: &Section<'_>, key: &str, expected: Type) -> Result<Option<u32>, ConfigError> {
    let Some(node) = section.get(key) else { return Ok(None) };
    let text = node.scalar().filter(|text| is_decimal(text));
    let thousandths = text.and_then(|text| {
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        format!("{whole}{fraction:0<3.3}").parse().ok()
    });
    thousandths.map(Some).ok_or_else(|| section.expected(key, node, expected))
}
