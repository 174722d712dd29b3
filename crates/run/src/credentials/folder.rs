//! The private folder with the credentials of a run: 0700, on a tmpfs if there is one, removed at the
//! end of the run, or by a later run if this one was killed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use log::{debug, info};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, statfs};

use crate::random::random_bits;
use posse_base::files;
use posse_wire::pod::credential_files::{
    CREDENTIAL_BYTES_MAX, CREDENTIAL_FILES_MAX, CredentialFiles, is_keytab, key_error,
};

/// The name of the folder, before its random part.
const PREFIX: &str = "posse-credentials-";
/// The file that a living run has locked.
const LOCK: &str = ".lock";
/// The name of that file until it is locked.
const NEW_LOCK: &str = ".lock.new";
/// The subfolder into which a command writes, below the entry's own.
const NEXT: &str = "next";
/// The subfolder with the entry's files for the driver.
const CURRENT: &str = "current";
/// The most entries of a folder that are looked at for what killed runs left.
const SWEEP_ENTRIES_MAX: usize = 10_000;

/// The folders in which the private one may lie, in order of preference.
pub fn candidates(xdg_runtime_dir: Option<&str>, tmpdir: Option<&str>) -> Vec<PathBuf> {
    let all = [xdg_runtime_dir, Some("/dev/shm"), Some("/run/posse"), tmpdir, Some("/tmp")];
    all.into_iter().flatten().map(PathBuf::from).filter(|path| path.is_absolute()).collect()
}

/// The folder of a run. Dropping it removes it.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    /// Locked until the end of this process.
    _lock: File,
}

impl PrivateFolder {
    /// Creates the folder in the first of `candidates` that can be written, and removes those there
    /// whose runs were killed.
    ///
    /// # Errors
    /// The system's error for the last of them.
    pub fn create(candidates: &[PathBuf]) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for parent in candidates {
            match Self::create_in(parent) {
                Ok(folder) => {
                    remove_abandoned(parent);
                    if !is_tmpfs(&folder.path) {
                        info!("credentials are kept on a disk: {}", folder.path.display());
                    }
                    return Ok(folder);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        let path = parent.join(format!("{PREFIX}{:016x}", random_bits()));
        DirBuilder::new().mode(0o700).create(&path)?;
        // With `LOCK` but not locked yet, the folder would be an abandoned one to another run.
        let new = path.join(NEW_LOCK);
        let locked = files::create_new(&new).and_then(|lock| {
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            fs::rename(&new, path.join(LOCK))?;
            Ok(lock)
        });
        if locked.is_err() {
            // Nothing is in it. It may lie on a file system that is full.
            let _ = fs::remove_dir_all(&path);
        }
        Ok(Self { _lock: locked?, path })
    }

    /// Creates the subfolders of an entry.
    pub fn entry(&self, name: &str) -> io::Result<EntryFolder> {
        let path = self.path.join(name);
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        make(&path)?;
        make(&path.join(CURRENT))?;
        Ok(EntryFolder { path })
    }

    /// The folder in which the driver finds the files of an entry.
    pub fn current(&self, name: &str) -> PathBuf {
        self.path.join(name).join(CURRENT)
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            debug!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

fn is_tmpfs(path: &Path) -> bool {
    // TMPFS_MAGIC of statfs(2), whose type differs between systems.
    statfs(path).is_ok_and(|facts| facts.f_type == 0x0102_1994)
}

/// Removes the folders of runs of this user that were killed: nobody has locked them.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten().take(SWEEP_ENTRIES_MAX) {
        let path = entry.path();
        let is_one = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let is_ours = fs::symlink_metadata(&path).is_ok_and(|facts| {
            facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw()
        });
        // A folder without the file is one that another run creates at this moment.
        let Some(lock) = File::open(path.join(LOCK)).ok().filter(|_| is_one && is_ours) else {
            continue;
        };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            match fs::remove_dir_all(&path) {
                Ok(()) => info!("removed credentials that a killed run left: {}", path.display()),
                Err(error) => debug!("{} cannot be removed: {error}", path.display()),
            }
        }
    }
}

/// The subfolders of an entry.
#[derive(Debug)]
pub struct EntryFolder {
    path: PathBuf,
}

impl EntryFolder {
    /// An empty folder for the next run of the command.
    pub fn begin(&self) -> io::Result<PathBuf> {
        self.discard()?;
        let next = self.path.join(NEXT);
        DirBuilder::new().mode(0o700).create(&next)?;
        Ok(next)
    }

    /// Removes what the last run of the command left.
    pub fn discard(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.path.join(NEXT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The files that the command left.
    ///
    /// # Errors
    /// What is wrong with them, as a phrase after "the command".
    pub fn read_next(&self) -> Result<CredentialFiles, String> {
        let files = read(&self.path.join(NEXT))?;
        if files.is_empty() {
            return Err("left no file in {{DIR}}".to_owned());
        }
        if let Some((name, _)) = files.iter().find(|(_, bytes)| is_keytab(bytes)) {
            return Err(format!(
                "left a keytab: {name}; a keytab stays valid and must not leave this machine"
            ));
        }
        Ok(files)
    }

    /// The files that the driver has now.
    pub fn read_current(&self) -> Result<CredentialFiles, String> {
        read(&self.current())
    }

    /// The files that the driver has and all that the command left.
    ///
    /// # Errors
    /// As `read_next`, which also minds what the files are.
    pub fn read_all(&self) -> Result<CredentialFiles, String> {
        let mut files = self.read_current()?;
        let left = read(&self.path.join(NEXT))?;
        files.extend(left.into_iter().map(|(name, bytes)| (format!("next {name}"), bytes)));
        Ok(files)
    }

    /// Gives the files to the driver: each one is replaced in one step, then the others are removed.
    pub fn publish(&self, credentials: &CredentialFiles) -> io::Result<()> {
        let current = self.current();
        for (name, bytes) in credentials {
            files::replace(&current.join(name), bytes)?;
        }
        for entry in fs::read_dir(&current)? {
            let name = entry?.file_name();
            if !name.to_str().is_some_and(|name| credentials.contains_key(name)) {
                fs::remove_file(current.join(name))?;
            }
        }
        Ok(())
    }

    /// The folder with the driver's files.
    pub fn current(&self) -> PathBuf {
        self.path.join(CURRENT)
    }
}

/// Reads all files of a folder: regular files with one name, few and small.
fn read(folder: &Path) -> Result<CredentialFiles, String> {
    let failed = |error: io::Error| format!("left files that cannot be read: {error}");
    let mut files = CredentialFiles::new();
    let mut n_bytes = 0;
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy().into_owned();
        if let Some(error) = key_error(&name) {
            return Err(error);
        }
        if files.len() == CREDENTIAL_FILES_MAX {
            return Err(format!("left more than {CREDENTIAL_FILES_MAX} files"));
        }
        let bytes = read_file(&folder.join(&name), CREDENTIAL_BYTES_MAX - n_bytes)
            .map_err(|problem| format!("left {problem}: {name}"))?;
        n_bytes += bytes.len();
        files.insert(name, bytes);
    }
    Ok(files)
}

/// A link could make a file of the machine, such as the keytab, a part of the Secret.
fn read_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| format!("a file that cannot be read ({error})");
    let facts = fs::symlink_metadata(path).map_err(failed)?;
    if facts.is_symlink() {
        return Err("a symbolic link".to_owned());
    }
    if !facts.is_file() {
        return Err("something that is not a regular file".to_owned());
    }
    // NONBLOCK, because the file may have become a FIFO meanwhile.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let file = File::from(file);
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err("something that is not a regular file".to_owned());
    }
    if facts.nlink() > 1 {
        return Err("a hard link to a file outside of the folder".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() > bytes_max {
        true => {
            Err(format!("more than {CREDENTIAL_BYTES_MAX} bytes, the most that a Secret takes"))
        }
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use posse_testing::Folder;

    fn entry(folder: &Folder) -> (PrivateFolder, EntryFolder) {
        let private = PrivateFolder::create(&[folder.path().to_owned()]).unwrap();
        let entry = private.entry("a").unwrap();
        (private, entry)
    }

    #[test]
    fn the_folder_is_private_and_goes_with_the_run() {
        let parent = Folder::new();
        let missing = parent.path().join("missing");
        let candidates = [missing, parent.path().to_owned()];
        let private = PrivateFolder::create(&candidates).unwrap();
        assert_eq!(fs::metadata(&private.path).unwrap().permissions().mode() & 0o777, 0o700);
        // A second run leaves the first one's folder alone, but not that of a killed run.
        let killed = parent.path().join(format!("{PREFIX}0"));
        fs::create_dir(&killed).unwrap();
        fs::write(killed.join(LOCK), "").unwrap();
        let second = PrivateFolder::create(&candidates).unwrap();
        assert!(private.path.exists() && second.path.exists() && !killed.exists());
        // Nor one whose run has not locked it yet.
        let young = parent.path().join(format!("{PREFIX}1"));
        fs::create_dir(&young).unwrap();
        fs::write(young.join(NEW_LOCK), "").unwrap();
        drop(PrivateFolder::create(&candidates).unwrap());
        assert!(young.exists());
        let names = fs::read_dir(&private.path).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), [LOCK], "it was renamed");
        let lock = File::open(private.path.join(LOCK)).unwrap();
        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
        let path = private.path.clone();
        drop(private);
        assert!(!path.exists() && second.path.exists());
        assert!(PrivateFolder::create(&candidates[..1]).is_err());
    }

    #[test]
    fn the_next_candidate_is_taken_if_one_takes_no_file() {
        let parent = Folder::new();
        // There a folder has the longest path that the system takes (PATH_MAX), so it can have no file.
        let mut full = parent.path().to_owned();
        let target = 4095 - "/".len() - PREFIX.len() - 16;
        while full.as_os_str().len() < target {
            let left = target - full.as_os_str().len() - "/".len();
            // Not so long that no byte is left for the last one.
            full.push("x".repeat(if left > 255 { left.min(250) } else { left }));
        }
        fs::create_dir_all(&full).unwrap();
        let private = PrivateFolder::create(&[full.clone(), parent.path().to_owned()]).unwrap();
        assert_eq!(private.path.parent().unwrap(), parent.path());
        assert_eq!(fs::read_dir(full).unwrap().count(), 0);
    }

    #[test]
    fn files_are_published_as_a_whole() {
        let parent = Folder::new();
        let (private, entry) = entry(&parent);
        for (names, want) in
            [(vec!["one", "two"], ["one", "two"].as_slice()), (vec!["two"], &["two"])]
        {
            let next = entry.begin().unwrap();
            assert_eq!(fs::read_dir(&next).unwrap().count(), 0);
            for name in &names {
                fs::write(next.join(name), name).unwrap();
            }
            let files = entry.read_next().unwrap();
            entry.publish(&files).unwrap();
            assert_eq!(entry.read_current().unwrap(), files);
            assert_eq!(files.keys().collect::<Vec<_>>(), want);
        }
        let file = private.current("a").join("two");
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[track_caller]
    fn check(make: impl Fn(&Path), want: &str) {
        let parent = Folder::new();
        let (_private, entry) = entry(&parent);
        make(&entry.begin().unwrap());
        let error = entry.read_next().unwrap_err();
        assert!(error.contains(want), "{error:?} does not say {want:?}");
        assert!(!error.contains("s3cr3t"), "{error}");
        entry.discard().unwrap();
        assert!(entry.read_next().is_err());
    }

    #[test]
    fn only_few_small_regular_files_are_accepted() {
        check(|_| {}, "left no file in {{DIR}}");
        check(
            |next| symlink("/etc/hostname", next.join("token")).unwrap(),
            "a symbolic link: token",
        );
        check(
            |next| {
                let outside = next.join("../outside");
                fs::write(&outside, "s3cr3t").unwrap();
                fs::hard_link(outside, next.join("token")).unwrap();
            },
            "left a hard link to a file outside of the folder: token",
        );
        check(|next| fs::create_dir(next.join("sub")).unwrap(), "not a regular file: sub");
        let fifo = |next: &Path| {
            let status = std::process::Command::new("mkfifo").arg(next.join("pipe")).status();
            assert!(status.unwrap().success());
        };
        check(fifo, "not a regular file: pipe");
        check(|next| fs::write(next.join("a b"), "x").unwrap(), "cannot be a key of a Secret");
        check(
            |next| fs::write(next.join("k"), b"\x05\x02s3cr3t").unwrap(),
            "left a keytab: k; a keytab stays valid",
        );
        check(
            |next| fs::write(next.join("big"), vec![b'x'; 2 << 20]).unwrap(),
            "left more than 900000 bytes, the most that a Secret takes: big",
        );
        check(
            |next| {
                fs::write(next.join("a"), vec![b'x'; 500_000]).unwrap();
                fs::write(next.join("b"), vec![b'x'; 500_000]).unwrap();
            },
            "left more than 900000 bytes",
        );
        check(
            |next| (0..65).for_each(|i| fs::write(next.join(format!("f{i}")), "x").unwrap()),
            "left more than 64 files",
        );
    }

    #[test]
    fn a_tmpfs_is_preferred() {
        let shown = |xdg, tmp| {
            let all = candidates(xdg, tmp).into_iter().map(|path| path.display().to_string());
            all.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(Some("/run/user/1"), None), "/run/user/1 /dev/shm /run/posse /tmp");
        assert_eq!(shown(Some("relative"), Some("/t")), "/dev/shm /run/posse /t /tmp");
    }
}
