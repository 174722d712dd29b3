//! Checks a pod template from the control API with a server-side dry run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use log::warn;
use serde_json::Value;

use crate::claims::SlotClaims;
use crate::pod_groups::PodGroups;
use posse_base::sync::lock;
use posse_control::{DryRunError, DryRuns};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::pod_text::{PodOverrides, PodText};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::pods::Pods;
use posse_wire::control::{CallError, NewGroup, TEMPLATE, VOLUMES};
use posse_wire::pod::build::gang::PodGang;
use posse_wire::pod::build::{Compiled, PodContext, PodSettings};
use posse_wire::pod::slot_volume::{KeepVolume, NEEDS_EXCLUSIVE, SlotVolume};
use posse_wire::pod::template::Template;

/// The dry run uses the longest possible id, so that a pod name that is too long is found.
const DRY_RUN_ID: ExecutorId = ExecutorId(9_999_999_999);

/// Compiles templates for this run's pods, and sends dry-run creates to the API server.
#[derive(Debug)]
pub struct TemplateDryRun {
    pub pods: Pods,
    pub claims: SlotClaims,
    /// Only one run of the application at a time: volumes may outlive it.
    pub is_exclusive: bool,
    /// The pods of a group that the file does not have; group and container come with each call.
    pub identity: PodContext,
    /// The pods of the groups of the file, until a call deletes them.
    pub of_file: Mutex<BTreeMap<GroupName, PodContext>>,
    pub pod_groups: Arc<PodGroups>,
}

impl TemplateDryRun {
    /// The pods of a group that a call has made, without asking the server.
    pub fn compile(
        &self,
        group: &GroupName,
        new: &mut NewGroup,
    ) -> Result<Arc<PodText>, CallError> {
        let template = std::mem::take(&mut new.template);
        let (.., compiled) = self.compiled(group, template, new)?;
        self.claims.note(&new.volumes);
        Ok(compiled.pod)
    }

    fn compiled(
        &self,
        group: &GroupName,
        template: Value,
        new: &NewGroup,
    ) -> Result<(Template, PodContext, Compiled), CallError> {
        let NewGroup { container, volumes, .. } = new;
        let keeps = |volume: &&SlotVolume| volume.keep == KeepVolume::Application;
        if let Some(volume) = volumes.iter().find(keeps).filter(|_| !self.is_exclusive) {
            let message =
                format!("{} has `keep: application`, which {}", volume.name, NEEDS_EXCLUSIVE);
            return Err(CallError::new(VOLUMES, message));
        }
        let pods = lock(&self.of_file).get(group).unwrap_or(&self.identity).clone();
        let identity = PodContext {
            group: group.as_str().to_owned(),
            settings: PodSettings {
                container: container.clone(),
                // A call cannot change such a group. It can delete it, and make another of its name.
                queue_group: None,
                ..pods.settings
            },
            restart: new.change.restart.unwrap_or(pods.restart),
            on_loss: new.change.on_loss.unwrap_or(pods.on_loss),
            ..pods
        };
        let mut template = Template::from_json(TEMPLATE, template)?;
        template.mount_slot_volumes(container.as_deref(), volumes)?;
        let compiled = template.compile(&identity)?;
        Ok((template, identity, compiled))
    }
}

impl DryRuns for TemplateDryRun {
    fn dry_run(
        &self,
        group: &GroupName,
        template: Value,
        new: &NewGroup,
    ) -> Result<Arc<PodText>, DryRunError> {
        let (template, identity, compiled) =
            self.compiled(group, template, new).map_err(DryRunError::Invalid)?;
        let volumes = &new.volumes;
        let overrides = PodOverrides::default();
        for claim in compiled.pod.render_claims(DRY_RUN_ID, 0, &overrides) {
            self.claims.check(&claim).or_else(|refusal| check_refusal(VOLUMES, &refusal))?;
        }
        self.claims.note(volumes);
        let answer = self.pods.dry_run(&compiled.pod.render(DRY_RUN_ID, 0, &overrides));
        let compiled = match answer {
            Ok(created) => told_what_is_added(&template, &identity, compiled, &created),
            Err(refusal) => check_refusal(TEMPLATE, &refusal).map(|()| compiled)?,
        };
        for warning in compiled.warnings() {
            warn!("group {group}: {warning}");
        }
        Ok(compiled.pod)
    }

    fn forget(&self, group: &GroupName) {
        lock(&self.of_file).remove(group);
        self.pod_groups.forget(group);
    }
}

/// YuniKorn keeps room for pods as large as it is told. If the server does not tell now what it adds, because there is no
/// room for example, the template decides.
pub(crate) fn with_what_is_added(
    template: &Template,
    context: &PodContext,
    pods: &Pods,
    compiled: Compiled,
) -> Compiled {
    if !context.settings.gang.as_ref().is_some_and(PodGang::is_told_what_is_added) {
        return compiled;
    }
    match pods.dry_run(&compiled.pod.render(DRY_RUN_ID, 0, &PodOverrides::default())) {
        Ok(created) => told_what_is_added(template, context, compiled, &created),
        Err(refusal) => {
            let group = &context.group;
            warn!("group {group}: what the server adds to its pods is not known: {refusal}");
            compiled
        }
    }
}

/// The same pods if their scheduler has to know what the server adds to them, as the answer to a dry run shows.
fn told_what_is_added(
    template: &Template,
    pods: &PodContext,
    compiled: Compiled,
    created: &[u8],
) -> Compiled {
    let again = pods.as_created(created).and_then(|pods| template.compile(&pods).ok());
    again.unwrap_or(compiled)
}

/// Whether a refused dry run means that this field of the call is invalid.
fn check_refusal(field: &str, refusal: &Refusal) -> Result<(), DryRunError> {
    let class = refusal.class;
    // The object is valid; only the quota is exhausted or the name is in use.
    if [RefusalClass::Capacity, RefusalClass::Exists].contains(&class) {
        return Ok(());
    }
    let (why, retry_after_ms) = (refusal.to_string(), refusal.retry_after_ms);
    match class.is_temporary() || class == RefusalClass::Unauthorized {
        true => Err(DryRunError::Unavailable { why, retry_after_ms }),
        false => Err(DryRunError::Invalid(CallError::new(field, why))),
    }
}
