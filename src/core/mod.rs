//! Every decision, pure: no clock, thread, lock, socket, log or serde in here. Time and randomness
//! are arguments, iteration order is fixed, a plan is a value and doing nothing has a reason.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod action;
pub mod backoff;
pub mod brake;
pub mod budget;
pub mod bundle;
pub mod command;
pub mod event;
pub mod executors;
pub mod finish;
pub mod growth;
pub mod hearing;
pub mod idalloc;
pub mod ids;
pub mod idset;
pub mod input;
mod kept;
pub mod lease;
pub mod ledger;
pub mod leftover;
pub mod logs;
pub mod loss;
pub mod nodes;
mod on_answer;
mod on_command;
mod on_driver;
mod on_end;
mod on_group;
mod on_pod;
mod on_start;
mod on_turn;
pub mod plan;
pub mod pod;
pub mod pod_text;
pub mod policy;
pub mod reach;
pub mod reconciler;
pub mod refusal;
pub mod rng;
pub mod slots;
pub mod snapshot;
pub mod status;
pub mod stop;
pub mod stuck;
pub mod sweep;
#[cfg(test)]
pub(crate) mod testing;
pub mod text;
pub mod time;
pub mod victims;
pub mod waiting;
pub mod watch;
pub mod window;
