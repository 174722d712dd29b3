//! Validates jobs: template and updates.

use serde_json::Value;

use super::{Causes, pod};
use crate::schema::status::Cause;
use crate::storage::object::text_at;

const TEMPLATE: &str = "spec.template";

pub(super) fn check(job: &Value, causes: &mut Causes) {
    pod::check_template(&job["spec"]["template"], TEMPLATE, causes);
    if text_at(job, "/spec/completionMode") == "Indexed" {
        let detail = "the embedded cluster has no indexed jobs";
        causes.push(Cause::forbidden("spec.completionMode", detail));
    }
    let policy = text_at(job, "/spec/template/spec/restartPolicy");
    let field = format!("{TEMPLATE}.spec.restartPolicy");
    match policy {
        "OnFailure" | "Never" => {}
        "Always" | "" => {
            causes.push(Cause::required(field, "valid values: \"OnFailure\", \"Never\""));
        }
        other => causes.push(Cause::not_supported(field, other, &["OnFailure", "Never"])),
    }
}

/// The completions, the selector, the template and the failure policy are immutable.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    for field in ["completions", "selector", "template", "completionMode", "podFailurePolicy"] {
        let of = |job: &Value| job.pointer(&format!("/spec/{field}")).cloned().unwrap_or_default();
        if of(old) != of(new) {
            let detail = "field is immutable";
            causes.push(Cause::invalid_raw(format!("spec.{field}"), &of(new), detail));
        }
    }
}
