//! What the README and `deploy/` promise is what the binary does: flags, exit codes, posse.yaml,
//! labels, loss reasons, the template.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use posse::cli::exit::Code;
use posse::core::model::event::LossReason;
use posse::wire::config::{Config, Group, KEYS};
use posse::wire::labels;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// The part under a heading, up to the next one.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let (_, rest) = readme.split_once(&format!("\n## {heading}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

/// The cells of the rows of the table that begins with `head`, without its backticks.
fn table(text: &str, head: &str) -> Vec<Vec<String>> {
    let lines = text.lines().skip_while(|line| !line.starts_with(head));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split(" | ");
        cells.map(|cell| cell.trim().replace('`', "")).collect::<Vec<String>>()
    };
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "no table {head:?}");
    rows
}

fn posse(args: &[&str]) -> String {
    let binary = env!("CARGO_BIN_EXE_posse");
    let output = Command::new(binary).args(args).current_dir(root()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {:?}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_flags_of_run_and_what_they_do() {
    let listed: Vec<(String, String)> = table(section(&readme(), "`posse run`"), "| flag |")
        .into_iter()
        .map(|cells| (cells[0].clone(), cells[1].clone()))
        .collect();
    let help = posse(&["run", "--help"]).replace('`', "");
    let lines = help.lines().skip_while(|line| *line != "Options:").skip(1);
    let known: Vec<(String, String)> = lines
        .map(|line| line.trim_start().split_once("  ").unwrap())
        .map(|(flag, text)| (flag.to_owned(), text.trim_start().to_owned()))
        .filter(|(flag, _)| flag != "-h, --help")
        .collect();
    assert_eq!(listed, known);
}

#[test]
fn the_faults_of_the_embedded_cluster() {
    let page = fs::read_to_string(root().join("docs/EMBEDDED.md")).unwrap();
    let pairs = table(section(&page, "Faults"), "| fault |").into_iter();
    let listed: Vec<(String, String)> =
        pairs.map(|cells| (cells[0].clone(), cells[1].clone())).collect();
    let help = posse(&["dev", "--help"]);
    let lines = help.lines().skip_while(|line| !line.starts_with("Faults, ")).skip(1);
    let known: Vec<(String, String)> = lines
        .map(|line| line.trim().split_once("  ").unwrap())
        .map(|(fault, does)| (fault.to_owned(), does.trim().to_owned()))
        .collect();
    assert_eq!(listed, known);
}

#[test]
fn the_exit_codes() {
    let rows = table(section(&readme(), "`posse run`"), "| code |");
    let listed: Vec<u8> = rows.iter().filter_map(|cells| cells[0].parse().ok()).collect();
    let known = [
        Code::Clean,
        Code::Failed,
        Code::Usage,
        Code::Server,
        Code::TemplateRefused,
        Code::BudgetSpent,
        Code::Remain,
        Code::TakenOver,
        Code::DriverSilent,
    ];
    assert_eq!(listed, known.map(Code::number));
}

#[test]
fn the_reference_of_posse_yaml_is_read_and_shows_the_defaults() {
    let readme = readme();
    let (_, rest) = section(&readme, "posse.yaml").split_once("```yaml\n").unwrap();
    let (yaml, _) = rest.split_once("```").unwrap();
    let config = Config::parse("README.md", yaml).unwrap_or_else(|error| panic!("{error}"));
    let default = Config::default();
    let shown = (&config.policy, config.poll_interval_ms, config.node_loss_after_ms, config.watch);
    let meant =
        (&default.policy, default.poll_interval_ms, default.node_loss_after_ms, default.watch);
    assert_eq!(shown, meant);
    let shown = (config.lease, config.exclusive, config.orphans);
    assert_eq!(shown, (default.lease, Some(false), default.orphans));
    assert_eq!((config.grace_ms, config.driver.ready), (default.grace_ms, default.driver.ready));
    let (group, usual) = (&config.executors[0], Group::default());
    let shown = (group.name.as_str(), group.min, group.scale_down, group.replace);
    assert_eq!(shown, (usual.name.as_str(), usual.min, usual.scale_down, usual.replace));

    let words: BTreeSet<&str> =
        yaml.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).collect();
    for (section, keys) in KEYS {
        for key in *keys {
            assert!(words.contains(format!("{key}:").as_str()), "{section}.{key} is not there");
        }
    }
}

#[test]
fn the_loss_reasons_and_their_budgets() {
    let readme = readme();
    let rows = table(section(&readme, "Talking to a run"), "| reason |");
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

#[test]
fn the_template_of_deploy_gets_what_the_readme_says() {
    let pod = posse(&["render", "--app", "a", "--template", "deploy/executor.yaml"]);
    let readme = readme();
    let told = section(&readme, "What executors get");
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
