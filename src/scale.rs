//! `posse scale`: sets the target of a group.

use std::io::Write;

use serde_json::{Value, json};

use crate::args::ScaleArgs;
use crate::args::words::Word;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::world::World;
use posse_control::client::Client;
use posse_core::model::settings::{EXECUTORS_MAX, ScaleDown};
use posse_wire::control::status_json::GroupJson;

/// `posse scale`.
///
/// # Errors
/// There is no such run or group, the group is not clear, or the run refuses.
pub fn scale(args: &ScaleArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if let Some(Word::App(app, Some(id))) = args.words.first() {
        return Err(Failure::usage(format!(
            "{app}/{id} names an executor: write `posse scale {app} {id}` for a target of {id}"
        )));
    }
    let (named, wanted) = args.client.with_number(&args.words, "TARGET")?;
    let wanted = wanted.and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= EXECUTORS_MAX);
    let wanted = wanted.ok_or_else(|| {
        let what = "name the TARGET, a number of executors, at most";
        Failure::usage(format!("{what} {EXECUTORS_MAX}: `posse scale [APP] TARGET`"))
    })?;
    let client = find_run(&named, world).map_err(|failure| hinted(failure, args))?.client;
    let group = args.group.clone().map_or_else(|| only_group(&client), Ok)?;
    let target = match client.scale(&group, wanted) {
        Ok(target) => target,
        Err(error) if error.status() == Some(404) => return Err(no_such_group(&client, &group)),
        Err(error) => return Err(error.into()),
    };
    // What becomes of the executors that run. The target is set, so a failure here changes nothing.
    let status = client.status().ok();
    let now = status.and_then(|status| status.groups.into_iter().find(|one| one.group == group));
    print_listing(&ScaleReport { group, wanted, target, now }, args.output, out)
}

/// A word in front of the target was a group once.
fn hinted(mut failure: Failure, args: &ScaleArgs) -> Failure {
    if args.words.len() > 1 && failure.code == Code::Failed {
        failure.message.push_str("; a group is named by --group");
    }
    failure
}

/// What a call that set a target did.
struct ScaleReport {
    group: String,
    wanted: u32,
    target: u32,
    /// The group after the call.
    now: Option<GroupJson>,
}

impl Listing for ScaleReport {
    fn table(&self, _is_wide: bool) -> String {
        let Self { group, wanted, target, now } = self;
        let mut text = format!("group {group}: the target is {target} now");
        if target != wanted {
            text.push_str(&format!("; {wanted} is outside of its min and max"));
        }
        text.push('\n');
        let keeps = |one: &&GroupJson| one.scale_down == ScaleDown::Pending.as_str();
        if let Some(one) = now.as_ref().filter(keeps).filter(|one| one.running > *target) {
            text.push_str(&format!(
                "{} of its executors run, and posse ends none of them: with scale_down: pending \
                 the driver chooses which; `posse kill ID` ends one\n",
                one.running
            ));
        }
        text
    }

    fn json(&self) -> Value {
        json!({"target": self.target})
    }

    fn names(&self) -> Vec<String> {
        vec![self.group.clone()]
    }
}

fn no_such_group(client: &Client, group: &str) -> Failure {
    let groups = client.status().map(|status| status.groups).unwrap_or_default();
    let names: Vec<&str> = groups.iter().map(|one| one.group.as_str()).collect();
    let message = match names.as_slice() {
        [] => format!("there is no such group: {group}; the run has no group yet"),
        names => format!("there is no such group: {group}; the groups are: {}", names.join(", ")),
    };
    Failure::new(Code::Failed, message)
}

/// The name of the run's only group.
pub(super) fn only_group(client: &Client) -> Result<String, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::sample_status_json;
    use posse_wire::control::status_json::RunNames;

    #[test]
    fn scaling_says_why_nobody_is_ended() {
        let sample = sample_status_json(&RunNames::default()).groups[0].clone();
        let report = |scale_down: ScaleDown, wanted, target| {
            let scale_down = scale_down.as_str().to_owned();
            let now = Some(GroupJson { scale_down, target, running: 7, ..sample.clone() });
            ScaleReport { group: "g".into(), wanted, target, now }.table(false)
        };
        assert_eq!(report(ScaleDown::Any, 1, 1), "group g: the target is 1 now\n");
        assert_eq!(report(ScaleDown::Pending, 9, 9), "group g: the target is 9 now\n");
        assert_eq!(
            report(ScaleDown::Pending, 0, 2),
            "group g: the target is 2 now; 0 is outside of its min and max\n\
             7 of its executors run, and posse ends none of them: with scale_down: pending the \
             driver chooses which; `posse kill ID` ends one\n"
        );
    }
}
