//! The values that the core receives, returns and works on.

pub mod act;
pub mod action;
pub mod command;
pub mod event;
pub mod fact;
pub mod hash;
pub mod ids;
pub mod input;
pub mod lease;
pub(crate) mod named;
pub mod owner;
pub mod pod;
pub mod pod_text;
pub mod refusal;
pub mod settings;
pub mod status;
pub mod stop;
pub mod takeover;
pub mod task;
pub mod waiting;
