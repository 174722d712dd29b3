//! Why a run could not start.

use std::fmt;

use crate::signals::Signal;

/// Why a run could not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The API server does not permit what the run needs in this namespace.
    Forbidden { namespace: String, message: String },
    /// Another live process holds a Lease.
    HeldBy(String),
    /// This signal arrived before the start. `waited_for`: who held the Lease, if the run was waiting
    /// for that.
    Interrupted { signal: Signal, waited_for: Option<String> },
    /// An earlier pod of the Job has ended the application with this exit code.
    Over(u8),
    /// The API server refuses.
    Server(String),
    /// The settings or a template are invalid, or the events' file or the control socket cannot be
    /// opened.
    Settings(String),
    /// A template has fields that the server does not know.
    Template(String),
    /// The system refuses a thread.
    System(String),
    /// There is no way to the API server, or it does not answer.
    Unreachable(String),
    /// The record of the run is there, and cannot be opened now or here.
    Unavailable(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted { signal, waited_for } => {
                write!(f, "{signal} before the start")?;
                match waited_for {
                    Some(holder) => write!(f, ", while {holder} held the lease"),
                    None => Ok(()),
                }
            }
            Self::Over(code) => write!(f, "the application has ended with exit code {code}"),
            Self::Forbidden { message, .. }
            | Self::HeldBy(message)
            | Self::Server(message)
            | Self::Settings(message)
            | Self::System(message)
            | Self::Template(message)
            | Self::Unavailable(message)
            | Self::Unreachable(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for RunError {}
