//! `leftovers COMMAND...` runs it, and fails if it leaves anything behind.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().expect("usage: leftovers COMMAND...");
    posse_testing::leftovers::watch(Command::new(program).args(words))
}
