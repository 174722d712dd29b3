//! The faults that a user can switch on: names, values, help, and the set that is active. `inject`
//! decides when a fault strikes.

mod inject;

pub(crate) use inject::{Body, Injector, Struck, after, before};

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// All faults, in the order of the help table.
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

/// The type of a fault's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    Number,
    Percent,
    /// A number that may be negative.
    Signed,
    Text,
}

/// One fault in the help table.
struct Row {
    fault: Fault,
    name: &'static str,
    /// The placeholder for the value.
    value: &'static str,
    value_type: ValueType,
    help: &'static str,
}

const fn row(
    fault: Fault,
    name: &'static str,
    value: &'static str,
    value_type: ValueType,
    help: &'static str,
) -> Row {
    Row { fault, name, value, value_type, help }
}

/// The path that shows and changes the faults of a running cluster. No Kubernetes API path begins
/// with it.
pub(crate) const PATH: &str = "/posse/faults";

use ValueType::{Number, Percent, Signed, Text};

#[rustfmt::skip]
const ROWS: [Row; 26] = [
    row(Fault::Latency, "latency", "MS", Number, "delay before each request is handled"),
    row(Fault::SlowBody, "slow-body", "MS", Number, "each list's body is sent slowly, over this time"),
    row(Fault::TruncatedList, "truncated-list", "PERCENT", Percent, "share of lists whose JSON stops in the middle"),
    row(Fault::CutList, "cut-list", "PERCENT", Percent, "share of lists whose connection is cut midway"),
    row(Fault::StaleLists, "stale-lists", "MS", Number, "lists show the state of this long ago"),
    row(Fault::CutBefore, "cut-before", "PERCENT", Percent, "share of writes cut before they are executed"),
    row(Fault::CutAfter, "cut-after", "PERCENT", Percent, "share of writes cut after they are executed"),
    row(Fault::Refuse, "refuse", "MS", Number, "connections are cut and refused this long, once"),
    row(Fault::All429, "all-429", "PERCENT", Percent, "share of requests answered with 429, not executed"),
    row(Fault::Create429, "create-429", "PERCENT", Percent, "share of pod creates answered with 429"),
    row(Fault::RetryAfter, "retry-after", "SECONDS", Number, "the Retry-After of a 429 (default 1)"),
    row(Fault::Create500, "create-500", "PERCENT", Percent, "share of pod creates answered with 500"),
    row(Fault::Create500After, "create-500-after", "PERCENT", Percent, "share of pod creates executed, answered with 500"),
    row(Fault::Write500, "write-500", "PERCENT", Percent, "share of other writes answered with 500"),
    row(Fault::Write500After, "write-500-after", "PERCENT", Percent, "share of other writes executed, answered with 500"),
    row(Fault::Quota, "quota", "PODS", Number, "the most pods that have not ended, by namespace"),
    row(Fault::StripLabels, "strip-labels", "PREFIX", Text, "labels with this prefix are removed from new pods"),
    row(Fault::DropWatch, "drop-watch", "MS", Number, "each watch is cut after this time"),
    row(Fault::SilentWatch, "silent-watch", "MS", Number, "each watch stays open, but silent after this time"),
    row(Fault::Gone, "gone", "N", Number, "the next N watches get 410 in an ERROR event"),
    row(Fault::GoneStatus, "gone-status", "N", Number, "the next N watches get the HTTP status 410"),
    row(Fault::Compact, "compact", "EVENTS", Number, "changes kept for watches and pages; older ones: 410"),
    row(Fault::Restore, "restore", "VERSION", Number, "this resourceVersion's state is restored, once"),
    row(Fault::NodeLoss, "node-loss", "NODES", Text, "these nodes (comma-separated) are out of reach"),
    row(Fault::NodeGrace, "node-grace", "MS", Number, "time until a node is marked lost (default 40000)"),
    row(Fault::ClockSkew, "clock-skew", "SECONDS", Signed, "how far the server's clock is ahead; may be negative"),
];

impl Fault {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    fn find(name: &str) -> Result<&'static Row, String> {
        let known = || -> Vec<String> {
            ROWS.iter().map(|row| format!("{}={}", row.name, row.value)).collect()
        };
        ROWS.iter()
            .find(|row| row.name == name)
            .ok_or_else(|| format!("unknown fault {name}; known faults: {}", known().join(", ")))
    }

    /// True for faults that happen once and do not stay active.
    fn is_once(self) -> bool {
        matches!(self, Self::Refuse | Self::Restore)
    }
}

/// The active faults. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    values: BTreeMap<Fault, Value>,
}

impl Faults {
    /// Parses `NAME=VALUE` pairs. An error names the pair and what it should be.
    pub(crate) fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut faults = Self::default();
        for (name, value) in pairs {
            faults.set(name, value)?;
        }
        match faults.number(Fault::Restore) {
            Some(version) => Err(format!(
                "fault {}={version}: a new cluster has no earlier state; set this fault through {PATH} \
                 while the cluster runs",
                Fault::Restore.name()
            )),
            None => Ok(faults),
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let row = Fault::find(name)?;
        let error = |wanted: &str| format!("fault {name}={value}: the value must be {wanted}");
        let number = || value.parse::<u64>().map_err(|_| error("a whole number"));
        let value = match row.value_type {
            ValueType::Number => number()?.into(),
            ValueType::Percent => match number() {
                Ok(percent @ 0..=100) => percent.into(),
                Ok(_) | Err(_) => return Err(error("a percentage, 0 to 100")),
            },
            ValueType::Signed => match value.parse::<i64>() {
                Ok(seconds) if seconds.abs() <= SKEW_SECONDS_MAX => seconds.into(),
                Ok(_) | Err(_) => return Err(error("a whole number of at most ten years")),
            },
            ValueType::Text => value.into(),
        };
        self.values.insert(row.fault, value);
        Ok(())
    }

    /// Applies a JSON object of names and values; `null` switches a fault off.
    pub(crate) fn change(&mut self, given: &Map<String, Value>) -> Result<(), String> {
        for (name, value) in given {
            match value {
                Value::Null => {
                    self.values.remove(&Fault::find(name)?.fault);
                }
                Value::Number(number) => self.set(name, &number.to_string())?,
                Value::String(text) => self.set(name, text)?,
                Value::Array(_) | Value::Bool(_) | Value::Object(_) => {
                    Fault::find(name)?;
                    return Err(format!("fault {name}: the value must be a number or a string"));
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

/// Ten years, so that all timestamps stay in the range that can be parsed.
const SKEW_SECONDS_MAX: i64 = 10 * 366 * 24 * 3600;

/// All faults with their values' form and their meaning, as JSON.
pub(crate) fn known() -> Vec<Value> {
    ROWS.iter()
        .map(|row| json!({ "name": row.name, "value": row.value, "help": row.help }))
        .collect()
}

/// The table for `posse dev --help`.
pub fn table() -> String {
    let mut text =
        "Faults, also by PUT or PATCH of /posse/faults (PERCENT: 0 to 100):\n".to_owned();
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
    fn faults_are_parsed_and_errors_name_the_fault() {
        let parse = |name: &str, value: &str| Faults::parse(&[(name.to_owned(), value.to_owned())]);
        for (at, row) in ROWS.iter().enumerate() {
            let name = row.name;
            assert_eq!(row.fault as usize, at, "{name} has its own row");
            assert_ne!(parse(name, "7"), Ok(Faults::default()), "{name} does something");
            assert_eq!(parse(name, "7").is_err(), row.fault == Fault::Restore, "{name}");
            if row.value_type != ValueType::Text {
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
    fn json_and_the_flag_accept_the_same_values() {
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
            (json!({"latency": true}), "fault latency: the value must be a number or a string"),
            (json!({"nope": null}), "unknown fault nope; known faults: latency=MS, "),
        ] {
            let error = change(&mut faults, given).expect_err(want);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
