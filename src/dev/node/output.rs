//! Owns the way of the containers' output: one thread reads all their pipes and writes each line,
//! with its moment, into files of bounded length. Does not read them back.

use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::epoll;

use crate::dev::apiserver::api::Api;
use crate::dev::storage::log_files::LogFile;
use crate::dev::time;

/// Read from one container before the others get their turn.
const TURN_BYTES_MAX: usize = 64 << 10;
/// A longer line is written in parts, as container runtimes do.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Containers looked at under one wait.
const EVENTS_MAX: usize = 64;
/// The number of the pipe that tells the thread to end.
const STOP: u64 = 0;
const STACK_BYTES: usize = 256 << 10;

/// The pipes of all running containers.
#[derive(Debug)]
pub(super) struct Outputs {
    shared: Arc<Shared>,
    /// Closed with this value, which ends the thread; none as long as nothing runs.
    stop: Option<PipeWriter>,
}

#[derive(Debug)]
struct Shared {
    api: Arc<Api>,
    epoll: OwnedFd,
    streams: Mutex<BTreeMap<u64, Arc<Mutex<Stream>>>>,
}

/// One container's pipe and where it leads.
#[derive(Debug)]
struct Stream {
    pipe: PipeReader,
    file: LogFile,
    /// The begin of a line whose end has not come yet.
    line: Vec<u8>,
}

impl Outputs {
    pub(super) fn new(api: Arc<Api>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let shared = Shared { api, epoll, streams: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), stop: None })
    }

    /// What a container's standard output and error are to be. `number` is none that is open, and
    /// not 0.
    pub(super) fn open(&mut self, number: u64, path: &Path) -> io::Result<PipeWriter> {
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
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

    /// The container has ended: what it wrote is in its file when this returns.
    pub(super) fn close(&self, number: u64) {
        let Some(stream) = lock(&self.shared.streams).remove(&number) else { return };
        let mut stream = lock(&stream);
        // It is ours alone now, and closing it will not tell epoll while somebody else holds it.
        let _ = epoll::delete(&self.shared.epoll, &stream.pipe);
        // Who left the container's group may write on for ever; a pipe holds less than this.
        for _ in 0..32 {
            if stream.take(&self.shared.api) != Taken::More {
                break;
            }
        }
        stream.end_line(&self.shared.api);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is a bug that the panic itself reports.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until the other end of `_stop` is closed.
fn run(shared: &Shared, _stop: &PipeReader) {
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&shared.epoll, spare, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log::error!("the containers' output is not read any more: {error}");
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
            if stream.take(&shared.api) == Taken::End {
                // Nobody writes any more; the container itself may run on.
                let _ = epoll::delete(&shared.epoll, &stream.pipe);
                stream.end_line(&shared.api);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    End,
    More,
    Nothing,
}

impl Stream {
    /// Takes what is there, within bounds.
    fn take(&mut self, api: &Api) -> Taken {
        let mut bytes = vec![0; TURN_BYTES_MAX];
        let n = match self.pipe.read(&mut bytes) {
            Ok(0) => return Taken::End,
            Ok(n) => n,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Taken::Nothing;
            }
            Err(_) => return Taken::End,
        };
        let moment = time::precise(api.clock.wall(api.clock.now()));
        let mut lines = Vec::with_capacity(n + 64);
        let mut rest = bytes.get(..n).unwrap_or_default();
        while !rest.is_empty() {
            let room = LINE_BYTES_MAX - self.line.len();
            let end = rest.iter().take(room).position(|byte| *byte == b'\n');
            let (part, whole) = match end {
                Some(at) => (rest.get(..at).unwrap_or_default(), true),
                None => (rest.get(..room.min(rest.len())).unwrap_or_default(), false),
            };
            self.line.extend_from_slice(part);
            rest = rest.get(part.len() + usize::from(whole)..).unwrap_or_default();
            if whole || self.line.len() >= LINE_BYTES_MAX {
                LogFile::put_line(&mut lines, &moment, whole, &self.line);
                self.line.clear();
            }
        }
        self.write(&lines);
        Taken::More
    }

    fn end_line(&mut self, api: &Api) {
        if self.line.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        let moment = time::precise(api.clock.wall(api.clock.now()));
        LogFile::put_line(&mut lines, &moment, false, &self.line);
        self.line.clear();
        self.write(&lines);
    }

    fn write(&mut self, lines: &[u8]) {
        if let Err(error) = self.file.append(lines) {
            log::warn!("a container's output is lost: {error}");
        }
    }
}
