//! Helpers for the tests of the command line: a temporary folder, in which posse is run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::cli::run;
use crate::cli::world::World;

/// A temporary folder, deleted at the end of the test.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// A new folder with these files.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("posse-cli-{}-{n}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let folder = Self(path);
        for (name, text) in files {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        folder
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs posse in this folder: its exit code, stdout and stderr.
    pub(super) fn posse(&self, args: &str) -> (u8, String, String) {
        self.posse_with(args, &[])
    }

    /// As `posse`, with only these environment variables.
    pub(super) fn posse_with(&self, args: &str, env: &[(&str, &str)]) -> (u8, String, String) {
        let args = std::iter::once("posse").chain(args.split_whitespace()).map(OsString::from);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let lookup = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let lease_watch = Duration::ZERO;
        let world = World { lease_watch, ..World::new(&lookup, self.path()) };
        let code = run(args, &world, &mut out, &mut err).number();
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A remaining temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
