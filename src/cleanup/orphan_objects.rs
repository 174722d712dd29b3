//! `posse cleanup --volumes` and `--secrets`: the claims of `volumes_per_slot` and the Secrets of
//! `credentials` whose application has ended.

use std::collections::BTreeSet;

use crate::cleanup::Cleanup;
use crate::exit::Failure;
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::{Kind, apps_with_pods};
use posse_wire::k8s::labels::{APP, CREDENTIALS, VOLUME, component_selector};
use posse_wire::k8s::lease::NamedLease;
use posse_wire::k8s::object::Meta;

/// A claim or a Secret that can be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrphanObject {
    kind: Kind,
    pub(super) app: Option<String>,
    pub(super) name: String,
    uid: String,
    version: String,
}

impl OrphanObject {
    /// What messages call it.
    pub(super) fn word(&self) -> &'static str {
        if self.kind == Kind::Secret { "secret" } else { "volume" }
    }

    /// Kind and name, as `-o name` prints them.
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.kind.word(), self.name)
    }
}

impl Cleanup<'_> {
    /// With --volumes and --secrets: what belongs to applications that have no pod, and whose Leases
    /// nobody holds.
    ///
    /// # Errors
    /// The API server refuses or does not answer: without all facts nothing is deleted.
    pub(super) fn orphan_objects(&self) -> Result<Vec<OrphanObject>, Failure> {
        let kinds = [
            (self.args.volumes, Kind::PersistentVolumeClaim, VOLUME, "cannot list the volumes"),
            (self.args.secrets, Kind::Secret, CREDENTIALS, "cannot list the secrets"),
        ];
        let mut found = Vec::new();
        for (_, kind, component, what) in kinds.into_iter().filter(|(is_asked, ..)| *is_asked) {
            let some = self.find(kind, component);
            found.extend(some.map_err(|refusal| self.place.connection.failure(what, &refusal))?);
        }
        Ok(found)
    }

    fn find(&self, kind: Kind, component: (&str, &str)) -> Result<Vec<OrphanObject>, Refusal> {
        let app = self.args.app.as_deref();
        let selector = component_selector(component, app, None);
        let (mut found, _) = self.place.objects().list(kind, &selector, &Meta::parse)?;
        // Those that are being deleted need nothing more.
        found.retain(|meta| !meta.is_deleting());
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let busy = self.busy_apps(app)?;
        let is_left = |meta: &Meta| meta.label(APP).is_none_or(|app| !busy.contains(app));
        Ok(found
            .into_iter()
            .filter(is_left)
            .map(|meta| OrphanObject {
                kind,
                app: meta.label(APP).map(str::to_owned),
                name: meta.name,
                uid: meta.uid,
                version: meta.resource_version,
            })
            .collect())
    }

    /// The applications that have a pod, or a Lease that somebody holds.
    fn busy_apps(&self, app: Option<&str>) -> Result<BTreeSet<String>, Refusal> {
        let mut busy = apps_with_pods(&self.place.connection.http, &self.place.name)?;
        let held = self.leases().list(app)?.into_iter().filter(|lease| self.is_held(lease));
        busy.extend(held.map(|lease| lease.selection.app));
        Ok(busy)
    }

    /// Somebody holds it, who with --stale has renewed it lately.
    pub(super) fn is_held(&self, lease: &NamedLease) -> bool {
        let age = self.age_of(&lease.record);
        let is_stale = self.args.stale.is_some_and(|stale_ms| age.is_stale(stale_ms));
        !lease.record.holder.is_empty() && !is_stale
    }

    /// Deletes it by its uid; a Secret that a new run has written since it was listed stays.
    pub(super) fn delete_object(&self, left: &OrphanObject) -> Result<(), Refusal> {
        let OrphanObject { kind, name, uid, version, .. } = left;
        if *kind == Kind::Secret {
            return self.place.objects().delete_version(*kind, name, uid, version);
        }
        self.place.objects().delete(*kind, name, uid, None)
    }
}
