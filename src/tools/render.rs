//! `posse render`: prints the pods that a run would create.

use std::io::Write;

use serde_json::Value;

use crate::args::RunArgs;
use crate::args::tools::RenderArgs;
use crate::exit::{Code, Failure};
use crate::manifest;
use crate::settings::run_settings;
use crate::shown_identity::{NAMESPACE_SHOWN, shown_identity};
use crate::submit::{self, SubmitRequest};
use crate::world::World;
use posse_core::model::pod_text::PodOverrides;
use posse_run::run::settings::{GroupSettings, RunSettings};
use posse_submit::manifests::manifests;

/// `posse render`: prints one pod of each group.
///
/// # Errors
/// The settings or a template are invalid, or there is no such group.
pub fn command(args: &RenderArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let run = RunArgs {
        file: args.file.clone(),
        server: args.server.clone(),
        driver: args.driver_command.clone(),
        ..RunArgs::default()
    };
    let settings = run_settings(&run, world)?;
    let groups = selected_groups(args, &settings)?;
    let run = shown_identity(&settings);
    let mut pods: Vec<Value> = Vec::new();
    for (id, group) in (args.id..).zip(&groups) {
        let compiled = group.template.compile(&settings.identity(Some(group), &run))?;
        compiled.warnings().iter().for_each(|warning| log::warn!("{warning}"));
        let body = compiled.render(id, 0, &PodOverrides::default());
        pods.push(
            serde_json::from_slice(&body).expect("a rendered pod is JSON; build.rs tests it"),
        );
    }
    manifest::print(pods.iter(), args.output, out)
}

/// `posse render --driver`: prints the objects of `posse submit`.
///
/// # Errors
/// As `posse submit` before it calls the server.
pub fn driver(args: &RenderArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let request = SubmitRequest {
        file: &args.file,
        driver: &args.driver_command,
        posse_image: args.posse_image.as_ref(),
        create_rbac: args.create_rbac,
    };
    let mut plan = submit::plan(&request, world)?;
    plan.or_namespace(NAMESPACE_SHOWN);
    let made = manifests(&plan)?;
    made.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    manifest::print(made.all(), args.output, out)
}

/// The groups to print.
fn selected_groups<'a>(
    args: &RenderArgs,
    settings: &'a RunSettings,
) -> Result<Vec<&'a GroupSettings>, Failure> {
    let Some(wanted) = &args.group else { return Ok(settings.groups.iter().collect()) };
    let found = settings.groups.iter().find(|group| group.spec.name.as_str() == wanted);
    found.map(|group| vec![group]).ok_or_else(|| {
        let names: Vec<&str> = settings.groups.iter().map(|g| g.spec.name.as_str()).collect();
        Failure::usage(format!(
            "--group: there is no group `{wanted}`; the groups are: {}",
            names.join(", ")
        ))
    })
}
