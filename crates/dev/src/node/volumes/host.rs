//! Checks the type of hostPath volumes. Errors are worded as the kubelet words them.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Checks that a path on this machine is of the volume's type, and creates it if the type says so.
pub(super) fn check(path: &Path, kind: &str) -> Result<(), String> {
    let metadata = fs::metadata(path);
    let missing = metadata.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let shown = path.display();
    let describe = |error: io::Error| format!("hostPath type check failed: {shown}: {error}");
    if missing {
        match kind {
            // Without a type, the container runtime creates the folder.
            "" | "DirectoryOrCreate" => return fs::create_dir_all(path).map_err(describe),
            "FileOrCreate" => {
                let mode = fs::Permissions::from_mode(0o644);
                let created = fs::File::create(path).and_then(|file| file.set_permissions(mode));
                return created.map_err(describe);
            }
            _ => {}
        }
    }
    let is = |test: fn(&fs::FileType) -> bool| {
        metadata.as_ref().is_ok_and(|metadata| test(&metadata.file_type()))
    };
    let (fits, word) = match kind {
        "" => (true, ""),
        "Directory" | "DirectoryOrCreate" => (is(fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(fs::FileType::is_file), "file"),
        "Socket" => (is(FileTypeExt::is_socket), "socket file"),
        "CharDevice" => (is(FileTypeExt::is_char_device), "character device"),
        "BlockDevice" => (is(FileTypeExt::is_block_device), "block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    if fits { Ok(()) } else { Err(format!("hostPath type check failed: {shown} is not a {word}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_must_have_the_type_of_its_volume() {
        let folder = std::env::temp_dir().join(format!("posse-host-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("file"), "").unwrap();
        let failed = |name: &str, word: &str| {
            let path = folder.join(name);
            Err(format!("hostPath type check failed: {} is not a {word}", path.display()))
        };
        for (name, kind, want) in [
            ("", "Directory", Ok(())),
            ("file", "File", Ok(())),
            ("file", "", Ok(())),
            ("file", "Directory", failed("file", "directory")),
            ("", "File", failed("", "file")),
            ("no", "Directory", failed("no", "directory")),
            ("no", "File", failed("no", "file")),
            ("no", "Socket", failed("no", "socket file")),
            ("file", "BlockDevice", failed("file", "block device")),
            ("new/folder", "DirectoryOrCreate", Ok(())),
            ("new/file", "FileOrCreate", Ok(())),
            ("some", "", Ok(())),
        ] {
            assert_eq!(check(&folder.join(name), kind), want, "{name:?} {kind}");
        }
        assert_eq!(check(Path::new("/dev/null"), "CharDevice"), Ok(()));
        assert!(folder.join("new/folder").is_dir() && folder.join("some").is_dir());
        assert!(folder.join("new/file").is_file());
        fs::remove_dir_all(&folder).unwrap();
    }
}
