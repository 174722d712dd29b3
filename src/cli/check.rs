//! Owns `posse check`: asks the server, one thing after the other, what a run would find out the
//! hard way, and says what to do about it. Changes nothing: pods are put to it as dry runs.

use std::io::Write;
use std::net::ToSocketAddrs as _;

use jiff::Timestamp;
use serde_json::Value;

use crate::cli::args::{CheckArgs, RunArgs};
use crate::cli::check::report::{Report, Status};
use crate::cli::exit::{Code, Failure};
use crate::cli::render::shown_identity;
use crate::cli::rights::{self, Right};
use crate::cli::run::ground::doubt_about;
use crate::cli::server::Connection;
use crate::cli::settings::{self, GroupSettings, RunSettings};
use crate::cli::{World, print};
use crate::core::model::pod_text::PodOverrides;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::pods::Pods;
use crate::kube::api::preflight;
use crate::kube::http::TransportError;
use crate::wire::amounts::{Amounts, pod_usage};
use crate::wire::labels::Selection;
use crate::wire::preflight::{Namespace, Shortage, shortages};
use crate::wire::time::http_date_ms;

pub mod report;

/// Clocks that differ by less are taken for equal: the server tells whole seconds.
const SKEW_MS_MAX: i64 = 5_000;
/// A check that failed ends a run at its start, with this code.
const UNREACHABLE: Status = Status::Failed(Code::Server);

/// `posse check`.
///
/// # Errors
/// Mistakes in the settings, or stdout is closed; what the server has against a run is the report,
/// and its code.
pub fn check(args: &CheckArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let settings = match settings::are_absent(&args.file, world) {
        true => None,
        false => {
            let (file, server) = (args.file.clone(), args.server.clone());
            let run = RunArgs { file, server, ..RunArgs::default() };
            Some(RunSettings::new(&run, world)?)
        }
    };
    let connection = Connection::new(&args.server, world)?;
    let named = args.file.namespace.clone();
    let named = named.or_else(|| settings.as_ref().and_then(|run| run.namespace.clone()));
    let namespace = named.unwrap_or_else(|| connection.namespace.clone());
    let mut checks = Checks { settings, connection, namespace, report: Report::default() };
    checks.run();
    let report = checks.report;
    let text = match args.json {
        true => format!("{:#}\n", report.json()),
        false => report.text(),
    };
    print(out, &text).map(|()| report.code())
}

/// The checks under way.
struct Checks {
    /// None where nothing says what is to be run.
    settings: Option<RunSettings>,
    connection: Connection,
    namespace: String,
    report: Report,
}

impl Checks {
    fn run(&mut self) {
        if !self.reach() {
            return;
        }
        let Ok(user) = self.identity() else { return };
        let namespace = self.look_at_namespace();
        self.rights(user.as_deref());
        let usage = self.templates();
        self.pod_security(namespace.as_ref());
        self.limits();
        self.quota(usage.as_ref());
        self.driver_host();
    }

    /// True where the server answers.
    fn reach(&mut self) -> bool {
        let server = self.connection.http.server().to_owned();
        let is_tls = server.starts_with("https:");
        let reached = match preflight::probe_server(&self.connection.http) {
            Ok(reached) => reached,
            Err(TransportError::Tls(problem)) => {
                self.report.add("reach", Status::Ok, format!("{server} accepts connections"));
                self.report.advise("tls", UNREACHABLE, problem, TLS_REMEDY);
                return false;
            }
            Err(error @ TransportError::Credentials(_)) => {
                let remedy = "log in again, or mend the user's entry in the kubeconfig";
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
            return self.report.add("clock", Status::Unknown, "the server does not tell its time");
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
            format!("our clock is {seconds} s {side} the server's"),
            "set the clock (NTP): certificates, tokens and `posse cleanup --stale` go by it",
        );
    }

    /// Whom the server takes us for, where that can be told; an error where it takes us for nobody.
    fn identity(&mut self) -> Result<Option<String>, Refusal> {
        let http = &self.connection.http;
        let (name, status, message) = match preflight::whoami(http) {
            Ok(user) => (Some(user.clone()), Status::Ok, user),
            Err(refusal) if refusal.class == RefusalClass::Unauthorized => {
                let message = refusal.to_string();
                let remedy = "the credentials are not accepted: log in again, or mend the user's \
                              entry in the kubeconfig";
                self.report.advise("identity", UNREACHABLE, message, remedy);
                return Err(refusal);
            }
            // Servers before 1.28 are asked in vain.
            Err(refusal) => match (http.token_subject(), refusal.class) {
                (Some(user), _) => {
                    (Some(user.clone()), Status::Ok, format!("{user}, by our token"))
                }
                (None, RefusalClass::NotFound) => {
                    (None, Status::Unknown, "the server is too old to tell who we are".to_owned())
                }
                (None, _) => (None, Status::Unknown, refusal.to_string()),
            },
        };
        self.report.add("identity", status, message);
        Ok(name)
    }

    fn look_at_namespace(&mut self) -> Option<Namespace> {
        let name = self.namespace.clone();
        match preflight::namespace(&self.connection.http, &name) {
            Ok(found) if found.phase == "Active" => {
                self.report.add("namespace", Status::Ok, name);
                Some(found)
            }
            Ok(found) => {
                let message = format!("{name} is {}", found.phase);
                let remedy = "wait until it is gone and create it again, or take another";
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

    fn rights(&mut self, user: Option<&str>) {
        let leases: &[Right] = match self.settings.as_ref().is_none_or(|settings| settings.lease) {
            true => &rights::OF_LEASES,
            false => &[],
        };
        let needed = rights::needed(self.settings.as_ref());
        let mut missing = self.right("rights", &needed, UNREACHABLE, "");
        let without = "; without them nothing keeps a second posse from the same instance";
        missing.extend(self.right("lease", leases, Status::Warning, without));
        if !missing.is_empty() {
            let role = rights::role(&missing, &self.namespace, user);
            self.report.remedy(format!("have this applied:\n{role}"));
        }
        for (right, without) in rights::OF_COMFORT {
            if self.missing(&[right]).is_ok_and(|missing| !missing.is_empty()) {
                let message = format!("not allowed: {}: {without}", rights::listed(&[right]));
                self.report.add("comfort", Status::Note, message);
            }
        }
    }

    /// Those of `needed` that are missing, which is `otherwise`.
    fn right(
        &mut self,
        name: &str,
        needed: &[Right],
        otherwise: Status,
        without: &str,
    ) -> Vec<Right> {
        let (status, message, missing) = match self.missing(needed) {
            Ok(missing) if missing.is_empty() => (Status::Ok, rights::listed(needed), missing),
            Ok(missing) => {
                let message = format!("missing: {}{without}", rights::listed(&missing));
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

    fn missing(&self, rights: &[Right]) -> Result<Vec<Right>, Refusal> {
        rights::missing(&self.connection.http, &self.namespace, rights.iter().copied())
    }

    /// Has the server check a pod of each group; what all executors together use of quotas. None
    /// where there is nothing to check.
    fn templates(&mut self) -> Option<Amounts> {
        let Some(mut settings) = self.settings.take() else {
            let message = "there is no posse.yaml here; -f FILE names one";
            self.report.add("template", Status::Skipped, message);
            return None;
        };
        settings.namespace = Some(self.namespace.clone());
        let mut usage = Amounts::default();
        for group in &settings.groups {
            let each = self.template(&settings, group);
            let all =
                each.0.iter().map(|(name, amount)| (name.clone(), amount.times(group.spec.target)));
            usage.add(&Amounts(all.into_iter().collect()));
        }
        self.settings = Some(settings);
        Some(usage)
    }

    /// What one executor of the group uses.
    fn template(&mut self, settings: &RunSettings, group: &GroupSettings) -> Amounts {
        let name = format!("template {}", group.spec.name);
        let run = shown_identity(settings);
        let compiled = match group.template.compile(&settings.identity(Some(group), &run)) {
            Ok(compiled) => compiled,
            Err(error) => {
                self.report.add(&name, Status::Failed(Code::Usage), error.to_string());
                return Amounts::default();
            }
        };
        for warning in compiled.warnings() {
            self.report.add(&name, Status::Note, warning.clone());
        }
        let body = compiled.render(1, 0, &PodOverrides::default());
        let selection = Selection { app: settings.app.clone(), instance: run.instance };
        let pods = Pods::new(self.connection.http.clone(), self.namespace.as_str(), selection);
        let answer = pods.create_raw(&body, true);
        let (status, message) = match &answer {
            Ok(_) => (Status::Ok, "the server would take it".to_owned()),
            Err(refusal) => (dry_run_status(refusal.class), refusal.to_string()),
        };
        if matches!(status, Status::Failed(_)) {
            let remedy = format!("`posse render --group {}` shows the pod", group.spec.name);
            self.report.advise(&name, status, message, remedy);
        } else {
            self.report.add(&name, status, message);
        }
        // The answer has what the server filled in.
        let pod: Value =
            serde_json::from_slice(answer.as_deref().unwrap_or(&body)).unwrap_or_default();
        pod_usage(&pod)
    }

    fn pod_security(&mut self, namespace: Option<&Namespace>) {
        let Some(namespace) = namespace else {
            return self.report.add("pod security", Status::Unknown, "the namespace was not seen");
        };
        let message = match &namespace.pod_security {
            None => "the namespace's labels enforce no level".to_owned(),
            Some(level) => format!("the namespace enforces {level:?}; templates are held to it"),
        };
        self.report.add("pod security", Status::Ok, message);
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

    fn quota(&mut self, wanted: Option<&Amounts>) {
        let quotas = match preflight::quotas(&self.connection.http, &self.namespace) {
            Ok(quotas) => quotas,
            Err(refusal) => {
                return self.report.add("quota", Status::Unknown, refusal.to_string());
            }
        };
        for quota in quotas.iter().filter(|quota| quota.has_scopes) {
            let message = format!("{} has scopes and was not looked at", quota.name);
            self.report.add("quota", Status::Unknown, message);
        }
        let Some(wanted) = wanted else { return };
        let short = shortages(&quotas, wanted);
        let told = short.iter().map(|Shortage { quota, resource, wanted, left, hard }| {
            let [wanted, left, hard] = [wanted, left, hard].map(|amount| amount.canonical());
            format!("{quota} has {left} of {hard} {resource} left, the executors want {wanted}")
        });
        let told = told.collect::<Vec<_>>().join("; ");
        if !short.is_empty() {
            let remedy = "posse creates what fits and goes on when there is room; raise the quota, \
                          ask for less, or lower count";
            return self.report.advise("quota", Status::Warning, told, remedy);
        }
        let message = match quotas.len() {
            0 => "the namespace has none".to_owned(),
            n => format!("room for all executors in {n}"),
        };
        self.report.add("quota", Status::Ok, message);
    }

    fn driver_host(&mut self) {
        let given = self.settings.as_ref().and_then(|settings| settings.driver.host.clone());
        let host = given.map_or_else(
            || self.connection.http.local_address().map(|address| address.to_string()),
            Ok,
        );
        match host {
            Ok(host) => self.routable(&host),
            Err(error) => {
                let message = format!("our address towards the server cannot be told: {error}");
                self.report.advise("driver host", UNREACHABLE, message, HOST_REMEDY);
            }
        }
    }

    fn routable(&mut self, host: &str) {
        if let Some(doubt) = doubt_about(host, &self.connection) {
            let message = format!("executors dial {host}, {doubt}");
            return self.report.advise("driver host", Status::Warning, message, HOST_REMEDY);
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match (bare, 0_u16).to_socket_addrs() {
            Ok(_) => self.report.add("driver host", Status::Ok, format!("executors dial {host}")),
            Err(error) => {
                let message = format!("executors dial {host}, which has no address here: {error}");
                self.report.advise("driver host", Status::Warning, message, HOST_REMEDY);
            }
        }
    }
}

const REACH_REMEDY: &str = "is the server up, its address right, the way to it open? `kubectl \
                            cluster-info` asks the same server; HTTPS_PROXY and NO_PROXY count";
const TLS_REMEDY: &str = "give the authority that signed the server's certificate: \
                          certificate-authority-data in the kubeconfig, or SSL_CERT_FILE";
const HOST_REMEDY: &str = "set driver.host to a name or an address of this machine that the cluster's \
                           nodes can reach";

/// What the refusal of a dry run says about a template.
fn dry_run_status(class: RefusalClass) -> Status {
    match class {
        // It passed all checks; there happens to be a pod of that name.
        RefusalClass::Exists => Status::Ok,
        // The quota's own line says how much there is.
        RefusalClass::Capacity => Status::Warning,
        RefusalClass::Conflict | RefusalClass::Expired | RefusalClass::Invalid => {
            Status::Failed(Code::TemplateRefused)
        }
        RefusalClass::NamespaceGone | RefusalClass::NotFound => UNREACHABLE,
        // The rights' own line says what is missing.
        RefusalClass::Forbidden
        | RefusalClass::Throttled
        | RefusalClass::Transient
        | RefusalClass::Unauthorized
        | RefusalClass::OutcomeUnknown => Status::Unknown,
    }
}
