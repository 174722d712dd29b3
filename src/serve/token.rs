//! A bearer token: read from a file, compared with a header, never printed.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq as _;

/// A secret token. `Debug` does not show it.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Reads the token from a file and strips white space around it.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or holds more than one word.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let token_error = |what: String| TokenError { path: path.to_owned(), what };
        let file = File::open(path).map_err(|error| token_error(error.to_string()))?;
        let mut text = String::new();
        file.take(TOKEN_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|error| token_error(error.to_string()))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(token_error("is empty".to_owned()));
        }
        if text.len() as u64 > TOKEN_BYTES_MAX || !token.bytes().all(|c| c.is_ascii_graphic()) {
            return Err(token_error(format!(
                "must hold one word of at most {TOKEN_BYTES_MAX} bytes"
            )));
        }
        Ok(Self(token.to_owned()))
    }

    /// The secret itself, to be sent.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// The value of an `Authorization` header with this token.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// True if an `Authorization` header carries this token. The time does not depend on how many
    /// characters match.
    #[must_use]
    pub fn admits(&self, header: Option<&str>) -> bool {
        let Some(given) = bearer(header) else { return false };
        given.as_bytes().ct_eq(self.0.as_bytes()).into()
    }
}

/// The token of an `Authorization` header. `None` for another scheme.
pub fn bearer(header: Option<&str>) -> Option<&str> {
    let (scheme, token) = header?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A token file that cannot be used.
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

/// The longest token that is accepted.
const TOKEN_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_token_is_admitted() {
        let token = Token("s3cret".to_owned());
        for header in ["Bearer s3cret", "bearer s3cret", "Bearer  s3cret "] {
            assert!(token.admits(Some(header)), "{header:?}");
        }
        for header in [
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
            assert!(!token.admits(Some(header)), "{header:?}");
        }
        assert!(!token.admits(None));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
