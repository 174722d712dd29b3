//! `posse idle`: a driver's script says which executors have no work.

use std::collections::BTreeSet;

use crate::args::IdleArgs;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::world::World;
use posse_core::model::ids::ExecutorId;

/// `posse idle`. Exit code 1 if there is no executor of some id.
pub fn idle(args: &IdleArgs, world: &World<'_>) -> Result<Code, Failure> {
    let (client, ids) = args.client.with_words(&args.words)?;
    let ids: BTreeSet<ExecutorId> = ids.into_iter().map(ExecutorId).collect();
    let unknown = find_run(&client, world)?.client.idle(&ids)?;
    if unknown.is_empty() {
        return Ok(Code::Clean);
    }
    let unknown: Vec<String> = unknown.iter().map(u64::to_string).collect();
    let message = format!("no such executor: {}; the others are noted", unknown.join(", "));
    Err(Failure::new(Code::Failed, message))
}
