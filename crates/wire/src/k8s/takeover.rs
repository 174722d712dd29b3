//! How a driver's pod tells that it has taken over from another: an annotation, and a part of the run's status.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use posse_core::model::takeover;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Takeover {
    /// The pod that acted before.
    pub from: Option<String>,
    /// `released`, `ended` or `silent`.
    pub cause: String,
    /// How long nobody acted.
    pub seconds: f64,
    pub time: String,
}

impl Takeover {
    /// That of a Lease that was taken at `at`.
    pub fn of(of: &takeover::Takeover, at: SystemTime) -> Self {
        let time = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            from: of.pod.as_ref().map(|pod| pod.name.clone()),
            cause: of.cause.as_str().to_owned(),
            seconds: of.seconds(),
            time: format!("{time:.0}"),
        }
    }

    /// The text of the annotation.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the annotation; `None` if somebody has written something else.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

impl fmt::Display for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.from.as_deref().unwrap_or("an unknown pod");
        write!(f, "from {from}, {}, after {:.1} s", self.cause, self.seconds)
    }
}
