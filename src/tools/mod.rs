//! The commands for a person's machine. The program for images lacks them.

use std::io::Write;

use crate::args::tools::Command;
use crate::exit::{Code, Failure};
use crate::world::World;

pub mod check;
pub mod completions;
pub mod init;
pub mod man;
#[cfg(target_os = "linux")]
pub mod map;
pub mod render;

/// Calls the command.
///
/// # Errors
/// As the command says.
pub fn run(command: Command, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    match command {
        #[cfg(target_os = "linux")]
        Command::Map(args) => map::map(&args, world),
        #[cfg(target_os = "linux")]
        Command::MapFeed(args) => map::feed(&args, world),
        Command::Render(args) if args.driver => render::driver(&args, world, out),
        Command::Render(args) => render::command(&args, world, out),
        Command::Check(args) => check::check(&args, world, out),
        Command::Init(args) => init::init(&args, world, out),
        Command::Completions(args) => completions::script(args.shell, out),
        Command::Man(args) => man::man(&args, world, out),
    }
}
