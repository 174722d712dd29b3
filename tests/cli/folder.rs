//! The binary in a folder of its own.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use posse_testing::program;

/// A program in this folder, with an environment that does not depend on this machine.
pub(super) fn command(name: &str, folder: &Path, args: &[&str]) -> Command {
    let mut command = program(name);
    command.args(args).current_dir(folder).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    for name in ["HOME", "XDG_RUNTIME_DIR", "TMPDIR"] {
        command.env(name, folder);
    }
    command
}

pub(super) fn posse(folder: &Path, args: &[&str]) -> Command {
    command(env!("CARGO_BIN_EXE_posse"), folder, args)
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
