//! Follows a driver in the cluster: prints its state and log until it ends, or until an interrupt.

use std::io::Write;
use std::thread;

use crossbeam_channel::{bounded, select};

use crate::connection::Connection;
use crate::exit::{Code, Failure};
use posse_run::signals::{Signal, Signals};
use posse_submit::follow::Follower;
use posse_submit::listener::{FollowEvent, Listener};

/// Lines and pieces of the log that may wait for printing; if the queue is full, reading waits.
const REPORTS_MAX: usize = 1_000;
/// The exit code after an interrupt.
pub const DETACHED: Code = Code::Signal(Signal::Int);

/// Follows a driver to its end and returns its exit code. An interrupt leaves the driver running.
///
/// # Errors
/// The API server does not permit reading the driver.
pub fn wait(
    follower: Follower,
    connection: &Connection,
    signals: &Signals,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let app = follower.app.clone();
    let hint =
        if follower.logs { String::new() } else { format!("; `posse logs {app}` prints its log") };
    let work = move |say: Listener<'_>| follower.follow(say);
    let Some(ending) = pump(work, signals, &mut || true, out)? else { return Ok(detach(&app)) };
    let ending = ending.map_err(|refusal| {
        let what = format!("application {app} keeps running, but cannot be read");
        connection.failure(&what, &refusal)
    })?;
    let ending = ending.ok_or_else(no_result)?;
    let why = match ending.why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    match ending.code {
        0 => log::info!("application {app} succeeded"),
        code => log::error!("application {app} failed with exit code {code}{why}{hint}"),
    }
    Ok(if ending.code == 0 { Code::Clean } else { Code::Driver(ending.code) })
}

/// The exit code of a command that leaves the driver running.
pub fn detach(app: &str) -> Code {
    log::info!(
        "application {app} keeps running: `posse logs {app} -f` follows it, `posse stop {app}` ends it"
    );
    DETACHED
}

/// Runs `work` on a thread, and prints what it reports. On each interrupt, `detaches` decides whether to
/// stop waiting. None: the thread has not finished.
pub fn pump<T: Send + 'static>(
    work: impl FnOnce(Listener<'_>) -> T + Send + 'static,
    signals: &Signals,
    detaches: &mut dyn FnMut() -> bool,
    out: &mut dyn Write,
) -> Result<Option<T>, Failure> {
    let (sender, reports) = bounded(REPORTS_MAX);
    let thread = move || work(&|what: FollowEvent| sender.send(what).is_ok());
    let thread = thread::Builder::new()
        .name("work".to_owned())
        .spawn(thread)
        .map_err(|error| Failure::new(Code::Failed, format!("threads: {error}")))?;
    loop {
        select! {
            recv(reports) -> what => match what {
                Ok(what) => show(what, out)?,
                Err(_) => return thread.join().map(Some).map_err(|_| no_result()),
            },
            recv(signals.wake()) -> _ => {
                if signals.take().any(Signal::is_stop) && detaches() {
                    return Ok(None);
                }
            }
        }
    }
}

fn no_result() -> Failure {
    Failure::new(Code::Failed, "the thread that followed the driver has failed")
}

fn show(what: FollowEvent, out: &mut dyn Write) -> Result<(), Failure> {
    match what {
        FollowEvent::Line(line) => log::info!("{line}"),
        FollowEvent::Log(bytes) => {
            out.write_all(&bytes).and_then(|()| out.flush()).map_err(Failure::output)?;
        }
    }
    Ok(())
}
