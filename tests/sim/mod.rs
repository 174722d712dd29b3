//! The simulator's parts: a fake cluster, the way to it, the world around the core, and the checks.

pub mod api;
pub mod check;
pub mod cluster;
pub mod driver;
pub mod faults;
pub mod groups;
pub mod losses;
pub mod node;
pub mod restarts;
pub mod trace;
pub mod world;

pub use trace::trace;
