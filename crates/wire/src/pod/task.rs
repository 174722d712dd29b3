//! The pod of a task.

use serde_json::{Value, json};

use crate::control::task::annotation;
use crate::control::{task_files, task_secrets};
use crate::k8s::labels;
use posse_core::model::task::{Task, TaskRun};

/// Changes the finished pod of a group to that of a task: label, annotation, environment, arguments
/// and memory.
///
/// # Errors
/// The text is not the JSON of a pod.
pub fn of_task(pod: &[u8], run: &TaskRun) -> Result<Vec<u8>, serde_json::Error> {
    let mut pod: Value = serde_json::from_slice(pod)?;
    let main = pod["metadata"]["annotations"][labels::CONTAINER].as_str().map(str::to_owned);
    let metadata = &mut pod["metadata"];
    metadata["labels"][labels::KEY] = json!(&*run.task.key);
    if let Some(labels) = metadata["labels"].as_object_mut() {
        labels.remove(labels::SLOT);
    }
    metadata["annotations"][labels::TASK] = json!(annotation(run));
    let app = metadata["labels"][labels::APP].as_str().unwrap_or_default();
    let secret = task_secrets::secret_name(app);
    let spec = &mut pod["spec"];
    if let Some(seconds) = run.task.deadline_s {
        spec["activeDeadlineSeconds"] = json!(seconds);
        if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
            annotations.remove(labels::MAX_AGE);
        }
    }
    let spec = &mut pod["spec"];
    for (label, value) in &run.task.node_selector {
        set(spec, &["nodeSelector", label], json!(value));
    }
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
                env.retain(|entry| entry["name"] != "POSSE_SLOT");
                env.insert(0, json!({"name": "POSSE_KEY", "value": &*run.task.key}));
                if let Some(array) = &run.task.array {
                    let index = array.index.to_string();
                    env.insert(1, json!({"name": "POSSE_TASK_INDEX", "value": index}));
                }
            }
        }
    }
    let containers = spec["containers"].as_array_mut();
    let is_main = |container: &&mut Value| container["name"].as_str() == main.as_deref();
    if let Some(container) = containers.and_then(|all| all.iter_mut().find(is_main)) {
        change_container(container, &run.task, &secret);
        task_files::mount(container, &run.task.files);
    }
    task_files::add_volume(spec, &run.task.files, &secret);
    serde_json::to_vec(&pod)
}

/// Sets a field, and makes what it is in. Where a template has something else, the server refuses the pod.
fn set(mut at: &mut Value, path: &[&str], value: Value) {
    for key in path {
        if at.is_null() {
            *at = json!({});
        }
        let Some(map) = at.as_object_mut() else { return };
        at = map.entry(*key).or_insert(Value::Null);
    }
    *at = value;
}

fn change_container(container: &mut Value, task: &Task, secret: &str) {
    let Task { env, secret_env, image, command, args, cpu, memory, resources, .. } = task;
    if let Some(image) = image {
        container["image"] = json!(image);
    }
    for (field, words) in [("command", command), ("args", args)] {
        if let Some(words) = words {
            container[field] = json!(words);
        }
    }
    let own = [("cpu", cpu), ("memory", memory)];
    let own = own.into_iter().filter_map(|(name, amount)| Some((name, amount.as_ref()?)));
    let others = resources.iter().map(|(name, amount)| (name.as_str(), amount));
    for (resource, amount) in own.chain(others) {
        for kind in ["requests", "limits"] {
            set(container, &["resources", kind, resource], json!(amount));
        }
    }
    if let Some(list) = container["env"].as_array_mut() {
        let is_own = |name: &str| env.contains_key(name) || secret_env.contains_key(name);
        list.retain(|entry| !entry["name"].as_str().is_some_and(is_own));
        list.extend(env.iter().map(|(name, value)| json!({"name": name, "value": value})));
        list.extend(secret_env.iter().map(|(name, key)| {
            let from = json!({"secretKeyRef": {"name": secret, "key": &**key}});
            json!({"name": name, "valueFrom": from})
        }));
    }
}
