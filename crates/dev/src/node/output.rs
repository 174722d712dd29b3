//! Collects the containers' output: one thread reads all their pipes and writes each line with its
//! timestamp into log files of bounded size.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::epoll;

use crate::apiserver::api::Api;
use crate::storage::log_files::LogFile;
use crate::time;
use posse_base::sync::lock;

/// How much is read from one container before the next one gets its turn.
const READ_BYTES_MAX: usize = 64 << 10;
/// A longer line is split, as container runtimes do.
const LINE_BYTES_MAX: usize = 16 << 10;
/// epoll events handled per wait.
const EVENTS_MAX: usize = 64;
/// The epoll data of the pipe that stops the thread.
const STOP: u64 = 0;
const STACK_BYTES: usize = 256 << 10;

/// The pipes of all running containers.
#[derive(Debug)]
pub(super) struct Outputs {
    shared: Arc<Shared>,
    /// Dropping it closes the pipe, which stops the thread. `None` until the first container
    /// starts.
    stop: Option<PipeWriter>,
}

#[derive(Debug)]
struct Shared {
    api: Arc<Api>,
    epoll: OwnedFd,
    streams: Mutex<BTreeMap<u64, Arc<Mutex<Stream>>>>,
}

/// One container's pipe and its log file.
#[derive(Debug)]
struct Stream {
    pipe: PipeReader,
    file: LogFile,
    /// The start of a line whose end has not arrived yet.
    line: Vec<u8>,
}

impl Outputs {
    pub(super) fn new(api: Arc<Api>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let shared = Shared { api, epoll, streams: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), stop: None })
    }

    /// Returns the pipe for a container's standard output and error. `number` must not be open
    /// already and must not be 0.
    pub(super) fn open(&mut self, number: u64, path: &Path) -> io::Result<PipeWriter> {
        self.start()?;
        let (pipe, writer) = io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let file = LogFile::create(path, &self.shared.api.followers)?;
        let data = epoll::EventData::new_u64(number);
        let mut streams = lock(&self.shared.streams);
        epoll::add(&self.shared.epoll, &pipe, data, epoll::EventFlags::IN)?;
        let stream = Stream { pipe, file, line: Vec::new() };
        streams.insert(number, Arc::new(Mutex::new(stream)));
        Ok(writer)
    }

    /// Called when the container has ended. All its output is in the log file when this returns.
    pub(super) fn close(&self, number: u64) {
        let Some(stream) = lock(&self.shared.streams).remove(&number) else { return };
        let mut stream = lock(&stream);
        // The output thread may still hold this stream. Then dropping it here does not close the
        // pipe, which would remove it from epoll.
        let _ = epoll::delete(&self.shared.epoll, &stream.pipe);
        // A process that left the container's group may write for ever, so the reads are bounded.
        // 32 of them read more than a pipe holds.
        for _ in 0..32 {
            if stream.read(&self.shared.api) != ReadOutcome::More {
                break;
            }
        }
        stream.flush(&self.shared.api);
    }

    fn start(&mut self) -> io::Result<()> {
        if self.stop.is_some() {
            return Ok(());
        }
        let (reader, writer) = io::pipe()?;
        let data = epoll::EventData::new_u64(STOP);
        epoll::add(&self.shared.epoll, &reader, data, epoll::EventFlags::IN)?;
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name("dev-output".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(move || run(&shared, &reader))?;
        self.stop = Some(writer);
        Ok(())
    }
}

/// Reads until the other end of `_stop` is closed.
fn run(shared: &Shared, _stop: &PipeReader) {
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&shared.epoll, spare, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log::error!(
                    "the containers' output is lost from now on: waiting for it failed: {error}"
                );
                return;
            }
        }
        for event in events.drain(..) {
            let number = event.data.u64();
            if number == STOP {
                return;
            }
            let Some(stream) = lock(&shared.streams).get(&number).cloned() else { continue };
            let mut stream = lock(&stream);
            if stream.read(&shared.api) == ReadOutcome::Closed {
                // The container closed its output but may still run.
                let _ = epoll::delete(&shared.epoll, &stream.pipe);
                stream.flush(&shared.api);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadOutcome {
    /// All writers have closed the pipe.
    Closed,
    /// There may be more to read.
    More,
    /// The pipe is empty.
    Empty,
}

impl Stream {
    /// Reads at most `READ_BYTES_MAX` and writes the lines to the log file.
    fn read(&mut self, api: &Api) -> ReadOutcome {
        let mut bytes = vec![0; READ_BYTES_MAX];
        let n = match self.pipe.read(&mut bytes) {
            Ok(0) => return ReadOutcome::Closed,
            Ok(n) => n,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return ReadOutcome::Empty;
            }
            Err(_) => return ReadOutcome::Closed,
        };
        let timestamp = time::precise(api.clock.wall(api.clock.now()));
        let mut lines = Vec::with_capacity(n + 64);
        let mut rest = bytes.get(..n).unwrap_or_default();
        while !rest.is_empty() {
            let room = LINE_BYTES_MAX - self.line.len();
            let end = rest.iter().take(room).position(|byte| *byte == b'\n');
            let (part, is_whole) = match end {
                Some(at) => (rest.get(..at).unwrap_or_default(), true),
                None => (rest.get(..room.min(rest.len())).unwrap_or_default(), false),
            };
            self.line.extend_from_slice(part);
            rest = rest.get(part.len() + usize::from(is_whole)..).unwrap_or_default();
            if is_whole || self.line.len() >= LINE_BYTES_MAX {
                LogFile::put_line(&mut lines, &timestamp, is_whole, &self.line);
                self.line.clear();
            }
        }
        self.write(&lines);
        ReadOutcome::More
    }

    /// Writes the last line, which has no newline.
    fn flush(&mut self, api: &Api) {
        if self.line.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        let timestamp = time::precise(api.clock.wall(api.clock.now()));
        LogFile::put_line(&mut lines, &timestamp, false, &self.line);
        self.line.clear();
        self.write(&lines);
    }

    fn write(&mut self, lines: &[u8]) {
        if let Err(error) = self.file.append(lines) {
            log::warn!("{} bytes of a container's output are lost: {error}", lines.len());
        }
    }
}
