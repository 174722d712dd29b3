//! Owns `posse run`: brings settings, server, identity, Lease, control API and loop together, and
//! turns what came of it into an exit code.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use log::{debug, error, info, warn};

use crate::cli::args::RunArgs;
use crate::cli::exit::{Code, Failure};
use crate::cli::rights;
use crate::cli::run::embedded::Embedded;
use crate::cli::run::ground::Ground;
use crate::cli::run::instance::{Ears, Who};
use crate::cli::server::Connection;
use crate::cli::settings::{self, EventsTo, RunIdentity, RunSettings, Server};
use crate::cli::{World, logger};
use crate::clock::Clock;
use crate::control::address::{self, Bound};
use crate::control::api::{ControlServer, Subject};
use crate::control::{Core, Drafts};
use crate::core::machines::lease::LeaseRelease;
use crate::core::machines::orphan_cleanup::OrphanPolicy;
use crate::core::machines::shutdown::{Shutdown, ShutdownOutcome};
use crate::core::model::action::RunVerdict;
use crate::core::model::ids::Uid;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::policy::settings::GroupSpec;
use crate::core::reconciler::{InstanceIdentity, Reconciler};
use crate::kube::api::driver_pod::DriverPod;
use crate::kube::api::orphans::AppExecutors;
use crate::kube::api::pods::Pods;
use crate::runtime::drafts::Drafter;
use crate::runtime::driver::DriverEnv;
use crate::runtime::engine::{DriverPlan, Engine, SharedMark};
use crate::runtime::events::{EventLog, EventTarget, EventWriter};
use crate::runtime::hold::IdKeeper;
use crate::runtime::inbox::{Line, Message, Pulse, inbox};
use crate::runtime::progress::Progress;
use crate::runtime::signals::Signals;
use crate::runtime::upstream::{LookSettings, SweepSettings, Threads};
use crate::runtime::worker::Worker;
use crate::runtime::writers::Writers;
use crate::serve::token::Token;
use crate::wire::config::{Control, Ready};
use crate::wire::control_addr::ControlAddr;
use crate::wire::labels::Selection;
use crate::wire::names;
use crate::wire::status_json;
use crate::wire::time::{self, Epoch};

/// How long the events may take to be written out at the end.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(2);
/// 128 + SIGTERM.
const SIGTERM_CODE: u8 = 143;
/// The stack of a thread that sends one request, bytes.
const STACK_BYTES: usize = 256 << 10;

/// Runs one application until it is told to stop, or its driver ends.
///
/// # Errors
/// What kept it from starting; once it has started, every end is a code.
pub fn run(args: &RunArgs, world: &World<'_>) -> Result<Code, Failure> {
    let clock = Clock::start();
    let settings = RunSettings::new(args, world)?;
    let progress = progress(&settings.app, world);
    logger::init(world.env, progress.as_ref().map(|line| Box::new(line.log_writer()) as _));
    let signals = Signals::start()
        .map_err(|error| Failure::new(Code::Failed, format!("signals: {error}")))?;
    let embedded = Embedded::start(&settings, &world.env)?;
    let server = connect(&settings, embedded.kubeconfig(), world)?;
    let ground = Ground::find(&settings, world, &server)?;
    let kubeconfig = embedded.kubeconfig();
    let run = Run {
        settings: &settings,
        world,
        clock,
        signals: &signals,
        progress,
        server,
        ground,
        kubeconfig,
    };
    let code = run.run();
    embedded.stop();
    code
}

fn connect(
    settings: &RunSettings,
    embedded: Option<&Path>,
    world: &World<'_>,
) -> Result<Connection, Failure> {
    let (kubeconfig, context) = match &settings.server {
        Server::Dev => (embedded, None),
        Server::Kube { kubeconfig, context } => (kubeconfig.as_deref(), context.as_deref()),
    };
    Connection::find(kubeconfig, context, world)
}

fn progress(app: &str, world: &World<'_>) -> Option<Progress> {
    let env = world.env;
    Progress::on_stderr(app, env("TERM").as_deref(), env("NO_COLOR").as_deref())
}

/// A run that has a server and knows where it is.
struct Run<'a> {
    settings: &'a RunSettings,
    world: &'a World<'a>,
    clock: Clock,
    signals: &'a Signals,
    progress: Option<Progress>,
    server: Connection,
    ground: Ground,
    /// The embedded cluster's.
    kubeconfig: Option<&'a Path>,
}

impl Run<'_> {
    fn run(&self) -> Result<Code, Failure> {
        let (sender, receiver) = inbox();
        // The seed only spreads retries: two runs should not have the same.
        let mut rng = Rng::new(settings::random_bits());
        self.look_at_driver_pod();
        let ears = Ears { sender: &sender, receiver: &receiver };
        let who = self.take_instance(&ears, &mut rng)?;
        let selection = who.selection.clone();
        info!(
            "application {} instance {} namespace {} at {}",
            selection.app,
            selection.instance,
            self.ground.namespace,
            self.server.http.server()
        );
        let outside = match self.open(&selection, &sender) {
            Ok(outside) => outside,
            Err(failure) => {
                who.hold.release(LeaseRelease::Delete);
                return Err(failure);
            }
        };
        let outcome = self.reconcile(who, &outside, sender, receiver, &mut rng);
        outside.close();
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        outcome.map(|outcome| {
            if matches!(outcome.verdict, Some(RunVerdict::NotAllowed { .. })) {
                rights::advise(&self.server.http, &self.ground.namespace);
            }
            told_to_end(tell(&outcome), &outcome, self.settings.as_job)
        })
    }

    /// Looks at the driver's pod, beside everything else: what is wrong with it is told, no more.
    fn look_at_driver_pod(&self) {
        let Some(owner) = &self.ground.owner else { return };
        let pod = DriverPod::new(self.server.http.clone(), &self.ground.namespace, owner);
        let has_driver = !self.settings.driver.command.is_empty();
        let grace_ms = if has_driver { self.settings.grace_ms } else { 0 };
        let needed_s = (grace_ms + self.settings.policy.stop_timeout_ms).div_ceil(1_000);
        let look = move || {
            if let Some(mistake) = pod.problem(needed_s) {
                warn!("{mistake}");
            }
        };
        if let Err(error) = Worker::start("driver-pod", STACK_BYTES, look) {
            debug!("no thread to look at the driver's pod with: {error}");
        }
    }

    /// Opens what others see of the run: the events and the control API.
    fn open(&self, selection: &Selection, sender: &Sender<Message>) -> Result<Outside, Failure> {
        let run = names::instance_from_bits(settings::random_bits());
        let log = Arc::new(EventLog::new(&run, self.clock));
        let writer = self.settings.events.as_ref().map(|to| {
            let target = match to {
                EventsTo::File(path) => EventTarget::File(self.world.dir.join(path)),
                EventsTo::Stdout => EventTarget::Stdout,
            };
            EventWriter::start(target, Arc::clone(&log))
        });
        let writer = writer
            .transpose()
            .map_err(|error| Failure::usage(format!("--events: cannot be written: {error}")))?;
        let pulse = Arc::new(Pulse::default());
        let line = Line { inbox: sender.clone(), pulse: Arc::clone(&pulse), clock: self.clock };
        // Group and container come with each call.
        let identity = self.settings.identity(None, &self.identity(selection));
        let drafter = Drafter { pods: self.pods(selection), identity };
        let subject = Subject {
            core: Arc::new(line) as Arc<dyn Core>,
            drafts: Arc::new(drafter) as Arc<dyn Drafts>,
            events: Arc::clone(&log) as Arc<dyn crate::control::Events>,
            identity: status_json::RunNames {
                run,
                app: selection.app.clone(),
                instance: selection.instance.clone(),
                namespace: self.ground.namespace.clone(),
            },
            epoch: Epoch(self.clock.wall(Millis::ZERO)),
        };
        let control = self.bind(selection)?.map(|bound| {
            let token = self.settings.control_token_file.as_deref().map(Token::read).transpose()?;
            ControlServer::start(bound, token, subject)
        });
        let control =
            control.transpose().map_err(|error| Failure::usage(format!("control API: {error}")))?;
        Ok(Outside { log, writer, control, pulse })
    }

    fn bind(&self, selection: &Selection) -> Result<Option<Bound>, Failure> {
        let bound = match &self.settings.control {
            Control::Off => return Ok(None),
            Control::At(at) => address::bind(at),
            Control::Default => {
                let env = self.world.env;
                let (xdg, tmp) = (env("XDG_RUNTIME_DIR"), env("TMPDIR"));
                let folders = address::default_folders(xdg.as_deref(), tmp.as_deref());
                address::bind_default(&selection.app, &selection.instance, &folders)
            }
        };
        bound.map(Some).map_err(|error| Failure::usage(format!("control API: {error}")))
    }

    /// Runs the loop to its end, and the threads around it.
    fn reconcile(
        &self,
        who: Who,
        outside: &Outside,
        sender: Sender<Message>,
        receiver: Receiver<Message>,
        rng: &mut Rng,
    ) -> Result<ShutdownOutcome, Failure> {
        let settings = self.settings;
        let Who { selection, hold, id_high_water, is_new: is_new_instance } = who;
        let groups = match self.groups(&selection) {
            Ok(groups) => groups,
            Err(failure) => {
                hold.release(LeaseRelease::Delete);
                return Err(failure);
            }
        };
        let core = self.core(&selection, groups, &hold.ids, id_high_water, rng);
        let pods = self.pods(&selection);
        let mark = Arc::new(SharedMark::default());
        let look = LookSettings {
            clock: self.clock,
            seed: rng.next_u64(),
            watch: settings.watch,
            poll_interval_ms: settings.poll_interval_ms,
        };
        let threads = Threads::start(&pods, look, &sender, &mark, hold, self.sweep())
            .map_err(|error| Failure::new(Code::Failed, format!("threads: {error}")))?;
        let in_flight_max = settings.policy.in_flight_max as usize;
        let engine = Engine {
            core,
            finish: Shutdown::new(settings.grace_ms, settings.keep),
            clock: self.clock,
            inbox: receiver,
            sender: sender.clone(),
            signals: self.signals,
            writers: Writers::new(pods, sender.clone(), in_flight_max),
            upstream: &threads,
            mark: &mark,
            pulse: Arc::clone(&outside.pulse),
            log: Arc::clone(&outside.log),
            progress: self.progress.clone(),
            driver_plan: self.driver_plan(&selection, outside),
            is_new_instance,
            state: crate::runtime::engine::LoopState::default(),
        };
        let outcome = engine.run();
        let is_clear = outcome.stop.remaining.is_empty() && outcome.stop.retained.is_empty();
        let leaves = settings.keep || matches!(outcome.verdict, Some(RunVerdict::TakenOver { .. }));
        let is_over = is_clear && !leaves && self.ground.owner.is_none();
        let left = threads.stop(if is_over { LeaseRelease::Delete } else { LeaseRelease::Keep });
        if !left.is_empty() {
            debug!("threads left behind: {}", left.join(" "));
        }
        Ok(outcome)
    }

    fn core(
        &self,
        selection: &Selection,
        groups: Vec<GroupSpec>,
        ids: &IdKeeper,
        id_high_water: u64,
        rng: &mut Rng,
    ) -> Reconciler {
        let settings = self.settings;
        let identity = InstanceIdentity {
            pod_prefix: selection.pod_prefix(),
            owner: self.ground.owner.as_ref().map(|owner| Uid::new(&owner.uid)),
            id_high_water,
            is_id_high_water_stored: !matches!(ids, IdKeeper::Nobody),
            start_unix_ms: time::unix_ms(self.clock.wall(Millis::ZERO)),
            is_lease_held: true,
            is_driver_ready: false,
        };
        let mut policy = settings.policy.clone();
        if settings.control == Control::Off {
            // Nobody can set a target in this run: there is nothing to hold for.
            policy.adopt_hold_ms = 0;
        }
        Reconciler::new(identity, policy, groups, rng.next_u64(), self.clock.now())
    }

    /// The groups of the settings, with their pods.
    fn groups(&self, selection: &Selection) -> Result<Vec<GroupSpec>, Failure> {
        let run = self.identity(selection);
        let groups = self.settings.groups.iter().map(|group| {
            let identity = self.settings.identity(Some(group), &run);
            let compiled = group.template.compile(&identity)?;
            for warning in compiled.warnings() {
                warn!("group {}: {warning}", group.spec.name);
            }
            Ok(GroupSpec { pod: Some(compiled.pod), ..group.spec.clone() })
        });
        groups.collect()
    }

    fn identity(&self, selection: &Selection) -> RunIdentity {
        RunIdentity {
            instance: selection.instance.clone(),
            namespace: self.ground.namespace.clone(),
            owner: self.ground.owner.clone(),
            driver_host: self.ground.driver_host.clone(),
        }
    }

    fn pods(&self, selection: &Selection) -> Pods {
        Pods::new(self.server.http.clone(), self.ground.namespace.as_str(), selection.clone())
    }

    fn sweep(&self) -> Option<SweepSettings> {
        let (http, app) = (self.server.http.clone(), self.settings.app.as_str());
        let leftovers = AppExecutors::new(http, &self.ground.namespace, Some(app));
        let is_exclusive = self.settings.exclusive;
        match self.settings.orphans {
            OrphanPolicy::Delete => Some(SweepSettings { leftovers, is_exclusive }),
            OrphanPolicy::Keep => None,
        }
    }

    fn driver_plan(&self, selection: &Selection, outside: &Outside) -> DriverPlan {
        let driver = &self.settings.driver;
        let host = names::host_in_url(&self.ground.driver_host);
        DriverPlan {
            command: driver.command.clone(),
            env: DriverEnv {
                app: selection.app.clone(),
                instance: selection.instance.clone(),
                namespace: self.ground.namespace.clone(),
                control: outside.control.as_ref().map(|control| match control.address() {
                    ControlAddr::Unix(path) => ControlAddr::Unix(absolute(path)).to_string(),
                    tcp @ ControlAddr::Tcp(_) => tcp.to_string(),
                }),
                // The driver may go to another folder before it reads it.
                control_token_file: self.settings.control_token_file.as_deref().map(absolute),
                kubeconfig: self.kubeconfig.map(Path::to_path_buf),
            },
            probe: match driver.ready {
                Ready::Tcp(port) => Some(format!("{host}:{port}")),
                Ready::Control | Ready::None => None,
            },
            is_ready_by_call: driver.ready == Ready::Control,
        }
    }
}

/// The path from the root; as it is where the working directory is not known.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What others see of a run.
struct Outside {
    log: Arc<EventLog>,
    writer: Option<EventWriter>,
    control: Option<ControlServer>,
    pulse: Arc<Pulse>,
}

impl Outside {
    /// Ends it: the last events first, then those who read them.
    fn close(self) {
        self.log.end();
        if let Some(control) = self.control {
            control.stop();
        }
        if let Some(writer) = self.writer
            && !writer.finish(Instant::now() + EVENTS_TIMEOUT)
        {
            warn!("the last events could not be written in time");
        }
    }
}

/// To a Job a clean end is the end of its work; an end that a drain asked for is not.
fn told_to_end(code: Code, outcome: &ShutdownOutcome, as_job: bool) -> Code {
    match code == Code::Clean && outcome.is_signalled && as_job {
        true => Code::Driver(SIGTERM_CODE),
        false => code,
    }
}

/// Says how the run ended, and gives the code for it.
fn tell(outcome: &ShutdownOutcome) -> Code {
    if !outcome.stop.retained.is_empty() {
        info!("failed pods are left for you to look at: {}", outcome.stop.retained.join(" "));
    }
    if !outcome.stop.remaining.is_empty() {
        error!("executors may remain: {}", outcome.stop.remaining.join(" "));
    }
    let own = match &outcome.verdict {
        Some(RunVerdict::BudgetExhausted(_)) => Code::BudgetSpent,
        Some(RunVerdict::DriverSilent { .. }) => Code::DriverSilent,
        Some(RunVerdict::DriverNotStarted { .. }) => Code::Usage,
        Some(RunVerdict::NotAllowed { .. } | RunVerdict::NotReachable { .. }) => Code::Server,
        Some(RunVerdict::TemplateRefused { .. }) => Code::TemplateRefused,
        Some(RunVerdict::TakenOver { .. }) => Code::TakenOver,
        None if outcome.is_taken_over => Code::TakenOver,
        // The driver was killed for the hurry's sake: its code tells nothing of its own.
        None if outcome.is_forced => return Code::Remain,
        None if !outcome.stop.remaining.is_empty() => Code::Remain,
        None => Code::Clean,
    };
    own.with_driver(outcome.driver.unwrap_or(0))
}

mod embedded;
pub(in crate::cli) mod ground;
mod instance;
