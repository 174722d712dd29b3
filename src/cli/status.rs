//! `posse status`: prints the status of a run.

use std::io::Write;

use crate::cli::args::StatusArgs;
use crate::cli::control_client::find;
use crate::cli::exit::{Code, Failure};
use crate::cli::world::{World, print};
use crate::control::table::status_table;

/// `posse status`.
pub fn status(args: &StatusArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let status = find(&args.client, world)?.status()?;
    let text = match args.json {
        true => String::from_utf8_lossy(&status.to_bytes()).into_owned() + "\n",
        false => status_table(&status),
    };
    print(out, &text).map(|()| Code::Clean)
}
