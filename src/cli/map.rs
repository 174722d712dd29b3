//! `posse map`: runs each line of its input once as a command in an executor. It is a run whose driver is
//! this program again (`map-feed`), which hands the lines on as tasks.

use std::path::Path;

use crate::cli::args::RunArgs;
use crate::cli::args::map::MapArgs;
use crate::cli::exit::{Code, Failure};
use crate::cli::run;
use crate::cli::world::World;

mod feed;
mod input;
mod output;
mod resume;

pub use feed::feed;

/// `posse map`.
///
/// # Errors
/// The arguments are wrong, or the run could not start.
pub fn map(args: &MapArgs, world: &World<'_>) -> Result<Code, Failure> {
    let mut file = args.file.clone();
    if file.executors.is_some() {
        return Err(Failure::usage(
            "`posse map` starts an executor for each line: use -j instead of --executors",
        ));
    }
    if file.file.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage("-f -: stdin has the tasks; give the configuration as a file"));
    }
    file.executors = Some(0);
    file.command.get_or_insert_with(|| "sh -c".to_owned());
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::new(Code::Failed, format!("posse: {error}")))?;
    let mut driver = vec![program.display().to_string(), "map-feed".to_owned()];
    driver.push(format!("--retries={}", args.line.retries));
    if let Some(path) = &args.line.resume {
        driver.push(format!("--resume={}", world.dir.join(path).display()));
    }
    if let Some(path) = &args.server.kubeconfig {
        driver.push(format!("--kubeconfig={}", world.dir.join(path).display()));
    }
    if let Some(context) = &args.server.context {
        driver.push(format!("--context={context}"));
    }
    let run = RunArgs {
        file,
        server: args.server.clone(),
        #[cfg(feature = "dev")]
        dev: args.dev,
        progress: args.progress,
        max: Some(args.jobs),
        driver,
        ..RunArgs::default()
    };
    run::run(&run, world)
}
