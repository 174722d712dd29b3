//! The key `decommission` of a group.

use crate::config::key::Type::{Duration, Text, With, Words};
use crate::config::key::{Key, key, none, told};
use crate::config::section::{ConfigError, Section};
use crate::config::{checked, map_at};
use crate::names;
use posse_core::model::settings::Decommission;

/// The keys of `decommission`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("after", With(&Duration, " above 0s"), told("required", ""),
        "The drain period before posse deletes the executor."),
    key("label", With(&Text, ", `KEY=VALUE`"), none(""),
        "A label that posse sets on the pod when the drain period starts."),
    key("signal", Words(&["TERM"]), none(""), "The executor gets SIGTERM at the beginning of the drain period."),
];

pub(super) fn decommission(group: &Section<'_>) -> Result<Option<Decommission>, ConfigError> {
    let Some(section) = map_at(group, "decommission", KEYS)? else { return Ok(None) };
    let after_ms = section.duration_ms("after", 0)?;
    if after_ms == 0 {
        let message = "must be longer than 0s: it is the drain period of a running executor";
        return Err(section.error("after", message));
    }
    let label = checked(&section, "label", names::label_error)?;
    let label = label.map(|text| {
        let (key, value) = text.split_once('=').unwrap_or((&text, ""));
        (key.to_owned(), value.to_owned())
    });
    Ok(Some(Decommission { after_ms, label, by_term: by_term(&section)? }))
}

/// `signal`.
fn by_term(section: &Section<'_>) -> Result<bool, ConfigError> {
    match section.text("signal")?.as_deref() {
        None => Ok(false),
        Some("TERM") => Ok(true),
        Some(other) => {
            let message = format!(
                "expected TERM, found `{other}`: Kubernetes sends no other signal by a call; an image \
                 can choose another one by STOPSIGNAL"
            );
            Err(section.error("signal", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::tests::fails;

    #[test]
    fn decommission_has_a_time_and_an_optional_label() {
        let group = |text: &str| format!("executors: [{{image: x, decommission: {{{text}}}}}]");
        let label = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
        for (text, after_ms, label) in [
            ("after: 30s", 30_000, None),
            (
                "after: 1s, label: example.com/leaving=soon",
                1_000,
                label("example.com/leaving", "soon"),
            ),
            ("after: 1s, label: leaving=", 1_000, label("leaving", "")),
        ] {
            let config = Config::parse("posse.yaml", &group(text)).unwrap();
            assert_eq!(
                config.executors[0].spec.decommission,
                Some(Decommission { after_ms, label, by_term: false })
            );
        }
        let place = "executors[0].decommission";
        for (text, want) in [
            ("after: 0s", format!("1:46: {place}.after: must be longer than 0s")),
            ("label: a=b", format!("1:38: {place}.after: must be longer than 0s")),
            ("after: 1s, label: leaving", format!("1:57: {place}.label: `leaving` is not a label")),
            ("after: 1s, label: a b=c", format!("1:57: {place}.label: `a b=c` is not a label")),
            (
                "after: 1s, label: posse.dev/app=x",
                format!("1:57: {place}.label: `posse.dev/app` is"),
            ),
            (
                "after: 1s, signal: INT",
                format!(
                    "1:58: {place}.signal: expected TERM, found `INT`: Kubernetes sends no other"
                ),
            ),
            (
                "for: 1s",
                format!("1:39: {place}.for: unknown key; known here: after, label, signal"),
            ),
        ] {
            fails(&group(text), &want);
        }
    }
}
