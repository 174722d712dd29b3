//! posse from outside, against the embedded cluster and against a real API server: what it does
//! to pods, what it says, how it ends. `cargo test --test e2e [FILTER]`; the real server's folder
//! is named by KUBEBUILDER_ASSETS, and without it half of these are reported as not run.

// One program: what its modules show each other, nobody outside sees.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod common;
mod e2e {
    pub mod harness;
}

use std::process::ExitCode;

use common::runner::{On, Scenario};

/// `Scenario`s of a module's functions.
macro_rules! scenarios {
    ($($on:ident $module:ident::{$($name:ident),+ $(,)?};)+) => {
        &[$($(Scenario { name: stringify!($name), on: On::$on, play: e2e::$module::$name }),+),+]
    };
}

const SCENARIOS: &[Scenario] = scenarios! {
    Real harness::{harness_drives_pods, harness_outage, harness_proxy, harness_tokens};
};

fn main() -> ExitCode {
    common::runner::main(SCENARIOS)
}
