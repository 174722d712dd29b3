//! `posse scale`: sets the target of a group.

use std::io::Write;

use crate::cli::args::ScaleArgs;
use crate::cli::control_client::{FoundRun, find_anywhere};
use crate::cli::exit::{Code, Failure};
use crate::cli::remote::Words;
use crate::cli::terminal::print;
use crate::cli::world::World;
use crate::control::client::Client;
use crate::wire::control::target_body;

/// `posse scale`.
///
/// # Errors
/// There is no such run or group, the group is not clear, or the run refuses.
pub fn scale(args: &ScaleArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let named = args.group.as_ref().or(args.group_flag.as_ref());
    let client = match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client,
        FoundRun::InCluster(run) => {
            let words = Words::new("scale").flag("--json", args.json).option("--group", named);
            return run.run(words.values([args.target]), out);
        }
    };
    let group = match named {
        Some(group) => group.clone(),
        None => only_group(&client)?,
    };
    let target = client.scale(&group, args.target)?;
    let text = match target == args.target {
        _ if args.json => String::from_utf8_lossy(&target_body(target)).into_owned() + "\n",
        true => format!("group {group}: the target is {target} now\n"),
        false => format!(
            "group {group}: the target is {target} now; {} is outside of its min and max\n",
            args.target
        ),
    };
    print(out, &text).map(|()| Code::Clean)
}

fn only_group(client: &Client) -> Result<String, Failure> {
    let groups = client.status()?.groups;
    let names: Vec<&str> = groups.iter().map(|group| group.group.as_str()).collect();
    match names.as_slice() {
        [name] => Ok((*name).to_owned()),
        [] => Err(Failure::new(Code::Failed, "the run has no group yet")),
        several => {
            let several = several.join(", ");
            Err(Failure::usage(format!("which group? the run has several: {several}")))
        }
    }
}
