//! Tests of `posse_core`, which does no I/O: tables over its rules, the simulator, and the rules
//! for the source tree.

// The modules share helpers with each other and with nobody else.
#![allow(unreachable_pub)]

// Only this part of `support`: the others need a server.
#[path = "support/core_run.rs"]
mod core_run;

mod core {
    mod acts;
    mod announced_ends;
    mod bad_nodes;
    mod chunks;
    mod completions;
    mod costs;
    mod creates;
    mod credentials;
    mod decommission_by_term;
    mod disconnects;
    mod dismissals;
    mod driver_calls;
    mod first_heartbeats;
    mod foreign_pods;
    mod gangs;
    mod group_restarts;
    mod groups;
    mod idle_ends;
    mod limits;
    mod list_pages;
    mod losses;
    mod memory_in_place;
    mod plain_files;
    mod protection;
    mod queue_groups;
    mod readiness;
    mod record;
    mod record_kills;
    mod recorded_groups;
    mod recorded_stops;
    mod replace_gone;
    mod restarts_in_place;
    mod retained_pods;
    mod reviews;
    mod room;
    mod rules;
    mod scale;
    mod sim;
    mod slot_waits;
    mod slots;
    mod spark_scenarios;
    mod stable_slots;
    mod starts;
    mod stop_waits;
    mod takeovers;
    mod task_arrays;
    mod task_order;
    mod task_outputs;
    mod task_restarts;
    mod task_retries;
    mod task_shapes;
    mod tasks;
    mod tidy;
    mod wall_clock;
    mod writes;
}
