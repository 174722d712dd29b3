//! Owns what a probe or a hook asks of a container, when, and what its answers add up to. Pure: it
//! asks nothing itself.

use serde_json::Value;

use crate::dev::storage::object::{array_at, text_at};

/// What a probe decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Liveness,
    Readiness,
    Startup,
}

impl Which {
    /// The member of a container and the word in an event.
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Liveness, "/livenessProbe", "Liveness"),
        (Self::Readiness, "/readinessProbe", "Readiness"),
        (Self::Startup, "/startupProbe", "Startup"),
    ];

    pub(crate) fn word(self) -> &'static str {
        Self::ALL.iter().find(|(which, ..)| *which == self).map_or("", |(_, _, word)| word)
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Exec(Vec<String>),
    /// It cannot be asked; this is why.
    Faulty(String),
    Http {
        host: String,
        port: u16,
        path: String,
        headers: Vec<(String, String)>,
        tls: bool,
    },
    Tcp {
        host: String,
        port: u16,
    },
}

/// One probe of a container and what is known through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) which: Which,
    pub(crate) action: Action,
    pub(crate) delay_ms: u64,
    pub(crate) period_ms: u64,
    pub(crate) timeout_ms: u64,
    /// The grace of the end that it causes, where it has one of its own.
    pub(crate) grace_seconds: Option<i64>,
    successes: u32,
    failures: u32,
    /// The last answer, and how often it came in a row.
    row: (bool, u32),
    verdict: Option<bool>,
}

impl Probe {
    /// The probes of a container whose pod has the address `ip`.
    pub(crate) fn all(container: &Value, ip: &str) -> Vec<Self> {
        let probe = |which: Which, pointer: &str| {
            let spec = container.pointer(pointer)?;
            let number = |name: &str, default: u64| {
                spec.get(name).and_then(Value::as_u64).filter(|n| *n > 0).unwrap_or(default)
            };
            let count = |name: &str, default| u32::try_from(number(name, default)).unwrap_or(1);
            Some(Self {
                which,
                action: action(spec, container, ip)?,
                delay_ms: number("initialDelaySeconds", 0).saturating_mul(1000),
                period_ms: number("periodSeconds", 10).saturating_mul(1000),
                timeout_ms: number("timeoutSeconds", 1).saturating_mul(1000),
                grace_seconds: spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64),
                successes: count("successThreshold", 1),
                failures: count("failureThreshold", 3),
                row: (false, 0),
                verdict: None,
            })
        };
        Which::ALL.iter().filter_map(|(which, pointer, _)| probe(*which, pointer)).collect()
    }

    /// Takes an answer in. The verdict where this one changes it; a failed liveness or startup is
    /// told each time that its failures are full, for the container ends with it.
    pub(crate) fn count(&mut self, good: bool) -> Option<bool> {
        self.row = match self.row {
            (last, n) if last == good => (good, n.saturating_add(1)),
            _ => (good, 1),
        };
        let threshold = if good { self.successes } else { self.failures };
        if self.row.1 < threshold {
            return None;
        }
        let repeated = self.verdict == Some(good) && (good || self.which == Which::Readiness);
        self.verdict = Some(good);
        if !good {
            self.row.1 = 0;
        }
        (!repeated).then_some(good)
    }

    /// A startup probe that succeeded has nothing more to say.
    pub(crate) fn is_done(&self) -> bool {
        self.which == Which::Startup && self.verdict == Some(true)
    }
}

/// What a probe or a hook asks; none where it names nothing that is known here.
pub(crate) fn action(spec: &Value, container: &Value, ip: &str) -> Option<Action> {
    if let Some(exec) = spec.get("exec") {
        let words = array_at(exec, "/command").iter();
        return Some(Action::Exec(words.filter_map(Value::as_str).map(str::to_owned).collect()));
    }
    let (to, is_http) = match (spec.get("httpGet"), spec.get("tcpSocket")) {
        (Some(http), _) => (http, true),
        (None, Some(tcp)) => (tcp, false),
        (None, None) => return None,
    };
    let port = match port(to.get("port"), container) {
        Ok(port) => port,
        Err(why) => return Some(Action::Faulty(why)),
    };
    let host = match text_at(to, "/host") {
        "" => ip.to_owned(),
        host => host.to_owned(),
    };
    if !is_http {
        return Some(Action::Tcp { host, port });
    }
    let headers = array_at(to, "/httpHeaders").iter();
    let headers = headers
        .map(|header| (text_at(header, "/name").to_owned(), text_at(header, "/value").to_owned()));
    let path = match text_at(to, "/path") {
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let tls = text_at(to, "/scheme") == "HTTPS";
    Some(Action::Http { host, port, path, headers: headers.collect(), tls })
}

fn port(given: Option<&Value>, container: &Value) -> Result<u16, String> {
    let number = match given {
        Some(Value::String(name)) => {
            let named =
                array_at(container, "/ports").iter().find(|port| text_at(port, "/name") == name);
            match named {
                Some(port) => port.get("containerPort").and_then(Value::as_i64),
                None => name.parse().ok(),
            }
            .ok_or_else(|| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?
        }
        Some(given) => given.as_i64().unwrap_or_default(),
        None => 0,
    };
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("invalid port number: {number}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn probe(member: &str, spec: Value) -> Probe {
        let container = json!({ member: spec, "ports": [{"name": "web", "containerPort": 81}] });
        Probe::all(&container, "127.1.2.3").pop().expect("a probe")
    }

    #[test]
    fn a_probe_asks_what_its_spec_says() {
        let http = |host: &str, port, path: &str, tls| Action::Http {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            headers: Vec::new(),
            tls,
        };
        for (spec, want) in [
            (json!({"exec": {"command": ["a", "b"]}}), Action::Exec(vec!["a".into(), "b".into()])),
            (json!({"httpGet": {"port": 80}}), http("127.1.2.3", 80, "/", false)),
            (
                json!({"httpGet": {"port": "web", "path": "x?y", "host": "h", "scheme": "HTTPS"}}),
                http("h", 81, "/x?y", true),
            ),
            (
                json!({"tcpSocket": {"port": "90"}}),
                Action::Tcp { host: "127.1.2.3".to_owned(), port: 90 },
            ),
            (
                json!({"tcpSocket": {"port": 70000}}),
                Action::Faulty("invalid port number: 70000".to_owned()),
            ),
            (
                json!({"tcpSocket": {"port": "no"}}),
                Action::Faulty("strconv.Atoi: parsing \"no\": invalid syntax".to_owned()),
            ),
        ] {
            assert_eq!(probe("livenessProbe", spec.clone()).action, want, "{spec}");
        }
        let container = json!({"livenessProbe": {"grpc": {"port": 1}}});
        assert_eq!(Probe::all(&container, "i"), []);
        let probe = probe("startupProbe", json!({"tcpSocket": {"port": 1}}));
        assert_eq!((probe.delay_ms, probe.period_ms, probe.timeout_ms), (0, 10_000, 1000));
    }

    #[test]
    fn answers_add_up_to_verdicts() {
        // `+` good, `-` bad; below each answer the verdict it gives, `.` for none.
        for (member, success, failure, answers, verdicts) in [
            ("readinessProbe", 1, 3, "+--+---+", "+.....-+"),
            ("readinessProbe", 2, 1, "++-+-++", ".+-...+"),
            ("readinessProbe", 1, 1, "--++", "-.+."),
            ("livenessProbe", 1, 3, "+--+------", "+.....-..-"),
            ("livenessProbe", 1, 1, "--", "--"),
            ("startupProbe", 1, 2, "-+++", ".+.."),
            ("startupProbe", 1, 2, "--", ".-"),
        ] {
            let mut probe = probe(
                member,
                json!({"tcpSocket": {"port": 1},
                    "successThreshold": success, "failureThreshold": failure}),
            );
            let told: String = answers
                .chars()
                .map(|answer| match probe.count(answer == '+') {
                    None => '.',
                    Some(true) => '+',
                    Some(false) => '-',
                })
                .collect();
            assert_eq!(told, verdicts, "{member} {success} {failure} {answers}");
        }
    }
}
