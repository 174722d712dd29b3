//! Reads the Events about an object, of whatever program.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::WireError;
use crate::k8s::object::{Meta, or_default};

/// An Event of `v1`. Programs of `events.k8s.io` leave out the first and last time, others `eventTime`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SeenEvent {
    #[serde(rename = "metadata", deserialize_with = "or_default")]
    pub meta: Meta,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub count: Option<u64>,
    last_timestamp: Option<String>,
    event_time: Option<String>,
    first_timestamp: Option<String>,
    #[serde(deserialize_with = "or_default")]
    source: Source,
    reporting_component: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Source {
    component: Option<String>,
}

/// What a report has of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EventFacts<'a> {
    pub time: Option<&'a str>,
    #[serde(rename = "type")]
    pub kind: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub message: Option<&'a str>,
    pub count: Option<u64>,
    /// The program that wrote it.
    pub from: Option<&'a str>,
}

impl SeenEvent {
    /// Reads an Event.
    ///
    /// # Errors
    /// The bytes are not an Event in JSON.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// When it was seen last.
    pub fn time(&self) -> Option<&str> {
        first([&self.last_timestamp, &self.event_time, &self.first_timestamp])
    }

    pub fn is_warning(&self) -> bool {
        self.kind.as_deref() == Some("Warning")
    }

    pub fn facts(&self) -> EventFacts<'_> {
        EventFacts {
            time: self.time(),
            kind: self.kind.as_deref(),
            reason: self.reason.as_deref(),
            message: self.message.as_deref(),
            count: self.count,
            from: first([&self.source.component, &self.reporting_component]),
        }
    }
}

/// What a kubelet says of the pull of an image that is under way, by all Events about a pod, and for how many seconds.
pub fn pull(events: &[SeenEvent], now: Timestamp) -> Option<(&str, i64)> {
    let last = events.iter().max_by_key(|event| event.time())?;
    let text = last.message.as_deref().filter(|_| last.reason.as_deref() == Some(PULLING))?;
    let begun: Timestamp = last.time()?.parse().ok()?;
    Some((text, now.duration_since(begun).as_secs().max(0)))
}

/// The reason of a kubelet's Event before a pull.
const PULLING: &str = "Pulling";

/// The first text that is there.
fn first<const N: usize>(texts: [&Option<String>; N]) -> Option<&str> {
    texts.into_iter().flatten().map(String::as_str).find(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_under_way_until_something_else_comes() {
        let event = |reason: &str, time: &str| SeenEvent {
            reason: Some(reason.to_owned()),
            message: Some(format!("{reason} image \"i\"")),
            last_timestamp: Some(format!("2026-01-01T00:00:{time}Z")),
            ..SeenEvent::default()
        };
        let now: Timestamp = "2026-01-01T00:00:40Z".parse().unwrap();
        let pulled = [event("Pulling", "10"), event("Scheduled", "09"), event("Pulled", "30")];
        assert_eq!(pull(&pulled[..2], now), Some(("Pulling image \"i\"", 30)));
        assert_eq!(pull(&pulled, now), None);
        assert_eq!(pull(&[], now), None);
    }
}
