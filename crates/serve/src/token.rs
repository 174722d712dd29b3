//! A bearer token: read from a file, compared with a header, never printed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
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
        Self::read_if(path, &|_| None)
    }

    /// As `read`, from a file that no other user can read.
    ///
    /// # Errors
    /// As `read`, and if other users can read the file.
    pub fn read_private(path: &Path) -> Result<Self, TokenError> {
        Self::read_if(path, &|file| readable_by_others(file, path))
    }

    fn read_if(path: &Path, check: &dyn Fn(&File) -> Option<String>) -> Result<Self, TokenError> {
        let token_error = |what: String| TokenError { path: path.to_owned(), what };
        let file = File::open(path).map_err(|error| token_error(error.to_string()))?;
        if let Some(what) = check(&file) {
            return Err(token_error(what));
        }
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

    /// A new one of 256 random bits.
    ///
    /// # Errors
    /// The system has no random bits.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self(digits.collect()))
    }

    /// One that another process has sent.
    pub fn sent(word: &str) -> Self {
        Self(word.to_owned())
    }

    /// The secret itself, to be sent.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The value of an `Authorization` header with this token.
    pub fn header(&self) -> String {
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

/// Says so if users other than this one and root can read the file.
///
/// Kubernetes mounts Secrets read-only, with files of root that have mode 0644 unless the pod says
/// otherwise. Who can read them is decided by the mount, which only this pod has; nobody can change their
/// mode. A file that root gave to a group with mode 0640 is also accepted, as ssh accepts it.
fn readable_by_others(file: &File, path: &Path) -> Option<String> {
    let facts = file.metadata().ok()?;
    let is_read_only = || {
        let flags = rustix::fs::fstatvfs(file).map(|system| system.f_flag);
        flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    };
    let me = rustix::process::geteuid().as_raw();
    let mode = facts.mode() & 0o777;
    let excess = match facts.uid() {
        0 if is_read_only() => 0,
        0 if me != 0 => mode & 0o007,
        _ => mode & 0o077,
    };
    (excess != 0).then(|| {
        let path = path.display();
        format!("other users can read it (mode {mode:04o}); run: chmod 600 {path}")
    })
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

/// The bytes of a new token.
const RANDOM_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;

        let path = std::env::temp_dir().join(format!("posse-token-{}", std::process::id()));
        std::fs::write(&path, "s3cret\n").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Token::read(&path).unwrap().reveal(), "s3cret", "{mode:o}");
            Token::read_private(&path)
                .map(|token| token.reveal().to_owned())
                .map_err(|e| e.to_string())
        };
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(read(mode), Ok("s3cret".to_owned()), "{mode:o}");
        }
        for mode in [0o644, 0o640, 0o604, 0o620, 0o666] {
            let error = read(mode).unwrap_err();
            let mode = format!("mode {mode:04o}");
            assert!(error.contains(&mode) && error.contains("chmod 600"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn new_tokens_differ() {
        let [one, other] = [Token::random().unwrap(), Token::random().unwrap()];
        assert_eq!(one.reveal().len(), 2 * RANDOM_BYTES);
        assert!(one.admits(Some(&one.header())) && !one.admits(Some(&other.header())));
    }

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
