//! Clients that nobody here wrote, unchanged, against the embedded cluster and against a real API
//! server: kubectl as sessions at a terminal (`tests/clients/kubectl/`), Python libraries as programs
//! (`tests/clients/*.py`). `.ci/clients` installs them below `target/`; a client that is missing is
//! named as NOT TESTED, and with `CI` in the environment it is an error.

// One program: what its modules show each other, nobody outside sees.
#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod common;
mod clients {
    pub mod console;
    pub mod stage;
}

use std::process::ExitCode;

use clients::stage::{self, Kubectl};
use common::real::Real;
use common::runner::{On, Scenario};
use common::server::Server;

/// A module of scenarios: each session with this kubectl.
macro_rules! sessions {
    ($module:ident, $kubectl:expr, $($name:ident),+ $(,)?) => {
        mod $module {
            use super::*;
            $(pub fn $name(server: &dyn Server) {
                stage::session(server, $kubectl, stringify!($name));
            })+
        }
    };
}

/// Scenarios of a module's functions, with its name before theirs.
macro_rules! scenarios {
    ($($on:ident $module:ident::{$($name:ident),+ $(,)?};)+) => {
        &[$($(Scenario {
            name: concat!(stringify!($module), "_", stringify!($name)),
            on: On::$on,
            play: $module::$name,
        }),+),+]
    };
}

sessions!(
    kubectl_1_20,
    Kubectl::Debian,
    get,
    describe,
    logs,
    delete,
    apply,
    create,
    patch,
    waiting,
    nodes
);
sessions!(
    kubectl_newer,
    Kubectl::Path,
    get,
    describe,
    logs,
    delete,
    apply,
    create,
    patch,
    waiting,
    nodes
);

mod python {
    use super::*;
    pub fn kubernetes(server: &dyn Server) {
        stage::program(server, "kubernetes_client");
    }
    pub fn lightkube(server: &dyn Server) {
        stage::program(server, "lightkube_client");
    }
}

mod control {
    use super::*;
    pub fn schemathesis(_: &dyn Server) {
        stage::schemathesis();
    }
}

const SCENARIOS: &[Scenario] = scenarios! {
    Embedded control::{schemathesis};
    Both python::{kubernetes, lightkube};
    Both kubectl_1_20::{get, describe, delete, apply, create, patch, waiting, nodes};
    Embedded kubectl_1_20::{logs};
    Both kubectl_newer::{get, describe, delete, apply, create, patch, waiting, nodes};
    Embedded kubectl_newer::{logs};
};

fn main() -> ExitCode {
    // As a real one: over TLS, and knowing who asks.
    common::runner::main_with(SCENARIOS, Real::start_whole, &["--rbac"])
}
