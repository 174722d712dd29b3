//! Formats of staged files: the label stored in front of each bundle, the answer to an upload, and
//! the ticket that lists what to fetch.

use std::fmt;
use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::names::{app_name_error, file_name_error, namespace_error};
use posse_encoding::strict_json;

/// Limit of bundles in one ticket.
pub const TICKET_BUNDLES_MAX: usize = 1_000;
/// Number of hexadecimal digits of a bundle's id.
pub const ID_DIGITS: usize = 32;
pub const SHA256_DIGITS: usize = 64;

/// Metadata of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Label {
    pub namespace: String,
    /// Application that uploaded the bundle.
    #[serde(rename = "app")]
    pub owner: String,
    /// File name without a directory.
    pub file: String,
    pub bytes: u64,
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of the secret. The secret itself is not stored, so reading the disk does not reveal
    /// it.
    pub secret_sha256: String,
}

impl Label {
    /// The first invalid field and why it is invalid.
    pub fn error(&self) -> Option<(&'static str, String)> {
        let digest = |text: &str| {
            (!is_hex(text, SHA256_DIGITS))
                .then(|| "expected a SHA-256 in 64 lower-case hexadecimal digits".to_owned())
        };
        let checks = [
            ("namespace", namespace_error(&self.namespace)),
            ("app", app_name_error(&self.owner)),
            ("file", file_name_error(&self.file)),
            ("sha256", digest(&self.sha256)),
        ];
        checks.into_iter().find_map(|(field, error)| Some((field, error?)))
    }

    /// One line of JSON.
    pub fn to_line(&self) -> String {
        format!("{}\n", json!(self))
    }

    /// True for a line that a later version of posse has written: its `format` is not 1. Without one it is 1.
    pub fn is_newer(line: &[u8]) -> bool {
        let label = serde_json::from_slice::<Value>(line).unwrap_or_default();
        !label["format"].is_null() && label["format"] != 1
    }

    /// Reads a line that `to_line` wrote.
    pub fn parse(line: &[u8]) -> Option<Self> {
        if Self::is_newer(line) {
            return None;
        }
        let label: Self = serde_json::from_slice(line).ok()?;
        label.error().is_none().then_some(label)
    }
}

/// One bundle in a ticket.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    pub id: String,
    pub secret: String,
    /// Name of the file to create, without a directory.
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    pub executable: bool,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("id", &self.id).field("file", &self.file).finish()
    }
}

/// Everything needed to fetch bundles. Contains their secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ticket {
    /// Base URL of the stage server.
    pub url: String,
    /// PEM of the certificate authorities for that server. None: the machine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Plain HTTP is allowed (`--insecure` at upload).
    #[serde(skip_serializing_if = "Not::not")]
    pub insecure: bool,
    pub bundles: Vec<Entry>,
}

impl Ticket {
    /// The ticket as a JSON file.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    /// Reads a ticket.
    ///
    /// # Errors
    /// What is wrong with it, for example a file name that leads out of the directory. Never
    /// contains a secret.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value = strict_json::parse(bytes).map_err(|e| format!("not JSON: {e}"))?;
        let url = value["url"].as_str().ok_or("`url` is missing")?.to_owned();
        let ca = value["ca"].as_str().map(str::to_owned);
        let listed = value["bundles"].as_array().ok_or("`bundles` is missing")?;
        if listed.len() > TICKET_BUNDLES_MAX {
            return Err(format!("more than {TICKET_BUNDLES_MAX} bundles"));
        }
        let bundles: Result<Vec<Entry>, String> =
            listed.iter().enumerate().map(|(i, one)| entry(i, one)).collect();
        let bundles = bundles?;
        for (i, one) in bundles.iter().enumerate() {
            if bundles[..i].iter().any(|other| other.file == one.file) {
                return Err(format!("bundles[{i}].file: `{}` is listed twice", one.file));
            }
        }
        let insecure = value["insecure"] == true;
        Ok(Self { url, ca, insecure, bundles })
    }
}

fn entry(i: usize, value: &Value) -> Result<Entry, String> {
    let text = |key: &str| {
        let found = value[key].as_str().map(str::to_owned);
        found.ok_or_else(|| format!("bundles[{i}].{key} is missing"))
    };
    let entry = Entry {
        id: text("id")?,
        secret: text("secret")?,
        file: text("file")?,
        bytes: value["bytes"].as_u64().ok_or_else(|| format!("bundles[{i}].bytes is missing"))?,
        sha256: text("sha256")?,
        executable: value["executable"].as_bool().unwrap_or(false),
    };
    if let Some(error) = file_name_error(&entry.file) {
        return Err(format!("bundles[{i}].file: {error}"));
    }
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_graphic());
    if !is_hex(&entry.id, ID_DIGITS)
        || !is_hex(&entry.sha256, SHA256_DIGITS)
        || !plain(&entry.secret)
    {
        return Err(format!("bundles[{i}]: its id, sha256 or secret is malformed"));
    }
    Ok(entry)
}

/// The answer to an upload.
pub fn accepted(id: &str, secret: &str) -> String {
    format!("{}\n", json!({"id": id, "secret": secret}))
}

/// Reads id and secret from the answer to an upload.
pub fn parse_accepted(bytes: &[u8]) -> Option<(String, String)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    text("id").zip(text("secret")).filter(|(id, _)| is_hex(id, ID_DIGITS))
}

/// True if `text` is `n_digits` lower-case hexadecimal digits.
pub fn is_hex(text: &str, n_digits: usize) -> bool {
    text.len() == n_digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> Label {
        Label {
            namespace: "analytics".to_owned(),
            owner: "wordcount".to_owned(),
            file: "a \"b\".jar".to_owned(),
            bytes: 7,
            sha256: hex(&[0xab; 32]),
            secret_sha256: hex(&[0x01; 32]),
        }
    }

    #[test]
    fn labels_are_read_back() {
        let line = label().to_line();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(Label::parse(line.as_bytes()), Some(label()));
        assert_eq!(Label::parse(&line.as_bytes()[..line.len() - 4]), None);
        assert_eq!(Label::parse(b"{}"), None);
        for (format, is_newer) in [("1", false), ("2", true), ("\"x\"", true)] {
            let line = line.replacen('{', &format!("{{\"format\":{format},"), 1);
            assert_eq!(Label::is_newer(line.as_bytes()), is_newer, "{line}");
            assert_eq!(Label::parse(line.as_bytes()).is_none(), is_newer, "{line}");
        }
        for (shape, field) in [
            ((|l: &mut Label| l.namespace = "A".to_owned()) as fn(&mut Label), "namespace"),
            (|l| l.owner = "-".to_owned(), "app"),
            (|l| l.file = "../x".to_owned(), "file"),
            (|l| l.sha256.make_ascii_uppercase(), "sha256"),
            (|l| l.sha256.truncate(63), "sha256"),
        ] {
            let mut bad = label();
            shape(&mut bad);
            assert_eq!(bad.error().map(|(field, _)| field), Some(field));
            assert_eq!(Label::parse(bad.to_line().as_bytes()), None);
        }
    }

    #[test]
    fn tickets_are_read_back_and_checked() {
        let entry = |file: &str| Entry {
            id: hex(&[7; 16]),
            secret: "s3cret".to_owned(),
            file: file.to_owned(),
            bytes: 3,
            sha256: hex(&[9; 32]),
            executable: true,
        };
        let ticket = Ticket {
            url: "https://stage:8443".to_owned(),
            ca: Some("PEM".to_owned()),
            insecure: true,
            bundles: vec![entry("a.jar"), entry("data.csv")],
        };
        assert_eq!(Ticket::parse(ticket.to_json().as_bytes()), Ok(ticket.clone()));
        assert!(!format!("{ticket:?}").contains("s3cret"));
        let bad = |shape: &dyn Fn(&mut Ticket)| {
            let mut ticket = ticket.clone();
            shape(&mut ticket);
            Ticket::parse(ticket.to_json().as_bytes()).unwrap_err()
        };
        assert!(bad(&|t| t.bundles[1].file = "../../etc/passwd".to_owned()).contains("[1].file"));
        assert!(bad(&|t| t.bundles[1].file = "a.jar".to_owned()).contains("twice"));
        assert!(bad(&|t| t.bundles[0].id = "../x".to_owned()).contains("malformed"));
        assert!(bad(&|t| t.bundles[0].secret = "a\nb".to_owned()).contains("malformed"));
        assert!(bad(&|t| t.bundles = vec![entry("x"); TICKET_BUNDLES_MAX + 1]).contains("more"));
        assert_eq!(Ticket::parse(b"{}"), Err("`url` is missing".to_owned()));
        assert!(Ticket::parse(b"secret").unwrap_err().starts_with("not JSON"));
    }

    #[test]
    fn answers_are_read_back() {
        let id = hex(&[1; 16]);
        let accepted = accepted(&id, "s");
        assert_eq!(parse_accepted(accepted.as_bytes()), Some((id, "s".to_owned())));
        assert_eq!(parse_accepted(br#"{"id":"x","secret":"s"}"#), None);
    }
}
