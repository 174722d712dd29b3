//! Tests on real nodes: containerd, kubelets, images and a service network. posse runs as its image in
//! its pod. `POSSE_NODES=KUBECONFIG cargo test --test nodes [FILTER]`; without the variable all tests
//! are reported as not run. The nodes' files lie beside the kubeconfig: `nN/kubelet.pid`,
//! `nN/containerd.sock`. The images `registry.example.com/posse:0.2.0` and `busybox:1.36` are on them,
//! and for the examples `registry.example.com/examples:0.1.0`. `.ci/nodes` makes all of it.

// Items that are `pub` in a module are used by other modules of this program only.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod support;
mod nodes {
    pub mod attempts;
    pub mod cluster;
    pub mod documented;
    pub mod examples;
    pub mod first_job;
    pub mod identity;
    pub mod inputs;
    pub mod losses;
    pub mod lost;
    pub mod machine;
    pub mod reach;
    pub mod wait;
}

use std::process::ExitCode;

use nodes::cluster::NODES;
use nodes::{attempts, documented, examples, first_job, identity, inputs, losses, lost, reach};
use support::runner::{Scenario, scenarios};

const SCENARIOS: &[Scenario] = scenarios! {
    // Each of these ends a node. They take longest, so they begin first.
    OwnReal lost::{
        driver_cut_off, driver_node_lost, driver_node_lost_with_a_standby, driver_node_lost_without_a_standby, executors_node_lost, kubelet_lost, node_deleted, node_restarted_and_drained,
    };
    OwnReal lost::{nodes_drained_in_turn, each_leader_killed, done_indexes_outlive_the_driver};
    OwnReal reach::{connection_cut_by_a_kubelet, submitted_run_is_reached, task_reads_its_files};
    OwnReal attempts::{
        drained_again_and_again, final_exit_code_is_one_attempt, retries_are_spent, retries_without_permission,
        killed_together_with_posse, clean_end_with_slow_executors,
    };
    OwnReal identity::{token_replaced, driver_pod_is_known};
    OwnReal inputs::{
        image_without_posse, quota_full_while_driver_ends, job_paused_by_somebody,
        image_that_no_node_has,
    };
    OwnReal losses::{reasons_that_a_node_gives};
    OwnReal documented::{quick_start_of_the_readme, manifests_applied_by_hand, stage_server};
    OwnReal examples::{word_count, queue, dask};
    OwnReal first_job::{from_a_script_to_a_cluster};
};

fn main() -> ExitCode {
    support::runner::main_if_set(NODES, SCENARIOS)
}
