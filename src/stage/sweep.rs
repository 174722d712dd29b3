//! Owns the thread that drops bundles that nobody needs any more: it asks the API server once for
//! each namespace and round, and `core::bundle` says what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::core::bundle::{Facts, Owner, Patience, judge};
use crate::core::refusal::Class;
use crate::kube::callers::apps_with_pods;
use crate::kube::http::Http;
use crate::stage::identity::Identity;
use crate::stage::store::{Bundle, Store};

/// There are several rounds in the shortest time that a bundle may have to go in, within limits.
const ROUNDS: u32 = 4;
const ROUND_MIN: Duration = Duration::from_millis(200);
const ROUND_MAX: Duration = Duration::from_secs(60);

/// The stack of the thread.
const STACK_BYTES: usize = 256 << 10;

/// The running thread; dropped, it ends.
#[derive(Debug)]
pub(super) struct Sweeper {
    /// Its end is all that is ever told.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts it. Without an API server nobody knows of pods.
    ///
    /// # Errors
    /// The system gave no thread.
    pub(super) fn start(
        store: Arc<Store>,
        http: Option<Http>,
        patience: Patience,
        identity: Option<Arc<Identity>>,
    ) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let sweep = Sweep { store, http, patience, apps: BTreeMap::new() };
        let builder = thread::Builder::new().name("stage-sweep".to_owned());
        let thread = builder
            .stack_size(STACK_BYTES)
            .spawn(move || sweep.run(&stopped, identity.as_deref()))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that drops bundles panicked");
        }
    }
}

/// What is remembered of an application from round to round.
#[derive(Clone, Copy, Debug)]
struct Absence {
    since: Instant,
    was_seen: bool,
}

struct Sweep {
    store: Arc<Store>,
    http: Option<Http>,
    patience: Patience,
    /// By namespace and name: those without pods, and since when; none: it has some.
    apps: BTreeMap<(String, String), Option<Absence>>,
}

impl Sweep {
    fn run(mut self, stopped: &Receiver<()>, identity: Option<&Identity>) {
        let shortest = self.patience.idle_ms.min(self.patience.gone_ms);
        let round = (Duration::from_millis(shortest) / ROUNDS).clamp(ROUND_MIN, ROUND_MAX);
        while stopped.recv_timeout(round) == Err(RecvTimeoutError::Timeout) {
            if let Some(identity) = identity {
                identity.refresh();
            }
            self.round();
        }
    }

    fn round(&mut self) {
        let mut namespaces: BTreeMap<String, Vec<Arc<Bundle>>> = BTreeMap::new();
        for bundle in self.store.bundles() {
            namespaces.entry(bundle.label.namespace.clone()).or_default().push(bundle);
        }
        for (namespace, bundles) in &namespaces {
            let seen = self.look(namespace);
            for bundle in bundles {
                self.consider(bundle, seen.as_ref());
            }
        }
        let of =
            |bundle: &Arc<Bundle>| (bundle.label.namespace.clone(), bundle.label.owner.clone());
        let owners: BTreeSet<_> = namespaces.values().flatten().map(of).collect();
        self.apps.retain(|app, _| owners.contains(app));
    }

    /// The applications with pods in a namespace; otherwise how it stands with all of them.
    fn look(&self, namespace: &str) -> Result<BTreeSet<String>, Owner> {
        let Some(http) = &self.http else { return Err(Owner::Unwatched) };
        apps_with_pods(http, namespace).map_err(|refusal| {
            if refusal.class == Class::Rights {
                log::warn!(
                    "pods in {namespace} cannot be listed, bundles go by their use: {refusal}"
                );
                return Owner::Unwatched;
            }
            log::warn!("pods in {namespace} cannot be listed, bundles stay: {refusal}");
            Owner::Unknown
        })
    }

    fn consider(&mut self, bundle: &Bundle, seen: Result<&BTreeSet<String>, &Owner>) {
        let owner = match seen {
            Ok(apps) => self.owner(bundle, apps.contains(&bundle.label.owner)),
            Err(owner) => *owner,
        };
        let (unused_ms, was_fetched) = self.store.use_of(bundle);
        let Some(cause) = judge(Facts { owner, unused_ms, was_fetched }, self.patience) else {
            return;
        };
        log::info!("bundle {} ({}) is dropped: {cause}", bundle.id, bundle.label.file);
        if let Err(error) = self.store.remove(bundle) {
            log::warn!("bundle {}: {error}", bundle.id);
        }
    }

    /// What the lists up to now tell of a bundle's owner.
    fn owner(&mut self, bundle: &Bundle, has_pods: bool) -> Owner {
        let Bundle { label, .. } = bundle;
        let key = (label.namespace.clone(), label.owner.clone());
        if has_pods {
            self.apps.insert(key, None);
            return Owner::Present;
        }
        let now = Instant::now();
        let state = self.apps.entry(key).or_insert(Some(Absence { since: now, was_seen: false }));
        let absence = state.get_or_insert(Absence { since: now, was_seen: true });
        let for_ms = u64::try_from((now - absence.since).as_millis()).unwrap_or(u64::MAX);
        Owner::Absent { for_ms, was_seen: absence.was_seen }
    }
}
