//! The files that come along with a driver: from a stage server, or in a Secret.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use posse_wire::bundle::Ticket;
use posse_wire::pod::staged::TICKET_KEY;

/// The files of a driver and its executors.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum PodFiles {
    #[default]
    None,
    /// Pods fetch them from a stage server by this ticket.
    Staged(Ticket),
    /// The Secret has them: name and content.
    Inline(BTreeMap<String, Vec<u8>>),
}

impl fmt::Debug for PodFiles {
    /// Without the contents, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Staged(ticket) => f.debug_tuple("Staged").field(ticket).finish(),
            Self::Inline(files) => f.debug_set().entries(files.keys()).finish(),
        }
    }
}

impl PodFiles {
    /// The `data` of the Secret; `None` if there are no files.
    pub fn data(&self) -> Option<Value> {
        match self {
            Self::None => None,
            Self::Staged(ticket) => {
                Some(json!({ TICKET_KEY: BASE64_STANDARD.encode(ticket.to_json()) }))
            }
            Self::Inline(files) => {
                let encoded = files.iter().map(|(name, content)| {
                    (name.clone(), Value::from(BASE64_STANDARD.encode(content)))
                });
                Some(encoded.collect())
            }
        }
    }
}
