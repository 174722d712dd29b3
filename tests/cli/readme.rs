//! The documentation against the binary: flags, exit codes, keys of posse.yaml, API calls, labels,
//! loss reasons, links, commands, quoted messages.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use posse_core::model::event::LossReason;
use posse_core::model::waiting::Waiting;
use posse_testing::program;
use posse_wire::config::{Config, Key, Preset, SECTIONS, Stability, Type};
use posse_wire::k8s::labels;
use serde_json::Value;

const README_LINES_MAX: usize = 250;
const CONFIGURATION: &str = "docs/CONFIGURATION.md";
const CONTROL_API: &str = "docs/CONTROL_API.md";

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The part under a heading, up to the next one.
pub(super) fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let found = page.split_once(&format!("\n## {heading}\n"));
    let (_, rest) = found.unwrap_or_else(|| panic!("no heading {heading:?}"));
    rest.split("\n## ").next().unwrap()
}

/// The cells of the rows of the table whose header starts with `head`; none if there is no table.
pub(super) fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(head));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split(" |");
        cells.map(|cell| cell.trim().replace("\\|", "|")).collect::<Vec<String>>()
    };
    rows.map(cells).collect()
}

/// The first cells of a table, without backticks.
pub(super) fn first_cells(text: &str, head: &str) -> Vec<String> {
    let rows = table(text, head).into_iter();
    let cells: Vec<String> = rows.map(|cells| cells[0].replace('`', "")).collect();
    assert!(!cells.is_empty(), "no table {head:?}");
    cells
}

pub(super) fn posse(args: &[&str]) -> String {
    let binary = env!("CARGO_BIN_EXE_posse");
    let output = program(binary).args(args).current_dir(root()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {:?}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Every command, such as `stage put`, with its flags as `--help` prints them: `-f, --file <FILE>`.
pub(super) fn commands() -> BTreeMap<String, BTreeSet<String>> {
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
    let n_names = if [Some(&"stage"), Some(&"task")].contains(&words.first()) { 2 } else { 1 };
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

/// A release's files have its version in their names, and its image has it as its tag.
#[test]
fn the_files_of_a_release_have_this_version() {
    let mut names = Vec::new();
    for page in ["README.md", "docs/INSTALL.md", "docs/CHART.md"] {
        names.extend(["posse-", "posse_", "posse-image-"].map(|start| (page.to_owned(), start)));
    }
    let manifests = fs::read_dir(root().join("deploy")).unwrap().map(|entry| entry.unwrap().path());
    let manifests = manifests.filter(|path| path.is_file()).chain(pages());
    names.extend(manifests.map(|path| (path.display().to_string(), "registry.example.com/posse:")));
    let mut n_names = 0;
    for (page, start) in names {
        let text = read(&page);
        for rest in text.split(start).skip(1).filter(|rest| rest.starts_with(char::is_numeric)) {
            assert!(rest.starts_with(env!("CARGO_PKG_VERSION")), "{page}: {start}{rest:.20}");
            n_names += 1;
        }
    }
    assert!(n_names > 20, "{n_names}");
}

/// A picture that grows slows down everybody's clone.
#[test]
fn the_picture_of_the_page_is_small() {
    let n_bytes = fs::metadata(root().join("docs/page.png")).unwrap().len();
    assert!((10_000..100_000).contains(&n_bytes), "{n_bytes} bytes");
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

/// What the program, its files and its comments name.
#[test]
fn the_pages_that_the_sources_name_exist() {
    let sources = ["src", "crates", "clients"].map(|folder| sources(&root().join(folder))).concat();
    let ends = |c: char| !(c.is_ascii_alphanumeric() || "_.#-".contains(c));
    let names = sources.split("docs/").skip(1).map(|rest| rest.split(ends).next().unwrap());
    let mut n_names = 0;
    for (page, rest) in names.filter_map(|name| name.split_once(".md")) {
        let text = read(&format!("docs/{page}.md"));
        if let Some(anchor) = rest.strip_prefix('#') {
            let anchor = anchor.trim_end_matches('.');
            assert!(
                text.lines().any(|line| slug(line.trim_start_matches('#')) == anchor),
                "{anchor}"
            );
        }
        n_names += 1;
    }
    assert!(n_names > 5, "{n_names}");
}

/// The anchor that GitHub gives to a heading.
pub(super) fn slug(heading: &str) -> String {
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

/// The tables of the page come from the descriptions of the keys: UPDATE_DOCS=1 writes them.
#[test]
fn the_tables_of_the_configuration_describe_the_keys() {
    let page = read(CONFIGURATION);
    let mut wanted = page.clone();
    for (place, keys) in SECTIONS {
        let name = place.trim_end_matches("[]").rsplit('.').next().unwrap();
        let heading = if name.is_empty() { "Top level".to_owned() } else { format!("`{name}`") };
        let text = section(&page, &heading);
        let start = text.find(KEYS_HEAD).unwrap_or_else(|| panic!("no table of keys in {heading}"));
        let old = text[start..].split("\n\n").next().unwrap();
        let rows = keys.iter().map(row);
        let new = format!("{KEYS_HEAD}\n|---|---|---|---|{}", rows.collect::<String>());
        wanted = wanted.replace(text, &text.replace(old.trim_end(), &new));
    }
    written(CONFIGURATION, &page, &wanted);
}

/// The page is as it is wanted, or is written so.
#[track_caller]
fn written(name: &str, page: &str, wanted: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(root().join(name), wanted).unwrap();
        return;
    }
    for (line, (is, want)) in page.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(is, want, "{name}:{}: UPDATE_DOCS=1 writes the tables", line + 1);
    }
    assert_eq!(page.len(), wanted.len(), "{name}: UPDATE_DOCS=1 writes the tables");
}

const KEYS_HEAD: &str = "| key | type | default | meaning |";

fn row(key: &Key) -> String {
    let default = match key.default {
        Preset::Is(value) => format!("`{value}`"),
        Preset::Told { words, .. } => words.to_owned(),
    };
    let word = match key.stability {
        Stability::Stable => "",
        Stability::Beta => " *Beta.*",
        Stability::Experimental => " *Experimental.*",
    };
    format!("\n| `{}` | {} | {default} | {}{word} |", key.name, key.value.page(), key.text)
}

/// The words that a call takes are those of the file.
#[test]
fn the_schema_of_a_group_has_the_words_of_the_keys() {
    let document: Value = serde_json::from_str(&read("crates/control/src/openapi.json")).unwrap();
    let fields = document["components"]["schemas"]["PutGroup"]["properties"].as_object().unwrap();
    let (_, keys) = SECTIONS.iter().find(|(place, _)| *place == "executors[]").unwrap();
    let mut n_words = 0;
    for (name, schema) in fields.iter().filter(|(name, _)| *name != "target") {
        let key = keys.iter().find(|key| key.name == name);
        let key = key.unwrap_or_else(|| panic!("{name} is no key of a group"));
        if let Type::Words(words) = key.value {
            let known: Vec<Option<&str>> = words.iter().copied().map(Some).chain([None]).collect();
            assert_eq!(schema["enum"], serde_json::json!(known), "{name}");
            n_words += 1;
        }
    }
    assert!(n_words > 4, "{n_words}");
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
    let document: Value = serde_json::from_str(&read("crates/control/src/openapi.json")).unwrap();
    let mut known = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
        known.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    assert_eq!(BTreeSet::from_iter(listed), known);
}

/// In the words of the log and of `posse explain`.
#[test]
fn what_a_group_waits_for() {
    const HEAD: &str = "| waiting | what posse waits for |\n|---|---|";
    let page = read(CONTROL_API);
    let text = section(&page, "What a group waits for");
    let start = text.find(HEAD).expect("a table");
    let old = text[start..].split("\n\n").next().unwrap().trim_end();
    let rows: BTreeSet<String> = Waiting::all()
        .map(|waiting| match (waiting.as_str(), waiting.describe()) {
            (name, (what, "")) => format!("\n| {name} | {what} |"),
            (name, (what, why)) => format!("\n| {name} | {what}: {why} |"),
        })
        .collect();
    let new = format!("{HEAD}{}", rows.into_iter().collect::<String>());
    written(CONTROL_API, &page, &page.replace(text, &text.replace(old, &new)));
}

#[test]
fn the_loss_reasons_and_their_budgets() {
    let page = read(CONTROL_API);
    let rows = table(section(&page, "Reasons for a loss"), "| reason |");
    let listed: BTreeSet<(String, String)> =
        rows.into_iter().map(|cells| (cells[0].clone(), cells[2].clone())).collect();
    let budget = |reason: LossReason| reason.budget().map_or("none", |budget| budget.as_str());
    let known =
        LossReason::ALL.map(|reason| (reason.as_str().to_owned(), budget(reason).to_owned()));
    assert_eq!(listed, BTreeSet::from(known));
}

/// The last cells name test functions, files or fuzz targets.
#[test]
fn the_tests_of_the_security_page_exist() {
    let page = read("docs/SECURITY.md");
    let known =
        ["src", "crates", "tests", "clients"].map(|folder| sources(&root().join(folder))).concat();
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
                            || known.contains(&format!("def {name}("))
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

/// Each room has its row, each path is there, and each scenario is one of tests/e2e.
#[test]
fn the_architecture_is_what_is_there() {
    const PAGE: &str = "docs/ARCHITECTURE.md";
    let page = read(PAGE);
    let mut rows = table(&page, "| crate | content |");
    assert_eq!(names_of(&rows, 0), folders("crates"));
    for row in &mut rows {
        let listed = names_of(&[vec![row.remove(2)]], 0);
        let known = folders(&format!("crates/{}/src", row[0].replace('`', "")));
        assert_eq!(
            listed,
            known.difference(&BTreeSet::from(["tests".to_owned()])).cloned().collect()
        );
    }
    let rules = section(&page, "Rules, files and tests");
    let scenarios = sources(&root().join("tests/e2e"));
    for name in rules.split('`').skip(1).step_by(2) {
        let is_there = match name.contains('/') {
            true => ["", "crates/core/src"].iter().any(|at| root().join(at).join(name).exists()),
            false => scenarios.contains(&format!("fn {name}(")),
        };
        assert!(is_there, "{PAGE} names {name}, which does not exist");
    }
}

/// What stands in backticks in these cells, without a final slash.
fn names_of(rows: &[Vec<String>], cell: usize) -> BTreeSet<String> {
    let names = rows.iter().flat_map(|cells| cells[cell].split('`').skip(1).step_by(2));
    names.map(|name| name.trim_end_matches('/').to_owned()).collect()
}

fn folders(below: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(below)).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Users search the page for the message that they see. Each part of a quote between its gaps (`…`)
/// must occur in the sources.
#[test]
fn the_messages_in_troubleshooting_exist() {
    let page = read("docs/TROUBLESHOOTING.md");
    let sources = ["src", "crates"].map(|folder| sources(&root().join(folder))).concat();
    let rows = page.split("\n## ").flat_map(|section| table(section, "| posse says |"));
    let quotes: Vec<String> = rows
        .filter_map(|cells| Some(cells[0].strip_prefix('`')?.split('`').next()?.to_owned()))
        .collect();
    assert!(quotes.len() > 15, "{quotes:?}");
    for quote in quotes {
        let parts = quote.split(['…', '"', '\'']).flat_map(|part| part.split(": "));
        for part in parts.map(|part| part.trim_matches([' ', ':', ';'])) {
            assert!(sources.contains(part), "{quote:?}: {part:?} is not in the sources");
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
        } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
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
    let page = read("docs/DRIVERS.md");
    let rows = table(section(&page, "Environment variables"), "| variable | driver | executor |");
    let of_each = rows.iter().filter(|cells| cells[2] == "yes");
    let listed: BTreeSet<&str> = of_each.flat_map(|cells| cells[0].split(", ")).collect();
    assert_eq!(listed, variables);
}

fn is_variable(word: &str) -> bool {
    word.starts_with("POSSE_") && word.bytes().all(|c| c.is_ascii_uppercase() || c == b'_')
}
