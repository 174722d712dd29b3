//! What the end-to-end tests stand on: two servers behind one trait, a node, a proxy, the binary
//! under test, and the waiting. Knows nothing of single scenarios.

// Each of the programs that stand on it uses a part of it.
#![allow(dead_code)]

pub mod access;
pub mod audit;
pub mod certs;
pub mod control;
pub mod embedded;
pub mod http;
pub mod node;
pub mod openapi;
pub mod posse;
pub mod proxy;
pub mod real;
pub mod reaper;
pub mod runner;
pub mod scene;
pub mod server;
pub mod stage;
pub mod wait;
