//! Probes and hook handlers of a container as its spec gives them, and how a probe's successes and
//! failures add up to a result. The parent module runs the handlers.

use serde_json::Value;

use crate::storage::object::{array_at, text_at};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

impl ProbeKind {
    /// The field of a container and the name in an event.
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Liveness, "/livenessProbe", "Liveness"),
        (Self::Readiness, "/readinessProbe", "Readiness"),
        (Self::Startup, "/startupProbe", "Startup"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(_, _, name)| name)
    }
}

/// The handler of a probe or a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Handler {
    Exec(Vec<String>),
    /// The handler cannot run, with the reason.
    Invalid(String),
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

/// One probe of a container and its results so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) kind: ProbeKind,
    pub(crate) handler: Handler,
    pub(crate) delay_ms: u64,
    pub(crate) period_ms: u64,
    pub(crate) timeout_ms: u64,
    /// The grace period of a termination that this probe causes, if the probe sets its own.
    pub(crate) grace_seconds: Option<i64>,
    successes: u32,
    failures: u32,
    /// The last outcome, and how often it was repeated in a row.
    streak: (bool, u32),
    result: Option<bool>,
}

impl Probe {
    /// The probes of a container whose pod has the address `ip`.
    pub(crate) fn all(container: &Value, ip: &str) -> Vec<Self> {
        let probe = |kind: ProbeKind, pointer: &str| {
            let spec = container.pointer(pointer)?;
            let number = |name: &str, default: u64| {
                spec.get(name).and_then(Value::as_u64).filter(|n| *n > 0).unwrap_or(default)
            };
            let count = |name: &str, default| u32::try_from(number(name, default)).unwrap_or(1);
            Some(Self {
                kind,
                handler: handler(spec, container, ip)?,
                delay_ms: number("initialDelaySeconds", 0).saturating_mul(1000),
                period_ms: number("periodSeconds", 10).saturating_mul(1000),
                timeout_ms: number("timeoutSeconds", 1).saturating_mul(1000),
                grace_seconds: spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64),
                successes: count("successThreshold", 1),
                failures: count("failureThreshold", 3),
                streak: (false, 0),
                result: None,
            })
        };
        ProbeKind::ALL.iter().filter_map(|(kind, pointer, _)| probe(*kind, pointer)).collect()
    }

    /// Records an outcome. Returns the probe's result if this outcome changes it. A failed liveness
    /// or startup probe is returned each time its threshold is reached, because the container is
    /// then terminated.
    pub(crate) fn record(&mut self, succeeded: bool) -> Option<bool> {
        self.streak = match self.streak {
            (last, n) if last == succeeded => (succeeded, n.saturating_add(1)),
            _ => (succeeded, 1),
        };
        let threshold = if succeeded { self.successes } else { self.failures };
        if self.streak.1 < threshold {
            return None;
        }
        let unchanged =
            self.result == Some(succeeded) && (succeeded || self.kind == ProbeKind::Readiness);
        self.result = Some(succeeded);
        if !succeeded {
            self.streak.1 = 0;
        }
        (!unchanged).then_some(succeeded)
    }

    /// A startup probe does not run again after its success.
    pub(crate) fn is_done(&self) -> bool {
        self.kind == ProbeKind::Startup && self.result == Some(true)
    }
}

/// The handler in the spec of a probe or a hook. `None` if it has no handler of a supported type.
pub(crate) fn handler(spec: &Value, container: &Value, ip: &str) -> Option<Handler> {
    if let Some(exec) = spec.get("exec") {
        let command = array_at(exec, "/command").iter();
        return Some(Handler::Exec(command.filter_map(Value::as_str).map(str::to_owned).collect()));
    }
    let (to, is_http) = match (spec.get("httpGet"), spec.get("tcpSocket")) {
        (Some(http), _) => (http, true),
        (None, Some(tcp)) => (tcp, false),
        (None, None) => return None,
    };
    let port = match port(to.get("port"), container) {
        Ok(port) => port,
        Err(why) => return Some(Handler::Invalid(why)),
    };
    let host = match text_at(to, "/host") {
        "" => ip.to_owned(),
        host => host.to_owned(),
    };
    if !is_http {
        return Some(Handler::Tcp { host, port });
    }
    let headers = array_at(to, "/httpHeaders").iter();
    let headers = headers
        .map(|header| (text_at(header, "/name").to_owned(), text_at(header, "/value").to_owned()));
    let path = match text_at(to, "/path") {
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let tls = text_at(to, "/scheme") == "HTTPS";
    Some(Handler::Http { host, port, path, headers: headers.collect(), tls })
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

    fn probe(field: &str, spec: Value) -> Probe {
        let container = json!({ field: spec, "ports": [{"name": "web", "containerPort": 81}] });
        Probe::all(&container, "127.1.2.3").pop().expect("a probe")
    }

    #[test]
    fn a_probes_handler_comes_from_its_spec() {
        let http = |host: &str, port, path: &str, tls| Handler::Http {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            headers: Vec::new(),
            tls,
        };
        for (spec, want) in [
            (json!({"exec": {"command": ["a", "b"]}}), Handler::Exec(vec!["a".into(), "b".into()])),
            (json!({"httpGet": {"port": 80}}), http("127.1.2.3", 80, "/", false)),
            (
                json!({"httpGet": {"port": "web", "path": "x?y", "host": "h", "scheme": "HTTPS"}}),
                http("h", 81, "/x?y", true),
            ),
            (
                json!({"tcpSocket": {"port": "90"}}),
                Handler::Tcp { host: "127.1.2.3".to_owned(), port: 90 },
            ),
            (
                json!({"tcpSocket": {"port": 70000}}),
                Handler::Invalid("invalid port number: 70000".to_owned()),
            ),
            (
                json!({"tcpSocket": {"port": "no"}}),
                Handler::Invalid("strconv.Atoi: parsing \"no\": invalid syntax".to_owned()),
            ),
        ] {
            assert_eq!(probe("livenessProbe", spec.clone()).handler, want, "{spec}");
        }
        let container = json!({"livenessProbe": {"grpc": {"port": 1}}});
        assert_eq!(Probe::all(&container, "i"), []);
        let probe = probe("startupProbe", json!({"tcpSocket": {"port": 1}}));
        assert_eq!((probe.delay_ms, probe.period_ms, probe.timeout_ms), (0, 10_000, 1000));
    }

    #[test]
    fn a_probe_changes_its_result_at_its_thresholds() {
        // `+` success, `-` failure; below each outcome the new result, `.` if it does not change.
        for (field, success, failure, outcomes, results) in [
            ("readinessProbe", 1, 3, "+--+---+", "+.....-+"),
            ("readinessProbe", 2, 1, "++-+-++", ".+-...+"),
            ("readinessProbe", 1, 1, "--++", "-.+."),
            ("livenessProbe", 1, 3, "+--+------", "+.....-..-"),
            ("livenessProbe", 1, 1, "--", "--"),
            ("startupProbe", 1, 2, "-+++", ".+.."),
            ("startupProbe", 1, 2, "--", ".-"),
        ] {
            let mut probe = probe(
                field,
                json!({"tcpSocket": {"port": 1},
                    "successThreshold": success, "failureThreshold": failure}),
            );
            let recorded: String = outcomes
                .chars()
                .map(|outcome| match probe.record(outcome == '+') {
                    None => '.',
                    Some(true) => '+',
                    Some(false) => '-',
                })
                .collect();
            assert_eq!(recorded, results, "{field} {success} {failure} {outcomes}");
        }
    }
}
