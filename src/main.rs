//! The `posse` program: runs the command line and exits with its code.

// The program offers nothing to other crates, so `pub` says which module may use an item.
#![allow(unreachable_pub)]

#[cfg(all(feature = "dev", not(target_os = "linux")))]
compile_error!("posse dev needs Linux: build with --no-default-features --features client");

mod apps;
mod args;
mod bridge;
mod cleanup;
mod command_line;
mod connection;
mod control_client;
mod copy;
#[cfg(feature = "dev")]
mod dev;
mod events;
mod exec;
mod exit;
mod explain;
mod follow;
mod idle;
mod kill;
mod listing;
mod location;
mod logger;
mod logs;
mod manifest;
mod namespace;
mod pod_dialer;
mod pod_files;
mod program;
mod progress;
mod ready;
mod required_permissions;
#[cfg(target_os = "linux")]
mod run;
mod scale;
mod settings;
mod shell_words;
mod shown_identity;
mod stage;
mod status;
mod stop;
mod submit;
mod table;
mod task;
mod task_values;
mod terminal;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(feature = "client")]
mod tools;
mod wait;
mod world;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crate::exit::Code;
use crate::world::World;

fn main() -> ExitCode {
    #[cfg(feature = "client")]
    tools::completions::answer_shell();
    // Passed over, it would lead a command to another cluster than the user named.
    if std::env::var_os("KUBECONFIG").is_some_and(|value| value.to_str().is_none()) {
        // Nobody reads it then.
        drop(writeln!(io::stderr(), "posse: KUBECONFIG is not UTF-8: change it, or unset it"));
        return Code::Usage.into();
    }
    let env = |name: &str| std::env::var(name).ok();
    let is_terminal = io::stderr().is_terminal();
    let world = World { is_terminal, ..World::new(&env, Path::new("")) };
    program::run(std::env::args_os(), &world, &mut io::stdout(), &mut io::stderr()).into()
}
