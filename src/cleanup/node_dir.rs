//! `posse cleanup --node-dir`: the folders that executors of ended applications left behind on a node.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{after, never, select};
use jiff::Timestamp;

use crate::cleanup::lease_ends::watch_ends;
use crate::cleanup::{Cleanup, conclude, count};
use crate::exit::{Code, Failure};
use crate::namespace::start_signals;
use crate::terminal::print;
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::unfinished_runs;
use posse_run::signals::Signal;
use posse_wire::k8s::labels::Selection;
use posse_wire::names;

/// How long after the end of a run posse looks again if its driver's pod has not ended. Twice as long each time.
const TOLD_PAUSE_MS: u64 = 1_000;

impl Cleanup<'_> {
    /// Looks at the folders APP.INSTANCE in `dir`, once or, with --every, until a signal ends it: then also when
    /// a run ends that has a folder here.
    ///
    /// # Errors
    /// Without --every: the folder cannot be read, the API server refuses or does not answer, or a
    /// folder cannot be removed.
    pub(super) fn clean_node_dir(
        &mut self,
        dir: &Path,
        out: &mut dyn Write,
    ) -> Result<Code, Failure> {
        let Some(every_ms) = self.args.every else { return self.clean_once(dir, out) };
        let signals = start_signals()?;
        let mut ends = watch_ends(&self.leases())?;
        // The runs that have ended and whose folders are still here, and the time until the next look.
        let (mut told, mut pause_ms) = (BTreeSet::new(), every_ms);
        loop {
            self.wall_ms = Timestamp::now().as_millisecond();
            if let Err(failure) = self.clean_once(dir, out) {
                log::warn!("{}; posse tries again in {} s", failure.message, pause_ms / 1_000);
            }
            told.retain(|run| folder_of(dir, run).exists());
            if told.is_empty() {
                pause_ms = every_ms;
            }
            let timer = after(Duration::from_millis(pause_ms));
            pause_ms = pause_ms.saturating_mul(2).min(every_ms);
            loop {
                select! {
                    recv(signals.wake()) -> _ => {
                        if signals.take().any(Signal::is_stop_without_driver) {
                            return Ok(Code::Clean);
                        }
                    }
                    recv(ends) -> ended => {
                        let Ok(ended) = ended else {
                            ends = never();
                            continue;
                        };
                        let all = [ended].into_iter().chain(ends.try_iter());
                        let n_told = told.len();
                        told.extend(all.filter(|run| folder_of(dir, run).exists()));
                        if told.len() > n_told {
                            pause_ms = TOLD_PAUSE_MS.min(every_ms);
                            break;
                        }
                    }
                    recv(timer) -> _ => break,
                }
            }
        }
    }

    fn clean_once(&self, dir: &Path, out: &mut dyn Write) -> Result<Code, Failure> {
        let app = self.args.app.as_deref();
        // The folders first: each new run has a name of its own, so a folder that is listed here
        // gets no other owner after the server's answer.
        let mut folders = folders(dir).map_err(|error| {
            Failure::new(Code::Failed, format!("--node-dir {}: {error}", dir.display()))
        })?;
        folders.retain(|(run, _)| app.is_none_or(|app| app == run.app));
        if !folders.is_empty() {
            let busy = self.busy_runs(app).map_err(|refusal| {
                self.place
                    .connection
                    .failure("cannot list pods and leases in all namespaces", &refusal)
            })?;
            folders.retain(|(run, _)| !busy.contains(run));
        }
        let mut remaining = Vec::new();
        for (_, path) in &folders {
            let path = path.as_path();
            print(out, &format!("folder {}: its run has ended\n", path.display()))?;
            if self.args.yes
                && let Err(error) = fs::remove_dir_all(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                remaining.push(format!("{}: {error}", path.display()));
            }
        }
        let text = match (folders.len(), self.args.yes) {
            (0, _) if self.args.every.is_some() => return Ok(Code::Clean),
            (0, _) => "there is nothing to remove".to_owned(),
            (n, true) => format!("removed {}", count(n - remaining.len(), "folder")),
            (n, false) => {
                format!("nothing was removed; the same with --yes removes {}", count(n, "folder"))
            }
        };
        conclude(self.args.output, &text, out)?;
        match remaining.is_empty() {
            true => Ok(Code::Clean),
            false => {
                Err(Failure::new(Code::Remain, format!("not removed: {}", remaining.join(", "))))
            }
        }
    }

    /// The runs that have a pod that has not ended, or a Lease that somebody holds, in any namespace. The pod of a
    /// driver that has ended may stay for days.
    fn busy_runs(&self, app: Option<&str>) -> Result<BTreeSet<Selection>, Refusal> {
        let mut busy = unfinished_runs(&self.place.connection.http)?;
        let leases = self.leases().list_everywhere(app)?;
        let held = leases.into_iter().filter(|lease| self.is_held(lease));
        busy.extend(held.map(|lease| lease.selection));
        Ok(busy)
    }
}

/// A folder's name does not say of which namespace its run is.
fn folder_of(dir: &Path, run: &Selection) -> PathBuf {
    dir.join(format!("{}.{}", run.app, run.instance))
}

/// The folders that are named APP.INSTANCE. Links to folders do not count.
fn folders(dir: &Path) -> io::Result<Vec<(Selection, PathBuf)>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((app, instance)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let is_ours = names::app_name_error(app).is_none()
            && names::instance_name_error(instance).is_none()
            && entry.file_type()?.is_dir();
        if is_ours {
            let run = Selection { app: app.to_owned(), instance: instance.to_owned() };
            folders.push((run, entry.path()));
        }
    }
    folders.sort();
    Ok(folders)
}
