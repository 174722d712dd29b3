//! What all parts of the API server share: the state behind its lock, the clock, the faults, and
//! the server's settings.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::apiserver::authn::tokens::Tokens;
use crate::apiserver::exec_orders::ExecOrder;
use crate::faults::{Fault, Faults, Injector};
use crate::storage::State;
use crate::storage::log_files::Followers;
use crate::storage::namespaces::NAMESPACES;
use crate::storage::store::WATCH_HISTORY_EVENTS;
use crate::time;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_base::sync::lock;

/// Commands that wait for the node; more are refused.
const EXEC_ORDERS_MAX: usize = 64;

/// The shared part of the API server.
#[derive(Debug)]
pub(crate) struct Api {
    state: Mutex<State>,
    pub(crate) clock: Clock,
    pub(crate) faults: Injector,
    /// The folder of the container logs.
    pub(crate) logs: PathBuf,
    /// The server's URL: `https://127.0.0.1:PORT`.
    pub(crate) url: String,
    pub(crate) kubeconfig: PathBuf,
    /// The program that starts containers with volumes.
    pub(crate) runner: PathBuf,
    pub(crate) tokens: Tokens,
    pub(crate) followers: Followers,
    /// Commands that clients want to run in containers; the node reads them.
    pub(crate) exec_orders: (Sender<ExecOrder>, Receiver<ExecOrder>),
    /// The bearer token of the administrator; `None` if clients do not authenticate.
    pub(crate) admin_token: Option<String>,
}

impl Api {
    pub(crate) fn new(
        clock: Clock,
        faults: Faults,
        seed: u64,
        logs: PathBuf,
        authority: String,
    ) -> Self {
        // The seed determines the faults but not the uids: a second cluster with the same seed must
        // not have the same uids.
        let since_epoch =
            clock.wall(clock.now()).duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let salt = u64::try_from(since_epoch.as_nanos() & u128::from(u64::MAX)).unwrap_or_default();
        let mut mixed = Rng::new(salt ^ u64::from(std::process::id()).rotate_left(32));
        let history_max = faults.number(Fault::Compact).map(usize::try_from);
        let history_max =
            history_max.map_or(WATCH_HISTORY_EVENTS, |kept| kept.unwrap_or(usize::MAX));
        let faults = Injector::new(faults, seed);
        let now = time::text(wall(clock, &faults));
        let mut state = State::new(history_max, Rng::new(mixed.next_u64()), now, authority);
        for namespace in NAMESPACES {
            state.ensure_namespace(namespace);
        }
        Self {
            state: Mutex::new(state),
            clock,
            faults,
            logs,
            url: String::new(),
            kubeconfig: PathBuf::new(),
            runner: "/proc/self/exe".into(),
            tokens: Tokens::default(),
            followers: Followers::default(),
            exec_orders: bounded(EXEC_ORDERS_MAX),
            admin_token: None,
        }
    }

    /// The server's wall time; a fault may shift it.
    pub(crate) fn wall(&self) -> SystemTime {
        wall(self.clock, &self.faults)
    }

    /// Locks the state and sets its time.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // The panic of another thread was reported, and the maps are still consistent.
        let mut state = lock(&self.state);
        state.now = time::text(self.wall());
        state
    }
}

fn wall(clock: Clock, faults: &Injector) -> SystemTime {
    let skew = faults.seconds(Fault::ClockSkew);
    let (now, by) = (clock.wall(clock.now()), Duration::from_secs(skew.unsigned_abs()));
    let moved = if skew < 0 { now.checked_sub(by) } else { now.checked_add(by) };
    moved.unwrap_or(now)
}
