//! `posse bridge`, the end in the pod of what a `PodDialer` begins: it joins stdin and stdout with a connection to the run.

use std::io::{self, Write};

use crate::args::ClientArgs;
use crate::control_client::find_here;
use crate::exit::{Code, Failure};
use crate::world::World;
use posse_control::client::ClientError;

/// `posse bridge`.
///
/// # Errors
/// There is no such run here, or it does not answer.
pub fn bridge(args: &ClientArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = find_here(args, world).map_err(|error| {
        match matches!(error, ClientError::None { .. }) {
            // Whoever asks has found this pod already: no flag of theirs leads elsewhere.
            true => Failure::new(Code::Failed, "its run does not answer yet"),
            false => error.into(),
        }
    })?;
    client.join(io::stdin(), out)?;
    Ok(Code::Clean)
}
