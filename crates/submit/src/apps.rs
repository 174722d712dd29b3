//! Lists applications by the labels of their Jobs and pods, for `posse apps` and `posse stop`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::no_pod::why_no_pod;
use crate::plan::driver_selector;
use crate::state::{DriverState, exit_code, newest, running_rest, state};
use crate::workload::owned_pods;
use posse_core::model::pod::Phase;
use posse_core::model::refusal::Refusal;
use posse_core::policy::resource_hours::{Cost, Reserved};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::error::WireError;
use posse_wire::k8s::job::Job;
use posse_wire::k8s::labels::{
    APP, COMPONENT, DRIVER, EXECUTORS, GROUP, INSTANCE, MANAGED_BY, TAKEOVER,
};
use posse_wire::k8s::object::Meta;
use posse_wire::k8s::takeover::Takeover;
use posse_wire::names;
use posse_wire::pod::details::PodDetails;

/// One application.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    pub namespace: String,
    /// The URL of the API server of a run on this host that uses another cluster than the listed one.
    pub server: Option<String>,
    pub name: String,
    /// `None` if `posse submit` did not create its driver.
    pub state: Option<DriverState>,
    /// Executors that are running, and those that are not running yet. Terminating ones do not count.
    pub n_running: u64,
    pub n_pending: u64,
    /// Executors that have failed and whose pods are still there.
    pub n_failed: u64,
    /// The executors that the server has, by group. Those of a run on this host are not known to it with another cluster.
    pub groups: BTreeMap<String, GroupUse>,
    /// Why the driver's Job has no pod, else why most of the pending ones do not run, in the word of the scheduler or the
    /// kubelet.
    pub waiting: Option<String>,
    /// The number of executors at start by its configuration, if known.
    pub n_wanted: Option<u64>,
    /// The name of the driver's newest pod.
    pub driver: Option<String>,
    pub node: Option<String>,
    /// What runs on in that pod after the driver's end: the Job makes no other one meanwhile.
    pub rest: Vec<String>,
    /// The pods that wait for its Lease.
    pub standby: Vec<String>,
    /// How it came to act.
    pub takeover: Option<Takeover>,
    pub instance: Option<String>,
    pub exit_code: Option<u8>,
    /// How many of the driver's pods have failed.
    pub n_failed_drivers: u64,
    /// The time of creation, in seconds since 1970.
    pub created_s: Option<i64>,
}

/// The executors of a group that the server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUse {
    pub n_running: u64,
    pub n_pending: u64,
    /// Of all of them, also of those that have ended and are not deleted.
    pub cost: Cost,
}

impl GroupUse {
    fn to_json(self) -> Value {
        json!({
            "running": self.n_running,
            "pending": self.n_pending,
            "cpu_hours": self.cost.cpu_hours(),
            "memory_gib_hours": self.cost.memory_hours(),
        })
    }
}

impl App {
    /// The cost of all groups.
    pub fn cost(&self) -> Cost {
        self.groups.values().fold(Cost::default(), |sum, group| sum.plus(group.cost))
    }

    /// The format of `-o json`.
    pub fn to_json(&self, now_s: i64) -> Value {
        let groups = self.groups.iter().map(|(name, group)| (name.clone(), group.to_json()));
        let groups: Map<String, Value> = groups.collect();
        json!({
            "namespace": self.namespace,
            "server": self.server,
            "app": self.name,
            "state": self.state.map(DriverState::as_str),
            "executors": { "running": self.n_running, "pending": self.n_pending,
                           "failed": self.n_failed, "wanted": self.n_wanted },
            "waiting": self.waiting,
            "groups": groups,
            "driver": { "pod": self.driver, "node": self.node, "instance": self.instance,
                        "exit_code": self.exit_code, "failed": self.n_failed_drivers,
                        "rest": self.rest, "standby": self.standby, "takeover": self.takeover },
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
    let (jobs, _) = objects.list(Kind::Job, &driver_selector(None), &Job::parse)?;
    let of_posse = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let (pods, _) = objects.list(Kind::Pod, &of_posse, &AppPod::parse)?;
    let no_pod = |job: &Job, drivers: &[PodDetails]| why_no_pod(objects, job, drivers);
    let mut apps = group_by_app(jobs, pods, Timestamp::now().as_second(), &no_pod);
    apps.retain(|app| patterns.is_empty() || patterns.iter().any(|one| matches(one, &app.name)));
    Ok(apps)
}

/// A pod of an application.
enum AppPod {
    Driver(Box<PodDetails>),
    Executor(Executor),
    /// A pod with another role.
    Other,
}

/// What counts of an executor: there may be thousands.
struct Executor {
    key: Option<AppKey>,
    instance: Option<String>,
    created_s: Option<i64>,
    runs: bool,
    has_failed: bool,
    is_live: bool,
    group: String,
    pending_reason: Option<String>,
    reserved: Reserved,
    /// When a node took it, and when it ended.
    started_s: Option<i64>,
    ended_s: Option<i64>,
}

/// Namespace and name of an application.
type AppKey = (String, String);

impl AppPod {
    fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let pod = PodDetails::parse(bytes)?;
        let meta = &pod.meta;
        let component = meta.label(COMPONENT.0);
        Ok(match component {
            Some(component) if component == DRIVER.1 => Self::Driver(Box::new(pod)),
            Some(component) if component == COMPONENT.1 => Self::Executor(Executor {
                key: key_of(meta),
                instance: meta.label(INSTANCE).map(str::to_owned),
                created_s: created_s(meta),
                runs: pod.runs(),
                has_failed: pod.facts.phase == Phase::Failed,
                is_live: pod.is_live(),
                group: meta.label(GROUP).unwrap_or_default().to_owned(),
                pending_reason: pod.pending_reason().map(str::to_owned),
                reserved: pod.spec.reserved,
                started_s: pod.status.start_time.as_deref().and_then(seconds),
                ended_s: pod.finished_at().and_then(seconds),
            }),
            Some(_) | None => Self::Other,
        })
    }
}

/// The objects of one application.
#[derive(Default)]
struct AppObjects {
    job: Option<Job>,
    drivers: Vec<PodDetails>,
    executors: Vec<Executor>,
}

/// Why a Job with these pods has none that could run.
type NoPod<'a> = &'a dyn Fn(&Job, &[PodDetails]) -> Option<String>;

fn group_by_app(jobs: Vec<Job>, pods: Vec<AppPod>, now_s: i64, no_pod: NoPod<'_>) -> Vec<App> {
    let mut all: BTreeMap<AppKey, AppObjects> = BTreeMap::new();
    for job in jobs {
        let Some(key) = key_of(&job.meta) else { continue };
        all.entry(key).or_default().job = Some(job);
    }
    for pod in pods {
        match pod {
            AppPod::Driver(pod) => {
                let Some(key) = key_of(&pod.meta) else { continue };
                all.entry(key).or_default().drivers.push(*pod);
            }
            AppPod::Executor(mut pod) => {
                let Some(key) = pod.key.take() else { continue };
                all.entry(key).or_default().executors.push(pod);
            }
            AppPod::Other => {}
        }
    }
    all.into_iter().map(|(key, parts)| app(key, parts, now_s, no_pod)).collect()
}

fn key_of(meta: &Meta) -> Option<AppKey> {
    Some((meta.namespace.clone(), meta.label(APP)?.to_owned()))
}

/// The time of creation, in seconds since 1970.
fn created_s(meta: &Meta) -> Option<i64> {
    seconds(meta.creation_timestamp.as_ref()?)
}

fn seconds(time: &str) -> Option<i64> {
    time.parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// The executors by group.
fn groups(executors: &[Executor], now_s: i64) -> BTreeMap<String, GroupUse> {
    let mut groups: BTreeMap<String, GroupUse> = BTreeMap::new();
    for pod in executors {
        let group = groups.entry(pod.group.clone()).or_default();
        if pod.is_live && pod.runs {
            group.n_running += 1;
        } else if pod.is_live {
            group.n_pending += 1;
        }
        if let Some(started_s) = pod.started_s {
            let ended_s = pod.ended_s.unwrap_or(now_s);
            group.cost = group.cost.plus(Cost::of(pod.reserved, started_s, ended_s));
        }
    }
    groups
}

/// The reason that most pending executors have; of several, the first by name.
fn waiting(live: &[&Executor]) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let pending = live.iter().filter(|pod| !pod.runs);
    for reason in pending.filter_map(|pod| pod.pending_reason.as_deref()) {
        *counts.entry(reason).or_default() += 1;
    }
    let most = counts.into_iter().rev().max_by_key(|(_, n)| *n);
    most.map(|(reason, _)| reason.to_owned())
}

fn app((namespace, name): AppKey, parts: AppObjects, now_s: i64, no_pod: NoPod<'_>) -> App {
    let AppObjects { job, drivers, executors } = parts;
    let drivers = &owned_pods(job.as_ref(), drivers);
    let driver = newest(drivers);
    let live: Vec<&Executor> = executors.iter().filter(|pod| pod.is_live).collect();
    let n_running = live.iter().filter(|pod| pod.runs).count() as u64;
    let workload = job.as_ref().map(|job| &job.meta).or_else(|| Some(&driver?.meta));
    // What the run wants now, else what was submitted.
    let by_run = driver.filter(|pod| pod.is_live()).and_then(|pod| pod.meta.annotation(EXECUTORS));
    let wanted = by_run.or_else(|| workload?.annotation(EXECUTORS));
    let by_executor = executors.iter().find_map(|pod| pod.instance.clone());
    // The pod's own name, or its Job's, whose executors outlive it.
    let uids =
        driver.map(|pod| pod.uid()).into_iter().chain(job.as_ref().map(|job| &*job.meta.uid));
    let names: Vec<String> = uids.map(names::instance_from_uid).collect();
    let shown =
        names.iter().find(|name| by_executor.as_ref() == Some(name)).or_else(|| names.first());
    App {
        namespace,
        server: None,
        name,
        state: workload.map(|_| state(job.as_ref(), drivers)),
        n_running,
        n_pending: live.len() as u64 - n_running,
        n_failed: executors.iter().filter(|pod| pod.has_failed).count() as u64,
        groups: groups(&executors, now_s),
        waiting: job.as_ref().and_then(|job| no_pod(job, drivers)).or_else(|| waiting(&live)),
        n_wanted: wanted.and_then(|text| text.parse().ok()),
        driver: driver.map(|pod| pod.name().to_owned()),
        node: driver.and_then(|pod| pod.facts.node.as_deref()).map(str::to_owned),
        rest: driver.map(running_rest).into_iter().flatten().map(str::to_owned).collect(),
        standby: standbys(job.as_ref(), drivers, driver),
        takeover: driver.and_then(|pod| Takeover::parse(pod.meta.annotation(TAKEOVER)?)),
        instance: shown.cloned().or(by_executor),
        // posse has written the Job's own: a pod may be gone.
        exit_code: job.as_ref().and_then(Job::exit_code).or_else(|| driver.and_then(exit_code)),
        n_failed_drivers: match &job {
            Some(job) => job.status.failed,
            None => driver.map_or(0, PodDetails::restarts),
        },
        created_s: match workload {
            Some(meta) => created_s(meta),
            None => executors.iter().filter_map(|pod| pod.created_s).min(),
        },
    }
}

/// The pods of a Job with a standby that could go on with its run.
fn standbys(job: Option<&Job>, drivers: &[PodDetails], leader: Option<&PodDetails>) -> Vec<String> {
    let has_some = job.is_some_and(|job| job.spec.parallelism.is_some_and(|n| n > 1));
    let others = drivers.iter().filter(|pod| has_some && pod.is_live());
    let others = others.filter(|pod| leader.is_none_or(|leader| leader.uid() != pod.uid()));
    others.map(|pod| pod.name().to_owned()).collect()
}

/// True if it is a pattern of names, and not one name.
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?'])
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
            "annotations": {EXECUTORS: "3"}}, "status": {"failed": 2}}),
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
                json!({"metadata": {"name": "x", "uid": "x", "creationTimestamp": made},
                "spec": {"containers": [{"name": "e", "resources": {"requests": {"cpu": 1}}}]},
                "status": {"phase": phase}}),
            )
        };
        let executor = |app: &str, phase: &str| {
            let mut pod = executor(app, phase);
            pod["metadata"]["labels"][GROUP] = json!("big");
            match phase {
                // It waits, and has no node.
                "Pending" => {
                    pod["status"]["conditions"] = json!([
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
                }
                "Failed" => {}
                _ => pod["status"]["startTime"] = json!(made),
            }
            pod
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
        let pods = pods.map(|pod| AppPod::parse(pod.to_string().as_bytes()).unwrap());
        let job = Job::parse(job.to_string().as_bytes()).unwrap();
        let apps = group_by_app(vec![job], pods.into(), 1_767_225_600 + 3_600, &|_, _| None);
        let [outside, wc] = apps.as_slice() else { panic!("{apps:?}") };
        assert_eq!((outside.state, outside.executors().as_str()), (None, "1"));
        assert_eq!(outside.instance.as_deref(), Some("k3f9x"));
        assert_eq!((wc.state, wc.executors().as_str()), (Some(DriverState::Running), "1/3"));
        assert_eq!((wc.n_pending, wc.n_failed, wc.n_failed_drivers), (1, 1, 2));
        assert_eq!(wc.node.as_deref(), Some("n1"));
        let shown = wc.to_json(1_767_225_600 + 5);
        assert_eq!(shown["age_seconds"], 5);
        assert_eq!(shown["waiting"], "Unschedulable");
        let group = json!({"running": 1, "pending": 1, "cpu_hours": 2.0, "memory_gib_hours": 0.0});
        assert_eq!(shown["groups"], json!({"big": group}));
        assert_eq!(shown["driver"]["pod"], "wc-driver-x");
    }

    #[test]
    fn what_runs_on_beside_an_ended_driver_is_named() {
        let driver = |proxy: Value| {
            let driver = labelled(
                "wc",
                "driver",
                json!({"metadata": {"name": "d", "uid": "u", "ownerReferences": [{"uid": "j"}]},
                "spec": {"containers": [{"name": "driver"}, {"name": "proxy"}]},
                "status": {"phase": "Running", "containerStatuses": [
                    {"name": "driver", "state": {"terminated": {"exitCode": 137}}},
                    {"name": "proxy", "state": proxy}]}}),
            );
            AppPod::parse(driver.to_string().as_bytes()).unwrap()
        };
        let job = labelled("wc", "driver", json!({"metadata": {"uid": "j"}}));
        let job = Job::parse(job.to_string().as_bytes()).unwrap();
        let proxy = json!({"running": {}});
        let apps = group_by_app(vec![job], vec![driver(proxy)], 0, &|_, _| None);
        assert_eq!(apps[0].state, Some(DriverState::Retrying));
        assert_eq!(apps[0].to_json(0)["driver"]["rest"], json!(["proxy"]));
    }

    #[test]
    fn a_run_that_lives_tells_what_it_wants_now() {
        for (phase, want) in [("Running", "0/5"), ("Failed", "0/3")] {
            let meta = |uid: &str, n: &str| json!({"name": uid, "uid": uid, "annotations": {EXECUTORS: n}});
            let job = labelled("wc", "driver", json!({"metadata": meta("j", "3")}));
            let mut driver = labelled(
                "wc",
                "driver",
                json!({"metadata": meta("d", "5"),
                "spec": {"containers": []}, "status": {"phase": phase}}),
            );
            driver["metadata"]["ownerReferences"] = json!([{"uid": "j"}]);
            let job = Job::parse(job.to_string().as_bytes()).unwrap();
            let driver = AppPod::parse(driver.to_string().as_bytes()).unwrap();
            assert_eq!(
                group_by_app(vec![job], vec![driver], 0, &|_, _| None)[0].executors(),
                want,
                "{phase}"
            );
        }
    }
}
