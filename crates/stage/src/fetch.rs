//! `posse stage get`: fetches the bundles of a ticket as files. A file gets its name only when it
//! is complete and verified. An interrupted download is resumed, also by a later process.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use crate::api::BUNDLES;
use crate::retry::{check_answer, retries, wait};
use posse_base::files;
use posse_kube::api::retry::Retries;
use posse_kube::http::Stream;
use posse_kube::http::transfer::Transfer;
use posse_wire::bundle::{Entry, hex};

/// Block size for reading and writing.
const BLOCK_BYTES: usize = 64 << 10;

/// Fetches a bundle into `dir` and returns the file's path. If the same file exists already, it is
/// kept.
///
/// # Errors
/// The server refuses, nothing is received for this time, the content differs from the ticket, or
/// the file cannot be written.
pub fn fetch(
    transfer: &Transfer,
    entry: &Entry,
    dir: &Path,
    timeout_ms: u64,
) -> Result<PathBuf, String> {
    let target = dir.join(&entry.file);
    let disk_error = |error: io::Error| format!("{}: {error}", target.display());
    if has_same_file(&target, entry).map_err(disk_error)? {
        log::info!("{} exists already with the same content; keeping it", target.display());
        return Ok(target);
    }
    let part = dir.join(format!(".{}.part", entry.id));
    let mut partial = Partial::open(&part).map_err(disk_error)?;
    let mut retries = retries(timeout_ms);
    let mut may_restart = partial.n_bytes > 0;
    loop {
        complete(transfer, entry, &mut partial, &mut retries, &disk_error)?;
        if partial.sha256() == entry.sha256 {
            break;
        }
        partial.clear().map_err(disk_error)?;
        // The part that an earlier process left may be of other content, so try once from the
        // start.
        if !std::mem::take(&mut may_restart) {
            return Err(format!(
                "{}: the received content has another sha256 than the ticket says",
                entry.file
            ));
        }
    }
    let mode = if entry.executable { 0o755 } else { 0o644 };
    let renamed = partial
        .file
        .set_permissions(Permissions::from_mode(mode))
        .and_then(|()| partial.file.sync_all())
        .and_then(|()| fs::rename(&part, &target))
        .and_then(|()| File::open(dir)?.sync_all());
    renamed.map_err(disk_error)?;
    Ok(target)
}

/// Requests the missing bytes until the file has all of them.
fn complete(
    transfer: &Transfer,
    entry: &Entry,
    partial: &mut Partial,
    retries: &mut Retries,
    disk_error: &dyn Fn(io::Error) -> String,
) -> Result<(), String> {
    let path = format!("{BUNDLES}/{}", entry.id);
    if partial.n_bytes > entry.bytes {
        partial.clear().map_err(disk_error)?;
    }
    while partial.n_bytes < entry.bytes {
        let answer = transfer.get(&path, &entry.secret, partial.n_bytes);
        let failed = match check_answer(answer, &entry.file, &[200, 206])? {
            Ok(mut answer) => {
                if answer.status == 200 && partial.n_bytes > 0 {
                    partial.clear().map_err(disk_error)?;
                }
                match partial.receive(&mut answer, entry.bytes, retries).map_err(disk_error)? {
                    None => continue,
                    Some(error) => (format!("{}: {error}", entry.file), None),
                }
            }
            Err(retry) => retry,
        };
        wait(retries, failed)?;
    }
    Ok(())
}

/// An incomplete file and the hash of its content so far.
struct Partial {
    file: File,
    n_bytes: u64,
    hash: Context,
}

impl Partial {
    /// Opens the file and keeps the content that an earlier process left.
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = files::open_or_create(path)?;
        let (n_bytes, hash) = hash_rest(&mut file)?;
        Ok(Self { file, n_bytes, hash })
    }

    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.n_bytes = 0;
        self.hash = Context::new(&SHA256);
        Ok(())
    }

    /// Appends the content of a response. Returns why it ended early, or `None` if the file is
    /// complete.
    ///
    /// # Errors
    /// The disk failed.
    fn receive(
        &mut self,
        answer: &mut Stream,
        bytes: u64,
        retries: &mut Retries,
    ) -> io::Result<Option<io::Error>> {
        let mut block = vec![0; BLOCK_BYTES];
        while self.n_bytes < bytes {
            let room = usize::try_from(bytes - self.n_bytes).unwrap_or(usize::MAX);
            match answer.reader().read(&mut block[..room.min(BLOCK_BYTES)]) {
                Ok(0) => return Ok(Some(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => {
                    self.file.write_all(&block[..n])?;
                    self.hash.update(&block[..n]);
                    self.n_bytes += n as u64;
                    retries.on_success();
                }
                Err(error) => return Ok(Some(error)),
            }
        }
        Ok(None)
    }

    fn sha256(&self) -> String {
        hex(self.hash.clone().finish().as_ref())
    }
}

/// True if the same file exists already. This happens when an init container runs twice.
fn has_same_file(path: &Path, entry: &Entry) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != entry.bytes {
        return Ok(false);
    }
    let (_, hash) = hash_rest(&mut file)?;
    Ok(hex(hash.finish().as_ref()) == entry.sha256)
}

/// Length and hash of a file from its current position to its end.
pub(super) fn hash_rest(file: &mut File) -> io::Result<(u64, Context)> {
    let mut hash = Context::new(&SHA256);
    let mut block = vec![0; BLOCK_BYTES];
    let mut n_bytes = 0;
    loop {
        match file.read(&mut block)? {
            0 => return Ok((n_bytes, hash)),
            n => {
                hash.update(&block[..n]);
                n_bytes += n as u64;
            }
        }
    }
}
