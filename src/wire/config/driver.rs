//! Owns the keys of `driver`: what the driver is, where executors find it, what holds them back.

use crate::wire::config::{checked, only};
use crate::wire::section::{ConfigError, Section};

/// The driver's part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Empty: posse runs without a driver of its own.
    pub command: Vec<String>,
    /// What executors dial; none: `$POD_IP`, or our address towards the API server.
    pub host: Option<String>,
    pub ready: Ready,
}

/// What holds the creates back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// Until the driver says so by the control API.
    Control,
    /// Nothing.
    #[default]
    None,
    /// Until this port of the driver host accepts.
    Tcp(u16),
}

pub(super) fn driver(section: &Section<'_>) -> Result<Driver, ConfigError> {
    only(section, "driver")?;
    let ready = match section.text("ready")? {
        None => Ready::None,
        Some(text) => match (text.as_str(), text.strip_prefix("tcp:")) {
            ("none", _) => Ready::None,
            ("control", _) => Ready::Control,
            (_, Some(port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ready::Tcp(port.parse().expect("it was parsed a line above"))
            }
            _ => {
                let message = format!("expected none, tcp:PORT or control, found `{text}`");
                return Err(section.error("ready", message));
            }
        },
    };
    let host = checked(section, "host", host_mistake)?;
    Ok(Driver { command: section.texts("command")?.unwrap_or_default(), host, ready })
}

/// What is wrong with a host that executors are to dial.
#[must_use]
pub fn host_mistake(host: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    let sound = !host.is_empty() && host.len() <= 255 && host.chars().all(is_allowed);
    (!sound).then(|| format!("`{host}` is not a host name or an address"))
}
