//! Owns `posse copy`: an image without a shell has no `cp` to bring posse into a driver's pod with.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::cli::args::submit::CopyArgs;
use crate::cli::exit::{Code, Failure};

/// The running program, whatever it was started as.
const OURSELVES: &str = "/proc/self/exe";

/// `posse copy`.
///
/// # Errors
/// The folder cannot be written.
pub fn copy(args: &CopyArgs) -> Result<Code, Failure> {
    let target = args.dir.join("posse");
    write(&args.dir, &target).map(|()| Code::Clean).map_err(|error| {
        Failure::new(Code::Failed, format!("{}: cannot be written: {error}", target.display()))
    })
}

/// Under another name first: whoever starts it finds all of it or nothing.
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
        // The folder goes with its pod.
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::Folder;

    #[test]
    fn it_is_whole_and_can_be_run() {
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
