//! The files that hold the output of containers: their paths, the form of their lines, and
//! rotation.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::schema::kind::Key;
use posse_base::sync::lock;

/// A file that reaches this size is rotated. Like a kubelet, the server reads only the new file
/// from then on.
pub(crate) const FILE_BYTES_MAX: u64 = 10 << 20;
/// The length of the prefix of each line: the timestamp, `F` (a full line) or `P` (a part of a
/// line), and spaces.
pub(crate) const PREFIX_BYTES: usize = 33;
/// The end of the log that becomes the termination message of a failed container that wrote none.
const LAST_LINES: usize = 80;
pub(crate) const LAST_BYTES: usize = 2048;

/// The folder of one pod's logs. The uid tells pods of the same name apart.
pub(crate) fn pod_folder(logs: &Path, key: &Key, uid: &str) -> PathBuf {
    logs.join(format!("{}_{}_{uid}", key.namespace, key.name))
}

/// The file of one container's output, stdout and stderr together.
pub(crate) fn file(folder: &Path, container: &str, restart: u32) -> PathBuf {
    folder.join(format!("{container}.{restart}.log"))
}

/// The logs that are being written, with the channels of those who follow them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers {
    open: Arc<Mutex<BTreeMap<PathBuf, Vec<Sender<()>>>>>,
}

impl Followers {
    /// A channel that gets a token for each write and is closed with the log; `None` if the log is
    /// closed already.
    pub(crate) fn follow(&self, path: &Path) -> Option<Receiver<()>> {
        let (sender, receiver) = bounded(1);
        lock(&self.open).get_mut(path)?.push(sender);
        Some(receiver)
    }

    fn wake(&self, path: &Path) {
        if let Some(waiting) = lock(&self.open).get_mut(path) {
            let there = |sender: &Sender<()>| {
                !matches!(
                    sender.try_send(()),
                    Err(crossbeam_channel::TrySendError::Disconnected(()))
                )
            };
            waiting.retain(there);
        }
    }
}

/// A log that is being written. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    followers: Followers,
}

impl LogFile {
    pub(crate) fn create(path: &Path, followers: &Followers) -> io::Result<Self> {
        let file = File::create(path)?;
        lock(&followers.open).insert(path.to_owned(), Vec::new());
        Ok(Self { path: path.to_owned(), file, n_bytes: 0, followers: followers.clone() })
    }

    /// Appends a line, or a part of a line, to `out` in the file's form.
    pub(crate) fn put_line(out: &mut Vec<u8>, moment: &str, whole: bool, text: &[u8]) {
        out.extend_from_slice(moment.as_bytes());
        out.extend_from_slice(if whole { b" F " } else { b" P " });
        out.extend_from_slice(text);
        out.push(b'\n');
    }

    /// Appends whole lines and rotates the file if it is too long.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.n_bytes >= FILE_BYTES_MAX {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            self.file = File::create(&self.path)?;
            self.n_bytes = 0;
        }
        self.n_bytes += u64::try_from(lines.len()).unwrap_or(u64::MAX);
        self.file.write_all(lines)?;
        self.followers.wake(&self.path);
        Ok(())
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        lock(&self.followers.open).remove(&self.path);
    }
}

/// The end of a container's output.
pub(crate) fn tail_message(path: &Path) -> String {
    const TAIL_BYTES: u64 = 64 << 10;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        file.take(TAIL_BYTES).read_to_end(&mut bytes)
    });
    if read.is_err() {
        return String::new();
    }
    let start = tail_start(&bytes, LAST_LINES);
    let mut text = Vec::new();
    for line in bytes.get(start..).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
        text.extend_from_slice(visible_part(line, false).unwrap_or_default());
    }
    let cut = text.len().saturating_sub(LAST_BYTES);
    String::from_utf8_lossy(text.get(cut..).unwrap_or_default()).into_owned()
}

/// The offset of the last `n_lines` lines.
pub(crate) fn tail_start(bytes: &[u8], n_lines: usize) -> usize {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    match n_lines {
        0 => bytes.len(),
        n => {
            let breaks = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
            breaks.map(|(at, _)| at + 1).nth(n - 1).unwrap_or_default()
        }
    }
}

/// The part of a file's line that clients see. A partial line has no line end.
pub(crate) fn visible_part(line: &[u8], timestamps: bool) -> Option<&[u8]> {
    let whole = line.get(PREFIX_BYTES - 2) == Some(&b'F');
    let text = match whole {
        true => line,
        false => line.strip_suffix(b"\n").unwrap_or(line),
    };
    text.get(if timestamps { 0 } else { PREFIX_BYTES }..)
}
