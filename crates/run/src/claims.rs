//! The claims of `volumes_per_slot`: created before the first pod of a slot, and deleted at the end of
//! a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use log::{debug, warn};
use serde_json::Value;

use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::labels::{Selection, VOLUME, component_selector};
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

    /// Deletes claims of the run that nobody needs any more. One that posse may not delete stays until the run's end.
    ///
    /// # Errors
    /// A refusal after which the same request may succeed, as [`RefusalClass::Transient`]: it is about no pod.
    pub fn give_up(&self, claims: &[Vec<u8>]) -> Result<(), Refusal> {
        for claim in claims {
            let claim = parse(claim)?;
            let name = claim["metadata"]["name"].as_str().unwrap_or_default();
            let found = self.objects.get(KIND, name);
            let deleted = found.and_then(|found| match found {
                Some(found) if is_same_claim(&claim, &found) => {
                    let uid = found["metadata"]["uid"].as_str().unwrap_or_default();
                    self.objects.delete(KIND, name, uid, None)
                }
                Some(_) | None => Ok(()),
            });
            match deleted {
                Ok(()) => {}
                Err(refusal)
                    if matches!(refusal.class, RefusalClass::Forbidden | RefusalClass::Invalid) =>
                {
                    warn!("claim {name} stays until the end of the run: {refusal}");
                }
                Err(refusal) => {
                    let refusal = about(&format!("claim {name}"), refusal);
                    return Err(Refusal { class: RefusalClass::Transient, ..refusal });
                }
            }
        }
        Ok(())
    }

    /// Deletes the claims that live as long as the run, and names those that remain.
    pub fn remove(&self) {
        if !self.has_run_claims.load(Ordering::Relaxed) {
            return;
        }
        let Selection { app, instance } = &self.selection;
        let selector = component_selector(VOLUME, Some(app), Some(instance));
        let removed = delete_claims(&self.objects, &selector);
        if let Err(refusal) = removed {
            warn!("volumes remain ({refusal}): `kubectl delete pvc -l {selector}` deletes them");
        }
    }
}

/// Deletes the claims that the label selector matches, and returns their number.
///
/// # Errors
/// The first refusal of the server. Other claims are tried all the same.
pub fn delete_claims(objects: &Objects, selector: &str) -> Result<usize, Refusal> {
    let (claims, _) = objects.list(KIND, selector, &Meta::parse)?;
    let mut refused = None;
    for claim in &claims {
        let deleted = objects.delete(KIND, &claim.name, &claim.uid, None);
        refused = refused.or_else(|| Some(about(&format!("claim {}", claim.name), deleted.err()?)));
    }
    refused.map_or(Ok(claims.len()), Err)
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
}
