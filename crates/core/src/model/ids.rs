//! Executor ids, group names, pod uids and resource versions.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The number of an executor, from 1, unique over all groups. An instance never uses an id twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExecutorId(pub u64);

/// The highest id that is believed of a pod. A label is untrusted input, and no instance has created
/// so many executors.
pub const ID_MAX: u64 = 1_000_000_000;

/// The highest id that is believed of a stored high water: posse may have gone on from `ID_MAX`.
pub const STORED_ID_MAX: u64 = 2 * ID_MAX;

impl fmt::Display for ExecutorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a group of executors that share a template (Spark: a resource profile): `[a-z0-9-]`,
/// at most 40 characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName(pub Arc<str>);

impl GroupName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for GroupName {
    fn from(name: &str) -> Self {
        Self(Arc::from(name))
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A `metadata.uid`. Servers write UUIDs, which take 16 bytes here; other texts are stored as they
/// are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Uid {
    /// Anything that is not a lower-case hyphenated UUID.
    Text(Box<str>),
    /// A lower-case hyphenated UUID.
    Uuid([u8; 16]),
}

impl Uid {
    /// Parses a uid. Equal texts give equal uids.
    pub fn new(text: &str) -> Self {
        uuid_bytes(text).map_or_else(|| Self::Text(text.into()), Self::Uuid)
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self::Text(Box::default())
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Uuid(bytes) => {
                for (i, byte) in bytes.iter().enumerate() {
                    if matches!(i, 4 | 6 | 8 | 10) {
                        f.write_str("-")?;
                    }
                    write!(f, "{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let text = text.as_bytes();
    if text.len() != 36 {
        return None;
    }
    let mut bytes = [0; 16];
    let mut n_digits = 0;
    for (i, &c) in text.iter().enumerate() {
        if matches!(i, 8 | 13 | 18 | 23) {
            if c != b'-' {
                return None;
            }
            continue;
        }
        let digit = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            _ => return None,
        };
        bytes[n_digits / 2] = bytes[n_digits / 2] << 4 | digit;
        n_digits += 1;
    }
    Some(bytes)
}

/// A `metadata.resourceVersion` that is a decimal number, and so is comparable within one resource
/// type (KEP-5504). Other texts are "unknown": they give no `Version` and are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

impl Version {
    /// Parses a version. None for "0" and for texts that are not decimal numbers without leading
    /// zeros.
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with('0') || !text.bytes().all(|c| c.is_ascii_digit()) {
            return None;
        }
        u64::from_str(text).ok().map(Self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_keep_their_text() {
        for text in [
            "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
            "UPPER",
            "",
            "3F2504E0-4F89-41D3-9A0C-0305E82C3301",
        ] {
            assert_eq!(Uid::new(text).to_string(), text);
        }
        assert!(matches!(Uid::new("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), Uid::Uuid(_)));
        assert!(matches!(Uid::new("3f2504e0-4f89-41d3-9a0c-0305e82c330g"), Uid::Text(_)));
    }

    #[test]
    fn versions_are_plain_decimals() {
        assert_eq!(Version::parse("42"), Some(Version(42)));
        for unknown in ["", "0", "042", "-1", "4x", "99999999999999999999999"] {
            assert_eq!(Version::parse(unknown), None, "{unknown:?}");
        }
    }
}
