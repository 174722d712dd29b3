//! The arguments of `posse exec`.

use clap::Args;

use crate::args::ClientArgs;
use crate::args::words::app_and_executor;

/// `posse exec`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "posse exec [OPTIONS] <ID> [--] <COMMAND>...")]
pub struct ExecArgs {
    /// The executor: its id, APP/ID with the application's name, or the name of its pod
    #[arg(value_name = "ID", value_parser = exec_target)]
    pub target: ExecTarget,
    /// Pass stdin on to the command
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give the command a terminal; with -i every key goes to it, Ctrl-C too
    #[arg(short = 't', long)]
    pub tty: bool,
    /// The container [default: the one that runs the executor]
    #[arg(short = 'c', long, value_name = "CONTAINER")]
    pub container: Option<String>,
    /// Join the words by spaces and let /bin/sh -c run them, as ssh does: for programs that start
    /// their own parts by ssh, such as mpirun
    #[arg(long)]
    pub shell: bool,
    #[command(flatten)]
    pub client: ClientArgs,
    /// The command and its arguments; flags before it are posse's
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What `posse exec` runs a command in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecTarget {
    /// An executor of the run.
    Executor(u64),
    /// An executor of this application.
    OfApp(String, u64),
    /// A pod.
    Pod(String),
}

fn exec_target(text: &str) -> Result<ExecTarget, String> {
    if let Ok(id) = text.parse() {
        return Ok(ExecTarget::Executor(id));
    }
    if text.is_empty() {
        return Err("expected the id of an executor or the name of a pod".to_owned());
    }
    if !text.contains('/') {
        return Ok(ExecTarget::Pod(text.to_owned()));
    }
    match app_and_executor(text)? {
        (app, Some(id)) => Ok(ExecTarget::OfApp(app, id)),
        (app, None) => Ok(ExecTarget::Pod(app)),
    }
}
