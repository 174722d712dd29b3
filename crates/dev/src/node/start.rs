//! Turns a container spec into a process of this machine: command line, environment, folders.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::environment::{Blocked, CommandLine, command_line, expand};
use super::sandbox::{self, Mount, Sandbox, SandboxError};
use super::start_error::{StartError, chdir_error, exec_error, failed};
use super::volumes;
use crate::apiserver::api::Api;
use crate::apiserver::exec_orders::CommandIo;
use crate::kubeconfig::{self, Access};
use crate::storage::object::text_at;
use posse_process::supervisor::{Launch, Link, Running};

/// The variable that tells every container how to reach the API server.
const KUBECONFIG: &str = "KUBECONFIG";
/// In-cluster clients find the API server by these variables. They are set only if the pod mounts
/// its service account's token and certificate.
const API_VARIABLES: [&str; 3] =
    ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"];
const SERVICE_ACCOUNT_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The default of `terminationMessagePath`.
const TERMINATION_MESSAGE_PATH: &str = "/dev/termination-log";
/// How long the end of a process that could not make its sandbox is awaited.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The container in which a command will run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContainerContext<'a> {
    pub(super) api: &'a Api,
    pub(super) pod: &'a Value,
    pub(super) spec: &'a Value,
    /// The variables that every container gets.
    pub(super) base: &'a BTreeMap<String, String>,
    /// The file that is mounted at the container's `terminationMessagePath`.
    pub(super) termination: &'a PathBuf,
}

/// A command that is ready to start.
#[derive(Debug)]
pub(super) struct Prepared {
    line: CommandLine,
    sandbox: Option<Sandbox>,
    /// It has no volumes, so it can start without a mount namespace.
    sandbox_optional: bool,
}

impl Prepared {
    /// Starts the command under the container's supervisor. Returns when the program runs or has
    /// failed to start.
    pub(super) fn spawn(self, io: &CommandIo, link: &Link) -> Result<Running, StartError> {
        let Some(sandbox) = &self.sandbox else { return self.spawn_without_sandbox(io, link) };
        let (stdin, handover) = sandbox.handover(&self.line, io.stdin.as_ref()).map_err(failed)?;
        let program = sandbox.runner.clone().into();
        let launch = self.launch(program, vec![sandbox::COMMAND.into()], OsString::new());
        let files = [stdin.as_fd(), io.stdout.as_fd(), io.stderr.as_fd()];
        let mut running = link.run(&launch, files).map_err(failed)?;
        drop(stdin);
        let Err(error) = handover.finish() else { return Ok(running) };
        // It ends by itself after such an error; otherwise it is killed when it is dropped.
        let _ = running.wait(Some(ABORT_TIMEOUT));
        match error {
            SandboxError::Failed(message) => Err(failed(message)),
            SandboxError::NoNamespace(_) if self.sandbox_optional => {
                self.spawn_without_sandbox(io, link)
            }
            SandboxError::NoNamespace(message) => {
                Err(StartError::Blocked(Blocked { reason: "CreateContainerError", message }))
            }
        }
    }

    fn spawn_without_sandbox(&self, io: &CommandIo, link: &Link) -> Result<Running, StartError> {
        let line = &self.line;
        if !line.working_dir.is_empty() && !Path::new(&line.working_dir).is_dir() {
            let error = io::Error::from(io::ErrorKind::NotFound);
            return Err(failed(chdir_error(&line.working_dir, &error)));
        }
        let empty = File::open("/dev/null").map_err(failed)?;
        let stdin = io.stdin.as_ref().map_or_else(|| empty.as_fd(), AsFd::as_fd);
        let args = line.args.iter().map(OsString::from).collect();
        let launch = self.launch((&line.program).into(), args, (&line.working_dir).into());
        link.run(&launch, [stdin, io.stdout.as_fd(), io.stderr.as_fd()])
            .map_err(|error| failed(exec_error(&line.program, &error)))
    }

    fn launch(&self, program: OsString, args: Vec<OsString>, dir: OsString) -> Launch {
        let env = self.line.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Launch { program, args, env, dir }
    }
}

/// What runs in a container.
#[derive(Clone, Copy, Debug)]
pub(super) enum CommandSource<'a> {
    /// The container's own command.
    Container,
    /// A hook's command, used as it is.
    Hook(&'a [String]),
    /// A probe's command, in which `$(VAR)` is expanded.
    Probe(&'a [String]),
    /// A client's command (`pods/exec`), used as it is.
    Client(&'a [String]),
}

/// Prepares the container's command, or that of a hook or probe. Everything that a container sees
/// of the machine is set up here: volumes, environment, kubeconfig.
pub(super) fn prepare(
    container: &ContainerContext<'_>,
    source: CommandSource<'_>,
) -> Result<Prepared, StartError> {
    let ContainerContext { api, pod, spec, .. } = *container;
    let folder = container.termination.parent().unwrap_or_else(|| Path::new("/"));
    volumes::set_up(api, pod, folder)
        .map_err(|message| StartError::Blocked(Blocked { reason: "ContainerCreating", message }))?;
    let mut base = container.base.clone();
    base.insert("HOSTNAME".to_owned(), host_name(container));
    let kubeconfig = kubeconfig(container, folder)
        .map_err(|error| StartError::Blocked(Blocked::config(error.to_string())))?;
    base.insert(KUBECONFIG.to_owned(), kubeconfig.to_string_lossy().into_owned());
    let (mut line, mounts) = {
        let state = api.lock();
        let line = command_line(&state.store, pod, spec, &base).map_err(StartError::Blocked)?;
        let mounts = volumes::mounts(&state.store, pod, spec, folder, &line.env);
        (line, mounts.map_err(StartError::Blocked)?)
    };
    let is_account = |mount: &Mount| mount.target == SERVICE_ACCOUNT_FOLDER;
    if let Some((_, address)) = api.url.split_once("://").filter(|_| mounts.iter().any(is_account))
        && let Some((host, port)) = address.rsplit_once(':')
    {
        let host = host.trim_matches(['[', ']']);
        for (name, value) in API_VARIABLES.into_iter().zip([host, port, port]) {
            line.env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    let replacement = match source {
        CommandSource::Container => None,
        CommandSource::Hook(command) | CommandSource::Client(command) => Some(command.to_vec()),
        CommandSource::Probe(command) => {
            Some(command.iter().map(|word| expand(word, |name| line.env.get(name))).collect())
        }
    };
    if let Some(mut command) = replacement {
        if command.is_empty() {
            return Err(failed("no command specified"));
        }
        line.program = command.remove(0);
        line.args = command;
    }
    let sandbox_optional = mounts.is_empty();
    let sandbox = own_view(container, folder, mounts, &kubeconfig, &mut line).map_err(failed)?;
    Ok(Prepared { line, sandbox, sandbox_optional })
}

/// The container's kubeconfig: the cluster's, or with `--rbac` one with the pod's own token.
fn kubeconfig(container: &ContainerContext<'_>, folder: &Path) -> io::Result<PathBuf> {
    let ContainerContext { api, pod, .. } = *container;
    let state = api.lock();
    if !state.has_roles {
        return Ok(api.kubeconfig.clone());
    }
    let now = api.clock.wall(api.clock.now());
    let token = api.tokens.of_client(&state, pod, now).map_err(io::Error::other)?;
    let authority = state.authority.clone();
    drop(state);
    let path = folder.join("_kubeconfig");
    let access = Access {
        url: &api.url,
        authority: &authority,
        namespace: text_at(pod, "/metadata/namespace"),
        token: Some(&token),
    };
    kubeconfig::write(&path, &access)?;
    Ok(path)
}

/// The container's own view of the file system. It has one if it mounts volumes or if it mentions
/// its termination message file.
fn own_view(
    container: &ContainerContext<'_>,
    folder: &Path,
    mut mounts: Vec<Mount>,
    kubeconfig: &Path,
    line: &mut CommandLine,
) -> io::Result<Option<Sandbox>> {
    let message = text_at(container.spec, "/terminationMessagePath");
    let mentions = |text: &String| text.contains(message);
    let mentioned =
        mentions(&line.program) || line.args.iter().chain(line.env.values()).any(mentions);
    let uses_message = !message.is_empty() && (message != TERMINATION_MESSAGE_PATH || mentioned);
    if mounts.is_empty() && !uses_message {
        return Ok(None);
    }
    if !message.is_empty() {
        make_writable(container.termination)?;
        mounts.push(Mount {
            source: container.termination.clone(),
            target: message.to_owned(),
            read_only: false,
        });
    }
    if mounts.iter().any(|mount| kubeconfig.starts_with(&mount.target)) {
        let target = "/run/posse-dev/kubeconfig".to_owned();
        line.env.insert(KUBECONFIG.to_owned(), target.clone());
        mounts.push(Mount { source: kubeconfig.to_owned(), target, read_only: true });
    }
    let runner = container.api.runner.clone();
    Ok(Some(Sandbox { runner, folder: folder.join("_view"), mounts }))
}

/// Creates a file that any user can write to, whatever user the container runs as.
fn make_writable(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o666))
}

/// The pod's `HOSTNAME`.
fn host_name(container: &ContainerContext<'_>) -> String {
    let given = ["hostnameOverride", "hostname"];
    let given = given.map(|field| text_at(&container.pod["spec"], &format!("/{field}")));
    let host = given.into_iter().find(|host| !host.is_empty());
    host.unwrap_or_else(|| text_at(container.pod, "/metadata/name")).to_owned()
}
