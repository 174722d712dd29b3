//! Owns the controllers: one thread that looks at what changed and does what follows from the state
//! as it is now. None of them relies on having seen a change: whoever missed some looks at all.

mod budgets;
mod claims;
mod jobs;
mod namespaces;
mod nodes;
mod orphans;
mod quotas;
pub(crate) mod taints;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use self::budgets::Budgets;
use self::claims::Claims;
use self::jobs::Jobs;
use self::namespaces::Namespaces;
use self::nodes::Nodes;
use self::orphans::Orphans;
use self::quotas::Quotas;
pub(crate) use self::taints::tolerates;
use crate::core::model::time::Millis;
use crate::dev::apiserver::api::Api;
use crate::dev::faults::Fault;
use crate::dev::schema::kind::Kind;
use crate::dev::storage::events::Ages;
use crate::dev::storage::store::{Change, Seen};

/// How often Events are looked at for their age.
const EVENTS_EVERY_MS: u64 = 60_000;

/// The running controllers.
#[derive(Debug)]
pub(crate) struct Controllers {
    thread: JoinHandle<()>,
    stop: Sender<()>,
}

impl Controllers {
    /// `volumes` is where the directories of volumes are made.
    pub(crate) fn start(api: Arc<Api>, volumes: PathBuf) -> io::Result<Self> {
        let (stop, stopped) = bounded(1);
        let tokens = api.lock().store.subscribe_to(Kind::all());
        let mut all = All::new(api, volumes);
        let builder = thread::Builder::new().name("dev-controllers".to_owned());
        let thread = builder.spawn(move || all.run(&tokens, &stopped))?;
        Ok(Self { thread, stop })
    }

    /// Ends the thread.
    pub(crate) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            log::error!("the embedded controllers' thread panicked");
        }
    }
}

#[derive(Debug)]
struct All {
    api: Arc<Api>,
    /// The store's version that has been looked at.
    seen: Seen,
    ages: Ages,
    ages_due: Millis,
    budgets: Budgets,
    claims: Claims,
    jobs: Jobs,
    namespaces: Namespaces,
    nodes: Nodes,
    orphans: Orphans,
    quotas: Quotas,
}

impl All {
    fn new(api: Arc<Api>, volumes: PathBuf) -> Self {
        Self {
            api,
            seen: Seen::default(),
            ages: Ages::default(),
            ages_due: Millis(0),
            budgets: Budgets::default(),
            claims: Claims::new(volumes),
            jobs: Jobs::default(),
            namespaces: Namespaces::default(),
            nodes: Nodes::default(),
            orphans: Orphans::default(),
            quotas: Quotas::default(),
        }
    }

    fn run(&mut self, tokens: &Receiver<()>, stopped: &Receiver<()>) {
        loop {
            let due = self.turn();
            let at = due.and_then(|due| self.api.clock.instant(due));
            let timer = at.map_or_else(never, crossbeam_channel::at);
            select! {
                recv(tokens) -> _ => {}
                recv(timer) -> _ => {}
                // Nobody sends: the other end is dropped.
                recv(stopped) -> _ => return,
            }
        }
    }

    /// Looks at what changed and does what follows; when to come again.
    fn turn(&mut self) -> Option<Millis> {
        let now = self.api.clock.now();
        let changes = self.changes();
        if !changes.is_empty() {
            let api = Arc::clone(&self.api);
            let state = api.lock();
            for change in &changes {
                self.budgets.on_change(change, &state);
                self.claims.on_change(change, &state);
                self.jobs.on_change(change);
                self.namespaces.on_change(change);
                self.nodes.on_change(change);
                self.orphans.on_change(change, &state, now);
                self.quotas.on_change(change);
            }
        }
        self.namespaces.run(&mut self.api.lock());
        self.claims.run(&self.api);
        // A node that is gone may come back as one that is lost may.
        let grace = self.api.faults.number(Fault::NodeGrace).unwrap_or(nodes::GRACE_MS);
        let orphans = self.orphans.run(&mut self.api.lock(), now, grace);
        let jobs = self.jobs.run(&self.api);
        let budgets = self.budgets.run(&mut self.api.lock());
        let quotas = self.quotas.run(&self.api);
        let nodes = self.nodes.run(&self.api);
        if self.ages_due <= now {
            self.ages.expire(&mut self.api.lock(), now);
            self.ages_due = now.after(EVENTS_EVERY_MS);
        }
        let budgets = budgets.map(|seconds| now.after(seconds.saturating_mul(1000)));
        let due = [orphans, jobs, budgets, quotas, nodes, Some(self.ages_due)];
        due.into_iter().flatten().min()
    }

    /// What changed since the last look; all there is where that is no longer known.
    fn changes(&mut self) -> Vec<Change> {
        let state = self.api.lock();
        if let Ok(changes) = state.store.unseen(&mut self.seen) {
            return changes.cloned().collect();
        }
        self.quotas.suspect_all();
        self.nodes.suspect_all();
        let there = Kind::all().flat_map(|kind| state.store.objects(kind, ""));
        let change = |now| Change { version: 0, before: None, now, gone: false };
        there.cloned().map(change).collect()
    }
}
