//! `posse stage put`: uploads files, each as one bundle. The ticket that results says how to fetch
//! them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::api::BUNDLES;
use crate::fetch::hash_rest;
use crate::retry::{check_answer, read_body, retries, wait};
use posse_kube::http::transfer::Transfer;
use posse_serve::token::Token;
use posse_wire::bundle::{Entry, TICKET_BUNDLES_MAX, hex, parse_accepted};
use posse_wire::names::file_name_error;

/// A file to upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    path: PathBuf,
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
    pub executable: bool,
}

/// Reads and hashes all files, which have these names, so that an invalid file is reported before any is sent.
///
/// # Errors
/// A file cannot be read, is not a regular file, or has the same name as another.
pub fn read(files: &[(PathBuf, String)]) -> Result<Vec<Source>, String> {
    if files.len() > TICKET_BUNDLES_MAX {
        return Err(format!("too many files: at most {TICKET_BUNDLES_MAX} are possible"));
    }
    let mut names = BTreeSet::new();
    let mut sources = Vec::new();
    for (path, name) in files {
        let source =
            Source::read(path, name).map_err(|why| format!("{}: {why}", path.display()))?;
        if !names.insert(source.file.clone()) {
            return Err(format!("{}: two files have this name", path.display()));
        }
        sources.push(source);
    }
    Ok(sources)
}

impl Source {
    fn read(path: &Path, file: &str) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        if let Some(error) = file_name_error(file) {
            return Err(error);
        }
        let mut content = File::open(path).map_err(text)?;
        let metadata = content.metadata().map_err(text)?;
        if !metadata.is_file() {
            return Err("not a regular file; pack a folder into an archive".to_owned());
        }
        let (bytes, hash) = hash_rest(&mut content).map_err(text)?;
        let sha256 = hex(hash.finish().as_ref());
        let executable = metadata.permissions().mode() & 0o111 != 0;
        Ok(Self { path: path.to_owned(), file: file.to_owned(), bytes, sha256, executable })
    }
}

/// The target of an upload.
#[expect(missing_debug_implementations, reason = "a closure has none")]
pub struct Upload<'a> {
    pub transfer: &'a Transfer,
    pub token: &'a Token,
    pub namespace: &'a str,
    pub app: &'a str,
    /// Give up after this time without progress.
    pub timeout_ms: u64,
    pub told: Told<'a>,
}

/// Learns how far a transfer is: the file, how many of its bytes have gone, and how many it has.
pub type Told<'a> = &'a dyn Fn(&str, u64, u64);

/// Tells how much of a file is read.
struct Counted<'a, R> {
    content: R,
    n_bytes: u64,
    source: &'a Source,
    told: Told<'a>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.content.read(into)?;
        self.n_bytes += n as u64;
        (self.told)(&self.source.file, self.n_bytes, self.source.bytes);
        Ok(n)
    }
}

impl Upload<'_> {
    /// Uploads the files in order.
    ///
    /// # Errors
    /// The server refuses a file or cannot be reached. The error has the server's message.
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
        let mut retries = retries(self.timeout_ms);
        // A try begins at the first byte again: it got on only if it came farther than all before it.
        let mut farthest = 0;
        loop {
            let file = File::open(&source.path)
                .map_err(|error| format!("{}: {error}", source.path.display()))?;
            // Bounded, because the file may be growing. The server then refuses it by its sha256.
            let content = file.take(source.bytes);
            let mut body = Counted { content, n_bytes: 0, source, told: self.told };
            let sent = self.transfer.post(&path, self.token.reveal(), source.bytes, &mut body);
            // If the answer is lost, the bundle may be stored all the same. Nobody knows its
            // secret, so the server drops it as unused.
            let failed = match check_answer(sent, &source.file, &[201])? {
                Ok(mut answer) => match parse_accepted(&read_body(&mut answer)) {
                    Some((id, secret)) => return Ok(source.entry(id, secret)),
                    None => {
                        (format!("{}: the server's answer has no bundle id", source.file), None)
                    }
                },
                Err(retry) => retry,
            };
            if body.n_bytes > farthest {
                farthest = body.n_bytes;
                retries.on_success();
            }
            wait(&mut retries, failed)?;
        }
    }
}

impl Source {
    fn entry(&self, id: String, secret: String) -> Entry {
        let Self { file, bytes, sha256, executable, .. } = self.clone();
        Entry { id, secret, file, bytes, sha256, executable }
    }
}
