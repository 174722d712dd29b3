//! Decision rules as functions and small state: each takes facts and returns a decision.

pub mod address_check;
pub mod attempts;
pub mod backoff;
pub mod budgets;
pub mod bundle_expiry;
pub mod driver_port;
pub mod memory_scaling;
pub mod nodes;
pub mod orphans;
pub mod plan;
pub mod queue_scaling;
pub mod settings;
pub mod throttle;
pub mod victims;
pub mod window;
