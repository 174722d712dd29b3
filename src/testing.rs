//! Helpers for the tests of the command line: a temporary folder, in which posse is run.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::program::run;
use crate::world::World;

/// A stdout that takes nothing.
pub(super) struct Broken(pub(super) io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A temporary folder with files, in which posse is run.
pub(super) struct Folder(posse_testing::Folder);

impl Folder {
    /// A new folder with these files.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let folder = posse_testing::Folder::new();
        for (name, text) in files {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        Self(folder)
    }

    /// A new folder with the kubeconfig `k` of this server.
    pub(super) fn with_server(address: SocketAddr) -> Self {
        let kubeconfig = format!(
            "{{current-context: c, contexts: [{{name: c, context: {{cluster: c}}}}], \
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]}}"
        );
        Self::new(&[("k", &kubeconfig)])
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs posse in this folder: its exit code, stdout and stderr.
    pub(super) fn posse(&self, args: &str) -> (u8, String, String) {
        self.posse_with(args, &[])
    }

    /// As `posse`, with only these environment variables.
    pub(super) fn posse_with(&self, args: &str, env: &[(&str, &str)]) -> (u8, String, String) {
        let mut out = Vec::new();
        let (code, err) = self.posse_to(args, env, &mut out);
        (code, String::from_utf8(out).unwrap(), err)
    }

    /// As `posse_with`, with this stdout.
    pub(super) fn posse_to(
        &self,
        args: &str,
        env: &[(&str, &str)],
        out: &mut dyn Write,
    ) -> (u8, String) {
        let args = std::iter::once("posse").chain(args.split_whitespace()).map(OsString::from);
        let mut err = Vec::new();
        let lookup = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let lease_watch = Duration::ZERO;
        let world = World { lease_watch, ..World::new(&lookup, self.path()) };
        let code = run(args, &world, out, &mut err).number();
        (code, String::from_utf8(err).unwrap())
    }
}
