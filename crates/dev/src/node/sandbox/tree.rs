//! The container's root file system: a bind mount of this machine's root with the volumes mounted
//! in it. Missing mount points are created without changing any file of the machine.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, mount, mount_bind_recursive, mount_move, mount_remount};

use super::Mount;

/// The kernel's limit of symlinks in a path (MAXSYMLINKS).
const LINKS_MAX: usize = 40;
/// The most entries of a folder that `mirror` copies. Each entry is a mount.
const ENTRIES_MAX: usize = 10_000;

/// The container's root file system, mounted at `root`.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// An empty folder in which a mirrored folder is built.
    scratch: PathBuf,
    /// Folders that exist only in this tree, so files can be created in them.
    private: BTreeSet<PathBuf>,
    /// Mount points of writable volumes.
    volumes: Vec<PathBuf>,
}

impl Tree {
    pub(super) fn new(root: &Path, scratch: &Path) -> Result<Self, String> {
        // Recursive, because a user namespace may not split mounts that it inherited as a unit.
        mount_bind_recursive("/", root).map_err(|error| failed("/", root, &error.into()))?;
        let (root, scratch) = (root.to_owned(), scratch.to_owned());
        Ok(Self { root, scratch, private: BTreeSet::new(), volumes: Vec::new() })
    }

    /// Mounts one folder or file at its target.
    pub(super) fn add(&mut self, wanted: &Mount) -> Result<(), String> {
        let source = wanted.source.display().to_string();
        let describe = |error: io::Error| failed(&source, Path::new(&wanted.target), &error);
        let is_folder = fs::metadata(&wanted.source).map_err(describe)?.is_dir();
        let mount_point = self.mount_point(&wanted.target, is_folder).map_err(describe)?;
        mount_bind_recursive(&wanted.source, &mount_point)
            .map_err(|error| describe(error.into()))?;
        if wanted.read_only {
            make_read_only(&mount_point).map_err(|error| describe(error.into()))?;
        } else {
            self.volumes.push(mount_point);
        }
        Ok(())
    }

    /// Resolves `target` and creates it if it is missing.
    fn mount_point(&mut self, target: &str, is_folder: bool) -> io::Result<PathBuf> {
        let (mut at, missing) = resolve(&self.root, target)?;
        if at == self.root && missing.is_empty() {
            return Err(io::Error::other("a volume cannot be mounted at the root"));
        }
        let Some(last) = missing.len().checked_sub(1) else {
            return match fs::metadata(&at)?.is_dir() == is_folder {
                true => Ok(at),
                false => Err(io::Error::other(
                    "not a directory: unknown: Are you trying to mount a directory onto a file \
                     (or vice-versa)? Check if the specified host path exists and is the expected \
                     type",
                )),
            };
        };
        let in_volume = self.volumes.iter().any(|volume| at.starts_with(volume));
        if !in_volume && !self.private.contains(&at) {
            self.mirror(&at)?;
        }
        for (i, name) in missing.into_iter().enumerate() {
            at.push(name);
            if i == last && !is_folder {
                fs::File::create_new(&at)?;
            } else {
                fs::create_dir(&at)?;
                if !in_volume {
                    self.private.insert(at.clone());
                }
            }
        }
        Ok(at)
    }

    /// Mounts a tmpfs with the same entries over a folder, so that new entries can be created in
    /// it.
    fn mirror(&mut self, folder: &Path) -> io::Result<()> {
        let permissions = fs::metadata(folder)?.permissions();
        mount("tmpfs", &self.scratch, "tmpfs", MountFlags::empty(), None)?;
        let entries = fs::read_dir(folder)?.take(ENTRIES_MAX + 1);
        let entries: Vec<fs::DirEntry> = entries.collect::<io::Result<_>>()?;
        if entries.len() > ENTRIES_MAX {
            let message = "the mount point does not exist, and its folder has too many entries";
            return Err(io::Error::other(message));
        }
        for entry in entries {
            let copy = self.scratch.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(entry.path())?, &copy)?;
                continue;
            } else if kind.is_dir() {
                fs::create_dir(&copy)?;
            } else {
                fs::File::create_new(&copy)?;
            }
            match mount_bind_recursive(entry.path(), &copy) {
                // The entry was deleted meanwhile.
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fs::set_permissions(&self.scratch, fs::Permissions::from_mode(permissions.mode()))?;
        mount_move(&self.scratch, folder)?;
        self.private.insert(folder.to_owned());
        Ok(())
    }
}

/// Resolves a path as a process with the root `root` would, symlinks included. Returns the part
/// that exists and the names that are missing after it.
fn resolve(root: &Path, target: &str) -> io::Result<(PathBuf, Vec<OsString>)> {
    let mut at = root.to_owned();
    let mut missing: Vec<OsString> = Vec::new();
    // A stack: the next name is at the end.
    let mut names: Vec<OsString> = names_reversed(Path::new(target));
    let mut n_links = 0;
    while let Some(name) = names.pop() {
        if name == ".." {
            if missing.pop().is_none() && at != root {
                at.pop();
            }
            continue;
        }
        if !missing.is_empty() {
            missing.push(name);
            continue;
        }
        let next = at.join(&name);
        let kind = match fs::symlink_metadata(&next) {
            Ok(metadata) => metadata.file_type(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(name);
                continue;
            }
            Err(error) => return Err(error),
        };
        if kind.is_symlink() {
            n_links += 1;
            if n_links > LINKS_MAX {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let to = fs::read_link(&next)?;
            if to.is_absolute() {
                root.clone_into(&mut at);
            }
            names.extend(names_reversed(&to));
        } else if kind.is_dir() || names.is_empty() {
            at = next;
        } else {
            return Err(rustix::io::Errno::NOTDIR.into());
        }
    }
    Ok((at, missing))
}

fn names_reversed(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(_) | Component::ParentDir => {
                names.push(component.as_os_str().to_owned());
            }
            Component::CurDir | Component::Prefix(_) | Component::RootDir => {}
        }
    }
    names.reverse();
    names
}

/// Remounts read-only. The other flags must stay, because a user namespace may not clear them.
fn make_read_only(mount_point: &Path) -> rustix::io::Result<()> {
    let present = rustix::fs::statvfs(mount_point)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (present_flag, mount_flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if present.contains(present_flag) {
            flags |= mount_flag;
        }
    }
    mount_remount(mount_point, flags, "")
}

/// The message of runc for a failed mount.
fn failed(source: &str, target: &Path, error: &io::Error) -> String {
    format!("error mounting {source:?} to rootfs at {:?}: {error}", target.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_below_the_root() {
        let root = std::env::temp_dir().join(format!("posse-tree-{}", std::process::id()));
        fs::create_dir_all(root.join("run/here")).unwrap();
        fs::create_dir_all(root.join("var")).unwrap();
        fs::write(root.join("run/file"), "").unwrap();
        for (link, to) in
            [("var/run", "/run"), ("var/up", "../../../../run"), ("loop", "loop"), ("no", "gone/x")]
        {
            std::os::unix::fs::symlink(to, root.join(link)).unwrap();
        }
        for (target, exists, missing) in [
            ("/", "", &[][..]),
            ("/run/here", "run/here", &[]),
            ("run//./here/", "run/here", &[]),
            ("/run/file", "run/file", &[]),
            ("/var/run/here", "run/here", &[]),
            ("/var/run/secrets/x", "run", &["secrets", "x"]),
            ("/var/up/a", "run", &["a"]),
            ("/../../run/a/../b", "run", &["b"]),
            ("/no/more", "", &["gone", "x", "more"]),
        ] {
            let found = resolve(&root, target).unwrap();
            let missing: Vec<OsString> = missing.iter().map(OsString::from).collect();
            let exists = if exists.is_empty() { root.clone() } else { root.join(exists) };
            assert_eq!(found, (exists, missing), "{target}");
        }
        for target in ["/loop", "/run/file/x"] {
            assert!(resolve(&root, target).is_err(), "{target}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
