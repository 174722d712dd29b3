//! Owns waiting for a driver in the cluster: prints what is told of it until it is over, or until we
//! are told to leave it alone.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::thread;

use crossbeam_channel::{bounded, select};

use crate::cli::args::{CleanupArgs, ServerArgs};
use crate::cli::exit::{Code, Failure};
use crate::cli::server::Connection;
use crate::cli::{World, cleanup};
use crate::runtime::signals::{Signal, Signals};
use crate::submit::follow::Follower;
use crate::submit::listener::{FollowEvent, Listener};

/// Lines and pieces of a log that may wait to be printed; then the reading waits.
const TOLD_MAX: usize = 1_000;
/// What a command ends with that an interrupt ended: 128 + SIGINT.
pub const DETACHED: Code = Code::Driver(130);

/// Follows a driver to its end, whose code is the answer; an interrupt leaves it running.
///
/// # Errors
/// The server does not let us look at it.
pub fn wait(
    follower: Follower,
    connection: &Connection,
    signals: &Signals,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let app = follower.app.clone();
    let ended: Arc<OnceLock<_>> = Arc::default();
    let slot = Arc::clone(&ended);
    let work = move |say: Listener<'_>| drop(slot.set(follower.follow(say)));
    if !pump(Box::new(work), signals, &mut || true, out)? {
        log::info!(
            "application {app} runs on: `posse logs {app} -f` follows it, `posse stop {app}` ends it"
        );
        return Ok(DETACHED);
    }
    let ending = ended.get().cloned().ok_or_else(gone)?;
    let ending = ending.map_err(|refusal| {
        let what = format!("application {app} runs on, but cannot be looked at");
        connection.failure(&what, &refusal)
    })?;
    let ending = ending.ok_or_else(gone)?;
    let why = match ending.why.as_str() {
        "" => String::new(),
        why => format!(" ({why})"),
    };
    match ending.code {
        0 => log::info!("application {app} has ended well"),
        code => log::error!("application {app} has ended with exit code {code}{why}"),
    }
    Ok(if ending.code == 0 { Code::Clean } else { Code::Driver(ending.code) })
}

/// What a thread does, telling of it.
pub type Work = Box<dyn FnOnce(Listener<'_>) + Send>;

/// Prints what a thread tells until it is done. False where it is left alone before that: each time
/// we are told to end, `leaves` says whether it is.
///
/// # Errors
/// stdout cannot be written, or there is no thread.
pub fn pump(
    work: Work,
    signals: &Signals,
    leaves: &mut dyn FnMut() -> bool,
    out: &mut dyn Write,
) -> Result<bool, Failure> {
    let (sender, told) = bounded(TOLD_MAX);
    let thread = move || work(&|what: FollowEvent| sender.send(what).is_ok());
    thread::Builder::new()
        .name("work".to_owned())
        .spawn(thread)
        .map_err(|error| Failure::new(Code::Failed, format!("threads: {error}")))?;
    loop {
        select! {
            recv(told) -> what => match what {
                Ok(what) => show(what, out)?,
                Err(_) => return Ok(true),
            },
            recv(signals.wake()) -> _ => {
                if signals.take().any(Signal::is_stop) && leaves() {
                    return Ok(false);
                }
            }
        }
    }
}

fn gone() -> Failure {
    Failure::new(Code::Failed, "the thread that followed the driver is gone")
}

fn show(what: FollowEvent, out: &mut dyn Write) -> Result<(), Failure> {
    match what {
        FollowEvent::Line(line) => log::info!("{line}"),
        FollowEvent::Log(bytes) => out
            .write_all(&bytes)
            .and_then(|()| out.flush())
            .map_err(|error| Failure::new(Code::Failed, format!("stdout: {error}")))?,
    }
    Ok(())
}

/// Removes the executors whose driver's pod is over: a driver that was killed took posse with it.
pub fn remove_executors(app: &str, namespace: &str, server: &ServerArgs, world: &World<'_>) {
    let args = CleanupArgs {
        app: Some(app.to_owned()),
        all_apps: false,
        namespace: Some(namespace.to_owned()),
        instance: None,
        stale: None,
        yes: true,
        server: server.clone(),
    };
    let mut said = Vec::new();
    let done = cleanup::cleanup(&args, world, &mut said);
    let said = String::from_utf8_lossy(&said);
    if let Some(line) = said.lines().find(|line| line.starts_with("removed ")) {
        log::info!("executors of ended drivers: {line}");
    }
    if let Err(failure) = done {
        log::warn!("executors of ended drivers may remain: {failure}");
    }
}
