//! Tests of a standby, which waits for a holder that renews for as long as that lives.

use super::*;
use crate::model::owner::Owner;
use crate::model::takeover::TakeoverCause;

const TERMS: LeaseTerms = LeaseTerms::STANDBY;

/// The Lease of a leader in pod `shop-1`, at this renewal.
fn of_leader(renewal: u64, renewed_at: Millis) -> Record {
    let owner = Owner { kind: OwnerKind::Pod, name: "shop-1".to_owned(), uid: Uid::new("leader") };
    let renewed_ms = i64::try_from(renewed_at.0).unwrap();
    Record {
        duration_s: TERMS.lease_s,
        owner: Some(owner),
        ..record("leader", &renewal.to_string(), renewed_ms)
    }
}

fn standby() -> Bench {
    let mut bench = Bench::new(&pod(true));
    bench.machine = bench.machine.on(TERMS).waiting(HolderWait::StandsBy);
    bench
}

/// Reads the Lease of a leader that renews every five seconds, from `phase_ms` on, until `end`. Returns when it has
/// renewed it last, and how many requests that took.
fn follow(bench: &mut Bench, phase_ms: u64, end: Millis, skew_ms: i64) -> (Millis, u64) {
    let mut n_reads = 0;
    loop {
        let step = bench.due();
        let renewal = (bench.now.0.min(end.0) - phase_ms) / TERMS.renew_ms;
        let renewed_at = Millis(phase_ms + renewal * TERMS.renew_ms);
        if step != LeaseStep::Read {
            return (renewed_at, n_reads);
        }
        n_reads += 1;
        let mut seen = of_leader(renewal, renewed_at);
        seen.renewed_ms = seen.renewed_ms.map(|at| at + skew_ms);
        let is_asked = bench.machine.doubts(&seen, bench.now);
        assert!(!is_asked || n_reads == 1 || bench.now > end, "only a silent leader is looked up");
        bench.machine.on_read(Ok(Some((seen, HolderState::Unknown))), bench.now, wall(bench.now));
    }
}

#[test]
fn a_standby_waits_for_hours_and_takes_over_within_twenty_seconds() {
    const LIFE_MS: u64 = 5 * 3_600_000;
    for phase_ms in (0..1_000).step_by(83) {
        for skew_ms in [0, -2_000, 2_000, 86_400_000, -86_400_000] {
            let mut bench = standby();
            let lost_at = Millis(LIFE_MS + phase_ms * 7);
            let (renewed_at, n_reads) = follow(&mut bench, phase_ms, lost_at, skew_ms);
            let took_ms = bench.now.since(renewed_at);
            assert!((15_000..=20_000).contains(&took_ms), "{took_ms} {phase_ms} {skew_ms}");
            if skew_ms == 0 {
                assert!(took_ms < 16_000, "{took_ms}: it looks soon after each renewal");
            }
            assert!(n_reads <= LIFE_MS / 5_000 + 10, "{n_reads}: one request in five seconds");
            assert!(!bench.updates().iter().any(|one| matches!(one, LeaseUpdate::HeldBy { .. })));
            assert_eq!(bench.write().duration_s, 15);
            let updates = bench.updates();
            let [LeaseUpdate::Held { from: Some(from), .. }] = &updates[..] else {
                panic!("{updates:?}");
            };
            assert_eq!(from.cause, TakeoverCause::Silent);
            assert_eq!(from.pod.as_ref().map(|pod| &*pod.name), Some("shop-1"));
            if skew_ms == 0 {
                assert_eq!(from.silent_ms, took_ms);
            }
        }
    }
}

#[test]
fn a_standby_takes_over_at_its_next_look_if_the_leader_is_gone() {
    let mut bench = standby();
    bench.read(Some((of_leader(1, Millis(900)), HolderState::Unknown)));
    // Released, by a leader that has ended in order or has failed.
    let released = Record { holder: String::new(), ..of_leader(2, Millis(2_000)) };
    bench.read(Some((released, HolderState::Unknown)));
    assert!(bench.now.since(Millis(1_000)) <= 5_500);
    bench.write();
    let updates = bench.updates();
    let Some(LeaseUpdate::Held { from: Some(from), .. }) = updates.last() else {
        panic!("{updates:?}");
    };
    assert_eq!(from.cause, TakeoverCause::Released);
    // Its pod has ended without a release, which is looked up once it is silent.
    let mut bench = standby();
    bench.read(Some((of_leader(1, Millis(900)), HolderState::Unknown)));
    let later = bench.now.after(TERMS.renew_ms);
    assert!(bench.machine.doubts(&of_leader(1, Millis(900)), later));
    assert!(!bench.machine.doubts(&of_leader(2, Millis(900)), later));
    bench.read(Some((of_leader(1, Millis(900)), HolderState::Gone)));
    bench.write();
    let updates = bench.updates();
    let Some(LeaseUpdate::Held { from: Some(from), .. }) = updates.last() else {
        panic!("{updates:?}");
    };
    assert_eq!(from.cause, TakeoverCause::Ended);
}

#[test]
fn a_first_leader_has_taken_nothing_over() {
    let mut bench = standby();
    bench.read(None);
    bench.write();
    assert_eq!(bench.updates(), [held(None)]);
}

#[test]
fn a_leader_acts_no_more_when_its_standby_may() {
    for terms in [LeaseTerms::USUAL, TERMS] {
        let mut bench = Bench::new(&me());
        bench.machine = bench.machine.on(terms);
        bench.read(None);
        let held_at = bench.now;
        bench.write();
        let writes_until = bench.machine.writes_until();
        assert_eq!(writes_until, Some(held_at.after(terms.writes_ms)));
        bench.updates();
        let lease_ms = u64::from(terms.lease_s) * 1_000;
        assert!(terms.give_up_ms < terms.writes_ms && terms.writes_ms < lease_ms);
        while bench.updates().is_empty() {
            bench.fail_write(RefusalClass::Transient);
            if let LeaseStep::Wait { until } = bench.machine.next(bench.now, wall(bench.now)) {
                bench.now = until;
                bench.machine.next(bench.now, wall(bench.now));
            }
        }
        assert_eq!(bench.now.since(held_at), terms.give_up_ms, "it is told then");
    }
}
