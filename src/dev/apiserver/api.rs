//! Owns the verbs: a request in, an answer out. Knows no socket; holds the lock only while it looks
//! at or changes the state.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crossbeam_channel::Receiver;
use serde_json::Value;

use crate::clock::Clock;
use crate::core::model::rng::Rng;
use crate::dev::apiserver::authn::tokens::Tokens;
use crate::dev::faults::{Fault, Faults, Injector};
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::storage::deletion::Collector;
use crate::dev::storage::events::Events;
use crate::dev::storage::log_files::Followers;
use crate::dev::storage::namespaces::NAMESPACES;
use crate::dev::storage::store::{Store, WATCH_HISTORY_EVENTS};
use crate::dev::storage::{Disabled, State};
use crate::dev::time;

/// The API server without its sockets.
#[derive(Debug)]
pub(crate) struct Api {
    state: Mutex<State>,
    pub(crate) clock: Clock,
    pub(crate) faults: Injector,
    /// Where the node writes the containers' output.
    pub(crate) logs: PathBuf,
    /// What clients call: `http://127.0.0.1:PORT`, `https:` where they have to say who they are.
    pub(crate) url: String,
    /// The file that clients reach this server with.
    pub(crate) kubeconfig: PathBuf,
    /// This program, as which containers with volumes start.
    pub(crate) runner: PathBuf,
    pub(crate) tokens: Tokens,
    pub(crate) followers: Followers,
    /// The owner's bearer token; none where nobody is asked who they are.
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
        // Faults follow from the seed alone. Uids must not: a second cluster of the same seed is
        // another cluster, and its pods are other pods.
        let since_epoch =
            clock.wall(clock.now()).duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let salt = u64::try_from(since_epoch.as_nanos() & u128::from(u64::MAX)).unwrap_or_default();
        let mut mixed = Rng::new(salt ^ u64::from(std::process::id()).rotate_left(32));
        let history_max = faults.number(Fault::Compact).map(usize::try_from);
        let history_max =
            history_max.map_or(WATCH_HISTORY_EVENTS, |kept| kept.unwrap_or(usize::MAX));
        let faults = Injector::new(faults, seed);
        let mut state = State {
            store: Store::new(history_max),
            rng: Rng::new(mixed.next_u64()),
            now: String::new(),
            disabled: Disabled::default(),
            events: Events::default(),
            collector: Collector::default(),
            has_roles: false,
            authority,
        };
        state.now = time::text(wall(clock, &faults));
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
            admin_token: None,
        }
    }

    /// The wall time as the server has it: a fault may have moved its clock.
    pub(crate) fn wall(&self) -> SystemTime {
        wall(self.clock, &self.faults)
    }

    /// The state, at the time of this call.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is a bug that the panic itself reports; the maps are whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = time::text(self.wall());
        state
    }

    pub(crate) fn subscribe(&self, kind: Kind) -> Receiver<()> {
        self.lock().store.subscribe(kind)
    }

    /// Changes the object of that key and uid, where it is still there.
    pub(crate) fn edit(&self, key: &Key, uid: &str, change: impl FnOnce(&mut Value)) -> bool {
        let mut state = self.lock();
        let Some(object) = state.store.get(key).filter(|object| &*object.uid == uid) else {
            return false;
        };
        let old = object.value();
        let mut value = old.clone();
        change(&mut value);
        if value != old {
            state.replace(key.kind, value);
        }
        true
    }
}

fn wall(clock: Clock, faults: &Injector) -> SystemTime {
    let skew = faults.seconds(Fault::ClockSkew);
    let (now, by) = (clock.wall(clock.now()), Duration::from_secs(skew.unsigned_abs()));
    let moved = if skew < 0 { now.checked_sub(by) } else { now.checked_add(by) };
    moved.unwrap_or(now)
}
