//! Why bytes could not be read.

use std::{fmt, io};

use posse_encoding::protobuf::ProtobufError;
use posse_encoding::protobuf_stream::StreamError;

use crate::text::clipped;
use posse_base::text::sanitize;

/// Limit of what is wrong with JSON, bytes.
const PROBLEM_BYTES_MAX: usize = 512;
/// Limit of a kind that is told, bytes.
const KIND_BYTES_MAX: usize = 64;

/// Why bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The body ends early; with what the connection says.
    Body(String),
    /// Not JSON, or of another shape than expected; with the position.
    Json(String),
    /// An object of another kind than `wanted`.
    Kind { kind: String, wanted: String },
    /// A required field is absent.
    Missing(&'static str),
    /// A later version of posse keeps something else there; with the version of its format.
    Newer(String),
    /// Not protobuf.
    Protobuf(ProtobufError),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body(problem) | Self::Json(problem) => f.write_str(problem),
            Self::Kind { kind, wanted } => {
                let kind = sanitize(kind, KIND_BYTES_MAX);
                write!(f, "its kind is {kind:?}, not {wanted}")
            }
            Self::Missing(field) => write!(f, "{field} is missing"),
            Self::Newer(format) => write!(
                f,
                "a newer posse has written it (format {format}, and this one reads 1): use that posse"
            ),
            Self::Protobuf(problem) => problem.fmt(f),
        }
    }
}

impl std::error::Error for WireError {}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        Self::Body(error.to_string())
    }
}

impl From<StreamError> for WireError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Body(error) => error.into(),
            StreamError::Kind { kind, wanted } => Self::Kind { kind, wanted },
            StreamError::Protobuf(error) => error.into(),
        }
    }
}

impl From<ProtobufError> for WireError {
    fn from(error: ProtobufError) -> Self {
        Self::Protobuf(error)
    }
}

impl From<serde_json::Error> for WireError {
    fn from(error: serde_json::Error) -> Self {
        // It may quote a value of any length.
        Self::Json(clipped(&error.to_string(), PROBLEM_BYTES_MAX).to_owned())
    }
}
