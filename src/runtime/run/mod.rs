//! One run: connects Leases, control API, API server threads, reconciler and driver process, and runs
//! them until the shutdown is complete.

pub mod context;
pub mod error;
pub mod settings;

mod instance;
mod interfaces;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info, warn};
use rustix::process::{Signal, getpid, kill_process};

use crate::clock::Clock;
use crate::control::api::Subject;
use crate::control::{Core, DryRuns, Events};
use crate::core::machines::lease::LeaseRelease;
use crate::core::machines::orphan_cleanup::OrphanPolicy;
use crate::core::machines::shutdown::{Shutdown, ShutdownOutcome};
use crate::core::model::action::RunVerdict;
use crate::core::model::ids::Uid;
use crate::core::model::pod_text::PodOverrides;
use crate::core::model::rng::Rng;
use crate::core::model::stop::StopResult;
use crate::core::model::time::Millis;
use crate::core::policy::attempts::OwnDeletion;
use crate::core::policy::settings::GroupSpec;
use crate::core::reconciler::{InstanceIdentity, Reconciler};
use crate::kube::api::driver_pod::DriverPod;
use crate::kube::api::orphans::AppExecutors;
use crate::kube::api::pods::Pods;
use crate::runtime::driver::DriverEnv;
use crate::runtime::dry_run::TemplateDryRun;
use crate::runtime::engine::{DriverPlan, Engine, EngineState};
use crate::runtime::events::EventLog;
use crate::runtime::inbox::{ControlHandle, Liveness, Message, inbox};
use crate::runtime::leases::IdStore;
use crate::runtime::progress::Progress;
use crate::runtime::random::random_bits;
use crate::runtime::run::context::{ApiServer, EnvLookup, RunContext};
use crate::runtime::run::error::RunError;
use crate::runtime::run::instance::{AcquiredInstance, InstanceRequest};
use crate::runtime::run::interfaces::Interfaces;
use crate::runtime::run::settings::{RunIdentity, RunSettings};
use crate::runtime::signals::Signals;
use crate::runtime::upstream::{OrphanSettings, Threads, WatchSettings};
use crate::runtime::watermark::SharedWatermark;
use crate::runtime::worker::Worker;
use crate::runtime::writers::Writers;
use crate::wire::config::{Control, Ready};
use crate::wire::control_addr::ControlAddr;
use crate::wire::labels::Selection;
use crate::wire::names;
use crate::wire::status_json;
use crate::wire::time::{self, Epoch};

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
    pub progress: Option<Progress>,
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
    let RunInputs { settings, server, driver_kubeconfig, env, clock, signals, progress } = inputs;
    let context = RunContext::find(settings, env, &server)?;
    let run = Run { settings, driver_kubeconfig, clock, signals, progress, server, context };
    let outcome = run.run()?;
    Ok(RunResult { outcome, namespace: run.context.namespace })
}

struct Run<'a> {
    settings: &'a RunSettings,
    driver_kubeconfig: Option<&'a Path>,
    clock: Clock,
    signals: &'a Signals,
    progress: Option<Progress>,
    server: ApiServer,
    context: RunContext,
}

impl Run<'_> {
    fn run(&self) -> Result<ShutdownOutcome, RunError> {
        let (sender, receiver) = inbox();
        // The seed only spreads retries: two runs should not use the same.
        let mut rng = Rng::new(random_bits());
        let _driver_pod = self.watch_driver_pod();
        let request = InstanceRequest {
            settings: self.settings,
            context: &self.context,
            http: &self.server.http,
            clock: self.clock,
            signals: self.signals,
            sender: &sender,
            receiver: &receiver,
        };
        let acquired = request.acquire(&mut rng)?;
        let selection = acquired.selection.clone();
        info!(
            "application {} instance {} namespace {} at {}",
            selection.app,
            selection.instance,
            self.context.namespace,
            self.server.http.server()
        );
        let interfaces = match self.open(&selection, &sender) {
            Ok(interfaces) => interfaces,
            Err(error) => {
                acquired.leases.release(LeaseRelease::Delete);
                return Err(error);
            }
        };
        let outcome = self.reconcile(acquired, &interfaces, sender, receiver, &mut rng);
        interfaces.close();
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        outcome
    }

    /// Checks the driver's pod on a thread of its own, and then looks for its deletion until the returned
    /// sender is dropped.
    fn watch_driver_pod(&self) -> Option<Sender<()>> {
        let owner = self.context.owner.as_ref()?;
        let pod = DriverPod::new(self.server.http.clone(), &self.context.namespace, owner);
        let has_driver = !self.settings.driver.command.is_empty();
        let grace_ms = if has_driver { self.settings.grace_ms } else { 0 };
        let needed_s = (grace_ms + self.settings.policy.stop_timeout_ms).div_ceil(1_000);
        let clock = self.clock;
        let (sender, is_over) = bounded::<()>(0);
        let body = move || {
            if let Some(problem) = pod.problem(needed_s) {
                warn!("{problem}");
            }
            let mut deletion = OwnDeletion::default();
            while is_over.recv_timeout(OWN_POD_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let ours = match pod.deletion() {
                    Ok(ours) => ours,
                    Err(refusal) => {
                        debug!("the driver's pod cannot be read: {refusal}");
                        continue;
                    }
                };
                if deletion.is_abandoned(ours, clock.now()) {
                    warn!("the driver's pod was deleted, and no kubelet ends it: ending");
                    let sent = kill_process(getpid(), Signal::TERM);
                    return sent.unwrap_or_else(|error| warn!("cannot send SIGTERM: {error}"));
                }
            }
        };
        match Worker::start("driver-pod", STACK_BYTES, body) {
            Ok(_) => Some(sender),
            Err(error) => {
                debug!("cannot start a thread to check the driver's pod: {error}");
                None
            }
        }
    }

    /// Opens the events' file and the control API.
    fn open(
        &self,
        selection: &Selection,
        sender: &Sender<Message>,
    ) -> Result<Interfaces, RunError> {
        let run = names::instance_from_bits(random_bits());
        let log = Arc::new(EventLog::new(&run, self.clock));
        let liveness = Arc::new(Liveness::default());
        let (inbox, clock) = (sender.clone(), self.clock);
        let handle = ControlHandle { inbox, liveness: Arc::clone(&liveness), clock };
        // Group and container come with each call.
        let identity = self.settings.identity(None, &self.identity(selection));
        let dry_run = TemplateDryRun { pods: self.pods(selection), identity };
        let subject = Subject {
            core: Arc::new(handle) as Arc<dyn Core>,
            dry_runs: Arc::new(dry_run) as Arc<dyn DryRuns>,
            events: Arc::clone(&log) as Arc<dyn Events>,
            identity: status_json::RunNames {
                run,
                app: selection.app.clone(),
                instance: selection.instance.clone(),
                namespace: self.context.namespace.clone(),
                kubeconfig: self.driver_kubeconfig.map(|path| path.to_string_lossy().into_owned()),
            },
            epoch: Arc::new(move || Epoch(clock.wall(Millis::ZERO))),
        };
        Interfaces::open(self.settings, selection, &log, liveness, subject)
    }

    /// Starts the threads, and runs the engine to its end.
    fn reconcile(
        &self,
        acquired: AcquiredInstance,
        interfaces: &Interfaces,
        sender: Sender<Message>,
        receiver: Receiver<Message>,
        rng: &mut Rng,
    ) -> Result<ShutdownOutcome, RunError> {
        let settings = self.settings;
        let AcquiredInstance { selection, leases, id_high_water, is_new: is_new_instance } =
            acquired;
        let groups = match self.groups(&selection) {
            Ok(groups) => groups,
            Err(error) => {
                leases.release(LeaseRelease::Delete);
                return Err(error);
            }
        };
        let core = self.core(&selection, groups, &leases.ids, id_high_water, rng);
        let pods = self.pods(&selection);
        let watermark = Arc::new(SharedWatermark::default());
        let watch = WatchSettings {
            clock: self.clock,
            seed: rng.next_u64(),
            watch: settings.watch,
            poll_interval_ms: settings.poll_interval_ms,
        };
        let write_limit = leases.write_limit(self.clock);
        let threads = Threads::start(&pods, watch, &sender, &watermark, leases, self.orphans())
            .map_err(|error| RunError::System(format!("threads: {error}")))?;
        let in_flight_max = settings.policy.in_flight_max as usize;
        let engine = Engine {
            core,
            finish: Shutdown::new(settings.grace_ms, settings.keep),
            clock: self.clock,
            inbox: receiver,
            sender: sender.clone(),
            signals: self.signals,
            writers: Writers::new(
                pods.with_write_limit(write_limit),
                sender.clone(),
                in_flight_max,
            ),
            upstream: &threads,
            watermark: &watermark,
            liveness: Arc::clone(&interfaces.liveness),
            log: Arc::clone(&interfaces.log),
            progress: self.progress.clone(),
            driver_plan: self.driver_plan(&selection, interfaces.control_address()),
            is_new_instance,
            state: EngineState::default(),
        };
        let (outcome, interrupted_by) = engine.run();
        let is_clear = outcome.stop == StopResult::default();
        let leaves = settings.keep || matches!(outcome.verdict, Some(RunVerdict::TakenOver { .. }));
        let is_over = is_clear && !leaves && self.context.owner.is_none();
        let running = threads.stop(if is_over { LeaseRelease::Delete } else { LeaseRelease::Keep });
        if !running.is_empty() {
            debug!("threads that did not end in time: {}", running.join(" "));
        }
        match interrupted_by.filter(|_| is_clear) {
            Some(signal) => Err(RunError::Interrupted { signal, waited_for: None }),
            None => Ok(outcome),
        }
    }

    fn core(
        &self,
        selection: &Selection,
        groups: Vec<GroupSpec>,
        ids: &IdStore,
        id_high_water: u64,
        rng: &mut Rng,
    ) -> Reconciler {
        let settings = self.settings;
        let identity = InstanceIdentity {
            pod_prefix: selection.pod_prefix(),
            owner: self.context.owner.as_ref().map(|owner| Uid::new(&owner.uid)),
            id_high_water,
            is_id_high_water_stored: !matches!(ids, IdStore::None),
            start_unix_ms: time::unix_ms(self.clock.wall(Millis::ZERO)),
            is_lease_held: true,
            is_driver_ready: false,
        };
        let mut policy = settings.policy.clone();
        if settings.control == Control::Off {
            // Without the control API no target can arrive that the hold would wait for.
            policy.adopt_hold_ms = 0;
        }
        Reconciler::new(identity, policy, groups, rng.next_u64(), self.clock.now())
    }

    /// The groups of the settings, with their pods.
    fn groups(&self, selection: &Selection) -> Result<Vec<GroupSpec>, RunError> {
        let run = self.identity(selection);
        let groups = self.settings.groups.iter().map(|group| {
            let identity = self.settings.identity(Some(group), &run);
            let compiled = group
                .template
                .compile(&identity)
                .map_err(|error| RunError::Settings(error.to_string()))?;
            for warning in compiled.warnings() {
                warn!("group {}: {warning}", group.spec.name);
            }
            let body = compiled.render(1, 0, &PodOverrides::default());
            self.pods(selection).check_fields(&body).map_err(|refusal| {
                RunError::Template(format!("group {}: {refusal}", group.spec.name))
            })?;
            Ok(GroupSpec { pod: Some(compiled.pod), ..group.spec.clone() })
        });
        groups.collect()
    }

    fn identity(&self, selection: &Selection) -> RunIdentity {
        RunIdentity {
            instance: selection.instance.clone(),
            namespace: self.context.namespace.clone(),
            owner: self.context.owner.clone(),
            driver_host: self.context.driver_host.clone(),
        }
    }

    fn pods(&self, selection: &Selection) -> Pods {
        Pods::new(self.server.http.clone(), self.context.namespace.as_str(), selection.clone())
    }

    fn orphans(&self) -> Option<OrphanSettings> {
        let (http, app) = (self.server.http.clone(), self.settings.app.as_str());
        let pods = AppExecutors::new(http, &self.context.namespace, Some(app));
        let is_exclusive = self.settings.exclusive;
        match self.settings.orphans {
            OrphanPolicy::Delete => Some(OrphanSettings { pods, is_exclusive }),
            OrphanPolicy::Keep => None,
        }
    }

    fn driver_plan(&self, selection: &Selection, control: Option<&ControlAddr>) -> DriverPlan {
        let driver = &self.settings.driver;
        let host = names::host_in_url(&self.context.driver_host);
        DriverPlan {
            command: driver.command.clone(),
            env: DriverEnv {
                app: selection.app.clone(),
                instance: selection.instance.clone(),
                namespace: self.context.namespace.clone(),
                // Absolute paths, because the driver may change its working directory.
                control: control.map(|address| match address {
                    ControlAddr::Unix(path) => ControlAddr::Unix(absolute(path)).to_string(),
                    tcp @ ControlAddr::Tcp(_) => tcp.to_string(),
                }),
                control_token_file: self.settings.control_token_file.as_deref().map(absolute),
                kubeconfig: self.driver_kubeconfig.map(Path::to_path_buf),
            },
            probe: match driver.ready {
                Ready::Tcp(port) => Some(format!("{host}:{port}")),
                Ready::Control | Ready::None => None,
            },
            is_ready_by_call: driver.ready == Ready::Control,
        }
    }
}

/// The absolute path; unchanged if the working directory is unknown.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
