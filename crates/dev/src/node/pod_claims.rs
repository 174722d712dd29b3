//! What the claims of a pod mean for its place, as the plugin VolumeBinding of kube-scheduler judges
//! them.

use serde_json::Value;

use super::node_terms::NodeTerms;
use crate::schema::kind::{Key, Kind};
use crate::storage::object::{array_at, text_at};
use crate::storage::store::Store;

/// The names of the claims that a pod mounts.
pub(super) fn of_pod(pod: &Value) -> Vec<String> {
    let claims = array_at(pod, "/spec/volumes").iter();
    let claims = claims.filter_map(|volume| volume.get("persistentVolumeClaim"));
    claims.map(|claim| text_at(claim, "/claimName").to_owned()).collect()
}

/// The nodes that the volumes of the claims allow, or why no node can have the pod, in the words of
/// kube-scheduler.
pub(super) fn allowed_nodes(
    store: &Store,
    namespace: &str,
    claims: &[String],
) -> Result<Vec<NodeTerms>, String> {
    let mut allowed = Vec::new();
    for name in claims {
        let Some(claim) = store.get(&Key::new(Kind::PersistentVolumeClaim, namespace, name)) else {
            return Err(format!("persistentvolumeclaim \"{name}\" not found"));
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
