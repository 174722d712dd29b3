//! Owns a bearer's secret: reads it from a file, compares it with a header, never shows it. Knows
//! nothing of what it opens.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The secret. Its Debug says only that there is one.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads it from a file; white space around it does not count.
    ///
    /// # Errors
    /// The file cannot be read, or does not hold one word.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let problem = |what: String| TokenError { path: path.to_owned(), what };
        let file = File::open(path).map_err(|error| problem(error.to_string()))?;
        let mut text = String::new();
        file.take(TOKEN_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|error| problem(error.to_string()))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(problem("is empty".to_owned()));
        }
        if text.len() as u64 > TOKEN_BYTES_MAX || !token.bytes().all(|c| c.is_ascii_graphic()) {
            return Err(problem(format!("must hold one word of at most {TOKEN_BYTES_MAX} bytes")));
        }
        Ok(Self(token.to_owned()))
    }

    /// The secret itself, for the wire.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The value of the header that shows it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// True where an `Authorization` header shows it. Takes as long for a near miss as for a far one.
    #[must_use]
    pub fn admits(&self, header: Option<&str>) -> bool {
        let Some(shown) = bearer(header) else { return false };
        let (shown, ours) = (shown.as_bytes(), self.0.as_bytes());
        let mut difference = shown.len() ^ ours.len();
        for (i, &byte) in shown.iter().enumerate() {
            difference |= usize::from(byte ^ ours[i % ours.len()]);
        }
        std::hint::black_box(difference) == 0
    }
}

/// What an `Authorization` header shows after `Bearer`.
#[must_use]
pub fn bearer(header: Option<&str>) -> Option<&str> {
    let (scheme, shown) = header?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| shown.trim())
}

/// Why a file gives no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenError {
    path: PathBuf,
    what: String,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token file {}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for TokenError {}

/// Longer than any token in use.
const TOKEN_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_the_token_and_nothing_else() {
        let token = Token("s3cret".to_owned());
        for yes in ["Bearer s3cret", "bearer s3cret", "Bearer  s3cret "] {
            assert!(token.admits(Some(yes)), "{yes:?}");
        }
        for no in [
            "",
            "Bearer",
            "Bearer ",
            "s3cret",
            "Basic s3cret",
            "Bearer s3cre",
            "Bearer s3crets",
            "Bearer s3creT",
            "Bearer s3crets3cret",
        ] {
            assert!(!token.admits(Some(no)), "{no:?}");
        }
        assert!(!token.admits(None));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
