//! `posse kill`: ends executors by their ids.

use std::collections::BTreeSet;
use std::io::Write;

use crate::cli::args::KillArgs;
use crate::cli::control_client::{FoundRun, find_anywhere};
use crate::cli::exit::{Code, Failure};
use crate::cli::remote::Words;
use crate::cli::terminal::print;
use crate::cli::world::World;
use crate::core::model::command::AfterKill;
use crate::core::model::ids::ExecutorId;
use crate::wire::control::Killed;

/// `posse kill`.
pub fn kill(args: &KillArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let ids: BTreeSet<ExecutorId> = args.ids.iter().copied().map(ExecutorId).collect();
    let after = match args.target {
        Some(target) => AfterKill::Target(target),
        None if args.no_replace => AfterKill::Lower,
        None => AfterKill::Replace,
    };
    let client = match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client,
        FoundRun::InCluster(run) => {
            let words = Words::new("kill")
                .flag("--no-replace", args.no_replace)
                .flag("--force", args.force)
                .flag("--json", args.json)
                .option("--target", args.target)
                .option("--reason", args.reason.as_ref());
            return run.run(words.values(&args.ids), out);
        }
    };
    let killed = client.kill(&ids, after, args.force, args.reason.as_deref())?;
    let text = if args.json { killed.to_json() + "\n" } else { kill_text(&killed) };
    print(out, &text)?;
    // Somebody meant other executors than these.
    Ok(if killed.unknown.is_empty() { Code::Clean } else { Code::Failed })
}

fn kill_text(killed: &Killed) -> String {
    let mut text = String::new();
    for (ids, what) in [
        (&killed.killed, "killed"),
        (&killed.busy, "busy, not killed (use --force)"),
        (&killed.unknown, "no such executor"),
    ] {
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            text.push_str(&format!("{what}: {}\n", ids.join(", ")));
        }
    }
    if text.is_empty() {
        text.push_str("nothing to kill: all of them are terminating already\n");
    }
    if let Some(target) = killed.target {
        text.push_str(&format!("the target is {target} now\n"));
    }
    text
}
