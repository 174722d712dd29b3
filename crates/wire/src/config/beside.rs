//! The key `beside` of a group.

use std::collections::BTreeMap;

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Boolean, Map, Text};
use crate::config::key::{Key, key, told};
use crate::config::map_at;
use crate::config::section::{ConfigError, Section};
use crate::names;
use crate::pod::beside::Beside;

/// The keys of `beside`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("labels", Map, told("required", ""), "The labels of these pods. A pod must have all of them."),
    key("required", Boolean, Is("true"), "If `false`, the scheduler only prefers these nodes."),
];

/// `beside`: labels, and whether they are required.
pub(super) fn beside(group: &Section<'_>) -> Result<Option<Beside>, ConfigError> {
    let Some(section) = map_at(group, "beside", KEYS)? else { return Ok(None) };
    let given = section.section("labels")?;
    let mut labels = BTreeMap::new();
    for entry in given.entries {
        let expected = || given.expected(&entry.key, &entry.value, Text);
        let value = entry.value.scalar().ok_or_else(expected)?;
        if !names::is_label_pair(&entry.key, &value) {
            let message = format_args!("`{}={value}` is not a Kubernetes label", entry.key);
            return Err(given.error(&entry.key, message));
        }
        labels.insert(entry.key.clone(), value);
    }
    if labels.is_empty() {
        let message = "is empty: give the labels of the pods that executors are placed beside, \
                       like {app: shuffle}";
        return Err(section.error("labels", message));
    }
    Ok(Some(Beside { labels, is_required: section.flag("required")?.unwrap_or(true) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read(beside: &str) -> Result<Option<Beside>, String> {
        let text = format!("executors: [{{image: x, beside: {beside}}}]");
        let config = Config::parse("p.yaml", &text).map_err(|error| error.to_string())?;
        Ok(config.executors[0].beside.clone())
    }

    #[test]
    fn labels_and_whether_they_are_required() {
        let labels: BTreeMap<String, String> =
            [("app.kubernetes.io/name", "shuffle"), ("version", "3.50"), ("posse.dev/group", "a")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        let text = "{app.kubernetes.io/name: shuffle, version: 3.50, posse.dev/group: a}";
        for (rest, is_required) in
            [("", true), (", required: true", true), (", required: false", false)]
        {
            let want = Some(Beside { labels: labels.clone(), is_required });
            assert_eq!(read(&format!("{{labels: {text}{rest}}}")), Ok(want));
        }
        assert_eq!(read("null"), Ok(None));
    }

    #[test]
    fn wrong_labels_are_errors_with_their_place() {
        for (text, want) in [
            ("{}", "p.yaml:1:32: executors[0].beside.labels: is empty: give the labels"),
            ("{labels: {}}", "executors[0].beside.labels: is empty"),
            ("{required: false}", "executors[0].beside.labels: is empty"),
            ("[]", "executors[0].beside: expected a map, found a list"),
            ("{labels: [app]}", "executors[0].beside.labels: expected a map, found a list"),
            (
                "{labels: {app: [a]}}",
                "executors[0].beside.labels.app: expected a text, found a list",
            ),
            (
                "{labels: {app: a b}}",
                "executors[0].beside.labels.app: `app=a b` is not a Kubernetes label",
            ),
            (
                "{labels: {'-a': b}}",
                "executors[0].beside.labels.-a: `-a=b` is not a Kubernetes label",
            ),
            (
                "{labels: {a: b}, required: 1}",
                "executors[0].beside.required: expected true or false",
            ),
            ("{label: {a: b}}", "executors[0].beside.label: unknown key (did you mean `labels`?)"),
        ] {
            let got = read(text).unwrap_err();
            assert!(got.contains(want), "{text}: {got}");
        }
    }
}
