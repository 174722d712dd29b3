//! Owns `posse stage put`: files become bundles, one each, and a ticket says how to fetch them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::kube::transfer::Transfer;
use crate::serve::token::Token;
use crate::stage::api::BUNDLES;
use crate::stage::fetch::hashed;
use crate::stage::retry::{Tries, said, settle};
use crate::wire::bundle::{Entry, TICKET_BUNDLES_MAX, hex, parse_accepted};
use crate::wire::names::file_mistake;

/// A file that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    pub executable: bool,
}

/// Reads the files once, all of them: what is wrong with one is said before any is sent.
///
/// # Errors
/// One cannot be read, is no plain file, or has the name of another.
pub fn read(paths: &[PathBuf]) -> Result<Vec<Source>, String> {
    if paths.len() > TICKET_BUNDLES_MAX {
        return Err(format!("more than {TICKET_BUNDLES_MAX} files"));
    }
    let mut names = BTreeSet::new();
    let mut sources = Vec::new();
    for path in paths {
        let source = Source::read(path).map_err(|why| format!("{}: {why}", path.display()))?;
        if !names.insert(source.file.clone()) {
            return Err(format!("{}: there are two files of this name", path.display()));
        }
        sources.push(source);
    }
    Ok(sources)
}

impl Source {
    fn read(path: &Path) -> Result<Self, String> {
        let words = |error: io::Error| error.to_string();
        let file = path.file_name().and_then(|name| name.to_str());
        let file = file.ok_or("it has no name in UTF-8")?.to_owned();
        if let Some(mistake) = file_mistake(&file) {
            return Err(mistake);
        }
        let mut content = File::open(path).map_err(words)?;
        let metadata = content.metadata().map_err(words)?;
        if !metadata.is_file() {
            return Err("it is no plain file; pack a folder into one".to_owned());
        }
        let (bytes, hash) = hashed(&mut content).map_err(words)?;
        let sha256 = hex(hash.finish().as_ref());
        let executable = metadata.permissions().mode() & 0o111 != 0;
        Ok(Self { path: path.to_owned(), file, bytes, sha256, executable })
    }
}

/// To whom files are sent, and for whom.
#[derive(Debug)]
pub struct Upload<'a> {
    pub transfer: &'a Transfer,
    pub token: &'a Token,
    pub namespace: &'a str,
    pub app: &'a str,
    /// It is given up after so long without progress.
    pub timeout: Duration,
}

impl Upload<'_> {
    /// Sends the files, one after the other.
    ///
    /// # Errors
    /// The server refuses one, or cannot be reached; in its words.
    pub fn send(&self, sources: &[Source]) -> Result<Vec<Entry>, String> {
        sources.iter().map(|source| self.send_one(source)).collect()
    }

    fn send_one(&self, source: &Source) -> Result<Entry, String> {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let path = format!(
            "{BUNDLES}?namespace={}&app={}&sha256={}&file={}",
            encoded(self.namespace),
            encoded(self.app),
            source.sha256,
            encoded(&source.file)
        );
        let mut tries = Tries::new(self.timeout);
        loop {
            let file = File::open(&source.path)
                .map_err(|error| format!("{}: {error}", source.path.display()))?;
            // One that grows meanwhile is refused by its sha256, not sent for ever.
            let mut body = file.take(source.bytes);
            let sent = self.transfer.post(&path, self.token.reveal(), source.bytes, &mut body);
            // One that is lost may have come whole all the same; nobody knows its secret, so it is
            // dropped.
            let (why, asked) = match settle(sent, &source.file, &[201])? {
                Ok(mut answer) => match parse_accepted(&said(&mut answer)) {
                    Some((id, secret)) => return Ok(source.entry(id, secret)),
                    None => (format!("{}: an answer without an id", source.file), None),
                },
                Err(again) => again,
            };
            tries.again(why, asked)?;
        }
    }
}

impl Source {
    fn entry(&self, id: String, secret: String) -> Entry {
        let Self { file, bytes, sha256, executable, .. } = self.clone();
        Entry { id, secret, file, bytes, sha256, executable }
    }
}
