//! One run: connects Leases, control API, API server threads, reconciler and driver process, and runs
//! them until the shutdown is complete.

pub mod context;
pub mod error;
pub mod settings;

mod awaited;
mod driver_plan;
mod instance;
mod interfaces;
mod leader;
mod parts;
mod recorded;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::{debug, info, warn};

use crate::claims::SlotClaims;
use crate::credentials::{CredentialThreads, SecretRelease};
use crate::driver::port::DriverPort;
use crate::dry_run::TemplateDryRun;
use crate::engine::{Ended, Engine, EngineState};
use crate::events::EventLog;
use crate::inbox::{ControlHandle, Liveness, Message, inbox};
use crate::job_pod::JobPod;
use crate::kube_events::{KubeEventWriter, SentCounts};
use crate::leases::IdStore;
use crate::log_lines::EventLogger;
use crate::metrics::RunMetrics;
use crate::pod_groups::PodGroups;
use crate::random::random_bits;
use crate::record::RecordEnd;
use crate::run::context::{ApiServer, EnvLookup, RunContext};
use crate::run::error::RunError;
use crate::run::instance::{AcquiredInstance, InstanceRequest};
use crate::run::interfaces::{Interfaces, open_outputs};
use crate::run::settings::{RunIdentity, RunSettings};
use crate::server_threads::Threads;
use crate::signals::Signals;
use crate::task_outputs::TaskOutputs;
use crate::task_secrets::{TaskSecret, TaskSecrets};
use crate::usage::Usage;
use crate::wanted_annotation;
use crate::watermark::SharedWatermark;
use crate::writers::{Requests, Writers};
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_control::metrics::{self, Metrics};
use posse_control::served_run::{DriverPage, ServedRun};
use posse_control::{DryRuns, Events, RunHandle};
use posse_core::machines::lease::LeaseRelease;
use posse_core::machines::shutdown::{Shutdown, ShutdownOutcome};
use posse_core::machines::startup::Startup;
use posse_core::model::stop::StopResult;
use posse_core::model::takeover::Takeover;
use posse_kube::api::driver_job::DriverJob;
use posse_kube::api::objects::Objects;
use posse_kube::api::pods::Pods;
use posse_serve::Server;
use posse_wire::control::status_json::{self, LeaderJson};
use posse_wire::k8s::kube_event::Regarding;
use posse_wire::k8s::labels::Selection;
use posse_wire::names;
use posse_wire::time::Epoch;

/// How often the driver's pod is read, to notice its deletion.
const OWN_POD_INTERVAL: Duration = Duration::from_secs(10);
/// The stack of a thread that sends one request, bytes.
const STACK_BYTES: usize = 256 << 10;

/// What a run needs besides its settings.
#[expect(missing_debug_implementations, reason = "the environment lookup is a function")]
pub struct RunInputs<'a> {
    pub settings: &'a RunSettings,
    pub server: ApiServer,
    /// The `KUBECONFIG` for the driver; `None`: the driver inherits it.
    pub driver_kubeconfig: Option<&'a Path>,
    pub env: EnvLookup<'a>,
    pub clock: Clock,
    pub signals: &'a Signals,
    /// The Job of this process's pod.
    pub job_pod: Option<&'a mut JobPod>,
    pub exit_code: &'a dyn Fn(&ShutdownOutcome) -> u8,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct RunResult {
    pub outcome: ShutdownOutcome,
    pub namespace: String,
}

/// Runs one application until it is told to stop, or until its driver ends.
///
/// # Errors
/// The run could not start. After the start every end is a `ShutdownOutcome`.
pub fn run(inputs: RunInputs<'_>) -> Result<RunResult, RunError> {
    let RunInputs { settings, server, driver_kubeconfig, env, clock, signals, job_pod, exit_code } =
        inputs;
    let outliving = job_pod.as_deref().filter(|pod| pod.is_readable()).map(JobPod::job);
    let context = RunContext::find(settings, env, &server, outliving)?;
    let outputs = open_outputs(settings)?;
    let mut run = Run {
        settings,
        driver_kubeconfig,
        clock,
        signals,
        server,
        context,
        job: job_pod.as_deref().map(|pod| pod.job().clone()),
        job_pod,
        exit_code,
        leader: Arc::default(),
        outputs,
    };
    let outcome = run.run()?;
    Ok(RunResult { outcome, namespace: run.context.namespace })
}

struct Run<'a> {
    settings: &'a RunSettings,
    driver_kubeconfig: Option<&'a Path>,
    clock: Clock,
    signals: &'a Signals,
    server: ApiServer,
    context: RunContext,
    job: Option<DriverJob>,
    job_pod: Option<&'a mut JobPod>,
    exit_code: &'a dyn Fn(&ShutdownOutcome) -> u8,
    /// Which pod acts, if others stand by.
    leader: Arc<Mutex<Option<LeaderJson>>>,
    /// The output of ended tasks.
    outputs: Option<Arc<TaskOutputs>>,
}

/// What a run has before its first executor.
struct Opened {
    interfaces: Interfaces,
    identity: RunIdentity,
    claims: SlotClaims,
    pod_groups: Arc<PodGroups>,
    secrets: Arc<TaskSecrets>,
    templates: Arc<TemplateDryRun>,
    /// Kept until the end of the run.
    _port: Option<DriverPort>,
}

impl Run<'_> {
    fn run(&mut self) -> Result<ShutdownOutcome, RunError> {
        let (sender, receiver) = inbox();
        // The seed only spreads retries: two runs should not use the same.
        let mut rng = Rng::new(random_bits());
        let request = InstanceRequest {
            run: self,
            sender: &sender,
            receiver: &receiver,
            standby_of: self
                .job_pod
                .as_deref()
                .filter(|pod| pod.has_standby())
                .map(|pod| pod.job().owner_ref()),
        };
        let liveness = Arc::new(Liveness::default());
        let sent = Arc::new(SentCounts::default());
        // First, so that a run that waits for its Lease can be watched, too.
        let observed = self.observe(&sender, &liveness, &sent)?;
        let acquired = request.acquire(&mut rng)?;
        let takeover = match self.take_lead(&acquired) {
            Ok(takeover) => takeover,
            Err(error) => {
                acquired.leases.release(LeaseRelease::Keep);
                return Err(error);
            }
        };
        let _driver_pod = self.watch_driver_pod(&sender);
        if !matches!(acquired.leases.ids, IdStore::Lease(_)) {
            self.context.end_with_pod();
        }
        let selection = acquired.selection.clone();
        info!(
            "application {} instance {} namespace {} at {}",
            selection.app,
            selection.instance,
            self.context.namespace,
            self.server.http.server()
        );
        let opened = match self.open(&acquired, &sender, liveness, sent) {
            Ok(opened) => opened,
            Err(error) => {
                let is_new = acquired.is_new;
                acquired.leases.release(LeaseRelease::of_failed_start(is_new));
                return Err(error);
            }
        };
        let metrics = observed.as_ref().map(|(metrics, _)| Arc::clone(metrics));
        let channel = (sender, receiver);
        let outcome = self.reconcile(acquired, &opened, (metrics, takeover), channel, &mut rng);
        opened.interfaces.close();
        if let Some((_, server)) = observed {
            server.stop();
        }
        outcome
    }

    fn handle(&self, sender: &Sender<Message>, liveness: &Arc<Liveness>) -> ControlHandle {
        let (inbox, liveness) = (sender.clone(), Arc::clone(liveness));
        ControlHandle { inbox, liveness, clock: self.clock }
    }

    /// Starts the counters and the server that shows them, if they are wanted.
    fn observe(
        &self,
        sender: &Sender<Message>,
        liveness: &Arc<Liveness>,
        sent: &Arc<SentCounts>,
    ) -> Result<Option<(Arc<RunMetrics>, Server)>, RunError> {
        let Some(address) = self.settings.metrics else { return Ok(None) };
        let (app, http) = (&self.settings.app, self.server.http.clone());
        let metrics = Arc::new(RunMetrics::new(app, self.clock, http, Arc::clone(sent)));
        let core = Arc::new(self.handle(sender, liveness)) as Arc<dyn RunHandle>;
        let shown = Arc::clone(&metrics) as Arc<dyn Metrics>;
        let server = match metrics::serve(address, core, shown) {
            Ok(server) => server,
            // Drivers that share a network namespace share the default port, and a run does not
            // depend on who watches it.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                warn!("no metrics: another process listens at {address}");
                return Ok(None);
            }
            Err(error) => {
                let what = format!("metrics: cannot listen at {address}: {error}");
                return Err(RunError::Settings(what));
            }
        };
        if let Some(address) = server.local_addr() {
            info!("metrics at http://{address}/metrics");
        }
        Ok(Some((metrics, server)))
    }

    /// Starts the thread that writes Events about the driver's pod, if there is one.
    fn write_kube_events(
        &self,
        run: &str,
        log: &Arc<EventLog>,
        sent: Arc<SentCounts>,
    ) -> Option<KubeEventWriter> {
        let pod = self.context.pod.clone()?;
        let namespace = self.context.namespace.clone();
        let api = Objects::new(self.server.http.clone(), Some(&namespace));
        let regarding = Regarding { namespace, pod, common: Arc::clone(&self.settings.common) };
        let log = Arc::clone(log);
        let started = KubeEventWriter::start(api, regarding, run, log, self.clock, sent);
        let warn = |error: &std::io::Error| {
            warn!("cannot start a thread for Events about the driver's pod: {error}");
        };
        started.inspect_err(warn).ok()
    }

    /// Chooses the driver's port, and opens the events' file and the control API.
    fn open(
        &self,
        acquired: &AcquiredInstance,
        sender: &Sender<Message>,
        liveness: Arc<Liveness>,
        sent: Arc<SentCounts>,
    ) -> Result<Opened, RunError> {
        let selection = &acquired.selection;
        let objects = self.objects(acquired.leases.write_limit(self.clock));
        let claims = self.claims(selection, objects.clone());
        let secret = TaskSecret::new(
            objects,
            selection.clone(),
            self.owner_of_tasks(),
            Arc::clone(&self.settings.common),
            Arc::new(self.handle(sender, &liveness)),
        );
        let secrets = Arc::new(TaskSecrets::new(secret, acquired.is_new));
        let port = self.driver_port(acquired)?;
        let identity = self.identity(selection, port.as_ref())?;
        let pod_groups = Arc::new(self.pod_groups(&identity));
        let templates = Arc::new(self.templates(selection, &identity, &claims, &pod_groups));
        let interfaces =
            self.open_interfaces(selection, (&secrets, &templates), sender, liveness, sent)?;
        Ok(Opened { interfaces, identity, claims, pod_groups, secrets, templates, _port: port })
    }

    /// A run without a pod is asked by `posse apps` itself.
    fn show_wanted(&self, log: &Arc<EventLog>, core: Arc<dyn RunHandle>) {
        // A pod that somebody else has made is not posse's to change.
        let Some(pod) = self.context.pod.clone().filter(|_| self.job.is_some()) else { return };
        let api = Objects::new(self.server.http.clone(), Some(&self.context.namespace));
        let targets = self.settings.groups.iter().map(|group| u64::from(group.spec.target));
        if let Err(error) = wanted_annotation::start(api, pod, targets.sum(), Arc::clone(log), core)
        {
            warn!("cannot start a thread that shows the target: {error}");
        }
    }

    fn templates(
        &self,
        selection: &Selection,
        run: &RunIdentity,
        claims: &SlotClaims,
        pod_groups: &Arc<PodGroups>,
    ) -> TemplateDryRun {
        let of_file = self.settings.groups.iter();
        let of_file =
            of_file.map(|one| (one.spec.name.clone(), self.settings.identity(Some(one), run)));
        TemplateDryRun {
            pods: self.pods(selection),
            claims: claims.clone(),
            is_exclusive: self.settings.exclusive,
            identity: self.settings.identity(None, run),
            of_file: Mutex::new(of_file.collect()),
            pod_groups: Arc::clone(pod_groups),
        }
    }

    fn open_interfaces(
        &self,
        selection: &Selection,
        (secrets, templates): (&Arc<TaskSecrets>, &Arc<TemplateDryRun>),
        sender: &Sender<Message>,
        liveness: Arc<Liveness>,
        sent: Arc<SentCounts>,
    ) -> Result<Interfaces, RunError> {
        let run = names::instance_from_bits(random_bits());
        let log = Arc::new(EventLog::new(&run, self.clock));
        let handle = self.handle(sender, &liveness);
        let kube_events = self.write_kube_events(&run, &log, sent);
        self.show_wanted(&log, Arc::new(self.handle(sender, &liveness)));
        let clock = self.clock;
        let subject = ServedRun {
            core: Arc::new(handle) as Arc<dyn RunHandle>,
            dry_runs: Arc::clone(templates) as Arc<dyn DryRuns>,
            events: Arc::clone(&log) as Arc<dyn Events>,
            outputs: self
                .outputs
                .clone()
                .map(|outputs| outputs as Arc<dyn posse_control::TaskOutputs>),
            secrets: Arc::clone(secrets) as Arc<dyn posse_control::TaskSecrets>,
            history: None,
            driver_page: DriverPage::at(self.settings.driver.page),
            usage: Arc::new(Usage::new(self.pods(selection))),
            identity: status_json::RunNames {
                run,
                app: selection.app.clone(),
                instance: selection.instance.clone(),
                namespace: self.context.namespace.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                server: self.server.http.server().to_owned(),
                context: self.server.context.clone(),
                keep_executors: self.settings.driver.keep_executors == Some(true),
                kubeconfig: self.driver_kubeconfig.map(|path| path.to_string_lossy().into_owned()),
                leader: None,
            },
            leader: Arc::clone(&self.leader),
            epoch: Arc::new(move || Epoch(clock.wall(Millis::ZERO))),
        };
        Interfaces::open(self.settings, selection, &log, liveness, kube_events, subject)
    }

    fn logger(&self) -> EventLogger {
        EventLogger::new(self.server.is_embedded, self.settings.driver_tells_failures)
    }

    /// Starts the threads, and runs the engine to its end.
    fn reconcile(
        &mut self,
        acquired: AcquiredInstance,
        opened: &Opened,
        (metrics, takeover): (Option<Arc<RunMetrics>>, Option<Takeover>),
        (sender, receiver): (Sender<Message>, Receiver<Message>),
        rng: &mut Rng,
    ) -> Result<ShutdownOutcome, RunError> {
        let (settings, Opened { interfaces, identity: run, .. }) = (self.settings, opened);
        let write_limit = acquired.leases.write_limit(self.clock);
        let prepared = self.open_record(&acquired).and_then(|found| {
            let groups = self.groups(&acquired.selection, run)?;
            let limit = write_limit.clone();
            Ok((found, groups, self.credentials(&acquired.selection, limit, &sender, rng)?))
        });
        let AcquiredInstance { selection, leases, id_high_water, is_new, from: _ } = acquired;
        let (found, groups, credentials) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                leases.release(LeaseRelease::of_failed_start(is_new));
                return Err(error);
            }
        };
        let mut core =
            self.core(&selection, groups, found.usage.clone(), (&leases.ids, id_high_water), rng);
        if let Some(takeover) = takeover {
            core.note_takeover(takeover);
        }
        let record = self.restore(&mut core, found, &opened.templates, &sender)?;
        let pods = self.pods(&selection);
        let watermark = Arc::new(SharedWatermark::default());
        let (watch, orphans) = (self.watch_settings(rng.next_u64()), self.orphans());
        let threads = Threads::start(&pods, watch, &sender, &watermark, leases, orphans)
            .map_err(|error| RunError::System(format!("threads: {error}")))?;
        let requests = self.requests(opened, pods.with_write_limit(write_limit));
        let writers =
            Writers::new(requests, sender.clone(), settings.policy.in_flight_max as usize)
                .map_err(|error| RunError::System(format!("threads: {error}")))?;
        let driver_plan = self.driver_plan(run, interfaces.control_address(), &credentials);
        let polled = self.polled_commands(&driver_plan.env, &sender)?;
        let startup = Startup::new(!driver_plan.command.is_empty(), is_new, self.clock.now())
            .of_job(self.job_pod.as_deref().is_some_and(JobPod::is_leased));
        let engine = Engine {
            core,
            finish: {
                let finish = Shutdown::new(startup, settings.grace_ms, settings.keep);
                match self.job_pod.as_deref().filter(|_| self.context.is_outlived()) {
                    Some(job_pod) => finish.of_job(job_pod.tries()),
                    None => finish,
                }
            },
            job: self.job.clone().filter(|_| self.context.is_outlived()),
            lease_terms: leader::lease_terms(self.job_pod.as_deref()),
            clock: self.clock,
            inbox: receiver,
            sender: sender.clone(),
            signals: self.signals,
            writers,
            upstream: &threads,
            watermark: &watermark,
            liveness: Arc::clone(&interfaces.liveness),
            log: Arc::clone(&interfaces.log),
            metrics,
            driver_plan,
            record,
            state: EngineState::new(self.logger()),
        };
        let ended = engine.run();
        polled.stop();
        self.conclude(ended, opened, (credentials, threads))
    }

    /// Ends the threads of a run, and what it has made in the cluster beside its pods.
    fn conclude(
        &mut self,
        ended: Ended,
        opened: &Opened,
        (credentials, threads): (CredentialThreads, Threads<'_>),
    ) -> Result<ShutdownOutcome, RunError> {
        let Ended { outcome, interrupted_by, leaves_secret_tasks, record } = ended;
        // What the Job owns goes with it. Its next pod, if there is one all the same, reads that nothing is left to do.
        let may_remove = outcome.has_done_all() && !self.has_record_of_job();
        let (done, kept) = if may_remove { (record, None) } else { (None, record) };
        if let Some((record, facts)) = kept {
            record.stop(RecordEnd::Keep(facts));
        }
        let is_clear = outcome.stop == StopResult::default();
        let leaves = outcome.is_kept;
        let end = interrupted_by.is_none().then(|| self.end_job(&outcome));
        let (code, is_last) = end.unzip();
        // Before the Leases, so that the next driver does not store its own meanwhile.
        let keeps_secrets = leaves || outcome.is_taken_over;
        let release = SecretRelease::of(keeps_secrets);
        credentials.stop(release);
        let is_needed = leaves_secret_tasks && is_last != Some(true);
        opened.secrets.stop(SecretRelease::of(keeps_secrets || is_needed));
        if is_clear && !keeps_secrets {
            opened.claims.remove();
            opened.pod_groups.remove();
        }
        // The last act under the Leases: until then another process could have to go on.
        if let Some((record, facts)) = done {
            record.stop(if code == Some(0) { RecordEnd::Remove } else { RecordEnd::Keep(facts) });
        }
        let is_over = is_clear && !leaves && self.context.pod.is_none();
        let running = threads.stop(if is_over { LeaseRelease::Delete } else { LeaseRelease::Keep });
        if !running.is_empty() {
            debug!("threads that did not end in time: {}", running.join(" "));
        }
        match interrupted_by.filter(|_| is_clear) {
            Some(signal) => Err(RunError::Interrupted { signal, waited_for: None }),
            None => Ok(outcome),
        }
    }

    fn requests(&self, opened: &Opened, pods: Pods) -> Requests {
        Requests {
            pods,
            claims: opened.claims.clone(),
            pod_groups: Arc::clone(&opened.pod_groups),
            log: Arc::clone(&opened.interfaces.log),
            outputs: self.outputs.clone(),
        }
    }
}
