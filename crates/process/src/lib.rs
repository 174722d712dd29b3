//! Processes that this program starts: commands with a time-out, a supervisor that ends all of their descendants, a port
//! that a program gets as an open socket, the process tree of this machine, this process's job, ignored signals.

pub mod command;
pub mod ignored;
mod inside;
pub mod job;
pub mod listen;
pub mod supervisor;
pub mod tree;

pub use inside::enter;
