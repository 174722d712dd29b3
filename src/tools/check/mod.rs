//! `posse check`: checks whether a run would work, and prints what to do about each problem. Changes
//! nothing: pods are created as dry runs only.

use std::io::Write;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::args::tools::CheckArgs;
use crate::args::{FileArgs, RunArgs};
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use crate::listing::print_listing;
use crate::required_permissions::{Permission, list, missing, of_rules};
use crate::settings;
use crate::shown_identity::shown_identity;
use crate::tools::check::permissions::{missing_for_secret, needed, optional, role};
use crate::tools::check::quota::RunUsage;
use crate::tools::check::report::{Report, Status};
use crate::world::World;
use posse_core::model::ids::ExecutorId;
use posse_core::model::pod_text::PodOverrides;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_encoding::amounts::{Amounts, claim_usage, object_usage, pod_usage};
use posse_kube::api::objects::Objects;
use posse_kube::api::pods::Pods;
use posse_kube::api::preflight;
use posse_kube::http::TransportError;
use posse_run::credentials::store::SecretStore;
use posse_run::run::context::driver_host_problem;
use posse_run::run::settings::{GroupSettings, RunSettings};
use posse_wire::config::DriverPod;
use posse_wire::control::task_secrets::secret_name;
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::permissions::LEASES;
use posse_wire::k8s::preflight::Namespace;
use posse_wire::time::http_date_ms;

mod adopters;
mod budgets;
mod permissions;
mod queues;
mod quota;
mod report;

/// A smaller clock difference is ignored, because the server's `Date` has whole seconds.
const SKEW_MS_MAX: i64 = 5_000;
/// Part of what the server says to a pod that its namespace does not allow.
const INSECURE: &str = "violates PodSecurity";
/// A run would end at its start with exit code 3.
const UNREACHABLE: Status = Status::Failed(Code::Server);

/// `posse check`.
///
/// # Errors
/// The settings are invalid, or stdout is closed. Problems at the server are part of the report, which
/// has an exit code.
pub fn check(args: &CheckArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let settings = match are_absent(&args.file, world) {
        true => None,
        false => {
            let (file, server) = (args.file.clone(), args.server.clone());
            let run = RunArgs { file, server, ..RunArgs::default() };
            Some(settings::run_settings(&run, world)?)
        }
    };
    let connection = Connection::told(&args.server, world)?;
    let named = args.file.namespace.clone();
    let named = named.or_else(|| settings.as_ref().and_then(|run| run.namespace.clone()));
    let namespace = named.unwrap_or_else(|| connection.namespace.clone());
    let (executors, insecure) = (Vec::new(), Vec::new());
    let mut checks =
        Checks { settings, connection, namespace, executors, insecure, report: Report::default() };
    checks.run();
    let report = checks.report;
    print_listing(&report, args.output, out).map(|_| report.code())
}

/// True if there is neither a configuration file nor a flag that replaces it.
fn are_absent(args: &FileArgs, world: &World<'_>) -> bool {
    let is_flagged =
        args.app.is_some() || settings::group_flags(args).iter().any(|(_, given)| *given);
    !is_flagged && !settings::has_file(args, world)
}

/// The state of the checks.
struct Checks {
    /// `None` if there is no configuration.
    settings: Option<RunSettings>,
    connection: Connection,
    namespace: String,
    /// The labels of each group's executors.
    executors: Vec<Map<String, Value>>,
    /// The groups whose pods the namespace's level of pod security refuses.
    insecure: Vec<String>,
    report: Report,
}

impl Checks {
    fn run(&mut self) {
        if !self.reach() {
            return;
        }
        let Ok(user) = self.identity() else { return };
        let namespace = self.namespace();
        self.permissions(user.as_deref());
        self.secrets();
        let usage = self.templates();
        self.queues(namespace.as_ref());
        self.pod_security(namespace.as_ref());
        self.limits();
        self.quota(usage.as_ref());
        self.adopters();
        self.budgets();
        self.driver_host();
    }

    /// True if the server answers.
    fn reach(&mut self) -> bool {
        let server = self.connection.http.server().to_owned();
        let is_tls = server.starts_with("https:");
        let reached = match preflight::probe_server(&self.connection.http) {
            Ok(reached) => reached,
            Err(TransportError::Tls { problem, remedy }) => {
                self.report.add("reach", Status::Ok, format!("{server} accepts connections"));
                self.report.advise("tls", UNREACHABLE, problem, remedy);
                return false;
            }
            Err(error @ TransportError::Credentials(_)) => {
                let remedy = "log in again, or correct the user's entry in the kubeconfig";
                self.report.advise("identity", UNREACHABLE, error.to_string(), remedy);
                return false;
            }
            Err(error @ (TransportError::NotSent(_) | TransportError::Unknown(_))) => {
                self.report.advise("reach", UNREACHABLE, error.to_string(), REACH_REMEDY);
                return false;
            }
        };
        let version = match &reached.version {
            Some(version) => format!("Kubernetes {version}"),
            None => format!("HTTP {}", reached.status),
        };
        let message = format!("{server} answers: {version}, {} ms", reached.elapsed.as_millis());
        self.report.add("reach", Status::Ok, message);
        match is_tls {
            true => self.report.add("tls", Status::Ok, "the server's certificate is trusted"),
            false => self.report.add("tls", Status::Skipped, "plain HTTP, on loopback"),
        }
        self.clock(reached.date.as_deref());
        true
    }

    fn clock(&mut self, date: Option<&str>) {
        let Some(theirs) = date.and_then(http_date_ms) else {
            return self.report.add("clock", Status::Unknown, "the answer has no Date header");
        };
        let ahead_ms = theirs - Timestamp::now().as_millisecond();
        let seconds = ahead_ms.abs() / 1_000;
        if ahead_ms.abs() < SKEW_MS_MAX {
            return self.report.add("clock", Status::Ok, "within 5 s of the server's");
        }
        let side = if ahead_ms > 0 { "behind" } else { "ahead of" };
        self.report.advise(
            "clock",
            Status::Warning,
            format!("this machine's clock is {seconds} s {side} the server's"),
            "set the clock (NTP): certificates, tokens and `posse cleanup --stale` depend on it",
        );
    }

    /// The user name that the server sees, if known. An error if the server rejects the credentials.
    fn identity(&mut self) -> Result<Option<String>, Refusal> {
        let http = &self.connection.http;
        let (name, status, message) = match preflight::whoami(http) {
            Ok(user) => (Some(user.clone()), Status::Ok, user),
            Err(refusal) if refusal.class == RefusalClass::Unauthorized => {
                let message = refusal.to_string();
                let remedy = "the credentials are not accepted: log in again, or correct the \
                              user's entry in the kubeconfig";
                self.report.advise("identity", UNREACHABLE, message, remedy);
                return Err(refusal);
            }
            // Servers before 1.28 do not have SelfSubjectReview.
            Err(refusal) => match (http.token_subject(), refusal.class) {
                (Some(user), _) => {
                    (Some(user.clone()), Status::Ok, format!("{user}, by the token"))
                }
                (None, RefusalClass::NotFound) => {
                    (None, Status::Unknown, "the server is too old to report the user".to_owned())
                }
                (None, _) => (None, Status::Unknown, refusal.to_string()),
            },
        };
        self.report.add("identity", status, message);
        Ok(name)
    }

    fn namespace(&mut self) -> Option<Namespace> {
        let name = self.namespace.clone();
        match preflight::namespace(&self.connection.http, &name) {
            Ok(found) if found.phase == "Active" => {
                self.report.add("namespace", Status::Ok, name);
                Some(found)
            }
            Ok(found) => {
                let message = format!("{name} is {}", found.phase);
                let remedy = "wait until it is deleted and create it again, or choose another";
                self.report.advise("namespace", UNREACHABLE, message, remedy);
                Some(found)
            }
            Err(refusal) if refusal.class == RefusalClass::NotFound => {
                let remedy = format!("kubectl create namespace {name}");
                self.report.advise("namespace", UNREACHABLE, refusal.to_string(), remedy);
                None
            }
            Err(refusal) => {
                self.report.add("namespace", Status::Unknown, format!("{name}: {refusal}"));
                None
            }
        }
    }

    fn permissions(&mut self, user: Option<&str>) {
        let has_lease = self.settings.as_ref().is_none_or(|settings| settings.lease);
        let leases: Vec<Permission> = of_rules(has_lease.then_some(LEASES)).collect();
        let needed = needed(self.settings.as_ref());
        let mut missing = self.permission("rights", &needed, UNREACHABLE, "");
        let without =
            "; without them nothing prevents a second posse from running the same instance";
        missing.extend(self.permission("lease", &leases, Status::Warning, without));
        if !missing.is_empty() {
            let role = role(&missing, &self.namespace, user);
            self.report.remedy(format!("apply this:\n{role}"));
        }
        let optional = optional(self.settings.as_ref());
        for of_one in optional.chunk_by(|(_, before), (_, without)| before == without) {
            let all: Vec<Permission> = of_rules(of_one.iter().map(|(rule, _)| *rule)).collect();
            let missing = self.missing(&all).unwrap_or_default();
            if let [(_, without), ..] = of_one
                && !missing.is_empty()
            {
                let message = format!("not permitted: {}: {without}", list(&missing));
                self.report.add("comfort", Status::Note, message);
            }
        }
    }

    /// Whether the Secret of each entry of `credentials` can be written, and that of the tasks. No command runs.
    fn secrets(&mut self) {
        let Some(settings) = &self.settings else { return };
        let (entries, app) = (Arc::clone(&settings.credentials), settings.app.clone());
        let has_task_secrets = settings.task_secrets;
        for entry in entries.iter() {
            let (status, message) = self.secret(&app, &entry.name, &entry.secret, "update");
            self.report.add("credentials", status, message);
        }
        if has_task_secrets {
            let (status, message) = self.secret(&app, "task_secrets", &secret_name(&app), "patch");
            self.report.add("tasks", status, message);
        }
    }

    /// Whether a Secret can be written. `change`: the verb that changes it.
    fn secret(&self, app: &str, of: &str, name: &str, change: &'static str) -> (Status, String) {
        let http = &self.connection.http;
        let store = SecretStore {
            objects: Objects::new(http.clone(), Some(&self.namespace)),
            name: name.to_owned(),
            selection: Selection { app: app.to_owned(), instance: String::new() },
            owner: None,
            common: Arc::default(),
            change,
        };
        match (store.check(), missing_for_secret(http, &self.namespace, name, change)) {
            (Err(problem), _) => (UNREACHABLE, problem),
            (Ok(()), Err(refusal)) => (Status::Unknown, refusal.to_string()),
            (Ok(()), Ok(missing)) if missing.is_empty() => {
                (Status::Ok, format!("{of}: secret {name} can be written"))
            }
            (Ok(()), Ok(missing)) => {
                (UNREACHABLE, format!("missing: {}; {}", missing.join(", "), store.remedy()))
            }
        }
    }

    /// The missing ones of `needed`; if some are missing, the status is `otherwise`.
    fn permission(
        &mut self,
        name: &str,
        needed: &[Permission],
        otherwise: Status,
        without: &str,
    ) -> Vec<Permission> {
        let (status, message, missing) = match self.missing(needed) {
            Ok(missing) if missing.is_empty() => (Status::Ok, list(needed), missing),
            Ok(missing) => {
                let message = format!("missing: {}{without}", list(&missing));
                (otherwise, message, missing)
            }
            Err(refusal) if refusal.class == RefusalClass::Unauthorized => {
                (UNREACHABLE, refusal.to_string(), Vec::new())
            }
            Err(refusal) => (Status::Unknown, refusal.to_string(), Vec::new()),
        };
        if !needed.is_empty() {
            self.report.add(name, status, message);
        }
        missing
    }

    fn missing(&self, needed: &[Permission]) -> Result<Vec<Permission>, Refusal> {
        missing(&self.connection.http, &self.namespace, needed.iter().copied())
    }

    /// Sends a dry-run create of a pod of each group. Returns what all executors together use of a
    /// quota; `None` if there is no configuration.
    fn templates(&mut self) -> Option<RunUsage> {
        let Some(mut settings) = self.settings.take() else {
            let message = "there is no ./posse.yaml; name a file with -f FILE";
            self.report.add("template", Status::Skipped, message);
            return None;
        };
        settings.namespace = Some(self.namespace.clone());
        let mut usage = RunUsage::default();
        let mut kept = Amounts::default();
        for group in &settings.groups {
            let (each, pod, claims) = self.template(&settings, group);
            usage.add(&group.spec, &each, &pod, &claims);
            kept = pod;
        }
        usage.keep_failed(&kept, settings.policy.keep_failed);
        if settings.driver.pod != DriverPod::default() {
            usage.add_driver(&settings.driver.pod);
        }
        self.settings = Some(settings);
        Some(usage)
    }

    /// What one executor of the group uses of a quota while it runs, as long as its pod is there, and for its slot's claims.
    fn template(
        &mut self,
        settings: &RunSettings,
        group: &GroupSettings,
    ) -> (Amounts, Amounts, Amounts) {
        let name = format!("template {}", group.spec.name);
        let run = shown_identity(settings);
        let compiled = match group.template.compile(&settings.identity(Some(group), &run)) {
            Ok(compiled) => compiled,
            Err(error) => {
                self.report.add(&name, Status::Failed(Code::Usage), error.to_string());
                return Default::default();
            }
        };
        for warning in compiled.warnings() {
            self.report.add(&name, Status::Note, warning.clone());
        }
        let body = compiled.render(1, 0, &PodOverrides::default());
        let selection = Selection { app: settings.app.clone(), instance: run.instance };
        let pods = Pods::new(self.connection.http.clone(), self.namespace.as_str(), selection);
        let answer = pods.dry_run(&body);
        if let (Some(queue), Ok(created)) = (&group.pod.queue, &answer) {
            self.admission(&name, queue, created);
        }
        let (status, message) = match &answer {
            Ok(_) => (Status::Ok, "the server accepts the pod".to_owned()),
            Err(refusal) => (dry_run_status(refusal.class), refusal.to_string()),
        };
        let is_insecure = answer.as_ref().is_err_and(|refusal| refusal.message.contains(INSECURE));
        if is_insecure {
            self.insecure.push(group.spec.name.to_string());
        }
        if matches!(status, Status::Failed(_)) {
            let secure =
                if is_insecure { "set `security: restricted` for the group; " } else { "" };
            let remedy =
                format!("{secure}`posse render --group {}` shows the pod", group.spec.name);
            self.report.advise(&name, status, message, remedy);
        } else {
            self.report.add(&name, status, message);
        }
        // The answer includes the defaults that the server has set.
        let pod: Value =
            serde_json::from_slice(answer.as_deref().unwrap_or(&body)).unwrap_or_default();
        let labels = pod.pointer("/metadata/labels").and_then(Value::as_object);
        self.executors.extend(labels.cloned());
        let mut claims = Amounts::default();
        for claim in compiled.pod.render_claims(ExecutorId(1), 0, &PodOverrides::default()) {
            claims.add(&claim_usage(&serde_json::from_slice(&claim).unwrap_or_default()));
        }
        (pod_usage(&pod), object_usage(&pod), claims)
    }

    fn pod_security(&mut self, namespace: Option<&Namespace>) {
        let Some(namespace) = namespace else {
            return self.report.add("pod security", Status::Unknown, "the namespace was not read");
        };
        let message = match &namespace.pod_security {
            None => "the namespace's labels enforce no level".to_owned(),
            Some(level) => format!("the namespace enforces {level:?} for the templates"),
        };
        if self.insecure.is_empty() {
            return self.report.add("pod security", Status::Ok, message);
        }
        let message = format!("{message}, and refuses those of: {}", self.insecure.join(", "));
        self.report.add("pod security", Status::Failed(Code::TemplateRefused), message);
    }

    fn limits(&mut self) {
        match preflight::limit_ranges(&self.connection.http, &self.namespace) {
            Ok(lines) if lines.is_empty() => {
                self.report.add("limits", Status::Ok, "the namespace has no LimitRange");
            }
            Ok(lines) => {
                lines.into_iter().for_each(|line| self.report.add("limits", Status::Note, line));
            }
            Err(refusal) => self.report.add("limits", Status::Unknown, refusal.to_string()),
        }
    }

    fn driver_host(&mut self) {
        let driver = self.settings.as_ref().map(|settings| &settings.driver);
        let given = driver.and_then(|driver| driver.host.clone());
        // A file that describes the driver's pod is for `posse submit`, not for a driver on this machine.
        if given.is_none() && driver.is_some_and(|driver| driver.pod != DriverPod::default()) {
            let message = "with `posse submit` executors connect to the driver's pod".to_owned();
            return self.report.add("driver host", Status::Ok, message);
        }
        let host = given.map_or_else(
            || self.connection.http.local_address().map(|address| address.to_string()),
            Ok,
        );
        match host {
            Ok(host) => self.check_driver_host(&host),
            Err(error) => {
                let message =
                    format!("cannot find the local address for connections to the server: {error}");
                self.report.advise("driver host", UNREACHABLE, message, HOST_REMEDY);
            }
        }
    }

    fn check_driver_host(&mut self, host: &str) {
        let Connection { http, home, .. } = &self.connection;
        if let Some(problem) = driver_host_problem(host, http, home.is_some()) {
            let message = format!("executors connect to {host}, {problem}");
            return self.report.advise("driver host", Status::Warning, message, HOST_REMEDY);
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match (bare, 0_u16).to_socket_addrs() {
            // The server is reached through this machine, but its pods may run elsewhere.
            Ok(found) if found.clone().any(|address| address.ip().is_loopback()) => {
                let message = format!(
                    "executors connect to {host}, which is this machine only if they run on it, as \
                     with `posse dev`; in a virtual machine or behind a tunnel they cannot"
                );
                self.report.advise("driver host", Status::Note, message, HOST_REMEDY);
            }
            Ok(_) => {
                self.report.add("driver host", Status::Ok, format!("executors connect to {host}"))
            }
            Err(error) => {
                let message = format!(
                    "executors connect to {host}, which this machine cannot resolve: {error}"
                );
                self.report.advise("driver host", Status::Warning, message, HOST_REMEDY);
            }
        }
    }
}

const REACH_REMEDY: &str = "check that the server is up, that its address is right, and that no firewall \
                            is in between; `kubectl cluster-info` uses the same server; HTTPS_PROXY \
                            and NO_PROXY apply";
const HOST_REMEDY: &str = "set driver.host to a name or an address of this machine that the cluster's \
                           nodes can reach";

/// The status of a template after a refused dry run.
fn dry_run_status(class: RefusalClass) -> Status {
    match class {
        // The pod is valid; another pod has this name.
        RefusalClass::Exists => Status::Ok,
        // The `quota` check has the details.
        RefusalClass::Capacity => Status::Warning,
        RefusalClass::Conflict | RefusalClass::Expired | RefusalClass::Invalid => {
            Status::Failed(Code::TemplateRefused)
        }
        // No executor comes before the webhook answers.
        RefusalClass::NamespaceGone | RefusalClass::NotFound | RefusalClass::WebhookBusy => {
            UNREACHABLE
        }
        // The `rights` check has the details.
        RefusalClass::Forbidden
        | RefusalClass::Throttled
        | RefusalClass::Transient
        | RefusalClass::Unauthorized
        | RefusalClass::OutcomeUnknown => Status::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_nobody_takes_is_no_success() {
        for (class, want) in [
            (RefusalClass::WebhookBusy, UNREACHABLE),
            (RefusalClass::Invalid, Status::Failed(Code::TemplateRefused)),
            (RefusalClass::Throttled, Status::Unknown),
            (RefusalClass::Exists, Status::Ok),
        ] {
            assert_eq!(dry_run_status(class), want, "{class:?}");
        }
    }
}
