//! The bundles on disk and their index in memory: storing a bundle completely or not at all,
//! finding it by id and secret, removing it.
//!
//! A bundle is one file, `ID.bundle`: a line with its label, then its content. It is written as
//! `ID.new`, synced and renamed, and the folder is synced, so a crash leaves a complete bundle or
//! none; `ID.new` files are removed at the start. The time of the last use is the file's
//! modification time.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use ring::digest::{Context, SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{FlockOperation, flock, statvfs};
use subtle::ConstantTimeEq as _;

use crate::quotas::{NoRoom, Quotas, Uploader, Uploads, Usage};
use posse_base::files;
use posse_base::sync::lock;
use posse_wire::bundle::{ID_DIGITS, Label, hex, is_hex};

/// The most bundles in one store, because the index is in memory.
const BUNDLES_MAX: usize = 10_000;
/// The longest label line.
const LABEL_BYTES_MAX: u64 = 4 << 10;
/// Block size for reading and writing.
const BLOCK_BYTES: usize = 64 << 10;
/// Space that stays free on the disk, because the folder itself may grow.
const DISK_SPARE_BYTES: u64 = 64 << 10;

/// One bundle in the index.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) id: String,
    pub(super) label: Label,
    /// Where its content begins in its file.
    offset: u64,
    /// Time of the last use, in milliseconds since the store was opened. Negative if it was before.
    used_ms: AtomicI64,
    was_fetched: AtomicBool,
}

/// The store of one folder.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    /// The folder, to sync it after a rename.
    folder: File,
    /// Locked while the store is open.
    _lock: File,
    quotas: Quotas,
    opened: Instant,
    index: Mutex<Index>,
}

/// The stored bundles, at most `BUNDLES_MAX`, so linear searches are fast enough, and the uploads.
#[derive(Debug, Default)]
struct Index {
    bundles: Vec<Arc<Bundle>>,
    uploads: Uploads,
}

impl Index {
    fn stored(&self, namespace: &str) -> Usage {
        let labels = self.bundles.iter().map(|bundle| &bundle.label);
        Usage::of(labels.filter(|label| label.namespace == namespace).map(|label| label.bytes))
    }
}

impl From<NoRoom> for StoreError {
    fn from(why: NoRoom) -> Self {
        Self::NoRoom(why)
    }
}

/// Why a bundle was not stored. Nothing of it is left on the disk.
#[derive(Debug)]
pub(super) enum StoreError {
    /// The disk or the system failed.
    Broken(io::Error),
    /// The client disconnected or was too slow.
    Cut(io::Error),
    DiskFull,
    /// The content has another SHA-256 than announced.
    Mismatch,
    /// The bundle has no room in its namespace.
    NoRoom(NoRoom),
    TooLarge {
        max: u64,
    },
    /// The store has its maximum number of bundles.
    TooMany,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => write!(f, "the bundle cannot be stored: {error}"),
            Self::Cut(error) => write!(f, "the bundle was not received completely: {error}"),
            Self::DiskFull => f.write_str("the disk has no space for the bundle"),
            Self::Mismatch => f.write_str("the content has another sha256 than announced"),
            Self::NoRoom(why) => why.fmt(f),
            Self::TooLarge { max } => write!(f, "a bundle can have at most {max} bytes"),
            Self::TooMany => write!(f, "the store already has {BUNDLES_MAX} bundles"),
        }
    }
}

impl Store {
    /// Opens the folder, creates it if necessary, and reads its bundles.
    ///
    /// # Errors
    /// The folder cannot be used, or another server is using it.
    pub(super) fn open(dir: &Path, quotas: Quotas) -> Result<Self, OpenError> {
        let open_error = |error: io::Error| OpenError { dir: dir.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(open_error)?;
        let lock = files::open_or_create(&dir.join(".lock")).map_err(open_error)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(open_error(io::Error::other("another server is using it")));
            }
            // Some network file systems have no locks.
            Err(error) => log::warn!(
                "cannot lock the folder {}; make sure that no other server uses it: {error}",
                dir.display()
            ),
        }
        let store = Self {
            folder: File::open(dir).map_err(open_error)?,
            dir: dir.to_owned(),
            _lock: lock,
            quotas,
            opened: Instant::now(),
            index: Mutex::default(),
        };
        store.load().map_err(open_error)?;
        Ok(store)
    }

    /// Reads the index from the disk and removes incomplete bundles.
    fn load(&self) -> io::Result<()> {
        let (mut n_bytes, mut n_removed) = (0, 0);
        let mut index = lock(&self.index);
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.strip_suffix(NEW).is_some_and(|id| is_hex(id, ID_DIGITS)) {
                fs::remove_file(&path)?;
                n_removed += 1;
                continue;
            }
            let Some(id) = name.strip_suffix(COMPLETE).filter(|id| is_hex(id, ID_DIGITS)) else {
                continue;
            };
            match self.read_bundle(id, &path) {
                Ok(bundle) => {
                    n_bytes += bundle.label.bytes;
                    index.bundles.push(Arc::new(bundle));
                }
                // A crash of this server does not cause this, so the file is kept.
                Err(error) => log::warn!("ignoring {}: {error}", path.display()),
            }
        }
        let (dir, n) = (self.dir.display(), index.bundles.len());
        log::info!("{dir} has {n} bundles ({n_bytes} bytes); removed {n_removed} incomplete ones");
        Ok(())
    }

    fn read_bundle(&self, id: &str, path: &Path) -> io::Result<Bundle> {
        let damaged = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut line = Vec::new();
        BufReader::new(file.take(LABEL_BYTES_MAX)).read_until(b'\n', &mut line)?;
        let wrong = || match Label::is_newer(&line) {
            true => damaged("a newer posse has written it; use that posse to serve it"),
            false => damaged("the label is invalid"),
        };
        let label = Label::parse(&line).ok_or_else(wrong)?;
        let offset = line.len() as u64;
        if metadata.len() != offset + label.bytes {
            return Err(damaged("the length differs from the label's"));
        }
        let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
        let used_ms = AtomicI64::new(-millis(age));
        let was_fetched = AtomicBool::new(false);
        Ok(Bundle { id: id.to_owned(), label, offset, used_ms, was_fetched })
    }

    /// Free space on the disk in bytes.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let stat = statvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Checks the limits for a bundle, before its content is received.
    ///
    /// # Errors
    /// A limit would be exceeded, or the disk has no space.
    pub(super) fn begin(
        &self,
        label: Label,
        client: Arc<dyn Uploader>,
    ) -> Result<Incoming<'_>, StoreError> {
        if label.bytes > self.quotas.bundle_bytes_max {
            return Err(StoreError::TooLarge { max: self.quotas.bundle_bytes_max });
        }
        let free = self.free_bytes().map_err(StoreError::Broken)?;
        if label.bytes.saturating_add(DISK_SPARE_BYTES) > free {
            return Err(StoreError::DiskFull);
        }
        let mut index = lock(&self.index);
        if index.bundles.len() + index.uploads.len() >= BUNDLES_MAX {
            return Err(StoreError::TooMany);
        }
        let stored = index.stored(&label.namespace);
        let Label { namespace, bytes, .. } = &label;
        let number = index.uploads.begin(namespace, *bytes, client, stored, &self.quotas)?;
        Ok(Incoming { store: self, label, number })
    }

    /// The bundle with this id, if the secret is right. The time does not show whether the id
    /// exists.
    pub(super) fn find(&self, id: &str, secret: &str) -> Option<Arc<Bundle>> {
        let given = hex(digest(&SHA256, secret.as_bytes()).as_ref());
        let bundle = lock(&self.index).bundles.iter().find(|one| one.id == id).cloned();
        let no_match = "-".repeat(given.len());
        let expected = bundle.as_ref().map_or(no_match.as_str(), |one| &one.label.secret_sha256);
        let is_equal = bool::from(given.as_bytes().ct_eq(expected.as_bytes()));
        bundle.filter(|_| is_equal)
    }

    /// The content of a bundle from the offset `from`. This counts as a use.
    ///
    /// # Errors
    /// The file cannot be read. `NotFound` if the bundle was just removed.
    pub(super) fn read(&self, bundle: &Bundle, from: u64) -> io::Result<File> {
        let mut file = File::open(self.path(&bundle.id, COMPLETE))?;
        file.seek(SeekFrom::Start(bundle.offset.saturating_add(from)))?;
        self.touch(bundle, &file);
        Ok(file)
    }

    /// Records a use of a bundle.
    pub(super) fn touch(&self, bundle: &Bundle, file: &File) {
        bundle.used_ms.store(millis(self.opened.elapsed()), Ordering::Relaxed);
        bundle.was_fetched.store(true, Ordering::Relaxed);
        // Only a restart reads this time, and an old one is good enough then.
        let _ = file.set_modified(SystemTime::now());
    }

    pub(super) fn bundles(&self) -> Vec<Arc<Bundle>> {
        lock(&self.index).bundles.clone()
    }

    /// Milliseconds since the last use of a bundle, and whether it was fetched since the store was
    /// opened.
    pub(super) fn use_of(&self, bundle: &Bundle) -> (u64, bool) {
        let unused_ms =
            millis(self.opened.elapsed()).saturating_sub(bundle.used_ms.load(Ordering::Relaxed));
        (u64::try_from(unused_ms).unwrap_or(0), bundle.was_fetched.load(Ordering::Relaxed))
    }

    /// Removes a bundle. Downloads in progress go on.
    ///
    /// # Errors
    /// The file cannot be removed. Clients do not find the bundle any more, until a restart.
    pub(super) fn remove(&self, bundle: &Bundle) -> io::Result<()> {
        lock(&self.index).bundles.retain(|one| one.id != bundle.id);
        fs::remove_file(self.path(&bundle.id, COMPLETE))
    }

    fn path(&self, id: &str, suffix: &str) -> PathBuf {
        self.dir.join(format!("{id}{suffix}"))
    }
}

/// A bundle that is being received. Dropping it frees its space.
#[derive(Debug)]
pub(super) struct Incoming<'s> {
    store: &'s Store,
    label: Label,
    number: u64,
}

impl Incoming<'_> {
    /// Stores the bundle and returns its id.
    ///
    /// # Errors
    /// The content is incomplete or not as announced, or cannot be written.
    pub(super) fn store(self, body: &mut dyn Read) -> Result<String, StoreError> {
        let (store, label) = (self.store, &self.label);
        let id = random_hex(ID_DIGITS / 2).map_err(StoreError::Broken)?;
        let mut partial = PartialFile { path: store.path(&id, NEW), is_complete: false };
        let mut file = files::create_new(&partial.path).map_err(disk_error)?;
        let line = label.to_line();
        file.write_all(line.as_bytes()).map_err(disk_error)?;
        if self.copy_hashed(body, &mut file)? != label.sha256 {
            return Err(StoreError::Mismatch);
        }
        file.sync_all().map_err(disk_error)?;
        fs::rename(&partial.path, store.path(&id, COMPLETE)).map_err(disk_error)?;
        partial.path = store.path(&id, COMPLETE);
        store.folder.sync_all().map_err(disk_error)?;
        let bundle = Bundle {
            id: id.clone(),
            label: label.clone(),
            offset: line.len() as u64,
            used_ms: AtomicI64::new(millis(store.opened.elapsed())),
            was_fetched: AtomicBool::new(false),
        };
        let mut index = lock(&store.index);
        if !index.uploads.end(self.number) {
            return Err(NoRoom::Displaced.into());
        }
        index.bundles.push(Arc::new(bundle));
        partial.is_complete = true;
        Ok(id)
    }

    /// Copies the content and returns its SHA-256 in hexadecimal.
    fn copy_hashed(&self, body: &mut dyn Read, file: &mut File) -> Result<String, StoreError> {
        let mut hash = Context::new(&SHA256);
        let mut block = vec![0; BLOCK_BYTES];
        let mut n_received = 0;
        while n_received < self.label.bytes {
            let remaining = self.label.bytes - n_received;
            let room = usize::try_from(remaining).map_or(BLOCK_BYTES, |n| n.min(BLOCK_BYTES));
            // A connection delivers smaller pieces than the disk should get.
            let full = body.read_exact(&mut block[..room]);
            n_received += room as u64;
            // First, because this is why the body of a slow upload was cut.
            let mut index = lock(&self.store.index);
            let stored = index.stored(&self.label.namespace);
            index.uploads.receive(self.number, n_received, stored, &self.store.quotas)?;
            drop(index);
            full.map_err(StoreError::Cut)?;
            hash.update(&block[..room]);
            file.write_all(&block[..room]).map_err(disk_error)?;
        }
        Ok(hex(hash.finish().as_ref()))
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        lock(&self.store.index).uploads.end(self.number);
    }
}

/// A file that is removed on drop unless it is complete.
struct PartialFile {
    path: PathBuf,
    is_complete: bool,
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_complete
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!(
                "cannot remove the incomplete bundle {}, which stays until a restart: {error}",
                self.path.display()
            );
        }
    }
}

fn disk_error(error: io::Error) -> StoreError {
    match [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&error.kind()) {
        true => StoreError::DiskFull,
        false => StoreError::Broken(error),
    }
}

/// `n_bytes` random bytes in hexadecimal.
pub(super) fn random_hex(n_bytes: usize) -> io::Result<String> {
    let mut bytes = vec![0; n_bytes];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system's random generator failed"))?;
    Ok(hex(&bytes))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// A folder that cannot be opened as a store.
#[derive(Debug)]
pub struct OpenError {
    dir: PathBuf,
    error: io::Error,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "folder {}: {}", self.dir.display(), self.error)
    }
}

impl std::error::Error for OpenError {}

/// File name suffixes of complete and of incomplete bundles.
const COMPLETE: &str = ".bundle";
const NEW: &str = ".new";

#[cfg(test)]
mod tests;
