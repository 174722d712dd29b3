//! The namespace of a command about applications in a cluster.

use crate::args::submit::NamespaceArgs;
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use crate::world::World;
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::Objects;
use posse_run::signals::Signals;
use posse_submit::apps::{App, find};
use posse_submit::workload::{Workload, find_workload};

/// A namespace of an API server.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub connection: Connection,
    pub name: String,
}

impl Namespace {
    pub(super) fn new(args: &NamespaceArgs, world: &World<'_>) -> Result<Self, Failure> {
        let connection = Connection::new(&args.server, world)?;
        let name = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
        Ok(Self { connection, name })
    }

    pub(super) fn objects(&self) -> Objects {
        Objects::new(self.connection.http.clone(), Some(&self.name))
    }

    /// The applications whose names match `names`; all if there are no names.
    pub(super) fn apps(&self, objects: &Objects, names: &[String]) -> Result<Vec<App>, Failure> {
        find(objects, names)
            .map_err(|refusal| self.connection.failure("cannot list the applications", &refusal))
    }

    /// The Job or Pod that keeps an application's driver.
    pub(super) fn keeper(&self, objects: &Objects, app: &str) -> Result<Option<Workload>, Failure> {
        find_workload(objects, app).map_err(|refusal| self.refused("cannot be read", app, &refusal))
    }

    pub(super) fn no_such_app(&self, app: &str) -> Failure {
        let message = format!("there is no application {app} in namespace {}", self.name);
        Failure::new(Code::Failed, message)
    }

    /// The failure of a refused request about an application.
    pub(super) fn refused(&self, what: &str, app: &str, refusal: &Refusal) -> Failure {
        self.connection.failure(&format!("application {app}: {what}"), refusal)
    }
}

/// Installs the signal handlers.
pub(super) fn start_signals() -> Result<Signals, Failure> {
    Signals::start().map_err(|error| Failure::new(Code::Failed, format!("signals: {error}")))
}
