//! Lists applications by the labels of their Jobs and pods, for `posse apps` and `posse stop`.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::model::refusal::Refusal;
use crate::kube::api::objects::{Kind, Objects};
use crate::submit::plan::driver_selector;
use crate::submit::state::{
    DriverState, driver_status, exit_code, is_final, name_of, newest, state,
};
use crate::submit::workload::owned_pods;
use crate::wire::labels::{APP, COMPONENT, DRIVER, EXECUTORS, INSTANCE, MANAGED_BY};
use crate::wire::names;

/// One application.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    pub namespace: String,
    pub name: String,
    /// `None` if `posse submit` did not create its driver.
    pub state: Option<DriverState>,
    /// Executors that are running, and those that are not running yet. Terminating ones do not count.
    pub n_running: u64,
    pub n_pending: u64,
    /// The number of executors at start by its configuration, if known.
    pub n_wanted: Option<u64>,
    /// The name of the driver's newest pod.
    pub driver: Option<String>,
    pub node: Option<String>,
    pub instance: Option<String>,
    pub exit_code: Option<u8>,
    /// How many of the driver's pods have failed.
    pub n_failed: u64,
    /// The time of creation, in seconds since 1970.
    pub created_s: Option<i64>,
}

impl App {
    /// The format of `-o json`.
    pub fn to_json(&self, now_s: i64) -> Value {
        json!({
            "namespace": self.namespace,
            "app": self.name,
            "state": self.state.map(DriverState::as_str),
            "executors": { "running": self.n_running, "pending": self.n_pending,
                           "wanted": self.n_wanted },
            "driver": { "pod": self.driver, "node": self.node, "instance": self.instance,
                        "exit_code": self.exit_code, "failed": self.n_failed },
            "age_seconds": self.created_s.map(|created| (now_s - created).max(0)),
        })
    }

    /// `RUNNING/WANTED`, or only `RUNNING` if the wanted number is not known.
    pub fn executors(&self) -> String {
        match self.n_wanted {
            Some(wanted) => format!("{}/{wanted}", self.n_running),
            None => self.n_running.to_string(),
        }
    }
}

/// Finds the applications whose names match one of `patterns`, or all if there are no patterns.
pub fn find(objects: &Objects, patterns: &[String]) -> Result<Vec<App>, Refusal> {
    let (jobs, _) = objects.list(Kind::Job, &driver_selector(None), &|job| job)?;
    let of_posse = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let (pods, _) = objects.list(Kind::Pod, &of_posse, &reduce)?;
    let mut apps = group_by_app(&jobs, &pods);
    apps.retain(|app| patterns.is_empty() || patterns.iter().any(|one| matches(one, &app.name)));
    Ok(apps)
}

/// Keeps only the counted fields of an executor, because there may be thousands. Keeps drivers whole.
fn reduce(pod: Value) -> Value {
    if pod["metadata"]["labels"][COMPONENT.0] != COMPONENT.1 {
        return pod;
    }
    let meta = &pod["metadata"];
    json!({
        "metadata": { "namespace": meta["namespace"], "labels": meta["labels"],
            "creationTimestamp": meta["creationTimestamp"],
            "deletionTimestamp": meta["deletionTimestamp"] },
        "status": { "phase": pod["status"]["phase"] },
    })
}

/// The objects of one application.
#[derive(Default)]
struct AppObjects<'a> {
    job: Option<&'a Value>,
    drivers: Vec<Value>,
    executors: Vec<&'a Value>,
}

fn group_by_app(jobs: &[Value], pods: &[Value]) -> Vec<App> {
    let mut all: Vec<((&str, &str), AppObjects<'_>)> = Vec::new();
    for object in jobs.iter().chain(pods) {
        let Some(key) = key_of(object) else { continue };
        let at = all.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            all.push((key, AppObjects::default()));
            all.len() - 1
        });
        let parts = &mut all[at].1;
        match object["metadata"]["labels"][DRIVER.0].as_str() {
            // A pod has spec.containers, a Job does not.
            Some(component) if component == DRIVER.1 && object["spec"]["containers"].is_null() => {
                parts.job = Some(object);
            }
            Some(component) if component == DRIVER.1 => parts.drivers.push(object.clone()),
            Some(component) if component == COMPONENT.1 => parts.executors.push(object),
            Some(_) | None => {}
        }
    }
    all.sort_unstable_by_key(|(key, _)| *key);
    all.iter().map(|((namespace, name), parts)| app(namespace, name, parts)).collect()
}

fn key_of(object: &Value) -> Option<(&str, &str)> {
    let meta = &object["metadata"];
    Some((meta["namespace"].as_str()?, meta["labels"][APP].as_str()?))
}

fn app(namespace: &str, name: &str, parts: &AppObjects<'_>) -> App {
    let AppObjects { job, drivers, executors } = parts;
    let drivers = &owned_pods(*job, drivers.clone());
    let driver = newest(drivers);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let live: Vec<&&Value> = executors
        .iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null() && !is_final(pod))
        .collect();
    let n_running = live.iter().filter(|pod| pod["status"]["phase"] == "Running").count() as u64;
    let workload = job.or(driver);
    let created = workload.into_iter().chain(executors.iter().copied());
    let created = created.filter_map(|object| {
        let text = object["metadata"]["creationTimestamp"].as_str()?;
        text.parse().ok().map(|time: Timestamp| time.as_second())
    });
    let wanted = workload.and_then(|object| object["metadata"]["annotations"][EXECUTORS].as_str());
    let by_executor = executors.iter().find_map(|pod| text(&pod["metadata"]["labels"][INSTANCE]));
    App {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        state: workload.map(|_| state(*job, drivers)),
        n_running,
        n_pending: live.len() as u64 - n_running,
        n_wanted: wanted.and_then(|text| text.parse().ok()),
        driver: driver.map(|pod| name_of(pod).to_owned()),
        node: driver.and_then(|pod| text(&pod["spec"]["nodeName"])),
        instance: driver
            .and_then(|pod| pod["metadata"]["uid"].as_str())
            .map(names::instance_from_uid)
            .or(by_executor),
        exit_code: driver.and_then(exit_code),
        n_failed: job.and_then(|job| job["status"]["failed"].as_u64()).unwrap_or_else(|| {
            driver.and_then(|pod| driver_status(pod)["restartCount"].as_u64()).unwrap_or(0)
        }),
        created_s: match workload {
            Some(_) => created.take(1).next(),
            None => created.min(),
        },
    }
}

/// True if the name matches the pattern. `*` matches any characters, `?` matches one.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    // The position of the last star, and where the text that it matches ends.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match (pattern.get(p), star) {
            (Some(b'*'), _) => {
                star = Some((p, n));
                p += 1;
            }
            (Some(c), _) if *c == b'?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            (_, Some((at, from))) => {
                star = Some((at, from + 1));
                (p, n) = (at + 1, from + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// An age in the format of kubectl: at most two units.
pub fn age(seconds: i64) -> String {
    let s = seconds.max(0);
    let (m, h, d) = (s / 60, s / 3_600, s / 86_400);
    match () {
        () if s < 120 => format!("{s}s"),
        () if m < 10 => format!("{m}m{}s", s % 60),
        () if m < 180 => format!("{m}m"),
        () if h < 8 => format!("{h}h{}m", m % 60),
        () if h < 48 => format!("{h}h"),
        () if d < 8 => format!("{d}d{}h", h % 24),
        () => format!("{d}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (pattern, name, fits) in [
            ("wc", "wc", true),
            ("wc", "wc2", false),
            ("*", "wc", true),
            ("w*", "wc", true),
            ("*c", "wc", true),
            ("w?", "wc", true),
            ("w?", "w", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "aXcYb", false),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn ages_are_printed_as_kubectl_does() {
        for (s, want) in [
            (-1, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (601, "10m"),
            (4 * 3_600 + 60, "4h1m"),
            (20 * 3_600, "20h"),
            (3 * 86_400, "3d0h"),
            (30 * 86_400, "30d"),
        ] {
            assert_eq!(age(s), want);
        }
    }

    fn labelled(app: &str, component: &str, rest: Value) -> Value {
        let mut object = rest;
        object["metadata"]["namespace"] = json!("n");
        object["metadata"]["labels"] =
            json!({ APP: app, COMPONENT.0: component, INSTANCE: "k3f9x" });
        object
    }

    #[test]
    fn jobs_and_pods_are_grouped_by_application() {
        let made = "2026-01-01T00:00:00Z";
        let job = labelled(
            "wc",
            "driver",
            json!({"metadata": {"creationTimestamp": made, "uid": "j",
            "annotations": {EXECUTORS: "3"}}, "status": {"failed": 1}}),
        );
        let driver = labelled(
            "wc",
            "driver",
            json!({"metadata": {"name": "wc-driver-x", "uid": "u",
            "ownerReferences": [{"uid": "j"}]},
            "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"}}),
        );
        let executor = |app: &str, phase: &str| {
            labelled(
                app,
                "executor",
                json!({"metadata": {"creationTimestamp": made},
                "status": {"phase": phase}}),
            )
        };
        let mut terminating = executor("wc", "Running");
        terminating["metadata"]["deletionTimestamp"] = json!(made);
        // A pod of an earlier Job, not deleted yet.
        let old = labelled(
            "wc",
            "driver",
            json!({"metadata": {"name": "wc-driver-z", "uid": "old",
            "ownerReferences": [{"uid": "gone"}]}, "spec": {"containers": []},
            "status": {"phase": "Failed"}}),
        );
        let pods = [
            driver,
            old,
            executor("wc", "Running"),
            executor("wc", "Pending"),
            executor("wc", "Failed"),
            terminating,
            executor("outside", "Running"),
        ];
        let pods = pods.map(reduce);
        let apps = group_by_app(&[job], &pods);
        let [outside, wc] = apps.as_slice() else { panic!("{apps:?}") };
        assert_eq!((outside.state, outside.executors().as_str()), (None, "1"));
        assert_eq!(outside.instance.as_deref(), Some("k3f9x"));
        assert_eq!((wc.state, wc.executors().as_str()), (Some(DriverState::Running), "1/3"));
        assert_eq!((wc.n_pending, wc.n_failed, wc.node.as_deref()), (1, 1, Some("n1")));
        let shown = wc.to_json(1_767_225_600 + 5);
        assert_eq!(shown["age_seconds"], 5);
        assert_eq!(shown["driver"]["pod"], "wc-driver-x");
    }
}
