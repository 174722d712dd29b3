//! The key `decommission` of a group.

use serde_json::Value;

use crate::core::policy::settings::Decommission;
use crate::wire::config::{checked, of_json, only};
use crate::wire::names;
use crate::wire::section::{ConfigError, Section};

const KEY: &str = "decommission";

/// The same map in the body of a call, which has the same keys.
///
/// # Errors
/// As in a file, but the place is one of the text that was made of the JSON.
pub fn from_json(map: &Value) -> Result<Option<Decommission>, ConfigError> {
    of_json(KEY, map, decommission)
}

pub(super) fn decommission(group: &Section<'_>) -> Result<Option<Decommission>, ConfigError> {
    if group.get(KEY).is_none() {
        return Ok(None);
    }
    let section = group.section(KEY)?;
    only(&section, KEY)?;
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
