//! The only client sockets: configuration, TLS, tokens, verbs, list pages, the watch line reader.

pub mod api;
mod auth;
pub mod config;
mod connector;
mod exec;
pub mod http;
mod incluster;
mod kubeconfig;
pub mod leftovers;
pub mod objects;
pub mod owner;
pub mod preflight;
mod proxy;
pub mod story;
mod stream;
mod tls;

#[cfg(test)]
pub(crate) mod testing;
