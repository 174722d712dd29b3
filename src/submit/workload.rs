//! The Job or Pod that runs an application's driver.

use serde_json::Value;

use crate::core::model::refusal::Refusal;
use crate::kube::api::objects::{Kind, Objects};
use crate::submit::plan::driver_name;
use crate::submit::state::{kind_and_name, uid_of};
use crate::wire::labels::{APP, DRIVER, MANAGED_BY};

/// True if the object with this uid owns the pod.
pub fn is_owned(pod: &Value, uid: &str) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid))
}

/// Finds the Job or Pod that runs an application's driver.
pub fn find_workload(objects: &Objects, app: &str) -> Result<Option<(Kind, Value)>, Refusal> {
    let name = driver_name(app);
    for kind in [Kind::Job, Kind::Pod] {
        let found = objects.get(kind, &name)?;
        if let Some(object) = found.filter(|object| is_driver_of(object, app)) {
            log::debug!("{} runs the driver of {app}", kind_and_name(&object));
            return Ok(Some((kind, object)));
        }
    }
    Ok(None)
}

/// True if the object has the labels of this application's driver.
pub fn is_driver_of(object: &Value, app: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    labels[APP] == *app && labels[MANAGED_BY.0] == MANAGED_BY.1 && labels[DRIVER.0] == DRIVER.1
}

/// The driver's pods without those of an earlier Job with the same name, which the garbage collector
/// has not deleted yet.
pub fn owned_pods(job: Option<&Value>, mut pods: Vec<Value>) -> Vec<Value> {
    if let Some(job) = job {
        pods.retain(|pod| is_owned(pod, uid_of(job)));
    }
    pods
}
