//! The rules of decisions: each is a function of facts, and keeps no state.

pub mod address_check;
pub mod adoption;
pub mod bundle_expiry;
pub mod demand;
pub mod driver_job;
pub mod driver_port;
pub mod limits;
pub mod loss;
pub mod node_reasons;
pub mod orphans;
pub mod plan;
pub mod resource_hours;
pub mod room_of_ended_pods;
pub mod shares;
pub mod unplaced;
pub mod unplaced_limit;
pub mod victims;
