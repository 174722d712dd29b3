//! The only client sockets: configuration, TLS, tokens, verbs, list pages, the watch line reader.

pub mod api;
mod auth;
pub mod config;
pub mod http;

#[cfg(test)]
pub(crate) mod testing;
