//! Tests of the Lease state machine: taking, renewing, losing and releasing it, and id
//! reservations.
#![allow(clippy::wildcard_enum_match_arm)] // Tests fail on all other variants.

mod holder_wait;
mod standby;
mod stops;

use super::*;
use crate::model::ids::Uid;
use crate::model::owner::OwnerKind;

/// Milliseconds since 1970 at `Millis(0)` of these tests.
const WALL_MS: i64 = 1_767_225_600_000;

fn me() -> LeaseIdentity {
    LeaseIdentity::Process { pod: None, boot_id: "boot.1".to_owned(), pid: 7, start_time: 99 }
}

fn pod(init: bool) -> LeaseIdentity {
    let uid = "pod-uid".to_owned();
    match init {
        true => LeaseIdentity::Pod { uid },
        false => {
            let boot_id = "boot.1".to_owned();
            LeaseIdentity::Process { pod: Some(uid), boot_id, pid: 7, start_time: 99 }
        }
    }
}

fn wall(now: Millis) -> i64 {
    WALL_MS + i64::try_from(now.0).unwrap()
}

/// A record of `holder`, renewed at `renewed_ms` on the clock of the tests.
fn record(holder: &str, version: &str, renewed_ms: i64) -> Record {
    Record {
        uid: Uid::new("lease-uid"),
        version_text: version.to_owned(),
        holder: holder.to_owned(),
        duration_s: 60,
        renewed_ms: Some(WALL_MS + renewed_ms),
        transitions: 4,
        id_high_water: Some(ExecutorId(3_000)),
        is_ours: true,
        ..Record::default()
    }
}

/// It is held, and was not taken from another.
fn held(id_high_water: Option<ExecutorId>) -> LeaseUpdate {
    LeaseUpdate::Held { id_high_water, from: None }
}

fn refusal(class: RefusalClass) -> Refusal {
    Refusal::local(class, "no")
}

/// A machine, the time, and the Lease's version on the server.
struct Bench {
    machine: LeaseMachine,
    now: Millis,
    version: u32,
}

impl Bench {
    fn new(identity: &LeaseIdentity) -> Self {
        Self { machine: LeaseMachine::new(identity, Rng::new(1)), now: Millis(1_000), version: 100 }
    }

    /// A machine that has created its Lease.
    fn held() -> Self {
        let mut bench = Self::new(&me());
        bench.read(None);
        let written = bench.write();
        assert_eq!((written.version_text.as_str(), written.transitions), ("", 0));
        assert_eq!(bench.updates(), [held(None)]);
        bench
    }

    /// Advances the time until there is something to do.
    fn due(&mut self) -> LeaseStep {
        loop {
            match self.machine.next(self.now, wall(self.now)) {
                LeaseStep::Wait { until } => {
                    assert!(until > self.now, "a wait that has ended");
                    self.now = until;
                }
                step => return step,
            }
        }
    }

    fn read(&mut self, found: Option<(Record, HolderState)>) {
        assert_eq!(self.due(), LeaseStep::Read);
        self.machine.on_read(Ok(found), self.now, wall(self.now));
    }

    /// Answers the due write like a server.
    fn write(&mut self) -> Record {
        let LeaseStep::Write(record) = self.due() else { panic!("no write is due") };
        self.version += 1;
        let mut stored = record.clone();
        stored.version_text = self.version.to_string();
        stored.uid = Uid::new("lease-uid");
        self.machine.on_written(Ok(stored), self.now, self.now);
        record
    }

    fn fail_write(&mut self, class: RefusalClass) {
        assert!(matches!(self.due(), LeaseStep::Write(_)));
        self.machine.on_written(Err(refusal(class)), self.now, self.now);
    }

    fn updates(&mut self) -> Vec<LeaseUpdate> {
        let mut updates = Vec::new();
        while let Some(update) = self.machine.update() {
            updates.push(update.clone());
            self.machine.pop_update();
        }
        updates
    }
}

#[test]
fn a_free_or_abandoned_lease_is_taken_at_once() {
    let ours = me().to_string();
    let table = [
        (me(), "", HolderState::Unknown, true),
        (me(), "other/1/2", HolderState::Gone, true),
        (me(), "other/1/2", HolderState::Unknown, false),
        (me(), &ours, HolderState::Unknown, true),
        (pod(true), "pod-uid", HolderState::Unknown, true),
        (pod(false), "pod-uid", HolderState::Unknown, false),
        (pod(true), "another-pod", HolderState::Unknown, false),
    ];
    for (identity, holder, holder_state, takes) in table {
        let mut bench = Bench::new(&identity);
        bench.read(Some((record(holder, "9", 0), holder_state)));
        if takes {
            let written = bench.write();
            assert_eq!(written.version_text, "9", "only the version that was read is replaced");
            assert_eq!(written.holder, identity.to_string());
            assert_eq!(written.transitions, 4 + u32::from(holder != identity.to_string()));
            let high = Some(ExecutorId(3_000));
            assert_eq!(written.id_high_water, high);
            assert_eq!(bench.updates(), [held(high)]);
        } else {
            assert_eq!(bench.updates(), [LeaseUpdate::HeldBy { holder: holder.to_owned() }]);
            assert_eq!(bench.due(), LeaseStep::Done);
        }
    }
}

#[test]
fn a_stale_lease_is_observed_for_its_duration_first() {
    // `renewTime` is long ago, far in the future, or absent.
    for renewed_ms in [Some(-600_000), Some(600_000), None] {
        let mut stale = record("other", "9", 0);
        stale.renewed_ms = renewed_ms.map(|ms| WALL_MS + ms);
        let mut bench = Bench::new(&me());
        bench.read(Some((stale.clone(), HolderState::Unknown)));
        let began = bench.now;
        let until = began.after(60_000);
        assert_eq!(bench.updates(), [LeaseUpdate::Waiting { holder: "other".to_owned(), until }]);
        let mut n_reads = 1;
        while bench.due() == LeaseStep::Read {
            bench.machine.on_read(
                Ok(Some((stale.clone(), HolderState::Unknown))),
                bench.now,
                wall(bench.now),
            );
            n_reads += 1;
        }
        assert_eq!(bench.now.since(began), 60_000);
        assert_eq!(n_reads, 7);
        bench.write();
        assert_eq!(bench.updates(), [held(Some(ExecutorId(3_000)))]);
    }
}

#[test]
fn a_stale_lease_that_is_renewed_is_held() {
    let mut bench = Bench::new(&me());
    bench.read(Some((record("other", "9", -600_000), HolderState::Unknown)));
    bench.read(Some((record("other", "10", -590_000), HolderState::Unknown)));
    assert_eq!(bench.updates().last(), Some(&LeaseUpdate::HeldBy { holder: "other".to_owned() }));
    assert_eq!(bench.due(), LeaseStep::Done);
}

#[test]
fn a_lost_race_at_start_is_read_again() {
    for class in [RefusalClass::Exists, RefusalClass::Conflict] {
        let mut bench = Bench::new(&me());
        bench.read(None);
        bench.fail_write(class);
        bench.read(Some((record("faster", "9", 1_000), HolderState::Unknown)));
        assert_eq!(
            bench.updates().last(),
            Some(&LeaseUpdate::HeldBy { holder: "faster".to_owned() })
        );
    }
}

#[test]
fn without_permission_there_is_no_lease() {
    let mut bench = Bench::new(&me());
    assert_eq!(bench.due(), LeaseStep::Read);
    bench.machine.on_read(Err(refusal(RefusalClass::Forbidden)), bench.now, wall(bench.now));
    assert_eq!(bench.updates(), [LeaseUpdate::Forbidden { message: "no".to_owned() }]);
    assert_eq!(bench.due(), LeaseStep::Done);

    let mut bench = Bench::new(&me());
    bench.read(None);
    bench.fail_write(RefusalClass::Forbidden);
    assert_eq!(bench.updates(), [LeaseUpdate::Forbidden { message: "no".to_owned() }]);
}

#[test]
fn a_failed_request_at_start_is_reported_and_retried() {
    let mut bench = Bench::new(&me());
    for _ in 0..5 {
        assert_eq!(bench.due(), LeaseStep::Read);
        bench.machine.on_read(Err(refusal(RefusalClass::Transient)), bench.now, wall(bench.now));
        assert_eq!(
            bench.updates(),
            [LeaseUpdate::Retrying { refusal: refusal(RefusalClass::Transient) }]
        );
    }
    bench.read(None);
    bench.write();
    assert_eq!(bench.updates(), [held(None)]);
}

#[test]
fn a_lease_is_renewed_every_ten_seconds() {
    let mut bench = Bench::held();
    let taken_at = bench.now;
    bench.write();
    assert!((1..=LeaseTerms::USUAL.renew_ms).contains(&bench.now.since(taken_at)));
    for _ in 0..10 {
        let before = bench.now;
        let version = bench.version.to_string();
        let written = bench.write();
        assert_eq!(bench.now.since(before), LeaseTerms::USUAL.renew_ms);
        assert_eq!((written.version_text, written.transitions), (version, 0));
        assert_eq!(written.renewed_ms, Some(wall(bench.now)));
    }
    assert_eq!(bench.updates(), []);
}

/// 300 drivers that start at one moment, or whose renewals a server refuses at one moment: from then on they renew at
/// all times of the interval.
#[test]
fn leases_are_not_renewed_in_step() {
    for is_refused in [false, true] {
        let mut tenths = [0; 10];
        for seed in 0..300 {
            let mut bench = Bench::new(&me());
            bench.machine = LeaseMachine::new(&me(), Rng::new(seed));
            bench.read(None);
            bench.write();
            if is_refused {
                bench.write();
                bench.fail_write(RefusalClass::Transient);
                bench.write();
            }
            let before = bench.now;
            bench.write();
            let waited = bench.now.since(before);
            assert!((1..=LeaseTerms::USUAL.renew_ms).contains(&waited), "{waited}");
            tenths[usize::try_from((waited - 1) * 10 / LeaseTerms::USUAL.renew_ms).unwrap()] += 1;
            let before = bench.now;
            bench.write();
            let waited = bench.now.since(before);
            assert_eq!(waited, LeaseTerms::USUAL.renew_ms, "the next renewals keep their times");
        }
        assert!(tenths.iter().all(|n| (10..60).contains(n)), "{is_refused}: {tenths:?}");
    }
}

#[test]
fn an_unrenewed_lease_is_lost_and_taken_again() {
    let mut bench = Bench::held();
    let began = bench.now;
    loop {
        let step = bench.machine.next(bench.now, wall(bench.now));
        if !bench.updates().is_empty() {
            break;
        }
        match step {
            LeaseStep::Wait { until } => bench.now = until,
            _ => bench.fail_write(RefusalClass::Transient),
        }
    }
    assert_eq!(bench.now.since(began), LeaseTerms::USUAL.give_up_ms);
    // The server answers again, and no other holder took the Lease.
    bench.write();
    assert_eq!(bench.updates(), [held(None)]);
}

#[test]
fn a_taken_lease_is_taken_again_when_its_holder_stops_renewing() {
    let mut bench = Bench::held();
    bench.fail_write(RefusalClass::Conflict);
    bench.read(Some((record("thief", "500", 0), HolderState::Unknown)));
    assert_eq!(bench.updates(), [LeaseUpdate::Lost { holder: Some("thief".to_owned()) }]);
    // It renews: nothing is reported, whatever its `renewTime` is.
    for version in 501..510 {
        bench.read(Some((record("thief", &version.to_string(), 0), HolderState::Unknown)));
    }
    assert_eq!(bench.updates(), []);
    let began = bench.now;
    while bench.due() == LeaseStep::Read {
        let silent = record("thief", "509", 0);
        bench.machine.on_read(Ok(Some((silent, HolderState::Unknown))), bench.now, wall(bench.now));
    }
    assert_eq!(bench.now.since(began), 60_000);
    bench.write();
    assert_eq!(bench.updates(), [held(Some(ExecutorId(3_000)))]);
}

#[test]
fn a_write_of_unknown_outcome_is_found_by_reading() {
    let mut bench = Bench::held();
    bench.fail_write(RefusalClass::OutcomeUnknown);
    bench.fail_write(RefusalClass::Conflict);
    // Our own write had taken effect.
    let ours = record(&me().to_string(), "777", 0);
    bench.read(Some((ours, HolderState::Unknown)));
    assert_eq!(bench.write().version_text, "777");
    assert_eq!(bench.updates(), []);
}

#[test]
fn a_deleted_lease_is_created_again() {
    let mut bench = Bench::held();
    bench.fail_write(RefusalClass::NotFound);
    bench.read(None);
    assert_eq!(bench.write().version_text, "");
    assert_eq!(bench.updates(), []);
}

#[test]
fn an_answer_that_comes_too_late_is_no_renewal() {
    for holder in [me().to_string(), "thief".to_owned()] {
        let mut bench = Bench::held();
        let LeaseStep::Write(record) = bench.due() else { panic!("no write is due") };
        let (sent_at, renewed_until) = (bench.now, bench.machine.writes_until());
        bench.now = bench.now.after(LeaseTerms::USUAL.give_up_ms);
        bench.machine.on_written(Ok(record), sent_at, bench.now);
        assert_eq!(bench.machine.writes_until(), renewed_until);
        bench.read(Some((self::record(&holder, "900", 40_000), HolderState::Unknown)));
        let by = Some(holder.clone()).filter(|holder| holder == "thief");
        assert_eq!(bench.updates(), [LeaseUpdate::Lost { holder: by }]);
        if holder != "thief" {
            bench.write();
            assert!(matches!(bench.updates()[..], [LeaseUpdate::Held { .. }]));
        }
    }
}

#[test]
fn writes_end_before_another_process_may_hold_the_lease() {
    let mut bench = Bench::held();
    let held_at = bench.now;
    assert_eq!(bench.machine.writes_until(), Some(held_at.after(LeaseTerms::USUAL.writes_ms)));
    assert!(LeaseTerms::USUAL.writes_ms < u64::from(LeaseTerms::USUAL.lease_s) * 1_000);
    bench.write();
    let renewed_at = bench.now;
    assert_eq!(bench.machine.writes_until(), Some(renewed_at.after(LeaseTerms::USUAL.writes_ms)));
    // Refusals renew nothing.
    bench.fail_write(RefusalClass::Transient);
    assert_eq!(bench.machine.writes_until(), Some(renewed_at.after(LeaseTerms::USUAL.writes_ms)));
}

#[test]
fn ids_are_reserved_in_blocks() {
    let mut bench = Bench::held();
    let before = bench.now;
    bench.machine.reserve(ExecutorId(1));
    assert_eq!(bench.write().id_high_water, Some(ExecutorId(1_000)));
    assert_eq!(bench.now, before, "written at once, not at the next renewal");
    assert_eq!(bench.updates(), [LeaseUpdate::IdsReserved { up_to: ExecutorId(1_000) }]);
    // Written again also within the block: the server may have lost the reservation.
    bench.machine.reserve(ExecutorId(1_000));
    assert_eq!(bench.write().id_high_water, Some(ExecutorId(1_000)));
    assert_eq!(bench.updates(), [LeaseUpdate::IdsReserved { up_to: ExecutorId(1_000) }]);
    bench.machine.reserve(ExecutorId(1_001));
    bench.fail_write(RefusalClass::OutcomeUnknown);
    assert_eq!(bench.updates(), []);
    bench.write();
    assert_eq!(bench.updates(), [LeaseUpdate::IdsReserved { up_to: ExecutorId(2_000) }]);
    // Renewals keep the high water.
    assert_eq!(bench.write().id_high_water, Some(ExecutorId(2_000)));
}

#[test]
fn the_id_high_water_survives_a_rollback() {
    let mut bench = Bench::held();
    bench.machine.reserve(ExecutorId(1_500));
    assert_eq!(bench.write().id_high_water, Some(ExecutorId(2_000)));
    bench.updates();
    // The restored Lease has no high water.
    bench.fail_write(RefusalClass::Conflict);
    let restored = Record { id_high_water: None, ..record(&me().to_string(), "3", 0) };
    bench.read(Some((restored, HolderState::Unknown)));
    assert_eq!(bench.write().id_high_water, Some(ExecutorId(2_000)));
}

#[test]
fn ids_can_be_reserved_before_the_lease_is_held() {
    let mut bench = Bench::new(&me());
    bench.machine.reserve(ExecutorId(1_500));
    bench.read(Some((record("", "9", 0), HolderState::Unknown)));
    assert_eq!(bench.write().id_high_water, Some(ExecutorId(3_000)), "the high water never falls");
    let wanted =
        [held(Some(ExecutorId(3_000))), LeaseUpdate::IdsReserved { up_to: ExecutorId(3_000) }];
    assert_eq!(bench.updates(), wanted);
}

#[test]
fn identities_keep_their_text() {
    assert_eq!(LeaseIdentity::process(&me().to_string()), Some(me()));
    assert_eq!(LeaseIdentity::process(&pod(false).to_string()), Some(pod(false)));
    assert_eq!(pod(false).to_string(), "pod-uid/boot.1/7/99");
    for init in [true, false] {
        assert_eq!(LeaseIdentity::pod_uid(&pod(init).to_string()), "pod-uid");
    }
    for other in ["", "pod-uid", "a/b/c", "/1/2", "a//1/2", "a/b/1/2/3", "a/1", "a/-1/2"] {
        assert_eq!(LeaseIdentity::process(other), None, "{other:?}");
    }
}

#[test]
fn a_lease_of_another_program_is_not_taken_over() {
    for holder in ["", "somebody"] {
        let other = || Record { is_ours: false, ..record(holder, "7", -9_000_000) };
        // At the start.
        let mut bench = Bench::new(&me());
        bench.read(Some((other(), HolderState::Gone)));
        assert_eq!(bench.updates(), [LeaseUpdate::Foreign]);
        assert_eq!(bench.due(), LeaseStep::Done);
        // Ours was deleted, and the other has its name now.
        let mut bench = Bench::held();
        bench.fail_write(RefusalClass::Conflict);
        bench.read(Some((other(), HolderState::Unknown)));
        let [LeaseUpdate::Lost { holder: Some(_) }] = &bench.updates()[..] else {
            panic!("the lease is lost")
        };
        // It is read again, and never written.
        bench.read(Some((other(), HolderState::Gone)));
        assert_eq!(bench.updates(), []);
        bench.read(None);
        bench.write();
        assert!(matches!(bench.updates()[..], [LeaseUpdate::Held { .. }]));
    }
}
