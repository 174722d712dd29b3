//! `posse wait`: waits until enough executors run or are ready.

use std::thread;
use std::time::{Duration, Instant};

use crate::args::WaitArgs;
use crate::control_client::{AwaitedRun, find_run};
use crate::exit::{Code, Failure};
use crate::world::World;
use posse_base::text::{one_line, sanitize};
use posse_control::client::Client;
use posse_wire::control::status_json::{GroupJson, StatusJson};

/// The time between two looks at the status.
const INTERVAL: Duration = Duration::from_millis(200);
/// The longest description of a group, in bytes.
const GROUP_BYTES_MAX: usize = 1 << 10;

/// `posse wait`. Exit code 1 if the time is over or the run ends first.
pub fn wait(args: &WaitArgs, world: &World<'_>) -> Result<Code, Failure> {
    let begin = Instant::now();
    let until = args.timeout.map(|ms| begin + Duration::from_millis(ms));
    let named = args.named.client()?;
    let found = once_there(until, || find_run(&named, world))?;
    let mut run = AwaitedRun::new(found, &named, until, world);
    let mut status = once_there(until, || Ok(run.client.status()?))?;
    loop {
        let groups = match groups(&status, args.group.as_deref()) {
            // A driver makes its groups after its start.
            Err(_) if until.is_some_and(|until| Instant::now() < until) => {
                thread::sleep(INTERVAL);
                status = run.ask(Client::status)?;
                continue;
            }
            groups => groups?,
        };
        let (wanted, what) = match (args.ready, args.running) {
            (Some(ready), _) => (ready, "are ready"),
            (None, running) => (running.unwrap_or(0), "run"),
        };
        let count = |group: &&GroupJson| match args.ready {
            Some(_) => u64::from(group.ready),
            None => u64::from(group.running),
        };
        let n: u64 = groups.iter().map(count).sum();
        if n >= u64::from(wanted) {
            return Ok(Code::Clean);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let seconds = begin.elapsed().as_secs();
            let groups: Vec<String> = groups.into_iter().map(describe).collect();
            let message =
                format!("{n} of {wanted} {what} after {seconds} s: {}", groups.join("; "));
            return Err(Failure::new(Code::Failed, message));
        }
        thread::sleep(INTERVAL);
        status = run.ask(Client::status)?;
    }
}

/// With a time-out the run need not be there yet: scripts start `posse run &` in the line before.
fn once_there<T>(
    until: Option<Instant>,
    mut ask: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    loop {
        match ask() {
            Err(Failure { code: Code::Failed, .. })
                if until.is_some_and(|until| Instant::now() < until) =>
            {
                thread::sleep(INTERVAL);
            }
            answer => return answer,
        }
    }
}

/// The groups that count.
fn groups<'a>(status: &'a StatusJson, named: Option<&str>) -> Result<Vec<&'a GroupJson>, Failure> {
    let is_named = |group: &&GroupJson| named.is_none_or(|name| group.group == name);
    let groups: Vec<&GroupJson> = status.groups.iter().filter(is_named).collect();
    match (groups.is_empty(), named) {
        (true, Some(name)) => {
            let names: Vec<&str> = status.groups.iter().map(|one| one.group.as_str()).collect();
            let message = format!("there is no group {name}; the run has: {}", names.join(", "));
            Err(Failure::new(Code::Failed, message))
        }
        _ => Ok(groups),
    }
}

/// How far a group is, and what it waits for.
pub(crate) fn describe(group: &GroupJson) -> String {
    let mut text = format!("group {} runs {} of {}", group.group, group.running, group.wanted());
    if group.ready < group.running {
        text.push_str(&format!(", {} of them ready", group.ready));
    }
    if let Some(waiting) = &group.waiting {
        text.push_str(&format!(", waiting: {waiting}"));
    }
    if let Some(message) = &group.message {
        text.push_str(&format!(" ({})", one_line(message)));
    }
    sanitize(&text, GROUP_BYTES_MAX)
}
