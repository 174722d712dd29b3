//! Owns the way from a template that came by a call to the pods of its group: built, and shown to
//! the server without effect. Runs on the caller's thread; decides nothing about the group.

use std::sync::Arc;

use log::warn;
use serde_json::Value;

use crate::control::{Drafts, NoDraft};
use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::input::PodAnswer;
use crate::core::model::pod_text::{PodOverrides, PodText};
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::pods::Pods;
use crate::wire::build::PodContext;
use crate::wire::control::CallError;
use crate::wire::template::{Template, TemplateError};

/// The pod that the server is shown has the longest id there can be, which is never given.
const ID_SHOWN: ExecutorId = ExecutorId(9_999_999_999);
/// Where a template is from, as errors and the call's fields name it.
const SOURCE: &str = "template";

/// Builds pods for this run, and has the server look at them.
#[derive(Debug)]
pub struct Drafter {
    pub pods: Pods,
    /// Whose executors they are; group and container come with each call.
    pub identity: PodContext,
}

impl Drafts for Drafter {
    fn draft(
        &self,
        group: &GroupName,
        template: Value,
        container: Option<&str>,
    ) -> Result<Arc<PodText>, NoDraft> {
        let identity = PodContext {
            group: group.as_str().to_owned(),
            container: container.map(str::to_owned),
            ..self.identity.clone()
        };
        let compiled = Template::from_json(SOURCE, template)
            .and_then(|template| template.compile(&identity))
            .map_err(bad)?;
        match self.pods.create(&compiled.pod.render(ID_SHOWN, 0, &PodOverrides::default()), true) {
            Ok(PodAnswer::Ours(_)) => {}
            Ok(PodAnswer::Foreign(_)) => {
                let message = "the server takes the pod but not our labels (a mutating webhook \
                               changes them): posse would not find it again";
                return Err(NoDraft::Bad(CallError::new(SOURCE, message)));
            }
            Err(refusal) => judge(&refusal)?,
        }
        for warning in compiled.warnings() {
            warn!("group {group}: {warning}");
        }
        Ok(compiled.pod)
    }
}

/// The mistake, with its place in the body of the call.
fn bad(error: TemplateError) -> NoDraft {
    let TemplateError { source: _, field, message } = error;
    let field = if field.is_empty() { SOURCE.to_owned() } else { format!("{SOURCE}.{field}") };
    NoDraft::Bad(CallError { error: message, field: Some(field) })
}

/// What the server's refusal of a pod that was only shown to it says of the template.
fn judge(refusal: &Refusal) -> Result<(), NoDraft> {
    match refusal.class {
        // It passed all checks but the room there is now, or the name that was shown.
        RefusalClass::Capacity | RefusalClass::Exists => Ok(()),
        RefusalClass::Conflict
        | RefusalClass::Expired
        | RefusalClass::NamespaceGone
        | RefusalClass::NotFound
        | RefusalClass::Forbidden
        | RefusalClass::Invalid => Err(NoDraft::Bad(CallError::new(SOURCE, refusal.to_string()))),
        RefusalClass::Throttled
        | RefusalClass::Transient
        | RefusalClass::Unauthorized
        | RefusalClass::OutcomeUnknown => {
            let retry_after_ms = refusal.retry_after_ms;
            Err(NoDraft::NotNow { why: refusal.to_string(), retry_after_ms })
        }
    }
}
