//! What the driver's program gets, and what shows that it is ready.

use std::path::{Path, PathBuf};

use super::Run;
use crate::credentials::CredentialThreads;
use crate::driver::DriverEnv;
use crate::driver::ready::Probe;
use crate::engine::DriverPlan;
use crate::run::settings::RunIdentity;
use posse_wire::config::Ready;
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::names;

impl Run<'_> {
    pub(super) fn driver_plan(
        &self,
        run: &RunIdentity,
        control: Option<&ControlAddr>,
        credentials: &CredentialThreads,
    ) -> DriverPlan {
        let driver = &self.settings.driver;
        let host = names::host_in_url(&self.context.listen_host);
        // The settings have a port if a probe needs one.
        let address =
            |port: Option<u16>| format!("{host}:{}", port.or(run.driver_port).unwrap_or_default());
        DriverPlan {
            command: driver.command.clone(),
            env: DriverEnv {
                app: self.settings.app.clone(),
                instance: run.instance.clone(),
                namespace: run.namespace.clone(),
                // Absolute paths, because the driver may change its working directory.
                control: control.map(|address| match address {
                    ControlAddr::Unix(path) => ControlAddr::Unix(absolute(path)).to_string(),
                    tcp @ ControlAddr::Tcp(_) => tcp.to_string(),
                }),
                control_token_file: self.settings.control_token_file.as_deref().map(absolute),
                host: self.context.listen_host.clone(),
                port: run.driver_port,
                socket: (driver.ready == Ready::Socket).then(|| address(None)),
                credentials: credentials.driver_env(&self.settings.credentials),
                kubeconfig: self.driver_kubeconfig.map(Path::to_path_buf),
            },
            probe: match &driver.ready {
                Ready::Tcp(port) => Some(Probe::Tcp(address(*port))),
                Ready::Socket => Some(Probe::Tcp(address(None))),
                Ready::Http(port, path) => {
                    Some(Probe::Http { address: address(*port), path: path.clone() })
                }
                Ready::File(path) => Some(Probe::File(absolute(path))),
                Ready::Control | Ready::None => None,
            },
            is_ready_by_call: driver.ready == Ready::Control,
        }
    }
}

/// The absolute path; unchanged if the working directory is unknown.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
