//! Support for tests and benchmarks: two kinds of API server behind one trait, a test-side node, a
//! proxy, the binary under test, and waiting.

// Each program uses only a part of it.
#![allow(dead_code)]

pub mod access;
pub mod audit;
pub mod certs;
pub mod control;
pub mod embedded;
pub mod http;
pub mod key_watch;
pub mod node;
pub mod openapi;
pub mod pod_security;
pub mod posse;
pub mod proxy;
pub mod real;
pub mod reaper;
pub mod runner;
pub mod scene;
pub mod server;
pub mod stage;
pub mod wait;
