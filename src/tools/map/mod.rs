//! `posse map`: runs each line of its input once as a command in an executor. It is a run whose driver is
//! this program again (`map-feed`), which hands the lines on as tasks.

use std::iter;
use std::path::Path;

use clap::ValueEnum as _;

use crate::args::map::MapArgs;
use crate::args::output::OutputArgs;
use crate::args::{EmbeddedArgs, RunArgs};
use crate::exit::{Code, Failure};
use crate::world::World;

mod feed;
mod input;
mod output;
mod resume;
mod summary;

pub use feed::feed;

/// `posse map`.
///
/// # Errors
/// The arguments are wrong, or the run could not start.
pub fn map(args: &MapArgs, world: &World<'_>) -> Result<Code, Failure> {
    crate::run::run(&run_args(args, world)?, world)
}

/// The run whose driver is the feed.
#[cfg_attr(
    not(feature = "dev"),
    expect(clippy::needless_update, reason = "only the embedded cluster has more arguments")
)]
fn run_args(args: &MapArgs, world: &World<'_>) -> Result<RunArgs, Failure> {
    let mut file = args.file.clone();
    if file.executors.is_some() {
        return Err(Failure::usage(
            "`posse map` starts an executor for each line: use -j instead of --executors",
        ));
    }
    if file.file.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage("-f -: stdin has the tasks; give the configuration as a file"));
    }
    file.command.get_or_insert_with(|| "sh -c".to_owned());
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::new(Code::Failed, format!("posse: {error}")))?;
    let mut driver = vec![program.display().to_string(), "map-feed".to_owned()];
    driver.extend(output_flags(world.output));
    driver.push(format!("--retries={}", args.line.retries));
    let progress = args.line.progress.to_possible_value();
    driver.extend(progress.map(|value| format!("--progress={}", value.get_name())));
    if let Some(path) = &args.line.resume {
        driver.push(format!("--resume={}", world.dir.join(path).display()));
    }
    if let Some(path) = &args.server.kubeconfig {
        driver.push(format!("--kubeconfig={}", world.dir.join(path).display()));
    }
    if let Some(context) = &args.server.context {
        driver.push(format!("--context={context}"));
    }
    Ok(RunArgs {
        file,
        server: args.server.clone(),
        embedded: EmbeddedArgs { dev: args.dev, ..EmbeddedArgs::default() },
        // That of the lines is told instead.
        jobs: Some(args.jobs),
        driver,
        ..RunArgs::default()
    })
}

/// The flags about the log, for the feed.
fn output_flags(output: OutputArgs) -> impl Iterator<Item = String> {
    let OutputArgs { color, quiet, verbose, log_format } = output;
    let colors = color.to_possible_value().map(|value| format!("--color={}", value.get_name()));
    let format = log_format.to_possible_value().map(|it| format!("--log-format={}", it.get_name()));
    let quiet = quiet.then(|| "--quiet".to_owned());
    let verbose = iter::repeat_n("--verbose".to_owned(), verbose.into());
    colors.into_iter().chain(format).chain(quiet).chain(verbose)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Command, CommandLine, tools};
    use crate::settings::run_settings;
    use crate::testing::Folder;
    use posse_run::run::settings::{RecordSetting, RunSettings};
    use posse_wire::config::Ready;

    fn settings(file: &str, args: &str) -> Result<RunSettings, Failure> {
        let folder = Folder::new(&[("posse.yaml", file)]);
        let words = ["posse", "map"].into_iter().chain(args.split_whitespace());
        let Command::Tools(tools::Command::Map(args)) =
            CommandLine::try_parse_from(words).unwrap().command
        else {
            panic!("not `posse map`")
        };
        let world = World::new(&|_| None, folder.path());
        run_settings(&run_args(&args, &world)?, &world)
    }

    #[test]
    fn what_the_file_says_about_its_driver_and_numbers_does_not_apply() {
        let file = "driver: {silence: 2s, ready: 'tcp:7077'}\n\
                    executors: [{image: i, count: 3, min: 2, max: 3, command: [a], args: [b]}]";
        let got = settings(file, "-j 7").unwrap();
        let spec = &got.groups[0].spec;
        assert_eq!((spec.target, spec.min, spec.max), (0, 0, Some(7)));
        assert_eq!((got.policy.driver_silence_ms, got.driver.ready), (0, Ready::None));
        assert_eq!(got.app, "map");
        assert!(matches!(got.record, RecordSetting::Off) && got.policy.keep_failed == 0);
        for (file, args, want) in [
            ("app: a\nexecutors: [{image: i}]", "", "a"),
            ("app: a\nexecutors: [{image: i}]", "--app b", "b"),
            ("", "--image i", "map"),
        ] {
            assert_eq!(settings(file, args).unwrap().app, want, "{file} {args}");
        }
    }

    #[test]
    fn a_file_that_does_not_fit_is_an_error_that_names_the_command() {
        for (file, want) in [
            (
                "executors: [{group: x, image: i}, {group: y, image: i}]",
                "posse.yaml: `posse map` needs one group, and there are several: x, y",
            ),
            (
                "executors: [{image: i, scale: {command: [a]}}]",
                "posse.yaml: executors[0].scale: `posse map` starts an executor for each line: \
                 remove the key",
            ),
            (
                "control: off\nexecutors: [{image: i}]",
                "posse.yaml: `posse map` needs the control API on a socket: remove the key `control`",
            ),
            (
                "control: 127.0.0.1:0\nexecutors: [{image: i}]",
                "posse.yaml: `posse map` needs the control API on a socket: remove the key `control`",
            ),
        ] {
            let failure = settings(file, "").unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), (Code::Usage, want));
        }
        let failure = settings("executors: [{group: g}]", "").unwrap_err();
        assert!(!failure.message.contains("--command"), "{}", failure.message);
    }
}
