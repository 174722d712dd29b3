//! Owns where the containers' output lies and how it is read back.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::dev::api::Api;
use crate::dev::kind::{Key, Kind};
use crate::dev::object::{array_at, text_at};
use crate::dev::options::whole_number;
use crate::dev::refused::{Cause, Refused};
use crate::serve::Request;

/// A log's answer is at most so long: its end.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// The folder of one pod's output. The uid tells pods of one name apart.
pub(crate) fn pod_folder(logs: &Path, key: &Key, uid: &str) -> PathBuf {
    logs.join(format!("{}_{}_{uid}", key.namespace, key.name))
}

/// The file of one container's output, standard output and error together.
pub(crate) fn file(folder: &Path, container: &str, restart: u32) -> PathBuf {
    folder.join(format!("{container}.{restart}.log"))
}

/// Answers `GET pods/NAME/log`; none where nothing has run yet.
pub(crate) fn answer(api: &Api, request: &Request, key: &Key) -> Result<Option<Vec<u8>>, Refused> {
    let object = {
        let state = api.lock();
        state.store.get(key).cloned().ok_or_else(|| Refused::not_found(Kind::Pod, &key.name))?
    };
    let tail = whole_number(request.query("tailLines").unwrap_or_default())?;
    if let Some(tail) = tail
        && tail < 0
    {
        let detail = "must be greater than or equal to 0";
        let cause = Cause::invalid_raw("tailLines", &tail, detail);
        return Err(Refused::invalid_kind("PodLogOptions", "", &key.name, &[cause]));
    }
    let pod = object.value();
    let container = container(&pod, &key.name, request.query("container").unwrap_or_default())?;
    if object.node().is_empty() {
        return Ok(None);
    }
    let restarts = ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|list| array_at(&pod, &format!("/status/{list}")).to_vec())
        .find(|status| text_at(status, "/name") == container)
        .and_then(|status| status.get("restartCount").and_then(serde_json::Value::as_u64))
        .and_then(|restarts| u32::try_from(restarts).ok())
        .unwrap_or_default();
    let path = file(&pod_folder(&api.logs, key, &object.uid), &container, restarts);
    let Ok(file) = File::open(path) else {
        return Err(Refused::bad_request(format!(
            "container \"{container}\" in pod \"{}\" is waiting to start: ContainerCreating",
            key.name
        )));
    };
    let read = match tail.and_then(|tail| usize::try_from(tail).ok()) {
        Some(tail) => last_lines(file, tail),
        None => last_bytes(file),
    };
    read.map(Some).map_err(|error| Refused::internal(format!("log of {}: {error}", key.name)))
}

/// The container that is meant: the only one where none is named.
fn container(pod: &serde_json::Value, name: &str, asked: &str) -> Result<String, Refused> {
    let names = |list: &str| {
        array_at(pod, list).iter().map(|container| text_at(container, "/name").to_owned())
    };
    let all: Vec<String> = names("/spec/initContainers").chain(names("/spec/containers")).collect();
    match (asked, all.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", _) => Err(Refused::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
        (asked, all) if all.iter().any(|name| name == asked) => Ok(asked.to_owned()),
        _ => Err(Refused::bad_request(format!("container {asked} is not valid for pod {name}"))),
    }
}

fn last_bytes(mut file: File) -> std::io::Result<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn last_lines(file: File, n_lines: usize) -> std::io::Result<Vec<u8>> {
    let bytes = last_bytes(file)?;
    let mut lines = VecDeque::new();
    let mut reader = BufReader::new(bytes.as_slice());
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(lines.into_iter().flatten().collect());
        }
        lines.push_back(line);
        if lines.len() > n_lines {
            lines.pop_front();
        }
    }
}
