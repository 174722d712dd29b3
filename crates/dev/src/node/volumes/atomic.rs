//! Atomic updates of a volume's files, as the kubelet's AtomicWriter does them: each version is a
//! folder, `..data` links to the current one, and the visible names link through `..data`.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use super::content::Files;

const DATA: &str = "..data";
const DATA_NEXT: &str = "..data_tmp";

/// Makes a volume hold exactly these files. `stamp` becomes part of the version folder's name.
pub(super) fn write(volume: &Path, files: &Files, stamp: &str) -> io::Result<()> {
    if let Some(path) = files.keys().find(|path| !is_inside(path)) {
        let message = format!("invalid path {path:?}: it does not stay in the volume");
        return Err(io::Error::other(message));
    }
    let data = volume.join(DATA);
    let before = fs::read_link(&data).ok();
    if before.is_some() && has_same_files(&data, files) {
        return Ok(());
    }
    let name = free_name(volume, stamp);
    let version = volume.join(&name);
    // Not recursive: a deleted volume must not come back.
    fs::DirBuilder::new().mode(0o755).create(&version)?;
    fs::set_permissions(&version, fs::Permissions::from_mode(0o755))?;
    for (path, file) in files {
        let path = version.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, &file.bytes)?;
        // Independent of the umask.
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    let data_next = volume.join(DATA_NEXT);
    // A write that failed may have left the link behind.
    let _ = fs::remove_file(&data_next);
    symlink(&name, &data_next)?;
    fs::rename(&data_next, &data)?;
    let wanted = top_names(files);
    for name in &wanted {
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link)?;
        }
    }
    for entry in fs::read_dir(volume)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_internal = name.to_string_lossy().starts_with("..");
        let is_link = entry.file_type()?.is_symlink();
        if !is_internal && is_link && !wanted.iter().any(|wanted| **wanted == *name) {
            fs::remove_file(entry.path())?;
        }
    }
    match before {
        Some(before) => fs::remove_dir_all(volume.join(before)),
        None => Ok(()),
    }
}

fn is_inside(path: &str) -> bool {
    let normal = |component| matches!(component, Component::Normal(_));
    !path.is_empty() && !path.starts_with("..") && Path::new(path).components().all(normal)
}

/// The first name of each path, without duplicates.
fn top_names(files: &Files) -> Vec<&str> {
    let mut names: Vec<&str> =
        files.keys().filter_map(|path| path.split('/').find(|name| !name.is_empty())).collect();
    names.dedup();
    names
}

fn free_name(volume: &Path, stamp: &str) -> PathBuf {
    let names = (0_u64..).map(|n| PathBuf::from(format!("..{stamp}.{n:09}")));
    let mut free = names.filter(|name| fs::symlink_metadata(volume.join(name)).is_err());
    free.next().unwrap_or_default()
}

/// True if the folder holds exactly these files.
fn has_same_files(folder: &Path, files: &Files) -> bool {
    let same = |path: &String, file: &super::content::File| {
        let path = folder.join(path);
        fs::metadata(&path).is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == file.mode)
            && fs::read(&path).is_ok_and(|bytes| bytes == file.bytes)
    };
    files.iter().all(|(path, file)| same(path, file)) && count_files(folder, 0) == Some(files.len())
}

/// The number of files in a folder and its subfolders. `None` if they cannot be read.
fn count_files(folder: &Path, depth: usize) -> Option<usize> {
    const DEPTH_MAX: usize = 64;
    let mut n_files = 0;
    for entry in fs::read_dir(folder).ok().filter(|_| depth < DEPTH_MAX)? {
        let entry = entry.ok()?;
        n_files += match entry.file_type().ok()?.is_dir() {
            true => count_files(&entry.path(), depth + 1)?,
            false => 1,
        };
    }
    Some(n_files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::volumes::content::File;

    fn files(list: &[(&str, &str)]) -> Files {
        let file = |text: &str| File { bytes: text.as_bytes().to_vec(), mode: 0o640 };
        list.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
    }

    fn names(volume: &Path) -> Vec<String> {
        let entries = fs::read_dir(volume).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_volume_changes_atomically_and_only_if_its_files_differ() {
        let volume = std::env::temp_dir().join(format!("posse-atomic-{}", std::process::id()));
        fs::create_dir_all(&volume).unwrap();
        write(&volume, &files(&[("a", "1"), ("d/x", "2"), ("d/y", "3")]), "then").unwrap();
        assert_eq!(names(&volume), ["..data", "..then.000000000", "a", "d"]);
        assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(fs::read_to_string(volume.join("d/y")).unwrap(), "3");
        let mode = fs::metadata(volume.join("d/x")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        write(&volume, &files(&[("a", "1"), ("d/x", "2"), ("d/y", "3")]), "same").unwrap();
        assert_eq!(fs::read_link(volume.join("..data")).unwrap(), Path::new("..then.000000000"));
        write(&volume, &files(&[("a", "1"), ("e", "2")]), "then").unwrap();
        assert_eq!(names(&volume), ["..data", "..then.000000001", "a", "e"]);
        write(&volume, &files(&[("a", "1")]), "later").unwrap();
        assert_eq!(names(&volume), ["..data", "..later.000000000", "a"]);
        for path in ["", "../x", "/x", "a/../../x", "..x"] {
            assert!(write(&volume, &files(&[(path, "1")]), "bad").is_err(), "{path:?}");
        }
        fs::remove_dir_all(&volume).unwrap();
        assert!(write(&volume, &files(&[("a", "1")]), "gone").is_err());
    }
}
