//! What the history keeps of events and statuses.

use serde_json::{Value, json};

use super::*;
use posse_core::model::event::{DeleteCause, LossReason};

fn subject(id: u64) -> Subject {
    let group = GroupName::from("g");
    Subject { group, id: ExecutorId(id), uid: None, pod: format!("w-exec-{id}") }
}

fn requested(id: u64) -> Event {
    Event::Executor(subject(id), ExecutorEvent::Requested)
}

fn running(id: u64) -> Event {
    Event::Executor(
        subject(id),
        ExecutorEvent::Running {
            node: Some("n1".into()),
            ip: None,
            host_ip: None,
            requested_at: None,
        },
    )
}

fn lost(id: u64, message: &str) -> Event {
    Event::Executor(
        subject(id),
        ExecutorEvent::Lost {
            node: Some("n1".into()),
            reason: LossReason::OomKilled,
            budget: LossReason::OomKilled.budget(),
            exit_code: Some(137),
            message: message.into(),
        },
    )
}

fn history() -> History {
    History::new([(GroupName::from("g"), 2)])
}

fn record(history: &History, events: &[(u64, Event)]) {
    events.iter().for_each(|(at, event)| history.record(Millis(*at), event));
}

/// Version, executors and samples after `since`.
fn read(history: &History, since: u64) -> (u64, Value, Value) {
    history
        .read(since, |changes| {
            let samples: Vec<_> = changes
                .samples
                .iter()
                .map(|one| [one.at, one.target, one.running.into(), one.starting.into()])
                .collect();
            (changes.version, json!(changes.executors), json!(samples))
        })
        .expect("the version is there")
}

fn last_sample(history: &History) -> Value {
    read(history, 0).2.as_array().unwrap().last().unwrap().clone()
}

fn ids(executors: &Value) -> Vec<u64> {
    executors.as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect()
}

fn status(executors: &[(u64, State, u64)]) -> Status {
    let executor = |&(id, state, since): &(u64, State, u64)| ExecutorStatus {
        id: ExecutorId(id),
        group: GroupName::from("g"),
        slot: None,
        key: None,
        uid: None,
        state,
        ready: false,
        node: None,
        ip: None,
        host_ip: None,
        since: Millis(since),
    };
    Status { executors: vec![executors.iter().map(executor).collect()], ..Status::default() }
}

#[test]
fn an_executor_is_kept_from_its_request_to_its_end() {
    let history = history();
    record(
        &history,
        &[(10, requested(1)), (500, running(1)), (3_000, lost(1, "used too much memory"))],
    );
    let (_, executors, samples) = read(&history, 0);
    let end = json!({"at": 3000, "how": "lost", "reason": "oom_killed", "budget": "app",
                     "exit_code": 137, "message": "used too much memory"});
    assert_eq!(
        executors,
        json!([{"id": 1, "group": "g", "state": "running", "since": 500, "requested": 10,
                "running": 500, "node": "n1", "end": end}])
    );
    assert_eq!(samples, json!([[0, 2, 0, 0], [10, 2, 0, 1], [500, 2, 1, 0], [3000, 2, 0, 0]]));
}

#[test]
fn a_reader_gets_only_what_changed() {
    let history = history();
    record(&history, &[(0, requested(1)), (0, requested(2))]);
    let (version, executors, _) = read(&history, 0);
    assert_eq!(ids(&executors), [1, 2]);
    assert_eq!(read(&history, version), (version, json!([]), json!([])));
    let group = GroupName::from("g");
    record(
        &history,
        &[
            (5_000, running(2)),
            (6_000, Event::Group(group, GroupEvent::TargetChanged { target: 7 })),
        ],
    );
    let (_, executors, samples) = read(&history, version);
    assert_eq!(ids(&executors), [2]);
    assert_eq!(samples, json!([[5000, 2, 1, 1], [6000, 7, 1, 1]]));
}

#[test]
fn executors_that_posse_ended_are_kept_with_their_cause() {
    let history = history();
    let deleted =
        Event::Executor(subject(1), ExecutorEvent::Deleted { cause: DeleteCause::ScaledDown });
    let draining = Event::Executor(
        subject(1),
        ExecutorEvent::Draining { cause: DeleteCause::ScaledDown, until: Millis(9) },
    );
    // An event about an executor that has ended changes nothing.
    record(&history, &[(1, running(1)), (2, draining), (3, deleted), (4, lost(1, "late"))]);
    let (_, executors, _) = read(&history, 0);
    assert_eq!(executors[0]["state"], "draining");
    assert_eq!(executors[0]["since"], 2);
    assert_eq!(
        (&executors[0]["end"]["how"], &executors[0]["end"]["reason"]),
        (&json!("deleted"), &json!("scaled_down"))
    );
    assert!(executors[0].get("requested").is_none(), "posse found it at its start");
}

#[test]
fn executors_whose_work_is_done_are_kept() {
    let history = history();
    let completed =
        Event::Executor(subject(1), ExecutorEvent::Completed { node: Some("n2".into()) });
    record(&history, &[(1, requested(1)), (2, running(1)), (900, completed)]);
    // Its pod stays as the record, and that of another one from before.
    let shown = [(1, State::Completed, 900), (2, State::Completed, 0)];
    history.observe(&status(&shown), Millis(1_500));
    let (_, executors, samples) = read(&history, 0);
    assert_eq!(ids(&executors), [1]);
    assert_eq!(
        (&executors[0]["end"]["how"], &executors[0]["node"]),
        (&json!("completed"), &json!("n2"))
    );
    assert_eq!(samples.as_array().unwrap().last().unwrap()[2], 0);
}

#[test]
fn the_status_adds_states_and_executors_without_events() {
    let history = history();
    record(&history, &[(1, requested(1)), (2, requested(2)), (3, running(2)), (4, lost(2, ""))]);
    let shown = [
        (1, State::Pending, 7),
        (2, State::Failed, 4),
        (3, State::Running, 8),
        // Retained from before: it has ended.
        (4, State::Failed, 8),
    ];
    history.observe(&status(&shown), Millis(1_500));
    let (version, executors, _) = read(&history, 0);
    assert_eq!(ids(&executors), [1, 2, 3]);
    let states = |executors: &Value| -> Vec<Value> {
        executors.as_array().unwrap().iter().map(|one| one["state"].clone()).collect()
    };
    assert_eq!(states(&executors), ["pending", "running", "running"]);
    assert_eq!(
        (&executors[2]["running"], &executors[1]["end"]["how"]),
        (&json!(8), &json!("lost"))
    );
    assert_eq!(last_sample(&history), json!([1500, 0, 1, 1]));
    history.observe(&status(&shown), Millis(2_000));
    assert_eq!(read(&history, version).1, json!([]), "nothing has changed");
}

/// The server refused its create, which no event tells.
#[test]
fn a_create_that_was_taken_back_is_forgotten() {
    let history = history();
    record(&history, &[(0, requested(1))]);
    let how = || read(&history, 0).1[0]["end"]["how"].clone();
    assert!(history.needs_status());
    // The first status may be older than the request.
    history.observe(&status(&[]), Millis(1_000));
    history.observe(&status(&[]), Millis(2_000));
    assert_eq!(how(), Value::Null);
    assert_eq!(last_sample(&history)[3], 0, "it may be no executor");
    assert!(history.needs_status());
    // It was there again.
    history.observe(&status(&[(1, State::Pending, 0)]), Millis(2_001));
    history.observe(&status(&[]), Millis(3_000));
    assert_eq!(how(), Value::Null);
    history.observe(&status(&[]), Millis(4_001));
    assert_eq!(how(), "gone");
    assert!(!history.needs_status());
    assert_eq!(history.read(0, |changes| changes.n_ended), Some(0), "it never was");
    // In a long wait for quota there are many of them.
    for id in 2..1_000 {
        record(&history, &[(id * 10_000, requested(id))]);
        history.observe(&status(&[]), Millis(id * 10_000 + 1));
        history.observe(&status(&[]), Millis(id * 10_000 + 2_000));
    }
    assert_eq!(ids(&read(&history, 0).1).len(), GONE_KEPT);
}

/// Who has not read for a long time would keep executors for ever whose end is forgotten.
#[test]
fn a_version_from_before_the_forgotten_records_is_too_old() {
    let history = history();
    record(&history, &[(0, requested(1))]);
    let (version, ..) = read(&history, 0);
    record(&history, &[(1, lost(1, ""))]);
    let (later, ..) = read(&history, version);
    for id in 2..2 + ENDED_KEPT as u64 {
        record(&history, &[(id, lost(id, ""))]);
    }
    assert_eq!(history.read(version, |_| ()), None);
    assert_eq!(history.read(later, |_| ()), Some(()));
    assert_eq!(history.read(0, |_| ()), Some(()));
    assert_eq!(history.read(1 << 40, |_| ()), None, "of another run");
}

#[test]
fn only_the_last_ended_executors_are_kept() {
    let history = history();
    let n = ENDED_KEPT as u64 + 10;
    for id in 1..=n {
        record(&history, &[(id, requested(id)), (id, lost(id, &"x".repeat(10_000)))]);
    }
    record(&history, &[(n, requested(n + 1))]);
    let (_, executors, _) = read(&history, 0);
    assert_eq!(ids(&executors), (11..=n + 1).collect::<Vec<_>>());
    let message = executors[0]["end"]["message"].as_str().unwrap();
    assert!(message.len() <= MESSAGE_BYTES_MAX && message.ends_with("..."), "{message}");
    assert_eq!(history.read(0, |changes| changes.n_ended), Some(n));
}

/// Ten days with a change each second: the samples cover all of it, and the last one is exact.
#[test]
fn samples_get_coarser_and_cover_the_whole_run() {
    let history = history();
    let n_s = 10 * 86_400;
    for s in 0..n_s {
        let (group, target) = (GroupName::from("g"), u32::try_from(s).unwrap());
        record(&history, &[(s * 1_000, Event::Group(group, GroupEvent::TargetChanged { target }))]);
    }
    let (_, _, samples) = read(&history, 0);
    let samples = samples.as_array().unwrap();
    assert!((SAMPLES_MAX / 2 - 1..=SAMPLES_MAX).contains(&samples.len()), "{}", samples.len());
    let at = |one: &Value| one[0].as_u64().unwrap();
    assert!(samples.is_sorted_by_key(at));
    let widest = samples.windows(2).map(|two| at(&two[1]) - at(&two[0])).max().unwrap();
    assert!(widest <= 2 * n_s * 1_000 / (SAMPLES_MAX as u64 / 2), "{widest}");
    assert_eq!(samples.last().unwrap()[1], n_s - 1);
}
