//! What commands show of a run that has not begun.

use posse_core::policy::driver_port;
use posse_run::run::settings::{RunIdentity, RunSettings};
use posse_wire::config::PortChoice;

/// The printed instance, if only a run can know it.
pub(super) const INSTANCE_SHOWN: &str = "xxxxx";
/// The printed namespace, if it depends on the cluster.
pub(super) const NAMESPACE_SHOWN: &str = "default";
/// The printed driver host, if it depends on the cluster.
const DRIVER_HOST_SHOWN: &str = "127.0.0.1";

/// The identity of the printed pods, with placeholders for what only a run can know.
pub(super) fn shown_identity(settings: &RunSettings) -> RunIdentity {
    let instance = settings.instance.clone().unwrap_or_else(|| INSTANCE_SHOWN.to_owned());
    let namespace = settings.namespace.clone().unwrap_or_else(|| NAMESPACE_SHOWN.to_owned());
    let driver_port = settings.driver.port.and_then(|port| match port {
        PortChoice::Auto => driver_port::candidates(&namespace, &settings.app, &instance).next(),
        PortChoice::Number(number) => Some(number),
    });
    RunIdentity {
        instance,
        namespace,
        owner: None,
        instance_owner: None,
        controller: None,
        driver_port,
        driver_host: settings.driver.host.clone().unwrap_or_else(|| DRIVER_HOST_SHOWN.to_owned()),
    }
}
