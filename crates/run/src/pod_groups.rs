//! The PodGroups of gangs: created before the first pod of a group, and deleted with the group or at the end of a run.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::{debug, warn};

use crate::claims::about;
use posse_base::sync::lock;
use posse_core::model::ids::GroupName;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::pod_groups;
use posse_kube::http::Http;
use posse_wire::pod::build::PodContext;
use posse_wire::pod::build::gang::PodGroup;

/// A PodGroup is created again after this time, in case that somebody has deleted it: without it the scheduler starts
/// none of its pods.
const TRUSTED: Duration = Duration::from_secs(30);

/// The PodGroups of a run.
#[derive(Debug)]
pub struct PodGroups {
    http: Http,
    namespace: String,
    /// Those of the groups of the file, until a call deletes them.
    groups: Mutex<BTreeMap<GroupName, PodGroup>>,
    /// Where those are that were created, and when.
    created: Mutex<BTreeMap<GroupName, (String, Instant)>>,
}

impl PodGroups {
    /// None is created yet.
    pub fn new(http: Http, namespace: &str, groups: BTreeMap<GroupName, PodGroup>) -> Self {
        let (namespace, groups) = (namespace.to_owned(), Mutex::new(groups));
        Self { http, namespace, groups, created: Mutex::default() }
    }

    /// Creates the PodGroup of this group, if it has one that is not known to be there.
    ///
    /// # Errors
    /// The server's refusal. No pod was created.
    pub fn ensure(&self, group: &GroupName) -> Result<(), Refusal> {
        let known = lock(&self.created).get(group).cloned();
        if known.as_ref().is_some_and(|(_, at)| at.elapsed() < TRUSTED) {
            return Ok(());
        }
        let Some(PodGroup { api, object }) = lock(&self.groups).get(group).cloned() else {
            return Ok(());
        };
        let created = known.map_or_else(|| pod_groups::root(&self.http, api), |(root, _)| Ok(root));
        let created = created.and_then(|root| {
            pod_groups::create(&self.http, &root, &self.namespace, &object).map(|()| root)
        });
        let root = created.map_err(|refusal| about("PodGroup", refusal))?;
        debug!("PodGroup of group {group} is at {root}");
        lock(&self.created).insert(group.clone(), (root, Instant::now()));
        Ok(())
    }

    /// Deletes the PodGroups that were created, and does not wait until they are gone: a finalizer may keep them as long
    /// as their pods.
    pub fn remove(&self) {
        let groups: Vec<GroupName> = lock(&self.created).keys().cloned().collect();
        groups.iter().for_each(|group| self.forget(group));
    }

    /// The same for this group, which is deleted. The next group of its name has none.
    pub fn forget(&self, group: &GroupName) {
        let pod_group = lock(&self.groups).remove(group);
        let created = lock(&self.created).remove(group);
        let (Some(PodGroup { object, .. }), Some((root, _))) = (pod_group, created) else { return };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if let Err(refusal) = pod_groups::delete(&self.http, &root, &self.namespace, name) {
            warn!("the PodGroup {name} of group {group} remains: {refusal}");
        }
    }
}

/// Asks the server whether it knows the PodGroups that these pods need. Other problems are those of the first create.
///
/// # Errors
/// It knows none, and what to do.
pub fn check_pod_group(http: &Http, pods: &PodContext) -> Result<(), Refusal> {
    let Some(PodGroup { api, .. }) = pods.pod_group() else { return Ok(()) };
    match pod_groups::root(http, api) {
        Err(refusal) if refusal.class == RefusalClass::Invalid => Err(refusal),
        Ok(_) | Err(_) => Ok(()),
    }
}
