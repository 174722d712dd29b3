//! `posse task`: adds tasks to a run, lists them, waits for them, prints their output and cancels them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::args::submit::LogsArgs;
use crate::args::task::{
    ArrayArg, TaskAddArgs, TaskCommand, TaskGroupArgs, TaskKeysArgs, TaskListArgs, TaskLogsArgs,
    TaskWaitArgs, by_name,
};
use crate::args::words::Word;
use crate::args::{ClientArgs, ShowProgress};
use crate::control_client::{AskError, AwaitedRun, FoundRun, find_run, is_away};
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::logs::logs;
use crate::progress::{Far, Progress};
use crate::scale::only_group;
use crate::table::{or_dash, table};
use crate::task_values::TaskValues;
use crate::terminal::with_log_output;
use crate::world::World;
use posse_base::text::sanitize;
use posse_control::client::{Client, ClientError, OneTask};
use posse_core::model::task::TaskOutcome;
use posse_run::random::random_bits;
use posse_wire::control::status_json::RunNames;
use posse_wire::control::task::{ArrayJson, TaskJson, TaskShapeJson, TaskStatusJson, tasks_body};
use posse_wire::pod::arguments::literal;

/// The time between two looks at the tasks.
const INTERVAL: Duration = Duration::from_millis(500);

/// The most failed tasks that are named.
const TOLD_MAX: usize = 20;
/// The longest line about one, in bytes.
const TOLD_BYTES_MAX: usize = 2 << 10;

/// How often a call is made whose task has a key of our own, if the run cannot be reached or does not take it now.
const TRIES_MAX: u32 = 4;
/// The time between two of these.
const TRY_INTERVAL: Duration = Duration::from_secs(1);

/// A call has at most 3 MiB.
const CALL_BYTES_MAX: usize = 3 << 20;
/// Each call waits until the record has its tasks, which takes a fifth of a second.
const TASKS_A_CALL: usize = 1_000;

/// `posse task`.
///
/// # Errors
/// There is no such run, group or task, or the run refuses.
pub fn task(
    command: &TaskCommand,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    match command {
        TaskCommand::Add(args) => add(args, world, out),
        TaskCommand::List(args) => list(args, world, out),
        TaskCommand::Wait(args) => wait(args, world),
        TaskCommand::Logs(args) => task_logs(args, world, out),
        TaskCommand::Cancel(args) => each(args, OneTask::Cancel, world),
        TaskCommand::Retry(args) => each(args, OneTask::Retry, world),
    }
}

/// A task and its group.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct GroupTask {
    group: String,
    #[serde(flatten)]
    task: TaskStatusJson,
}

/// A run that can be called, and the groups that are meant.
struct Tasked<'a> {
    client: &'a Client,
    groups: &'a [String],
}

/// The named group, or all of the run.
fn groups_of(of: &TaskGroupArgs, client: &Client) -> Result<Vec<String>, Failure> {
    Ok(match &of.group {
        Some(group) => vec![group.clone()],
        None => client.observe()?.groups.into_iter().map(|one| one.group).collect(),
    })
}

/// A key that no other call has chosen.
fn random_key() -> String {
    format!("task-{:016x}", random_bits())
}

fn add(args: &TaskAddArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let key = args.name.clone().unwrap_or_else(random_key);
    let values = TaskValues::read(&args.secret_env, &args.file, world)?;
    let FoundRun { mut client, namespace } = find_run(&args.of.client, world)?;
    let group = args.of.group.clone().map_or_else(|| only_group(&client), Ok)?;
    let has_words = !args.words.is_empty();
    let task = TaskJson {
        key: key.clone(),
        command: has_words.then(|| args.words.iter().map(|word| literal(word)).collect()),
        // Those of the template belong to its own command.
        args: has_words.then(Vec::new),
        env: by_name(&args.env).into_iter().map(|(name, value)| (name, literal(&value))).collect(),
        secret_env: values.secret_env,
        files: values.files,
        retries: args.retries,
        deadline: args.deadline.map(|ms| format!("{ms}ms")),
        array: None,
        shape: TaskShapeJson {
            image: args.image.clone(),
            cpu: args.cpu.clone(),
            memory: args.memory.clone(),
            resources: by_name(&args.resource),
            node_selector: by_name(&args.node_selector),
            after: by_name(&args.after),
        },
    };
    let tasks = match &args.array {
        None => vec![task],
        Some(ArrayArg { first, last, max }) => (*first..=*last)
            .map(|index| {
                let array = Some(ArrayJson { name: task.key.clone(), index, max: *max });
                TaskJson { key: format!("{}-{index}", task.key), array, ..task.clone() }
            })
            .collect(),
    };
    let mut added = Vec::with_capacity(tasks.len());
    for some in tasks.chunks(n_a_call(&tasks)) {
        added.extend(match args.name {
            Some(_) => client.add_tasks(&group, some)?,
            None => add_repeatedly(&mut client, (&group, some), &key, args, world)?,
        });
    }
    // The tasks are added, and their keys have to be told whatever comes now.
    if client.observe().is_ok_and(|status| status.recorded == Some(false)) {
        let how = match namespace {
            Some(_) => {
                "leave out `record: off`, and permit configmaps (`posse submit --create-rbac`)"
            }
            None => "start it with --record FILE or --instance NAME",
        };
        log::warn!("this run keeps no record, so its tasks end with posse: {how}");
    }
    print_listing(&Added(added), args.output, out)
}

/// Adds tasks with a key of our own. The call is repeated here, because a user who does so adds other tasks.
fn add_repeatedly(
    client: &mut Client,
    (group, tasks): (&str, &[TaskJson]),
    key: &str,
    args: &TaskAddArgs,
    world: &World<'_>,
) -> Result<Vec<TaskStatusJson>, Failure> {
    for _ in 1..TRIES_MAX {
        match client.add_tasks(group, tasks) {
            Err(error) if is_away(&error) => log::info!("{error}: repeating the call"),
            answer => return Ok(answer?),
        }
        thread::sleep(TRY_INTERVAL);
        if let Ok(found) = find_run(&args.of.client, world) {
            *client = found.client;
        }
    }
    client.add_tasks(group, tasks).map_err(|error| {
        let hint = match is_away(&error) {
            true => format!("; the run may have the task: --name {key} repeats the call"),
            false => String::new(),
        };
        let Failure { code, message } = error.into();
        Failure::new(code, message + &hint)
    })
}

/// How many of these tasks, which differ in their indexes alone, fit into a call.
fn n_a_call(tasks: &[TaskJson]) -> usize {
    let one = tasks.last().map_or(0, |task| tasks_body(slice::from_ref(task)).len());
    (CALL_BYTES_MAX / one.max(1)).clamp(1, TASKS_A_CALL)
}

fn list(args: &TaskListArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = find_run(&args.of.client, world)?.client;
    let groups = groups_of(&args.of, &client)?;
    let tasks = Tasked { client: &client, groups: &groups }.wanted(&[])?;
    print_listing(&Tasks(tasks), args.output, out)
}

/// Exits with the first exit code that a task has which did not succeed, in their order.
fn wait(args: &TaskWaitArgs, world: &World<'_>) -> Result<Code, Failure> {
    let begin = Instant::now();
    let until = args.timeout.map(|ms| begin + Duration::from_millis(ms));
    let found = find_run(&args.of.client, world)?;
    let groups = groups_of(&args.of, &found.client)?;
    let mut run = AwaitedRun::new(found, &args.of.client, until, world);
    let is_shown = world.is_terminal && !world.output.quiet;
    let shown = if is_shown { ShowProgress::Auto } else { ShowProgress::Off };
    let mut progress = Progress::new(shown, is_shown, "tasks");
    let mut n_before = None;
    loop {
        let tasks = run.ask(|client| Tasked { client, groups: &groups }.wanted(&args.keys))?;
        let is_open = |one: &&GroupTask| !is_over(&one.task);
        let open: Vec<&str> = tasks.iter().filter(is_open).map(|one| &*one.task.key).collect();
        if open.is_empty() {
            tell_failures(&tasks, args.of.client.app.as_deref());
            return Ok(end_of(&tasks));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            tell_failures(&tasks, args.of.client.app.as_deref());
            let seconds = begin.elapsed().as_secs();
            let message = format!(
                "{} of {} tasks have not ended after {seconds} s, first {}",
                open.len(),
                tasks.len(),
                open.first().unwrap_or(&"")
            );
            return Err(Failure::new(Code::Failed, message));
        }
        let mut far = how_far(&tasks);
        let n_ended = far.n_done.saturating_add(far.n_failed);
        far.n_before = *n_before.get_or_insert(n_ended);
        progress.show(far, Some(tasks.len() as u64));
        thread::sleep(INTERVAL);
    }
}

fn how_far(tasks: &[GroupTask]) -> Far {
    let n = |is: fn(&TaskStatusJson) -> bool| tasks.iter().filter(|one| is(&one.task)).count();
    let (n_done, n_bad) = (n(is_good), n(|task| is_over(task) && !is_good(task)));
    let n_running = n(|task| task.state == "running");
    Far { n_done: n_done as u64, n_before: 0, n_failed: n_bad as u64, n_running }
}

/// Which tasks did not succeed, why, and what shows more.
fn tell_failures(tasks: &[GroupTask], app: Option<&str>) {
    let bad = || tasks.iter().filter(|one| is_over(&one.task) && !is_good(&one.task));
    for GroupTask { task, .. } in bad().take(TOLD_MAX) {
        let code =
            task.exit_code.map_or_else(String::new, |code| format!(" with exit code {code}"));
        let why = why(task).map_or_else(String::new, |why| format!(": {why}"));
        let line = format!("task {} {}{code}{why}", task.key, task.state);
        log::warn!("{}", sanitize(&line, TOLD_BYTES_MAX));
    }
    let n_more = bad().count().saturating_sub(TOLD_MAX);
    if n_more > 0 {
        log::warn!("{n_more} more did not succeed: `posse task list` names them");
    }
    if let Some(one) = bad().find(|one| one.task.executor.is_some()) {
        let app = app.map_or_else(String::new, |app| format!(" --app {app}"));
        log::info!("`posse task logs{app} {}` prints what it wrote", one.task.key);
    }
}

fn task_logs(args: &TaskLogsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = find_run(&args.of.client, world)?.client;
    let groups = groups_of(&args.of, &client)?;
    let run = Tasked { client: &client, groups: &groups };
    let GroupTask { group, task } = match run.one(&args.key, OneTask::Look) {
        Ok(task) => task,
        // The run may have kept more than it remembers.
        Err(unknown) => {
            let kept = |group: &String| run.client.task_output(group, &args.key).ok();
            match run.groups.iter().find_map(kept) {
                Some(bytes) => return print_output(&bytes, out),
                None => return Err(unknown.into()),
            }
        }
    };
    let mut out = Counted { out, n_bytes: 0 };
    match pod_logs(&run, &task, args, world, &mut out) {
        // Half of it may be printed, and what is kept has the same begin.
        Err(of_pod) if is_over(&task) && out.n_bytes == 0 => {
            match run.client.task_output(&group, &args.key) {
                Ok(bytes) => print_output(&bytes, out.out),
                Err(ClientError::Refused { what, .. }) => {
                    let message = format!("{what}; its pod: {of_pod}");
                    Err(Failure::new(Code::Failed, message))
                }
                Err(_) => Err(of_pod),
            }
        }
        printed => printed,
    }
}

fn print_output(bytes: &[u8], out: &mut dyn Write) -> Result<Code, Failure> {
    let print = |out: &mut dyn Write| {
        out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::output)
    };
    with_log_output(out, false, print).map(|()| Code::Clean)
}

/// A writer that tells whether anything was written.
struct Counted<'a> {
    out: &'a mut dyn Write,
    n_bytes: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n_bytes = self.out.write(bytes)?;
        self.n_bytes += n_bytes;
        Ok(n_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Prints the log of the pod of a task.
fn pod_logs(
    run: &Tasked<'_>,
    task: &TaskStatusJson,
    args: &TaskLogsArgs,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let Some(executor) = task.executor else {
        let message = format!("task {} has no executor yet: it is {}", task.key, task.state);
        return Err(Failure::new(Code::Failed, message));
    };
    let RunNames { app, instance, .. } = run.client.observe()?.identity;
    let of_executor = LogsArgs {
        client: ClientArgs { app: Some(app), ..args.of.client.clone() },
        instance: Some(instance),
        words: vec![Word::Number(executor)],
        follow: args.follow,
        ..LogsArgs::default()
    };
    logs(&of_executor, world, out)
}

/// Does this with each of the tasks.
fn each(args: &TaskKeysArgs, what: OneTask, world: &World<'_>) -> Result<Code, Failure> {
    let client = find_run(&args.of.client, world)?.client;
    let groups = groups_of(&args.of, &client)?;
    let run = Tasked { client: &client, groups: &groups };
    for key in &args.keys {
        run.one(key, what)?;
    }
    Ok(Code::Clean)
}

impl Tasked<'_> {
    /// Does this with a task: with the only one of this key, if no group was named.
    fn one(&self, key: &str, what: OneTask) -> Result<GroupTask, AskError> {
        let ask = |group: &String, what| match self.client.task(group, key, what) {
            Ok(task) => Ok(Some(GroupTask { group: group.clone(), task })),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(AskError::from(error)),
        };
        let mut having: Vec<&String> = self.groups.iter().collect();
        if having.len() != 1 {
            having.clear();
            for group in self.groups {
                having.extend(ask(group, OneTask::Look)?.map(|_| group));
            }
        }
        let group = match having.as_slice() {
            [] => return Err(self.no_such_task(key).into()),
            [group] => *group,
            several => {
                let several: Vec<&str> = several.iter().map(|group| group.as_str()).collect();
                let several = several.join(", ");
                let message = format!("--group: several groups have a task {key}: {several}");
                return Err(Failure::usage(message).into());
            }
        };
        ask(group, what)?.ok_or_else(|| self.no_such_task(key).into())
    }

    /// The tasks with these keys, in the keys' order, or all.
    fn wanted(&self, keys: &[String]) -> Result<Vec<GroupTask>, AskError> {
        if let [key] = keys {
            return Ok(vec![self.one(key, OneTask::Look)?]);
        }
        let mut all = Vec::new();
        for group in self.groups {
            let tasks = self.client.tasks(group)?.into_iter();
            all.extend(tasks.map(|task| GroupTask { group: group.clone(), task }));
        }
        let known: BTreeSet<&str> = all.iter().map(|one| one.task.key.as_str()).collect();
        if let Some(key) = keys.iter().find(|key| !known.contains(key.as_str())) {
            return Err(self.no_such_task(key).into());
        }
        let places: BTreeMap<&String, usize> = keys.iter().zip(0..).collect();
        all.retain(|one| keys.is_empty() || places.contains_key(&one.task.key));
        all.sort_by_key(|one| places.get(&one.task.key));
        Ok(all)
    }

    fn no_such_task(&self, key: &str) -> Failure {
        let what = match self.groups {
            [group] => format!("group {group} has no task {key}, or has forgotten it"),
            _ => format!("no group has a task {key}, or it is forgotten"),
        };
        Failure::new(Code::Failed, what)
    }
}

fn is_good(task: &TaskStatusJson) -> bool {
    task.state == TaskOutcome::Succeeded.as_str()
}

fn is_over(task: &TaskStatusJson) -> bool {
    TaskOutcome::ALL.iter().any(|end| task.state == end.as_str())
}

/// A task that was skipped has no code: the one that failed before it says more.
fn end_of(tasks: &[GroupTask]) -> Code {
    let mut bad = tasks.iter().map(|one| &one.task).filter(|task| !is_good(task)).peekable();
    if bad.peek().is_none() {
        return Code::Clean;
    }
    let code = |task: &TaskStatusJson| u8::try_from(task.exit_code?).ok().filter(|code| *code != 0);
    bad.find_map(code).map_or(Code::Failed, Code::Driver)
}

/// What was added: its key alone, for scripts.
struct Added(Vec<TaskStatusJson>);

impl Listing for Added {
    fn table(&self, is_wide: bool) -> String {
        if is_wide {
            return rows(self.0.iter(), true);
        }
        self.0.iter().map(|task| format!("{}\n", task.key)).collect()
    }

    fn json(&self) -> Value {
        json!(self.0)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|task| task.key.clone()).collect()
    }
}

/// Tasks of one group or of several.
struct Tasks(Vec<GroupTask>);

impl Listing for Tasks {
    fn table(&self, is_wide: bool) -> String {
        match self.0.is_empty() {
            true => "there are no tasks\n".to_owned(),
            false if self.has_groups() => {
                let [key, state, executor, attempts, exit, reason] = HEADS;
                let heads = ["GROUP", key, state, executor, attempts, exit, reason];
                let all = self.0.iter().map(|GroupTask { group, task }| {
                    let [key, state, executor, attempts, exit, reason] = row(task, is_wide);
                    [group.clone(), key, state, executor, attempts, exit, reason]
                });
                table(heads, all)
            }
            false => rows(self.0.iter().map(|one| &one.task), is_wide),
        }
    }

    fn json(&self) -> Value {
        json!(self.0)
    }

    fn names(&self) -> Vec<String> {
        self.0.iter().map(|one| one.task.key.clone()).collect()
    }
}

impl Tasks {
    fn has_groups(&self) -> bool {
        self.0.first().is_some_and(|first| self.0.iter().any(|one| one.group != first.group))
    }
}

const HEADS: [&str; 6] = ["KEY", "STATE", "EXECUTOR", "ATTEMPTS", "EXIT", "REASON"];

fn rows<'a>(tasks: impl Iterator<Item = &'a TaskStatusJson>, is_wide: bool) -> String {
    table(HEADS, tasks.map(|task| row(task, is_wide)))
}

fn row(task: &TaskStatusJson, is_wide: bool) -> [String; 6] {
    [
        task.key.clone(),
        task.state.clone(),
        or_dash(task.executor),
        task.attempts.to_string(),
        or_dash(task.exit_code),
        or_dash(if is_wide { why(task) } else { task.reason.clone() }),
    ]
}

/// Why it failed, or what holds it.
fn why(task: &TaskStatusJson) -> Option<String> {
    let words: Vec<&str> =
        [&task.reason, &task.message].into_iter().flatten().map(|s| &**s).collect();
    (!words.is_empty()).then(|| words.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(group: &str, task: TaskStatusJson) -> GroupTask {
        GroupTask { group: group.to_owned(), task }
    }

    fn task(state: &str, exit_code: Option<i32>) -> TaskStatusJson {
        let (key, reason) = (format!("{state}-1"), exit_code.map(|_| "app_error".to_owned()));
        TaskStatusJson {
            key,
            state: state.to_owned(),
            executor: Some(7),
            attempts: 1,
            exit_code,
            reason,
            ..TaskStatusJson::default()
        }
    }

    #[test]
    fn a_call_has_as_many_tasks_as_fit() {
        let with = |content: &str| TaskJson {
            key: "t".to_owned(),
            files: [("/f".to_owned(), content.to_owned())].into(),
            ..TaskJson::default()
        };
        assert_eq!(n_a_call(&[]), TASKS_A_CALL);
        assert_eq!(n_a_call(&[with("")]), TASKS_A_CALL);
        // JSON writes six bytes for each of these.
        let large = with(&"\u{1}".repeat(100 << 10));
        let n = n_a_call(slice::from_ref(&large));
        assert_eq!(n, 5);
        assert!(tasks_body(&vec![large; n]).len() <= CALL_BYTES_MAX);
        assert_eq!(n_a_call(&[with(&"\u{1}".repeat(CALL_BYTES_MAX))]), 1);
    }

    #[test]
    fn a_wait_ends_as_the_first_bad_task() {
        let good = task("succeeded", Some(0));
        for (tasks, want) in [
            (vec![good.clone()], Code::Clean),
            (vec![good.clone(), task("failed", Some(3)), task("failed", Some(4))], Code::Driver(3)),
            (vec![task("cancelled", None)], Code::Failed),
            (vec![task("skipped", None), task("failed", Some(3))], Code::Driver(3)),
            (vec![task("failed", None)], Code::Failed),
            (vec![task("failed", Some(0))], Code::Failed),
            (vec![task("failed", Some(300))], Code::Failed),
            (vec![], Code::Clean),
        ] {
            let tasks: Vec<GroupTask> = tasks.into_iter().map(|task| of("g", task)).collect();
            assert_eq!(end_of(&tasks), want, "{tasks:?}");
        }
        for (state, want) in
            [("held", false), ("running", false), ("failed", true), ("skipped", true)]
        {
            assert_eq!(is_over(&task(state, None)), want, "{state}");
        }
    }

    #[test]
    fn tasks_are_listed() {
        let want = "\
KEY        STATE    EXECUTOR  ATTEMPTS  EXIT  REASON
failed-1   failed   7         1         3     app_error
waiting-1  waiting  7         1         -     -
";
        let of_group =
            |group| vec![of("g", task("failed", Some(3))), of(group, task("waiting", None))];
        assert_eq!(Tasks(of_group("g")).table(false), want);
        let of_groups = Tasks(of_group("h"));
        assert!(of_groups.table(false).starts_with("GROUP  KEY        STATE    "));
        assert_eq!(of_groups.json()[1]["group"], "h");
        let message = Some("task a failed".to_owned());
        let mut skipped = TaskStatusJson { message, ..task("skipped", None) };
        assert_eq!(why(&skipped).as_deref(), Some("task a failed"));
        skipped.reason = Some("after".to_owned());
        assert_eq!(why(&skipped).as_deref(), Some("after: task a failed"));
        assert_eq!(Tasks(vec![]).table(false), "there are no tasks\n");
        assert_eq!(Added(vec![task("waiting", None)]).table(false), "waiting-1\n");
    }
}
