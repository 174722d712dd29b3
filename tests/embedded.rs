//! Tests of the embedded cluster: its answers compared with a real API server's, the environment of
//! its containers, its faults, third-party clients, and the examples and documents that use it.
//! `cargo test --test embedded [FILTER]`.
//!
//! The clients are kubectl (sessions in `tests/embedded/clients/kubectl/`) and the official Python client
//! (`tests/embedded/clients/kubernetes_client.py`). `.ci/clients` installs them below `target/`; a missing
//! client is reported as NOT TESTED, and with `CI` in the environment it is an error. Fabric8, Spark's
//! client, is tested if the machine has a JDK and PySpark.

// Items that are `pub` in a module are used by other modules of this program only.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod support;
mod embedded {
    pub mod clients;
    pub mod doors;
    pub mod driver_port;
    pub mod drivers;
    pub mod exec;
    pub mod faults;
    pub mod newer;
    pub mod projects;
    pub mod scale;
    pub mod scripts;
    pub mod sockets;
    pub mod transcript;
    pub mod volumes;
    pub mod wordcount;
}

use std::process::ExitCode;

use embedded::clients::{control, foreign, kubectl_1_20, kubectl_newer, python};
use embedded::{
    doors, driver_port, drivers, exec, faults, newer, projects, scale, scripts, sockets,
    transcript, volumes, wordcount,
};
use support::real::Real;
use support::runner::{Scenario, scenarios};

const SCENARIOS: &[Scenario] = scenarios! {
    // Long ones first: they end while others run.
    Own transcript::{the_embedded_cluster_answers_as_a_real_server};
    OwnReal transcript::{a_real_server_answers_as_recorded};
    Own wordcount::{the_count_is_right_if_workers_die_within_chunks};
    Own projects::{
        project_job, project_job_refuses_forged_results,
        project_job_takes_commands_only_from_its_driver, project_python,
        project_python_refuses_forged_results, project_shell, three_runs_of_one_command_at_once,
    };
    Own scripts::{
        a_script_reports_idle_executors, executors_wait_for_the_drivers_call,
        executors_wait_for_the_drivers_file,
    };
    Own driver_port::{
        a_port_in_use_is_an_error_before_the_driver_starts, a_restarted_run_gets_the_same_port,
        executors_wait_for_the_drivers_port, the_driver_gets_its_port_as_an_open_socket,
        two_runs_at_once_get_two_ports,
    };
    Own scale::{
        dev_replaces_the_command_on_this_machine, the_command_of_a_queue_finds_the_credentials,
        the_target_follows_a_queue,
    };
    Own exec::{a_driver_runs_commands_in_its_executors};
    Own faults::{
        fault_429_on_everything, fault_500_after_commit, fault_broken_lists, fault_clock_skew,
        fault_compacted_history, fault_dropped_watches, fault_errors_and_cuts, fault_gone_watches,
        fault_latency_and_429, fault_lost_node, fault_lost_node_returns, fault_quota,
        fault_refused_connections, fault_silent_watch, fault_stale_lists, fault_stripped_labels,
    };
    Own volumes::{
        an_impossible_mount_is_a_failed_start, a_token_is_mounted_if_a_pod_requests_it,
        pods_share_a_claim, files_follow_their_objects_while_a_container_runs,
        volumes_are_mounted_at_their_paths, missing_objects_are_waited_for_and_named,
        with_rbac_a_pod_has_its_service_accounts_permissions,
    };
    Own doors::{
        an_account_token_opens_the_cluster, headers_that_two_programs_read_differently_are_refused,
        only_the_kubeconfig_opens_the_cluster, the_driver_gets_a_kubeconfig_that_works,
        without_authentication_web_pages_are_refused,
    };
    Own newer::{
        a_resize_changes_amounts_only, a_watch_from_the_future_gets_an_error,
        bodies_that_are_not_text_or_too_large,         every_kubeconfig_names_a_user, image_volumes_are_refused_by_the_node,
        scheduling_gates_keep_a_pod_from_a_node, users_can_ask_who_they_are,
    };
    Own drivers::{
        the_calls_get_the_documented_answers, the_configurations_are_valid,
        the_python_code_is_in_the_examples, the_queue_is_short,
    };
    Own control::{schemathesis};
    Own sockets::{
        a_client_that_leaves_ends_its_command, garbage_ends_a_connection_and_nothing_else,
        unknown_protocols_are_refused_with_the_known_ones, watches_are_messages_of_a_web_socket,
    };
    Own foreign::{fabric8};
    Both python::{kubernetes};
    Both kubectl_1_20::{get, describe, delete, apply, create, patch, waiting, nodes};
    Embedded kubectl_1_20::{logs};
    Both kubectl_newer::{get, describe, delete, apply, create, patch, waiting, nodes};
    Embedded kubectl_newer::{logs, sockets};
};

fn main() -> ExitCode {
    // With TLS, users and all controllers, as in a real cluster.
    support::runner::main_with(SCENARIOS, Real::start_whole, &["--rbac"])
}
