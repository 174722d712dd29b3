//! `posse events`: prints the events of a run.

use std::io::{self, Write};

use crate::cli::args::EventsArgs;
use crate::cli::control_client::find;
use crate::cli::exit::{Code, Failure};
use crate::cli::world::World;
use crate::control::client::ClientError;
use crate::core::model::text::printable_json;

/// `posse events`.
///
/// # Errors
/// There is no such run, the run refuses, or the connection ends before the run.
pub fn events(args: &EventsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let mut each =
        |line: &str| writeln!(out, "{}", printable_json(line)).and_then(|()| out.flush());
    let client = find(&args.client, world)?;
    let after = args.after.unwrap_or(0);
    match client.events(after, args.run.as_deref(), args.follow, &mut each) {
        Ok(()) => Ok(Code::Clean),
        // The reader has closed the pipe, as `head` does.
        Err(ClientError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(Code::Clean)
        }
        Err(error) => Err(error.into()),
    }
}
