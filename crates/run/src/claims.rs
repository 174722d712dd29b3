//! The claims of `volumes_per_slot`: created before the first pod of a slot, and deleted at the end of
//! a run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use log::{debug, warn};
use serde_json::Value;

use posse_core::model::ids::GroupName;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::labels::{GROUP, SLOT, Selection, VOLUME, component_selector};
use posse_wire::k8s::object::Meta;
use posse_wire::pod::slot_volume::{KeepVolume, SlotVolume, is_same_claim};

const KIND: Kind = Kind::PersistentVolumeClaim;
/// The pod is sent within this time after its create was decided: the core counts on a create of
/// unknown outcome to take effect within 60 s, of which the request itself may need 35 s.
const TIME_MAX: Duration = Duration::from_secs(20);

/// The claims of a run. Clones share what `note` notes.
#[derive(Clone, Debug)]
pub struct SlotClaims {
    objects: Objects,
    selection: Selection,
    /// A group has had volumes that are deleted with the run.
    has_run_claims: Arc<AtomicBool>,
}

impl SlotClaims {
    /// No claims yet.
    pub fn new(objects: Objects, selection: Selection) -> Self {
        Self { objects, selection, has_run_claims: Arc::default() }
    }

    /// Notes that a group has these volumes, so that `remove` deletes them.
    pub fn note(&self, volumes: &[SlotVolume]) {
        if volumes.iter().any(|volume| volume.keep == KeepVolume::Run) {
            self.has_run_claims.store(true, Ordering::Relaxed);
        }
    }

    /// Asks the server whether it would create this claim, and creates none.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn check(&self, claim: &[u8]) -> Result<(), Refusal> {
        self.objects.dry_run(KIND, &parse(claim)?)
    }

    /// Creates the slot's claims, or finds those of earlier executors. A retry does no harm. If one of
    /// them cannot be had, those that this call has created go again: half of a slot's volumes would
    /// keep others from a quota.
    ///
    /// # Errors
    /// The server's refusal, or why the claim that exists cannot be used now. No pod was created.
    pub fn ensure(&self, claims: &[Vec<u8>]) -> Result<(), Refusal> {
        let (started, mut created) = (Instant::now(), Vec::new());
        for claim in claims {
            match parse(claim).and_then(|claim| self.ensure_claim(&claim)) {
                Ok(uid) => created.extend(uid),
                Err(refusal) => {
                    for (name, uid) in &created {
                        let deleted = self.objects.delete(KIND, name, uid, None);
                        debug!("claim {name}: deleted again: {deleted:?}");
                    }
                    return Err(refusal);
                }
            }
        }
        if started.elapsed() > TIME_MAX {
            let message = "the server took too long to create the claims".to_owned();
            return Err(Refusal::local(RefusalClass::Transient, message));
        }
        Ok(())
    }

    /// Name and uid of the claim, if this call has created it.
    fn ensure_claim(&self, claim: &Value) -> Result<Option<(String, String)>, Refusal> {
        let name = claim["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let about = |refusal| about(&format!("claim {name}"), refusal);
        let refusal = match self.objects.create(KIND, claim) {
            Ok(created) => return Ok(Some((name, created.uid))),
            // A server asks the quota before it finds that the name is taken.
            Err(refusal)
                if matches!(refusal.class, RefusalClass::Exists | RefusalClass::Capacity) =>
            {
                refusal
            }
            Err(refusal) => return Err(about(refusal)),
        };
        let found = self.objects.get(KIND, &name).map_err(about)?;
        let (class, what) = match found {
            None if refusal.class == RefusalClass::Capacity => return Err(about(refusal)),
            None => (RefusalClass::Transient, "was deleted at this moment"),
            Some(found) if !is_same_claim(claim, &found) => (
                RefusalClass::Invalid,
                "exists and is not this group's volume: delete it, or rename the volume",
            ),
            Some(found) if !found["metadata"]["deletionTimestamp"].is_null() => {
                (RefusalClass::Transient, "is being deleted; posse waits for that")
            }
            Some(_) => return Ok(None),
        };
        Err(Refusal { class, message: format!("claim {name} {what}"), ..refusal })
    }

    /// Deletes those claims of these slots that live as long as the run. Returns how many go now. What cannot be deleted
    /// stays until the next try, or until the end of the run.
    pub fn give_up(&self, slots: &[(GroupName, BTreeSet<u32>)]) -> usize {
        let is_of_slots = |claim: &Meta| {
            let slot = claim.label(SLOT).and_then(|slot| slot.parse().ok());
            let in_group =
                |(group, _): &&(GroupName, _)| claim.label(GROUP) == Some(group.as_str());
            let slots = slots.iter().find(in_group).map(|(_, slots)| slots);
            slots.zip(slot).is_some_and(|(slots, slot)| slots.contains(&slot))
        };
        let (n, refused) = self.delete(is_of_slots);
        if let Some(refusal) = refused {
            warn!("claims of slots whose work is done remain for now: {refusal}");
        }
        n
    }

    /// Deletes the claims that live as long as the run, and names those that remain.
    pub fn remove(&self) {
        if !self.has_run_claims.load(Ordering::Relaxed) {
            return;
        }
        if let (_, Some(refusal)) = self.delete(|_| true) {
            let selector = self.selector();
            warn!("volumes remain ({refusal}): `kubectl delete pvc -l {selector}` deletes them");
        }
    }

    fn selector(&self) -> String {
        let Selection { app, instance } = &self.selection;
        component_selector(VOLUME, Some(app), Some(instance))
    }

    /// Deletes claims that live as long as the run, unless they are being deleted. Returns how many go now, and the first
    /// refusal. Others are tried all the same.
    fn delete(&self, is_wanted: impl Fn(&Meta) -> bool) -> (usize, Option<Refusal>) {
        let claims = match self.objects.list(KIND, &self.selector(), &Meta::parse) {
            Ok((claims, _)) => claims,
            Err(refusal) => return (0, Some(refusal)),
        };
        let (mut n, mut refused) = (0, None);
        for claim in claims.iter().filter(|claim| !claim.is_deleting() && is_wanted(claim)) {
            match self.objects.delete(KIND, &claim.name, &claim.uid, None) {
                Ok(()) => n += 1,
                Err(refusal) => {
                    refused.get_or_insert_with(|| about(&format!("claim {}", claim.name), refusal));
                }
            }
        }
        (n, refused)
    }
}

/// The claim that a template gives.
fn parse(claim: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(claim).map_err(|error| {
        Refusal::local(
            RefusalClass::Invalid,
            format!("a claim of volumes_per_slot is no JSON: {error}"),
        )
    })
}

/// The refusal with what was to be there before a pod. The pod was not sent, so nothing about it is unknown.
pub(crate) fn about(what: &str, refusal: Refusal) -> Refusal {
    let is_unknown = matches!(
        refusal.class,
        RefusalClass::OutcomeUnknown | RefusalClass::Conflict | RefusalClass::Expired
    );
    let class = if is_unknown { RefusalClass::Transient } else { refusal.class };
    Refusal { class, message: format!("{what}: {}", refusal.message), ..refusal }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::{Answer, TestServer, plain_client};

    const NAME: &str = "a-b-g-0-data";

    fn claims(server: &TestServer) -> SlotClaims {
        let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
        SlotClaims::new(Objects::new(plain_client(server.address), Some("n")), selection)
    }

    fn claim() -> Vec<u8> {
        format!(r#"{{"metadata":{{"name":"{NAME}","uid":"u"}}}}"#).into_bytes()
    }

    fn status(code: u16, reason: &str, message: &str) -> Answer {
        let status = serde_json::json!({
            "kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code,
        });
        Answer::json(code, status.to_string())
    }

    #[test]
    fn a_claim_that_exists_needs_no_room_in_a_quota() {
        for (reason, code, is_there, want) in [
            ("Forbidden", 403, true, None),
            ("Forbidden", 403, false, Some(RefusalClass::Capacity)),
            ("AlreadyExists", 409, true, None),
            ("AlreadyExists", 409, false, Some(RefusalClass::Transient)),
        ] {
            let server = TestServer::start(None, move |seen| {
                match (seen.line().starts_with("POST"), is_there) {
                    (true, _) => status(code, reason, "exceeded quota: q, used: 1, limited: 1"),
                    (false, true) => Answer::json(200, claim()),
                    (false, false) => status(404, "NotFound", "not found"),
                }
            });
            let refusal = claims(&server).ensure(&[claim()]).err();
            let class = refusal.as_ref().map(|refusal| refusal.class);
            assert_eq!(class, want, "{reason} {is_there}: {refusal:?}");
        }
    }

    /// One is of a slot that works, one of another group, one is going, and one may not be deleted.
    #[test]
    fn only_claims_of_done_slots_are_given_up() {
        let server = TestServer::start(None, |seen| {
            let claim = |name: &str, group: &str, slot: &str, more: serde_json::Value| {
                let labels = serde_json::json!({GROUP: group, SLOT: slot});
                serde_json::json!({"metadata":
                    {"name": name, "uid": name, "labels": labels, "deletionTimestamp": more}})
            };
            let null = serde_json::Value::Null;
            let claims = [
                claim("stays", "g", "0", null.clone()),
                claim("refused", "g", "1", null.clone()),
                claim("done", "g", "2", null.clone()),
                claim("other", "h", "2", null),
                claim("going", "g", "1", "2026-01-01T00:00:00Z".into()),
            ];
            let list = serde_json::json!({"kind": "PersistentVolumeClaimList", "items": claims,
                "metadata": {"resourceVersion": "7"}});
            match seen.line().split_once(' ') {
                Some(("GET", _)) => Answer::json(200, list.to_string()),
                Some((_, path)) if path.contains("refused") => status(500, "", "a webhook is away"),
                _ => Answer::json(200, "{}"),
            }
        });
        let slots = [(GroupName::from("g"), BTreeSet::from([1, 2]))];
        assert_eq!(claims(&server).give_up(&slots), 1);
        let seen: Vec<String> = server.seen().iter().map(|seen| seen.line().to_owned()).collect();
        let deleted = seen.iter().filter_map(|line| line.strip_prefix("DELETE "));
        let deleted: Vec<_> =
            deleted.filter_map(|path| path.split(['/', ' ', '?']).nth(6)).collect();
        assert_eq!(deleted, ["refused", "done"], "{seen:?}");
    }
}
