//! `posse exec`: runs a command in an executor of a run.

use std::io::{self, Write};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

use crate::args::exec::{ExecArgs, ExecTarget};
use crate::exit::{Code, Failure};
use crate::location::{Location, locate};
use crate::namespace::start_signals;
use crate::terminal::{with_error_output, with_log_output};
use crate::world::World;
use posse_base::text::sanitize;
use posse_kube::api::pod_exec::{
    ContainerPath, ExecError, Input, Output, RemoteTerminal, exec as call,
};
use posse_run::signals::{Signal, Signals};
use posse_wire::k8s::exec_channels::{CommandEnd, TerminalSize};
use posse_wire::pod::details::{PodDetails, State};

/// The longest reason of a container's state that is shown, in bytes.
const REASON_BYTES_MAX: usize = 200;
/// What a Role must have for `posse exec`, besides `get` and `list` on pods.
const RULE: &str = r#"{apiGroups: [""], resources: [pods/exec], verbs: [create, get]}"#;

/// `posse exec`. The exit code is the command's.
///
/// # Errors
/// There is no such executor, the command cannot be started, or its end is not known.
pub fn exec(args: &ExecArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let (location, pod) = find(args, world)?;
    let container = container_of(&pod, args.container.as_deref())?;
    let pod_name = pod.name().to_owned();
    if pod.is_final() {
        let phase = pod.phase();
        return Err(failed(format!(
            "pod {pod_name} has ended ({phase}): nothing can run in it; `posse explain ID` says why \
             an executor ended"
        )));
    }
    let command = match args.shell {
        true => vec!["/bin/sh".to_owned(), "-c".to_owned(), args.command.join(" ")],
        false => args.command.clone(),
    };
    let target = ContainerPath {
        namespace: location.namespace.name.clone(),
        pod: pod_name.clone(),
        container,
    };
    let http = &location.namespace.connection.http;
    let ended = with_input(args, |input| {
        with_log_output(out, args.tty, |out| {
            with_error_output(|errors| {
                let mut each = |output: Output<'_>| match output {
                    Output::Stdout(bytes) => out.write_all(bytes).and_then(|()| out.flush()),
                    Output::Stderr(bytes) => errors.write_all(bytes),
                };
                call(http, &target, &command, input, &mut each)
            })
        })
    })?;
    match ended {
        Ok(CommandEnd::Exited(0)) => Ok(Code::Clean),
        Ok(CommandEnd::Exited(code)) => Ok(Code::Driver(code)),
        Ok(CommandEnd::Failed(why)) => {
            let container = &target.container;
            Err(failed(format!("pod {pod_name}, container {container}: {why}")))
        }
        Err(ExecError::Refused(refusal)) => {
            let what = format!("no command can be run in pod {pod_name}");
            let mut message = location.namespace.connection.failure(&what, &refusal).message;
            if refusal.code == 403 {
                message.push_str(&format!("; the rule that permits it: {RULE}"));
            } else if let Some(state) = state_if_not_running(&pod, &target.container) {
                let container = &target.container;
                message.push_str(&format!("; container {container} was not running: {state}"));
            }
            Err(failed(message))
        }
        Err(ExecError::Output(error)) => Err(Failure::output(error)),
        Err(ExecError::Stopped) => Ok(Code::Signal(Signal::Term)),
        Err(error @ ExecError::Cut(_)) => {
            Err(failed(format!("pod {pod_name}: {error}; the command may still run there")))
        }
    }
}

fn failed(message: String) -> Failure {
    Failure::new(Code::Failed, message)
}

/// The pod that is meant, and where it is.
fn find(args: &ExecArgs, world: &World<'_>) -> Result<(Location, PodDetails), Failure> {
    let mut client = args.client.clone();
    if let ExecTarget::OfApp(app, _) = &args.target {
        if client.app.as_ref().is_some_and(|named| named != app) {
            return Err(Failure::usage("the argument and --app name different applications"));
        }
        client.app = Some(app.clone());
    }
    let id = match &args.target {
        ExecTarget::Executor(id) | ExecTarget::OfApp(_, id) => *id,
        ExecTarget::Pod(name) => {
            let location = locate(&client, false, world)?;
            let found = location.namespace.objects().pod(name).map_err(|refusal| {
                failed(
                    location.namespace.connection.failure(&format!("pod {name}"), &refusal).message,
                )
            })?;
            let missing = || {
                let mut what =
                    format!("there is no pod {name} in namespace {}", location.namespace.name);
                if let Ok(id) = args.command[0].parse::<u64>() {
                    what.push_str(&format!("; executor {id} of application {name} is {name}/{id}"));
                }
                failed(what)
            };
            return found.ok_or_else(missing).map(|pod| (location, pod));
        }
    };
    let location = locate(&client, true, world)?;
    let pod = location.executor(id)?;
    Ok((location, pod))
}

/// The container that is named, else the main one.
fn container_of(pod: &PodDetails, named: Option<&str>) -> Result<String, Failure> {
    let Some(name) = named else { return Ok(pod.main.clone()) };
    let names = pod.spec.container_names();
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(failed(format!(
            "pod {} has no container {name}; it has: {}",
            pod.name(),
            names.join(", ")
        ))),
    }
}

/// What keeps a container from running, by the status of its pod. A kubelet's answer to a command does not say
/// it: API servers report only that the connection was not opened.
fn state_if_not_running(pod: &PodDetails, container: &str) -> Option<String> {
    let Some(status) = pod.status.of_container(container) else {
        let is_placed = pod.facts.node.is_some();
        return (!is_placed).then(|| "its pod is not on a node yet".to_owned());
    };
    let (state, reason) = match &status.state {
        State { waiting: Some(waiting), .. } => ("waiting", &waiting.reason),
        State { terminated: Some(terminated), .. } => ("terminated", &terminated.reason),
        State { .. } => return None,
    };
    let state = format!("{state} {}", sanitize(reason, REASON_BYTES_MAX));
    Some(state.trim_end().to_owned())
}

/// Calls `run` with the command's input. A terminal on stdin is in raw mode meanwhile if the command has it:
/// every key goes to the command, Ctrl-C too.
fn with_input<T>(args: &ExecArgs, run: impl FnOnce(Input<'_>) -> T) -> Result<T, Failure> {
    let stdin = match args.stdin {
        true => Some(
            io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| failed(format!("stdin cannot be read: {error}")))?,
        ),
        false => None,
    };
    if !args.tty {
        return Ok(run(Input { stdin, terminal: None }));
    }
    let raw_mode = match stdin.as_ref().filter(|stdin| isatty(stdin)) {
        Some(stdin) => Some(RawMode::start(stdin)?),
        None => None,
    };
    Ok(run(Input { stdin, terminal: Some(&Terminal { raw_mode }) }))
}

/// This terminal, for a command in a container.
struct Terminal {
    raw_mode: Option<RawMode>,
}

impl RemoteTerminal for Terminal {
    fn size(&self) -> Option<TerminalSize> {
        let size = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())).ok()?;
        (size.ws_col > 0).then_some(TerminalSize { columns: size.ws_col, rows: size.ws_row })
    }

    fn is_stopped(&self) -> bool {
        let mut signals = self.raw_mode.iter().flat_map(|mode| mode.signals.take());
        signals.any(Signal::is_stop_without_driver)
    }
}

/// A terminal in raw mode until this is dropped.
struct RawMode {
    terminal: OwnedFd,
    before: Termios,
    /// A signal must not end posse before the modes are restored.
    signals: Signals,
}

impl RawMode {
    fn start(terminal: &OwnedFd) -> Result<Self, Failure> {
        let signals = start_signals()?;
        let raw = || -> io::Result<(OwnedFd, Termios)> {
            let (terminal, before) = (terminal.try_clone()?, tcgetattr(terminal)?);
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(&terminal, OptionalActions::Now, &raw)?;
            Ok((terminal, before))
        };
        let (terminal, before) = raw().map_err(|error| failed(format!("the terminal: {error}")))?;
        Ok(Self { terminal, before, signals })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // It fails if the terminal was closed.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value, status: Value) -> PodDetails {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": spec, "status": status});
        PodDetails::parse(pod.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_container_that_does_not_run_is_named_with_its_state() {
        let pod = |state: Value| {
            let statuses = json!({
                "containerStatuses": [{"name": "other", "state": {"running": {}}}],
                "initContainerStatuses": [{"name": "c", "state": state}]});
            read(json!({"nodeName": "n"}), statuses)
        };
        let check = |state: Value, want: Option<&str>| {
            assert_eq!(state_if_not_running(&pod(state), "c").as_deref(), want);
        };
        check(json!({"running": {"startedAt": "x"}}), None);
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        check(waiting, Some("waiting ContainerCreating"));
        check(json!({"terminated": {"exitCode": 1}}), Some("terminated"));
        check(json!({}), None);
        check(json!(null), None);
        let unplaced = read(json!({}), json!({}));
        let said = state_if_not_running(&unplaced, "c");
        assert_eq!(said.as_deref(), Some("its pod is not on a node yet"));
        assert_eq!(state_if_not_running(&read(json!({"nodeName": "n"}), json!({})), "c"), None);
    }
}
