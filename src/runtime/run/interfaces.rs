//! What others see of a run: the events' file and the control API.

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::warn;

use crate::control::address::{self, Bound};
use crate::control::api::{ControlServer, Subject};
use crate::runtime::events::{EventLog, EventWriter};
use crate::runtime::inbox::Liveness;
use crate::runtime::run::error::RunError;
use crate::runtime::run::settings::RunSettings;
use crate::serve::token::Token;
use crate::wire::config::Control;
use crate::wire::control_addr::ControlAddr;
use crate::wire::labels::Selection;

/// At the end of a run, how long the last events may take to be written.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(2);

/// The opened events' file and control API.
pub(super) struct Interfaces {
    pub log: Arc<EventLog>,
    pub liveness: Arc<Liveness>,
    writer: Option<EventWriter>,
    control: Option<ControlServer>,
}

impl Interfaces {
    /// Opens the events' file, then the control API, which serves `subject`.
    pub(super) fn open(
        settings: &RunSettings,
        selection: &Selection,
        log: &Arc<EventLog>,
        liveness: Arc<Liveness>,
        subject: Subject,
    ) -> Result<Self, RunError> {
        let start = |target| EventWriter::start(target, Arc::clone(log));
        let writer =
            settings.events.clone().map(start).transpose().map_err(|error| {
                RunError::Settings(format!("--events: cannot be written: {error}"))
            })?;
        let control = bind(settings, selection)?.map(|bound| {
            let token =
                settings.control_token_file.as_deref().map(Token::read_private).transpose()?;
            ControlServer::start(bound, token, subject)
        });
        let control = control
            .transpose()
            .map_err(|error| RunError::Settings(format!("control API: {error}")))?;
        Ok(Self { log: Arc::clone(log), liveness, writer, control })
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
        if let Some(writer) = self.writer
            && !writer.finish(Instant::now() + EVENTS_TIMEOUT)
        {
            warn!("the last events were not written in time");
        }
    }
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
