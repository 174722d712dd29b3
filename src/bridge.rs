//! `posse bridge`, the end in the pod of what a `PodDialer` begins: it joins stdin and stdout with a connection to the run.

use std::io::{self, Write};

use crate::args::ClientArgs;
use crate::control_client::find_here;
use crate::exit::{Code, Failure};
use crate::world::World;

/// `posse bridge`.
///
/// # Errors
/// There is no such run here, or it does not answer.
pub fn bridge(args: &ClientArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    find_here(args, world)?.join(io::stdin(), out)?;
    Ok(Code::Clean)
}
