//! Processes that this program starts: a supervisor that ends all of their descendants, the process
//! tree of this machine, ignored signals.

pub mod ignored;
mod inside;
pub mod supervisor;
pub mod tree;

pub use inside::enter;
