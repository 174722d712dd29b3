//! `posse status`: prints the status of a run.

use std::io::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::table::{or_dash, table};
use crate::world::World;
use posse_base::text::{age, one_line, sanitize};
use posse_core::policy::loss::MESSAGE_BYTES_MAX;
use posse_wire::control::status_json::{
    DriverJson, ExecutorJson, GroupJson, LeaderJson, StatusJson,
};

/// `posse status`.
pub fn status(args: &StatusArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = find_run(&args.named.client()?, world)?.client;
    let listing = StatusListing { status: client.status()?, now: Timestamp::now() };
    print_listing(&listing, args.output, out)
}

/// A status at a moment.
struct StatusListing {
    status: StatusJson,
    now: Timestamp,
}

impl Listing for StatusListing {
    fn table(&self, is_wide: bool) -> String {
        let Self { status, now } = self;
        let mut text = head(status, *now) + "\n" + &groups_table(&status.groups, *now, is_wide);
        if let Some(outage) = outage(status, *now) {
            text.push_str(&format!("\n{outage}\n"));
        }
        if !status.executors.is_empty() {
            text.push('\n');
            text.push_str(&executors_table(&status.executors, *now, is_wide));
        }
        text
    }

    fn json(&self) -> Value {
        json!(self.status)
    }

    /// The names of the pods, also for kubectl.
    fn names(&self) -> Vec<String> {
        self.status.executors.iter().map(|one| one.pod.clone()).collect()
    }
}

/// Which run it is, and what its driver does.
fn head(status: &StatusJson, now: Timestamp) -> String {
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
    let driver = match &status.driver {
        Some(DriverJson { state, since, pid, exit_code: None }) => {
            format!("driver {state} for {}, pid {pid}", age_of(since, now))
        }
        Some(DriverJson { state, since, exit_code: Some(code), .. }) => {
            format!("driver {state} {} ago with exit code {code}", age_of(since, now))
        }
        None => "no driver process".to_owned(),
    };
    let mut head = format!("{}\n{}\n", one_line(&text), one_line(&driver));
    if let Some(LeaderJson { pod, standby, takeover }) = &identity.leader {
        let standby = if standby.is_empty() { "none".to_owned() } else { standby.join(", ") };
        let took = takeover.as_ref().map_or_else(String::new, |takeover| {
            format!("; took over {} ago {takeover}", age_of(&takeover.time, now))
        });
        let line = format!("leader {pod}; stands by: {standby}{took}");
        head.push_str(&format!("{}\n", one_line(&line)));
    }
    head
}

/// That requests to the API server fail: it does not answer, or it refuses.
fn outage(status: &StatusJson, now: Timestamp) -> Option<String> {
    let outage = status.outage.as_ref()?;
    let message = sanitize(&outage.message, MESSAGE_BYTES_MAX);
    let age = age_of(&outage.since, now);
    Some(format!("requests to the API server have failed for {age}: {message}"))
}

/// The time from one moment to another; `?` if it is no time.
fn age_of(since: &str, now: Timestamp) -> String {
    let since: Result<Timestamp, _> = since.parse();
    since.map_or_else(|_| "?".to_owned(), |since| age(now.as_second() - since.as_second()))
}

fn groups_table(groups: &[GroupJson], now: Timestamp, is_wide: bool) -> String {
    let heads = ["GROUP", "TARGET", "RUNNING", "STARTING", "ENDING", "LOST", "DONE", "WAITING FOR"];
    let rows = groups.iter().map(|group| group_row(group, now));
    if !is_wide {
        return table(heads, rows);
    }
    let [group, target, running, starting, ending, lost, done, waiting] = heads;
    let heads = [
        group, target, "MIN", "MAX", running, "READY", starting, ending, "FAILED", lost, done,
        waiting, "MESSAGE",
    ];
    let rows = rows.zip(groups).map(|(cells, one)| {
        let [group, target, running, starting, ending, lost, done, waiting] = cells;
        let [min, ready, failed] = [one.min, one.ready, one.failed].map(|n| n.to_string());
        let (max, message) = (or_dash(one.max), or_dash(one.message.as_ref()));
        [
            group, target, min, max, running, ready, starting, ending, failed, lost, done, waiting,
            message,
        ]
    });
    table(heads, rows)
}

fn group_row(group: &GroupJson, now: Timestamp) -> [String; 8] {
    let mut waiting = or_dash(group.waiting.as_ref());
    if let Some(since) = &group.since {
        waiting.push_str(&format!(", {} so far", age_of(since, now)));
    }
    let until: Option<Timestamp> = group.until.as_ref().and_then(|until| until.parse().ok());
    if let Some(until) = until.filter(|until| *until > now) {
        waiting.push_str(&format!(", for another {}", age(until.as_second() - now.as_second())));
    }
    [
        group.group.clone(),
        match group.for_tasks() {
            0 => group.target.to_string(),
            n => format!("{}+{n}", group.target),
        },
        group.running.to_string(),
        group.requested.saturating_add(group.pending).to_string(),
        group.draining.saturating_add(group.terminating).to_string(),
        group.lost.to_string(),
        match group.completions {
            Some(all) => format!("{}/{all}", group.completed),
            None => group.completed.to_string(),
        },
        waiting,
    ]
}

fn executors_table(executors: &[ExecutorJson], now: Timestamp, is_wide: bool) -> String {
    let heads = ["ID", "GROUP", "SLOT", "STATE", "AGE", "NODE"];
    let rows = executors.iter().map(|one| executor_row(one, now));
    if !is_wide {
        return table(heads, rows);
    }
    let [id, group, slot, state, age, node] = heads;
    let rows = rows.zip(executors).map(|([id, group, slot, state, age, node], one)| {
        let [ip, host_ip] = [one.ip, one.host_ip].map(or_dash);
        let (pod, uid) = (one.pod.clone(), or_dash(one.uid.as_ref()));
        let ready = if one.ready { "yes" } else { "no" }.to_owned();
        [id, group, slot, state, ready, age, node, host_ip, ip, pod, uid]
    });
    let heads = [id, group, slot, state, "READY", age, node, "HOST IP", "IP", "POD", "UID"];
    table(heads, rows)
}

fn executor_row(executor: &ExecutorJson, now: Timestamp) -> [String; 6] {
    [
        executor.id.to_string(),
        executor.group.clone(),
        or_dash(executor.slot),
        executor.state.clone(),
        age_of(&executor.since, now),
        or_dash(executor.node.as_ref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::sample_status_json;
    use posse_wire::control::status_json::RunNames;

    fn listed(status: StatusJson, second: i64, is_wide: bool) -> String {
        let now = Timestamp::from_second(second).unwrap();
        StatusListing { status, now }.table(is_wide)
    }

    fn sample() -> StatusJson {
        sample_status_json(&RunNames {
            run: "k3f9".into(),
            app: "w".into(),
            instance: "a1b2c".into(),
            namespace: "ns".into(),
            ..RunNames::default()
        })
    }

    #[test]
    fn a_status_becomes_two_tables() {
        let want = "\
app w  instance a1b2c  namespace ns  pods w-a1b2c-exec-ID
driver running for 5m0s, pid 42

GROUP    TARGET  RUNNING  STARTING  ENDING  LOST  DONE    WAITING FOR
default  10      7        3         1       5     57/100  quota, 5m0s so far
big      10      7        3         1       5     0       -

requests to the API server have failed for 4m57s: connection refused

ID  GROUP    SLOT  STATE      AGE   NODE
1   default  0     running    5m0s  n1
2   default  -     requested  5m0s  -
";
        assert_eq!(listed(sample(), 301, false), want);
        assert!(listed(sample(), 1, false).contains("quota, 0s so far, for another 1s\n"));
        let mut with_tasks = sample();
        with_tasks.groups[0].wanted = 13;
        let text = listed(with_tasks, 301, false);
        assert!(text.contains("\ndefault  10+3    7  "), "{text}");
    }

    #[test]
    fn a_wide_status_has_more_columns() {
        let wide = listed(sample(), 301, true);
        for part in [
            "  MIN  MAX  ",
            "  FAILED  LOST  ",
            "exceeded quota\n",
            "  w-a1b2c-exec-1  ",
            "  n1    192.168.0.1  10.0.0.1  ",
        ] {
            assert!(wide.contains(part), "{part}:\n{wide}");
        }
    }

    #[test]
    fn the_driver_has_a_line() {
        let of = |driver: Option<DriverJson>| {
            let now = Timestamp::from_second(61).unwrap();
            let text = head(&StatusJson { driver, ..sample() }, now);
            text.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(of(None), "no driver process");
        let since = "1970-01-01T00:00:01Z".to_owned();
        let ended = DriverJson { state: "ended".into(), since, pid: 7, exit_code: Some(3) };
        assert_eq!(of(Some(ended)), "driver ended 60s ago with exit code 3");
    }

    #[test]
    fn the_names_are_those_of_the_pods() {
        let listing = StatusListing { status: sample(), now: Timestamp::UNIX_EPOCH };
        assert_eq!(listing.names(), ["w-a1b2c-exec-1", "w-a1b2c-exec-2"]);
    }

    /// With the longest names of the example, and a million executors.
    #[test]
    fn a_status_fits_100_columns() {
        let mut status = sample_status_json(&RunNames::default());
        for group in &mut status.groups {
            (group.group, group.target, group.running) =
                ("analytics-memory".into(), 1_000_000, 999_999);
        }
        for one in &mut status.executors {
            (one.id, one.group) = (1_000_000, "analytics-memory".into());
            one.node = Some("ip-10-100-100-100.eu-central-1.compute.internal".into());
        }
        let text = listed(status, 100_000, false);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}:\n{text}");
    }
}
