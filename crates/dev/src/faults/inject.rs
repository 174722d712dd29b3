//! Decides when a fault strikes: by chance, by count, before a request is executed or after it.
//! `server` and `watch` carry the faults out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::faults::{Fault, Faults};
use crate::schema::status::StatusError;
use crate::storage::object::metadata_mut;
use posse_base::rng::Rng;
use posse_base::sync::lock;
use posse_serve::Request;

/// The most version times kept for stale lists; the oldest are dropped first.
const VERSION_TIMES_MAX: usize = 4096;

/// The active faults and their random generators.
#[derive(Debug)]
pub(crate) struct Injector {
    seed: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    faults: Faults,
    /// One generator per fault, so that faults do not influence each other.
    rngs: BTreeMap<Fault, Rng>,
    /// When which version was current.
    version_times: VecDeque<(Instant, u64)>,
}

impl Injector {
    pub(crate) fn new(faults: Faults, seed: u64) -> Self {
        let inner = Inner { faults, rngs: BTreeMap::new(), version_times: VecDeque::new() };
        Self { seed, inner: Mutex::new(inner) }
    }

    pub(crate) fn in_force(&self) -> Faults {
        lock(&self.inner).faults.clone()
    }

    pub(crate) fn replace(&self, faults: Faults) {
        let mut inner = lock(&self.inner);
        inner.faults = faults;
        if inner.faults.number(Fault::StaleLists).is_none() {
            inner.version_times.clear();
        }
    }

    pub(crate) fn number(&self, fault: Fault) -> Option<u64> {
        lock(&self.inner).faults.number(fault)
    }

    /// The value as a duration in milliseconds.
    pub(crate) fn time(&self, fault: Fault) -> Option<Duration> {
        self.number(fault).map(Duration::from_millis)
    }

    /// The value in seconds, which may be negative. 0 if the fault is not active.
    pub(crate) fn seconds(&self, fault: Fault) -> i64 {
        lock(&self.inner).faults.values.get(&fault).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(crate) fn text(&self, fault: Fault) -> Option<String> {
        lock(&self.inner).faults.values.get(&fault).and_then(Value::as_str).map(str::to_owned)
    }

    /// True with the probability that the fault's value gives in percent.
    pub(crate) fn strikes(&self, fault: Fault) -> bool {
        let seed = self.seed.wrapping_add((fault as u64) << 32);
        let mut inner = lock(&self.inner);
        let Some(percent) = inner.faults.number(fault) else { return false };
        inner.rngs.entry(fault).or_insert_with(|| Rng::new(seed)).chance(percent)
    }

    /// True for as many calls as the fault's value says.
    pub(crate) fn counts_down(&self, fault: Fault) -> bool {
        let mut inner = lock(&self.inner);
        let left = inner.faults.number(fault).and_then(|n| n.checked_sub(1));
        match left {
            None | Some(0) => inner.faults.values.remove(&fault),
            Some(left) => inner.faults.values.insert(fault, left.into()),
        };
        left.is_some()
    }

    /// Remembers that this version is current at this time.
    pub(crate) fn remember(&self, at: Instant, version: u64) {
        let mut inner = lock(&self.inner);
        if inner.version_times.len() == VERSION_TIMES_MAX {
            inner.version_times.pop_front();
        }
        inner.version_times.push_back((at, version));
    }

    /// The old version that a stale list shows. `None` if the fault is not active.
    pub(crate) fn stale_version(&self, now: Instant) -> Option<u64> {
        let age = self.time(Fault::StaleLists)?;
        let inner = lock(&self.inner);
        let is_old = |(at, _): &&(Instant, u64)| now.saturating_duration_since(*at) >= age;
        let found =
            inner.version_times.iter().rev().find(is_old).or_else(|| inner.version_times.front());
        found.map(|(_, version)| *version)
    }

    /// True if the fault `node-loss` disconnects this node.
    pub(crate) fn is_lost(&self, node: &str) -> bool {
        let names = self.text(Fault::NodeLoss);
        names.is_some_and(|names| names.split(',').any(|name| name.trim() == node))
    }

    /// Removes labels from a new pod, as a mutating webhook could.
    pub(crate) fn strip_labels(&self, pod: &mut Value) {
        let Some(prefix) = self.text(Fault::StripLabels) else { return };
        let labels = metadata_mut(pod).get_mut("labels").and_then(Value::as_object_mut);
        if let Some(labels) = labels {
            labels.retain(|name, _| !name.starts_with(&prefix));
        }
    }
}

/// What happens to a request in place of its normal answer.
#[derive(Debug)]
pub(crate) enum Struck {
    Cut,
    Refused(StatusError),
}

/// How a list's body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Half of the body, then the connection is cut.
    Cut,
    Slow(Duration),
    /// Half of the body, with a clean end.
    Truncated,
    Whole,
}

fn is_write(request: &Request) -> bool {
    !matches!(request.method.as_str(), "GET" | "HEAD")
        && request.query("dryRun").is_none_or(str::is_empty)
        && !request.path.starts_with("/apis/authorization.k8s.io/")
}

fn is_pod_create(request: &Request) -> bool {
    request.method == "POST" && request.path.trim_end_matches('/').ends_with("/pods")
}

fn timed_out() -> Struck {
    Struck::Refused(StatusError::internal("etcdserver: request timed out"))
}

/// The fault that strikes a request before it is executed.
pub(crate) fn before(faults: &Injector, request: &Request) -> Option<Struck> {
    let creates = is_pod_create(request);
    let too_many = faults.strikes(Fault::All429) || (creates && faults.strikes(Fault::Create429));
    if too_many {
        let mut refused = StatusError::too_many_requests();
        if let Some(seconds) = faults.number(Fault::RetryAfter) {
            let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
            refused.retry_after_seconds = Some(seconds);
            refused.details = Some(serde_json::json!({ "retryAfterSeconds": seconds }));
        }
        return Some(Struck::Refused(refused));
    }
    if !is_write(request) {
        return None;
    }
    let fails = match request.method.as_str() {
        "POST" => creates && faults.strikes(Fault::Create500),
        _ => faults.strikes(Fault::Write500),
    };
    match (fails, faults.strikes(Fault::CutBefore)) {
        (true, _) => Some(timed_out()),
        (false, true) => Some(Struck::Cut),
        (false, false) => None,
    }
}

/// The fault that strikes a request after it was executed with this result.
pub(crate) fn after(faults: &Injector, request: &Request, code: u16) -> Option<Struck> {
    if !is_write(request) || !(200..300).contains(&code) {
        return None;
    }
    let fails = match request.method.as_str() {
        "POST" => is_pod_create(request) && faults.strikes(Fault::Create500After),
        _ => faults.strikes(Fault::Write500After),
    };
    match (fails, faults.strikes(Fault::CutAfter)) {
        (true, _) => Some(timed_out()),
        (false, true) => Some(Struck::Cut),
        (false, false) => None,
    }
}

impl Body {
    /// How the body of a list is sent under the active faults.
    pub(crate) fn of_list(faults: &Injector) -> Self {
        match (faults.strikes(Fault::CutList), faults.strikes(Fault::TruncatedList)) {
            (true, _) => Self::Cut,
            (false, true) => Self::Truncated,
            (false, false) => faults.time(Fault::SlowBody).map_or(Self::Whole, Self::Slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injector(seed: u64, pairs: &[(&str, &str)]) -> Injector {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Injector::new(Faults::parse(&pairs).expect("known faults"), seed)
    }

    #[test]
    fn random_faults_depend_on_the_seed_and_not_on_each_other() {
        let draws = |seed: u64, others: bool| -> Vec<bool> {
            let faults = injector(seed, &[("create-500", "50"), ("cut-after", "50")]);
            let mut draws = Vec::new();
            for _ in 0..64 {
                if others {
                    faults.strikes(Fault::CutAfter);
                }
                draws.push(faults.strikes(Fault::Create500));
            }
            draws
        };
        assert_eq!(draws(7, false), draws(7, true));
        assert_ne!(draws(7, false), draws(8, false));
        assert!(draws(7, false).contains(&true) && draws(7, false).contains(&false));
    }

    #[test]
    fn only_writes_are_cut() {
        let all =
            injector(1, &[("cut-before", "100"), ("write-500", "100"), ("create-500", "100")]);
        let request = |method: &str, path: &str, query: &[(&str, &str)]| {
            let query =
                query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let mut request = Request::default();
            (request.method, request.path, request.query) =
                (method.to_owned(), path.to_owned(), query);
            request
        };
        let pods = "/api/v1/namespaces/n/pods";
        for (request, want) in [
            (request("GET", pods, &[]), None),
            (request("POST", pods, &[("dryRun", "All")]), None),
            (request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &[]), None),
            (request("POST", pods, &[]), Some(true)),
            (request("POST", "/api/v1/namespaces/n/configmaps", &[]), Some(false)),
            (request("DELETE", "/api/v1/namespaces/n/pods/a", &[]), Some(true)),
        ] {
            let answered = before(&all, &request).map(|struck| match struck {
                Struck::Cut => false,
                Struck::Refused(refused) => refused.code == 500,
            });
            assert_eq!(answered, want, "{} {}", request.method, request.path);
        }
    }

    #[test]
    fn a_counted_fault_ends_after_its_count() {
        let faults = injector(1, &[("gone", "2")]);
        let struck: Vec<bool> = (0..4).map(|_| faults.counts_down(Fault::Gone)).collect();
        assert_eq!(struck, [true, true, false, false]);
        assert_eq!(faults.in_force(), Faults::default());
    }
}
