//! Unmodified third-party clients as scenarios.

mod console;
mod session;

/// A module of scenarios: each of these sessions with this kubectl.
macro_rules! sessions {
    ($module:ident, $kubectl:ident: $($name:ident),+) => {
        pub mod $module {
            use super::session::{Kubectl, session};
            use crate::support::server::Server;

            $(pub fn $name(server: &dyn Server) {
                session(server, Kubectl::$kubectl, stringify!($name));
            })+
        }
    };
}

sessions!(kubectl_1_20, Debian: get, describe, logs, delete, apply, create, patch, waiting, nodes);
sessions!(kubectl_newer, Path: get, describe, logs, delete, apply, create, patch, waiting, nodes, sockets);

pub mod python {
    use super::session::program;
    use crate::support::server::Server;

    pub fn kubernetes(server: &dyn Server) {
        program(server, "kubernetes_client");
    }
}

/// With the kubeconfig that `posse dev` wrote.
pub mod foreign {
    pub use super::session::fabric8;
}

pub mod control {
    pub use super::session::schemathesis;
}
