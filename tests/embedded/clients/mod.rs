//! Unmodified third-party clients as scenarios.

mod console;
mod session;

/// A module of scenarios: each session with this kubectl.
macro_rules! sessions {
    ($module:ident, $kubectl:ident) => {
        pub mod $module {
            use super::session::{Kubectl, session};
            use crate::support::server::Server;

            sessions!(@each $kubectl: get, describe, logs, delete, apply, create, patch, waiting, nodes, sockets);
        }
    };
    (@each $kubectl:ident: $($name:ident),+) => {
        $(pub fn $name(server: &dyn Server) {
            session(server, Kubectl::$kubectl, stringify!($name));
        })+
    };
}

sessions!(kubectl_1_20, Debian);
sessions!(kubectl_newer, Path);

pub mod python {
    use super::session::program;
    use crate::support::server::Server;

    pub fn kubernetes(server: &dyn Server) {
        program(server, "kubernetes_client");
    }

    pub fn lightkube(server: &dyn Server) {
        program(server, "lightkube_client");
    }
}

/// With the kubeconfig that `posse dev` wrote.
pub mod foreign {
    pub use super::session::{client_node, fabric8, kr8s};
}

pub mod control {
    pub use super::session::schemathesis;
}
