//! posse from outside, against the embedded cluster and against a real API server: what it does
//! to pods, what it says, how it ends. `cargo test --test e2e [FILTER]`; the real server's folder
//! is named by KUBEBUILDER_ASSETS, and without it half of these are reported as not run.

// One program: what its modules show each other, nobody outside sees.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod support;
mod e2e {
    pub mod check;
    pub mod driver;
    pub mod groups;
    pub mod harness;
    pub mod history;
    pub mod kills;
    pub mod losses;
    pub mod openapi;
    pub mod outages;
    pub mod reasons;
    pub mod refusals;
    pub mod restarts;
    pub mod scaling;
    pub mod stage;
    pub mod starts;
    pub mod submit;
}

use std::process::ExitCode;

use e2e::{
    check, driver, groups, harness, history, kills, losses, openapi, outages, reasons, refusals,
    restarts, scaling, stage, starts, submit,
};
use support::runner::{Scenario, scenarios};

const SCENARIOS: &[Scenario] = scenarios! {
    // Long ones first: they end while others run.
    Own submit::{submit_wordcount};
    Embedded submit::{submit_logs_over_cuts};
    Both submit::{submit_with_a_lost_pod, submit_without_room};
    Embedded kills::{kill_9_at_every_call};
    Real kills::{kill_9_at_calls};
    OwnReal restarts::{driver_node_lost};
    Own restarts::{driver_node_shut_down};
    Both restarts::{
        container_restarted, exclusive_lost_to_another, exclusive_waits_its_turn,
        executors_of_a_certain_age, orphans_of_older_instances, stale_leases_are_cleaned_up,
    };
    Both driver::{decommission_over_a_restart, heartbeats_that_stop, silent_driver};
    Both outages::{late_comer_at_stop, frozen_server, server_stopped_and_back};
    Real refusals::{wrong_certificate, expired_token};
    Both history::{compacted_while_away, restored_from_a_backup};
    Both outages::{
        answers_after_the_watch, silent_watch, stop_while_a_create_hangs,
        told_to_end_while_starting, watch_cut_and_410,
    };
    Real outages::{error_after_commit};
    Both groups::{
        group_deleted_and_made_anew, group_of_an_earlier_run, group_put_while_the_server_is_busy,
        group_refused, groups_by_fifty_clients,
    };
    Embedded groups::{events_over_reconnects, hostile_clients};
    Own openapi::{openapi_checker};
    Embedded openapi::{openapi_and_router, openapi_fuzzed};
    Both check::{check_before_a_run};
    Real check::{check_of_rights, check_of_the_way};
    Both refusals::{
        foreign_pod_in_the_way, own_ending_pod_in_the_way, quota_then_room,
        quota_wakes_when_a_pod_goes,
    };
    Real refusals::{bad_template, label_stripper, rights_taken_while_running, wrong_rights};
    Both driver::{
        busy_and_idle, decommission_that_is_used, disconnected_and_found,
        disconnected_and_not_found,
    };
    Both losses::{
        budget_spent_ends_it, poll_alone_suffices, replaced_after_a_clean_end,
        replaced_after_deletion, replaced_after_failure, replaced_when_gone,
        replaced_while_terminating,
    };
    Real losses::{pending_goes_before_running};
    Both reasons::{
        budget_kills_a_deaf_driver, every_reason, explained_with_and_without_its_run,
        kill_9_before_the_label, told_once_over_kill_9, logs_of_the_failed,
    };
    Both scaling::{
        driver_decides_the_exit_code, groups_have_their_own_targets, keep_then_cleanup,
        kill_9_and_adoption, kill_9_while_scaling_up, owned_by_the_driver_pod,
        render_asks_the_server, scale_up_and_down, second_signal_ends_it_at_once,
        two_posse_of_one_instance,
    };
    Both starts::{image_that_cannot_be_pulled, secret_that_is_missing, side_car_that_fails};
    Both submit::{
        submit_and_exit_codes, submit_cut_short, submit_detached, submit_made_of_nothing_new,
        submit_interrupted, submit_of_a_bare_pod, submit_past_its_deadline, submit_refused_half_way,
        submit_stopped, submit_twice_at_once,
    };
    Own submit::{submit_with_rights_of_its_own};
    Embedded submit::{submit_drained, submit_out_of_memory};
    Real submit::{submit_without_rights};
    Embedded starts::{no_node_is_waited_for};
    Own stage::{
        stage_certificate_renewed, stage_disk_full, stage_gigabyte_through_64_mb,
        stage_kill_9_in_uploads, stage_over_tls,
    };
    Both stage::{stage_follows_the_pods, submit_takes_files_along};
    Real stage::{stage_manifest, stage_token_review};
    Real starts::{memory_that_grows, node_where_nothing_starts};
    Own scaling::{run_with_a_cluster_of_its_own};
    Real scaling::{steady_state_is_quiet};
    Own harness::{harness_audit, harness_events};
    Real harness::{harness_drives_pods, harness_outage, harness_proxy, harness_tokens};
};

fn main() -> ExitCode {
    support::runner::main(SCENARIOS)
}
