//! Files that only the submitting machine has, on their way to the pods: the server that keeps them
//! as bundles, and its two clients. One bundle is one file.

mod admission;
mod api;
pub mod fetch;
mod identity;
mod retry;
pub mod send;
pub mod server;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
