//! `posse status`: prints the status of a run.

use std::io::Write;

use jiff::Timestamp;

use crate::cli::args::StatusArgs;
use crate::cli::control_client::{FoundRun, find_anywhere};
use crate::cli::exit::{Code, Failure};
use crate::cli::remote::Words;
use crate::cli::table::table;
use crate::cli::terminal::{print, print_json};
use crate::cli::world::World;
use crate::core::loss::MESSAGE_BYTES_MAX;
use crate::core::model::text::{one_line, sanitize};
use crate::submit::apps::age;
use crate::wire::status_json::{ExecutorJson, GroupJson, StatusJson};

/// `posse status`.
pub fn status(args: &StatusArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = match find_anywhere(&args.client, world)? {
        FoundRun::Here(client) => client,
        FoundRun::InCluster(run) => {
            return run.run(Words::new("status").flag("--json", args.json), out);
        }
    };
    let status = client.status()?;
    match args.json {
        true => print_json(out, &(status.to_json() + "\n")),
        false => print(out, &status_text(&status, Timestamp::now())),
    }
    .map(|()| Code::Clean)
}

/// The status as text for a terminal.
fn status_text(status: &StatusJson, now: Timestamp) -> String {
    let identity = &status.identity;
    let mut text = format!(
        "app {}  instance {}  namespace {}",
        identity.app, identity.instance, identity.namespace
    );
    // All pods of a run have names that differ only in the id.
    let first = status.executors.first();
    if let Some(prefix) = first.and_then(|one| one.pod.strip_suffix(&one.id.to_string())) {
        text.push_str(&format!("  pods {prefix}ID"));
    }
    text = one_line(&text).into_owned() + "\n\n";
    let groups = status.groups.iter().map(|group| group_row(group, now));
    text.push_str(&table(&GROUP_HEADS.map(str::to_owned), groups.collect()));
    if let Some(outage) = &status.outage {
        let message = sanitize(&outage.message, MESSAGE_BYTES_MAX);
        let age = age_of(&outage.since, now);
        text.push_str(&format!("\nno answer from the API server for {age}: {message}\n"));
    }
    if !status.executors.is_empty() {
        text.push('\n');
        let executors = status.executors.iter().map(|one| executor_row(one, now));
        text.push_str(&table(&EXECUTOR_HEADS.map(str::to_owned), executors.collect()));
    }
    text
}

/// The time from one moment to another; the moment itself if it is no time.
fn age_of(since: &str, now: Timestamp) -> String {
    let since: Result<Timestamp, _> = since.parse();
    since.map_or_else(|_| "?".to_owned(), |since| age(now.as_second() - since.as_second()))
}

const GROUP_HEADS: [&str; 7] =
    ["GROUP", "TARGET", "RUNNING", "STARTING", "ENDING", "FAILED", "WAITING FOR"];

fn group_row(group: &GroupJson, now: Timestamp) -> [String; 7] {
    let mut waiting = group.waiting.clone().unwrap_or_else(|| "-".to_owned());
    if let Some(since) = &group.since {
        waiting.push_str(&format!(", {} so far", age_of(since, now)));
    }
    let until: Option<Timestamp> = group.until.as_ref().and_then(|until| until.parse().ok());
    if let Some(until) = until.filter(|until| *until > now) {
        waiting.push_str(&format!(", until in {}", age(until.as_second() - now.as_second())));
    }
    [
        group.group.clone(),
        group.target.to_string(),
        group.running.to_string(),
        group.requested.saturating_add(group.pending).to_string(),
        group.draining.saturating_add(group.terminating).to_string(),
        group.failed.to_string(),
        waiting,
    ]
}

const EXECUTOR_HEADS: [&str; 6] = ["ID", "GROUP", "SLOT", "STATE", "AGE", "NODE"];

fn executor_row(executor: &ExecutorJson, now: Timestamp) -> [String; 6] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        executor.id.to_string(),
        executor.group.clone(),
        or_dash(executor.slot.map(|slot| slot.to_string())),
        executor.state.clone(),
        age_of(&executor.since, now),
        or_dash(executor.node.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::status_json::{RunNames, tests::sample_json};

    #[test]
    fn a_status_becomes_two_tables() {
        let identity = RunNames {
            run: "k3f9".into(),
            app: "w".into(),
            instance: "a1b2c".into(),
            namespace: "ns".into(),
            kubeconfig: None,
        };
        let status = sample_json(&identity);
        let at = |second| Timestamp::from_second(second).unwrap();
        let want = "\
app w  instance a1b2c  namespace ns  pods w-a1b2c-exec-ID

GROUP    TARGET  RUNNING  STARTING  ENDING  FAILED  WAITING FOR
default  10      7        3         1       3       quota, 5m0s so far
big      10      7        3         1       3       -

no answer from the API server for 4m57s: connection refused

ID  GROUP    SLOT  STATE      AGE   NODE
1   default  0     running    5m0s  n1
2   default  -     requested  5m0s  -
";
        assert_eq!(status_text(&status, at(301)), want);
        assert!(status_text(&status, at(1)).contains("quota, 0s so far, until in 1s\n"));
    }

    /// With the longest names of the example, and a million executors.
    #[test]
    fn a_status_fits_100_columns() {
        let mut status = sample_json(&RunNames::default());
        for group in &mut status.groups {
            (group.group, group.target, group.running) =
                ("analytics-memory".into(), 1_000_000, 999_999);
        }
        for one in &mut status.executors {
            (one.id, one.group) = (1_000_000, "analytics-memory".into());
            one.node = Some("ip-10-100-100-100.eu-central-1.compute.internal".into());
        }
        let text = status_text(&status, Timestamp::from_second(100_000).unwrap());
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}:\n{text}");
    }
}
