//! Owns the faults that a user can switch on: their names, values and meaning. Injecting them is
//! the business of those who serve.

use std::time::Duration;

/// The faults in force. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Each request waits so long first.
    pub(crate) latency: Duration,
    /// So many of 100 creates of pods are answered with 429, not executed.
    pub(crate) create_429_percent: u64,
    /// So many of 100 creates of pods are answered with 500 although they were executed.
    pub(crate) create_500_after_percent: u64,
    /// A namespace holds at most so many pods that have not ended.
    pub(crate) quota_pods: Option<u64>,
    /// A watch is cut, without an end, after so long.
    pub(crate) drop_watch: Option<Duration>,
    /// A watch says nothing any more after so long, and stays open.
    pub(crate) silent_watch: Option<Duration>,
    /// Changes kept for watches; fewer mean more 410s.
    pub(crate) compact_events: Option<usize>,
}

/// Each fault with what it takes.
const KNOWN: [(&str, &str); 7] = [
    ("latency", "MS"),
    ("create-429", "PERCENT"),
    ("create-500-after", "PERCENT"),
    ("quota", "PODS"),
    ("drop-watch", "MS"),
    ("silent-watch", "MS"),
    ("compact", "EVENTS"),
];

impl Faults {
    /// Reads `NAME=VALUE` pairs; the error says which pair, and what would do.
    pub(crate) fn parse(pairs: &[(String, String)]) -> Result<Self, String> {
        let mut faults = Self::default();
        for (name, value) in pairs {
            faults.set(name, value)?;
        }
        Ok(faults)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |wanted: &str| format!("fault {name}={value}: {wanted}");
        let number = || value.parse::<u64>().map_err(|_| wrong("the value must be a whole number"));
        let percent = || match number()? {
            percent @ 0..=100 => Ok(percent),
            _ => Err(wrong("the value must be a percentage, 0 to 100")),
        };
        match name {
            "latency" => self.latency = Duration::from_millis(number()?),
            "create-429" => self.create_429_percent = percent()?,
            "create-500-after" => self.create_500_after_percent = percent()?,
            "quota" => self.quota_pods = Some(number()?),
            "drop-watch" => self.drop_watch = Some(Duration::from_millis(number()?)),
            "silent-watch" => self.silent_watch = Some(Duration::from_millis(number()?)),
            "compact" => {
                let events = usize::try_from(number()?)
                    .map_err(|_| wrong("the value must be a number of events"))?;
                self.compact_events = Some(events);
            }
            _ => {
                let known: Vec<String> =
                    KNOWN.iter().map(|(name, value)| format!("{name}={value}")).collect();
                return Err(format!("unknown fault {name}; known are {}", known.join(", ")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_mistakes_named() {
        let parse = |name: &str, value: &str| Faults::parse(&[(name.to_owned(), value.to_owned())]);
        for (name, _) in KNOWN {
            assert_ne!(parse(name, "7"), Ok(Faults::default()), "{name} does something");
            let error = parse(name, "x").expect_err("no number");
            assert!(error.starts_with(&format!("fault {name}=x: ")), "{error}");
        }
        assert!(parse("create-429", "101").is_err());
        let error = parse("nope", "1").expect_err("unknown");
        assert!(error.contains("nope") && error.contains("quota=PODS"), "{error}");
    }
}
