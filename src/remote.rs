//! Runs a client command inside the driver's pod of an application in the cluster: the control API
//! of a run is a socket that only its own pod can reach.

use std::fmt;
use std::io::Write;
use std::os::fd::OwnedFd;

use clap::ValueEnum as _;
use clap::builder::PossibleValue;

use crate::args::ClientArgs;
use crate::args::format::{Format, FormatArgs};
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::terminal::{with_error_output, with_log_output};
use crate::world::World;
use posse_core::model::pod::ContainerState;
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::Objects;
use posse_kube::api::pod_exec::{ContainerPath, ExecError, Input, Output, exec};
use posse_submit::state::newest;
use posse_submit::stop::drivers;
use posse_wire::k8s::exec_channels::CommandEnd;
use posse_wire::pod::details::PodDetails;

/// The command if the container's own one is not posse, as in an image that starts posse by a script.
const PROGRAM: &str = "posse";

/// The driver's container of a run in the cluster.
pub(super) struct RemoteRun {
    namespace: Namespace,
    app: String,
    target: ContainerPath,
    program: String,
}

impl RemoteRun {
    /// Finds the driver's container of `app`. `missing` says that there is no such run on this host.
    ///
    /// # Errors
    /// `missing`, and why no such run was found in the cluster either.
    pub(super) fn find(
        args: &ClientArgs,
        missing: String,
        app: &str,
        world: &World<'_>,
    ) -> Result<Self, Failure> {
        let nothing = |more: &str| Failure::new(Code::Failed, format!("{missing}; {more}"));
        let namespace = Namespace::new(&args.namespace, world)
            .map_err(|error| nothing(&format!("the cluster cannot be asked either: {error}")))?;
        let objects = namespace.objects();
        let pods = driver_pods(&objects, app).map_err(|refusal| {
            let failure = namespace.refused("its driver cannot be looked up", app, &refusal);
            Failure::new(failure.code, format!("{missing}; {failure}"))
        })?;
        let Some(pod) = newest(&pods) else {
            return Err(nothing(&format!("namespace {} has no driver of it", namespace.name)));
        };
        if pod.facts.container != ContainerState::Running {
            let phase = pod.phase();
            return Err(Failure::new(
                Code::Failed,
                format!(
                    "the driver of application {app} is not running: pod {} is {phase}; see `posse \
                     logs {app}`",
                    pod.name()
                ),
            ));
        }
        let target = ContainerPath {
            namespace: namespace.name.clone(),
            pod: pod.name().to_owned(),
            container: pod.main.clone(),
        };
        let program = program(pod);
        Ok(Self { app: app.to_owned(), namespace, target, program })
    }

    /// Runs `posse WORDS... --app APP` in the container and passes on its output and exit code.
    pub(super) fn run(&self, words: Words, out: &mut dyn Write) -> Result<Code, Failure> {
        // The pod may say anything, also what a terminal obeys.
        with_log_output(out, false, |out| with_error_output(|errors| self.exec(words, out, errors)))
    }

    /// The same, with words of another program behind `--`, and with input.
    pub(super) fn run_with(
        &self,
        words: Words,
        others: &[String],
        stdin: Option<OwnedFd>,
        out: &mut dyn Write,
    ) -> Result<Code, Failure> {
        let words = words.option("--app", Some(&self.app));
        let words = if others.is_empty() { words } else { words.values(["--"]).values(others) };
        with_log_output(out, false, |out| {
            with_error_output(|errors| self.exec_all(words, stdin, out, errors))
        })
    }

    /// The same, with writers for its stdout and stderr.
    pub(super) fn exec(
        &self,
        words: Words,
        out: &mut dyn Write,
        errors: &mut dyn Write,
    ) -> Result<Code, Failure> {
        self.exec_all(words.option("--app", Some(&self.app)), None, out, errors)
    }

    fn exec_all(
        &self,
        words: Words,
        stdin: Option<OwnedFd>,
        out: &mut dyn Write,
        errors: &mut dyn Write,
    ) -> Result<Code, Failure> {
        let mut command = vec![self.program.clone()];
        command.extend(words.words);
        let pod = &self.target.pod;
        let failed = |what: String| Failure::new(Code::Failed, what);
        let mut each = |output: Output<'_>| match output {
            Output::Stdout(bytes) => out.write_all(bytes).and_then(|()| out.flush()),
            Output::Stderr(bytes) => errors.write_all(bytes),
        };
        let http = &self.namespace.connection.http;
        let ended = exec(http, &self.target, &command, Input { stdin, terminal: None }, &mut each);
        match ended {
            Ok(CommandEnd::Exited(0)) => Ok(Code::Clean),
            Ok(CommandEnd::Exited(code)) => Ok(Code::Driver(code)),
            Ok(CommandEnd::Failed(why)) => Err(failed(format!(
                "pod {pod}: `{}` cannot run in container {}: {why}",
                self.program, self.target.container
            ))),
            Err(ExecError::Refused(refusal)) => {
                let what = format!("no command can be run in pod {pod}");
                Err(failed(self.namespace.refused(&what, &self.app, &refusal).message))
            }
            Err(ExecError::Output(error)) => Err(Failure::output(error)),
            Err(error) => Err(failed(format!("pod {pod}: {error}"))),
        }
    }
}

/// The words of a command, without its program.
pub(super) struct Words {
    words: Vec<String>,
}

impl Words {
    pub(super) fn new(command: &str) -> Self {
        Self { words: vec![command.to_owned()] }
    }

    pub(super) fn flag(mut self, name: &str, is_set: bool) -> Self {
        self.words.extend(is_set.then(|| name.to_owned()));
        self
    }

    /// The output format.
    pub(super) fn output(self, output: FormatArgs) -> Self {
        match output.format() {
            // All versions of posse know this one.
            Some(Format::Json) => self.flag("--json", true),
            Some(other) => {
                let value = other.to_possible_value();
                self.option("--output", value.as_ref().map(PossibleValue::get_name))
            }
            None => self,
        }
    }

    /// `--name=value`, so that a value that begins with a dash is no flag.
    pub(super) fn option(mut self, name: &str, value: Option<impl fmt::Display>) -> Self {
        self.words.extend(value.map(|value| format!("{name}={value}")));
        self
    }

    pub(super) fn values(mut self, values: impl IntoIterator<Item = impl fmt::Display>) -> Self {
        self.words.extend(values.into_iter().map(|value| value.to_string()));
        self
    }
}

/// The pods that may run the driver: those with a driver's labels, else the owners of the executors.
fn driver_pods(objects: &Objects, app: &str) -> Result<Vec<PodDetails>, Refusal> {
    let labelled = drivers(objects, app)?;
    if !labelled.is_empty() {
        return Ok(labelled);
    }
    let executors = objects.executors(app, None)?;
    let owners = executors.iter().flat_map(|pod| &pod.meta.owner_references);
    let mut owner_names: Vec<&str> =
        owners.filter(|owner| owner.kind == "Pod").map(|owner| owner.name.as_str()).collect();
    owner_names.sort_unstable();
    owner_names.dedup();
    let mut pods = Vec::new();
    for name in owner_names {
        pods.extend(objects.pod(name)?);
    }
    Ok(pods)
}

/// The path of posse in the main container.
fn program(pod: &PodDetails) -> String {
    let is_posse = |first: &&str| first.rsplit('/').next() == Some(PROGRAM);
    pod.spec.program(&pod.main).filter(is_posse).unwrap_or(PROGRAM).to_owned()
}
