//! The field `beside` of `PUT /v1/groups/{group}`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::control::{CallError, TEMPLATE, check_names, flag, optional};
use crate::names;
use crate::pod::beside::Beside;
use crate::pod::template::Template;

const FIELD: &str = "beside";

/// The template with the affinity that `beside` asks for.
pub(super) fn place(template: Value, beside: &Value) -> Result<Value, CallError> {
    let Some(fields) = beside.as_object() else {
        return Err(CallError::new(FIELD, "must be an object with labels"));
    };
    check_names(fields, &["labels", "required"])?;
    let labels = fields.get("labels").and_then(Value::as_object).into_iter().flatten();
    let labels: Option<BTreeMap<String, String>> = labels
        .map(|(key, value)| {
            let value = value.as_str().filter(|value| names::is_label_pair(key, value))?;
            Some((key.clone(), value.to_owned()))
        })
        .collect();
    let labels = labels.filter(|labels| !labels.is_empty()).ok_or_else(|| {
        CallError::new("beside.labels", "must be an object of at least one Kubernetes label")
    })?;
    let is_required = optional(fields, "required").map(|value| flag("beside.required", value));
    let beside = Beside { labels, is_required: is_required.transpose()?.unwrap_or(true) };
    let mut template = Template::from_json(TEMPLATE, template)?;
    template.place_beside(&beside)?;
    Ok(template.into_json())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{PutGroup, parse_put_group};

    fn put(body: &str) -> Result<Value, CallError> {
        match parse_put_group(body.as_bytes())? {
            PutGroup::Whole(group) => Ok(group.template),
            PutGroup::Target(_) => panic!("a whole group"),
        }
    }

    #[test]
    fn the_template_of_a_call_gets_the_affinity() {
        let pod =
            r#"{"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}"#;
        let beside = r#""beside": {"labels": {"app": "shuffle"}}"#;
        let path = "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
        let plain = put(&format!(r#"{{"template": {pod}, {beside}}}"#)).unwrap();
        let term = plain.pointer(path).expect("a term");
        assert_eq!(term["labelSelector"]["matchLabels"]["app"], "shuffle");
        assert_eq!(plain["metadata"]["labels"]["a"], "b");
        let wrapped = format!(r#"{{"kind": "PodTemplate", "template": {pod}}}"#);
        let wrapped = put(&format!(r#"{{"template": {wrapped}, {beside}}}"#)).unwrap();
        assert_eq!(wrapped["template"].pointer(path), Some(term));
        assert_eq!(wrapped["kind"], "PodTemplate");
        let none = put(&format!(r#"{{"template": {pod}, "beside": null}}"#)).unwrap();
        assert_eq!(none.pointer("/spec/affinity"), None);
    }

    #[test]
    fn errors_name_the_field() {
        for (beside, pod, field, part) in [
            ("[]", "{}", "beside", "must be an object"),
            ("{}", "{}", "beside.labels", "at least one Kubernetes label"),
            (r#"{"labels": {}}"#, "{}", "beside.labels", "at least one"),
            (r#"{"labels": {"a": 1}}"#, "{}", "beside.labels", "at least one"),
            (r#"{"labels": {"a": "b c"}}"#, "{}", "beside.labels", "at least one"),
            (r#"{"labels": {"a": "b"}, "required": 1}"#, "{}", "beside.required", "true or false"),
            (r#"{"labels": {"a": "b"}, "require": true}"#, "{}", "require", "unknown field"),
            (r#"{"labels": {"a": "b"}}"#, "{}", "template.spec", "is missing"),
            (
                r#"{"labels": {"a": "b"}}"#,
                r#"{"spec": {"nodeName": "n", "containers": [{"name": "c"}]}}"#,
                "template.spec.nodeName",
                "names the node n",
            ),
        ] {
            let body = format!(r#"{{"template": {pod}, "beside": {beside}}}"#);
            let error = put(&body).expect_err(&body);
            assert_eq!(error.field.as_deref(), Some(field), "{body}: {error:?}");
            assert!(error.error.contains(part), "{body}: {error:?}");
        }
        let alone = parse_put_group(br#"{"target": 1, "beside": {}}"#).unwrap_err();
        assert!(alone.error.contains("together with a template"), "{alone:?}");
    }
}
