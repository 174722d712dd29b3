//! Owns `posse render`: the pods that would be created, as text, and the server's word on them.

use std::io::Write;

use serde_json::Value;

use crate::cli::args::{RenderArgs, RunArgs};
use crate::cli::exit::{Code, Failure};
use crate::cli::server::Connection;
use crate::cli::settings::{GroupSettings, RunIdentity, RunSettings};
use crate::cli::{World, manifest, submit};
use crate::core::model::pod_text::PodOverrides;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::pods::Pods;
use crate::wire::labels::Selection;

/// The instance that is shown where the real one is not known before the run.
const INSTANCE_SHOWN: &str = "xxxxx";
/// The namespace that is shown where it is the service account's or the context's.
pub(super) const NAMESPACE_SHOWN: &str = "default";
/// The driver host that is shown where it depends on the way to the API server.
const DRIVER_HOST_SHOWN: &str = "127.0.0.1";

/// Asks the server whether it would take a pod: the namespace and the body of the POST.
pub type ServerCheck<'a> = &'a mut dyn FnMut(&str, &[u8]) -> Result<(), Refusal>;

/// `posse render`, with its flags and its file.
///
/// # Errors
/// As `render`, and mistakes in the settings.
pub fn command(args: &RenderArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if args.driver {
        return submit::render(args, world, out);
    }
    let run =
        RunArgs { file: args.file.clone(), server: args.server.clone(), ..RunArgs::default() };
    let mut settings = RunSettings::new(&run, world)?;
    if !args.server_check {
        return render(args, &settings, None, out);
    }
    let connection = Connection::new(&args.server, world)?;
    settings.namespace.get_or_insert_with(|| connection.namespace.clone());
    let selection = Selection { app: settings.app.clone(), instance: INSTANCE_SHOWN.to_owned() };
    let mut check = |namespace: &str, body: &[u8]| {
        let pods = Pods::new(connection.http.clone(), namespace, selection.clone());
        pods.create_raw(body, true).map(drop)
    };
    render(args, &settings, Some(&mut check), out)
}

/// Prints one pod of each group, after asking the server about it where `check` is given.
///
/// # Errors
/// A group that there is not, a template that cannot be compiled, a pod that the server would
/// refuse (exit code 4), a server that cannot be asked (exit code 3).
pub fn render(
    args: &RenderArgs,
    settings: &RunSettings,
    check: Option<ServerCheck<'_>>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let groups = chosen(args, settings)?;
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

/// Whose pods are shown before a run has found out: with stand-ins where only a run knows.
#[must_use]
pub fn shown_identity(settings: &RunSettings) -> RunIdentity {
    RunIdentity {
        instance: settings.instance.clone().unwrap_or_else(|| INSTANCE_SHOWN.to_owned()),
        namespace: settings.namespace.clone().unwrap_or_else(|| NAMESPACE_SHOWN.to_owned()),
        owner: None,
        driver_host: settings.driver.host.clone().unwrap_or_else(|| DRIVER_HOST_SHOWN.to_owned()),
    }
}

/// What the server's refusal of a group's pod comes to.
fn refused(group: &GroupSettings, refusal: &Refusal) -> Result<(), Failure> {
    let name = &group.spec.name;
    match refusal.class {
        // It passed all checks; there happens to be a pod of the name that is shown.
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
        | RefusalClass::Transient
        | RefusalClass::Unauthorized
        | RefusalClass::OutcomeUnknown => {
            let message = format!("group {name}: the server cannot be asked: {refusal}");
            Err(Failure::new(Code::Server, message))
        }
    }
}

/// The groups to be shown.
fn chosen<'a>(
    args: &RenderArgs,
    settings: &'a RunSettings,
) -> Result<Vec<&'a GroupSettings>, Failure> {
    let Some(wanted) = &args.group else { return Ok(settings.groups.iter().collect()) };
    let found = settings.groups.iter().find(|group| group.spec.name.as_str() == wanted);
    found.map(|group| vec![group]).ok_or_else(|| {
        let names: Vec<&str> = settings.groups.iter().map(|g| g.spec.name.as_str()).collect();
        Failure::usage(format!("--group: there is no `{wanted}`; there are: {}", names.join(", ")))
    })
}
