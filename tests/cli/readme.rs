//! The documentation against the binary: flags, exit codes, keys of posse.yaml, API calls, labels,
//! loss reasons, links, commands, quoted messages.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use posse::cli::exit::Code;
use posse::core::model::event::LossReason;
use posse::core::model::waiting::Waiting;
use posse::runtime::signals::Signal;
use posse::wire::config::{Config, KEYS};
use posse::wire::labels;
use serde_json::Value;

const README_LINES_MAX: usize = 250;
const CLI: &str = "docs/CLI.md";
const CONFIGURATION: &str = "docs/CONFIGURATION.md";
const CONTROL_API: &str = "docs/CONTROL_API.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The part under a heading, up to the next one.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let found = page.split_once(&format!("\n## {heading}\n"));
    let (_, rest) = found.unwrap_or_else(|| panic!("no heading {heading:?}"));
    rest.split("\n## ").next().unwrap()
}

/// The cells of the rows of the table whose header starts with `head`; none if there is no table.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(head));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().replace("\\|", "|")).collect::<Vec<String>>()
    };
    rows.map(cells).collect()
}

/// The first cells of a table, without backticks.
fn first_cells(text: &str, head: &str) -> Vec<String> {
    let rows = table(text, head).into_iter();
    let cells: Vec<String> = rows.map(|cells| cells[0].replace('`', "")).collect();
    assert!(!cells.is_empty(), "no table {head:?}");
    cells
}

fn posse(args: &[&str]) -> String {
    let binary = env!("CARGO_BIN_EXE_posse");
    let output = Command::new(binary).args(args).current_dir(root()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {:?}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Every command, such as `stage put`, with its flags as `--help` prints them: `-f, --file <FILE>`.
fn commands() -> BTreeMap<String, BTreeSet<String>> {
    let mut commands = BTreeMap::new();
    for command in subcommands(&posse(&["--help"])) {
        let help = posse(&[&command, "--help"]);
        let inner = subcommands(&help);
        if inner.is_empty() {
            commands.insert(command, flags(&help));
            continue;
        }
        for sub in inner {
            commands.insert(format!("{command} {sub}"), flags(&posse(&[&command, &sub, "--help"])));
        }
    }
    commands
}

fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let words = lines.map_while(|line| line.split_whitespace().next());
    words.filter(|word| *word != "help").map(str::to_owned).collect()
}

fn flags(help: &str) -> BTreeSet<String> {
    let lines = help.lines().skip_while(|line| *line != "Options:").skip(1);
    // Below other headings, too. A value of an option starts with "- ", an option with "-n" or "--name".
    let is_flag = |line: &&str| line.starts_with('-') && !line.starts_with("- ");
    let lines = lines.map(str::trim_start).filter(is_flag);
    let flags = lines.map(|line| line.split("  ").next().unwrap().trim_end().to_owned());
    flags.filter(|flag| flag != "-h, --help").collect()
}

/// A section of CLI.md lists a command's flags; a link to a section of shared flags adds those.
#[test]
fn every_flag_of_every_command_is_documented() {
    let page = read(CLI);
    for (command, known) in commands() {
        let text = section(&page, &format!("`posse {command}`"));
        let mut listed: BTreeSet<String> =
            table(text, "| flag |").into_iter().map(|cells| cells[0].replace('`', "")).collect();
        listed.extend(first_cells(section(&page, "Global flags"), "| flag |"));
        for shared in ["Configuration flags", "Server flags", "Output flags", "Control flags"] {
            if text.contains(&format!("](#{})", slug(shared))) {
                listed.extend(first_cells(section(&page, shared), "| flag |"));
            }
        }
        assert_eq!(listed, known, "posse {command}: {CLI} against --help");
    }
}

/// Also guards that an example is not left behind when a command or a flag changes.
#[test]
fn the_commands_in_the_pages_exist() {
    let commands = commands();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap().replace("\\\n", " ");
        for block in text.split("```sh\n").skip(1) {
            for line in block.split("```").next().unwrap().lines() {
                check_command(&commands, line, &page);
            }
        }
    }
}

fn check_command(commands: &BTreeMap<String, BTreeSet<String>>, line: &str, page: &Path) {
    let line = line.split(" #").next().unwrap();
    let line = line.replace("cargo run --release -- ", "posse ");
    let words = line.split_whitespace().skip_while(|word| *word != "posse").skip(1);
    let words: Vec<&str> =
        words.take_while(|word| !["--", "|", "&", "&&", ">"].contains(word)).collect();
    let n_names = if words.first() == Some(&"stage") { 2 } else { 1 };
    let Some((names, arguments)) = words.split_at_checked(n_names) else { return };
    let found = commands.get(&names.join(" "));
    let known = found.unwrap_or_else(|| panic!("{}: no such command: {line}", page.display()));
    let known: BTreeSet<&str> = known.iter().flat_map(|flag| flag.split([',', ' '])).collect();
    for flag in arguments.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
        let flag = flag.split('=').next().unwrap();
        assert!(known.contains(flag), "{}: unknown flag {flag}: {line}", page.display());
    }
}

fn pages() -> Vec<PathBuf> {
    let folders = [".", "docs", "examples", "adapters"].map(|folder| root().join(folder));
    let below = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = folders.into_iter().flat_map(below).map(|path| match path.is_dir() {
        true => path.join("README.md"),
        false => path,
    });
    let is_page =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "md") && path.is_file();
    let pages: BTreeSet<PathBuf> = found.filter(is_page).collect();
    assert!(pages.len() > 15, "{pages:?}");
    pages.into_iter().collect()
}

#[test]
fn the_readme_is_short() {
    let n_lines = read("README.md").lines().count();
    assert!(n_lines <= README_LINES_MAX, "{n_lines} lines");
}

#[test]
fn the_links_between_the_pages_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap().join(path),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let target = fs::read_to_string(&target).unwrap();
                let mut headings = target.lines().filter(|line| line.starts_with('#'));
                let is_there = headings.any(|line| slug(line.trim_start_matches('#')) == anchor);
                assert!(is_there, "{}: {link}", page.display());
            }
        }
    }
}

/// The anchor that GitHub gives to a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn the_faults_of_the_embedded_cluster() {
    let listed = first_cells(section(&read("docs/EMBEDDED.md"), "Faults"), "| fault |");
    let help = posse(&["dev", "--help"]);
    let lines = help.lines().skip_while(|line| !line.starts_with("Faults, ")).skip(1);
    let known: Vec<&str> = lines.map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(listed, known);
}

#[test]
fn the_exit_codes() {
    let cells = first_cells(section(&read(CLI), "Exit codes"), "| code |");
    let listed: Vec<u8> = cells.iter().filter_map(|cell| cell.parse().ok()).collect();
    let known = [
        Code::Clean,
        Code::Failed,
        Code::Usage,
        Code::Server,
        Code::TemplateRefused,
        Code::WorkGivenUp,
        Code::BudgetExhausted,
        Code::Remain,
        Code::TakenOver,
        Code::DriverSilent,
        Code::Signal(Signal::Int),
    ];
    assert_eq!(listed, known.map(Code::number));
}

/// `KEYS` is what the parser accepts: it refuses every other key.
#[test]
fn every_key_of_posse_yaml_is_documented() {
    let page = read(CONFIGURATION);
    for (name, keys) in KEYS {
        let listed = first_cells(section(&page, &heading_of(name)), "| key |");
        let listed: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
        let known: BTreeSet<&str> = keys.iter().copied().collect();
        assert_eq!(listed, known, "{}: {CONFIGURATION} against the parser", heading_of(name));
    }
}

fn heading_of(section: &str) -> String {
    if section.is_empty() { "Top level".to_owned() } else { format!("`{section}`") }
}

/// A default cell that is nothing but code is a value: writing it must change nothing.
#[test]
fn the_defaults_of_posse_yaml_are_the_parsers() {
    let page = read(CONFIGURATION);
    let parse = |yaml: &str| {
        Config::parse(CONFIGURATION, yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
    };
    let mut n_defaults = 0;
    for (name, _) in KEYS {
        for cells in table(section(&page, &heading_of(name)), "| key |") {
            let [key, _type, default, _meaning] = cells.as_slice() else { panic!("{cells:?}") };
            let key = key.trim_matches('`');
            let value = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
            let Some(value) = value.filter(|value| !value.contains('`')) else { continue };
            let (with, without) = match *name {
                "" => (format!("app: a\n{key}: {value}"), "app: a"),
                "executors" => (
                    format!("app: a\nexecutors: [{{image: x, {key}: {value}}}]"),
                    "app: a\nexecutors: [{image: x}]",
                ),
                "volumes_per_slot" => (
                    format!(
                        "executors: [{{image: x, volumes_per_slot: \
                         [{{name: a, size: 1Gi, mount: /a, {key}: {value}}}]}}]"
                    ),
                    "executors: [{image: x, volumes_per_slot: [{name: a, size: 1Gi, mount: /a}]}]",
                ),
                "beside" => (
                    format!(
                        "executors: [{{image: x, beside: {{labels: {{a: b}}, {key}: {value}}}}}]"
                    ),
                    "executors: [{image: x, beside: {labels: {a: b}}}]",
                ),
                "scale" => (
                    format!("executors: [{{image: x, scale: {{command: [a], {key}: {value}}}}}]"),
                    "executors: [{image: x, scale: {command: [a]}}]",
                ),
                "credentials" => {
                    let entry = "name: a, command: [a], every: 1h, secret: a, mount: /a";
                    (
                        format!("credentials: [{{{entry}, {key}: {value}}}]"),
                        "credentials: [{name: a, command: [a], every: 1h, secret: a, mount: /a}]",
                    )
                }
                name => (format!("app: a\n{name}: {{{key}: {value}}}"), "app: a"),
            };
            assert_eq!(parse(&with), parse(without), "{name}.{key}: {value}");
            n_defaults += 1;
        }
    }
    assert!(n_defaults > 30, "{n_defaults}");
}

#[test]
fn the_configurations_in_the_pages_are_valid() {
    let page = read(CONFIGURATION);
    for block in page.split("```yaml\n").skip(1) {
        let yaml = block.split("```").next().unwrap();
        Config::parse(CONFIGURATION, yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    }
}

#[test]
fn the_calls_of_the_control_api() {
    let listed = first_cells(section(&read(CONTROL_API), "Calls"), "| call |");
    let document: Value = serde_json::from_str(&read("src/control/openapi.json")).unwrap();
    let mut known = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
        known.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    assert_eq!(BTreeSet::from_iter(listed), known);
}

#[test]
fn what_a_group_waits_for() {
    let page = read(CONTROL_API);
    let listed = first_cells(section(&page, "What a group waits for"), "| waiting |");
    let mut known = Waiting::ALL.map(Waiting::as_str);
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[test]
fn the_loss_reasons_and_their_budgets() {
    let page = read(CONTROL_API);
    let rows = table(section(&page, "Reasons for a loss"), "| reason |");
    let listed: BTreeSet<(String, String)> =
        rows.into_iter().map(|cells| (cells[0].clone(), cells[2].clone())).collect();
    let known = [
        LossReason::AdmissionRejected,
        LossReason::AppError,
        LossReason::Completed,
        LossReason::ConfigError,
        LossReason::DeadlineExceeded,
        LossReason::Deleted,
        LossReason::Disconnected,
        LossReason::DiskExceeded,
        LossReason::Evicted,
        LossReason::ImageError,
        LossReason::HeartbeatTimeout,
        LossReason::Killed,
        LossReason::MaxAge,
        LossReason::NodeLost,
        LossReason::NodeShutdown,
        LossReason::OomKilled,
        LossReason::Preempted,
        LossReason::StartTimeout,
        LossReason::Unknown,
    ];
    let budget = |reason: LossReason| reason.budget().map_or("none", |budget| budget.as_str());
    let known = known.map(|reason| (reason.as_str().to_owned(), budget(reason).to_owned()));
    assert_eq!(listed, BTreeSet::from(known));
}

/// The last cells name test functions, files or fuzz targets.
#[test]
fn the_tests_of_the_security_page_exist() {
    let page = read("docs/SECURITY.md");
    let known = sources(&root().join("src")) + &sources(&root().join("tests"));
    let targets = read("fuzz/Cargo.toml");
    let head = "| attack | answer | tests |";
    let mut n_tests = 0;
    for section in page.split("\n## ") {
        for cells in table(section, head) {
            for name in cells.last().unwrap().split('`').skip(1).step_by(2) {
                let is_known = match name.contains('/') {
                    true => root().join(name).exists(),
                    false => {
                        known.contains(&format!("fn {name}("))
                            || targets.contains(&format!("\"{name}\""))
                    }
                };
                assert!(is_known, "docs/SECURITY.md names {name}, which does not exist");
                n_tests += 1;
            }
        }
    }
    assert!(n_tests > 40, "only {n_tests} tests");
}

/// Users search the page for the message that they see. Each part of a quote between its gaps (`…`)
/// must occur in the sources.
#[test]
fn the_messages_in_troubleshooting_exist() {
    let page = read("docs/TROUBLESHOOTING.md");
    let sources = sources(&root().join("src"));
    let rows = page.split("\n## ").flat_map(|section| table(section, "| posse says |"));
    let quotes: Vec<String> = rows
        .filter_map(|cells| Some(cells[0].strip_prefix('`')?.split('`').next()?.to_owned()))
        .collect();
    assert!(quotes.len() > 15, "{quotes:?}");
    for quote in quotes {
        let parts = quote.split(['…', '"', '\'']).flat_map(|part| part.split(": "));
        for part in parts.map(|part| part.trim_matches([' ', ':', ';'])) {
            assert!(sources.contains(part), "{quote:?}: {part:?} is not in src/");
        }
    }
}

/// All source files below a folder, with string literals that span lines joined.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let lines = fs::read_to_string(&path).unwrap();
            let mut parts = lines.split("\\\n");
            text.extend(parts.next());
            parts.for_each(|part| text.push_str(part.trim_start()));
        }
    }
    text
}

#[test]
fn the_template_of_deploy_gets_what_the_page_says() {
    let pod = posse(&["render", "--app", "a", "--template", "deploy/executor.yaml"]);
    let page = read(CONFIGURATION);
    let told = section(&page, "What executors get");
    let labels = [labels::APP, labels::INSTANCE, labels::GROUP, labels::EXECUTOR_ID, labels::SLOT];
    for label in labels.into_iter().chain([labels::MANAGED_BY.0, labels::COMPONENT.0]) {
        assert!(told.contains(label) && pod.contains(&format!(" {label}:")), "{label}\n{pod}");
    }
    let variables: BTreeSet<&str> =
        pod.split_whitespace().filter(|word| is_variable(word)).collect();
    let (_, listed) = told.split_once("Environment").unwrap();
    let listed = listed.split("\n- ").next().unwrap();
    let listed: BTreeSet<&str> =
        listed.split([' ', ',', '.', '\n']).filter(|word| is_variable(word)).collect();
    assert_eq!(listed, variables);
}

fn is_variable(word: &str) -> bool {
    word.starts_with("POSSE_") && word.bytes().all(|c| c.is_ascii_uppercase() || c == b'_')
}
