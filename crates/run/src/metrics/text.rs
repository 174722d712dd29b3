//! The metrics of a scrape with their names, types and labels. `docs/MONITORING.md` lists them.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::kube_events::SentCounts;
use crate::metrics::process::ProcessUsage;
use crate::metrics::recorder::{CREATED, Counted, FOREIGN, GroupCounts};
use posse_base::time::Millis;
use posse_core::model::event::{Budget, LossReason, RestartKind};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::status::{GroupStatus, State};
use posse_kube::http::RequestCounts;
use posse_wire::control::exposition::Exposition;
use posse_wire::control::exposition::MetricType::{Counter, Gauge, Histogram};

/// The work queue that the inbox is to monitoring made for controllers.
const QUEUE: &[(&str, &str)] = &[("name", "inbox")];

/// What is known at the time of a scrape, beside the counters.
pub(super) struct Scrape<'a> {
    pub app: &'a str,
    pub started_at: SystemTime,
    pub requests: &'a RequestCounts,
    pub usage: ProcessUsage,
    pub sent: &'a SentCounts,
    /// The seconds since a moment.
    pub since: &'a dyn Fn(Millis) -> f64,
}

impl Scrape<'_> {
    /// The whole text.
    pub(super) fn write(&self, counted: &Counted) -> String {
        let mut text = Exposition::default();
        let labels = [("app", self.app), ("version", env!("CARGO_PKG_VERSION"))];
        text.metric("posse_info", Gauge, "The application and the version of posse.")
            .sample(&labels, 1.0);
        write_leader(&mut text, counted);
        write_groups(&mut text, counted);
        write_waits(&mut text, counted);
        write_losses(&mut text, counted);
        write_creates(&mut text, counted);
        self.write_server(&mut text, counted);
        self.write_credentials(&mut text, counted);
        write_turns(&mut text, counted);
        self.write_kubernetes_events(&mut text);
        self.write_requests(&mut text);
        self.write_process(&mut text);
        text.finish()
    }

    fn write_server(&self, text: &mut Exposition, counted: &Counted) {
        let help = "Seconds since the API server last answered or sent anything.";
        text.metric("posse_server_last_answer_age_seconds", Gauge, help);
        if let Some(at) = counted.heard_at {
            text.sample(&[], (self.since)(at));
        }
        let help = "Seconds for which requests to the API server or its watches have failed; 0 if they succeed.";
        text.metric("posse_server_outage_seconds", Gauge, help)
            .sample(&[], counted.outage_since.map_or(0.0, self.since));
        let help = "How often the watch was restarted, by cause.";
        text.metric("posse_watch_restarts_total", Counter, help);
        for kind in RestartKind::ALL {
            let n = counted.restarts.get(&kind).copied().unwrap_or(0);
            text.count(&[("cause", kind.as_str())], n);
        }
    }

    fn write_credentials(&self, text: &mut Exposition, counted: &Counted) {
        let help = "Seconds since the credentials were last renewed.";
        text.metric("posse_credentials_age_seconds", Gauge, help);
        for (name, at) in &counted.credentials {
            text.sample(&[("name", name)], (self.since)(*at));
        }
    }

    fn write_kubernetes_events(&self, text: &mut Exposition) {
        let help = "Requests for Events on the driver's pod, and what was left out, by outcome.";
        text.metric("posse_kubernetes_events_total", Counter, help);
        for (outcome, n) in self.sent.read() {
            text.count(&[("outcome", outcome)], n);
        }
    }

    fn write_requests(&self, text: &mut Exposition) {
        let help = "Requests to the API server, by method and status code.";
        text.metric("rest_client_requests_total", Counter, help);
        for ((method, status), n) in &self.requests.by_status {
            let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
            text.count(&[("code", &code), ("method", method)], *n);
        }
        let help = "Seconds until the API server began to answer a request.";
        text.metric("rest_client_request_duration_seconds", Histogram, help);
        for (method, seconds) in &self.requests.seconds {
            text.histogram(&[("verb", method)], seconds);
        }
    }

    fn write_process(&self, text: &mut Exposition) {
        let ProcessUsage { cpu_s, virtual_bytes, resident_bytes, open_fds, max_fds } = self.usage;
        text.metric("process_cpu_seconds_total", Counter, "User and system CPU seconds.")
            .sample(&[], cpu_s);
        for (name, help, value) in [
            ("process_max_fds", "Most open file descriptors.", max_fds),
            ("process_open_fds", "Open file descriptors.", open_fds),
            ("process_resident_memory_bytes", "Resident memory.", resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory.", virtual_bytes),
        ] {
            text.metric(name, Gauge, help);
            if let Some(value) = value {
                text.count(&[], value);
            }
        }
        let since = self.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        text.metric("process_start_time_seconds", Gauge, "Start time in seconds since 1970.")
            .sample(&[], since.as_secs_f64());
    }
}

fn write_leader(text: &mut Exposition, counted: &Counted) {
    let help = "1 if this process acts, 0 while it waits for the Lease of another.";
    text.metric("posse_leader", Gauge, help).count(&[], counted.leads.into());
    let help =
        "Seconds for which nobody acted before this process took over; absent if it is the first.";
    text.metric("posse_takeover_seconds", Gauge, help);
    if let Some(seconds) = counted.takeover_s {
        text.sample(&[], seconds);
    }
}

fn write_groups(text: &mut Exposition, counted: &Counted) {
    let groups = || counted.groups.values().filter_map(|group| group.status.as_ref());
    text.metric("posse_executors", Gauge, "Executors by group and state.");
    for group in groups() {
        for (state, n) in by_state(group) {
            text.count(&[("group", group.group.as_str()), ("state", state.as_str())], n.into());
        }
    }
    text.metric("posse_target_executors", Gauge, "The target of each group.");
    for group in groups() {
        text.count(&[("group", group.group.as_str())], group.target.into());
    }
    let help = "How many executors each group should have: the target, and one for each task that may run.";
    text.metric("posse_wanted_executors", Gauge, help);
    for group in groups() {
        text.count(&[("group", group.group.as_str())], group.wanted.into());
    }
    let help = "Seconds from the request of an executor until its main container runs.";
    text.metric("posse_executor_start_seconds", Histogram, help);
    write_histograms(text, counted, |group| &group.starts);
    let help = "Seconds from the loss of an executor until its replacement runs.";
    text.metric("posse_executor_replacement_seconds", Histogram, help);
    write_histograms(text, counted, |group| &group.replacements);
}

fn write_histograms(
    text: &mut Exposition,
    counted: &Counted,
    of: impl Fn(&GroupCounts) -> &posse_wire::control::exposition::Histogram,
) {
    for (name, group) in &counted.groups {
        text.histogram(&[("group", name.as_str())], of(group));
    }
}

fn by_state(group: &GroupStatus) -> [(State, u32); 7] {
    [
        (State::Requested, group.requested),
        (State::Pending, group.pending),
        (State::Running, group.running),
        (State::Draining, group.draining),
        (State::Terminating, group.terminating),
        (State::Failed, group.failed),
        (State::Completed, group.completed),
    ]
}

fn write_waits(text: &mut Exposition, counted: &Counted) {
    text.metric("posse_waiting", Gauge, "1 for what each group waits for now.");
    for status in counted.groups.values().filter_map(|group| group.status.as_ref()) {
        if let Some(waiting) = status.waiting {
            text.sample(&[("group", status.group.as_str()), ("reason", waiting.as_str())], 1.0);
        }
    }
    let help = "Nodes that new executors avoid.";
    text.metric("posse_avoided_nodes", Gauge, help).count(&[], counted.n_avoided_nodes as u64);
}

fn write_losses(text: &mut Exposition, counted: &Counted) {
    let help = "Lost executors by reason and failure budget.";
    text.metric("posse_executors_lost_total", Counter, help);
    let usual = LossReason::ALL.map(|reason| ((reason, reason.budget()), 0));
    let mut losses = BTreeMap::from(usual);
    losses.extend(counted.losses.iter().map(|(key, n)| (*key, *n)));
    for ((reason, budget), n) in losses {
        let budget = budget.map_or("none", Budget::as_str);
        text.count(&[("budget", budget), ("reason", reason.as_str())], n);
    }
    text.metric("posse_budget_limit", Gauge, "The most losses of a failure budget.");
    for one in &counted.budgets {
        text.count(&[("budget", one.budget.as_str())], one.limit);
    }
    let help = "How many more losses a failure budget takes. One more ends the application.";
    text.metric("posse_budget_left", Gauge, help);
    for one in &counted.budgets {
        text.count(&[("budget", one.budget.as_str())], one.left);
    }
}

fn write_creates(text: &mut Exposition, counted: &Counted) {
    let help = "Answers to creates of executors by outcome.";
    text.metric("posse_creates_total", Counter, help);
    let classes = RefusalClass::ALL.into_iter().map(RefusalClass::as_str);
    for outcome in [CREATED, FOREIGN].into_iter().chain(classes) {
        let n = counted.creates.get(outcome).copied().unwrap_or(0);
        text.count(&[("outcome", outcome)], n);
    }
}

fn write_turns(text: &mut Exposition, counted: &Counted) {
    text.metric("posse_turn_seconds", Histogram, "Seconds of a turn of the reconciler.")
        .histogram(&[], &counted.turns);
    let help = "Messages to the reconciler.";
    text.metric("workqueue_adds_total", Counter, help).count(QUEUE, counted.n_messages);
    let help = "Messages that the reconciler had not taken after its last turn.";
    text.metric("workqueue_depth", Gauge, help).count(QUEUE, counted.n_waiting as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The labels must not depend on anything but posse's own words, so an empty run has most of
    /// them: a rate then counts the first increase, too.
    #[test]
    fn counters_exist_before_they_count() {
        let usage = ProcessUsage {
            cpu_s: 0.5,
            virtual_bytes: None,
            resident_bytes: Some(4096),
            open_fds: Some(7),
            max_fds: None,
        };
        let scrape = Scrape {
            app: "shop",
            started_at: UNIX_EPOCH,
            requests: &RequestCounts::default(),
            usage,
            sent: &SentCounts::default(),
            since: &|_| 3.0,
        };
        let text = scrape.write(&Counted::default());
        for line in [
            concat!("posse_info{app=\"shop\",version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
            "posse_executors_lost_total{budget=\"app\",reason=\"oom_killed\"} 0",
            "posse_executors_lost_total{budget=\"none\",reason=\"deadline_exceeded\"} 0",
            "posse_creates_total{outcome=\"created\"} 0",
            "posse_creates_total{outcome=\"capacity\"} 0",
            "posse_watch_restarts_total{cause=\"expired\"} 0",
            "posse_kubernetes_events_total{outcome=\"dropped\"} 0",
            "posse_server_outage_seconds 0",
            "workqueue_depth{name=\"inbox\"} 0",
            "process_cpu_seconds_total 0.5",
            "process_open_fds 7",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
        let mut samples: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name)
            .collect();
        let n = samples.len();
        samples.sort_unstable();
        samples.dedup();
        assert_eq!(samples.len(), n, "a sample occurs twice\n{text}");
    }
}
