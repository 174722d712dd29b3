//! Tests of a start that waits for the holder, and of machines that yield.

use super::*;

#[test]
fn a_waiting_start_takes_a_lease_that_is_released() {
    let mut bench = Bench::new(&me());
    bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
    bench.read(Some((record("other", "9", 0), HolderState::Unknown)));
    let until = bench.now.after(60_000);
    assert_eq!(bench.updates(), [LeaseUpdate::Waiting { holder: "other".to_owned(), until }]);
    let first_read_at = bench.now;
    // The holder renews once more and releases the Lease at its end.
    bench.read(Some((record("other", "10", 2_000), HolderState::Unknown)));
    assert_eq!(bench.now.since(first_read_at), HOLDER_POLL_MS);
    bench.updates();
    bench.read(Some((record("", "11", 4_000), HolderState::Unknown)));
    assert_eq!(bench.write().version_text, "11");
    // Or the holder's pod has ended.
    let mut bench = Bench::new(&pod(true));
    bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
    bench.read(Some((record("other", "9", 0), HolderState::Unknown)));
    bench.read(Some((record("other", "9", 0), HolderState::Gone)));
    assert_eq!(bench.write().version_text, "9");
}

#[test]
fn a_waiting_start_takes_a_silent_lease_and_not_a_renewed_one() {
    // The last renewal was `late_ms` before our start.
    for late_ms in [0, 3_000, 59_000] {
        let mut bench = Bench::new(&me());
        bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
        let first_read_at = bench.now;
        let silent = record("other", "9", -late_ms);
        while bench.due() == LeaseStep::Read {
            let found = Ok(Some((silent.clone(), HolderState::Unknown)));
            bench.machine.on_read(found, bench.now, wall(bench.now));
        }
        assert_eq!(bench.now.since(first_read_at), 60_000, "the Lease's duration by our clock");
        bench.write();
    }
    // A holder that renews every ten seconds is alive; that is reported after the waiting time.
    let mut bench = Bench::new(&me());
    bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
    let first_read_at = bench.now;
    while bench.due() == LeaseStep::Read {
        let version = (bench.now.since(first_read_at) / LeaseTerms::USUAL.renew_ms).to_string();
        let found = Ok(Some((record("other", &version, 0), HolderState::Unknown)));
        bench.machine.on_read(found, bench.now, wall(bench.now));
    }
    let held_by = LeaseUpdate::HeldBy { holder: "other".to_owned() };
    assert_eq!(bench.updates().last(), Some(&held_by));
    let took = bench.now.since(first_read_at);
    assert!(
        (HOLDER_WAIT_MS..HOLDER_WAIT_MS + 2 * LeaseTerms::USUAL.renew_ms).contains(&took),
        "{took}"
    );
}

#[test]
fn a_waiting_start_takes_the_lease_of_a_lost_node_sooner() {
    use HolderState::{Ending, Unknown};
    // For how long the server has not stored it, whether the holder's pod is terminating; how long it is watched.
    for (unchanged_ms, holder, watched_ms) in [
        (Some(83_000), Ending, 15_000),
        (Some(60_000), Ending, 16_000),
        (Some(10_000), Ending, 60_000),
        (None, Ending, 60_000),
        (Some(83_000), Unknown, 60_000),
    ] {
        let mut bench = Bench::new(&pod(true));
        bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
        let first_read_at = bench.now;
        while bench.due() == LeaseStep::Read {
            let unchanged_ms = unchanged_ms.map(|ms| ms + bench.now.since(first_read_at));
            let found = Record { unchanged_ms, ..record("other", "9", -80_000) };
            bench.machine.on_read(Ok(Some((found, holder))), bench.now, wall(bench.now));
        }
        assert_eq!(bench.now.since(first_read_at), watched_ms, "{unchanged_ms:?} {holder:?}");
        bench.write();
    }
    // A clock that is a day ahead takes no Lease from a holder that renews.
    let mut bench = Bench::new(&pod(true));
    bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
    let first_read_at = bench.now;
    while bench.now.since(first_read_at) < 4 * HOLDER_WAIT_MS {
        assert_eq!(bench.due(), LeaseStep::Read);
        let version = (bench.now.since(first_read_at) / LeaseTerms::USUAL.renew_ms).to_string();
        let found = Record { unchanged_ms: Some(86_400_000), ..record("other", &version, 0) };
        bench.machine.on_read(Ok(Some((found, Ending))), bench.now, wall(bench.now));
    }
}

#[test]
fn a_waiting_start_outlasts_a_holder_whose_pod_is_terminating() {
    let mut bench = Bench::new(&pod(true));
    bench.machine = bench.machine.waiting(HolderWait::ForItsEnd);
    let first_read_at = bench.now;
    let mut version = String::new();
    while bench.now.since(first_read_at) < 4 * HOLDER_WAIT_MS && bench.due() == LeaseStep::Read {
        version = (bench.now.since(first_read_at) / LeaseTerms::USUAL.renew_ms).to_string();
        let found = Ok(Some((record("other", &version, 0), HolderState::Ending)));
        bench.machine.on_read(found, bench.now, wall(bench.now));
    }
    bench.read(Some((record("other", &version, 0), HolderState::Gone)));
    assert_eq!(bench.write().version_text, version);
}

#[test]
fn a_yielding_machine_does_not_take_the_lease_again() {
    // The loss is noticed at the next write, or only after a time without any answer.
    for is_late in [false, true] {
        let mut bench = Bench::new(&me());
        bench.machine = bench.machine.yielding();
        bench.read(None);
        bench.write();
        bench.updates();
        if is_late {
            // The server is unreachable for longer than the Lease's duration.
            while bench.updates().is_empty() {
                match bench.machine.next(bench.now, wall(bench.now)) {
                    LeaseStep::Wait { until } => bench.now = until,
                    _ => bench.fail_write(RefusalClass::Transient),
                }
            }
        }
        bench.fail_write(RefusalClass::Conflict);
        bench.read(Some((record("thief", "500", 0), HolderState::Unknown)));
        assert_eq!(bench.updates(), [LeaseUpdate::Lost { holder: Some("thief".to_owned()) }]);
        assert_eq!(bench.due(), LeaseStep::Done);
    }
}
