//! The `posse` program: runs the command line and exits with its code.

use std::path::Path;
use std::process::ExitCode;

use posse::cli;
use posse::cli::world::World;

fn main() -> ExitCode {
    let env = |name: &str| std::env::var(name).ok();
    let world = World::new(&env, Path::new(""));
    cli::run(std::env::args_os(), &world, &mut std::io::stdout(), &mut std::io::stderr()).into()
}
