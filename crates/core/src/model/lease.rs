//! A Lease.

use crate::model::ids::{ExecutorId, Uid};
use crate::model::owner::Owner;

/// The Lease as it is stored or to be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`; empty if it is to be created.
    pub version_text: String,
    /// `spec.holderIdentity`; empty if released.
    pub holder: String,
    /// `spec.leaseDurationSeconds`.
    pub duration_s: u32,
    /// `spec.acquireTime`, milliseconds since 1970.
    pub acquired_ms: Option<i64>,
    /// `spec.renewTime`, milliseconds since 1970.
    pub renewed_ms: Option<i64>,
    /// For how long it was unchanged when it was read, by the servers' clocks; none if they do not say.
    pub unchanged_ms: Option<u64>,
    /// `spec.leaseTransitions`.
    pub transitions: u32,
    /// Annotation `posse.dev/id-high-water`: ids up to this one may have been used.
    pub id_high_water: Option<ExecutorId>,
    /// The owner pod as it was read. A write sets our own owner.
    pub owner: Option<Owner>,
    /// It has posse's labels for this instance or application. Another program's Lease may have our
    /// name; it is never changed.
    pub is_ours: bool,
}
