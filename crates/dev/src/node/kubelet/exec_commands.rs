//! Prepares the commands that clients run in containers (`pods/exec`).

use std::path::PathBuf;

use super::Kubelet;
use crate::apiserver::exec_orders::{CommandIo, ExecOrder, StartCommand};
use crate::node::probes::Exec;
use crate::node::run::ContainerState;
use crate::node::start::CommandSource;
use crate::node::start_error::StartError;
use posse_process::supervisor::Running;

impl Kubelet {
    /// Answers an order with the command, which the client's thread starts.
    pub(crate) fn on_exec(&self, order: ExecOrder) {
        let answer = self.prepare_exec(&order);
        // An error means that the client has left.
        let _ = order.answer.try_send(answer);
    }

    fn prepare_exec(&self, order: &ExecOrder) -> Result<StartCommand, String> {
        // The kubelet's words.
        let missing = || format!("container not found ({:?})", order.container);
        let run = self.runs.get(&order.key).filter(|run| run.uid == order.uid);
        let container = run.and_then(|run| {
            let running = |state: &ContainerState| matches!(state, ContainerState::Running { .. });
            run.containers.iter().find(|one| one.name == order.container && running(&one.state))
        });
        let container = container.ok_or_else(missing)?;
        let number =
            container.process.ok_or("the containers of simulated nodes run no processes")?;
        let source = CommandSource::Client(&order.command);
        let exec = self.exec(number, source, PathBuf::new()).ok_or_else(missing)?;
        Ok(Box::new(move |io: CommandIo| start(exec, &io)))
    }
}

fn start(exec: Exec, io: &CommandIo) -> Result<Running, String> {
    exec.prepared.spawn(io, &exec.link).map_err(|error| match error {
        StartError::Blocked(blocked) => blocked.message,
        StartError::Failed(why) => why,
    })
}
