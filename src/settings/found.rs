//! A configuration that nobody named: the `posse.yaml` of the folder. In a folder such as /tmp another
//! user may have put it there.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use log::{info, warn};

use super::{DEFAULT_FILE, read_config};
use crate::args::FileArgs;
use crate::world::World;
use posse_wire::config::Config;

/// Logs that the configuration is a file which nobody named, if so, and that it sets nothing. Call it before
/// anything of the file runs.
pub fn announce(args: &FileArgs, world: &World<'_>) {
    warn_if_empty(args, world);
    let path = world.dir.join(DEFAULT_FILE);
    let Some(facts) = fs::metadata(&path).ok().filter(|_| args.file.is_none()) else { return };
    let path = std::path::absolute(&path).unwrap_or(path);
    let shown = path.display();
    match facts.uid() {
        owner if owner == 0 || owner == rustix::process::geteuid().as_raw() => {
            info!("the configuration is {shown}, found in this folder; -f names another one");
        }
        owner => warn!(
            "the configuration is {shown} of user {owner}, found in this folder; -f names another one"
        ),
    }
}

/// Who wrote an empty file wanted something. It was read before there was a log, so it is read again: only a
/// regular file, because a pipe has nothing the second time.
fn warn_if_empty(args: &FileArgs, world: &World<'_>) {
    let path = world.dir.join(args.file.as_deref().unwrap_or_else(|| DEFAULT_FILE.as_ref()));
    let is_regular = fs::metadata(path).is_ok_and(|facts| facts.is_file());
    match is_regular.then(|| read_config(args, world)) {
        Some(Ok((shown, config))) if config == Config::default() => {
            warn!("{shown} sets nothing; `posse init -` prints a file with all keys and comments");
        }
        Some(_) | None => {}
    }
}
