//! The field `beside` of `PUT /v1/groups/{group}`.

use serde_json::Value;

use crate::control::{CallError, TEMPLATE};
use crate::pod::beside::Beside;
use crate::pod::template::Template;

/// The template with the affinity that `beside` asks for.
pub(super) fn place(template: Value, beside: &Beside) -> Result<Value, CallError> {
    let mut template = Template::from_json(TEMPLATE, template)?;
    template.place_beside(beside)?;
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
            ("[]", "{}", "beside", "expected a map, found a list"),
            (r#"{"labels": {"a": "b c"}}"#, "{}", "beside.labels.a", "is not a Kubernetes label"),
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
