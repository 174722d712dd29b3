//! A temporary folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that is removed at the end of the test.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes an empty folder.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn new() -> Self {
        static N_MADE: AtomicUsize = AtomicUsize::new(0);
        let n = N_MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("posse-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder for temporary files is writable");
        Self(path)
    }

    /// Replaces a file atomically, as the kubelet does: a reader sees the old or the new content.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        let fresh = self.0.join(format!(".{name}.new"));
        std::fs::write(&fresh, content).expect("the file is writable");
        std::fs::rename(&fresh, &path).expect("the file can be replaced");
        path
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A remaining temporary folder does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
