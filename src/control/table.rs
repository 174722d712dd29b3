//! Plain-text tables, and the table of a status.

use crate::core::loss::MESSAGE_BYTES_MAX;
use crate::core::model::text::{one_line, sanitize};
use crate::wire::status_json::{ExecutorJson, GroupJson, StatusJson};

/// The status as text for a terminal.
pub fn status_table(status: &StatusJson) -> String {
    let identity = &status.identity;
    let mut text = format!(
        "app {}  instance {}  namespace {}  run {}",
        identity.app, identity.instance, identity.namespace, identity.run
    );
    text = one_line(&text).into_owned() + "\n\n";
    let groups = status.groups.iter().map(group_row);
    text.push_str(&table(&GROUP_HEADS.map(str::to_owned), groups.collect()));
    if let Some(outage) = &status.outage {
        let message = sanitize(&outage.message, MESSAGE_BYTES_MAX);
        let since = &outage.since;
        text.push_str(&format!("\nno answer from the API server since {since}: {message}\n"));
    }
    if !status.executors.is_empty() {
        text.push('\n');
        let executors = status.executors.iter().map(executor_row);
        text.push_str(&table(&EXECUTOR_HEADS.map(str::to_owned), executors.collect()));
    }
    text
}

const GROUP_HEADS: [&str; 10] = [
    "GROUP",
    "TARGET",
    "RANGE",
    "REQUESTED",
    "PENDING",
    "RUNNING",
    "DRAINING",
    "TERMINATING",
    "FAILED",
    "WAITING",
];

fn group_row(group: &GroupJson) -> [String; 10] {
    let max = group.max.map_or_else(String::new, |max| max.to_string());
    let mut waiting = group.waiting.clone().unwrap_or_else(|| "-".to_owned());
    if let Some(since) = &group.since {
        waiting.push_str(&format!(" since {since}"));
    }
    if let Some(until) = &group.until {
        waiting.push_str(&format!(" until {until}"));
    }
    [
        group.group.clone(),
        group.target.to_string(),
        format!("{}..{max}", group.min),
        group.requested.to_string(),
        group.pending.to_string(),
        group.running.to_string(),
        group.draining.to_string(),
        group.terminating.to_string(),
        group.failed.to_string(),
        waiting,
    ]
}

const EXECUTOR_HEADS: [&str; 8] = ["ID", "GROUP", "SLOT", "STATE", "NODE", "IP", "SINCE", "POD"];

fn executor_row(executor: &ExecutorJson) -> [String; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        executor.id.to_string(),
        executor.group.clone(),
        executor.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string()),
        executor.state.clone(),
        or_dash(executor.node.clone()),
        or_dash(executor.ip.map(|ip| ip.to_string())),
        executor.since.clone(),
        executor.pod.clone(),
    ]
}

/// A table with two spaces between the columns and no trailing spaces.
pub(crate) fn table<const N: usize>(heads: &[String; N], rows: Vec<[String; N]>) -> String {
    // A line end in a cell would make a row of its own.
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| one_line(&cell).into_owned())).collect();
    let mut widths = [0; N];
    for row in std::iter::once(heads).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in std::iter::once(heads).chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
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
        let want = "\
app w  instance a1b2c  namespace ns  run k3f9

GROUP    TARGET  RANGE  REQUESTED  PENDING  RUNNING  DRAINING  TERMINATING  FAILED  WAITING
default  10      0..20  1          2        7        0         1            3       quota since 1970-01-01T00:00:01.000Z until 1970-01-01T00:00:02.000Z
big      10      0..    1          2        7        0         1            3       -

no answer from the API server since 1970-01-01T00:00:04.000Z: connection refused

ID  GROUP    SLOT  STATE      NODE  IP        SINCE                     POD
1   default  0     running    n1    10.0.0.1  1970-01-01T00:00:01.000Z  w-a1b2c-exec-1
2   default  -     requested  -     -         1970-01-01T00:00:01.000Z  w-a1b2c-exec-2
";
        assert_eq!(status_table(&status), want);
    }
}
