//! `posse kill`: ends executors by their ids.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::{Value, json};

use crate::args::KillArgs;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::world::World;
use posse_control::client::Client;
use posse_core::model::command::AfterKill;
use posse_core::model::ids::ExecutorId;
use posse_wire::control::Killed;

/// `posse kill`.
pub fn kill(args: &KillArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let (named, ids) = args.client.with_words(&args.words)?;
    if ids.is_empty() {
        return Err(Failure::usage("name the executors by their ids: `posse kill [APP] ID...`"));
    }
    let after = match args.target {
        Some(target) => AfterKill::Target(target),
        None if args.no_replace => AfterKill::Lower,
        None => AfterKill::Replace,
    };
    let client = find_run(&named, world)?.client;
    if args.target.is_some() {
        all_are_there(&client, &ids)?;
    }
    let ids: BTreeSet<ExecutorId> = ids.into_iter().map(ExecutorId).collect();
    let killed = client.kill(&ids, after, args.force, args.reason.as_deref())?;
    let listing = KillReport { killed, after };
    print_listing(&listing, args.output, out)?;
    // Somebody meant other executors than these.
    Ok(if listing.killed.unknown.is_empty() { Code::Clean } else { Code::Failed })
}

/// With --target, posse would end another executor in place of one that is gone.
fn all_are_there(client: &Client, ids: &[u64]) -> Result<(), Failure> {
    let known: BTreeSet<u64> = client.status()?.executors.iter().map(|one| one.id).collect();
    let missing: Vec<u64> = ids.iter().copied().filter(|id| !known.contains(id)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(
            Code::Failed,
            format!(
                "no such executor: {}; nothing was killed and the target was not changed (`posse \
                 scale` sets the target alone)",
                joined(&missing)
            ),
        )),
    }
}

/// What a kill call did.
struct KillReport {
    killed: Killed,
    after: AfterKill,
}

impl Listing for KillReport {
    fn table(&self, _is_wide: bool) -> String {
        let Killed { killed, busy, unknown, target } = &self.killed;
        let mut text = String::new();
        let mut line = |what: &str, ids: &[u64], then: &str| {
            if !ids.is_empty() {
                text.push_str(&format!("{what}: {}{then}\n", joined(ids)));
            }
        };
        let replaced = match self.after {
            AfterKill::Replace => " (posse replaces them)",
            AfterKill::Lower | AfterKill::Target(_) => "",
        };
        line("killed", killed, replaced);
        line("busy, not killed (use --force)", busy, "");
        line("no such executor", unknown, "");
        if text.is_empty() {
            text.push_str("nothing to kill: they have ended or are terminating already\n");
        }
        match (self.after, target) {
            (AfterKill::Target(wanted), Some(target)) if wanted != *target => {
                text.push_str(&format!(
                    "the target is {target} now; {wanted} is outside of its min and max\n"
                ));
            }
            (AfterKill::Target(_) | AfterKill::Lower, Some(target)) => {
                text.push_str(&format!("the target is {target} now\n"));
            }
            (AfterKill::Target(_) | AfterKill::Lower, None) | (AfterKill::Replace, _) => {}
        }
        text
    }

    fn json(&self) -> Value {
        json!(self.killed)
    }

    fn names(&self) -> Vec<String> {
        self.killed.killed.iter().map(u64::to_string).collect()
    }
}

fn joined(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_says_what_it_did() {
        let killed =
            Killed { killed: vec![2, 5], busy: vec![7], unknown: vec![99], target: Some(3) };
        let only = |killed: &[u64]| Killed { killed: killed.to_vec(), ..Killed::default() };
        for (killed, after, want) in [
            (
                killed.clone(),
                AfterKill::Replace,
                "killed: 2, 5 (posse replaces them)\nbusy, not killed (use --force): 7\n\
                 no such executor: 99\n",
            ),
            (
                Killed { busy: vec![], unknown: vec![], ..killed.clone() },
                AfterKill::Lower,
                "killed: 2, 5\nthe target is 3 now\n",
            ),
            (
                Killed { target: Some(1), ..only(&[2]) },
                AfterKill::Target(0),
                "killed: 2\nthe target is 1 now; 0 is outside of its min and max\n",
            ),
            (
                only(&[]),
                AfterKill::Replace,
                "nothing to kill: they have ended or are terminating already\n",
            ),
        ] {
            assert_eq!(KillReport { killed, after }.table(false), want);
        }
    }
}
