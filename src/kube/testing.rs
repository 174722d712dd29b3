//! Test servers.
