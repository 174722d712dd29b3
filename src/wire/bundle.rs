//! Owns the texts of staged bundles: what the server writes before the bytes of each, what it
//! answers, and the ticket by which bundles are fetched. Makes no id and no secret.

use std::fmt;

use serde_json::{Value, json};

use crate::wire::names::{app_mistake, file_mistake, namespace_mistake};

/// Bundles of one ticket.
pub const TICKET_BUNDLES_MAX: usize = 1_000;
/// The hexadecimal digits of an id, and of a digest.
pub const ID_DIGITS: usize = 32;
pub const SHA256_DIGITS: usize = 64;

/// What is known of a bundle beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub namespace: String,
    /// The application that it is for.
    pub owner: String,
    /// The file's name, without a folder.
    pub file: String,
    pub bytes: u64,
    /// Of the bytes, in hexadecimal.
    pub sha256: String,
    /// Of the secret that opens it: who reads the disk does not learn the secret.
    pub secret_sha256: String,
}

impl Label {
    /// What is wrong with it: the field, and why.
    #[must_use]
    pub fn mistake(&self) -> Option<(&'static str, String)> {
        let digest = |text: &str| {
            (!is_hex(text, SHA256_DIGITS))
                .then(|| "expected a SHA-256 in 64 lower-case hexadecimal digits".to_owned())
        };
        let checks = [
            ("namespace", namespace_mistake(&self.namespace)),
            ("app", app_mistake(&self.owner)),
            ("file", file_mistake(&self.file)),
            ("sha256", digest(&self.sha256)),
        ];
        checks.into_iter().find_map(|(field, mistake)| Some((field, mistake?)))
    }

    /// One line of JSON.
    #[must_use]
    pub fn to_line(&self) -> String {
        let Self { namespace, owner, file, bytes, sha256, secret_sha256 } = self;
        format!(
            "{}\n",
            json!({"namespace": namespace, "app": owner, "file": file, "bytes": bytes,
                   "sha256": sha256, "secretSha256": secret_sha256})
        )
    }

    /// Reads what `to_line` wrote.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line).ok()?;
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let label = Self {
            namespace: text("namespace")?,
            owner: text("app")?,
            file: text("file")?,
            bytes: value["bytes"].as_u64()?,
            sha256: text("sha256")?,
            secret_sha256: text("secretSha256")?,
        };
        label.mistake().is_none().then_some(label)
    }
}

/// One bundle of a ticket.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub secret: String,
    /// The name that it gets, without a folder.
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

/// All that it takes to fetch bundles. Holds their secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Where they are fetched.
    pub url: String,
    /// The authorities that vouch for the server there, PEM; none: those of the machine.
    pub ca: Option<String>,
    /// Plain HTTP is good enough, as whoever left the files has said.
    pub insecure: bool,
    pub bundles: Vec<Entry>,
}

impl Ticket {
    /// As it stands in a file.
    #[must_use]
    pub fn to_json(&self) -> String {
        let bundles: Vec<Value> = self
            .bundles
            .iter()
            .map(|Entry { id, secret, file, bytes, sha256, executable }| {
                json!({"id": id, "secret": secret, "file": file, "bytes": bytes,
                       "sha256": sha256, "executable": executable})
            })
            .collect();
        let mut ticket = json!({"url": self.url, "bundles": bundles});
        if self.insecure {
            ticket["insecure"] = true.into();
        }
        if let Some(ca) = &self.ca {
            ticket["ca"] = ca.as_str().into();
        }
        format!("{ticket:#}\n")
    }

    /// Reads a ticket.
    ///
    /// # Errors
    /// It is none, or names a file that leads out of a folder; what is wrong, without a secret.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| format!("not JSON: {e}"))?;
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
                return Err(format!("bundles[{i}].file: `{}` stands there twice", one.file));
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
    if let Some(mistake) = file_mistake(&entry.file) {
        return Err(format!("bundles[{i}].file: {mistake}"));
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

/// What the server answers to an upload.
#[must_use]
pub fn accepted(id: &str, secret: &str) -> String {
    format!("{}\n", json!({"id": id, "secret": secret}))
}

/// Reads the id and the secret out of such an answer.
#[must_use]
pub fn parse_accepted(bytes: &[u8]) -> Option<(String, String)> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    text("id").zip(text("secret")).filter(|(id, _)| is_hex(id, ID_DIGITS))
}

/// True for so many lower-case hexadecimal digits.
#[must_use]
pub fn is_hex(text: &str, n_digits: usize) -> bool {
    text.len() == n_digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// Bytes in lower-case hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
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
    fn labels_are_read_as_they_were_written() {
        let line = label().to_line();
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(Label::parse(line.as_bytes()), Some(label()));
        assert_eq!(Label::parse(&line.as_bytes()[..line.len() - 4]), None);
        assert_eq!(Label::parse(b"{}"), None);
        for (shape, field) in [
            ((|l: &mut Label| l.namespace = "A".to_owned()) as fn(&mut Label), "namespace"),
            (|l| l.owner = "-".to_owned(), "app"),
            (|l| l.file = "../x".to_owned(), "file"),
            (|l| l.sha256.make_ascii_uppercase(), "sha256"),
            (|l| l.sha256.truncate(63), "sha256"),
        ] {
            let mut bad = label();
            shape(&mut bad);
            assert_eq!(bad.mistake().map(|(field, _)| field), Some(field));
            assert_eq!(Label::parse(bad.to_line().as_bytes()), None);
        }
    }

    #[test]
    fn tickets_are_read_as_they_were_written_and_checked() {
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
    fn answers_are_read_as_they_were_written() {
        let id = hex(&[1; 16]);
        let accepted = accepted(&id, "s");
        assert_eq!(parse_accepted(accepted.as_bytes()), Some((id, "s".to_owned())));
        assert_eq!(parse_accepted(br#"{"id":"x","secret":"s"}"#), None);
    }
}
