//! Files that posse writes: never through a symbolic link, and with mode 0600 from the start.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::OFlags;

/// Mode of a file with secrets.
pub const PRIVATE: u32 = 0o600;

/// Permission of others than the owner to write.
const OTHERS_WRITE: u32 = 0o022;

/// How often a name is tried that exists already.
const NAME_TRIES_MAX: u32 = 16;

/// Writes a private file in one step: it is complete as soon as it has its name. A file or a
/// symbolic link that has this name is replaced.
///
/// # Errors
/// The folder cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut replacement = Replacement::new(path)?;
    replacement.file.write_all(bytes)?;
    replacement.finish(PRIVATE)
}

/// Creates a private file.
///
/// # Errors
/// Something with this name exists, also a symbolic link, or the folder cannot be written.
pub fn create_new(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create_new(true))
}

/// Opens a file to read and write it, or creates it as a private one. For names that other users
/// cannot create.
///
/// # Errors
/// It is a symbolic link, or cannot be opened.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
}

/// Opens a file to append to it, or creates it, and makes it private. `None`: it is a FIFO without a
/// reader. A FIFO or a device keeps its mode.
///
/// # Errors
/// It is a symbolic link or another user's file, or cannot be opened.
pub fn append(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // `/dev/stderr` is a link, but only root creates files there.
    if path.parent() == Some(Path::new("/dev")) {
        return options.open(path).map(Some);
    }
    // Opening a FIFO without a reader blocks; with NONBLOCK it fails instead.
    let opened = open_with(path, &mut options, OFlags::NONBLOCK);
    let no_reader = rustix::io::Errno::NXIO.raw_os_error();
    let file = match opened {
        Err(error) if error.raw_os_error() == Some(no_reader) => return Ok(None),
        opened => opened?,
    };
    // Writes may block.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    if file.metadata()?.is_file() {
        make_own(&file)?;
    }
    Ok(Some(file))
}

/// Opens a file to read it and to append to it, or creates it for this user alone. `make_own` makes one private that is
/// there.
///
/// # Errors
/// It is a symbolic link or no regular file, or cannot be opened.
pub fn open_own(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // With NONBLOCK a FIFO does not wait for its other end. It changes nothing for a regular file.
    let file = open_with(path, options.read(true).append(true).create(true), OFlags::NONBLOCK)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file; name another one"));
    }
    Ok(file)
}

/// Reads a regular file, of which `bytes_max` bytes are enough.
///
/// # Errors
/// It is a symbolic link or no regular file, or cannot be read.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = open_with(path, OpenOptions::new().read(true), OFlags::NONBLOCK)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates a folder that only this user can access, or finds one in which nobody else can write.
///
/// # Errors
/// It is a symbolic link, another user's folder or one that others can write, or cannot be created.
pub fn own_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        created => return created,
    }
    let facts = fs::symlink_metadata(path)?;
    let what = if !facts.is_dir() {
        "it is not a folder"
    } else if facts.uid() != rustix::process::geteuid().as_raw() {
        "the folder belongs to another user; name one that posse can create"
    } else if facts.mode() & OTHERS_WRITE != 0 {
        "other users can write in the folder; `chmod go-w` it, or name another one"
    } else {
        return Ok(());
    };
    Err(io::Error::new(ErrorKind::PermissionDenied, what))
}

/// Makes a regular file private.
///
/// # Errors
/// It belongs to another user, or cannot be changed.
pub fn make_own(file: &File) -> io::Result<()> {
    if file.metadata()?.uid() != rustix::process::geteuid().as_raw() {
        let why = "the file belongs to another user; delete it or name another file";
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    file.set_permissions(Permissions::from_mode(PRIVATE))
}

/// True for the name of a file that `Replacement` has not finished.
pub fn is_unfinished(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
        && name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes())
}

/// The end of the name of an unfinished file.
const UNFINISHED: &str = ".new";

/// A file that takes the place of another one when it is complete. Dropping it before removes it.
#[derive(Debug)]
pub struct Replacement {
    /// The new content.
    pub file: File,
    part: PathBuf,
    target: PathBuf,
    is_finished: bool,
}

impl Replacement {
    /// Creates a private file beside `target`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn new(target: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
        for _ in 0..NAME_TRIES_MAX {
            // Process ids repeat in containers, so the name may be left from an earlier process.
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut part = OsString::from(".");
            part.push(name);
            part.push(format!(".{}.{number}{UNFINISHED}", std::process::id()));
            let part = target.with_file_name(part);
            match create_new(&part) {
                Ok(file) => {
                    let target = target.to_owned();
                    return Ok(Self { file, part, target, is_finished: false });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("too many unfinished files are in the folder; delete them"))
    }

    /// Gives the file its mode and its name, after its content is on the disk.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn finish(mut self, mode: u32) -> io::Result<()> {
        self.file.set_permissions(Permissions::from_mode(mode))?;
        self.file.sync_all()?;
        fs::rename(&self.part, &self.target)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_finished {
            // An unfinished file is private and in nobody's way.
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_with(path, options, OFlags::empty())
}

fn open_with(path: &Path, options: &mut OpenOptions, flags: OFlags) -> io::Result<File> {
    let flags = (flags | OFlags::NOFOLLOW).bits();
    let flags = i32::try_from(flags).map_err(|_| ErrorKind::InvalidInput)?;
    options.mode(PRIVATE).custom_flags(flags).open(path).map_err(|error| {
        let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
        if is_link {
            io::Error::other("it is a symbolic link; name the file itself")
        } else {
            error
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("posse-files-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// A folder with another user's `victim`, which is open to all, and `link` to it.
        fn with_link(name: &str) -> (Self, PathBuf, PathBuf) {
            let folder = Self::new(name);
            let (victim, link) = (folder.0.join("victim"), folder.0.join("link"));
            fs::write(&victim, "precious").unwrap();
            fs::set_permissions(&victim, Permissions::from_mode(0o666)).unwrap();
            symlink(&victim, &link).unwrap();
            (folder, victim, link)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_replaced_file_is_private_and_a_link_is_not_followed() {
        let (folder, victim, link) = Folder::with_link("replace");
        // What the old `put` wrote to, and what it kept the mode of.
        let old_part = folder.0.join("link.new");
        symlink(&victim, &old_part).unwrap();
        for path in [&link, &folder.0.join("fresh"), &folder.0.join("fresh")] {
            replace(path, b"secret").unwrap();
            assert_eq!((fs::read(path).unwrap().as_slice(), mode(path)), (&b"secret"[..], 0o600));
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        replace(&victim, b"secret").unwrap();
        assert_eq!(mode(&victim), 0o600, "a foreign mode was kept");
        drop(Replacement::new(&victim).unwrap());
        let left = fs::read_dir(&folder.0).unwrap().count();
        assert_eq!(left, 4, "an unfinished file is left");
    }

    #[test]
    fn opened_files_are_never_links() {
        let (folder, victim, link) = Folder::with_link("open");
        assert_eq!(create_new(&link).unwrap_err().kind(), ErrorKind::AlreadyExists);
        let errors = [open_or_create(&link).err(), append(&link).err(), open_own(&link).err()];
        for error in errors.map(Option::unwrap) {
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        let mut kept = String::new();
        open_or_create(&victim).unwrap().read_to_string(&mut kept).unwrap();
        assert_eq!(kept, "precious");
        let fresh = folder.0.join("fresh");
        open_or_create(&fresh).unwrap();
        assert_eq!(mode(&fresh), 0o600);
    }

    #[test]
    fn appended_files_become_private_and_devices_stay_as_they_are() {
        let (folder, victim, _link) = Folder::with_link("append");
        append(&victim).unwrap().unwrap().write_all(b"!").unwrap();
        assert_eq!(
            (fs::read(&victim).unwrap().as_slice(), mode(&victim)),
            (&b"precious!"[..], 0o600)
        );
        let before = mode(Path::new("/dev/null"));
        append(Path::new("/dev/null")).unwrap().unwrap().write_all(b"x").unwrap();
        assert_eq!(mode(Path::new("/dev/null")), before);
        let fifo = folder.0.join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        assert!(append(&fifo).unwrap().is_none(), "nobody reads it");
        assert_eq!(mode(&fifo), 0o644);
    }
}
