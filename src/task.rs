//! `posse task`: adds tasks to a run, lists them, waits for them, prints their output and cancels them.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use crate::args::ClientArgs;
use crate::args::submit::LogsArgs;
use crate::args::task::{
    ArrayArg, TaskAddArgs, TaskArgs, TaskCommand, TaskGroupArgs, TaskKeysArgs, TaskListArgs,
    TaskLogsArgs, TaskWaitArgs, by_name,
};
use crate::args::words::Word;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::logs::logs;
use crate::scale::only_group;
use crate::settings::output_beside;
use crate::table::table;
use crate::task_record::read_record;
use crate::task_values::TaskValues;
use crate::terminal::with_log_output;
use crate::world::World;
use posse_control::client::{Client, ClientError, OneTask};
use posse_core::model::task::TaskOutcome;
use posse_run::random::random_bits;
use posse_run::task_outputs::TaskOutputs;
use posse_wire::control::task::{ArrayJson, TaskJson, TaskStatusJson, tasks_body};

/// The time between two looks at the tasks.
const INTERVAL: Duration = Duration::from_millis(500);

/// A call has at most 3 MiB.
const CALL_BYTES_MAX: usize = 3 << 20;
/// A task has at most 32 KiB beside its files.
const TASKS_A_CALL: usize = 90;

/// `posse task`.
///
/// # Errors
/// There is no such run, group or task, or the run refuses.
pub fn task(args: &TaskArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    match &args.command {
        TaskCommand::Add(args) => add(args, world, out),
        TaskCommand::List(args) => list(args, world, out),
        TaskCommand::Wait(args) => wait(args, world),
        TaskCommand::Logs(args) => task_logs(args, world, out),
        TaskCommand::Cancel(args) => each(args, OneTask::Cancel, world),
        TaskCommand::Retry(args) => each(args, OneTask::Retry, world),
    }
}

/// A run that can be called, and the group's name.
struct Tasked {
    client: Client,
    group: String,
}

fn find(of: &TaskGroupArgs, world: &World<'_>) -> Result<Tasked, Failure> {
    let client = find_run(&of.client, world)?.client;
    let group = of.group.clone().map_or_else(|| only_group(&client), Ok)?;
    Ok(Tasked { client, group })
}

/// A key that no other call has chosen.
fn random_key() -> String {
    format!("task-{:016x}", random_bits())
}

fn add(args: &TaskAddArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let key = args.name.clone().unwrap_or_else(random_key);
    let values = TaskValues::read(&args.secret_env, &args.file, world)?;
    let run = find(&args.of, world)?;
    let has_words = !args.words.is_empty();
    let task = TaskJson {
        key,
        image: args.image.clone(),
        command: has_words.then(|| args.words.clone()),
        // Those of the template belong to its own command.
        args: has_words.then(Vec::new),
        cpu: args.cpu.clone(),
        memory: args.memory.clone(),
        resources: by_name(&args.resource),
        env: by_name(&args.env),
        secret_env: values.secret_env,
        files: values.files,
        node_selector: by_name(&args.node_selector),
        retries: args.retries,
        deadline: args.deadline.map(|ms| format!("{ms}ms")),
        array: None,
        after: by_name(&args.after),
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
        added.extend(run.client.add_tasks(&run.group, some)?);
    }
    print_listing(&Added(added), args.output, out)
}

/// How many of these tasks, which differ in their indexes alone, fit into a call.
fn n_a_call(tasks: &[TaskJson]) -> usize {
    let one = tasks.last().map_or(0, |task| tasks_body(slice::from_ref(task)).len());
    (CALL_BYTES_MAX / one.max(1)).clamp(1, TASKS_A_CALL)
}

fn list(args: &TaskListArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if let Some(path) = &args.from {
        let tasks = read_record(path, args.of.group.as_deref())?;
        return print_listing(&Tasks(tasks), args.output, out);
    }
    let run = find(&args.of, world)?;
    let tasks = run.client.tasks(&run.group)?;
    print_listing(&Tasks(tasks), args.output, out)
}

/// Exits with the exit code of the first of the tasks, in their order, that did not succeed.
fn wait(args: &TaskWaitArgs, world: &World<'_>) -> Result<Code, Failure> {
    let run = find(&args.of, world)?;
    let begin = Instant::now();
    let until = args.timeout.map(|ms| begin + Duration::from_millis(ms));
    loop {
        let tasks = run.wanted(&args.keys)?;
        let open: Vec<&str> =
            tasks.iter().filter(|task| !is_over(task)).map(|task| task.key.as_str()).collect();
        if open.is_empty() {
            return Ok(end_of(&tasks));
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let seconds = begin.elapsed().as_secs();
            let message = format!(
                "{} of {} tasks have not ended after {seconds} s, first {}",
                open.len(),
                tasks.len(),
                open.first().unwrap_or(&"")
            );
            return Err(Failure::new(Code::Failed, message));
        }
        thread::sleep(INTERVAL);
    }
}

fn task_logs(args: &TaskLogsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if let Some(path) = &args.from {
        let path = world.dir.join(path);
        let folder = if path.is_dir() { path } else { output_beside(&path) };
        let failed = |what: String| Failure::new(Code::Failed, what);
        let outputs = TaskOutputs::existing(&folder)
            .map_err(|error| failed(format!("{}: cannot be read: {error}", folder.display())))?;
        let bytes = outputs
            .find(args.of.group.as_deref(), &args.key)
            .map_err(|why| failed(format!("the output of task {} {why}", args.key)))?;
        return print_output(&bytes, out);
    }
    let run = find(&args.of, world)?;
    let task = match run.one(&args.key, OneTask::Look) {
        Ok(task) => task,
        // The run may have kept more than it remembers.
        Err(unknown) => match run.client.task_output(&run.group, &args.key) {
            Ok(bytes) => return print_output(&bytes, out),
            Err(_) => return Err(unknown),
        },
    };
    let mut out = Counted { out, n_bytes: 0 };
    match pod_logs(&run, &task, args, world, &mut out) {
        // Half of it may be printed, and what is kept has the same begin.
        Err(of_pod) if is_over(&task) && out.n_bytes == 0 => {
            match run.client.task_output(&run.group, &args.key) {
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
    run: &Tasked,
    task: &TaskStatusJson,
    args: &TaskLogsArgs,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let Some(executor) = task.executor else {
        let message = format!("task {} has no executor yet: it is {}", task.key, task.state);
        return Err(Failure::new(Code::Failed, message));
    };
    let app = run.client.observe()?.identity.app;
    let of_executor = LogsArgs {
        client: ClientArgs { app: Some(app), ..args.of.client.clone() },
        words: vec![Word::Number(executor)],
        follow: args.follow,
        ..LogsArgs::default()
    };
    logs(&of_executor, world, out)
}

/// Does this with each of the tasks.
fn each(args: &TaskKeysArgs, what: OneTask, world: &World<'_>) -> Result<Code, Failure> {
    let run = find(&args.of, world)?;
    for key in &args.keys {
        run.one(key, what)?;
    }
    Ok(Code::Clean)
}

impl Tasked {
    fn one(&self, key: &str, what: OneTask) -> Result<TaskStatusJson, Failure> {
        self.client.task(&self.group, key, what).map_err(|error| self.failure(key, error))
    }

    /// The tasks with these keys, or all.
    fn wanted(&self, keys: &[String]) -> Result<Vec<TaskStatusJson>, Failure> {
        if let [key] = keys {
            return Ok(vec![self.one(key, OneTask::Look)?]);
        }
        let all = self.client.tasks(&self.group)?;
        let known: BTreeSet<&str> = all.iter().map(|task| task.key.as_str()).collect();
        if let Some(key) = keys.iter().find(|key| !known.contains(key.as_str())) {
            return Err(self.no_such_task(key));
        }
        let wanted: BTreeSet<&String> = keys.iter().collect();
        Ok(all.into_iter().filter(|task| keys.is_empty() || wanted.contains(&task.key)).collect())
    }

    fn failure(&self, key: &str, error: ClientError) -> Failure {
        match error.status() {
            Some(404) => self.no_such_task(key),
            Some(_) | None => error.into(),
        }
    }

    fn no_such_task(&self, key: &str) -> Failure {
        let group = &self.group;
        Failure::new(Code::Failed, format!("group {group} has no task {key}, or has forgotten it"))
    }
}

fn is_over(task: &TaskStatusJson) -> bool {
    TaskOutcome::ALL.iter().any(|end| task.state == end.as_str())
}

fn end_of(tasks: &[TaskStatusJson]) -> Code {
    let succeeded = TaskOutcome::Succeeded.as_str();
    let Some(bad) = tasks.iter().find(|task| task.state != succeeded) else { return Code::Clean };
    let code = bad.exit_code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0);
    code.map_or(Code::Failed, Code::Driver)
}

/// What was added: its key alone, for scripts.
struct Added(Vec<TaskStatusJson>);

impl Listing for Added {
    fn table(&self, is_wide: bool) -> String {
        if is_wide {
            return rows(&self.0, true);
        }
        self.0.iter().map(|task| format!("{}\n", task.key)).collect()
    }

    fn json(&self) -> String {
        json(&self.0)
    }

    fn names(&self) -> Vec<String> {
        names(&self.0)
    }
}

/// The tasks of a group.
struct Tasks(Vec<TaskStatusJson>);

impl Listing for Tasks {
    fn table(&self, is_wide: bool) -> String {
        match self.0.is_empty() {
            true => "there are no tasks\n".to_owned(),
            false => rows(&self.0, is_wide),
        }
    }

    fn json(&self) -> String {
        json(&self.0)
    }

    fn names(&self) -> Vec<String> {
        names(&self.0)
    }
}

fn rows(tasks: &[TaskStatusJson], is_wide: bool) -> String {
    let heads = ["KEY", "STATE", "EXECUTOR", "ATTEMPTS", "EXIT", "REASON"].map(str::to_owned);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let row = |task: &TaskStatusJson| {
        [
            task.key.clone(),
            task.state.clone(),
            or_dash(task.executor.map(|id| id.to_string())),
            task.attempts.to_string(),
            or_dash(task.exit_code.map(|code| code.to_string())),
            or_dash(if is_wide { why(task) } else { task.reason.clone() }),
        ]
    };
    table(&heads, tasks.iter().map(row).collect())
}

/// Why it failed, or what holds it.
fn why(task: &TaskStatusJson) -> Option<String> {
    let words: Vec<&str> =
        [&task.reason, &task.message].into_iter().flatten().map(|s| &**s).collect();
    (!words.is_empty()).then(|| words.join(": "))
}

fn json(tasks: &[TaskStatusJson]) -> String {
    serde_json::to_string_pretty(tasks).expect("texts and numbers can be written to memory")
}

fn names(tasks: &[TaskStatusJson]) -> Vec<String> {
    tasks.iter().map(|task| task.key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(state: &str, exit_code: Option<i32>) -> TaskStatusJson {
        let (key, reason) = (format!("{state}-1"), exit_code.map(|_| "app_error".to_owned()));
        TaskStatusJson {
            key,
            state: state.to_owned(),
            executor: Some(7),
            attempts: 1,
            exit_code,
            reason,
            message: None,
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
            (vec![task("failed", None)], Code::Failed),
            (vec![task("failed", Some(0))], Code::Failed),
            (vec![task("failed", Some(300))], Code::Failed),
            (vec![], Code::Clean),
        ] {
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
        let tasks = Tasks(vec![task("failed", Some(3)), task("waiting", None)]);
        assert_eq!(tasks.table(false), want);
        let message = Some("task a failed".to_owned());
        let mut skipped = TaskStatusJson { message, ..task("skipped", None) };
        assert_eq!(why(&skipped).as_deref(), Some("task a failed"));
        skipped.reason = Some("after".to_owned());
        assert_eq!(why(&skipped).as_deref(), Some("after: task a failed"));
        assert_eq!(Tasks(vec![]).table(false), "there are no tasks\n");
        assert_eq!(Added(vec![task("waiting", None)]).table(false), "waiting-1\n");
    }
}
