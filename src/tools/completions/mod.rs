//! Completion of words in a shell. The scripts are small: they ask `posse complete`, which knows the
//! commands and flags of this binary, and looks up the names of applications, groups and executors.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use clap::{Arg, CommandFactory as _};
use crossbeam_channel::bounded;

use crate::args::submit::NamespaceArgs;
use crate::args::tools::Shell;
use crate::args::{ClientArgs, CommandLine, ServerArgs};
use crate::control_client::find_here;
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::settings::socket_folders;
use crate::terminal::print;
use crate::world::World;
use posse_base::text::one_line;
use posse_control::address::live_apps;
use posse_kube::api::objects::Objects;

/// How long a person who pressed TAB waits for a cluster.
const CLUSTER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Tells the script to complete the names of files, or of folders.
const FILES: &str = ":files";
const FOLDERS: &str = ":folders";

/// `posse completions`.
///
/// # Errors
/// stdout cannot be written.
pub fn script(shell: Shell, out: &mut dyn Write) -> Result<Code, Failure> {
    let script = match shell {
        Shell::Bash => include_str!("posse.bash"),
        Shell::Zsh => include_str!("posse.zsh"),
        Shell::Fish => include_str!("posse.fish"),
    };
    print(out, script).map(|()| Code::Clean)
}

/// `posse complete`: one candidate a line, with its description after a tab. What cannot be looked up is
/// left out without a word, because the person is typing.
///
/// # Errors
/// stdout cannot be written.
pub fn complete(words: &[String], world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    log::set_max_level(log::LevelFilter::Off);
    let lines = candidates(words, &|what, typed| look_up(what, typed, world));
    let text: String = lines.into_iter().map(|line| line + "\n").collect();
    print(out, &text).map(|()| Code::Clean)
}

/// Something that only a run or a cluster knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    /// Applications, on this host and in the cluster.
    Apps,
    Groups,
    Executors,
}

/// The values of the flags before the cursor, by the flag's id.
type Typed = BTreeMap<String, String>;

type LookUp<'a> = &'a dyn Fn(Lookup, &Typed) -> Vec<String>;

/// The candidates for the last of the words.
fn candidates(words: &[String], look_up: LookUp<'_>) -> Vec<String> {
    let mut command = CommandLine::command();
    command.build();
    let Some((last, before)) = words.split_last() else { return Vec::new() };
    let mut typed = Typed::new();
    let mut awaited: Option<Arg> = None;
    let mut n_positionals = 0;
    for word in before {
        if word == "--" {
            // The driver's own words.
            return vec![FILES.to_owned()];
        }
        // bash gives `--app=a` as three words.
        if word == "=" && awaited.is_some() {
            continue;
        }
        if let Some(arg) = awaited.take() {
            typed.insert(arg.get_id().to_string(), word.clone());
        } else if let Some((name, value)) = word.split_once('=').filter(|_| word.starts_with('-')) {
            if let Some(arg) = flag(&command, name) {
                typed.insert(arg.get_id().to_string(), value.to_owned());
            }
        } else if word.starts_with('-') {
            awaited = flag(&command, word).filter(|arg| takes_value(arg)).cloned();
        } else if let Some(found) = command.find_subcommand(word) {
            command = found.clone();
        } else {
            n_positionals += 1;
            if n_positionals == 1 && word.starts_with(|c: char| c.is_ascii_alphabetic()) {
                typed.entry("app".to_owned()).or_insert_with(|| word.clone());
            }
        }
    }
    if let Some(arg) = awaited {
        let last = if last == "=" { "" } else { last };
        return values(&arg, last, "", &typed, look_up);
    }
    if let Some((name, value)) = last.split_once('=').filter(|_| last.starts_with("--")) {
        let Some(arg) = flag(&command, name) else { return Vec::new() };
        return values(arg, value, &format!("{name}="), &typed, look_up);
    }
    if last.starts_with('-') {
        return flags(&command, last);
    }
    let mut all = subcommands(&command, last);
    let takes_app = ["exec", "explain", "idle", "kill", "scale"].contains(&command.get_name());
    if takes_app && n_positionals == 0 && !typed.contains_key("app") {
        let apps = look_up(Lookup::Apps, &typed);
        all.extend(apps.into_iter().filter(|line| line.starts_with(last.as_str())));
    }
    let positionals: Vec<&Arg> =
        command.get_positionals().filter(|arg| !arg.is_last_set()).collect();
    // The last one may take all further words.
    let takes_more = |arg: &&&Arg| arg.get_num_args().is_some_and(|n| n.max_values() > 1);
    let positional =
        positionals.get(n_positionals).or_else(|| positionals.last().filter(takes_more));
    if let Some(arg) = positional {
        all.extend(values(arg, last, "", &typed, look_up));
    }
    all
}

fn flag<'a>(command: &'a clap::Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let is_long = |name: &str| word.strip_prefix("--") == Some(name);
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().is_some_and(is_long)
            || aliases.into_iter().any(is_long)
            || arg.get_short().is_some_and(|short| word == format!("-{short}"))
    })
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values()
}

fn flags(command: &clap::Command, begun: &str) -> Vec<String> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let long = visible.filter_map(|arg| {
        let name = format!("--{}", arg.get_long()?);
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        name.starts_with(begun).then(|| described(&name, &help))
    });
    long.collect()
}

fn subcommands(command: &clap::Command, begun: &str) -> Vec<String> {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let matching = visible.filter(|command| command.get_name().starts_with(begun));
    let line = |command: &clap::Command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        described(command.get_name(), &about)
    };
    matching.map(line).collect()
}

/// A line with a description: up to its first bracket, semicolon or colon.
fn described(name: &str, text: &str) -> String {
    let text = text.split([';', '[', ':']).next().unwrap_or_default();
    format!("{name}\t{}", one_line(text.trim()))
}

/// The values of an argument that begin with `begun`, each after `prefix`.
fn values(arg: &Arg, begun: &str, prefix: &str, typed: &Typed, look_up: LookUp<'_>) -> Vec<String> {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let names = possible.iter().map(clap::builder::PossibleValue::get_name);
        return names
            .filter(|name| name.starts_with(begun))
            .map(|n| format!("{prefix}{n}"))
            .collect();
    }
    let name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
    let what = match (arg.get_id().as_str(), name) {
        ("app" | "names" | "words", Some("NAME" | "APP")) => Lookup::Apps,
        (_, Some("GROUP")) => Lookup::Groups,
        (_, Some("ID")) if arg.get_id() != "instance" => Lookup::Executors,
        (_, Some("FILE")) => return vec![FILES.to_owned()],
        (_, Some("FOLDER" | "DIR")) => return vec![FOLDERS.to_owned()],
        _ => return Vec::new(),
    };
    let found = look_up(what, typed).into_iter();
    found.filter(|line| line.starts_with(begun)).map(|line| format!("{prefix}{line}")).collect()
}

fn look_up(what: Lookup, typed: &Typed, world: &World<'_>) -> Vec<String> {
    let value = |id: &str| typed.get(id).cloned();
    let server =
        ServerArgs { kubeconfig: value("kubeconfig").map(Into::into), context: value("context") };
    let namespace = NamespaceArgs { namespace: value("namespace"), server };
    if what == Lookup::Apps {
        let mut names = live_apps(&socket_folders(world));
        names.extend(apps_in_cluster(&namespace, world));
        names.sort();
        names.dedup();
        return names;
    }
    let client = ClientArgs {
        control: value("control"),
        control_token_file: value("control_token_file").map(Into::into),
        app: value("app"),
        namespace,
    };
    let Ok(status) = find_here(&client, world).and_then(|client| client.observe()) else {
        return Vec::new();
    };
    match what {
        Lookup::Apps | Lookup::Groups => status
            .groups
            .iter()
            .map(|group| format!("{}\t{} of {} running", group.group, group.running, group.target))
            .collect(),
        Lookup::Executors => status
            .executors
            .iter()
            .map(|one| format!("{}\t{} {}", one.id, one.group, one.state))
            .collect(),
    }
}

/// The names of the applications in the cluster, if it answers in time.
fn apps_in_cluster(args: &NamespaceArgs, world: &World<'_>) -> Vec<String> {
    let Ok(namespace) = Namespace::new(args, world) else { return Vec::new() };
    let (sender, answer) = bounded(1);
    // The thread ends with the process.
    let asked = thread::Builder::new().name("apps".to_owned()).spawn(move || {
        let objects: Objects = namespace.objects();
        let apps = namespace.apps(&objects, &[]).unwrap_or_default();
        // Nobody listens any more after the time-out.
        let _ = sender.send(apps.into_iter().map(|app| app.name).collect());
    });
    match asked {
        Ok(_) => answer.recv_timeout(CLUSTER_TIMEOUT).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The candidates without their descriptions.
    fn of(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let look_up = |what: Lookup, typed: &Typed| {
            let app = typed.get("app").map_or("any", String::as_str);
            vec![format!("{what:?}-{app}\tdescription").to_lowercase()]
        };
        let lines = candidates(&words, &look_up).into_iter();
        lines.map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn commands_flags_and_values_are_completed() {
        for (line, want) in [
            ("sta", &["status", "stage"][..]),
            ("stage p", &["put"]),
            ("status --wa", &["--watch"]),
            ("status -o ", &["wide", "json", "yaml", "name"]),
            ("status --output=j", &["--output=json"]),
            ("status --output = j", &["json"]),
            ("completions ", &["bash", "zsh", "fish"]),
            ("run -f ", &[":files"]),
            ("run --file ", &[":files"]),
            ("run --dev -- ", &[":files"]),
            ("stage get --dir ", &[":folders"]),
            ("logs a", &["apps-any"]),
            ("stop one t", &[]),
            ("stop one a", &["apps-any"]),
            ("status --app ", &["apps-any"]),
            ("status --app=a", &["--app=apps-any"]),
            ("scale --app wc ", &["groups-wc"]),
            ("scale --app=wc --group ", &["groups-wc"]),
            ("kill 1 --app wc 2 ", &["executors-wc"]),
            ("explain e", &["executors-any"]),
            ("status ", &["apps-any"]),
            ("kill ", &["apps-any", "executors-any"]),
            ("kill wc ", &["executors-wc"]),
            ("scale wc ", &[]),
            ("nothing-like-this sta", &["status", "stage"]),
        ] {
            assert_eq!(of(line), want, "{line:?}");
        }
        assert!(of("").contains(&"run".to_owned()) && !of("").contains(&"complete".to_owned()));
        let flags = of("status --");
        assert!(flags.contains(&"--app".to_owned()));
    }
}
