//! The API server: authentication, authorization, admission, validation, and the verbs.

pub(crate) mod admission;
pub(crate) mod answer;
pub(crate) mod api;
pub(crate) mod authn;
pub(crate) mod authz;
mod codec;
mod defaults;
pub(crate) mod discovery;
mod dispatch;
pub(crate) mod evict;
pub(crate) mod fault_endpoint;
mod health;
mod logs;
mod openapi;
mod options;
mod patch;
mod read;
mod review;
mod route;
pub(crate) mod selector;
pub(crate) mod server;
mod strategy;
mod table;
pub(crate) mod validate;
mod watch;
pub(crate) mod write;
