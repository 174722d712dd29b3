//! The watch thread and the poll thread: they read executor pods from the API server and send what
//! they read to the reconciler's inbox.

pub mod lines;
pub mod lister;
pub mod poller;
pub mod watcher;

#[cfg(test)]
mod tests;
