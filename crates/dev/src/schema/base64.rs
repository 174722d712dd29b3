//! Base64 with the leniency of Go's decoder.

use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _};

/// Decodes base64 as Go does. The error is the offset of the first bad byte.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, usize> {
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&STANDARD, config);
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    engine.decode(&text).map_err(|error| match error {
        DecodeError::InvalidByte(at, _) => at,
        DecodeError::InvalidLastSymbol { offset, .. } => offset,
        DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => text.len() / 4 * 4,
    })
}

pub(crate) fn encode(text: &str) -> String {
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new()).encode(text)
}
