//! `posse status`: prints the status of a run.

use std::io::Write;

use crate::cli::args::StatusArgs;
use crate::cli::control_client::find;
use crate::cli::exit::{Code, Failure};
use crate::cli::terminal::{print, print_json};
use crate::cli::world::World;
use crate::control::table::status_table;

/// `posse status`.
pub fn status(args: &StatusArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let status = find(&args.client, world)?.status()?;
    match args.json {
        true => print_json(out, &(String::from_utf8_lossy(&status.to_bytes()) + "\n")),
        false => print(out, &status_table(&status)),
    }
    .map(|()| Code::Clean)
}
