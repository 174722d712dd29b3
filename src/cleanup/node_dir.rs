//! `posse cleanup --node-dir`: the folders that executors of ended applications left behind on a node.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use crate::cleanup::{Cleanup, conclude, count};
use crate::exit::{Code, Failure};
use crate::namespace::start_signals;
use crate::terminal::print;
use posse_run::signals::Signal;
use posse_wire::names;

impl Cleanup<'_> {
    /// Looks at the folders APP.INSTANCE in `dir`, once or, with --every, until a signal ends it.
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
        loop {
            self.wall_ms = Timestamp::now().as_millisecond();
            if let Err(failure) = self.clean_once(dir, out) {
                log::warn!("{}; posse tries again in {} s", failure.message, every_ms / 1_000);
            }
            let woken = signals.wake().recv_timeout(Duration::from_millis(every_ms));
            if woken.is_ok() && signals.take().any(Signal::is_stop_without_driver) {
                return Ok(Code::Clean);
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
        folders.retain(|(of, _)| app.is_none_or(|app| app == of));
        if !folders.is_empty() {
            // Pods of any namespace may have made them. The pod of a driver that has ended may stay for
            // days.
            let busy = self.busy_apps(None, app, true).map_err(|refusal| {
                self.connection.failure("cannot list pods and leases in all namespaces", &refusal)
            })?;
            folders.retain(|(of, _)| !busy.contains(of));
        }
        let mut remaining = Vec::new();
        for (_, path) in &folders {
            let path = path.as_path();
            print(out, &format!("folder {}: its application has ended\n", path.display()))?;
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
}

/// The folders that are named APP.INSTANCE, with the application. Links to folders do not count.
fn folders(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
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
            folders.push((app.to_owned(), entry.path()));
        }
    }
    folders.sort();
    Ok(folders)
}
