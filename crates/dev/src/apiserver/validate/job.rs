//! Validates jobs: selector, template, failure policy and updates.

use serde_json::{Map, Value};

use super::{Causes, join, pod, rules, shown};
use crate::schema::status::Cause;
use crate::storage::object::{array_at, text_at};

const TEMPLATE: &str = "spec.template";
const POLICY: &str = "spec.podFailurePolicy";

fn labels(job: &Value) -> Option<&Map<String, Value>> {
    job.pointer("/spec/template/metadata/labels").and_then(Value::as_object)
}

/// Validates the spec of a job whose selector is already set.
pub(super) fn check(job: &Value, causes: &mut Causes) {
    generated_selector(job, causes);
    check_spec(job, causes);
}

/// With a generated selector the pods must have the job's uid and name as labels.
fn generated_selector(job: &Value, causes: &mut Causes) {
    let by_hand = job.pointer("/spec/manualSelector") == Some(&Value::Bool(true));
    if by_hand || job.pointer("/spec/selector").is_none() {
        return;
    }
    for (label, of) in [("controller-uid", "uid"), ("job-name", "name")] {
        let wanted = text_at(job, &format!("/metadata/{of}"));
        let given = labels(job).and_then(|labels| labels.get(label)).and_then(Value::as_str);
        let field = format!("{TEMPLATE}.metadata.labels[{label}]");
        let detail = format!("must be '{wanted}'");
        match given {
            None => causes.push(Cause::required(field, &detail)),
            Some(given) if given != wanted => {
                causes.push(Cause::invalid_raw(field, &shown_map(labels(job)), &detail));
            }
            Some(_) => {}
        }
    }
    let expected = Map::from_iter([
        ("batch.kubernetes.io/controller-uid".to_owned(), job["metadata"]["uid"].clone()),
        ("batch.kubernetes.io/job-name".to_owned(), job["metadata"]["name"].clone()),
        ("controller-uid".to_owned(), job["metadata"]["uid"].clone()),
        ("job-name".to_owned(), job["metadata"]["name"].clone()),
    ]);
    let selector = &job["spec"]["selector"];
    if selects(selector, Some(&expected)) == Some(false) {
        let detail = "`selector` not auto-generated";
        causes.push(Cause::invalid_raw("spec.selector", selector, detail));
    }
}

/// True if the selector selects the labels; `None` if the selector is invalid.
fn selects(selector: &Value, labels: Option<&Map<String, Value>>) -> Option<bool> {
    if selector.is_null() {
        return Some(false);
    }
    let label = |key: &str| labels.and_then(|labels| labels.get(key));
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    let mut all = wanted.into_iter().flatten().all(|(key, value)| label(key) == Some(value));
    for requirement in array_at(selector, "/matchExpressions") {
        let label = label(text_at(requirement, "/key"));
        let values = array_at(requirement, "/values");
        let one_of = label.is_some_and(|label| values.contains(label));
        all &= match text_at(requirement, "/operator") {
            "In" => one_of,
            "NotIn" => !one_of,
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            _ => return None,
        };
    }
    Some(all)
}

/// A map as the messages show it.
fn shown_map(labels: Option<&Map<String, Value>>) -> String {
    labels.map_or_else(|| "null".to_owned(), |labels| Value::from(labels.clone()).to_string())
}

pub(super) fn check_spec(job: &Value, causes: &mut Causes) {
    rules::check("Job", job, "", causes);
    pod::check_template(&job["spec"]["template"], TEMPLATE, causes);
    let policy = text_at(job, "/spec/template/spec/restartPolicy");
    let field = format!("{TEMPLATE}.spec.restartPolicy");
    match policy {
        "OnFailure" | "Never" => {}
        "Always" | "" => {
            causes.push(Cause::required(field, "valid values: \"OnFailure\", \"Never\""));
        }
        other => causes.push(Cause::not_supported(field, other, &["OnFailure", "Never"])),
    }
    failure_policy(job, causes);
    let selector = &job["spec"]["selector"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
    }
    rules::check("LabelSelector", selector, "spec.selector", causes);
    if selects(selector, labels(job)) == Some(false) {
        let field = format!("{TEMPLATE}.metadata.labels");
        let detail = "`selector` does not match template `labels`";
        causes.push(Cause::invalid_raw(field, &shown_map(labels(job)), detail));
    }
}

/// The podFailurePolicy, with the rules of newer servers.
fn failure_policy(job: &Value, causes: &mut Causes) {
    const RULES_MAX: usize = 20;
    let Some(policy) = job.pointer("/spec/podFailurePolicy") else { return };
    if text_at(job, "/spec/template/spec/restartPolicy") != "Never" {
        let policy = text_at(job, "/spec/template/spec/restartPolicy");
        let detail = "only \"Never\" is supported when podFailurePolicy is specified";
        let field = format!("{TEMPLATE}.spec.restartPolicy");
        causes.push(Cause::invalid(field, policy, detail));
    }
    let list = array_at(policy, "/rules");
    if list.len() > RULES_MAX {
        causes.push(Cause::too_many(format!("{POLICY}.rules"), list.len(), RULES_MAX));
    }
    let names: Vec<&str> = ["/initContainers", "/containers"]
        .iter()
        .flat_map(|list| array_at(&job["spec"]["template"]["spec"], list))
        .map(|container| text_at(container, "/name"))
        .collect();
    for (i, rule) in list.iter().enumerate() {
        let path = format!("{POLICY}.rules[{i}]");
        rules::check("PodFailurePolicyRule", rule, &path, causes);
        let name = rule.pointer("/onExitCodes/containerName").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !names.contains(name)) {
            let field = join(&path, "onExitCodes.containerName");
            let detail = "must be one of the container or initContainer names in the pod template";
            causes.push(Cause::invalid(field, name, detail));
        }
    }
}

pub(super) fn failure_rule(rule: &Value, path: &str, causes: &mut Causes) {
    const CODES_MAX: usize = 255;
    const PATTERNS_MAX: usize = 20;
    let codes = rule.get("onExitCodes");
    let patterns = array_at(rule, "/onPodConditions");
    match (codes, patterns) {
        (None, []) => {
            let detail = "specifying one of OnExitCodes and OnPodConditions is required";
            causes.push(Cause::invalid(path, "", detail));
        }
        (Some(_), [_, ..]) => {
            let detail = "specifying both OnExitCodes and OnPodConditions is not supported";
            causes.push(Cause::invalid(path, "", detail));
        }
        (Some(_), []) | (None, [_, ..]) => {}
    }
    if let Some(codes) = codes {
        let path = join(path, "onExitCodes");
        let operator = text_at(codes, "/operator");
        let field = join(&path, "operator");
        match operator {
            "In" | "NotIn" => {}
            "" => causes.push(Cause::required(field, "valid values: \"In\", \"NotIn\"")),
            other => causes.push(Cause::not_supported(field, other, &["In", "NotIn"])),
        }
        let values = array_at(codes, "/values");
        let field = join(&path, "values");
        if values.is_empty() {
            let detail = "at least one value is required";
            causes.push(Cause::invalid_raw(&field, &shown(values), detail));
        }
        if values.len() > CODES_MAX {
            causes.push(Cause::too_many(&field, values.len(), CODES_MAX));
        }
        for (i, value) in values.iter().enumerate() {
            let at = format!("{field}[{i}]");
            if *value == 0 && operator == "In" {
                let detail = "must not be 0 for the In operator";
                causes.push(Cause::invalid_raw(at, value, detail));
            } else if values.iter().take(i).any(|before| before == value) {
                causes.push(Cause::duplicate_raw(at, value));
            }
        }
    }
    if patterns.len() > PATTERNS_MAX {
        causes.push(Cause::too_many(join(path, "onPodConditions"), patterns.len(), PATTERNS_MAX));
    }
    for (i, pattern) in patterns.iter().enumerate() {
        let path = format!("{path}.onPodConditions[{i}]");
        let name = text_at(pattern, "/type");
        let wrong = crate::schema::names::qualified_name(name);
        super::push_invalid(causes, &join(&path, "type"), name, wrong);
        let status = text_at(pattern, "/status");
        let known = ["False", "True", "Unknown"];
        if !known.contains(&status) {
            causes.push(Cause::not_supported(join(&path, "status"), status, &known));
        }
    }
}

/// The completions, the selector, the template and the failure policy are immutable.
pub(super) fn check_update(old: &Value, new: &Value, causes: &mut Causes) {
    check_spec(new, causes);
    for field in ["completions", "selector", "template", "completionMode", "podFailurePolicy"] {
        let of = |job: &Value| job.pointer(&format!("/spec/{field}")).cloned().unwrap_or_default();
        if of(old) != of(new) {
            let detail = "field is immutable";
            causes.push(Cause::invalid_raw(format!("spec.{field}"), &of(new), detail));
        }
    }
}
