//! The files that the command of an entry of `credentials` leaves: which are accepted, and the Secret
//! that they become.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::labels::{APP, CREDENTIALS, INSTANCE, MANAGED_BY, Selection};
use crate::pod::build::OwnerRef;

/// The most bytes that all files of one entry may have together. A Secret takes 1 MiB (1,048,576).
pub const CREDENTIAL_BYTES_MAX: usize = 900_000;
/// The most files of one entry.
pub const CREDENTIAL_FILES_MAX: usize = 64;
/// The first bytes of a keytab (version 2).
const KEYTAB: [u8; 2] = [5, 2];
/// The longest key of a Secret, in bytes.
const KEY_BYTES_MAX: usize = 253;

/// The files of one entry, by name.
pub type CredentialFiles = BTreeMap<String, Vec<u8>>;

/// The Secret. `before`: the one that is there, if there is one.
pub fn secret(
    name: &str,
    selection: &Selection,
    owner: Option<&OwnerRef>,
    common: &CommonMetadata,
    files: &CredentialFiles,
    before: Option<&Value>,
) -> Value {
    let encoded = files.iter().map(|(name, bytes)| (name.clone(), BASE64_STANDARD.encode(bytes)));
    let mut metadata = json!({
        "name": name,
        "labels": {
            APP: selection.app, INSTANCE: selection.instance,
            MANAGED_BY.0: MANAGED_BY.1, CREDENTIALS.0: CREDENTIALS.1,
        },
    });
    if let Some(owner) = owner {
        metadata["ownerReferences"] = json!([owner]);
    }
    if let Some(before) = before {
        // The server replaces only this version of this object.
        for field in ["uid", "resourceVersion"] {
            metadata[field] = before["metadata"][field].clone();
        }
    }
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque",
        "data": encoded.collect::<BTreeMap<_, _>>(),
    });
    common.lay_under_object(&mut secret);
    secret
}

/// The files in a Secret that this instance wrote last; none if another one did, or if something else is in it.
pub fn stored_files(secret: &Value, selection: &Selection) -> CredentialFiles {
    let data = secret["data"].as_object().filter(|_| is_last_writer(secret, selection));
    let decode = |(name, text): (&String, &Value)| {
        let bytes = BASE64_STANDARD.decode(text.as_str()?).ok()?;
        key_error(name).is_none().then(|| (name.clone(), bytes))
    };
    data.into_iter().flatten().filter_map(decode).collect()
}

/// True if posse wrote this Secret for this application.
pub fn is_ours(secret: &Value, app: &str) -> bool {
    let labels = &secret["metadata"]["labels"];
    labels[MANAGED_BY.0] == MANAGED_BY.1
        && labels[CREDENTIALS.0] == CREDENTIALS.1
        && labels[APP] == app
}

/// True if this instance wrote the Secret last.
pub fn is_last_writer(secret: &Value, selection: &Selection) -> bool {
    is_ours(secret, &selection.app)
        && secret["metadata"]["labels"][INSTANCE] == selection.instance.as_str()
}

/// What is wrong with a file's name: it becomes a key of a Secret.
pub fn key_error(name: &str) -> Option<String> {
    let is_allowed = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let sound = (1..=KEY_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_allowed)
        && name != "."
        && !name.starts_with("..");
    (!sound).then(|| {
        format!(
            "left a file whose name cannot be a key of a Secret: {name:?}; a key has at most \
             {KEY_BYTES_MAX} of [A-Za-z0-9._-]"
        )
    })
}

/// True for the content of a keytab, which must not leave this machine: it does not expire.
pub fn is_keytab(bytes: &[u8]) -> bool {
    bytes.starts_with(&KEYTAB)
}

/// The shortest part of a secret that is looked for in a message, in bytes.
const SECRET_PART_BYTES: usize = 8;

/// A message of a command without what is also in its text files: each such part becomes `***`. The
/// secrets of a binary file, such as a Kerberos cache, are no text, but its names are.
pub fn redact(message: &str, files: &CredentialFiles) -> String {
    let bytes = message.as_bytes();
    let mut parts: Vec<&[u8]> = bytes.windows(SECRET_PART_BYTES).collect();
    parts.sort_unstable();
    let mut found: Vec<&[u8]> = files
        .values()
        .filter(|file| std::str::from_utf8(file).is_ok())
        .flat_map(|file| file.windows(SECRET_PART_BYTES))
        .filter(|part| parts.binary_search(part).is_ok())
        .collect();
    found.sort_unstable();
    let is_secret = |at: usize| {
        let part = bytes.get(at..at + SECRET_PART_BYTES);
        part.is_some_and(|part| found.binary_search(&part).is_ok())
    };
    let mut redacted = String::new();
    let mut hidden_to = 0;
    for (at, c) in message.char_indices() {
        if is_secret(at) {
            if at >= hidden_to {
                redacted.push_str("***");
            }
            hidden_to = at + SECRET_PART_BYTES;
        }
        if at >= hidden_to {
            redacted.push(c);
        }
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection() -> Selection {
        Selection { app: "wc".to_owned(), instance: "a1b2c".to_owned() }
    }

    #[test]
    fn a_secret_is_ours_by_its_labels() {
        let files = CredentialFiles::from([("ccache".to_owned(), b"abc".to_vec())]);
        let stored =
            secret("wc-hdfs", &selection(), None, &CommonMetadata::default(), &files, None);
        assert_eq!(stored["data"], json!({"ccache": "YWJj"}));
        assert!(stored["metadata"].get("ownerReferences").is_none());
        assert!(is_ours(&stored, "wc") && is_last_writer(&stored, &selection()));
        assert_eq!(stored_files(&stored, &selection()), files);
        let other = Selection { instance: "other".to_owned(), ..selection() };
        assert!(!is_ours(&stored, "other") && !is_last_writer(&stored, &other));
        assert!(stored_files(&stored, &other).is_empty());
        let mut changed = stored.clone();
        changed["data"] = json!({"ccache": "YWJj", "../a": "YWJj", "b": "no base64", "c": 1});
        assert_eq!(stored_files(&changed, &selection()), files);
        for label in [MANAGED_BY.0, CREDENTIALS.0, APP] {
            let mut foreign = stored.clone();
            foreign["metadata"]["labels"][label] = "other".into();
            assert!(!is_ours(&foreign, "wc"), "{label}");
        }
        assert!(!is_ours(&json!({"metadata": {"name": "wc-hdfs"}}), "wc"));

        let owner = OwnerRef::pod("driver", "u1");
        let before =
            json!({"metadata": {"uid": "s1", "resourceVersion": "7", "labels": {"x": "y"}}});
        let common = CommonMetadata::default();
        let next = secret("wc-hdfs", &selection(), Some(&owner), &common, &files, Some(&before));
        assert_eq!(next["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(next["metadata"]["resourceVersion"], "7");
        assert_eq!(next["metadata"]["uid"], "s1");
    }

    #[test]
    fn names_of_files_are_keys_of_a_secret() {
        for (name, is_key) in [
            ("ccache", true),
            ("a.b_c-D1", true),
            (".hidden", true),
            ("", false),
            (".", false),
            ("..", false),
            ("..data", false),
            ("a b", false),
            ("a/b", false),
            ("\u{e4}", false),
        ] {
            assert_eq!(key_error(name).is_none(), is_key, "{name:?}");
        }
        assert!(key_error(&"a".repeat(254)).is_some());
        assert!(is_keytab(b"\x05\x02rest") && !is_keytab(b"\x05\x04ccache") && !is_keytab(b""));
    }

    #[test]
    fn a_message_has_no_part_of_the_files() {
        let files = CredentialFiles::from([
            ("token".to_owned(), b"s3cr3t-token-of-a-lease".to_vec()),
            ("short".to_owned(), b"abc".to_vec()),
            ("ccache".to_owned(), b"\x05\x04\xff\xffEXAMPLE.TEST".to_vec()),
        ]);
        for (message, want) in [
            ("", ""),
            ("no KDC: abc", "no KDC: abc"),
            ("no KDC for EXAMPLE.TEST", "no KDC for EXAMPLE.TEST"),
            ("got s3cr3t-token-of-a-lease!", "got ***!"),
            ("token=s3cr3t-tok", "token=***"),
            ("s3cr3t-t s3cr3t-t", "*** ***"),
            ("\u{e4}s3cr3t-token\u{e4}", "\u{e4}***\u{e4}"),
        ] {
            assert_eq!(redact(message, &files), want, "{message:?}");
        }
    }
}
