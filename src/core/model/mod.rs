//! The values that the core receives, returns and works on.

pub mod action;
pub mod command;
pub mod event;
pub mod gather;
pub mod hash;
pub mod ids;
pub mod input;
pub mod pod;
pub mod pod_text;
pub mod refusal;
pub mod rng;
pub mod status;
pub mod stop;
pub mod task;
pub mod text;
pub mod time;
pub mod waiting;
