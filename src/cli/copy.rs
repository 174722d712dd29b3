//! `posse copy`: copies this program into a folder of a driver's pod, because an image without a shell
//! has no `cp`.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::cli::args::submit::CopyArgs;
use crate::cli::exit::{Code, Failure};

/// The running program.
const OURSELVES: &str = "/proc/self/exe";

/// `posse copy`.
pub fn copy(args: &CopyArgs) -> Result<Code, Failure> {
    let target = args.dir.join("posse");
    write(&args.dir, &target).map(|()| Code::Clean).map_err(|error| {
        Failure::new(Code::Failed, format!("{}: cannot be written: {error}", target.display()))
    })
}

/// Writes to a temporary name first, so that nobody starts an incomplete file.
fn write(dir: &Path, target: &Path) -> io::Result<()> {
    let part = dir.join(format!(".posse.{}", std::process::id()));
    let written = (|| {
        let mut from = File::open(OURSELVES)?;
        let mut to = File::create(&part)?;
        io::copy(&mut from, &mut to)?;
        to.set_permissions(Permissions::from_mode(0o755))?;
        to.sync_all()?;
        fs::rename(&part, target)
    })();
    if written.is_err() {
        // The folder is deleted with its pod.
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::Folder;

    #[test]
    fn the_copy_is_complete_and_executable() {
        let folder = Folder::new(&[]);
        for _ in 0..2 {
            assert_eq!(copy(&CopyArgs { dir: folder.path().to_owned() }), Ok(Code::Clean));
        }
        let copied = folder.path().join("posse");
        assert_eq!(fs::read(&copied).unwrap(), fs::read(OURSELVES).unwrap());
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let nowhere = copy(&CopyArgs { dir: folder.path().join("none") }).unwrap_err();
        assert_eq!(nowhere.code, Code::Failed);
    }
}
