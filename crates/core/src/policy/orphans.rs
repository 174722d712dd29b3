//! Decides which executors are orphans: their owner is gone, their instance was named by the user,
//! or their Lease is stale.

use std::fmt;

use crate::model::ids::Uid;
use crate::model::lease::Record;
use crate::model::owner::Owner;
use crate::model::pod::Phase;

/// The fields of an executor's pod that this decision needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanCandidate {
    pub name: String,
    pub uid: Uid,
    /// Its name is that of an executor of its `app` and `instance`. Anybody can write labels, but no
    /// pod can be renamed.
    pub has_executor_name: bool,
    /// Label values; none if absent.
    pub app: Option<String>,
    pub instance: Option<String>,
    /// The pod that owns it (owner reference with `controller: true`).
    pub owner: Option<Owner>,
    pub phase: Phase,
    /// It belongs to a group of a queue (Kueue), which keeps it and its quota until another pod takes its place.
    pub is_held_by_queue: bool,
}

/// The state of the owner pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// No pod has its name.
    Absent,
    /// It exists, in this phase.
    Found(Phase),
    /// The executors have no owner pod.
    None,
    /// Another pod has its name.
    Replaced,
    /// It has a deletionTimestamp, and its containers may still run. On a lost node it stays so.
    Terminating,
    /// The lookup failed, for this reason.
    Unknown(String),
}

impl OwnerState {
    /// True if it is gone or has ended.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Absent | Self::Replaced => true,
            Self::Found(Phase::Failed | Phase::Succeeded) => true,
            Self::Found(Phase::Pending | Phase::Running | Phase::Unknown) => false,
            Self::None | Self::Terminating | Self::Unknown(_) => false,
        }
    }
}

impl fmt::Display for OwnerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "gone",
            Self::Found(Phase::Failed) => "failed",
            Self::Found(Phase::Pending) => "pending",
            Self::Found(Phase::Running) => "running",
            Self::Found(Phase::Succeeded) => "succeeded",
            Self::Found(Phase::Unknown) => "unreachable",
            Self::None => "-",
            Self::Replaced => "replaced",
            Self::Terminating => "terminating",
            Self::Unknown(_) => "unknown",
        })
    }
}

/// The age of the instance's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAge {
    /// There is no Lease.
    Absent,
    /// The time since its last change, and the duration for which its holder may leave it
    /// unchanged.
    Unchanged { for_ms: u64, duration_ms: u64 },
    /// It could not be read, or has no renew time, for this reason.
    Unknown(String),
}

impl LeaseAge {
    /// The age at `wall_ms`, milliseconds since 1970.
    pub fn read(record: Option<&Record>, wall_ms: i64) -> Self {
        let Some(record) = record else { return Self::Absent };
        let Some(renewed_ms) = record.renewed_ms else {
            return Self::Unknown("its lease has no renewTime".to_owned());
        };
        // A renewal in the future: the holder's clock is ahead, so it was renewed just now.
        let for_ms = u64::try_from(wall_ms.saturating_sub(renewed_ms)).unwrap_or(0);
        let duration_ms = match record.holder.is_empty() {
            true => 0,
            false => u64::from(record.duration_s).saturating_mul(1_000),
        };
        Self::Unchanged { for_ms, duration_ms }
    }

    /// True if it was not renewed for `stale_ms`, and not for its own duration.
    pub fn is_stale(&self, stale_ms: u64) -> bool {
        match self {
            Self::Unchanged { for_ms, duration_ms } => *for_ms >= stale_ms.max(*duration_ms),
            Self::Absent | Self::Unknown(_) => false,
        }
    }
}

/// The facts about the executors of one instance and owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanFacts {
    pub owner: OwnerState,
    pub instance: Option<String>,
    /// Their names are those of executors (or there is only a Lease).
    pub have_executor_names: bool,
    /// The instance that the user named.
    pub named: Option<String>,
    /// How long a Lease must be unrenewed to be stale; none if stale Leases were not requested.
    pub stale_ms: Option<u64>,
    pub lease: LeaseAge,
    /// The caller holds the application's Lease, so no other driver of the application may work.
    pub is_exclusive: bool,
}

/// Whether the executors may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrphanVerdict {
    /// They are kept, for this reason.
    Kept(String),
    /// They are orphans, for this reason.
    Removable(String),
}

impl fmt::Display for OrphanVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(why) => write!(f, "kept: {why}"),
            Self::Removable(why) => write!(f, "removable: {why}"),
        }
    }
}

/// Decides about the executors of one instance and owner.
pub fn judge(facts: &OrphanFacts) -> OrphanVerdict {
    let Some(instance) = &facts.instance else {
        return OrphanVerdict::Kept(
            "they have no instance label, so posse did not create them".to_owned(),
        );
    };
    if !facts.have_executor_names {
        return OrphanVerdict::Kept(
            "they do not have the names of executors, so posse did not create them".to_owned(),
        );
    }
    match &facts.owner {
        OwnerState::Absent => OrphanVerdict::Removable("their owner is gone".to_owned()),
        OwnerState::Replaced => {
            OrphanVerdict::Removable("their owner is gone, another pod has its name".to_owned())
        }
        OwnerState::Found(Phase::Failed | Phase::Succeeded) => {
            OrphanVerdict::Removable("their owner has ended".to_owned())
        }
        // A deletion is final. Its driver has lost the Lease, or released it at its end.
        OwnerState::Terminating if facts.is_exclusive => OrphanVerdict::Removable(
            "their owner is terminating and no longer holds the application's lease".to_owned(),
        ),
        OwnerState::Found(Phase::Pending | Phase::Running | Phase::Unknown)
        | OwnerState::Terminating => OrphanVerdict::Kept("their owner has not ended".to_owned()),
        OwnerState::Unknown(why) => {
            OrphanVerdict::Kept(format!("their owner cannot be looked up: {why}"))
        }
        OwnerState::None if facts.named.as_ref() == Some(instance) => {
            OrphanVerdict::Removable("they have no owner, and --instance names them".to_owned())
        }
        OwnerState::None => by_lease(instance, facts),
    }
}

/// Decides about executors without an owner whose instance was not named.
fn by_lease(instance: &str, facts: &OrphanFacts) -> OrphanVerdict {
    let Some(stale_ms) = facts.stale_ms else {
        return OrphanVerdict::Kept(format!(
            "they have no owner; --instance {instance} removes them, or --stale with a duration"
        ));
    };
    let kept = |why: &str| OrphanVerdict::Kept(format!("they have no owner, and {why}"));
    match &facts.lease {
        LeaseAge::Unchanged { for_ms, .. } if facts.lease.is_stale(stale_ms) => {
            let for_s = for_ms / 1_000;
            OrphanVerdict::Removable(format!(
                "no owner, and their lease was not renewed for {for_s} s"
            ))
        }
        LeaseAge::Unchanged { for_ms, .. } => {
            kept(&format!("their lease was renewed {} s ago", for_ms / 1_000))
        }
        LeaseAge::Absent => {
            kept(&format!("no lease that could be stale; try --instance {instance}"))
        }
        LeaseAge::Unknown(why) => kept(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn unchanged(for_ms: u64) -> LeaseAge {
        LeaseAge::Unchanged { for_ms, duration_ms: 60_000 }
    }

    /// The facts about instance `k` with this owner.
    fn facts(owner: OwnerState) -> OrphanFacts {
        let instance = Some("k".to_owned());
        OrphanFacts {
            owner,
            instance,
            have_executor_names: true,
            named: None,
            stale_ms: None,
            lease: LeaseAge::Absent,
            is_exclusive: false,
        }
    }

    fn stale(stale_ms: u64, lease: LeaseAge) -> OrphanFacts {
        OrphanFacts { stale_ms: Some(stale_ms), lease, ..facts(OwnerState::None) }
    }

    fn named(owner: OwnerState, name: &str) -> OrphanFacts {
        OrphanFacts { named: Some(name.to_owned()), ..facts(owner) }
    }

    #[test]
    fn only_orphans_and_named_instances_are_removable() {
        let exclusive = |owner| OrphanFacts { is_exclusive: true, ..facts(owner) };
        let unlabelled = OrphanFacts { instance: None, ..named(OwnerState::Absent, "k") };
        let both = |owner| OrphanFacts {
            named: Some("k".to_owned()),
            stale_ms: Some(0),
            lease: unchanged(9 * HOUR_MS),
            ..facts(owner)
        };
        let strangers = |facts| OrphanFacts { have_executor_names: false, ..facts };
        for (facts, removable, why) in [
            (strangers(facts(OwnerState::Absent)), false, "names of executors"),
            (strangers(named(OwnerState::None, "k")), false, "names of executors"),
            (strangers(stale(HOUR_MS, unchanged(HOUR_MS))), false, "names of executors"),
            (facts(OwnerState::Absent), true, "owner is gone"),
            (facts(OwnerState::Replaced), true, "another pod has its name"),
            (facts(OwnerState::Found(Phase::Failed)), true, "has ended"),
            (facts(OwnerState::Found(Phase::Succeeded)), true, "has ended"),
            (facts(OwnerState::Found(Phase::Running)), false, "has not ended"),
            // A driver on a lost node terminates until the node is back.
            (facts(OwnerState::Terminating), false, "has not ended"),
            (exclusive(OwnerState::Terminating), true, "is terminating"),
            (exclusive(OwnerState::Found(Phase::Running)), false, "has not ended"),
            (exclusive(OwnerState::Unknown("no".to_owned())), false, "looked up"),
            // Executors of an owner that lives or may live are always kept.
            (both(OwnerState::Found(Phase::Running)), false, "has not ended"),
            (both(OwnerState::Found(Phase::Pending)), false, "has not ended"),
            (both(OwnerState::Found(Phase::Unknown)), false, "has not ended"),
            (both(OwnerState::Unknown("no (403)".to_owned())), false, "looked up: no (403)"),
            (unlabelled, false, "no instance"),
            (facts(OwnerState::None), false, "--instance k removes them"),
            (named(OwnerState::None, "k"), true, "--instance names them"),
            (named(OwnerState::None, "l"), false, "--instance k removes them"),
            (stale(HOUR_MS, unchanged(HOUR_MS)), true, "not renewed for 3600 s"),
            (stale(HOUR_MS, unchanged(HOUR_MS - 1)), false, "renewed 3599 s ago"),
            // A holder that renews in time is alive, however short the requested time is.
            (stale(0, unchanged(59_999)), false, "renewed 59 s ago"),
            (stale(HOUR_MS, LeaseAge::Absent), false, "no lease that could be stale"),
            (stale(HOUR_MS, LeaseAge::Unknown("it hides".to_owned())), false, "it hides"),
        ] {
            let verdict = judge(&facts);
            let is_removable = matches!(verdict, OrphanVerdict::Removable(_));
            assert_eq!(is_removable, removable, "{facts:?}: {verdict}");
            assert!(verdict.to_string().contains(why), "{facts:?}: {verdict}");
        }
    }

    #[test]
    fn a_lease_is_stale_after_its_duration_without_a_renewal() {
        let record = Record {
            holder: "me".to_owned(),
            duration_s: 60,
            renewed_ms: Some(1_000_000),
            ..Record::default()
        };
        let released = Record { holder: String::new(), ..record.clone() };
        let silent = Record { renewed_ms: None, ..record.clone() };
        for (record, wall_ms, stale) in [
            (Some(&record), 1_059_999, false),
            (Some(&record), 1_060_000, true),
            (Some(&record), 0, false),
            (Some(&record), i64::MIN, false),
            (Some(&released), 1_030_000, true),
            (Some(&released), 1_029_999, false),
            (Some(&silent), i64::MAX, false),
            (None, i64::MAX, false),
        ] {
            assert_eq!(
                LeaseAge::read(record, wall_ms).is_stale(30_000),
                stale,
                "{record:?} {wall_ms}"
            );
        }
    }
}
