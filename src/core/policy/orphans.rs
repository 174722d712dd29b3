//! Owns which executors of an application are left over: whose owner is gone for good, or who were
//! named, or whose Lease nobody has renewed for long. Asks nobody; facts come in, a verdict goes out.

use std::fmt;

use crate::core::machines::lease::Record;
use crate::core::model::ids::Uid;
use crate::core::model::pod::{OwnerPod, Phase};

/// An executor's pod, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanCandidate {
    pub name: String,
    pub uid: Uid,
    /// Whose it is; none where the labels do not tell.
    pub app: Option<String>,
    pub instance: Option<String>,
    /// The pod that controls it.
    pub owner: Option<OwnerPod>,
    pub phase: Phase,
}

/// What became of the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// There is no pod of its name.
    Absent,
    /// It is there, in this phase.
    Found(Phase),
    /// The executors name no pod as their owner.
    None,
    /// Another pod has its name now.
    Replaced,
    /// It could not be looked up, for this reason.
    Unknown(String),
}

impl OwnerState {
    /// True where it is gone for good, or has ended for good.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            Self::Absent | Self::Replaced => true,
            Self::Found(Phase::Failed | Phase::Succeeded) => true,
            Self::Found(Phase::Pending | Phase::Running | Phase::Unknown) => false,
            Self::None | Self::Unknown(_) => false,
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
            Self::Unknown(_) => "unknown",
        })
    }
}

/// What the instance's Lease tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAge {
    /// There is none.
    Absent,
    /// So long ago it was changed last, and so long its holder may leave it unchanged.
    Unchanged { for_ms: u64, duration_ms: u64 },
    /// It could not be read, or does not tell, for this reason.
    Unknown(String),
}

impl LeaseAge {
    /// What a Lease tells at `wall_ms`, milliseconds since 1970.
    #[must_use]
    pub fn read(record: Option<&Record>, wall_ms: i64) -> Self {
        let Some(record) = record else { return Self::Absent };
        let Some(renewed_ms) = record.renewed_ms else {
            return Self::Unknown("its lease does not tell when it was renewed".to_owned());
        };
        // A renewal in the future is one of just now, by another clock.
        let for_ms = u64::try_from(wall_ms.saturating_sub(renewed_ms)).unwrap_or(0);
        let duration_ms = match record.holder.is_empty() {
            true => 0,
            false => u64::from(record.duration_s).saturating_mul(1_000),
        };
        Self::Unchanged { for_ms, duration_ms }
    }

    /// True where nobody has renewed it for `stale_ms`, nor for as long as its holder may take.
    #[must_use]
    pub fn is_stale(&self, stale_ms: u64) -> bool {
        match self {
            Self::Unchanged { for_ms, duration_ms } => *for_ms >= stale_ms.max(*duration_ms),
            Self::Absent | Self::Unknown(_) => false,
        }
    }
}

/// All there is to judge the executors of one instance and owner by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanFacts {
    pub owner: OwnerState,
    pub instance: Option<String>,
    /// The instance that was named.
    pub named: Option<String>,
    /// For how long a Lease must not have changed; none where that is not asked for.
    pub stale_ms: Option<u64>,
    pub lease: LeaseAge,
}

/// Whether they may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrphanVerdict {
    /// They stay, for this reason.
    Kept(String),
    /// They are left over, for this reason.
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

/// Judges the executors of one instance and owner.
#[must_use]
pub fn judge(facts: &OrphanFacts) -> OrphanVerdict {
    let Some(instance) = &facts.instance else {
        return OrphanVerdict::Kept(
            "they carry no instance, so posse did not make them".to_owned(),
        );
    };
    match &facts.owner {
        OwnerState::Absent => OrphanVerdict::Removable("their owner is gone".to_owned()),
        OwnerState::Replaced => {
            OrphanVerdict::Removable("their owner is gone, another pod has its name".to_owned())
        }
        OwnerState::Found(Phase::Failed | Phase::Succeeded) => {
            OrphanVerdict::Removable("their owner has ended".to_owned())
        }
        OwnerState::Found(Phase::Pending | Phase::Running | Phase::Unknown) => {
            OrphanVerdict::Kept("their owner has not ended".to_owned())
        }
        OwnerState::Unknown(why) => {
            OrphanVerdict::Kept(format!("their owner cannot be looked up: {why}"))
        }
        OwnerState::None if facts.named.as_ref() == Some(instance) => {
            OrphanVerdict::Removable("they have no owner, and --instance names them".to_owned())
        }
        OwnerState::None => by_lease(instance, facts),
    }
}

/// Judges executors that have no owner and were not named.
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

    /// The facts about an instance `k` whose owner is this, with nothing named or asked for.
    fn facts(owner: OwnerState) -> OrphanFacts {
        let instance = Some("k".to_owned());
        OrphanFacts { owner, instance, named: None, stale_ms: None, lease: LeaseAge::Absent }
    }

    fn stale(stale_ms: u64, lease: LeaseAge) -> OrphanFacts {
        OrphanFacts { stale_ms: Some(stale_ms), lease, ..facts(OwnerState::None) }
    }

    fn named(owner: OwnerState, name: &str) -> OrphanFacts {
        OrphanFacts { named: Some(name.to_owned()), ..facts(owner) }
    }

    #[test]
    fn only_what_is_over_or_meant_goes() {
        let nobodys = OrphanFacts { instance: None, ..named(OwnerState::Absent, "k") };
        let both = |owner| OrphanFacts {
            named: Some("k".to_owned()),
            stale_ms: Some(0),
            lease: unchanged(9 * HOUR_MS),
            ..facts(owner)
        };
        for (facts, removable, why) in [
            (facts(OwnerState::Absent), true, "owner is gone"),
            (facts(OwnerState::Replaced), true, "another pod has its name"),
            (facts(OwnerState::Found(Phase::Failed)), true, "has ended"),
            (facts(OwnerState::Found(Phase::Succeeded)), true, "has ended"),
            (facts(OwnerState::Found(Phase::Running)), false, "has not ended"),
            // Nothing makes executors go whose owner lives, or may.
            (both(OwnerState::Found(Phase::Running)), false, "has not ended"),
            (both(OwnerState::Found(Phase::Pending)), false, "has not ended"),
            (both(OwnerState::Found(Phase::Unknown)), false, "has not ended"),
            (both(OwnerState::Unknown("no (403)".to_owned())), false, "looked up: no (403)"),
            (nobodys, false, "no instance"),
            (facts(OwnerState::None), false, "--instance k removes them"),
            (named(OwnerState::None, "k"), true, "--instance names them"),
            (named(OwnerState::None, "l"), false, "--instance k removes them"),
            (stale(HOUR_MS, unchanged(HOUR_MS)), true, "not renewed for 3600 s"),
            (stale(HOUR_MS, unchanged(HOUR_MS - 1)), false, "renewed 3599 s ago"),
            // Whoever renews in time is alive, however short a time is asked for.
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
    fn a_lease_tells_how_long_nobody_renewed_it() {
        let record = Record {
            uid: Uid::new("u"),
            version_text: "1".to_owned(),
            holder: "me".to_owned(),
            duration_s: 60,
            acquired_ms: None,
            renewed_ms: Some(1_000_000),
            transitions: 0,
            id_high_water: None,
            owner: None,
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
