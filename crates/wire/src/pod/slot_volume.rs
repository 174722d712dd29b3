//! An entry of `volumes_per_slot`, and the claim that it makes for a slot.

use serde_json::{Value, json};

use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::labels::{APP, GROUP, INSTANCE, MANAGED_BY, SLOT, VOLUME};

/// One entry of `volumes_per_slot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotVolume {
    pub name: String,
    /// The size that the claim asks for, a quantity.
    pub size: String,
    /// None: the cluster's default class.
    pub storage_class: Option<String>,
    /// The access mode.
    pub access: String,
    /// The folder in the main container. None: containers of the template mount the volume.
    pub mount: Option<String>,
    pub keep: KeepVolume,
    /// Labels of the claim beside posse's own.
    pub labels: Vec<(String, String)>,
    pub annotations: Vec<(String, String)>,
}

/// Why `keep: application` is refused in a run that is not exclusive.
pub const NEEDS_EXCLUSIVE: &str =
    "needs `exclusive: true`: two runs of the application would use the volumes at once";

/// How long a claim lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepVolume {
    /// Until the run ends. The name has the instance in it, so no other run has the same one.
    #[default]
    Run,
    /// Until somebody deletes it: the next run of the application uses it again.
    Application,
}

impl KeepVolume {
    /// The value of the key `keep`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Application => "application",
        }
    }
}

impl SlotVolume {
    /// The claim's name, with placeholders.
    pub fn claim_name(&self) -> String {
        match self.keep {
            KeepVolume::Run => {
                format!("{{{{APP}}}}-{{{{INSTANCE}}}}-{{{{GROUP}}}}-{{{{SLOT}}}}-{}", self.name)
            }
            KeepVolume::Application => {
                format!("{{{{APP}}}}-{{{{GROUP}}}}-{{{{SLOT}}}}-{}", self.name)
            }
        }
    }

    /// The claim of a slot as it is created, with placeholders. `owner`: the ownerReference of the driver
    /// pod, if there is one. It owns claims that live as long as the run. `common`: what all objects have.
    pub fn claim(&self, owner: Option<Value>, common: &CommonMetadata) -> Value {
        let mut metadata = json!({
            "name": self.claim_name(),
            "labels": {
                APP: "{{APP}}", GROUP: "{{GROUP}}", SLOT: "{{SLOT}}",
                MANAGED_BY.0: MANAGED_BY.1, VOLUME.0: VOLUME.1,
            },
        });
        if self.keep == KeepVolume::Run {
            metadata["labels"][INSTANCE] = json!("{{INSTANCE}}");
            if let Some(mut owner) = owner {
                owner["blockOwnerDeletion"] = json!(false);
                metadata["ownerReferences"] = json!([owner]);
            }
        }
        let mut spec = json!({
            "accessModes": [self.access], "resources": { "requests": { "storage": self.size } },
        });
        if let Some(class) = &self.storage_class {
            spec["storageClassName"] = json!(class);
        }
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec,
        });
        let (labels, annotations) = (self.labels.clone(), self.annotations.clone());
        CommonMetadata { labels, annotations }.lay_under_object(&mut claim);
        common.lay_under_object(&mut claim);
        claim
    }
}

/// True if an object that exists is the claim that posse wants to create: it has all of posse's
/// labels. The user's own may have changed since then.
pub fn is_same_claim(wanted: &Value, found: &Value) -> bool {
    let labels = |claim: &Value| claim["metadata"]["labels"].clone();
    let (wanted, found) = (labels(wanted), labels(found));
    let ours = [APP, INSTANCE, GROUP, SLOT, MANAGED_BY.0, VOLUME.0];
    ours.iter().all(|key| wanted.get(key).is_none_or(|value| found.get(key) == Some(value)))
}
