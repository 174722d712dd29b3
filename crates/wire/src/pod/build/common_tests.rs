//! Labels and annotations that all objects have: what a template, a scheduler or posse itself has to say wins.

use std::sync::Arc;

use serde_json::Value;

use super::gang::{GangKind, PodGang};
use super::tests::{context, driver_pod};
use super::{PodContext, PodSettings};
use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::kube_event::{self, NewEvent, Notice, Regarding};
use crate::k8s::labels::Selection;
use crate::k8s::lease::LeaseObject;
use crate::pod::credential_files::{CredentialFiles, secret};
use crate::pod::slot_volume::{KeepVolume, SlotVolume};
use crate::pod::template::Template;
use crate::time::Epoch;
use posse_base::time::Millis;
use posse_core::machines::lease::LeaseScope;
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::lease::Record;
use posse_core::model::pod_text::PodOverrides;

const OWNER: &str = "example.com/owner";

fn common() -> CommonMetadata {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    CommonMetadata {
        labels: vec![pair("team", "common"), pair("queue", "common"), pair("tier", "batch")],
        annotations: vec![pair(OWNER, "common"), pair("note", "{{x}}")],
    }
}

fn volume() -> SlotVolume {
    let own = |key: &str| vec![(key.to_owned(), "volume".to_owned())];
    SlotVolume {
        name: "data".to_owned(),
        size: "1Gi".to_owned(),
        storage_class: None,
        access: "ReadWriteOnce".to_owned(),
        mount: Some("/data".to_owned()),
        keep: KeepVolume::Run,
        labels: own("team"),
        annotations: own(OWNER),
    }
}

/// The context of a gang of this kind, and its executor's pod and claim.
fn made(kind: GangKind, metadata: &str) -> (PodContext, Value, Value) {
    let queue = (kind == GangKind::Yunikorn).then(|| "yunikorns".to_owned());
    let gang = Some(PodGang { kind, min: 1, timeout_s: 90, queue, as_created: None });
    let settings = PodSettings { gang, ..PodSettings::default() };
    let context = PodContext { settings, common: Arc::new(common()), ..context() };
    let pod = format!("{{metadata: {metadata}, spec: {{containers: [{{name: a, image: b}}]}}}}");
    let mut template = Template::parse("t.yaml", &pod).unwrap();
    template.mount_slot_volumes(None, &[volume()]).unwrap();
    let compiled = template.compile(&context).unwrap();
    assert_eq!(compiled.warnings(), [""; 0]);
    let overrides = PodOverrides::default();
    let pod = serde_json::from_slice(&compiled.render(1, 0, &overrides)).unwrap();
    let claims = compiled.pod.render_claims(ExecutorId(1), 0, &overrides);
    (context, pod, serde_json::from_slice(&claims[0]).unwrap())
}

/// What an object has of the common ones: the labels team, queue and tier, and the annotations.
fn found(object: &Value) -> [&str; 5] {
    let metadata = &object["metadata"];
    let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
    let all = [
        &labels["team"],
        &labels["queue"],
        &labels["tier"],
        &annotations[OWNER],
        &annotations["note"],
    ];
    all.map(|value| value.as_str().unwrap_or("none"))
}

const ALL: [&str; 5] = ["common", "common", "batch", "common", "{{x}}"];

#[test]
fn pods_claims_and_pod_groups_have_them_unless_they_have_their_own() {
    let theirs = "{labels: {team: template}, annotations: {example.com/owner: template}}";
    for (kind, has_group) in [
        (GangKind::Native, true),
        (GangKind::Volcano, true),
        (GangKind::Coscheduling, true),
        (GangKind::Yunikorn, false),
    ] {
        // YuniKorn's own label says where the pods wait.
        let queue = if kind == GangKind::Yunikorn { "yunikorns" } else { "common" };
        for (metadata, team) in
            [("{}", "common"), ("{labels: null}", "common"), (theirs, "template")]
        {
            let (context, pod, claim) = made(kind, metadata);
            assert_eq!(found(&pod), [team, queue, "batch", team, "{{x}}"], "{kind:?} {metadata}");
            assert_eq!(found(&claim), ["volume", "common", "batch", "volume", "{{x}}"]);
            for object in [&pod, &claim] {
                assert_eq!(object["metadata"]["labels"]["posse.dev/app"], context.app, "{object}");
            }
            let group = context.pod_group();
            assert_eq!(group.is_some(), has_group);
            if let Some(group) = group {
                assert_eq!(found(&group.object), ALL, "{kind:?}");
                assert_eq!(group.object["metadata"]["labels"]["posse.dev/app"], context.app);
            }
        }
    }
}

#[test]
fn leases_secrets_and_events_have_them() {
    let common = common();
    let selection = Selection { app: "a".to_owned(), instance: "i".to_owned() };
    let record = Record {
        uid: Uid::new("u"),
        version_text: String::new(),
        holder: String::new(),
        duration_s: 1,
        acquired_ms: None,
        renewed_ms: None,
        unchanged_ms: None,
        transitions: 0,
        id_high_water: Some(ExecutorId(7)),
        owner: None,
        is_ours: true,
    };
    for scope in [LeaseScope::Application, LeaseScope::Instance] {
        let (name, namespace, selection) = ("l", "n", &selection);
        let (owners, record, common) = (&[][..], &record, &common);
        let object = LeaseObject { scope, name, namespace, selection, owners, common, record };
        let lease: Value = serde_json::from_slice(&object.to_json()).unwrap();
        assert_eq!(found(&lease), ALL);
        let metadata = &lease["metadata"];
        assert_eq!(metadata["labels"]["posse.dev/app"], "a");
        assert_eq!(metadata["annotations"]["posse.dev/id-high-water"], "7");
    }
    let secret = secret("s", &selection, None, &common, &CredentialFiles::new(), None);
    assert_eq!(found(&secret), ALL);
    assert_eq!(secret["metadata"]["labels"]["posse.dev/app"], "a");

    let regarding =
        Regarding { namespace: "n".to_owned(), pod: driver_pod(), common: Arc::new(common) };
    let notice = Notice {
        reason: "ExecutorLost",
        about: "w".to_owned(),
        action: "ReplaceExecutor",
        is_warning: true,
        is_urgent: false,
        note: "lost".to_owned(),
    };
    let event = NewEvent { number: 1, at: Millis(1), notice };
    let epoch = Epoch(std::time::SystemTime::UNIX_EPOCH);
    assert_eq!(found(&kube_event::create_body(&regarding, "r", &event, epoch)), ALL);
}
