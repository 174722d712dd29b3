//! `posse ready`: a driver's script says that it accepts executors.

use std::io::Write;

use crate::args::ReadyArgs;
use crate::control_client::{FoundRun, find_anywhere};
use crate::exit::{Code, Failure};
use crate::remote::Words;
use crate::world::World;

/// `posse ready`.
pub fn ready(args: &ReadyArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client.ready()?,
        FoundRun::InCluster(run) => return run.run(Words::new("ready"), out),
    }
    Ok(Code::Clean)
}
