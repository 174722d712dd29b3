//! `posse ready`: a driver's script says that it accepts executors.

use crate::args::NamedArgs;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::world::World;

/// `posse ready`.
pub fn ready(args: &NamedArgs, world: &World<'_>) -> Result<Code, Failure> {
    find_run(&args.client()?, world)?.client.ready()?;
    Ok(Code::Clean)
}
