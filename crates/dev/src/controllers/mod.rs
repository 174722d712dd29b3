//! The controllers, all on one thread. They are level-triggered: what they do follows from the
//! present state, and a controller that missed changes reads everything again.

mod claims;
mod jobs;
mod namespaces;
mod nodes;
mod quotas;
mod taints;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use self::claims::Claims;
use self::jobs::Jobs;
use self::namespaces::Namespaces;
use self::nodes::Nodes;
use self::quotas::Quotas;
use crate::apiserver::api::Api;
use crate::schema::kind::Kind;
use crate::storage::store::{Change, Seen};
use posse_base::time::Millis;

/// The running controllers.
#[derive(Debug)]
pub(crate) struct Controllers {
    thread: JoinHandle<()>,
    stop: Sender<()>,
}

impl Controllers {
    /// `volumes` is the folder for provisioned volumes.
    pub(crate) fn start(api: Arc<Api>, volumes: PathBuf) -> io::Result<Self> {
        let (stop, stopped) = bounded(1);
        let changed = api.lock().store.subscribe(Kind::all());
        let mut controllers = ControllerLoop::new(api, volumes);
        let builder = thread::Builder::new().name("dev-controllers".to_owned());
        let thread = builder.spawn(move || controllers.run(&changed, &stopped))?;
        Ok(Self { thread, stop })
    }

    pub(crate) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            log::error!("the embedded controllers' thread panicked");
        }
    }
}

#[derive(Debug)]
struct ControllerLoop {
    api: Arc<Api>,
    /// The store changes that have been handled.
    seen: Seen,
    claims: Claims,
    jobs: Jobs,
    namespaces: Namespaces,
    nodes: Nodes,
    quotas: Quotas,
}

impl ControllerLoop {
    fn new(api: Arc<Api>, volumes: PathBuf) -> Self {
        Self {
            api,
            seen: Seen::default(),
            claims: Claims::new(volumes),
            jobs: Jobs::default(),
            namespaces: Namespaces::default(),
            nodes: Nodes::default(),
            quotas: Quotas::default(),
        }
    }

    fn run(&mut self, changed: &Receiver<()>, stopped: &Receiver<()>) {
        loop {
            let due = self.run_once();
            let at = due.and_then(|due| self.api.clock.instant(due));
            let timer = at.map_or_else(never, crossbeam_channel::at);
            select! {
                recv(changed) -> _ => {}
                recv(timer) -> _ => {}
                // Nothing is sent: `Controllers::stop` drops the sender.
                recv(stopped) -> _ => return,
            }
        }
    }

    /// Handles all changes. Returns when to run again even if nothing changes.
    fn run_once(&mut self) -> Option<Millis> {
        let changes = self.changes();
        if !changes.is_empty() {
            let api = Arc::clone(&self.api);
            let state = api.lock();
            for change in &changes {
                self.claims.on_change(change, &state);
                self.jobs.on_change(change);
                self.namespaces.on_change(change);
                self.nodes.on_change(change);
                self.quotas.on_change(change);
            }
        }
        self.namespaces.run(&mut self.api.lock());
        self.claims.run(&self.api);
        let jobs = self.jobs.run(&self.api);
        let quotas = self.quotas.run(&self.api);
        let nodes = self.nodes.run(&self.api);
        let due = [jobs, quotas, nodes];
        due.into_iter().flatten().min()
    }

    /// The changes since the last call. If the history no longer reaches back that far, all
    /// objects.
    fn changes(&mut self) -> Vec<Change> {
        let state = self.api.lock();
        if let Ok(changes) = state.store.unseen(&mut self.seen) {
            return changes.cloned().collect();
        }
        self.quotas.mark_all_dirty();
        self.nodes.mark_all_dirty();
        let objects = Kind::all().flat_map(|kind| state.store.objects(kind, ""));
        let change = |now| Change { version: 0, before: None, now, gone: false };
        objects.cloned().map(change).collect()
    }
}
