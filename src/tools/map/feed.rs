//! `posse map-feed`: hands the lines on as tasks, and takes note of their ends.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, after, bounded, never, select};
use log::{info, warn};
use serde_json::Value;

use crate::args::ClientArgs;
use crate::args::map::FeedArgs;
use crate::control_client::find_here;
use crate::exit::{Code, Failure};
use crate::location::connect_as;
use crate::namespace::start_signals;
use crate::progress::{Far, Progress};
use crate::tools::map::input::{Line, n_lines, read_lines};
use crate::tools::map::output::Printer;
use crate::tools::map::resume::Done;
use crate::tools::map::summary::Counts;
use crate::world::World;
use posse_base::text::printable;
use posse_control::client::{Client, ClientError};
use posse_core::machines::retry::{RetryLimit, RetryRule};
use posse_kube::api::objects::Objects;
use posse_kube::api::retry::Retries;
use posse_run::signals::{Signal, Signals};
use posse_wire::control::status_json::RunNames;
use posse_wire::control::task::{TaskJson, TaskStatusJson};
use posse_wire::k8s::labels::Selection;
use posse_wire::pod::arguments::literal;

/// The most lines that are handed on and have not ended.
const OPEN_MAX: usize = 2_000;
/// The most lines of one call.
const BATCH_MAX: usize = 100;
/// Lines, ends and outputs that wait for the next step.
const QUEUE_MAX: usize = 1_000;
/// Outputs that are read at the same time.
const OUTPUT_READERS: usize = 4;
/// How long posse may refuse or not answer a call.
const CALL_RULE: RetryRule =
    RetryRule { delay_ms: 200, delay_ms_max: 1_000, limit: RetryLimit::TimeMs(60_000) };
/// The pause before the events are followed again.
const FOLLOW_AGAIN: Duration = Duration::from_millis(200);
/// Before the number of the line, in a task's key.
const KEY_PREFIX: &str = "line-";

/// The end of a line's task.
struct Ended {
    line: u64,
    is_success: bool,
    executor: Option<u64>,
    why: String,
}

/// What the feed learns of the run.
enum News {
    Ended(Ended),
    /// This executor works on a line now, or no longer.
    Works(u64, bool),
    /// Events were missed, so the states have to be asked for.
    Missed,
    /// The server refuses the template, and no executor has run.
    Refused(String),
}

/// `posse map-feed`, the driver of `posse map`.
///
/// # Errors
/// A line is wrong, or posse does not take the tasks.
pub fn feed(args: &FeedArgs, world: &World<'_>) -> Result<Code, Failure> {
    let run = own_run(world)?;
    let client = find_here(&run, world)?;
    let status = client.status()?;
    check_owner(&status.identity, world)?;
    let group = status.groups.first().map(|group| group.group.clone()).unwrap_or_default();
    let names =
        Selection { app: status.identity.app.clone(), instance: status.identity.instance.clone() };
    let done = Done::open(args.line.resume.as_deref())?;
    let http = connect_as(&status.identity, &args.server, world)?.http;
    let objects = Objects::new(http, Some(&status.identity.namespace));
    let signals = start_signals()?;
    let printer = Arc::new(Printer::default());
    let (outputs, pods) = bounded(QUEUE_MAX);
    let (broken_sender, broken) = bounded(OUTPUT_READERS);
    let mut readers = Vec::new();
    for _ in 0..OUTPUT_READERS {
        let (pods, objects, broken) = (pods.clone(), objects.clone(), broken_sender.clone());
        let printer = Arc::clone(&printer);
        let read = move || print_all(&printer, &pods, &objects, &broken);
        readers.push(spawn("output", read)?);
    }
    drop((pods, broken_sender));
    // Nobody waits for these two: they may read for ever.
    let (lines, input) = bounded(BATCH_MAX);
    spawn("input", move || read_lines(io::stdin().lock(), &lines))?;
    let (news, learned) = bounded(QUEUE_MAX);
    let follower = find_here(&run, world)?;
    spawn("events", move || follow_ends(&follower, &news))?;
    let retries = args.line.retries;
    let progress = Progress::new(args.line.progress, world.is_terminal, "lines");
    let total = n_lines(&io::stdin());
    let mut feed = Feed {
        client,
        group,
        names,
        retries,
        done,
        outputs,
        broken,
        open: BTreeSet::new(),
        working: BTreeSet::new(),
        progress,
        total,
        counts: Counts::default(),
        wrong: None,
        signals,
        interrupted: None,
    };
    let result = feed.hand_on(&input, &learned);
    let Feed { outputs, broken, counts, interrupted, .. } = feed;
    drop(outputs);
    for reader in readers {
        // A panic was reported by its own thread.
        let _ = reader.join();
    }
    if let Ok(error) = broken.try_recv() {
        return Err(Failure::output(error));
    }
    info!("{}", counts.shown(printer.n_unread()));
    if let Some(interrupted) = interrupted {
        info!("{interrupted}");
    }
    result.map(|()| if counts.n_failed == 0 { Code::Clean } else { Code::WorkGivenUp })
}

/// The address of the run whose driver this process is. Any other one would run commands that are not for
/// its executors.
fn own_run(world: &World<'_>) -> Result<ClientArgs, Failure> {
    let control = (world.env)("POSSE_CONTROL").filter(|address| !address.is_empty());
    if control.is_none() {
        let what = "POSSE_CONTROL is not set: only `posse map` starts `posse map-feed`";
        return Err(Failure::usage(what));
    }
    Ok(ClientArgs { control, ..ClientArgs::default() })
}

/// The address may be inherited from another run.
fn check_owner(found: &RunNames, world: &World<'_>) -> Result<(), Failure> {
    let env = |name: &str| (world.env)(name).unwrap_or_default();
    let RunNames { app, instance, .. } = found;
    if (env("POSSE_APP"), env("POSSE_INSTANCE")) == (app.clone(), instance.clone()) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the run at POSSE_CONTROL is one of application {app}, instance {instance}, and not the one \
         that POSSE_APP and POSSE_INSTANCE name"
    )))
}

/// Prints outputs until there are no more, or until one cannot be written.
fn print_all(
    printer: &Printer,
    pods: &Receiver<(u64, String)>,
    objects: &Objects,
    broken: &Sender<io::Error>,
) {
    for (line, pod) in pods {
        if let Err(error) = printer.print(line, &pod, objects) {
            // It has room for the error of each reader.
            let _ = broken.try_send(error);
            return;
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| Failure::new(Code::Failed, format!("threads: {error}")))
}

/// Hands the lines on, and takes note of their ends.
struct Feed {
    client: Client,
    group: String,
    names: Selection,
    retries: u32,
    done: Done,
    outputs: Sender<(u64, String)>,
    /// Why the output cannot be written.
    broken: Receiver<io::Error>,
    /// The lines that were handed on and have not ended.
    open: BTreeSet<u64>,
    /// The executors that work on lines.
    working: BTreeSet<u64>,
    progress: Progress,
    /// All lines, if they can be counted before they are read.
    total: Option<u64>,
    counts: Counts,
    /// The line that ended the input before its end.
    wrong: Option<String>,
    signals: Signals,
    /// What a signal has left, and how to go on.
    interrupted: Option<String>,
}

impl Feed {
    fn hand_on(&mut self, input: &Receiver<Line>, learned: &Receiver<News>) -> Result<(), Failure> {
        let mut is_read = false;
        while !is_read || !self.open.is_empty() {
            let is_full = is_read || self.open.len() >= OPEN_MAX;
            let closed = never();
            let mut batch = Vec::new();
            select! {
                recv(self.signals.wake()) -> _ => {
                    let stop = self.signals.take().find(|it| it.is_stop_without_driver());
                    if let Some(signal) = stop {
                        self.interrupted = Some(self.what_is_left(signal, input.try_iter().count()));
                        return Err(Failure::new(Code::Signal(signal), ""));
                    }
                }
                recv(if is_full { &closed } else { input }) -> line => match line {
                    Ok(line) => {
                        let room = OPEN_MAX.saturating_sub(self.open.len()).min(BATCH_MAX);
                        batch.extend([line].into_iter().chain(input.try_iter().take(room.saturating_sub(1))));
                    }
                    Err(_) => is_read = true,
                },
                recv(learned) -> news => match news {
                    Ok(News::Ended(ended)) => self.on_ended(ended)?,
                    Ok(News::Works(id, true)) => drop(self.working.insert(id)),
                    Ok(News::Works(id, false)) => drop(self.working.remove(&id)),
                    Ok(News::Missed) => self.ask_all()?,
                    Ok(News::Refused(why)) => return Err(Failure::new(Code::TemplateRefused, why)),
                    Err(_) => return Err(Failure::new(Code::Failed, "the run has ended")),
                },
                // Without an error, each reader has ended by a panic.
                recv(self.broken) -> error => {
                    let error = error.unwrap_or_else(|_| io::Error::other("the threads have failed"));
                    return Err(Failure::output(error));
                },
                recv(self.progress.pause().map_or_else(never, after)) -> _ => {}
            }
            self.add(batch)?;
            self.show_progress(is_read);
        }
        // The lines before it have had their time.
        self.wrong.take().map_or(Ok(()), |wrong| Err(Failure::usage(wrong)))
    }

    fn show_progress(&mut self, is_read: bool) {
        let Counts { n_succeeded, n_skipped, n_failed, .. } = self.counts;
        let n_done = n_succeeded + n_skipped;
        let n_running = self.working.len().min(self.open.len());
        let n_read = is_read.then(|| n_done + n_failed + self.open.len() as u64);
        let far = Far { n_done, n_before: n_skipped, n_failed, n_running };
        self.progress.show(far, n_read.or(self.total));
    }

    fn add(&mut self, lines: Vec<Line>) -> Result<(), Failure> {
        let mut tasks = Vec::new();
        for line in lines {
            let (n, text) = match line {
                Ok(line) => line,
                Err(wrong) => {
                    warn!("{wrong}: no further line is run");
                    self.wrong = Some(wrong);
                    continue;
                }
            };
            if self.done.has(n, &text)? {
                self.counts.n_skipped += 1;
                continue;
            }
            self.open.insert(n);
            self.done.note(n, &text);
            let (key, args) = (format!("{KEY_PREFIX}{n}"), Some(vec![literal(&text)]));
            tasks.push(TaskJson { key, args, retries: self.retries, ..TaskJson::default() });
        }
        if tasks.is_empty() {
            return Ok(());
        }
        let states = patiently(|| self.client.add_tasks(&self.group, &tasks))?;
        self.on_states(&states)
    }

    /// What is left, and how to go on. `n_read`: the lines that were read and not handed on.
    fn what_is_left(&self, signal: Signal, n_read: usize) -> String {
        let lines = |n: usize| if n == 1 { "1 line".to_owned() } else { format!("{n} lines") };
        // Asked once: posse is about to end.
        let left = match self.client.tasks(&self.group) {
            Ok(states) => {
                let is_running =
                    |state: &&TaskStatusJson| ["pending", "running"].contains(&&*state.state);
                let n_running = states.iter().filter(is_running).count();
                let n_waiting = self.open.len().saturating_sub(n_running) + n_read;
                let running = lines(n_running);
                format!(
                    "{running} had begun, and {} that were read had not begun",
                    lines(n_waiting)
                )
            }
            Err(_) => format!("{} had not ended", lines(self.open.len() + n_read)),
        };
        let how = match self.done.shown() {
            Some(file) => format!("the same command with --resume {file} goes on from here"),
            None => "--resume FILE notes the lines that have succeeded, so that the same command \
                     can go on; without it all lines run again"
                .to_owned(),
        };
        format!("{signal}: {left}; {how}")
    }

    fn ask_all(&mut self) -> Result<(), Failure> {
        let states = patiently(|| self.client.tasks(&self.group))?;
        let working = states.iter().filter(|state| state.state == "running");
        self.working = working.filter_map(|state| state.executor).collect();
        self.on_states(&states)
    }

    fn on_states(&mut self, states: &[TaskStatusJson]) -> Result<(), Failure> {
        for state in states {
            let reason = state.reason.as_deref();
            let ended = ended(&state.key, &state.state, state.exit_code, reason, state.executor);
            ended.map_or(Ok(()), |ended| self.on_ended(ended))?;
        }
        Ok(())
    }

    fn on_ended(&mut self, ended: Ended) -> Result<(), Failure> {
        let Ended { line, is_success, executor, why } = ended;
        if !self.open.remove(&line) {
            return Ok(());
        }
        if is_success {
            self.counts.n_succeeded += 1;
            self.done.add(line)?;
        } else {
            self.counts.on_failed(line);
            warn!("line {line} {why}");
        }
        if let Some(id) = executor {
            // An error means that the readers have ended.
            let _ = self.outputs.send((line, self.names.pod_name(id)));
        }
        Ok(())
    }
}

/// Calls again for a while if posse is busy or does not answer: all these calls are repeatable.
fn patiently<T>(mut call: impl FnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    let mut retries = Retries::new(CALL_RULE);
    loop {
        match call() {
            Err(error)
                if matches!(error.status(), None | Some(429 | 503)) && retries.wait(None) => {}
            result => return result,
        }
    }
}

/// The end of a line's task; none if it is open, or of somebody else.
fn ended(
    key: &str,
    state: &str,
    exit_code: Option<i32>,
    reason: Option<&str>,
    executor: Option<u64>,
) -> Option<Ended> {
    let line = key.strip_prefix(KEY_PREFIX)?.parse().ok()?;
    let code = exit_code.map_or_else(String::new, |code| format!(" with exit code {code}"));
    let reason = reason.map_or_else(String::new, |reason| format!(" ({})", printable(reason)));
    let is_success = match state {
        "succeeded" => true,
        "failed" | "cancelled" => false,
        _ => return None,
    };
    let why =
        format!("{}{code}{reason}", if state == "failed" { "failed" } else { "was cancelled" });
    Some(Ended { line, is_success, executor, why })
}

/// Follows the events until the run ends.
fn follow_ends(client: &Client, news: &Sender<News>) {
    let gone = |_| io::Error::other("nobody wants the news");
    let (mut seq, mut has_run) = (0, false);
    loop {
        let after = seq;
        let mut each = |line: &str| {
            let Ok(event) = serde_json::from_str::<Value>(line) else { return Ok(()) };
            seq = event["seq"].as_u64().unwrap_or(seq);
            match event["event"].as_str() {
                Some(name @ ("executor_completed" | "executor_lost" | "executor_running")) => {
                    has_run = true;
                    let works = |id| News::Works(id, name == "executor_running");
                    let id = event["executor"].as_u64();
                    id.map_or(Ok(()), |id| news.send(works(id)).map_err(gone))
                }
                Some("create_refused") if !has_run && event["cause"] == "permanent" => {
                    let text = |name: &str| printable(event[name].as_str().unwrap_or_default());
                    let (group, said) = (text("group"), text("message"));
                    let why =
                        format!("the API server refuses the template of group {group}: {said}");
                    news.send(News::Refused(why)).map_err(gone)
                }
                Some("missed") => news.send(News::Missed).map_err(gone),
                Some("task_ended") => {
                    let text = |name: &str| event[name].as_str();
                    let code =
                        event["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
                    let (key, outcome) = (text("key").unwrap_or(""), text("outcome").unwrap_or(""));
                    let id = event["executor"].as_u64();
                    match ended(key, outcome, code, text("reason"), id) {
                        Some(ended) => news.send(News::Ended(ended)).map_err(gone),
                        None => Ok(()),
                    }
                }
                _ => Ok(()),
            }
        };
        match client.events(after, None, true, &mut each) {
            Ok(()) | Err(ClientError::Output(_)) => return,
            // 409: the events after `seq` are gone.
            Err(error) if error.status() == Some(409) => seq = 0,
            Err(_) => {}
        }
        if news.send(News::Missed).is_err() {
            return;
        }
        thread::sleep(FOLLOW_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;
    use posse_testing::Fixture;

    #[test]
    fn ends_are_read_from_events_and_answers() {
        let got = ended("line-7", "failed", Some(3), Some("app_error"), Some(9)).unwrap();
        assert_eq!((got.line, got.is_success, got.executor), (7, false, Some(9)));
        assert_eq!(got.why, "failed with exit code 3 (app_error)");
        assert!(ended("line-7", "succeeded", Some(0), None, None).unwrap().is_success);
        for (key, state) in [("line-7", "running"), ("line-x", "failed"), ("other", "failed")] {
            assert!(ended(key, state, None, None, None).is_none(), "{key} {state}");
        }
    }

    /// Without the address of its own run, a feed must not take the only live run of this host.
    #[test]
    fn lines_go_to_no_other_run() {
        let fixture = Fixture::new();
        let socket = fixture.address().to_string();
        let runtime = fixture.folder.path().to_str().unwrap().to_owned();
        for (control, app, instance, part) in [
            ("", "w", "a1b2c", "POSSE_CONTROL is not set"),
            (socket.as_str(), "other", "a1b2c", "is one of application w, instance a1b2c"),
            (&socket, "w", "other", "is one of application w, instance a1b2c"),
            (&socket, "w", "a1b2c", "kubeconfig"),
        ] {
            let env = [
                ("XDG_RUNTIME_DIR", runtime.as_str()),
                ("POSSE_CONTROL", control),
                ("POSSE_APP", app),
                ("POSSE_INSTANCE", instance),
            ];
            let (code, _, err) = Folder::new(&[]).posse_with("map-feed", &env);
            assert_eq!(code, 2, "{err}");
            assert!(err.contains(part), "{control} {app} {instance}: {err}");
        }
    }
}
