//! Tables over a start with patience, and over who yields.

use super::*;

#[test]
fn a_patient_one_waits_for_one_that_goes() {
    let mut bench = Bench::new(&me());
    bench.machine = bench.machine.patient();
    bench.read(Some((record("other", "9", 0), HolderState::Unknown)));
    let until = bench.now.after(60_000);
    assert_eq!(bench.told(), [LeaseUpdate::Waiting { holder: "other".to_owned(), until }]);
    let began = bench.now;
    // It renews, and gives it up as its end.
    bench.read(Some((record("other", "10", 2_000), HolderState::Unknown)));
    assert_eq!(bench.now.since(began), PATIENT_LOOK_MS);
    bench.told();
    bench.read(Some((record("", "11", 4_000), HolderState::Unknown)));
    assert_eq!(bench.write().version_text, "11");
    // Or its pod turns out to be over.
    let mut bench = Bench::new(&pod(true));
    bench.machine = bench.machine.patient();
    bench.read(Some((record("other", "9", 0), HolderState::Unknown)));
    bench.read(Some((record("other", "9", 0), HolderState::Gone)));
    assert_eq!(bench.write().version_text, "9");
}

#[test]
fn a_patient_one_takes_it_from_the_silent_and_leaves_it_to_who_lives() {
    // Renewed for the last time a moment ago, as seen by a start that comes `late_ms` after it.
    for late_ms in [0, 3_000, 59_000] {
        let mut bench = Bench::new(&me());
        bench.machine = bench.machine.patient();
        let began = bench.now;
        let silent = record("other", "9", -late_ms);
        while bench.due() == LeaseStep::Read {
            let found = Ok(Some((silent.clone(), HolderState::Unknown)));
            bench.machine.on_read(found, bench.now, wall(bench.now));
        }
        assert_eq!(bench.now.since(began), 60_000, "as long as its own word says, by our clock");
        bench.write();
    }
    // One that renews every ten seconds lives; that is known after the patience, not before.
    let mut bench = Bench::new(&me());
    bench.machine = bench.machine.patient();
    let began = bench.now;
    while bench.due() == LeaseStep::Read {
        let version = (bench.now.since(began) / RENEW_MS).to_string();
        let found = Ok(Some((record("other", &version, 0), HolderState::Unknown)));
        bench.machine.on_read(found, bench.now, wall(bench.now));
    }
    let held_by = LeaseUpdate::HeldBy { holder: "other".to_owned() };
    assert_eq!(bench.told().last(), Some(&held_by));
    let took = bench.now.since(began);
    assert!((PATIENCE_MS..PATIENCE_MS + 2 * RENEW_MS).contains(&took), "{took}");
}

#[test]
fn one_that_yields_takes_nothing_back() {
    // Told of at the next write; or after a silence in which nobody knew.
    for is_late in [false, true] {
        let mut bench = Bench::new(&me());
        bench.machine = bench.machine.yielding();
        bench.read(None);
        bench.write();
        bench.told();
        if is_late {
            // The server is out of reach for longer than the Lease lasts.
            while bench.told().is_empty() {
                match bench.machine.next(bench.now, wall(bench.now)) {
                    LeaseStep::Wait { until } => bench.now = until,
                    _ => bench.fail_write(RefusalClass::Transient),
                }
            }
        }
        bench.fail_write(RefusalClass::Conflict);
        bench.read(Some((record("thief", "500", 0), HolderState::Unknown)));
        assert_eq!(bench.told(), [LeaseUpdate::Lost { holder: Some("thief".to_owned()) }]);
        assert_eq!(bench.due(), LeaseStep::Done);
    }
}
