//! The watcher and the poller against a scripted server.
