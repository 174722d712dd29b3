//! `posse ready`: a driver's script says that it accepts executors.

use crate::args::ReadyArgs;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::world::World;

/// `posse ready`.
pub fn ready(args: &ReadyArgs, world: &World<'_>) -> Result<Code, Failure> {
    find_run(&args.client.with_app(&args.words)?, world)?.client.ready()?;
    Ok(Code::Clean)
}
