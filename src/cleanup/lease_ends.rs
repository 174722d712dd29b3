//! The ends of runs, told by their Leases: a run releases its Lease when its executors are gone, and Kubernetes deletes
//! that of a driver whose pod is gone.

use std::io::{BufRead as _, Read as _};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::exit::{Code, Failure};
use posse_core::model::refusal::Refusal;
use posse_kube::api::leases::Leases;
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::lease::parse_end;

/// How long a watch lasts, in seconds.
const WATCH_S: u32 = 300;
/// The time until the next watch.
const PAUSE: Duration = Duration::from_secs(1);
/// The same after a refusal, such as a missing permission.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// The longest line of a watch that is read, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How many ends wait for the reader. It looks at all folders anyway, so that it misses none of those that it is not told.
const ENDS_MAX: usize = 1_000;

/// The runs whose Leases end, in any namespace. What ends between two watches is not told. The thread ends with
/// the process, or when nobody reads any more.
///
/// # Errors
/// There is no thread for it.
pub(super) fn watch_ends(leases: &Leases) -> Result<Receiver<Selection>, Failure> {
    let (sender, ends) = bounded(ENDS_MAX);
    let leases = leases.clone();
    let work = move || {
        let mut is_refused = false;
        loop {
            match follow(&leases, &sender) {
                Ok(Next::Watch) => is_refused = false,
                Ok(Next::End) => return,
                Err(refusal) => {
                    // Once, because folders are removed without it too, only later.
                    if !is_refused {
                        log::warn!("no watch of the leases tells when a run ends: {refusal}");
                    }
                    is_refused = true;
                }
            }
            thread::park_timeout(if is_refused { REFUSED_PAUSE } else { PAUSE });
        }
    };
    let thread = thread::Builder::new().name("lease-ends".to_owned()).spawn(work);
    thread.map(|_| ends).map_err(|error| Failure::new(Code::Failed, format!("a thread: {error}")))
}

enum Next {
    Watch,
    End,
}

/// Reads one watch to its end.
fn follow(leases: &Leases, ends: &Sender<Selection>) -> Result<Next, Refusal> {
    let mut stream = leases.watch_everywhere(WATCH_S)?;
    let reader = stream.reader();
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line that is cut has no end, and the next watch begins with what is there.
        let n = (&mut *reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).unwrap_or(0);
        if n == 0 || line.last() != Some(&b'\n') {
            return Ok(Next::Watch);
        }
        if let Some(run) = parse_end(&line)
            && let Err(TrySendError::Disconnected(_)) = ends.try_send(run)
        {
            return Ok(Next::End);
        }
    }
}
