//! Tests of the binary that need no server: flags, messages, exit codes, and what README promises.

#[path = "support/pod_security.rs"]
#[allow(unreachable_pub, clippy::unwrap_used)]
mod pod_security;

mod cli {
    mod conventions;
    mod exec;
    mod folder;
    mod logs;
    mod map;
    mod no_file;
    mod promises;
    mod pty;
    mod readme;
    mod readme_commands;
    mod restricted;
    mod supported;
    mod terminal;
    mod usage;
    mod words;
}
