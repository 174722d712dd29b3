//! Owns the bundles on disk and the index of them in memory: taking one in, whole or not at all,
//! finding it by id and secret, letting it go. Knows neither HTTP nor Kubernetes.
//!
//! A bundle is one file, `ID.bundle`: a line with its label, then its bytes. It is written under
//! another name, synced, renamed, and the folder is synced, so that a kill leaves it whole or leaves
//! none; what lies there under the other name at the start is removed. When a bundle was used last
//! is its file's time of modification.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ring::digest::{Context, SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{FlockOperation, flock, statvfs};

use crate::wire::bundle::{ID_DIGITS, Label, hex, is_hex};

/// Bundles in one store: each takes a little memory.
const BUNDLES_MAX: usize = 10_000;
/// The line before a bundle's bytes.
const LABEL_BYTES_MAX: u64 = 4 << 10;
/// What is read and written at once.
const BLOCK_BYTES: usize = 64 << 10;
/// Left free on the disk: the folder itself may have to grow.
const DISK_SPARE_BYTES: u64 = 64 << 10;

/// How much there may be, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// One bundle.
    pub bundle_bytes_max: u64,
    /// All bundles of a namespace.
    pub namespace_bytes_max: u64,
}

/// One bundle in the index.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) id: String,
    pub(super) label: Label,
    /// Where its bytes begin in its file.
    offset: u64,
    /// Milliseconds from the store's opening to its last use; before it they are negative.
    used_ms: AtomicI64,
    was_fetched: AtomicBool,
}

/// The store, of which there is one for a folder.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    /// To be synced after a rename.
    folder: File,
    /// Held as long as the store is open.
    _lock: File,
    quotas: Quotas,
    opened: Instant,
    random: SystemRandom,
    index: Mutex<Index>,
}

/// At most `BUNDLES_MAX` in all: lists are quick enough.
#[derive(Debug, Default)]
struct Index {
    bundles: Vec<Arc<Bundle>>,
    /// Those that are on their way in, each with a number of its own.
    coming: Vec<(u64, Label)>,
    n_reserved: u64,
}

/// Why a bundle was not taken in. Nothing of it is left.
#[derive(Debug)]
pub(super) enum Refused {
    /// The disk or the system failed.
    Broken(io::Error),
    /// The client went away, or was too slow.
    Cut(io::Error),
    DiskFull,
    /// What came has another SHA-256 than was announced.
    Mismatch,
    /// The namespace has no room for it.
    Quota {
        used: u64,
        max: u64,
    },
    TooLarge {
        max: u64,
    },
    /// The store has no room for one more, whatever its size.
    TooMany,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(error) => write!(f, "the disk failed: {error}"),
            Self::Cut(error) => write!(f, "the bundle did not come whole: {error}"),
            Self::DiskFull => f.write_str("the disk has no room for it"),
            Self::Mismatch => f.write_str("what came has another sha256 than was announced"),
            Self::Quota { used, max } => {
                write!(f, "the namespace has no room for it: {used} of its {max} bytes are used")
            }
            Self::TooLarge { max } => write!(f, "a bundle has at most {max} bytes here"),
            Self::TooMany => write!(f, "there are {BUNDLES_MAX} bundles already"),
        }
    }
}

impl Store {
    /// Opens the folder, which is made where it is not there, and reads what it holds.
    ///
    /// # Errors
    /// It cannot be used, or another server is using it.
    pub(super) fn open(dir: &Path, quotas: Quotas) -> Result<Self, OpenError> {
        let problem = |error: io::Error| OpenError { dir: dir.to_owned(), error };
        let random = SystemRandom::new();
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(problem)?;
        let lock = private(&dir.join(".lock"), false).map_err(problem)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(problem(io::Error::other("another server is using it")));
            }
            // Not every file system that is reached over a network has locks.
            Err(error) => log::warn!("{}: it cannot be locked: {error}", dir.display()),
        }
        let store = Self {
            folder: File::open(dir).map_err(problem)?,
            dir: dir.to_owned(),
            _lock: lock,
            quotas,
            opened: Instant::now(),
            random,
            index: Mutex::default(),
        };
        store.load().map_err(problem)?;
        Ok(store)
    }

    /// Reads the index from the disk and removes what a kill left half written.
    fn load(&self) -> io::Result<()> {
        let (mut n_bytes, mut n_removed) = (0, 0);
        let mut index = self.lock();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.strip_suffix(NEW).is_some_and(|id| is_hex(id, ID_DIGITS)) {
                fs::remove_file(&path)?;
                n_removed += 1;
                continue;
            }
            let Some(id) = name.strip_suffix(WHOLE).filter(|id| is_hex(id, ID_DIGITS)) else {
                continue;
            };
            match self.read_bundle(id, &path) {
                Ok(bundle) => {
                    n_bytes += bundle.label.bytes;
                    index.bundles.push(Arc::new(bundle));
                }
                // No kill does that. What is not understood is not removed either.
                Err(error) => log::warn!("{} is left out: {error}", path.display()),
            }
        }
        let (dir, n) = (self.dir.display(), index.bundles.len());
        log::info!("{dir} holds {n} bundles, {n_bytes} bytes; {n_removed} half ones removed");
        Ok(())
    }

    fn read_bundle(&self, id: &str, path: &Path) -> io::Result<Bundle> {
        let damaged = |what: &str| io::Error::new(ErrorKind::InvalidData, what);
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let mut line = Vec::new();
        BufReader::new(file.take(LABEL_BYTES_MAX)).read_until(b'\n', &mut line)?;
        let label = Label::parse(&line).ok_or_else(|| damaged("its label cannot be read"))?;
        let offset = line.len() as u64;
        if metadata.len() != offset + label.bytes {
            return Err(damaged("it is not as long as its label says"));
        }
        let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
        let used_ms = AtomicI64::new(-millis(age));
        let was_fetched = AtomicBool::new(false);
        Ok(Bundle { id: id.to_owned(), label, offset, used_ms, was_fetched })
    }

    /// Room on the disk, in bytes.
    ///
    /// # Errors
    /// The folder cannot be looked at.
    pub(super) fn room(&self) -> io::Result<u64> {
        let stat = statvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Says whether a bundle would be taken in, before a byte of it has come.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn reserve(&self, label: Label) -> Result<Reservation<'_>, Refused> {
        if label.bytes > self.quotas.bundle_bytes_max {
            return Err(Refused::TooLarge { max: self.quotas.bundle_bytes_max });
        }
        let room = self.room().map_err(Refused::Broken)?;
        if label.bytes.saturating_add(DISK_SPARE_BYTES) > room {
            return Err(Refused::DiskFull);
        }
        let mut index = self.lock();
        if index.bundles.len() + index.coming.len() >= BUNDLES_MAX {
            return Err(Refused::TooMany);
        }
        let max = self.quotas.namespace_bytes_max;
        let used = index.used(&label.namespace);
        if used.saturating_add(label.bytes) > max {
            return Err(Refused::Quota { used, max });
        }
        index.n_reserved += 1;
        let number = index.n_reserved;
        index.coming.push((number, label.clone()));
        Ok(Reservation { store: self, label, number })
    }

    /// The bundle of that id, where the secret opens it. Takes as long for an id that there is as
    /// for one that there is not.
    pub(super) fn find(&self, id: &str, secret: &str) -> Option<Arc<Bundle>> {
        let shown = hex(digest(&SHA256, secret.as_bytes()).as_ref());
        let bundle = self.lock().bundles.iter().find(|one| one.id == id).cloned();
        let nobodys = "-".repeat(shown.len());
        let ours = bundle.as_ref().map_or(nobodys.as_str(), |one| &one.label.secret_sha256);
        let difference = shown.bytes().zip(ours.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        bundle.filter(|_| std::hint::black_box(difference) == 0)
    }

    /// The bytes of a bundle from `from` on. It counts as used.
    ///
    /// # Errors
    /// Its file cannot be read; `NotFound` where it was dropped a moment ago.
    pub(super) fn read(&self, bundle: &Bundle, from: u64) -> io::Result<File> {
        let mut file = File::open(self.path(&bundle.id, WHOLE))?;
        file.seek(SeekFrom::Start(bundle.offset.saturating_add(from)))?;
        self.touch(bundle, &file);
        Ok(file)
    }

    /// Notes that a bundle is in use.
    pub(super) fn touch(&self, bundle: &Bundle, file: &File) {
        bundle.used_ms.store(millis(self.opened.elapsed()), Ordering::Relaxed);
        bundle.was_fetched.store(true, Ordering::Relaxed);
        // Only a restart would read it, and then some other time is not far off.
        let _ = file.set_modified(SystemTime::now());
    }

    /// All bundles.
    pub(super) fn bundles(&self) -> Vec<Arc<Bundle>> {
        self.lock().bundles.clone()
    }

    /// Since a bundle was used last, in milliseconds, and whether that was a fetch.
    pub(super) fn use_of(&self, bundle: &Bundle) -> (u64, bool) {
        let unused_ms =
            millis(self.opened.elapsed()).saturating_sub(bundle.used_ms.load(Ordering::Relaxed));
        (u64::try_from(unused_ms).unwrap_or(0), bundle.was_fetched.load(Ordering::Relaxed))
    }

    /// Drops a bundle. Who is reading it reads on.
    ///
    /// # Errors
    /// The disk would not; the bundle is gone for everybody all the same, until a restart.
    pub(super) fn remove(&self, bundle: &Bundle) -> io::Result<()> {
        self.lock().bundles.retain(|one| one.id != bundle.id);
        fs::remove_file(self.path(&bundle.id, WHOLE))
    }

    fn path(&self, id: &str, suffix: &str) -> PathBuf {
        self.dir.join(format!("{id}{suffix}"))
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // The index is whole between any two statements; a panic elsewhere spoils nothing.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index {
    /// The bytes of a namespace, with those that are on their way in.
    fn used(&self, namespace: &str) -> u64 {
        let there = self.bundles.iter().map(|bundle| &bundle.label);
        let all = there.chain(self.coming.iter().map(|(_, label)| label));
        all.filter(|label| label.namespace == namespace).map(|label| label.bytes).sum()
    }
}

/// Room that is kept for one bundle until it has come, or has not.
#[derive(Debug)]
pub(super) struct Reservation<'s> {
    store: &'s Store,
    label: Label,
    number: u64,
}

impl Reservation<'_> {
    /// Takes the bundle in; its id.
    ///
    /// # Errors
    /// It did not come whole and as it was announced, or could not be written.
    pub(super) fn fill(self, body: &mut dyn Read) -> Result<String, Refused> {
        let (store, label) = (self.store, &self.label);
        let id = random_hex(&store.random, ID_DIGITS / 2).map_err(Refused::Broken)?;
        let mut coming = Coming { path: store.path(&id, NEW), is_whole: false };
        let mut file = private(&coming.path, true).map_err(on_disk)?;
        let line = label.to_line();
        file.write_all(line.as_bytes()).map_err(on_disk)?;
        if copy_hashed(label.bytes, body, &mut file)? != label.sha256 {
            return Err(Refused::Mismatch);
        }
        file.sync_all().map_err(on_disk)?;
        fs::rename(&coming.path, store.path(&id, WHOLE)).map_err(on_disk)?;
        coming.path = store.path(&id, WHOLE);
        store.folder.sync_all().map_err(on_disk)?;
        let bundle = Bundle {
            id: id.clone(),
            label: label.clone(),
            offset: line.len() as u64,
            used_ms: AtomicI64::new(millis(store.opened.elapsed())),
            was_fetched: AtomicBool::new(false),
        };
        store.lock().bundles.push(Arc::new(bundle));
        coming.is_whole = true;
        Ok(id)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.store.lock().coming.retain(|(number, _)| *number != self.number);
    }
}

/// A file that goes unless it becomes whole.
struct Coming {
    path: PathBuf,
    is_whole: bool,
}

impl Drop for Coming {
    fn drop(&mut self) {
        if !self.is_whole
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("{}: half a bundle stays until a restart: {error}", self.path.display());
        }
    }
}

/// Copies `n_bytes`, and gives the SHA-256 of what was copied.
fn copy_hashed(n_bytes: u64, body: &mut dyn Read, file: &mut File) -> Result<String, Refused> {
    let mut hash = Context::new(&SHA256);
    let mut block = vec![0; BLOCK_BYTES];
    let mut left = n_bytes;
    while left > 0 {
        let room = usize::try_from(left).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        // A full block for each write: a connection gives it in smaller pieces.
        let mut n = 0;
        while n < room {
            match body.read(&mut block[n..room]).map_err(Refused::Cut)? {
                0 => return Err(Refused::Cut(ErrorKind::UnexpectedEof.into())),
                n_read => n += n_read,
            }
        }
        hash.update(&block[..n]);
        file.write_all(&block[..n]).map_err(on_disk)?;
        left -= n as u64;
    }
    Ok(hex(hash.finish().as_ref()))
}

fn on_disk(error: io::Error) -> Refused {
    match [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&error.kind()) {
        true => Refused::DiskFull,
        false => Refused::Broken(error),
    }
}

/// A file that nobody else may read; a new one where it must be.
fn private(path: &Path, must_be_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    if must_be_new {
        options.create_new(true)
    } else {
        options.create(true)
    };
    options.open(path)
}

/// So many random bytes, in hexadecimal.
///
/// # Errors
/// The system has no randomness.
pub(super) fn random_hex(random: &SystemRandom, n_bytes: usize) -> io::Result<String> {
    let mut bytes = vec![0; n_bytes];
    random.fill(&mut bytes).map_err(|_| io::Error::other("the system has no randomness"))?;
    Ok(hex(&bytes))
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// Why a store cannot be opened.
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

/// How the file of a bundle ends, and of one that is on its way in.
const WHOLE: &str = ".bundle";
const NEW: &str = ".new";

#[cfg(test)]
mod tests;
