//! Creates under failures of the server: one group never holds up another, and what a group waits
//! for is always visible.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, policy, refusal, spec, with_memory};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::event::{Budget, ClusterEvent, Event, GroupEvent, LossReason};
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::{Input, PodEvent};
use posse_core::model::pod::{StartProblem, StartProblemKind};
use posse_core::model::pod_text::PodText;
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{GroupSpec, Limit, Policy};
use posse_core::model::waiting::{RunWait, ServerWait, Waiting};
use posse_core::state::budgets::Budgets;

const MINUTE_MS: u64 = 60_000;

/// Plays the server until `end`: it answers each create after 10 ms. Creates of group `bad` are
/// answered with this refusal, after `bad_ms`; all others succeed.
fn serve(run: &mut Run, end: u64, bad: &str, (class, code): (RefusalClass, u16), bad_ms: u64) {
    let mut open: Vec<(u64, ExecutorId, bool)> = Vec::new();
    loop {
        for action in run.take() {
            if let Action::Create { id, group, .. } = action {
                let is_bad = group.as_str() == bad;
                open.push((run.now + if is_bad { bad_ms } else { 10 }, id, is_bad));
            }
        }
        let next = open.iter().map(|(at, ..)| *at).min();
        let next = next.into_iter().chain(run.core.next_deadline().map(|at| at.0)).min();
        let Some(next) = next.filter(|at| *at <= end) else { break };
        run.now = run.now.max(next);
        let (now, due): (u64, Vec<_>) =
            (run.now, open.iter().filter(|(at, ..)| *at <= next).copied().collect());
        open.retain(|(at, ..)| *at > now);
        run.turn();
        for (_, id, is_bad) in due {
            if is_bad {
                run.refused(id.0, refusal(class, code));
            } else {
                run.created(&[id.0]);
            }
        }
    }
    run.now = end;
    run.turn();
}

const FAILURES: [(RefusalClass, u16, u64); 6] = [
    (RefusalClass::OutcomeUnknown, 500, 5),
    (RefusalClass::OutcomeUnknown, 504, 5),
    // A webhook or a server that never answers: the client's own time-out.
    (RefusalClass::OutcomeUnknown, 0, 35_000),
    // A service account that does not exist yet.
    (RefusalClass::Transient, 403, 5),
    (RefusalClass::WebhookBusy, 429, 5),
    (RefusalClass::WebhookBusy, 503, 5),
];

#[test]
fn one_groups_failing_creates_do_not_hold_up_the_others() {
    for (class, code, ms) in FAILURES {
        let policy = Policy { in_flight_max: 8, ..policy() };
        let mut run = Run::new(policy, vec![spec("bad", 40), spec("good", 40)]);
        serve(&mut run, 2 * MINUTE_MS, "bad", (class, code), ms);
        let good = run.group("good");
        assert_eq!(good.pending, 40, "{class:?} {code}: {good:?}");
        // And new ones come as quickly as alone.
        run.target("good", 60);
        let end = run.now + 1_000;
        serve(&mut run, end, "bad", (class, code), ms);
        assert_eq!(run.group("good").pending, 60, "{class:?} {code}");
    }
}

#[test]
fn a_group_whose_creates_fail_sends_fewer_and_fewer() {
    let mut run = Run::new(policy(), vec![spec("bad", 100)]);
    serve(&mut run, 10 * MINUTE_MS, "bad", (RefusalClass::OutcomeUnknown, 500), 5);
    let tries = |run: &Run| -> u32 {
        let creates = run.core.executors().iter().filter_map(|(_, one)| one.create.as_ref());
        creates.map(|create| create.n_tries).sum()
    };
    let before = tries(&run);
    serve(&mut run, 20 * MINUTE_MS, "bad", (RefusalClass::OutcomeUnknown, 500), 5);
    assert!(tries(&run) - before <= 25, "{} requests in 10 min", tries(&run) - before);
    // The server is well again: within the longest backoff and some seconds all are there.
    serve(&mut run, 22 * MINUTE_MS, "", (RefusalClass::OutcomeUnknown, 500), 5);
    assert_eq!(run.group("bad").pending, 100);
}

#[test]
fn a_namespace_that_is_made_again_is_noticed_within_30_s() {
    for (class, code) in [(RefusalClass::NamespaceGone, 403), (RefusalClass::NotFound, 404)] {
        let mut run = Run::new(policy(), vec![spec("g", 3)]);
        serve(&mut run, MINUTE_MS, "", (class, code), 5);
        for id in 1..=3 {
            run.gone(&[id]);
        }
        serve(&mut run, 10 * MINUTE_MS, "g", (class, code), 5);
        let group = run.group("g");
        assert_eq!(group.pending + group.running, 0, "{class:?}");
        assert_eq!(group.waiting, Some(Waiting::Server(ServerWait::Permanent)), "{class:?}");
        serve(&mut run, 10 * MINUTE_MS + 30_000, "", (class, code), 5);
        assert_eq!(run.group("g").pending, 3, "{class:?}");
    }
}

#[test]
fn only_429_503_and_connection_errors_shrink_the_common_window() {
    for (class, code, closes) in [
        (RefusalClass::Throttled, 429, true),
        (RefusalClass::Transient, 503, true),
        // The connection was refused.
        (RefusalClass::Transient, 0, true),
        // A proxy without a server behind it.
        (RefusalClass::OutcomeUnknown, 503, true),
        (RefusalClass::OutcomeUnknown, 500, false),
        (RefusalClass::OutcomeUnknown, 504, false),
        (RefusalClass::OutcomeUnknown, 0, false),
        (RefusalClass::Transient, 403, false),
        (RefusalClass::Conflict, 409, false),
    ] {
        let mut run = Run::new(policy(), vec![spec("a", 2), spec("b", 0)]);
        assert_eq!(run.creates(), [1, 2]);
        run.refused(1, refusal(class, code));
        run.refused(2, refusal(class, code));
        run.target("b", 2);
        let is_closed = run.creates().is_empty();
        assert_eq!(is_closed, closes, "{class:?} {code}");
        let waiting = run.waits_for("b");
        assert_eq!(waiting == Some("server"), closes, "{class:?} {code}: {waiting:?}");
    }
}

#[test]
fn a_failing_retry_has_a_reason() {
    for (class, code, _) in FAILURES.into_iter().chain([(RefusalClass::Throttled, 429, 0)]) {
        let mut run = Run::new(policy(), vec![spec("g", 1)]);
        run.wait(5_000);
        run.take_events();
        assert_eq!(run.creates(), [1]);
        run.refused(1, refusal(class, code));
        let group = run.group("g");
        assert_eq!(
            group.waiting,
            Some(Waiting::Server(ServerWait::Failing)),
            "{class:?} {code}: {group:?}"
        );
        assert!(group.until.is_some_and(|at| at > Millis(run.now)), "{group:?}");
        assert!(group.message.is_some_and(|text| text.contains("the server's own words")));
        let events = run.take_events();
        let waiting = events.iter().filter(|event| {
            matches!(
                event,
                Event::Group(
                    _,
                    GroupEvent::Waiting {
                        waiting: Waiting::Server(ServerWait::Failing),
                        message: Some(_),
                        ..
                    }
                )
            )
        });
        let refused = events.iter().filter(|event| {
            matches!(event, Event::Group(_, GroupEvent::CreateRefused { cause: "server", message, .. })
                if message.contains("the server's own words"))
        });
        assert_eq!((waiting.count(), refused.count()), (1, 1), "{class:?} {code}: {events:?}");

        // It fails for an hour: told once, visible all the time, also while a request is open.
        for _ in 0..60 {
            run.wait(MINUTE_MS);
            assert_eq!(run.waits_for("g"), Some("server"));
            for id in run.creates() {
                run.refused(id, refusal(class, code));
            }
        }
        let events = run.take_events();
        assert!(events.is_empty(), "{class:?} {code}: {events:?}");
        run.wait(2 * MINUTE_MS);
        assert_eq!(run.creates(), [1]);
        run.created(&[1]);
        let group = run.group("g");
        assert_eq!((group.waiting, group.message), (None, None), "the reason is gone");
    }
}

#[test]
fn unschedulable_executors_do_not_keep_the_pending_limit_from_others() {
    let policy = Policy { pending_max: 4, ..policy() };
    let mut run = Run::new(policy, vec![spec("a", 10), spec("b", 0)]);
    let ids = run.creates();
    assert_eq!(ids, [1, 2, 3, 4]);
    run.created(&ids);
    let problem =
        StartProblem { kind: StartProblemKind::Unschedulable, message: "no".into(), n_started: 0 };
    run.watch(&ids, |pod| pod.start_problem = Some(Box::new(problem.clone())));
    run.target("b", 3);
    assert_eq!(run.take(), [], "the scheduler may find a node soon");
    run.wait(3 * MINUTE_MS);
    let mut n_created = 0;
    for action in run.take() {
        match action {
            Action::Create { id, group, .. } => {
                assert_eq!(group.as_str(), "b");
                n_created += 1;
                run.created(&[id.0]);
                run.running(&[id.0]);
            }
            Action::Delete { .. } | Action::Patch { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    for action in run.take() {
        n_created +=
            u32::from(matches!(action, Action::Create { ref group, .. } if group.as_str() == "b"));
    }
    assert_eq!(n_created, 3, "group b gets its share: {:?}", run.group("b"));
    assert!(run.group("a").pending >= 2, "group a keeps its own: {:?}", run.group("a"));
}

#[test]
fn failing_creates_do_not_keep_the_pending_limit_from_others() {
    let policy = Policy { pending_max: 4, ..policy() };
    let mut run = Run::new(policy, vec![spec("bad", 10), spec("good", 0)]);
    serve(&mut run, MINUTE_MS, "bad", (RefusalClass::OutcomeUnknown, 500), 5);
    run.target("good", 2);
    serve(&mut run, 5 * MINUTE_MS, "bad", (RefusalClass::OutcomeUnknown, 500), 5);
    assert_eq!(run.group("good").pending, 2, "{:?}", run.group("bad"));
    assert!(run.group("bad").requested <= 2, "{:?}", run.group("bad"));
}

#[test]
fn old_targets_leave_an_automatic_budget_in_time() {
    let policy =
        Policy { failures_app: Limit::Auto, failures_window_ms: 10_000, ..Policy::default() };
    let mut budgets = Budgets::new(&policy);
    budgets.on_wanted(100, Millis(0));
    budgets.on_wanted(1, Millis(1_000));
    // The target of 100 ended 20 s ago: ten losses are the limit, not 200.
    let spent = (0..11).map(|i| budgets.charge(Budget::App, Millis(21_000 + i)));
    assert_eq!(spent.filter(|spent| *spent).count(), 1);
}

#[test]
fn an_automatic_budget_of_a_huge_target_can_be_spent() {
    let policy = Policy { failures_app: Limit::Auto, ..Policy::default() };
    let mut budgets = Budgets::new(&policy);
    budgets.on_wanted(60_000, Millis(0));
    let spent = (0..120_001_u64).position(|i| budgets.charge(Budget::App, Millis(1_000 + i / 100)));
    assert_eq!(spent, Some(120_000));
}

#[test]
fn a_refused_create_does_not_use_up_the_memory_for_a_replacement() {
    for (class, code) in [(RefusalClass::Capacity, 403), (RefusalClass::Unauthorized, 401)] {
        let group = GroupSpec { pod: with_memory(PodText::default(), &["2Gi"]), ..spec("g", 1) };
        let mut run = Run::with_running(policy(), vec![group]);
        run.watch(&[1], |pod| {
            pod.phase = posse_core::model::pod::Phase::Failed;
            pod.container = posse_core::model::pod::ContainerState::Ended;
            pod.end = Some(Box::new(posse_core::model::pod::End {
                exit_code: Some(137),
                container_reason: "OOMKilled".into(),
                ..Default::default()
            }));
        });
        let step_of = |run: &mut Run| {
            run.take().into_iter().find_map(|action| match action {
                Action::Create { id, overrides, .. } => Some((id, overrides.memory_step)),
                _ => None,
            })
        };
        let (id, step) = step_of(&mut run).expect("a replacement");
        assert_eq!(step, 1);
        run.tell(Input::Created {
            id,
            watermark: run.core.watermark(),
            answer: Err(refusal(class, code)),
        });
        run.wait(5 * MINUTE_MS);
        assert_eq!(step_of(&mut run).map(|(_, step)| step), Some(1), "{class:?}");
    }
}

fn outage_events(run: &mut Run) -> Vec<String> {
    let events = run.take_events().into_iter().filter_map(|event| match event {
        Event::Cluster(ClusterEvent::ServerUnavailable { message }) => {
            Some(format!("silent: {message}"))
        }
        Event::Cluster(ClusterEvent::ServerAvailable { since }) => {
            Some(format!("back, silent since {}", since.0))
        }
        _ => None,
    });
    events.collect()
}

#[test]
fn a_refusal_that_ends_the_start_is_told_by_its_end() {
    use RefusalClass::{Forbidden, Transient};
    for (class, is_listed, want) in
        [(Forbidden, false, 0), (Transient, false, 1), (Forbidden, true, 1)]
    {
        let mut run = Run::unlisted(policy(), vec![spec("g", 1)]);
        if is_listed {
            run.list();
        }
        run.tell(Input::ReadRefused { refusal: refusal(class, 403) });
        assert_eq!(outage_events(&mut run).len(), want, "{class:?} {is_listed}");
    }
}

#[test]
fn a_server_that_does_not_answer_is_told_with_its_time_and_reason() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.wait(10_000);
    let refused = || refusal(RefusalClass::Transient, 0);
    run.tell(Input::ReadRefused { refusal: refused() });
    let at = run.now;
    run.wait(5_000);
    run.tell(Input::ReadRefused { refusal: refused() });
    let outage = run.core.outage().unwrap().clone();
    assert_eq!((outage.since.0, outage.message.as_str()), (at, "the server's own words"));
    assert_eq!(run.core.status().outage, Some(outage));
    assert_eq!(outage_events(&mut run), ["silent: the server's own words"], "told once");

    // A group that needs something says why it does not get it.
    run.target("g", 3);
    let ids = run.creates();
    run.refused(ids[0], refused());
    assert_eq!(run.waits_for("g"), Some("server"));
    assert_eq!(run.group("g").since, Some(Millis(run.now)));
    run.tell(Input::WatchOpened);
    assert_eq!(outage_events(&mut run), [format!("back, silent since {at}")]);
    assert_eq!(run.core.outage(), None);
}

#[test]
fn a_silent_server_is_noticed_by_creates_that_time_out() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    assert_eq!(run.creates(), [1, 2]);
    run.wait(35_000);
    run.take_events();
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
    assert_eq!((outage_events(&mut run).len(), run.n_polls), (0, 1), "a LIST shows which it is");
    run.tell(Input::ReadRefused { refusal: refusal(RefusalClass::OutcomeUnknown, 0) });
    assert_eq!(outage_events(&mut run).len(), 1);
    run.list();
    assert_eq!(outage_events(&mut run).len(), 1);
    // A slow webhook: the same time-out while the watch delivers events.
    run.created(&[2]);
    run.wait(1_000);
    assert_eq!(run.creates(), [1]);
    run.wait(10_000);
    run.running(&[2]);
    run.wait(25_000);
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
    assert_eq!((outage_events(&mut run).len(), run.n_polls), (0, 1));
}

#[test]
fn a_lost_lease_says_that_the_server_does_not_answer() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.wait(60_000);
    let since = Millis(run.now - 40_000);
    run.tell(Input::NoAnswer { since, message: "the lease was not renewed".to_owned() });
    run.tell(Input::Lease { held: false, high_water: None });
    run.target("g", 2);
    let group = run.group("g");
    assert_eq!(group.waiting, Some(Waiting::Run(RunWait::Lease)));
    assert_eq!(group.message.as_deref(), Some("the lease was not renewed"));
}

#[test]
fn a_dropped_reservation_of_ids_is_asked_for_again() {
    let mut run = Run::reserving(policy(), vec![spec("g", 2)]);
    let [Action::ReserveIds { up_to }] = run.take()[..] else { panic!("a reservation is due") };
    for _ in 0..3 {
        run.tell(Input::IdsNotReserved { up_to });
        assert_eq!(run.take(), [], "not at once: the thread is busy");
        assert_eq!(run.waits_for("g"), Some("ids"));
        run.wait(1_000);
        assert_eq!(run.take(), [Action::ReserveIds { up_to }]);
    }
    run.tell(Input::IdsReserved { up_to });
    assert_eq!(run.creates(), [1, 2]);
    // The reservation after a resourceVersion rollback, too: nothing else asks for it.
    run.created(&[1, 2]);
    run.refused_by_history();
    let is_same = |action: &Action| *action == Action::ReserveIds { up_to };
    assert!(run.take().iter().any(is_same));
    run.tell(Input::IdsNotReserved { up_to });
    run.wait(1_000);
    assert!(run.take().iter().any(is_same));
}

/// A LIST is newer than the whole life of a pod, whose create has not been answered well: only the watch, which
/// comes later, tells of the pod. Its id is not used again.
#[test]
fn a_pod_whose_life_a_list_has_overtaken_was_there() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 500));
    let (pod, gone) = (run.pod("g", 1), run.pod("g", 1));
    run.list();
    let epoch = run.core.watermark().epoch;
    let events = || vec![PodEvent::Applied(pod.clone()), PodEvent::Deleted(gone.clone())];
    run.tell(Input::Watch { epoch, events: events() });
    assert_eq!(run.losses(), [(1, LossReason::Deleted)]);
    assert_eq!(run.creates(), [2]);
    // The watch tells it again, from where it began.
    run.tell(Input::Watch { epoch, events: events() });
    run.wait(MINUTE_MS);
    assert_eq!((run.losses(), run.creates()), (vec![], vec![]));
}

/// Each probe ends the wait for a moment.
#[test]
fn a_quota_that_refuses_every_probe_is_told_once() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    serve(&mut run, MINUTE_MS, "g", (RefusalClass::Capacity, 403), 5);
    let is_wait = |event: &&Event| matches!(event, Event::Group(_, GroupEvent::Waiting { .. }));
    assert_eq!(run.events.iter().filter(is_wait).count(), 1, "{:?}", run.events);
    let since = run.group("g").since.unwrap();
    assert!(since < Millis(1_000), "{since:?}");
}
