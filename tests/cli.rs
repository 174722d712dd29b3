//! Tests of the binary that need no server: flags, messages, exit codes, and what README promises.

mod cli {
    mod readme;
    mod restricted;
    mod usage;
}
