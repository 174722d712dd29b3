//! Ends a blocked read when another file has bytes, so that one thread serves a WebSocket in both directions.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{self, retry_on_intr};

/// A file whose bytes are for the peer. While it is armed, a read of the connection ends early when the file
/// has bytes and the peer takes some: a write that blocks would stop reading, and two sides that
/// both wait for the other's reads wait for ever.
#[derive(Debug)]
pub(super) struct Interrupt {
    input: OwnedFd,
    is_armed: AtomicBool,
    /// The connection asks here. One that a SOCKS proxy makes does not.
    is_attached: AtomicBool,
    /// The last read ended because of the input. Then it is the peer's turn.
    has_fired: AtomicBool,
    /// At the last read the peer took no bytes.
    is_held_up: AtomicBool,
}

impl Interrupt {
    pub(super) fn new(input: OwnedFd) -> Self {
        Self {
            input,
            is_armed: AtomicBool::new(false),
            is_attached: AtomicBool::new(false),
            has_fired: AtomicBool::new(false),
            is_held_up: AtomicBool::new(false),
        }
    }

    pub(super) fn arm(&self, is_armed: bool) {
        self.is_armed.store(is_armed, Relaxed);
    }

    pub(super) fn attach(&self) {
        self.is_attached.store(true, Relaxed);
    }

    /// True once after a read that ended early; without an attached connection, if there is input.
    pub(super) fn take(&self) -> bool {
        let has_fired = self.has_fired.load(Relaxed);
        let is_on = self.is_armed.load(Relaxed);
        is_on && (has_fired || !self.is_attached.load(Relaxed) && self.has_input())
    }

    fn has_input(&self) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
        wait(&mut fds, Some(Duration::ZERO)).is_ok() && !fds[0].revents().is_empty()
    }

    pub(super) fn is_attached(&self) -> bool {
        self.is_attached.load(Relaxed)
    }

    pub(super) fn is_held_up(&self) -> bool {
        self.is_held_up.load(Relaxed)
    }

    /// Reads at most as much as `buffer` takes; 0 at the end of the input, or if it cannot be read.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        match io::read(&self.input, buffer) {
            Ok(n) => Some(n),
            Err(io::Errno::AGAIN | io::Errno::INTR) => None,
            // A terminal that was closed gives EIO.
            Err(_) => Some(0),
        }
    }

    /// Waits until the connection can be read (true), or until the input has its turn or the time is over.
    pub(super) fn wait(&self, stream: &TcpStream, limit: Option<Duration>) -> io::Result<bool> {
        let had_its_turn = self.has_fired.swap(false, Relaxed);
        self.is_held_up.store(false, Relaxed);
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let left = || deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::new(stream, PollFlags::IN), PollFd::new(&self.input, PollFlags::IN)];
        let n_watched = if self.is_armed.load(Relaxed) { 2 } else { 1 };
        wait(&mut fds[..n_watched], left())?;
        let (is_readable, has_input) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if is_readable && (!has_input || had_its_turn) {
            return Ok(true);
        }
        let mut fds = [PollFd::new(stream, PollFlags::IN | PollFlags::OUT)];
        wait(&mut fds, if has_input { left() } else { Some(Duration::ZERO) })?;
        if !has_input {
            self.is_held_up.store(!fds[0].revents().contains(PollFlags::OUT), Relaxed);
            return Ok(fds[0].revents().contains(PollFlags::IN));
        }
        let ready = fds[0].revents();
        let is_writable = ready.contains(PollFlags::OUT);
        self.has_fired.store(is_writable, Relaxed);
        self.is_held_up.store(!is_writable, Relaxed);
        Ok(!is_writable && !ready.is_empty())
    }
}

fn wait(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    retry_on_intr(|| poll(fds, limit.as_ref())).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _, pipe};
    use std::net::TcpListener;

    use super::*;

    const SHORT: Option<Duration> = Some(Duration::from_millis(20));

    #[test]
    fn input_and_the_peer_have_their_turns() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        let (read, mut write) = pipe().unwrap();
        let interrupt = Interrupt::new(read.into());
        interrupt.attach();
        write.write_all(b"in").unwrap();
        assert!(!interrupt.wait(&stream, SHORT).unwrap() && !interrupt.take(), "not armed");
        interrupt.arm(true);
        assert!(!interrupt.wait(&stream, None).unwrap() && interrupt.take(), "input");
        peer.write_all(b"out").unwrap();
        assert!(interrupt.wait(&stream, None).unwrap() && !interrupt.take(), "the peer's turn");
        assert!(!interrupt.wait(&stream, None).unwrap() && interrupt.take(), "input again");
        let mut buffer = [0; 8];
        assert_eq!(interrupt.read(&mut buffer), Some(2));
        (&stream).read_exact(&mut buffer[..3]).unwrap();
        assert!(!interrupt.wait(&stream, SHORT).unwrap() && !interrupt.take(), "nothing");
    }

    #[test]
    fn input_waits_for_a_peer_that_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut peer = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        while (&stream).write(&[0; 1 << 16]).is_ok() {}
        let (read, mut write) = pipe().unwrap();
        write.write_all(b"in").unwrap();
        let interrupt = Interrupt::new(read.into());
        interrupt.attach();
        interrupt.arm(true);
        assert!(!interrupt.wait(&stream, SHORT).unwrap() && !interrupt.take(), "it takes nothing");
        assert!(interrupt.is_held_up());
        // As at the end of the input.
        interrupt.arm(false);
        assert!(!interrupt.wait(&stream, SHORT).unwrap() && interrupt.is_held_up());
        interrupt.arm(true);
        peer.write_all(b"out").unwrap();
        assert!(interrupt.wait(&stream, None).unwrap() && !interrupt.take(), "it is read");
    }
}
