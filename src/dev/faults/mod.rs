//! Owns the faults that a user can switch on: their names, values and meaning, and which of them
//! are in force. Injecting them is the business of those who serve.

mod inject;
#[cfg(test)]
mod switched;

pub(crate) use inject::{Body, Injector, Struck, after, before};

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Everything that can go wrong on purpose. The order is the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Latency,
    SlowBody,
    TruncatedList,
    CutList,
    StaleLists,
    CutBefore,
    CutAfter,
    Refuse,
    All429,
    Create429,
    RetryAfter,
    Create500,
    Create500After,
    Write500,
    Write500After,
    Quota,
    StripLabels,
    DropWatch,
    SilentWatch,
    Gone,
    GoneStatus,
    Compact,
    Restore,
    NodeLoss,
    NodeGrace,
    ClockSkew,
}

/// What a fault's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Number,
    Percent,
    /// It may be negative.
    Signed,
    Text,
}

/// One fault as the user sees it.
struct Row {
    fault: Fault,
    name: &'static str,
    /// What to write for the value.
    value: &'static str,
    takes: Takes,
    help: &'static str,
}

const fn row(
    fault: Fault,
    name: &'static str,
    value: &'static str,
    takes: Takes,
    help: &'static str,
) -> Row {
    Row { fault, name, value, takes, help }
}

/// The path that shows and changes the faults of a running cluster. No path of Kubernetes begins
/// with it.
pub(crate) const PATH: &str = "/posse/faults";

use Takes::{Number, Percent, Signed, Text};

#[rustfmt::skip]
const ROWS: [Row; 26] = [
    row(Fault::Latency, "latency", "MS", Number, "each request waits so long first"),
    row(Fault::SlowBody, "slow-body", "MS", Number, "the body of each list trickles over so long"),
    row(Fault::TruncatedList, "truncated-list", "PERCENT", Percent, "so many of 100 lists end in the middle of their JSON, as if whole"),
    row(Fault::CutList, "cut-list", "PERCENT", Percent, "so many of 100 lists are cut off in the middle"),
    row(Fault::StaleLists, "stale-lists", "MS", Number, "a list tells what was there so long ago: it is read at once and sent late; one of resourceVersion=0 is read late"),
    row(Fault::CutBefore, "cut-before", "PERCENT", Percent, "so many of 100 writes are cut off, not executed"),
    row(Fault::CutAfter, "cut-after", "PERCENT", Percent, "so many of 100 writes are executed and cut off"),
    row(Fault::Refuse, "refuse", "MS", Number, "connections are cut and refused for so long, once"),
    row(Fault::All429, "all-429", "PERCENT", Percent, "so many of 100 requests are answered with 429, not executed"),
    row(Fault::Create429, "create-429", "PERCENT", Percent, "so many of 100 creates of pods are answered with 429, not executed"),
    row(Fault::RetryAfter, "retry-after", "SECONDS", Number, "what a 429 says in Retry-After instead of 1"),
    row(Fault::Create500, "create-500", "PERCENT", Percent, "so many of 100 creates of pods are answered with 500, not executed"),
    row(Fault::Create500After, "create-500-after", "PERCENT", Percent, "so many of 100 creates of pods are executed and answered with 500"),
    row(Fault::Write500, "write-500", "PERCENT", Percent, "so many of 100 updates, patches and deletes are answered with 500, not executed"),
    row(Fault::Write500After, "write-500-after", "PERCENT", Percent, "so many of 100 updates, patches and deletes are executed and answered with 500"),
    row(Fault::Quota, "quota", "PODS", Number, "a namespace holds at most so many pods that have not ended"),
    row(Fault::StripLabels, "strip-labels", "PREFIX", Text, "a webhook takes the labels that begin so off new pods"),
    row(Fault::DropWatch, "drop-watch", "MS", Number, "a watch is cut, without an end, after so long"),
    row(Fault::SilentWatch, "silent-watch", "MS", Number, "a watch says nothing any more after so long, and stays open"),
    row(Fault::Gone, "gone", "N", Number, "the next so many watches are answered with 410 in an event"),
    row(Fault::GoneStatus, "gone-status", "N", Number, "the next so many watches are answered with the status 410"),
    row(Fault::Compact, "compact", "EVENTS", Number, "so many changes are kept for watches and pages; older ones are 410"),
    row(Fault::Restore, "restore", "VERSION", Number, "everything goes back to that resourceVersion, as from a backup, once"),
    row(Fault::NodeLoss, "node-loss", "NODES", Text, "these nodes (names, commas) are out of reach; their processes run on"),
    row(Fault::NodeGrace, "node-grace", "MS", Number, "a node is called lost after so long instead of 40000"),
    row(Fault::ClockSkew, "clock-skew", "SECONDS", Signed, "the server's clock is so far ahead, or (negative) behind"),
];

impl Fault {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    fn named(name: &str) -> Result<&'static Row, String> {
        let known = || -> Vec<String> {
            ROWS.iter().map(|row| format!("{}={}", row.name, row.value)).collect()
        };
        ROWS.iter()
            .find(|row| row.name == name)
            .ok_or_else(|| format!("unknown fault {name}; known are {}", known().join(", ")))
    }

    /// True for what happens once and is then over.
    fn is_once(self) -> bool {
        matches!(self, Self::Refuse | Self::Restore)
    }
}

/// The faults in force. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    values: BTreeMap<Fault, Value>,
}

impl Faults {
    /// Reads `NAME=VALUE` pairs; the error says which pair, and what would do.
    pub(crate) fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut faults = Self::default();
        for (name, value) in pairs {
            faults.set(name, value)?;
        }
        match faults.number(Fault::Restore) {
            Some(version) => Err(format!(
                "fault {}={version}: at its start a cluster has nothing to go back to; {PATH} \
                 takes it later",
                Fault::Restore.name()
            )),
            None => Ok(faults),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let row = Fault::named(name)?;
        let wrong = |wanted: &str| format!("fault {name}={value}: the value must be {wanted}");
        let number = || value.parse::<u64>().map_err(|_| wrong("a whole number"));
        let value = match row.takes {
            Takes::Number => number()?.into(),
            Takes::Percent => match number() {
                Ok(percent @ 0..=100) => percent.into(),
                Ok(_) | Err(_) => return Err(wrong("a percentage, 0 to 100")),
            },
            Takes::Signed => match value.parse::<i64>() {
                Ok(seconds) if seconds.abs() <= SKEW_SECONDS_MAX => seconds.into(),
                Ok(_) | Err(_) => return Err(wrong("a whole number of at most ten years")),
            },
            Takes::Text => value.into(),
        };
        self.values.insert(row.fault, value);
        Ok(())
    }

    /// Lays a JSON object of names and values over these; `null` switches one off.
    pub(crate) fn change(&mut self, given: &Map<String, Value>) -> Result<(), String> {
        for (name, value) in given {
            match value {
                Value::Null => {
                    self.values.remove(&Fault::named(name)?.fault);
                }
                Value::Number(number) => self.set(name, &number.to_string())?,
                Value::String(text) => self.set(name, text)?,
                Value::Array(_) | Value::Bool(_) | Value::Object(_) => {
                    Fault::named(name)?;
                    return Err(format!("fault {name}: the value must be a number or a text"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn number(&self, fault: Fault) -> Option<u64> {
        self.values.get(&fault).and_then(Value::as_u64)
    }

    pub(crate) fn text(&self, fault: Fault) -> &str {
        self.values.get(&fault).and_then(Value::as_str).unwrap_or_default()
    }

    /// Removes the faults that happen once.
    pub(crate) fn remove_once(&mut self) {
        self.values.retain(|fault, _| !fault.is_once());
    }

    pub(crate) fn to_json(&self) -> Value {
        self.values.iter().map(|(fault, value)| (fault.name(), value.clone())).collect()
    }
}

/// Ten years: every moment that is written stays one that can be read.
const SKEW_SECONDS_MAX: i64 = 10 * 366 * 24 * 3600;

/// All faults with their values' form and their meaning, as JSON.
pub(crate) fn known() -> Vec<Value> {
    ROWS.iter()
        .map(|row| json!({ "name": row.name, "value": row.value, "help": row.help }))
        .collect()
}

/// The table for `posse dev --help`.
pub fn table() -> String {
    let mut text = "Faults, also for PUT and PATCH of /posse/faults while it runs:\n".to_owned();
    for row in &ROWS {
        let head = format!("{}={}", row.name, row.value);
        text.push_str(&format!("  {head:<24}  {}\n", row.help));
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_mistakes_named() {
        let parse = |name: &str, value: &str| Faults::parse(&[(name.to_owned(), value.to_owned())]);
        for (at, row) in ROWS.iter().enumerate() {
            let name = row.name;
            assert_eq!(row.fault as usize, at, "{name} has its own row");
            assert_ne!(parse(name, "7"), Ok(Faults::default()), "{name} does something");
            assert_eq!(parse(name, "7").is_err(), row.fault == Fault::Restore, "{name}");
            if row.takes != Takes::Text {
                let error = parse(name, "x").expect_err("no number");
                assert!(error.starts_with(&format!("fault {name}=x: ")), "{error}");
            }
        }
        assert!(parse("create-429", "101").is_err());
        assert!(parse("latency", "-1").is_err() && parse("clock-skew", "-1").is_ok());
        let error = parse("nope", "1").expect_err("unknown");
        assert!(error.contains("nope") && error.contains("quota=PODS"), "{error}");
    }

    #[test]
    fn json_says_the_same_as_the_flag() {
        let mut faults = Faults::default();
        let change = |faults: &mut Faults, given: Value| {
            faults.change(given.as_object().expect("an object"))
        };
        let given = json!({"latency": 5, "quota": "3", "strip-labels": "a/", "clock-skew": -9});
        assert_eq!(change(&mut faults, given), Ok(()));
        let want = json!({"latency": 5, "quota": 3, "strip-labels": "a/", "clock-skew": -9});
        assert_eq!(faults.to_json(), want);
        assert_eq!(change(&mut faults, json!({"latency": null, "quota": 4})), Ok(()));
        let want = json!({"quota": 4, "strip-labels": "a/", "clock-skew": -9});
        assert_eq!(faults.to_json(), want);
        for (given, want) in [
            (json!({"latency": "x"}), "fault latency=x: the value must be a whole number"),
            (json!({"latency": 1.5}), "fault latency=1.5: the value must be a whole number"),
            (json!({"latency": true}), "fault latency: the value must be a number or a text"),
            (json!({"nope": null}), "unknown fault nope; known are latency=MS, "),
        ] {
            let error = change(&mut faults, given).expect_err(want);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
