//! `posse idle`: a driver's script says which executors have no work.

use std::collections::BTreeSet;
use std::io::Write;

use crate::args::IdleArgs;
use crate::control_client::{FoundRun, find_anywhere};
use crate::exit::{Code, Failure};
use crate::remote::Words;
use crate::world::World;
use posse_core::model::ids::ExecutorId;

/// `posse idle`. Exit code 1 if there is no executor of some id.
pub fn idle(args: &IdleArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let ids: BTreeSet<ExecutorId> = args.ids.iter().copied().map(ExecutorId).collect();
    let unknown = match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client.idle(&ids)?,
        FoundRun::InCluster(run) => return run.run(Words::new("idle").values(&args.ids), out),
    };
    if unknown.is_empty() {
        return Ok(Code::Clean);
    }
    let unknown: Vec<String> = unknown.iter().map(u64::to_string).collect();
    let message = format!("no such executor: {}; the others are noted", unknown.join(", "));
    Err(Failure::new(Code::Failed, message))
}
