//! Tests on real nodes: containerd, kubelets, images and a service network. posse runs as its image in
//! its pod. `POSSE_NODES=KUBECONFIG cargo test --test nodes [FILTER]`; without the variable all tests
//! are reported as not run. The nodes' files lie beside the kubeconfig: `nN/kubelet.pid`,
//! `nN/containerd.sock`. The images `registry.example.com/posse:0.1.0` and `busybox:1.36` are on them.

// Items that are `pub` in a module are used by other modules of this program only.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod support;
mod nodes {
    pub mod attempts;
    pub mod cluster;
    pub mod documented;
    pub mod losses;
    pub mod lost;
}

use std::process::ExitCode;

use nodes::cluster::NODES;
use nodes::{attempts, documented, losses, lost};
use support::runner::{Scenario, scenarios};

const SCENARIOS: &[Scenario] = scenarios! {
    OwnReal losses::{reasons_that_a_node_gives};
    OwnReal documented::{quick_start_of_the_readme, manifests_applied_by_hand};
    OwnReal attempts::{
        final_exit_code_is_one_attempt, retries_are_spent, killed_together_with_posse,
        clean_end_with_slow_executors, drained_ten_times,
    };
    // Each of these ends a node; the others wait.
    OwnReal lost::{driver_node_lost, executors_node_lost};
};

fn main() -> ExitCode {
    support::runner::main_if_set(NODES, SCENARIOS)
}
