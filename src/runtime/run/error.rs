//! Why a run could not start.

use std::fmt;

/// Why a run could not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The API server does not permit what the run needs in this namespace.
    Forbidden { namespace: String, message: String },
    /// A signal arrived before the start.
    Interrupted,
    /// The API server refuses or does not answer, or another live process holds a Lease.
    Server(String),
    /// The settings or a template are invalid, or the events' file or the control socket cannot be
    /// opened.
    Settings(String),
    /// The system refuses a thread.
    System(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted before the start"),
            Self::Forbidden { message, .. }
            | Self::Server(message)
            | Self::Settings(message)
            | Self::System(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for RunError {}
