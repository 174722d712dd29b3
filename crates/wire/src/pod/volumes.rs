//! `volumes_per_slot` in a template: the volumes of a slot, which its executors mount one after the
//! other.

use serde_json::{Map, Value, json};

use crate::k8s::labels;
use crate::pod::slot_volume::SlotVolume;
use crate::pod::template::{Template, TemplateError};

impl Template {
    /// Adds the volumes, and mounts those with a folder into the main container, which is the first
    /// one if `container` is none. `compile` adds the claims.
    ///
    /// # Errors
    /// The template has a volume of that name, or mounts something else at that folder; nothing
    /// mounts the volume; or a field has the wrong type.
    pub fn mount_slot_volumes(
        &mut self,
        container: Option<&str>,
        volumes: &[SlotVolume],
    ) -> Result<(), TemplateError> {
        let mut spec = std::mem::take(&mut self.spec);
        let done =
            volumes.iter().try_for_each(|volume| self.mount_volume(&mut spec, container, volume));
        self.spec = spec;
        self.slot_volumes = volumes.to_vec();
        done
    }

    fn mount_volume(
        &self,
        spec: &mut Map<String, Value>,
        container: Option<&str>,
        volume: &SlotVolume,
    ) -> Result<(), TemplateError> {
        let SlotVolume { name, mount, .. } = volume;
        let has = |list: &[Value], key: &str, wanted: &str| {
            list.iter().any(|item| item.get(key).and_then(Value::as_str) == Some(wanted))
        };
        let list = self.list(spec, "volumes", "spec.volumes")?;
        if has(list, "name", name) {
            let message =
                format!("has a volume {name}, as volumes_per_slot: rename one of the two");
            return Err(self.fail("spec.volumes", message));
        }
        let claim = volume.claim_name();
        list.push(json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } }));
        let Some(mount) = mount else { return self.check_is_mounted(spec, name) };
        let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
        let is_main =
            |one: &Value| container.is_none_or(|wanted| one.get("name") == Some(&json!(wanted)));
        let mut named = containers.into_iter().flatten().enumerate();
        // `compile` reports a main container that does not exist.
        let Some((i, main)) = named.find(|(_, one)| is_main(one)) else { return Ok(()) };
        let Value::Object(main) = main else { return Ok(()) };
        let field = format!("spec.containers[{i}].volumeMounts");
        let mounts = self.list(main, "volumeMounts", &field)?;
        if has(mounts, "mountPath", mount) {
            let message =
                format!("mounts something at {mount}, as volumes_per_slot does: change one");
            return Err(self.fail(&field, message));
        }
        mounts.push(json!({ "name": name, "mountPath": mount }));
        Ok(())
    }

    /// An error if no container of the template mounts this volume.
    fn check_is_mounted(&self, spec: &Map<String, Value>, name: &str) -> Result<(), TemplateError> {
        let lists = ["containers", "initContainers"].into_iter().filter_map(|list| spec.get(list));
        let containers = lists.filter_map(Value::as_array).flatten();
        let mut mounts = containers.filter_map(|one| one.get("volumeMounts")?.as_array()).flatten();
        if mounts.any(|mount| mount.get("name").is_some_and(|of| of == name)) {
            return Ok(());
        }
        let message = format!(
            "no container mounts the volume {name} of volumes_per_slot: give the volume a `mount`"
        );
        Err(self.fail("spec.containers", message))
    }
}

/// Where the main container of a finished pod has volumes. A path with a placeholder is not known yet.
pub(super) fn mount_paths(pod: &Value) -> Vec<String> {
    let main = &pod["metadata"]["annotations"][labels::CONTAINER];
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mounts = containers
        .filter(|one| one["name"] == *main)
        .filter_map(|one| one.get("volumeMounts")?.as_array());
    let paths = mounts.flatten().filter_map(|mount| mount["mountPath"].as_str());
    let absolute = |path: &str| {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.flat_map(|name| ["/", name]).collect::<String>()
    };
    paths.filter(|path| !path.contains("{{")).map(absolute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::build::tests::context;
    use crate::pod::build::{OwnerRef, PodContext, PodSettings};
    use crate::pod::slot_volume::{KeepVolume, is_same_claim};
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::pod_text::PodOverrides;

    fn volume(keep: KeepVolume) -> SlotVolume {
        SlotVolume {
            name: "scratch".to_owned(),
            size: "10Gi".to_owned(),
            storage_class: Some("fast".to_owned()),
            access: "ReadWriteOnce".to_owned(),
            mount: Some("/data".to_owned()),
            keep,
            labels: vec![("team".to_owned(), "a".to_owned())],
            annotations: vec![("note".to_owned(), "b".to_owned())],
        }
    }

    /// The claim as it is sent for this slot.
    fn claim(volume: SlotVolume, slot: u32, owner: Option<OwnerRef>) -> Value {
        let mut template =
            Template::parse("t.yaml", "spec: {containers: [{name: c}]}").expect("a pod");
        template.mount_slot_volumes(None, &[volume]).expect("it fits");
        let text = str::to_owned;
        let context = PodContext {
            app: text("w"),
            instance: text("i"),
            group: text("g"),
            instance_owner: owner,
            ..context()
        };
        let pod = template.compile(&context).expect("it compiles").pod;
        let claims = pod.render_claims(ExecutorId(1), slot, &PodOverrides::default());
        assert_eq!((pod.claims.len(), claims.len()), (1, 1));
        serde_json::from_slice(&claims[0]).expect("JSON")
    }

    #[test]
    fn a_claim_has_the_labels_and_the_owner_of_its_slot() {
        let owner = OwnerRef::pod("driver", "u");
        let run = claim(volume(KeepVolume::Run), 3, Some(owner.clone()));
        assert_eq!(run["metadata"]["name"], "w-i-g-3-scratch");
        let labels = json!({
            "posse.dev/app": "w", "posse.dev/instance": "i", "posse.dev/group": "g",
            "posse.dev/slot": "3", "app.kubernetes.io/managed-by": "posse",
            "app.kubernetes.io/component": "volume", "team": "a",
        });
        assert_eq!(run["metadata"]["annotations"], json!({"note": "b"}));
        assert_eq!(run["metadata"]["labels"], labels);
        assert_eq!(run["metadata"]["ownerReferences"][0]["uid"], "u");
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": "fast",
        });
        assert_eq!(run["spec"], spec);
        let kept = claim(volume(KeepVolume::Application), 3, Some(owner));
        assert_eq!(kept["metadata"]["name"], "w-g-3-scratch");
        assert_eq!(kept["metadata"].get("ownerReferences"), None);
        assert_eq!(kept["metadata"]["labels"].get("posse.dev/instance"), None);
        assert!(is_same_claim(&kept, &run), "more labels do no harm");
        assert!(!is_same_claim(&run, &kept));
        assert!(!is_same_claim(&kept, &json!({"metadata": {}})));
        let mut changed = kept.clone();
        changed["metadata"]["labels"]["team"] = json!("b");
        assert!(is_same_claim(&kept, &changed), "the labels of the user do not matter");
        changed["metadata"]["labels"]["posse.dev/slot"] = json!("4");
        assert!(!is_same_claim(&kept, &changed));
    }

    #[test]
    fn it_is_known_where_the_main_container_has_volumes() {
        let mounts = |name: &str, paths: [&str; 3]| {
            let mounts = paths.map(|path| json!({"name": "v", "mountPath": path}));
            json!({"name": name, "volumeMounts": mounts})
        };
        let pod = json!({"spec": {"containers": [
            mounts("a", ["/a", "/x", "/y"]),
            mounts("b", ["b", "/data//in/", "/of/{{GROUP}}"]),
        ]}});
        let template = Template::from_json("t.yaml", pod).unwrap();
        let settings = PodSettings { container: Some("b".to_owned()), ..PodSettings::default() };
        let pod = template.compile(&PodContext { settings, ..context() }).unwrap().pod;
        for (path, want) in [
            ("/b", Some("/b")),
            ("/data", Some("/data/in")),
            ("/data/in", Some("/data/in")),
            ("/data/in/file", None),
            ("/of", None),
            ("/x", None),
        ] {
            assert_eq!(pod.mount_in_place_of(path), want, "{path}");
        }
    }

    #[test]
    fn the_main_container_mounts_the_claim() {
        let text =
            "spec: {volumes: [{name: a, emptyDir: {}}], containers: [{name: x}, {name: main}]}";
        let mut template = Template::parse("t.yaml", text).unwrap();
        template.mount_slot_volumes(Some("main"), &[volume(KeepVolume::Run)]).unwrap();
        let claim = json!({"name": "scratch", "persistentVolumeClaim":
            {"claimName": "{{APP}}-{{INSTANCE}}-{{GROUP}}-{{SLOT}}-scratch"}});
        assert_eq!(template.spec["volumes"][1], claim);
        let mount = json!([{"name": "scratch", "mountPath": "/data"}]);
        assert_eq!(template.spec["containers"][1]["volumeMounts"], mount);
        assert_eq!(template.spec["containers"][0].get("volumeMounts"), None);
    }

    #[test]
    fn the_template_may_mount_the_volume_itself() {
        let of_template = SlotVolume { mount: None, ..volume(KeepVolume::Run) };
        let text = "spec: {containers: [{name: x}], initContainers: [{name: setup, volumeMounts: \
                    [{name: scratch, mountPath: /s, subPath: a}]}]}";
        let mut template = Template::parse("t.yaml", text).unwrap();
        template.mount_slot_volumes(None, std::slice::from_ref(&of_template)).unwrap();
        assert_eq!(template.spec["volumes"][0]["name"], "scratch");
        assert_eq!(template.spec["containers"][0].get("volumeMounts"), None);
        let text = "spec: {containers: [{name: x, volumeMounts: [{name: z, mountPath: /s}]}]}";
        let mut template = Template::parse("t.yaml", text).unwrap();
        let error = template.mount_slot_volumes(None, &[of_template]).unwrap_err().to_string();
        assert!(error.contains("no container mounts the volume scratch"), "{error}");
    }

    #[test]
    fn a_volume_or_folder_that_is_taken_is_an_error() {
        for (spec, want) in [
            (
                "volumes: [{name: scratch}], containers: [{name: c}]",
                "t.yaml: spec.volumes: has a volume",
            ),
            ("volumes: x, containers: [{name: c}]", "t.yaml: spec.volumes: expected a list"),
            (
                "containers: [{name: c, volumeMounts: [{name: z, mountPath: /data}]}]",
                "t.yaml: spec.containers[0].volumeMounts: mounts something at /data",
            ),
        ] {
            let mut template = Template::parse("t.yaml", &format!("spec: {{{spec}}}")).unwrap();
            let error = template.mount_slot_volumes(None, &[volume(KeepVolume::Run)]).unwrap_err();
            assert!(error.to_string().starts_with(want), "{error}");
        }
    }
}
