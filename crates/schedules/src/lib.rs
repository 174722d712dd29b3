//! The threads of a run, compiled a second time: the same source files, with threads and locks of shuttle, which
//! chooses at each step which thread goes on, and with channels made of these. `crates/run` knows nothing of it.
//!
//! For these files `std` and `crossbeam_channel` are this crate. Their own tests need the real ones.
#![cfg(not(test))]

extern crate crossbeam_channel as real_channel;
extern crate self as crossbeam_channel;
extern crate self as std;
extern crate std as real_std;

mod channel;

pub use real_std::*;

pub use channel::{
    Receiver, RecvError, RecvTimeoutError, Select, SelectedOperation, SendError, SendTimeoutError,
    Sender, TryRecvError, TrySendError, bounded,
};

/// Threads of shuttle, which sleep for no time.
pub mod thread {
    pub use real_std::thread::*;
    pub use shuttle::thread::{Builder, JoinHandle, sleep, spawn};
}

/// Locks of shuttle.
pub mod sync {
    pub use real_std::sync::*;
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

// What these threads use, and what does not wait for others of them.
pub use posse_run::{claims, events, pod_groups, task_outputs};

#[path = "../../run/src/inbox.rs"]
pub mod inbox;
#[path = "../../run/src/leases/orphans.rs"]
pub mod orphan_cleanup;
#[path = "../../run/src/record/mod.rs"]
pub mod record;
#[path = "../../run/src/server_threads.rs"]
pub mod server_threads;
#[path = "../../run/src/watch/mod.rs"]
pub mod watch;
#[path = "../../run/src/watermark.rs"]
pub mod watermark;
#[path = "../../run/src/worker.rs"]
pub mod worker;
#[path = "../../run/src/writers.rs"]
pub mod writers;

/// Without the threads of Leases: they have channels of their own, and never wait for the inbox.
pub mod leases {
    pub use crate::orphan_cleanup as orphans;
    pub use posse_run::leases::{IdStore, RunLeases};
}
