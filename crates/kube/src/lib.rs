//! The client of the Kubernetes API server: configuration, credentials, HTTP and requests.
//! Only this module opens client sockets to a cluster.

pub mod api;
mod auth;
pub mod config;
pub mod http;

#[cfg(test)]
pub(crate) mod testing;
