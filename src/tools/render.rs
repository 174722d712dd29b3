//! `posse render`: prints the pods that a run would create; optionally the server checks them.

use std::io::Write;

use jiff::Timestamp;
use serde_json::Value;

use crate::args::RunArgs;
use crate::args::tools::RenderArgs;
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use crate::manifest;
use crate::settings::run_settings;
use crate::shown_identity::{INSTANCE_SHOWN, NAMESPACE_SHOWN, shown_identity};
use crate::submit::{self, SubmitRequest};
use crate::world::World;
use posse_core::model::pod_text::PodOverrides;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::Objects;
use posse_kube::api::pods::Pods;
use posse_run::run::settings::{GroupSettings, RunSettings};
use posse_submit::manifests::manifests;
use posse_submit::submission::{Submission, SubmitError};
use posse_wire::k8s::labels::Selection;

/// Sends a dry-run create of a pod: the namespace and the request's body.
pub type ServerCheck<'a> = &'a mut dyn FnMut(&str, &[u8]) -> Result<(), Refusal>;

/// `posse render`.
pub fn command(args: &RenderArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let run = RunArgs {
        file: args.file.clone(),
        server: args.server.clone(),
        driver: args.driver_command.clone(),
        ..RunArgs::default()
    };
    let mut settings = run_settings(&run, world)?;
    if !args.server_check {
        return render(args, &settings, None, out);
    }
    let connection = Connection::new(&args.server, world)?;
    settings.namespace.get_or_insert_with(|| connection.namespace.clone());
    let selection = Selection { app: settings.app.clone(), instance: INSTANCE_SHOWN.to_owned() };
    let mut check = |namespace: &str, body: &[u8]| {
        let pods = Pods::new(connection.http.clone(), namespace, selection.clone());
        pods.dry_run(body).map(drop)
    };
    render(args, &settings, Some(&mut check), out)
}

/// `posse render --driver`: prints the objects of `posse submit`; the server checks them only with
/// --server-check.
///
/// # Errors
/// As `posse submit` before it creates anything.
pub fn driver(args: &RenderArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let request = SubmitRequest {
        file: &args.file,
        driver: &args.driver_command,
        posse_image: args.posse_image.as_ref(),
        create_rbac: args.create_rbac,
    };
    let mut plan = submit::plan(&request, world)?;
    let connection = match args.server_check {
        true => Some(Connection::new(&args.server, world)?),
        false => None,
    };
    let namespace = connection.as_ref().map_or(NAMESPACE_SHOWN, |found| found.namespace.as_str());
    plan.or_namespace(namespace);
    let made = manifests(&plan)?;
    made.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    if let Some(connection) = &connection {
        let objects = Objects::new(connection.http.clone(), Some(&plan.namespace));
        let now_s = Timestamp::now().as_second();
        let submission = Submission { objects: &objects, plan: &plan, manifests: &made, now_s };
        let failed = |why: SubmitError| submit::failure(&plan.app, connection, &why);
        submission.check().map_err(failed)?;
    }
    manifest::print(made.all(), args.output, out)
}

/// Prints one pod of each group, after `check` of each pod if given.
///
/// # Errors
/// There is no such group, a template is invalid, the server refuses a pod (exit code 4), or the
/// server cannot check the pods (exit code 3).
pub fn render(
    args: &RenderArgs,
    settings: &RunSettings,
    check: Option<ServerCheck<'_>>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let groups = selected_groups(args, settings)?;
    let run = shown_identity(settings);
    let mut bodies = Vec::new();
    for (id, group) in (args.id..).zip(&groups) {
        let compiled = group.template.compile(&settings.identity(Some(group), &run))?;
        compiled.warnings().iter().for_each(|warning| log::warn!("{warning}"));
        bodies.push(compiled.render(id, 0, &PodOverrides::default()));
    }
    if let Some(check) = check {
        for (body, group) in bodies.iter().zip(&groups) {
            check(&run.namespace, body).or_else(|refusal| refused(group, &refusal))?;
        }
    }
    let pods: Vec<Value> = bodies
        .iter()
        .map(|body| {
            serde_json::from_slice(body).expect("a rendered pod is JSON; build.rs tests it")
        })
        .collect();
    manifest::print(pods.iter(), args.output, out)
}

/// The failure of a refused dry run.
fn refused(group: &GroupSettings, refusal: &Refusal) -> Result<(), Failure> {
    let name = &group.spec.name;
    match refusal.class {
        // The pod is valid; another pod has the placeholder name.
        RefusalClass::Exists => Ok(()),
        RefusalClass::Capacity
        | RefusalClass::Conflict
        | RefusalClass::Expired
        | RefusalClass::NamespaceGone
        | RefusalClass::NotFound
        | RefusalClass::Invalid => {
            let message = format!("group {name}: the server would refuse its pods: {refusal}");
            Err(Failure::new(Code::TemplateRefused, message))
        }
        RefusalClass::Forbidden
        | RefusalClass::Throttled
        | RefusalClass::WebhookBusy
        | RefusalClass::Transient
        | RefusalClass::Unauthorized
        | RefusalClass::OutcomeUnknown => {
            let message = format!("group {name}: the server cannot check its pods: {refusal}");
            Err(Failure::new(Code::Server, message))
        }
    }
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
