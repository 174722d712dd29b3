//! `posse status --watch`: the status on the whole terminal, drawn again when it changes.

use std::time::{Duration, Instant};

use crossbeam_channel::{select, tick};
use jiff::Timestamp;
use log::LevelFilter;

use crate::exit::{Code, Failure};
use crate::namespace::start_signals;
use crate::status::feed::{Feed, News};
use crate::status::screen::Screen;
use crate::status::view::View;
use crate::world::World;
use posse_control::client::Client;
use posse_run::signals::Signal;

/// At most four drawings and four statuses a second. The window's size is read as often.
const TICK: Duration = Duration::from_millis(250);

/// A status is asked for at least this often.
const STATUS_AGE_MAX: Duration = Duration::from_secs(2);

/// The keys that leave: q, Q, Ctrl-C, Ctrl-D.
const LEAVING_KEYS: [u8; 4] = [b'q', b'Q', 3, 4];

/// Shows the run until a key or a signal, or until the run ends.
///
/// # Errors
/// stdout is not a terminal, or the system refuses threads or signals.
pub(super) fn watch(run: Client, world: &World<'_>) -> Result<Code, Failure> {
    if !Screen::is_possible((world.env)("TERM").as_deref()) {
        return Err(Failure::usage(
            "--watch draws on a terminal, and stdout is none that it can draw on; `posse events \
             --follow` prints what happens line by line, `posse status -o json` prints the status once",
        ));
    }
    // The handlers come first: a signal must never leave the terminal as it is.
    let signals = start_signals()?;
    // Log lines would be drawn over the screen.
    let level = log::max_level();
    log::set_max_level(LevelFilter::Off);
    let failed = |error: std::io::Error| Failure::new(Code::Failed, format!("terminal: {error}"));
    let mut screen = Screen::open().map_err(failed)?;
    let result = Feed::start(run, screen.has_keys()).and_then(|feed| {
        let mut view = View::default();
        let ticks = tick(TICK);
        let mut is_stale = true;
        let mut asked_at: Option<Instant> = None;
        let mut drawn = Vec::new();
        loop {
            select! {
                recv(feed.news) -> news => match news {
                    Ok(News::Key(key)) if LEAVING_KEYS.contains(&key) => return Ok(End::Left),
                    Ok(News::Key(_)) => {}
                    Ok(News::Event(event)) => {
                        is_stale = true;
                        view.on_event(event, Timestamp::now());
                    }
                    Ok(News::Status(Ok(status))) => (view.status, view.error) = (Some(status), None),
                    Ok(News::Status(Err(why))) => view.error = Some(why),
                    Ok(News::Ended) | Err(_) => return Ok(End::RunEnded),
                },
                recv(signals.wake()) -> _ => {
                    let mut came = signals.take();
                    if let Some(signal) = came.find(|signal| signal.is_stop_without_driver()) {
                        return Ok(End::Signal(signal));
                    }
                },
                recv(ticks) -> _ => {
                    let is_old = asked_at.is_none_or(|at| at.elapsed() >= STATUS_AGE_MAX);
                    // A full queue: the last status is still awaited.
                    if (is_stale || is_old) && feed.wanted.try_send(()).is_ok() {
                        (is_stale, asked_at) = (false, Some(Instant::now()));
                    }
                    let lines = view.lines(Timestamp::now(), Screen::size());
                    if lines != drawn {
                        screen.draw(&lines)?;
                        drawn = lines;
                    }
                },
            }
        }
    });
    drop(screen);
    log::set_max_level(level);
    match result.map_err(failed)? {
        End::Left | End::Signal(Signal::Int) => Ok(Code::Clean),
        End::Signal(signal) => Ok(Code::Signal(signal)),
        End::RunEnded => {
            log::info!("the run has ended");
            Ok(Code::Clean)
        }
    }
}

/// Why the screen is left.
enum End {
    Left,
    RunEnded,
    Signal(Signal),
}
