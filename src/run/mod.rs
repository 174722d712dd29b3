//! `posse run`: starts the embedded cluster if requested, calls `runtime::run`, and turns the result
//! into an exit code.

use std::cell::Cell;
use std::io::{self, IsTerminal as _};

use log::{debug, error, info, warn};

use crate::args::RunArgs;
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use crate::required_permissions;
use crate::settings::{self, DEFAULT_FILE};
use crate::world::World;
use posse_base::clock::Clock;
use posse_core::machines::shutdown::ShutdownOutcome;
use posse_core::model::action::RunVerdict;
use posse_core::model::stop::HeldPod;
use posse_kube::api::driver_pod::{self, Hints};
use posse_kube::api::preflight::version;
use posse_kube::http::Http;
use posse_run::job_pod::{JobPod, JobSettings};
use posse_run::run::context::ApiServer;
use posse_run::run::error::RunError;
use posse_run::run::settings::RunSettings;
use posse_run::run::{RunInputs, RunResult, run as run_application};
use posse_run::signals::{Signal, Signals};
use posse_wire::config::DriverPod;
use posse_wire::k8s::permissions::{LEASES, PODS};

#[cfg_attr(not(feature = "dev"), path = "no_embedded.rs")]
mod embedded;
mod executor_logs;

use embedded::Embedded;
use executor_logs::ExecutorLogPrinter;

/// Runs one application until it is told to stop, or until its driver ends.
///
/// # Errors
/// The run could not start. After the start every end is a `Code`.
pub fn run(args: &RunArgs, world: &World<'_>) -> Result<Code, Failure> {
    let mut job_pod = None;
    let result = run_once(args, world, &mut job_pod);
    if args.as_job {
        let code = result.as_ref().map_or_else(|failure| failure.code, |code| *code);
        if job_pod.is_none() && code == Code::Usage {
            job_pod = job_pod_without_settings(args, world);
        }
        if let Some(job_pod) = &mut job_pod {
            job_pod.end(code.number(), false, false);
        }
    }
    result
}

fn run_once(
    args: &RunArgs,
    world: &World<'_>,
    job_pod: &mut Option<JobPod>,
) -> Result<Code, Failure> {
    let clock = Clock::start();
    let mut settings = settings::run_settings(args, world)?;
    let env = world.env;
    settings::found::announce(&args.file, world);
    leave_commands_out(&mut settings, args);
    // The handlers come first: a signal while the embedded cluster starts must stop it.
    let signals = start_signals()?;
    let embedded = Embedded::start(args, &settings)?;
    let connection = match embedded.kubeconfig() {
        Some(kubeconfig) => Connection::find(Some(kubeconfig), None, world)?,
        None => Connection::told(&args.server, world)?,
    };
    if args.as_job {
        let DriverPod { retries, standby, .. } = settings.driver.pod;
        let has_program = !settings.driver.command.is_empty();
        let of_job = JobSettings { retries, standby, has_program };
        let namespace = settings.namespace.as_deref();
        *job_pod = find_job_pod(&connection, namespace, of_job, &signals, world)?;
        if let Some(job_pod) = job_pod
            && let Some(job_end) =
                job_pod.begin(&signals).map_err(|error| failure(&error, &connection.http, true))?
        {
            if settings.lease {
                job_pod.end_executors(&settings.app);
            }
            return Ok(Code::Driver(job_end.code()));
        }
    }
    let http = connection.http.clone();
    let executor_logs = match args.executor_logs {
        true => {
            let namespace = settings.namespace.as_ref().unwrap_or(&connection.namespace);
            let started = ExecutorLogPrinter::start(&http, namespace, &settings);
            let failed = |error| Failure::new(Code::Failed, format!("threads: {error}"));
            Some(started.map_err(failed)?)
        }
        false => None,
    };
    let code = Cell::new(Code::Clean);
    let is_kept = args.events.is_some() || args.jobs.is_some();
    let hint = if is_kept { "" } else { " (--events FILE keeps why)" };
    let exit_code = |outcome: &ShutdownOutcome| {
        let own = report(outcome, args.as_job, args.embedded.dev.then_some(hint));
        code.set(signalled_code(own, outcome.is_signalled, args.as_job));
        code.get().number()
    };
    let inputs = RunInputs {
        settings: &settings,
        server: api_server(connection, args),
        driver_kubeconfig: embedded.kubeconfig(),
        env,
        clock,
        signals: &signals,
        job_pod: job_pod.as_mut(),
        exit_code: &exit_code,
    };
    let result = run_application(inputs);
    if let Some(executor_logs) = executor_logs {
        executor_logs.stop();
    }
    let code = conclude(result, &http, args.as_job, job_pod.as_mut())
        .map(|told| told.unwrap_or_else(|| code.get()));
    embedded.stop();
    code
}

/// What the result of a run means; none: the exit code of its outcome.
fn conclude(
    result: Result<RunResult, RunError>,
    http: &Http,
    as_job: bool,
    job_pod: Option<&mut JobPod>,
) -> Result<Option<Code>, Failure> {
    match result {
        Ok(RunResult { outcome, namespace }) => {
            if matches!(outcome.verdict, Some(RunVerdict::NotAllowed { .. })) {
                log_missing(http, &namespace);
            }
            Ok(None)
        }
        Err(RunError::Over(code)) => Ok(Some(Code::Driver(code))),
        Err(error) => {
            let failure = failure(&error, http, as_job);
            if let Some(job_pod) = job_pod {
                let is_signalled = matches!(error, RunError::Interrupted { .. });
                job_pod.end(failure.code.number(), is_signalled, false);
            }
            Err(failure)
        }
    }
}

fn start_signals() -> Result<Signals, Failure> {
    let signals = match io::stdin().is_terminal() || io::stderr().is_terminal() {
        true => Signals::start_with_job_control(),
        false => Signals::start(),
    };
    signals.map_err(|error| Failure::new(Code::Failed, format!("signals: {error}")))
}

/// The pod of a Job in which this process runs.
fn find_job_pod(
    connection: &Connection,
    namespace: Option<&str>,
    settings: JobSettings,
    signals: &Signals,
    world: &World<'_>,
) -> Result<Option<JobPod>, Failure> {
    let namespace = namespace.unwrap_or(&connection.namespace);
    let hints = Hints { env: world.env, home: connection.home.as_ref(), namespace };
    let Some(pod) = driver_pod::find(hints, &connection.http) else { return Ok(None) };
    JobPod::find(&connection.http, namespace, &pod, settings, signals).map_err(|refusal| {
        let why = format!("the job of pod {}: {refusal}", pod.name);
        failure(&RunError::Unreachable(why), &connection.http, true)
    })
}

/// The same of a process whose settings are invalid, so that the Job can be ended.
fn job_pod_without_settings(args: &RunArgs, world: &World<'_>) -> Option<JobPod> {
    let connection = Connection::new(&args.server, world).ok()?;
    let signals = start_signals().ok()?;
    let namespace = args.file.namespace.as_deref();
    let unknown = JobSettings { retries: 0, standby: 0, has_program: true };
    find_job_pod(&connection, namespace, unknown, &signals, world).ok()?
}

fn api_server(connection: Connection, args: &RunArgs) -> ApiServer {
    let Connection { http, namespace, home, described: _ } = connection;
    let (context, is_embedded) = (args.server.context.clone(), args.embedded.dev);
    ApiServer { http, namespace, home, context, is_embedded }
}

/// The exit code and message of a run that could not start.
fn failure(error: &RunError, http: &Http, as_job: bool) -> Failure {
    let code = match error {
        RunError::Forbidden { namespace, .. } => {
            log_missing(http, namespace);
            Code::Server
        }
        RunError::Interrupted { signal: Signal::Int, .. } => Code::Signal(Signal::Int),
        // Exit code 0 would mean that the application's work is done.
        RunError::Interrupted { waited_for: Some(_), .. } => Code::Server,
        RunError::Interrupted { .. } if as_job => Code::Signal(Signal::Term),
        RunError::Interrupted { .. } => Code::Clean,
        // The Job tries again, and does not count this job_pod.
        RunError::HeldBy(_) | RunError::Unavailable(_) | RunError::Unreachable(_) if as_job => {
            Code::TakenOver
        }
        RunError::HeldBy(_)
        | RunError::Server(_)
        | RunError::Unavailable(_)
        | RunError::Unreachable(_) => Code::Server,
        RunError::Settings(_) => Code::Usage,
        RunError::Template(_) => Code::TemplateRefused,
        RunError::System(_) => Code::Failed,
        RunError::Over(code) => Code::Driver(*code),
    };
    Failure::new(code, error.to_string())
}

/// With --as-job, 143 instead of 0 after a signal, so that the Job does not count as completed.
fn signalled_code(code: Code, is_signalled: bool, as_job: bool) -> Code {
    match code == Code::Clean && is_signalled && as_job {
        true => Code::Signal(Signal::Term),
        false => code,
    }
}

/// Logs how the run ended, and returns its exit code. `dev_hint`: the cluster and all of its pods end with the run, and
/// this is said of failed ones.
fn report(outcome: &ShutdownOutcome, as_job: bool, dev_hint: Option<&str>) -> Code {
    if let Some(hint) = dev_hint {
        if !outcome.stop.retained.is_empty() {
            let pods = outcome.stop.retained.join(", ");
            info!("failed pods, gone with the embedded cluster: {pods}{hint}");
        }
    } else {
        name_pods(outcome);
    }
    let own = match &outcome.verdict {
        Some(RunVerdict::AllEnded { n_given_up: 0 }) if outcome.stop.is_clean() => Code::Clean,
        Some(RunVerdict::AllEnded { n_given_up: 0 }) => Code::Remain,
        Some(RunVerdict::AllEnded { .. }) => Code::WorkGivenUp,
        Some(RunVerdict::BudgetExhausted { .. }) => Code::BudgetExhausted,
        Some(RunVerdict::DriverSilent { .. }) => Code::DriverSilent,
        Some(RunVerdict::DriverNotStarted { .. }) => Code::Usage,
        // No failure of the driver: the Job tries again, perhaps on a node that has a way to the server.
        Some(RunVerdict::NotReachable { .. }) if as_job => Code::TakenOver,
        Some(RunVerdict::NotAllowed { .. } | RunVerdict::NotReachable { .. }) => Code::Server,
        Some(RunVerdict::TemplateRefused { .. }) => Code::TemplateRefused,
        Some(RunVerdict::TakenOver { .. }) => Code::TakenOver,
        None if outcome.is_taken_over => Code::TakenOver,
        // posse killed the driver after a second signal, so the driver's code says nothing.
        None if outcome.is_forced => return Code::Remain,
        // To a Job, any other code means that the application has to run again.
        None if as_job && outcome.driver == Some(0) => Code::Clean,
        None if !outcome.stop.is_clean() => Code::Remain,
        None => Code::Clean,
    };
    let code = own.with_driver(outcome.driver.unwrap_or(0));
    if let Code::Driver(code) = code {
        info!("posse ends with the driver's exit code: {code}");
    }
    code
}

/// Names the pods that the run has left.
fn name_pods(outcome: &ShutdownOutcome) {
    if !outcome.stop.retained.is_empty() {
        info!("retained failed pods: {}", outcome.stop.retained.join(", "));
    }
    if !outcome.stop.remaining.is_empty() {
        let pods = &outcome.stop.remaining;
        error!(
            "not confirmed deleted: {} (check with `kubectl get pod {}`)",
            pods.join(", "),
            pods.join(" ")
        );
    }
    for HeldPod { name, finalizers } in &outcome.stop.held {
        error!("{name} is held by finalizer {finalizers}, which nobody here removes");
    }
    if !outcome.stop.terminating.is_empty() {
        let pods = outcome.stop.terminating.join(", ");
        info!("still terminating: {pods}; the cluster ends them");
    }
}

/// Takes the credentials out of a configuration that nobody named, if `posse map` or the flags say what to
/// run: their commands run as this user, who has not asked for them.
fn leave_commands_out(found: &mut RunSettings, args: &RunArgs) {
    let is_asked_for =
        args.file.file.is_some() || (args.jobs.is_none() && !settings::has_pod(&args.file));
    if is_asked_for || found.credentials.is_empty() {
        return;
    }
    warn!(
        "the `credentials` of {DEFAULT_FILE} are left out, because the command line says what to run: -f \
         {DEFAULT_FILE} runs their commands"
    );
    found.credentials = [].into();
    for group in &mut found.groups {
        group.spec.credentials = None;
    }
}

/// Logs the permissions that are missing in `namespace`, if the server tells.
fn log_missing(http: &Http, namespace: &str) {
    let needed = required_permissions::of_rules([PODS, LEASES]);
    let missing = match required_permissions::missing(http, namespace, needed) {
        Ok(missing) if missing.is_empty() => return,
        Ok(missing) => required_permissions::list(&missing),
        Err(refusal) => return debug!("cannot find the missing permissions: {refusal}"),
    };
    if let Ok(version) = version(http) {
        debug!("the server is Kubernetes {version}");
    }
    error!(
        "missing permissions in namespace {namespace}: {missing} (deploy/rbac.yaml grants them, and \
         `posse check` prints a role that grants them)"
    );
}
