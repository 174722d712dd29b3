//! `posse stop`: ends applications in the cluster.

use std::io::Write;

use crate::args::submit::StopArgs;
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::terminal::print;
use crate::world::World;
use posse_base::text::one_line;
use posse_submit::apps::matches;
use posse_submit::stop;

/// `posse stop`.
///
/// # Errors
/// No application has one of the names, the API server refuses, or pods were not confirmed deleted
/// (exit code 12).
pub fn stop(args: &StopArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let namespace = Namespace::new(&args.namespace, world)?;
    let objects = namespace.objects();
    let wanted: Vec<String> = args.names.iter().chain(&args.app).cloned().collect();
    let apps = namespace.apps(&objects, &wanted)?;
    let not_submitted: Vec<String> =
        apps.iter().filter(|app| app.state.is_none()).map(|app| app.name.clone()).collect();
    let mut names: Vec<String> = apps.into_iter().map(|app| app.name).collect();
    for name in &wanted {
        let is_pattern = name.contains(['*', '?']);
        if !is_pattern && !names.contains(name) {
            // A submit that was killed may have left objects without a Job.
            names.push(name.clone());
        } else if is_pattern && !names.iter().any(|app| matches(name, app)) {
            return Err(namespace.no_such_app(name));
        }
    }
    let grace_s = args.grace.map(|ms| u32::try_from(ms.div_ceil(1_000)).unwrap_or(u32::MAX));
    // All applications are told to end before the first is waited for, so that they end together.
    let asked: Vec<_> =
        names.iter().map(|app| (app, stop::StopRequest::new(&objects, app, grace_s))).collect();
    let mut last: Option<Failure> = None;
    for (app, asked) in asked {
        let failure = match asked.and_then(|asked| asked.finish()) {
            Ok(stop::Stopped::Gone) => {
                print(out, &format!("application {} stopped\n", one_line(app)))?;
                continue;
            }
            Ok(stop::Stopped::Nothing) if not_submitted.contains(app) => {
                let message = format!(
                    "application {app} was not submitted: end the `posse run` that keeps its \
                     executors, or see `posse cleanup --app {app}`"
                );
                Failure::new(Code::Failed, message)
            }
            Ok(stop::Stopped::Nothing) => namespace.no_such_app(app),
            Ok(stop::Stopped::Remain(pods)) => {
                let pods = pods.join(", ");
                let message = format!("application {app}: not confirmed deleted: {pods}");
                Failure::new(Code::Remain, message)
            }
            Err(refusal) => namespace.refused("cannot be stopped", app, &refusal),
        };
        if let Some(earlier) = last.replace(failure) {
            log::error!("{earlier}");
        }
    }
    last.map_or(Ok(Code::Clean), Err)
}
