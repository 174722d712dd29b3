//! `posse copy`: copies this program into a folder of a driver's pod, because an image without a shell
//! has no `cp`.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::args::submit::CopyArgs;
use crate::exit::{Code, Failure};
use posse_base::files::Replacement;
use posse_process::this_program;

/// `posse copy`.
pub fn copy(args: &CopyArgs) -> Result<Code, Failure> {
    let target = args.dir.join("posse");
    write(&target).map(|()| Code::Clean).map_err(|error| {
        Failure::new(Code::Failed, format!("{}: cannot be written: {error}", target.display()))
    })
}

/// Nobody starts an incomplete file: it gets its name at the end.
fn write(target: &Path) -> io::Result<()> {
    let mut from = File::open(this_program()?)?;
    let mut to = Replacement::new(target)?;
    io::copy(&mut from, &mut to.file)?;
    to.finish(0o755)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::testing::Folder;

    #[test]
    fn the_copy_is_complete_and_executable() {
        let folder = Folder::new(&[]);
        for _ in 0..2 {
            assert_eq!(copy(&CopyArgs { dir: folder.path().to_owned() }), Ok(Code::Clean));
        }
        let copied = folder.path().join("posse");
        assert_eq!(fs::read(&copied).unwrap(), fs::read(this_program().unwrap()).unwrap());
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let nowhere = copy(&CopyArgs { dir: folder.path().join("none") }).unwrap_err();
        assert_eq!(nowhere.code, Code::Failed);
    }
}
