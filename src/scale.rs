//! `posse scale`: sets the target of a group.

use std::io::Write;

use crate::args::{ClientArgs, ScaleArgs};
use crate::control_client::find_run as find;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::world::World;
use posse_control::client::Client;
use posse_core::model::settings::ScaleDown;
use posse_wire::control::status_json::GroupJson;
use posse_wire::control::target_body;
use posse_wire::names;

/// `posse scale`.
///
/// # Errors
/// There is no such run or group, the group is not clear, or the run refuses.
pub fn scale(args: &ScaleArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let (client, named) = find_run(args, world)?;
    let group = named.map_or_else(|| only_group(&client), Ok)?;
    let target = match client.scale(&group, args.target) {
        Ok(target) => target,
        Err(error) if error.status() == Some(404) => return Err(no_such_group(&client, &group)),
        Err(error) => return Err(error.into()),
    };
    // What becomes of the executors that run. The target is set, so a failure here changes nothing.
    let status = client.status().ok();
    let now = status.and_then(|status| status.groups.into_iter().find(|one| one.group == group));
    print_listing(&ScaleReport { group, wanted: args.target, target, now }, args.output, out)
}

/// The run, and its group as far as it is named. A word in front of the target is a group; if the run has none of
/// this name, or no run is clear, it is an application.
fn find_run(args: &ScaleArgs, world: &World<'_>) -> Result<(Client, Option<String>), Failure> {
    let named = args.group.as_ref().or(args.group_flag.as_ref()).cloned();
    let find = |client: &ClientArgs| find(client, world).map(|run| run.client);
    let found = find(&args.client);
    let Some(word) = args.group.as_ref().filter(|_| args.client.app.is_none()) else {
        return Ok((found?, named));
    };
    let is_app = match &found {
        Ok(client) => {
            let status = client.status()?;
            status.identity.app == *word && status.groups.iter().all(|one| one.group != *word)
        }
        Err(_) => args.client.control.is_none() && names::app_name_error(word).is_none(),
    };
    if !is_app {
        return Ok((found?, named));
    }
    let client = ClientArgs { app: Some(word.clone()), ..args.client.clone() };
    let run = found.or_else(|error| find(&client).map_err(|_| error))?;
    Ok((run, None))
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

    fn json(&self) -> String {
        String::from_utf8_lossy(&target_body(self.target)).into_owned()
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
