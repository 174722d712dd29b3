//! End-to-end tests of the binary, on the embedded cluster and on a real API server: its effects on
//! pods, its output, its exit codes. `cargo test --test e2e [FILTER]`. KUBEBUILDER_ASSETS names the
//! folder of the real server; without it half of these tests are reported as not run.

// Items that are `pub` in a module are used by other modules of this program only.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod support;
mod e2e {
    pub mod apps_page;
    pub mod beside;
    pub mod check;
    pub mod common_metadata;
    pub mod completions;
    pub mod copied;
    pub mod credential_groups;
    pub mod credentials;
    pub mod draining;
    pub mod driver;
    pub mod exec;
    pub mod files;
    pub mod groups;
    pub mod harness;
    pub mod history;
    pub mod injected;
    pub mod kills;
    pub mod leaks;
    pub mod losses;
    pub mod node_dir;
    pub mod observed;
    pub mod openapi;
    pub mod outages;
    pub mod pod_security;
    pub mod protection;
    pub mod queues;
    pub mod ranks;
    pub mod reach;
    pub mod readiness;
    pub mod reasons;
    pub mod record;
    pub mod refusals;
    pub mod restarts;
    pub mod scaling;
    pub mod shared_queue;
    pub mod stage;
    pub mod stage_attacks;
    pub mod standby;
    pub mod starts;
    pub mod submit;
    pub mod submit_ends;
    pub mod submit_permissions;
    pub mod task_secrets;
    pub mod task_shapes;
    pub mod tasks;
    pub mod text;
    pub mod upgrade;
    pub mod volume_waits;
    pub mod volumes;
    pub mod volumes_by_calls;
}

use std::process::ExitCode;

use e2e::{
    apps_page, beside, check, common_metadata, completions, copied, credential_groups, credentials,
    draining, driver, exec, files, groups, harness, history, injected, kills, leaks, losses,
    node_dir, observed, openapi, outages, pod_security, protection, queues, ranks, reach,
    readiness, reasons, record, refusals, restarts, scaling, shared_queue, stage, stage_attacks,
    standby, starts, submit, submit_ends, submit_permissions, task_secrets, task_shapes, tasks,
    text, upgrade, volume_waits, volumes, volumes_by_calls,
};
use support::runner::{Scenario, scenarios};

const SCENARIOS: &[Scenario] = scenarios! {
    // Long ones first: they end while others run.
    Own submit::{submit_wordcount};
    Embedded task_shapes::{a_shape_without_a_node_gives_its_place, a_task_that_cannot_start};
    Own observed::{large_simulated_run_described};
    Both credentials::{credentials_expire_and_come_back, credentials_that_are_wrong};
    Both starts::{secret_that_is_missing};
    Both kills::{kill_9_at_every_call};
    Own stage::{stage_gigabyte_through_64_mb};
    Real observed::{large_run_described};
    Both tasks::{
        output_of_tasks_is_kept, tasks_by_calls, tasks_by_commands, tasks_in_order, tasks_of_arrays_and_again,
        tasks_run_once_over_faults,
    };
    Embedded tasks::{output_of_tasks_beside_events};
    Both task_secrets::{files_of_tasks, secret_env_of_tasks};
    Embedded task_secrets::{values_of_a_submitted_queue};
    Embedded record::{
        a_loop_of_kills, a_record_that_others_change, executors_dial_the_service, a_task_outlives_a_killed_program, events_go_on_with_the_next_pod, tasks_outlive_the_drivers_pod, work_outlives_the_drivers_pod,
    };
    Real standby::{both_pods_complete_a_job};
    Embedded standby::{
        a_standby_ends_with_its_leader, a_standby_follows_a_failure,
        a_standby_follows_a_silent_leader, a_standby_takes_over,
    };
    Embedded record::{done_work_stays_done};
    Both record::{
        a_deleted_group_ends_over_a_kill, a_killed_posse_forgets_no_task,
        a_record_that_the_server_refuses,
    };
    Real task_secrets::{secret_env_without_permission};
    Embedded submit::{submit_logs_over_cuts};
    Both submit::{submit_with_a_lost_pod, submit_without_room};
    OwnReal restarts::{driver_node_lost};
    Embedded restarts::{a_pod_asks_until_it_knows_its_job};
    OwnReal pod_security::{pods_on_a_server_that_enforces_restricted};
    Own restarts::{driver_node_shut_down};
    Both restarts::{
        container_restarted, exclusive_lost_to_another, exclusive_waits_for_the_other_driver,
        executors_at_their_maximum_age, orphans_of_older_instances, stale_leases_are_cleaned_up,
    };
    Both driver::{decommission_over_a_restart, heartbeats_that_stop, silent_driver};
    Both outages::{late_create_at_stop, frozen_server, server_stopped_and_back};
    Real refusals::{wrong_certificate, expired_token};
    Both history::{compacted_while_away, restored_from_a_backup};
    Both outages::{
        answers_after_the_watch, silent_watch, stop_while_a_create_hangs,
        stopped_while_starting, watch_cut_and_410,
    };
    Real outages::{error_after_commit};
    Both groups::{
        group_deleted_and_created_again, group_of_an_earlier_run, group_put_while_the_server_is_busy,
        group_refused, groups_by_fifty_clients,
    };
    Embedded groups::{events_over_reconnects, hostile_clients};
    Own openapi::{openapi_checker};
    Embedded openapi::{openapi_and_router, openapi_fuzzed};
    // A server of 1.20 knows no gates.
    Embedded protection::{without_the_right_none_is_protected};
    Real common_metadata::{a_policy_that_asks_for_labels};
    Both common_metadata::{all_of_a_run_has_the_labels, all_of_a_submission_has_the_labels};
    Both protection::{a_call_leaves_a_group_protected_and_queued, executors_with_work_are_protected, a_command_tells_which_executors_are_idle};
    Embedded queues::{a_queue_admits_and_takes_back};
    Embedded shared_queue::{
        a_group_whose_room_is_taken, the_webhook_of_a_queue_is_away, two_applications_share_a_queue,
    };
    OwnReal queues::{gangs_of_other_schedulers};
    Both queues::{a_gang_knows_what_the_server_adds, a_call_leaves_a_gang_and_its_memory, a_group_after_one_of_a_queue_is_elastic, a_group_after_one_with_a_gang_has_none, a_gang_is_given_back_and_tried_again, a_group_in_a_queue_leaves_nothing_behind, a_gang_without_its_scheduler_is_told_at_the_start};
    Both copied::{copied_template, held_by_a_finalizer, taken_by_a_controller};
    Real check::{check_labels};
    Both check::{check_before_a_run, misspelt_field, users_of_the_host};
    Real check::{check_permissions, check_connection};
    Both refusals::{
        foreign_pod_has_the_name, foreign_pods_are_left_alone, own_terminating_pod_has_the_name, quota_then_room,
        quota_wakes_when_a_pod_goes, creates_that_were_not_executed, too_large_templates,
    };
    Real refusals::{refused_template, stripped_labels, permissions_removed_while_running, missing_permissions};
    Both driver::{
        busy_and_idle, drain_that_ends_early, disconnect_with_a_reason,
        disconnect_without_a_reason,
    };
    Both losses::{
        spent_budget_ends_the_application, replaced_after_a_clean_end,
        replaced_after_deletion, replaced_after_failure, replaced_when_gone,
        replaced_while_terminating, told_before_the_end,
    };
    Real losses::{pending_goes_before_running};
    Both observed::{scraped_and_described};
    Both reasons::{
        budget_kills_a_driver_that_ignores_sigterm, every_reason, explain_with_and_without_a_run,
        kill_9_before_the_label, reported_once_over_kill_9, logs_of_the_failed,
    };
    Both scaling::{
        driver_decides_the_exit_code, groups_have_their_own_targets, keep_then_cleanup,
        kill_9_and_adoption, kill_9_while_scaling_up, owned_by_the_driver_pod,
        check_validates_on_the_server, scale_up_and_down, second_signal_ends_the_run_at_once,
        two_runs_of_one_instance,
    };
    Both injected::{injected_container, injected_restarts, injected_restarts_of_a_job};
    Both starts::{image_that_cannot_be_pulled, memory_grows_in_place};
    Both submit::{
        submit_and_exit_codes, submit_with_lost_answers, submit_detached, submit_dry_run,
        submit_interrupted, submit_misspelt, submit_of_a_bare_pod, submit_past_its_deadline, submit_refused_half_way,
        submit_stopped, submit_twice_at_once,
    };
    Both files::{
        submit_files_without_permission_for_secrets, submit_takes_small_files_in_a_secret,
    };
    Both upgrade::{newer_lease_is_left_alone, upgraded_and_back};
    Embedded submit::{submit_held_by_a_finalizer};
    Embedded tasks::{too_many_tasks};
    Own submit_permissions::{leases_that_are_withdrawn_for_a_while, submit_with_own_permissions};
    Embedded apps_page::{apps_page_over_an_outage};
    Both submit_ends::{submit_with_a_mounted_image};
    Own submit_ends::{
        submit_behind_a_side_car, submit_keeps_the_last_log, submit_under_a_quota_of_pods, submit_gives_up_a_missing_image, submit_says_what_is_missing,
        submit_shows_last_lines,
    };
    Embedded reach::{
        a_named_cluster_means_no_run_of_this_host, logs_of_all_executors, reach_that_fails,
        submitted_run_is_reached,
    };
    Both reach::{another_cluster_is_not_read_for_a_run_of_this_host};
    Real reach::{reach_without_a_node};
    Embedded exec::{exec_over_a_connection_that_is_cut};
    Real exec::{exec_without_the_permission};
    Embedded submit::{submit_drained, submit_out_of_memory};
    Real submit::{submit_of_an_object_too_many};
    Real submit_permissions::{submit_without_permissions};
    Own beside::{beside_pods_of_a_label, nodes_that_the_driver_prefers};
    Both volumes::{volumes_of_slots};
    Embedded volumes::{volumes_of_done_slots, volumes_that_are_not_there};
    Both node_dir::{folders_go_when_their_run_ends, folders_of_ended_applications};
    Both volumes_by_calls::{volumes_of_a_group_by_call};
    Both volume_waits::{a_claim_that_another_pod_uses, slots_are_waited_for};
    Embedded volume_waits::{volumes_of_another_zone};
    Both beside::{beside_in_objects_and_calls, preferred_nodes_in_objects};
    Embedded starts::{pod_that_fits_no_node};
    Own stage::{
        stage_certificate_renewed, stage_disk_full,
        stage_kill_9_in_uploads, stage_over_tls,
    };
    Own stage_attacks::{stage_quota_attacks, stage_slow_clients, stage_ticket_and_links};
    Both stage::{stage_keeps_bundles_while_pods_exist, submit_takes_files_along};
    Real stage::{stage_manifest, stage_token_review};
    Real starts::{memory_scaling_after_oom, node_with_losses, starts_that_hang};
    Own scaling::{run_with_a_cluster_of_its_own};
    Own leaks::{
        no_credential_plugin_outlives_posse, no_process_outlives_a_container,
        no_process_outlives_a_stopped_or_killed_run,
    };
    Both leaks::{no_process_outlives_a_driver};
    Real scaling::{steady_state_is_quiet};
    Both credentials::{
        credentials_are_renewed, credentials_at_the_end, credentials_of_others_are_left_alone,
        credentials_over_kill_9, credentials_with_a_driver_pod,
    };
    Embedded credentials::{executors_read_renewed_credentials};
    Real credentials::{credentials_without_permission};
    Both credential_groups::{groups_choose_their_credentials, secrets_of_ended_runs};
    Both completions::{work_ends_over_kill_9};
    Embedded readiness::{ready_after_the_probe};
    Both draining::{a_stop_gives_each_executor_its_time, term_at_the_beginning_of_the_drain};
    Embedded draining::{a_worker_finishes_its_work_on_term};
    Both ranks::{a_loss_restarts_its_group, ranks_stay_in_range};
    Own completions::{
        parts_of_work_without_a_driver, records_give_way_to_a_quota, work_ends_with_its_exit_code,
    };
    Embedded text::{logs_on_a_terminal_are_escaped, text_of_a_server_stays_text};
    Own text::{no_log_level_shows_a_secret};
    Own harness::{harness_audit, harness_events};
    Real harness::{harness_drives_pods, harness_outage, harness_proxy, harness_tokens};
};

fn main() -> ExitCode {
    support::runner::main(SCENARIOS)
}
