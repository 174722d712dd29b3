//! Validates jobs: selector, template and updates.

use serde_json::{Map, Value};

use super::{Causes, pod, rules};
use crate::apiserver::selector::LabelSelector;
use crate::schema::status::Cause;
use crate::storage::object::text_at;

const TEMPLATE: &str = "spec.template";

fn labels(job: &Value) -> Option<&Map<String, Value>> {
    job.pointer("/spec/template/metadata/labels").and_then(Value::as_object)
}

/// A map as the messages show it.
fn shown_map(labels: Option<&Map<String, Value>>) -> String {
    labels.map_or_else(|| "null".to_owned(), |labels| Value::from(labels.clone()).to_string())
}

/// Validates the spec of a job whose selector is already set.
pub(super) fn check(job: &Value, causes: &mut Causes) {
    rules::check("Job", job, "", causes);
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
    let selector = &job["spec"]["selector"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    }
    rules::check("LabelSelector", selector, "spec.selector", causes);
    let label = |key: &str| labels(job).and_then(|labels| labels.get(key)?.as_str());
    let selects = |selector: LabelSelector| !selector.is_empty() && selector.matches(label);
    if LabelSelector::of_object(selector).is_some_and(|selector| !selects(selector)) {
        let field = format!("{TEMPLATE}.metadata.labels");
        let detail = "`selector` does not match template `labels`";
        causes.push(Cause::invalid_raw(field, &shown_map(labels(job)), detail));
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
