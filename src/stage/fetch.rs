//! Owns `posse stage get`: the bundles of a ticket become files, each whole and verified before it
//! has its name. A cut connection is taken up again where it was cut, also by the next process.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring::digest::{Context, SHA256};

use crate::kube::http::Stream;
use crate::kube::transfer::Transfer;
use crate::stage::api::BUNDLES;
use crate::stage::retry::{Tries, settle};
use crate::wire::bundle::{Entry, hex};

/// What is read and written at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Fetches a bundle into `dir`; a file that is there already, and the same, is left as it is. Gives
/// the file's path.
///
/// # Errors
/// The server does not give it, nothing moved for `timeout`, it is not what the ticket says, or it
/// cannot be written.
pub fn fetch(
    transfer: &Transfer,
    entry: &Entry,
    dir: &Path,
    timeout: Duration,
) -> Result<PathBuf, String> {
    let target = dir.join(&entry.file);
    let on_disk = |error: io::Error| format!("{}: {error}", target.display());
    if is_there(&target, entry).map_err(on_disk)? {
        log::info!("{} is there already", target.display());
        return Ok(target);
    }
    let part = dir.join(format!(".{}.part", entry.id));
    let mut partial = Partial::open(&part).map_err(on_disk)?;
    let mut tries = Tries::new(timeout);
    let mut may_begin_again = partial.n_bytes > 0;
    loop {
        complete(transfer, entry, &mut partial, &mut tries, &on_disk)?;
        if partial.sha256() == entry.sha256 {
            break;
        }
        partial.clear().map_err(on_disk)?;
        // What an earlier process had written may have been something else.
        if !std::mem::take(&mut may_begin_again) {
            return Err(format!("{}: what came has another sha256 than was sent", entry.file));
        }
    }
    let mode = if entry.executable { 0o755 } else { 0o644 };
    let named = partial
        .file
        .set_permissions(Permissions::from_mode(mode))
        .and_then(|()| partial.file.sync_all())
        .and_then(|()| fs::rename(&part, &target))
        .and_then(|()| File::open(dir)?.sync_all());
    named.map_err(on_disk)?;
    Ok(target)
}

/// Asks until all bytes are there.
fn complete(
    transfer: &Transfer,
    entry: &Entry,
    partial: &mut Partial,
    tries: &mut Tries,
    on_disk: &dyn Fn(io::Error) -> String,
) -> Result<(), String> {
    let path = format!("{BUNDLES}/{}", entry.id);
    if partial.n_bytes > entry.bytes {
        partial.clear().map_err(on_disk)?;
    }
    while partial.n_bytes < entry.bytes {
        let answer = transfer.get(&path, &entry.secret, partial.n_bytes);
        let (why, asked) = match settle(answer, &entry.file, &[200, 206])? {
            Ok(mut answer) => {
                if answer.status == 200 && partial.n_bytes > 0 {
                    partial.clear().map_err(on_disk)?;
                }
                match partial.take(&mut answer, entry.bytes, tries).map_err(on_disk)? {
                    None => continue,
                    Some(error) => (format!("{}: {error}", entry.file), None),
                }
            }
            Err(again) => again,
        };
        tries.again(why, asked)?;
    }
    Ok(())
}

/// A file that is not whole yet, and the hash of what there is.
struct Partial {
    file: File,
    n_bytes: u64,
    hash: Context,
}

impl Partial {
    /// Goes on with what an earlier process left.
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let (n_bytes, hash) = hashed(&mut file)?;
        Ok(Self { file, n_bytes, hash })
    }

    fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.n_bytes = 0;
        self.hash = Context::new(&SHA256);
        Ok(())
    }

    /// Takes what an answer gives; none where all is there, else why it ended too early. The outer
    /// error is the disk's.
    fn take(
        &mut self,
        answer: &mut Stream,
        bytes: u64,
        tries: &mut Tries,
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
                    tries.progress();
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

/// True where the very file is there already: an init container may run twice.
fn is_there(path: &Path, entry: &Entry) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != entry.bytes {
        return Ok(false);
    }
    let (_, hash) = hashed(&mut file)?;
    Ok(hex(hash.finish().as_ref()) == entry.sha256)
}

/// The length and the hash of a file from where it stands to its end.
pub(super) fn hashed(file: &mut File) -> io::Result<(u64, Context)> {
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
