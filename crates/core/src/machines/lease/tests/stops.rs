//! Tests of what a stop does with the Lease.

use super::*;

#[test]
fn a_failed_start_keeps_what_an_earlier_one_has_stored() {
    for (is_new, want) in [(false, LeaseRelease::Keep), (true, LeaseRelease::Delete)] {
        assert_eq!(LeaseRelease::of_failed_start(is_new), want);
    }
}

#[test]
fn a_stop_deletes_or_releases_the_lease() {
    let by = Millis(60_000);
    let mut bench = Bench::held();
    bench.machine.stop(LeaseRelease::Delete, by);
    let LeaseStep::Delete(record) = bench.due() else { panic!("no delete") };
    assert_eq!(record.version_text, bench.version.to_string());
    bench.machine.on_deleted(Ok(()), bench.now);
    assert_eq!(bench.due(), LeaseStep::Done);

    // Without permission to delete, the Lease is released.
    let mut bench = Bench::held();
    bench.machine.reserve(ExecutorId(5));
    bench.write();
    bench.machine.stop(LeaseRelease::Delete, by);
    assert!(matches!(bench.due(), LeaseStep::Delete(_)));
    bench.machine.on_deleted(Err(refusal(RefusalClass::Forbidden)), bench.now);
    let released = bench.write();
    assert_eq!((released.holder.as_str(), released.duration_s), ("", 1));
    assert_eq!(released.id_high_water, Some(ExecutorId(1_000)));
    assert_eq!(bench.due(), LeaseStep::Done);

    // A Lease that another holder took is left alone.
    let mut bench = Bench::held();
    bench.machine.stop(LeaseRelease::Keep, by);
    bench.fail_write(RefusalClass::Conflict);
    bench.read(Some((super::record("thief", "9", 0), HolderState::Unknown)));
    assert_eq!(bench.due(), LeaseStep::Done);
}

#[test]
fn a_stop_ends_at_its_deadline() {
    let mut bench = Bench::held();
    let by = bench.now.after(10_000);
    bench.machine.stop(LeaseRelease::Keep, by);
    while matches!(bench.due(), LeaseStep::Write(_)) {
        bench.machine.on_written(Err(refusal(RefusalClass::Transient)), bench.now, bench.now);
    }
    assert_eq!(bench.due(), LeaseStep::Done);
    assert!(bench.now >= by);

    let mut bench = Bench::new(&me());
    bench.machine.stop(LeaseRelease::Delete, by);
    assert_eq!(bench.due(), LeaseStep::Done, "a Lease that was never held is not released");
}

#[test]
fn a_stop_reads_the_lease_after_an_unknown_outcome() {
    let by = Millis(60_000);
    let ours = record(&me().to_string(), "9", 0);
    for (found, wanted) in [(Some(ours), true), (None, false)] {
        let mut bench = Bench::new(&me());
        bench.read(None);
        bench.fail_write(RefusalClass::OutcomeUnknown);
        bench.machine.stop(LeaseRelease::Delete, by);
        bench.read(found.map(|record| (record, HolderState::Unknown)));
        assert_eq!(matches!(bench.due(), LeaseStep::Delete(_)), wanted);
    }
}

/// The server was away for longer than the renew deadline: nobody else need have the Lease.
#[test]
fn a_stop_reads_a_lease_that_was_not_renewed_in_time() {
    let me = me().to_string();
    for is_told_before in [false, true] {
        for (found, is_released) in
            [(Some(me.as_str()), true), (Some("thief"), false), (Some(""), false), (None, false)]
        {
            let mut bench = Bench::held();
            bench.now = bench.now.after(LeaseTerms::USUAL.give_up_ms);
            if is_told_before {
                bench.fail_write(RefusalClass::Transient);
                assert_eq!(bench.updates(), [LeaseUpdate::Lost { holder: None }]);
            }
            bench.machine.stop(LeaseRelease::Delete, bench.now.after(10_000));
            let found = found.map(|holder| (record(holder, "9", 0), HolderState::Unknown));
            bench.read(found);
            assert_eq!(matches!(bench.due(), LeaseStep::Delete(_)), is_released);
            assert_eq!(bench.due() == LeaseStep::Done, !is_released);
        }
    }
}
