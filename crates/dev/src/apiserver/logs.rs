//! The subresource `pods/log`: finds the container's log file and streams it, to its end or as long
//! as the container runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use serde_json::Value;

use crate::apiserver::api::Api;
use crate::apiserver::options::{flag, whole_number};
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::log_files::{
    FILE_BYTES_MAX, PREFIX_BYTES, file, pod_folder, tail_start, visible_part,
};
use crate::storage::object::{Object, array_at, text_at};
use crate::time;
use posse_serve::{ChunkWriter, Request, Responder};

/// The bytes to read and send at a time.
const CHUNK_BYTES: usize = 256 << 10;
/// How often a stream checks that its client is still connected.
const CLIENT_CHECK_EVERY: Duration = Duration::from_millis(500);

/// A requested log.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    follow: bool,
    timestamps: bool,
    /// In the form of the lines' timestamps.
    since: Option<String>,
    tail: Option<usize>,
    limit: Option<usize>,
}

/// Handles `GET pods/NAME/log`; `None` if the pod is not bound to a node.
pub(crate) fn answer(api: &Api, request: &Request, key: &Key) -> Result<Option<Log>, StatusError> {
    let options = options(api, request)?;
    let object = {
        let state = api.lock();
        state.store.get(key).cloned().ok_or_else(|| StatusError::not_found(Kind::Pod, &key.name))?
    };
    let pod = object.value();
    let container = container(&pod, &key.name, request.query("container").unwrap_or_default())?;
    if object.node().is_empty() {
        return Ok(None);
    }
    let previous = flag(request, "previous");
    let path = log_path(api, &object, &pod, &container, previous)?;
    Ok(Some(Log { path, ..options }))
}

/// Where a log or the events of a watch are sent.
pub(crate) trait LogSink {
    /// Sends whole lines.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// False if the client has left. Does not wait.
    fn is_open(&mut self) -> bool;
}

impl LogSink for ChunkWriter<'_> {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.flush()
    }

    fn is_open(&mut self) -> bool {
        ChunkWriter::is_open(self)
    }
}

fn options(api: &Api, request: &Request) -> Result<Log, StatusError> {
    let number = |name: &str| whole_number(request.query(name).unwrap_or_default());
    let since = match (request.query("sinceTime").unwrap_or_default(), number("sinceSeconds")?) {
        ("", None) => None,
        ("", Some(seconds)) => {
            let now = time::text(api.clock.wall(api.clock.now()));
            time::precise_of(&time::shifted(&now, seconds.saturating_neg()))
        }
        (at, _) => Some(time::precise_of(at).ok_or_else(|| {
            StatusError::bad_request(format!("sinceTime: {at:?} is no time as in RFC 3339"))
        })?),
    };
    let size = |name: &str| Ok(number(name)?.and_then(|number| usize::try_from(number).ok()));
    Ok(Log {
        path: PathBuf::new(),
        follow: flag(request, "follow"),
        timestamps: flag(request, "timestamps"),
        since,
        tail: size("tailLines")?,
        limit: size("limitBytes")?,
    })
}

/// The log file of the container. The error says, in the kubelet's words, which state the container has
/// instead.
fn log_path(
    api: &Api,
    object: &Object,
    pod: &Value,
    container: &str,
    previous: bool,
) -> Result<PathBuf, StatusError> {
    let name = &object.key.name;
    let refused = |what: &str| {
        let message = format!("container \"{container}\" in pod \"{name}\" is {what}");
        StatusError::bad_request(message)
    };
    let status = ["containerStatuses", "initContainerStatuses"]
        .into_iter()
        .flat_map(|list| array_at(pod, &format!("/status/{list}")))
        .find(|status| text_at(status, "/name") == container)
        .ok_or_else(|| refused("not available"))?;
    let last = text_at(status, "/lastState/terminated/containerID");
    let state = |name: &str| status.pointer(&format!("/state/{name}"));
    let id = if previous {
        Some(last).filter(|id| !id.is_empty()).ok_or_else(|| {
            StatusError::bad_request(format!(
                "previous terminated container \"{container}\" in pod \"{name}\" not found"
            ))
        })?
    } else if state("running").is_some() {
        text_at(status, "/containerID")
    } else if state("terminated").is_some() {
        let id = text_at(status, "/state/terminated/containerID");
        if id.is_empty() { last } else { id }
    } else if !last.is_empty() {
        last
    } else {
        let why = match text_at(status, "/state/waiting/reason") {
            "ErrImagePull" => "image can't be pulled",
            "ImagePullBackOff" => "trying and failing to pull image",
            reason => reason,
        };
        return Err(refused(&format!("waiting to start: {why}")));
    };
    // The container id ends with the restart count.
    let restart = id.rsplit('/').next().and_then(|restart| restart.parse().ok());
    let restart = restart.ok_or_else(|| refused("terminated"))?;
    Ok(file(&pod_folder(&api.logs, &object.key, &object.uid), container, restart))
}

/// The container that the request names, or the only one of the pod.
pub(super) fn container(pod: &Value, name: &str, asked: &str) -> Result<String, StatusError> {
    let names = |list: &str| -> Vec<String> {
        let names = array_at(pod, list).iter();
        names.map(|container| text_at(container, "/name").to_owned()).collect()
    };
    let (init, main) = (names("/spec/initContainers"), names("/spec/containers"));
    match (asked, main.as_slice()) {
        ("", [only]) => Ok(only.clone()),
        ("", _) => {
            let all = [init, main].concat().join(" ");
            Err(StatusError::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{all}]"
            )))
        }
        (asked, main) if main.iter().chain(&init).any(|name| name == asked) => Ok(asked.to_owned()),
        _ => {
            Err(StatusError::bad_request(format!("container {asked} is not valid for pod {name}")))
        }
    }
}

/// A position in a log file.
struct Reader<'a> {
    log: &'a Log,
    /// `None` if the container wrote nothing.
    file: Option<File>,
    position: u64,
    /// The bytes that may still be sent (`limitBytes`).
    left: usize,
}

impl Log {
    /// Answers with the log; with `follow` also with what is written later.
    pub(crate) fn serve(&self, api: &Api, responder: Responder<'_>) -> io::Result<()> {
        let mut writer = responder.stream(200, &[("content-type", "text/plain")])?;
        match self.copy(api, &mut writer)? {
            true => writer.finish(),
            false => Ok(()),
        }
    }

    /// Sends the log to its end; false if the client has left before.
    fn copy(&self, api: &Api, sink: &mut dyn LogSink) -> io::Result<bool> {
        // Subscribed before the file is read, so that no write is missed.
        let mut tokens = match self.follow {
            true => api.followers.follow(&self.path),
            false => None,
        };
        let mut reader = Reader::open(self)?;
        loop {
            while let Some(bytes) = reader.next()? {
                sink.send(&bytes)?;
            }
            let Some(waiting) = &tokens else { return Ok(true) };
            if reader.left == 0 {
                return Ok(true);
            }
            match waiting.recv_timeout(CLIENT_CHECK_EVERY) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) if sink.is_open() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => tokens = None,
            }
        }
    }
}

impl<'a> Reader<'a> {
    fn open(log: &'a Log) -> io::Result<Self> {
        let file = match File::open(&log.path) {
            Ok(file) => Some(file),
            // A simulated container, or one that failed to start, has no log file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut reader = Self { log, file, position: 0, left: log.limit.unwrap_or(usize::MAX) };
        if let (Some(n_lines), Some(file)) = (log.tail, &mut reader.file) {
            let mut bytes = Vec::new();
            file.take(2 * FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            reader.position = u64::try_from(tail_start(&bytes, n_lines)).unwrap_or_default();
        }
        Ok(reader)
    }

    /// The next part of the log; `None` if there is nothing new.
    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let Some(file) = &mut self.file else { return Ok(None) };
            if self.left == 0 {
                return Ok(None);
            }
            let mut bytes = vec![0; CHUNK_BYTES];
            file.seek(SeekFrom::Start(self.position))?;
            let n = file.read(&mut bytes)?;
            // Lines are written whole, but a chunk may end within a line.
            let end = bytes.iter().take(n).rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if end == 0 {
                if !self.is_rotated()? {
                    return Ok(None);
                }
                self.file = Some(File::open(&self.log.path)?);
                self.position = 0;
                continue;
            }
            self.position += u64::try_from(end).unwrap_or_default();
            let bytes = self.select_lines(bytes.get(..end).unwrap_or_default());
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
    }

    /// True if the file was rotated.
    fn is_rotated(&self) -> io::Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        match std::fs::metadata(&self.log.path) {
            Ok(there) => Ok(there.ino() != file.metadata()?.ino()),
            Err(_) => Ok(false),
        }
    }

    fn select_lines(&mut self, lines: &[u8]) -> Vec<u8> {
        let mut selected = Vec::new();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let moment = line.get(..PREFIX_BYTES - 3).unwrap_or_default();
            if self.log.since.as_ref().is_some_and(|since| moment < since.as_bytes()) {
                continue;
            }
            let Some(text) = visible_part(line, self.log.timestamps) else { continue };
            // With the timestamp, but without the `F` or `P` after it.
            let (head, text) = match self.log.timestamps {
                true => text.split_at_checked(PREFIX_BYTES - 2).unwrap_or((text, &[])),
                false => (&[][..], text),
            };
            let text = if head.is_empty() { text } else { text.get(2..).unwrap_or_default() };
            let line = [head, text].concat();
            let cut = line.get(..self.left.min(line.len())).unwrap_or_default();
            selected.extend_from_slice(cut);
            self.left -= cut.len();
        }
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::log_files::{Followers, LAST_BYTES, LogFile, tail_message};

    fn all(reader: &mut Reader<'_>) -> String {
        let mut text = Vec::new();
        while let Some(bytes) = reader.next().expect("the file is read") {
            text.extend_from_slice(&bytes);
        }
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn rotated_logs_are_followed() {
        let folder = std::env::temp_dir().join(format!("posse-dev-log-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = file(&folder, "c", 0);
        let mut written = LogFile::create(&path, &Followers::default()).expect("a file");
        let mut n_lines = 0;
        let mut write = |megabytes: usize| {
            for _ in 0..megabytes {
                let mut lines = Vec::new();
                let moment = time::precise(std::time::UNIX_EPOCH);
                LogFile::put_line(&mut lines, &moment, true, format!("{n_lines}").as_bytes());
                for _ in 0..64 {
                    LogFile::put_line(&mut lines, &moment, false, &[b'x'; 16 << 10]);
                }
                written.append(&lines).expect("it is written");
                n_lines += 1;
            }
        };
        write(9);
        let log = Log {
            path: path.clone(),
            follow: true,
            timestamps: false,
            since: None,
            tail: None,
            limit: None,
        };
        let mut reader = Reader { log: &log, file: None, position: 0, left: usize::MAX };
        reader.file = Some(File::open(&path).expect("it is there"));
        let numbers = |text: &str| -> Vec<usize> {
            let lines = text.split(['x', '\n']).filter(|part| !part.is_empty());
            lines.map(|number| number.parse().expect("a number")).collect()
        };
        assert_eq!(numbers(&all(&mut reader)), (0..9).collect::<Vec<_>>());
        write(5);
        assert_eq!(numbers(&all(&mut reader)), (9..14).collect::<Vec<_>>());
        assert_eq!(tail_message(&path), "x".repeat(LAST_BYTES));
        // A new reader reads only the new file.
        let mut late = Reader::open(&log).expect("it is there");
        assert_eq!(numbers(&all(&mut late)).first(), Some(&10));
        std::fs::remove_dir_all(&folder).expect("it is there");
    }
}
