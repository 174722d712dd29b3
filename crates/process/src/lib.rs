//! Processes that this program starts: commands with a time-out, a supervisor that ends all of their descendants, a port
//! that a program gets as an open socket, the process tree of this machine, this process's job, ignored signals.

pub mod command;
#[cfg(any(test, not(target_os = "linux")))]
mod group;
pub mod ignored;
pub mod job;
pub mod listen;
pub mod supervisor;
mod supervisor_process;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "others.rs")]
mod system;
pub mod tree;

pub use supervisor_process::enter;
pub use system::this_program;
