//! Completion of words in a shell: the names of applications, groups and executors, beside what clap knows itself. The
//! script of a shell calls this program with COMPLETE, and clap answers before anything else is done.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{ArgMatches, CommandFactory as _};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use crossbeam_channel::bounded;

use crate::args::submit::NamespaceArgs;
use crate::args::tools::Shell;
use crate::args::words::Word;
use crate::args::{ClientArgs, CommandLine, ServerArgs};
use crate::command_line::with_flags_behind;
use crate::connection::sources;
use crate::control_client::find_run;
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::settings::socket_folders;
use crate::terminal::print;
use crate::world::World;
use posse_control::address::live_apps;
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::control::status_json::{GroupJson, StatusJson};
use posse_wire::control::task::TaskStatusJson;
use posse_wire::k8s::object::Meta;

/// The variable with the shell that asks.
const VARIABLE: &str = "COMPLETE";
/// What `command_line::with_flags_behind` moves.
const BEFORE: [&str; 3] = ["namespace", "kubeconfig", "context"];
/// The states of executors that can be ended, or work.
const LIVE: [&str; 4] = ["requested", "pending", "running", "draining"];
/// kubectl gives the words behind the name of a plugin, and wants a candidate on each line, then what else may stand
/// there: no file (kubectl, `pkg/cmd/plugin/plugin_completion.go`).
const KUBECTL: &str = "#!/bin/sh\nCOMPLETE=fish posse -- posse \"$@\"\necho :4\n";
/// How long a person who pressed TAB waits for a cluster.
const CLUSTER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// `posse completions`.
///
/// # Errors
/// stdout cannot be written.
pub fn script(shell: Shell, out: &mut dyn Write) -> Result<Code, Failure> {
    let shell: &dyn EnvCompleter = match shell {
        Shell::Kubectl => return print(out, KUBECTL).map(|()| Code::Clean),
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "posse", "posse", "posse", &mut script)
        .map_err(Failure::output)?;
    print(out, &String::from_utf8_lossy(&script)).map(|()| Code::Clean)
}

/// Answers a shell that asks for candidates, and ends the process then.
pub fn answer_shell() {
    CompleteEnv::with_factory(|| with_names(with_flags_before())).var(VARIABLE).complete();
}

/// The command with the flags that may also stand before the words of a command.
fn with_flags_before() -> clap::Command {
    let command = CommandLine::command();
    let of_one = command.find_subcommand("status").into_iter().flat_map(|one| one.get_arguments());
    let before = of_one.filter(|arg| BEFORE.contains(&arg.get_id().as_str())).cloned();
    let before: Vec<clap::Arg> = before.collect();
    command.args(before)
}

/// The command and those below it, with candidates for what only a run or a cluster knows.
fn with_names(command: clap::Command) -> clap::Command {
    let of = command.get_name().to_owned();
    let command = command.mut_args(|arg| {
        let name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
        let candidates = match (arg.get_id().as_str(), name) {
            ("words", Some("ID")) if of == "kill" => live_executors,
            ("words", Some("APP")) if of == "logs" => executors,
            ("target", Some("ID")) => live_ids,
            ("app" | "names", Some("NAME" | "APP")) | ("words", Some("APP")) => apps,
            ("words", Some("TARGET")) => apps,
            ("words", Some("ID")) => executors,
            ("group", Some("GROUP")) => groups,
            ("key" | "keys", Some("KEY")) | ("after", _) => tasks,
            ("namespace", _) => namespaces,
            ("context", _) => contexts,
            _ => return arg,
        };
        arg.add(ArgValueCandidates::new(candidates))
    });
    command.mut_subcommands(with_names)
}

fn apps() -> Vec<CompletionCandidate> {
    with_typed(|typed, world| {
        let mut names = live_apps(&socket_folders(world));
        names.extend(in_time(typed.namespace.clone(), |namespace| {
            let apps = namespace.apps(&namespace.objects(), &[]).unwrap_or_default();
            apps.into_iter().map(|app| app.name).collect()
        }));
        names.sort();
        names.dedup();
        names.into_iter().map(CompletionCandidate::new).collect()
    })
}

fn groups() -> Vec<CompletionCandidate> {
    let facts = |status: StatusJson| {
        let groups = status.groups.into_iter();
        let help = |one: &GroupJson| format!("{} of {} running", one.running, one.wanted());
        groups.map(|one| (one.group.clone(), help(&one))).collect()
    };
    of_run(facts)
}

fn executors() -> Vec<CompletionCandidate> {
    with_apps(ids(|_| true))
}

fn live_executors() -> Vec<CompletionCandidate> {
    with_apps(live_ids())
}

fn live_ids() -> Vec<CompletionCandidate> {
    ids(|state| LIVE.contains(&state))
}

/// The executors of the run in some states.
fn ids(is_meant: fn(&str) -> bool) -> Vec<CompletionCandidate> {
    of_run(|status: StatusJson| {
        let meant = status.executors.into_iter().filter(|one| is_meant(&one.state));
        meant.map(|one| (one.id.to_string(), format!("{} {}", one.group, one.state))).collect()
    })
}

/// Unless one is named, an application may stand before the id of its executor.
fn with_apps(mut all: Vec<CompletionCandidate>) -> Vec<CompletionCandidate> {
    if with_typed(|typed, _| typed.app.is_none()) {
        all.extend(apps());
    }
    all
}

/// The tasks of all groups.
fn tasks() -> Vec<CompletionCandidate> {
    let tasks = with_typed(|typed, world| {
        let client = find_run(typed, world)?.client;
        let mut all = Vec::new();
        for group in client.observe()?.groups {
            all.extend(client.tasks(&group.group)?);
        }
        Ok::<_, Failure>(all)
    });
    let candidate =
        |task: TaskStatusJson| CompletionCandidate::new(task.key).help(Some(task.state.into()));
    tasks.unwrap_or_default().into_iter().map(candidate).collect()
}

fn namespaces() -> Vec<CompletionCandidate> {
    with_typed(|typed, _| {
        let all = in_time(typed.namespace.clone(), |namespace| {
            let objects = Objects::new(namespace.connection.http.clone(), None);
            let all = objects.list(Kind::Namespace, "", &Meta::parse);
            all.map_or_else(
                |_| Vec::new(),
                |(all, _)| all.into_iter().map(|one| one.name).collect(),
            )
        });
        all.into_iter().map(CompletionCandidate::new).collect()
    })
}

fn contexts() -> Vec<CompletionCandidate> {
    with_typed(|typed, world| {
        let all = sources(typed.namespace.server.kubeconfig.as_deref(), None, world.env).contexts();
        all.into_iter().map(CompletionCandidate::new).collect()
    })
}

fn of_run(facts: impl Fn(StatusJson) -> Vec<(String, String)>) -> Vec<CompletionCandidate> {
    let status = with_typed(|typed, world| {
        find_run(typed, world).and_then(|run| Ok(run.client.observe()?))
    });
    let facts = status.map(facts).unwrap_or_default().into_iter();
    facts.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect()
}

/// What a cluster says, if it answers in time.
fn in_time(args: NamespaceArgs, ask: fn(&Namespace) -> Vec<String>) -> Vec<String> {
    let env = |name: &str| std::env::var(name).ok();
    let Ok(namespace) = Namespace::new(&args, &World::new(&env, Path::new(""))) else {
        return Vec::new();
    };
    let (sender, answer) = bounded(1);
    // The thread ends with the process. Nobody listens any more after the time-out.
    let asked = thread::Builder::new().spawn(move || drop(sender.send(ask(&namespace))));
    asked.map_or_else(|_| Vec::new(), |_| answer.recv_timeout(CLUSTER_TIMEOUT).unwrap_or_default())
}

/// Calls `look_up` with the run that the words on the command line name, which the shell gives behind `--`.
fn with_typed<T>(look_up: impl FnOnce(&ClientArgs, &World<'_>) -> T) -> T {
    log::set_max_level(log::LevelFilter::Off);
    let env = |name: &str| std::env::var(name).ok();
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    look_up(&typed(words), &World::new(&env, Path::new("")))
}

/// The run that these words name, as far as they can be read.
fn typed(words: Vec<OsString>) -> ClientArgs {
    let command = CommandLine::command().ignore_errors(true);
    let words = with_flags_behind(words);
    let Ok(mut matches) = command.try_get_matches_from(words) else { return ClientArgs::default() };
    while let Some((_, inner)) = matches.remove_subcommand() {
        matches = inner;
    }
    fn value<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, id: &str) -> Option<T> {
        matches.try_get_one::<T>(id).ok().flatten().cloned()
    }
    let client = ClientArgs {
        control: value(&matches, "control"),
        control_token_file: value::<PathBuf>(&matches, "control_token_file"),
        app: value(&matches, "app"),
        namespace: NamespaceArgs {
            namespace: value(&matches, "namespace"),
            server: ServerArgs {
                kubeconfig: value::<PathBuf>(&matches, "kubeconfig"),
                context: value(&matches, "context"),
            },
        },
    };
    let first = value::<Word>(&matches, "words").into_iter().collect::<Vec<Word>>();
    client.with_words(&first).map_or(client, |(client, _)| client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_is_read_from_what_is_typed() {
        let typed = |line: &str| typed(line.split(' ').map(OsString::from).collect());
        for (line, app) in [
            ("posse kill wc ", Some("wc")),
            ("posse kill --app=wc 1 ", Some("wc")),
            ("posse scale wc --group ", Some("wc")),
            ("posse task wait --app wc ", Some("wc")),
            ("posse kill ", None),
            ("posse kill 1 ", None),
            ("posse nothing-like-this ", None),
        ] {
            assert_eq!(typed(line).app.as_deref(), app, "{line}");
        }
        let before = typed("posse -n analytics kill wc ");
        assert_eq!(before.namespace.namespace.as_deref(), Some("analytics"));
        let elsewhere = typed("posse status -n analytics --context c ");
        assert_eq!(elsewhere.namespace.namespace.as_deref(), Some("analytics"));
        assert_eq!(elsewhere.namespace.server.context.as_deref(), Some("c"));
    }

    #[test]
    fn names_are_known_where_they_are_wanted() {
        let mut command = with_names(with_flags_before());
        command.build();
        let flags: Vec<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        assert!(BEFORE.iter().all(|flag| flags.contains(flag)), "{flags:?}");
        let has_names = |path: &str, id: &str| {
            let find = |at: &clap::Command, name| at.find_subcommand(name).unwrap().clone();
            let found = path.split(' ').fold(command.clone(), |at, name| find(&at, name));
            let arg = found.get_arguments().find(|arg| arg.get_id() == id).unwrap().clone();
            arg.get::<ArgValueCandidates>().is_some()
        };
        for (path, id, want) in [
            ("status", "words", true),
            ("kill", "words", true),
            ("scale", "group", true),
            ("stop", "names", true),
            ("cleanup", "app", true),
            ("task logs", "app", true),
            ("task wait", "keys", true),
            ("task logs", "key", true),
            ("task add", "name", false),
            ("task add", "after", true),
            ("exec", "target", true),
            ("status", "namespace", true),
            ("run", "context", true),
            ("run", "instance", false),
        ] {
            assert_eq!(has_names(path, id), want, "{path} {id}");
        }
    }
}
