//! Pods in a queue of Kueue.

use std::sync::Arc;

use serde_json::Value;

use super::tests::{context, driver_pod, rendered};
use super::{PodContext, PodSettings};
use crate::pod::template::Template;
use posse_core::model::pod_text::PodOverrides;

/// An avoided node changes the pod, and not its role: Kueue would end the group.
#[test]
fn a_group_in_a_queue_has_one_name_one_size_and_one_role() {
    let settings = PodSettings {
        queue: Some("team-a".to_owned()),
        queue_group: Some(3),
        ..PodSettings::default()
    };
    let long = "a".repeat(40);
    for (group, want) in [
        ("g", format!("{}-{}-g", context().app, context().instance)),
        (&*long, format!("{}-{}-{}", context().app, context().instance, &long[..31])),
    ] {
        let context =
            PodContext { settings: settings.clone(), group: group.to_owned(), ..context() };
        let template = Template::parse("t.yaml", "{spec: {containers: [{name: a, image: b}]}}");
        let compiled = template.unwrap().compile(&context).unwrap();
        for avoid in [Vec::new(), vec!["n1".to_owned()]] {
            let avoid = Arc::new(avoid);
            let overrides = PodOverrides { avoid, ..PodOverrides::default() };
            let pod: Value = serde_json::from_slice(&compiled.render(1, 0, &overrides)).unwrap();
            let name = pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"].as_str().unwrap();
            assert!(name.starts_with(&want) && name.len() <= 63, "{name}");
            let annotations = &pod["metadata"]["annotations"];
            assert_eq!(annotations["kueue.x-k8s.io/pod-group-total-count"], "3");
            assert_eq!(annotations["kueue.x-k8s.io/role-hash"], "executor");
            assert_eq!(annotations["kueue.x-k8s.io/pod-group-serving"], "true");
        }
    }
}

#[test]
fn a_queue_counts_the_executors_whoever_owns_them() {
    let template = |labels: &str| {
        let pod = format!(
            "{{metadata: {{labels: {labels}}}, spec: {{containers: [{{name: a, image: b}}]}}}}"
        );
        Template::parse("t.yaml", &pod).unwrap()
    };
    let queued = PodContext {
        settings: PodSettings { queue: Some("team-a".to_owned()), ..PodSettings::default() },
        ..context()
    };
    let owned = PodContext { owner: Some(driver_pod()), ..queued.clone() };
    let (name, managed) = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed");
    let theirs = "{kueue.x-k8s.io/queue-name: other}";
    for (labels, context, queue, is_managed, n_warnings) in [
        ("{}", context(), None, false, 0),
        ("{}", queued.clone(), Some("team-a"), false, 0),
        ("{}", owned, Some("team-a"), true, 0),
        (theirs, context(), Some("other"), false, 0),
        (theirs, queued, Some("team-a"), false, 1),
    ] {
        let compiled = template(labels).compile(&context).unwrap();
        let pod = rendered(&compiled);
        let metadata = &pod["metadata"];
        assert_eq!(metadata["labels"][name].as_str(), queue);
        assert_eq!(metadata["labels"][managed].as_str().is_some(), is_managed);
        let parent = &metadata["annotations"]["kueue.x-k8s.io/pod-suspending-parent"];
        assert_eq!(parent.as_str().is_some(), is_managed);
        assert_eq!(compiled.warnings().len(), n_warnings, "{:?}", compiled.warnings());
    }
}
