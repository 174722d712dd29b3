//! What the claims of a pod mean for its place, as the plugin VolumeBinding of kube-scheduler judges
//! them.

use serde_json::Value;

use super::node_terms::NodeTerms;
use crate::schema::kind::{Key, Kind};
use crate::storage::object::{array_at, text_at};
use crate::storage::store::Store;

/// A claim that a pod mounts.
#[derive(Clone, Debug)]
pub(super) struct PodClaim {
    name: String,
    /// The controller of ephemeral volumes creates it.
    is_ephemeral: bool,
}

/// The claims of a pod's volumes.
pub(super) fn of_pod(pod: &Value) -> Vec<PodClaim> {
    let claim = |volume: &Value| {
        if let Some(claim) = volume.get("persistentVolumeClaim") {
            let name = text_at(claim, "/claimName").to_owned();
            return Some(PodClaim { name, is_ephemeral: false });
        }
        volume.get("ephemeral")?;
        let name = format!("{}-{}", text_at(pod, "/metadata/name"), text_at(volume, "/name"));
        Some(PodClaim { name, is_ephemeral: true })
    };
    array_at(pod, "/spec/volumes").iter().filter_map(claim).collect()
}

/// The nodes that the volumes of the claims allow, or why no node can have the pod, in the words of
/// kube-scheduler.
pub(super) fn allowed_nodes(
    store: &Store,
    namespace: &str,
    claims: &[PodClaim],
) -> Result<Vec<NodeTerms>, String> {
    let mut allowed = Vec::new();
    for PodClaim { name, is_ephemeral } in claims {
        let Some(claim) = store.get(&Key::new(Kind::PersistentVolumeClaim, namespace, name)) else {
            let what = format!("persistentvolumeclaim \"{name}\"");
            return Err(match is_ephemeral {
                true => format!("waiting for ephemeral volume controller to create the {what}"),
                false => format!("{what} not found"),
            });
        };
        if claim.deleting {
            return Err(format!("persistentvolumeclaim \"{name}\" is being deleted"));
        }
        let claim = claim.value();
        let volume = text_at(&claim, "/spec/volumeName");
        if volume.is_empty() || text_at(&claim, "/status/phase") != "Bound" {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        let Some(volume) = store.get(&Key::new(Kind::PersistentVolume, "", volume)) else {
            return Err(format!("persistentvolume \"{volume}\" not found"));
        };
        allowed.extend(volume.value().pointer("/spec/nodeAffinity/required").map(NodeTerms::parse));
    }
    Ok(allowed)
}
