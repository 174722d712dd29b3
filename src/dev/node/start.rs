//! Owns how a container becomes a command of this machine: its words, environment and folders put
//! together. Starts nothing itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::environment::{Blocked, command_line, expand};
use super::process::{StartFailed, not_started};
use crate::dev::api::Api;
use crate::dev::kind::Key;
use crate::dev::object::text_at;

/// A container that is about to run, or in which something is about to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) api: &'a Api,
    pub(super) key: &'a Key,
    pub(super) pod: &'a Value,
    pub(super) spec: &'a Value,
    /// What every container's environment begins with.
    pub(super) base: &'a BTreeMap<String, String>,
    /// The file that the container sees at its `terminationMessagePath`.
    pub(super) termination: &'a PathBuf,
}

/// A command with the program's name, for the words about a start that fails.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) program: String,
    pub(super) command: Command,
}

/// Why a container did not start.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// Not now: it is tried again. The reason `ContainerCreating` means that its volumes are not
    /// there yet; the message is then an event's, not the status's.
    Blocked(Blocked),
    Failed(StartFailed),
}

/// What runs in a container.
#[derive(Clone, Copy, Debug)]
pub(super) enum Words<'a> {
    /// Its own command.
    Container,
    /// A hook's, as they are.
    Hook(&'a [String]),
    /// A probe's: references to the container's variables are filled in.
    Probe(&'a [String]),
}

/// The command that runs the container, or a hook or probe in it. Everything that a container sees
/// of the machine is decided here.
pub(super) fn prepare(place: &Place<'_>, words: Words<'_>) -> Result<Prepared, NotStarted> {
    let mut base = place.base.clone();
    base.insert("HOSTNAME".to_owned(), host_name(place));
    let line = command_line(place.pod, place.spec, &base).map_err(NotStarted::Blocked)?;
    let own = std::iter::once(&line.program).chain(&line.args);
    let all: Vec<String> = match words {
        Words::Container => own.cloned().collect(),
        Words::Hook(words) => words.to_vec(),
        Words::Probe(words) => words.iter().map(|word| expand(word, &line.env)).collect(),
    };
    let Some((program, args)) = all.split_first() else {
        return Err(NotStarted::Failed(not_started("no command specified")));
    };
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(&line.env);
    if !line.working_dir.is_empty() {
        if !std::path::Path::new(&line.working_dir).is_dir() {
            return Err(NotStarted::Failed(not_started(&format!(
                "error during container init: chdir to cwd ({:?}) set in config.json failed: no \
                 such file or directory",
                line.working_dir
            ))));
        }
        command.current_dir(&line.working_dir);
    }
    Ok(Prepared { program: program.clone(), command })
}

/// The name that the pod's containers know their host by.
fn host_name(place: &Place<'_>) -> String {
    match text_at(place.pod, "/spec/hostname") {
        "" => place.key.name.clone(),
        host => host.to_owned(),
    }
}
