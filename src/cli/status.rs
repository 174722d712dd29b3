//! `posse status`: prints the status of a run.

use std::io::Write;

use crate::cli::args::StatusArgs;
use crate::cli::control_client::{FoundRun, find_anywhere};
use crate::cli::exit::{Code, Failure};
use crate::cli::remote::Words;
use crate::cli::terminal::{print, print_json};
use crate::cli::world::World;
use crate::control::table::status_table;

/// `posse status`.
pub fn status(args: &StatusArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client,
        FoundRun::InCluster(run) => {
            return run.run(Words::new("status").flag("--json", args.json), out);
        }
    };
    let status = client.status()?;
    match args.json {
        true => print_json(out, &(status.to_json() + "\n")),
        false => print(out, &status_table(&status)),
    }
    .map(|()| Code::Clean)
}
