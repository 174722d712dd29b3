//! Owns how a container becomes a command of this machine: its words, environment and folders put
//! together, and its start.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::environment::{Blocked, CommandLine, command_line, expand};
use super::sandbox::{Mount, Sandbox, Trouble};
use super::start_error::{NotStarted, chdir_error, exec_error, not_started};
use super::volumes;
use crate::dev::apiserver::api::Api;
use crate::dev::kubeconfig::{self, Access};
use crate::dev::schema::kind::Key;
use crate::dev::storage::events::{self, Note};
use crate::dev::storage::object::text_at;

/// What every container is told of the API server, whose clients find it by this file.
const KUBECONFIG: &str = "KUBECONFIG";
/// By these a client in a pod finds the API server, where it finds its token and certificate too.
const API_VARIABLES: [&str; 3] =
    ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"];
const ACCOUNT_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Where a container's last words go unless it says otherwise.
const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";

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

/// What is to be started, and what it sees.
#[derive(Debug)]
pub(super) struct Prepared {
    line: CommandLine,
    sandbox: Option<Sandbox>,
    /// It has no volumes: it can do without a namespace.
    dispensable: bool,
}

impl Prepared {
    /// Starts it in a process group: 0 is one of its own. Returns when the program runs, or does
    /// not.
    pub(super) fn spawn(self, output: &File, group: i32) -> Result<Child, NotStarted> {
        let Some(sandbox) = &self.sandbox else { return self.spawn_plainly(output, group) };
        let failed = |error: io::Error| NotStarted::Failed(not_started(&error.to_string()));
        let (mut command, hand_over) = sandbox.command(&self.line).map_err(failed)?;
        command.env_clear().envs(&self.line.env).process_group(group);
        command.stdout(output.try_clone().map_err(failed)?);
        command.stderr(output.try_clone().map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        drop(command);
        let Err(trouble) = hand_over.finish() else { return Ok(child) };
        // An error means that it has ended already.
        let _ = child.kill();
        let _ = child.wait();
        match trouble {
            Trouble::Failed(message) => Err(NotStarted::Failed(not_started(&message))),
            Trouble::NoNamespace(_) if self.dispensable => self.spawn_plainly(output, group),
            Trouble::NoNamespace(message) => {
                Err(NotStarted::Blocked(Blocked { reason: "CreateContainerError", message }))
            }
        }
    }

    fn spawn_plainly(&self, output: &File, group: i32) -> Result<Child, NotStarted> {
        let failed = |what: &str| NotStarted::Failed(not_started(what));
        let line = &self.line;
        let mut command = Command::new(&line.program);
        command
            .args(&line.args)
            .env_clear()
            .envs(&line.env)
            .stdin(Stdio::null())
            .process_group(group);
        let outputs = || Ok((output.try_clone()?, output.try_clone()?));
        let (stdout, stderr) = outputs().map_err(|error: io::Error| failed(&error.to_string()))?;
        command.stdout(stdout).stderr(stderr);
        if !line.working_dir.is_empty() {
            if !Path::new(&line.working_dir).is_dir() {
                let error = io::Error::from(io::ErrorKind::NotFound);
                return Err(failed(&chdir_error(&line.working_dir, &error)));
            }
            command.current_dir(&line.working_dir);
        }
        command.spawn().map_err(|error| failed(&exec_error(&line.program, &error)))
    }
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
    let Place { api, pod, spec, .. } = *place;
    let folder = place.termination.parent().unwrap_or_else(|| Path::new("/"));
    volumes::set_up(api, pod, folder)
        .map_err(|message| NotStarted::Blocked(Blocked { reason: "ContainerCreating", message }))?;
    let mut base = place.base.clone();
    base.insert("HOSTNAME".to_owned(), host_name(place));
    let kubeconfig = kubeconfig(place, folder)
        .map_err(|error| NotStarted::Blocked(Blocked::config(error.to_string())))?;
    base.insert(KUBECONFIG.to_owned(), kubeconfig.to_string_lossy().into_owned());
    let (mut line, mounts) = {
        let state = api.lock();
        let line = command_line(&state.store, pod, spec, &base).map_err(NotStarted::Blocked)?;
        let mounts = volumes::mounts(&state.store, pod, spec, folder, &line.env);
        (line, mounts.map_err(NotStarted::Blocked)?)
    };
    let account = |mount: &Mount| mount.target == ACCOUNT_FOLDER;
    if let Some((_, address)) = api.url.split_once("://").filter(|_| mounts.iter().any(account))
        && let Some((host, port)) = address.rsplit_once(':')
    {
        let host = host.trim_matches(['[', ']']);
        for (name, value) in API_VARIABLES.into_iter().zip([host, port, port]) {
            line.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    let given = match words {
        Words::Container => {
            note_skipped(place, &line);
            None
        }
        Words::Hook(words) => Some(words.to_vec()),
        Words::Probe(words) => {
            Some(words.iter().map(|word| expand(word, |name| line.env.get(name))).collect())
        }
    };
    if let Some(mut words) = given {
        if words.is_empty() {
            return Err(NotStarted::Failed(not_started("no command specified")));
        }
        line.program = words.remove(0);
        line.args = words;
    }
    let dispensable = mounts.is_empty();
    let sandbox = sandbox(place, folder, mounts, &kubeconfig, &mut line)
        .map_err(|error| NotStarted::Failed(not_started(&error.to_string())))?;
    Ok(Prepared { line, sandbox, dispensable })
}

/// The file by which the container finds the API server: everybody's, or with roles the pod's own.
fn kubeconfig(place: &Place<'_>, folder: &Path) -> io::Result<PathBuf> {
    let Place { api, key, pod, .. } = *place;
    if api.admin_token.is_none() {
        return Ok(api.kubeconfig.clone());
    }
    let now = api.clock.wall(api.clock.now());
    let token = api.tokens.of_client(&api.lock(), pod, now).map_err(io::Error::other)?;
    let path = folder.join("_kubeconfig");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let authority = api.lock().authority.clone();
    let access = Access {
        url: &api.url,
        authority: &authority,
        namespace: &key.namespace,
        token: Some(&token),
    };
    kubeconfig::write(&path, &access)?;
    Ok(path)
}

/// The container's view of the files, where it has one of its own: with volumes, or where it speaks
/// of the file for its termination message.
fn sandbox(
    place: &Place<'_>,
    folder: &Path,
    mut mounts: Vec<Mount>,
    kubeconfig: &Path,
    line: &mut CommandLine,
) -> io::Result<Option<Sandbox>> {
    let message = text_at(place.spec, "/terminationMessagePath");
    let names = |word: &String| word.contains(message);
    let named = names(&line.program) || line.args.iter().chain(line.env.values()).any(names);
    let speaks = !message.is_empty() && (message != TERMINATION_MESSAGE_PATH || named);
    if mounts.is_empty() && !speaks {
        return Ok(None);
    }
    if !message.is_empty() {
        make_writable(place.termination)?;
        mounts.push(Mount {
            source: place.termination.clone(),
            target: message.to_owned(),
            read_only: false,
        });
    }
    if mounts.iter().any(|mount| kubeconfig.starts_with(&mount.target)) {
        let target = "/run/posse-dev/kubeconfig".to_owned();
        line.env.insert(KUBECONFIG.to_owned(), target.clone());
        mounts.push(Mount { source: kubeconfig.to_owned(), target, read_only: true });
    }
    let runner = place.api.runner.clone();
    Ok(Some(Sandbox { runner, folder: folder.join("_view"), mounts }))
}

/// Whoever the container runs as.
fn make_writable(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let file = File::options().create(true).append(true).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o666))
}

fn note_skipped(place: &Place<'_>, line: &CommandLine) {
    if line.skipped.is_empty() {
        return;
    }
    let mut state = place.api.lock();
    let Some(about) = state.store.get(place.key).cloned() else { return };
    for message in &line.skipped {
        let note = Note {
            warning: true,
            reason: "InvalidEnvironmentVariableNames",
            message,
            component: "kubelet",
            host: about.node(),
            field: "",
        };
        events::record(&mut state, &about, &note);
    }
}

/// The name that the pod's containers know their host by.
fn host_name(place: &Place<'_>) -> String {
    match text_at(place.pod, "/spec/hostname") {
        "" => place.key.name.clone(),
        host => host.to_owned(),
    }
}
