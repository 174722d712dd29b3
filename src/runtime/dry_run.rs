//! Checks a pod template from the control API with a server-side dry run.

use std::sync::Arc;

use log::warn;
use serde_json::Value;

use crate::control::{DryRunError, DryRuns};
use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::input::PodAnswer;
use crate::core::model::pod_text::{PodOverrides, PodText};
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::pods::Pods;
use crate::wire::build::PodContext;
use crate::wire::control::CallError;
use crate::wire::template::{Template, TemplateError};

/// The dry run uses the longest possible id, so that a pod name that is too long is found.
const DRY_RUN_ID: ExecutorId = ExecutorId(9_999_999_999);
/// The name of the call's field that holds the template.
const SOURCE: &str = "template";

/// Compiles templates for this run's pods, and sends dry-run creates to the API server.
#[derive(Debug)]
pub struct TemplateDryRun {
    pub pods: Pods,
    /// The run's part of the pods' identity; group and container come with each call.
    pub identity: PodContext,
}

impl DryRuns for TemplateDryRun {
    fn dry_run(
        &self,
        group: &GroupName,
        template: Value,
        container: Option<&str>,
    ) -> Result<Arc<PodText>, DryRunError> {
        let identity = PodContext {
            group: group.as_str().to_owned(),
            container: container.map(str::to_owned),
            ..self.identity.clone()
        };
        let compiled = Template::from_json(SOURCE, template)
            .and_then(|template| template.compile(&identity))
            .map_err(invalid)?;
        match self.pods.create(&compiled.pod.render(DRY_RUN_ID, 0, &PodOverrides::default()), true)
        {
            Ok(PodAnswer::Ours(pod)) if pod.group == *group => {}
            Ok(PodAnswer::Foreign(_) | PodAnswer::Ours(_)) => {
                let message = "the server accepts the pod but changes posse's labels (a mutating \
                               webhook): posse could not find the pod again";
                return Err(DryRunError::Invalid(CallError::new(SOURCE, message)));
            }
            Err(refusal) => check_refusal(&refusal)?,
        }
        for warning in compiled.warnings() {
            warn!("group {group}: {warning}");
        }
        Ok(compiled.pod)
    }
}

/// The template's error, with its path in the call's body.
fn invalid(error: TemplateError) -> DryRunError {
    let TemplateError { source: _, field, message } = error;
    let field = if field.is_empty() { SOURCE.to_owned() } else { format!("{SOURCE}.{field}") };
    DryRunError::Invalid(CallError { error: message, field: Some(field) })
}

/// Whether a refused dry run means that the template is invalid.
fn check_refusal(refusal: &Refusal) -> Result<(), DryRunError> {
    match refusal.class {
        // The template is valid; only the quota is exhausted or the name is in use.
        RefusalClass::Capacity | RefusalClass::Exists => Ok(()),
        RefusalClass::Conflict
        | RefusalClass::Expired
        | RefusalClass::NamespaceGone
        | RefusalClass::NotFound
        | RefusalClass::Forbidden
        | RefusalClass::Invalid => {
            Err(DryRunError::Invalid(CallError::new(SOURCE, refusal.to_string())))
        }
        RefusalClass::Throttled
        | RefusalClass::Transient
        | RefusalClass::Unauthorized
        | RefusalClass::OutcomeUnknown => {
            let retry_after_ms = refusal.retry_after_ms;
            Err(DryRunError::Unavailable { why: refusal.to_string(), retry_after_ms })
        }
    }
}
