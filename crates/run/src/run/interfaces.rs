//! What others see of a run: the events' file, the control API and the page.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, info, warn};

use crate::events::{EventLog, EventTarget, EventWriter};
use crate::inbox::Liveness;
use crate::kube_events::KubeEventWriter;
use crate::run::error::RunError;
use crate::run::settings::{OutputFolder, RunSettings};
use crate::task_outputs::TaskOutputs;
use crate::worker::Worker;
use posse_control::address::{self, Bound};
use posse_control::api::{ControlServer, Tokens};
use posse_control::page::PageServer;
use posse_control::page::history::History;
use posse_control::served_run::ServedRun;
use posse_serve::token::Token;
use posse_wire::config::Control;
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::k8s::labels::Selection;

/// At the end of a run, how long the last events may take to be written.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(2);

/// The stack of the thread that records the history, bytes.
const HISTORY_STACK_BYTES: usize = 256 << 10;
/// How often that thread looks at the status while executors start.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How long it waits for the next event otherwise.
const HISTORY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The opened events' file, control API and page, and the thread that writes Kubernetes Events.
pub(super) struct Interfaces {
    pub log: Arc<EventLog>,
    pub liveness: Arc<Liveness>,
    writer: Option<EventWriter>,
    kube_events: Option<KubeEventWriter>,
    control: Option<ControlServer>,
    page: Option<PageServer>,
}

impl Interfaces {
    /// Opens the events' file, then the control API and the page, which serve `subject`.
    pub(super) fn open(
        settings: &RunSettings,
        selection: &Selection,
        log: &Arc<EventLog>,
        liveness: Arc<Liveness>,
        kube_events: Option<KubeEventWriter>,
        subject: ServedRun,
    ) -> Result<Self, RunError> {
        let start = |target: EventTarget| {
            let shown = match &target {
                EventTarget::File(path) => path.display().to_string(),
                EventTarget::Stdout => "stdout".to_owned(),
            };
            EventWriter::start(target, Arc::clone(log)).map_err(|error| {
                RunError::Settings(format!("--events: {shown}: cannot be written: {error}"))
            })
        };
        let writer = settings.events.clone().map(start).transpose()?;
        let subject = record_history(settings, log, subject)?;
        let page = start_page(settings, &subject)?;
        let control = bind(settings, selection)?.map(|bound| {
            let read =
                |file: &Option<PathBuf>| file.as_deref().map(Token::read_private).transpose();
            let tokens = Tokens {
                control: read(&settings.control_token_file)?,
                read: read(&settings.page_token_file)?,
            };
            ControlServer::start(bound, tokens, subject)
        });
        let control = control
            .transpose()
            .map_err(|error| RunError::Settings(format!("control API: {error}")))?;
        if let Some(control) = &control {
            info!("the control API is at {}", control.address());
        }
        Ok(Self { log: Arc::clone(log), liveness, writer, kube_events, control, page })
    }

    /// The address of the control API, if it is on.
    pub(super) fn control_address(&self) -> Option<&ControlAddr> {
        self.control.as_ref().map(ControlServer::address)
    }

    /// Ends the event log first, so that readers of the control API still get the last events.
    pub(super) fn close(self) {
        self.log.end();
        if let Some(control) = self.control {
            control.stop();
        }
        if let Some(page) = self.page {
            page.stop();
        }
        let deadline = Instant::now() + EVENTS_TIMEOUT;
        if let Some(writer) = self.writer
            && !writer.finish(deadline)
        {
            warn!("the last events were not written in time");
        }
        if let Some(kube_events) = self.kube_events
            && !kube_events.finish(deadline)
        {
            debug!("the last Events about the driver's pod were not written in time");
        }
    }
}

/// Records the history of the run on a thread of its own, if there is a page to show it.
fn record_history(
    settings: &RunSettings,
    log: &Arc<EventLog>,
    mut subject: ServedRun,
) -> Result<ServedRun, RunError> {
    let is_tcp = matches!(settings.control, Control::At(ControlAddr::Tcp(_)));
    if settings.page.is_none() && !is_tcp {
        return Ok(subject);
    }
    let targets = settings.groups.iter().map(|group| (group.spec.name.clone(), group.spec.target));
    let history = Arc::new(History::new(targets));
    subject.history = Some(Arc::clone(&history));
    let (log, recorded) = (Arc::clone(log), subject.clone());
    let body = move || {
        let mut looked_at = Instant::now();
        let pause = || {
            if !history.needs_status() {
                return HISTORY_PAUSE_MAX;
            }
            if looked_at.elapsed() >= LOOK_INTERVAL {
                looked_at = Instant::now();
                // If the run does not answer now, the next look comes soon.
                let _ = recorded.observe();
            }
            LOOK_INTERVAL
        };
        log.for_each(|at, event| history.record(at, event), pause);
    };
    match Worker::start("history", HISTORY_STACK_BYTES, body) {
        // It ends with the log.
        Ok(_) => Ok(subject),
        Err(error) => Err(RunError::System(format!("threads: {error}"))),
    }
}

fn start_page(settings: &RunSettings, subject: &ServedRun) -> Result<Option<PageServer>, RunError> {
    let Some(at) = settings.page else { return Ok(None) };
    let failed = |error: &dyn std::fmt::Display| RunError::Settings(format!("page: {error}"));
    let token = settings.page_token_file.as_deref().map(Token::read_private).transpose();
    let token = token.map_err(|error| failed(&error))?;
    let page = PageServer::start(at, token, subject.clone())
        .map_err(|error| failed(&format_args!("cannot listen on {at}: {error}")))?;
    info!("page: http://{}/", page.address());
    Ok(Some(page))
}

fn bind(settings: &RunSettings, selection: &Selection) -> Result<Option<Bound>, RunError> {
    let bound = match &settings.control {
        Control::Off => return Ok(None),
        Control::At(at) => address::bind(at),
        Control::Default => {
            address::bind_default(&selection.app, &selection.instance, &settings.socket_folders)
        }
    };
    bound.map(Some).map_err(|error| RunError::Settings(format!("control API: {error}")))
}

/// The folder for the output of ended tasks. A run can do without one that nobody has named.
pub(super) fn open_outputs(settings: &RunSettings) -> Result<Option<Arc<TaskOutputs>>, RunError> {
    let Some(OutputFolder { path, is_named }) = &settings.task_output else { return Ok(None) };
    match TaskOutputs::open(path) {
        Ok(outputs) => Ok(Some(Arc::new(outputs))),
        Err(error) if *is_named => {
            Err(RunError::Settings(format!("task_output: {}: {error}", path.display())))
        }
        Err(error) => {
            warn!("the output of tasks is not kept: {}: {error}", path.display());
            Ok(None)
        }
    }
}
