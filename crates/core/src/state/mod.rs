//! What is remembered between two decisions: snapshot, ledger, executors, ids, the reports of the driver,
//! and the limits that past events set (create backoffs, budgets, the create window, avoided nodes).

pub mod attempts;
pub mod budgets;
pub mod counts;
pub mod create_backoff;
pub mod driver_reports;
pub mod executor;
pub mod executors;
pub mod gang;
pub mod gates;
mod group_end;
mod group_tasks;
pub mod id_allocator;
pub mod ledger;
pub mod life;
pub mod memory_scaling;
pub mod nodes;
pub mod overdue_starts;
pub mod plan_wait;
pub mod protection;
pub mod ranges;
pub mod ready_tasks;
pub mod records;
pub mod retained;
pub mod retries;
pub mod run_end;
pub mod server_health;
pub mod slot_range;
pub mod slot_waits;
pub mod slots;
pub mod snapshot;
pub mod start_problems;
pub mod stored_credentials;
pub mod tasks;
pub mod victim_order;
pub mod window;
pub mod work;
