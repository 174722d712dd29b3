//! posse keeps a driver's executors alive on Kubernetes.
//!
//! ```text
//! watch ----\                                            /-- writers -- API server
//! poll  -----+--> inbox (one channel, one enum) --> reconciler --+-- events out
//! control ---+                                    owns snapshot, \-- driver child
//! writers' answers, signals, child exit --/       ledger, plan
//! ```
//!
//! Modules import to the right only:
//! `cli -> { runtime -> control, submit, stage, dev } -> { kube, serve } -> wire -> core`.
//! The crate is a library only for its own tests; the public interface is the program.

pub mod cli;
pub mod clock;
pub mod control;
pub mod core;
#[cfg(feature = "dev")]
pub mod dev;
pub mod files;
pub mod kube;
pub mod process;
pub mod runtime;
pub mod serve;
pub mod stage;
pub mod submit;
pub mod wire;
