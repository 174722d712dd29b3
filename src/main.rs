//! The `posse` program: runs the command line and exits with its code.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use posse::cli;
use posse::cli::world::World;

fn main() -> ExitCode {
    let env = |name: &str| std::env::var(name).ok();
    let is_terminal = std::io::stderr().is_terminal();
    let world = World { is_terminal, ..World::new(&env, Path::new("")) };
    cli::run(std::env::args_os(), &world, &mut std::io::stdout(), &mut std::io::stderr()).into()
}
