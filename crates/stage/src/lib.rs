//! Brings files of the submitting machine to the pods: a server that stores them as bundles, and
//! two clients that upload and fetch them. One bundle is one file.

mod admission;
mod api;
mod certificate;
pub mod fetch;
mod quotas;
mod range;
mod retry;
mod reviews;
pub mod send;
pub mod server;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
