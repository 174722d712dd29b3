//! Tests of the binary that need no server: flags, messages, exit codes, and what README promises.

#[path = "support/pod_security.rs"]
#[allow(unreachable_pub, clippy::unwrap_used)]
mod pod_security;

mod cli {
    mod readme;
    mod restricted;
    mod usage;
}
