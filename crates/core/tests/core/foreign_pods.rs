//! Pods that have our labels although posse did not create them: they are reported once, never
//! counted and never deleted, and their ids and slots are not believed.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{PREFIX, Run, STOP, identity, policy, refusal, spec};
use posse_core::model::action::Action;
use posse_core::model::event::{ClusterEvent, Event};
use posse_core::model::ids::{ExecutorId, ID_MAX, Uid, Version};
use posse_core::model::input::{Input, List, ListSource, PodAnswer, PodEvent};
use posse_core::model::pod::{ContainerState, End, Phase, Pod};
use posse_core::model::refusal::RefusalClass;
use posse_core::reconciler::InstanceIdentity;

/// A pod of somebody else with our labels.
fn foreign(run: &mut Run, name: &str, id: u64, owner: Option<&str>) -> Pod {
    let mut pod = run.pod("g", id);
    pod.uid = Uid::new(&format!("foreign-{name}"));
    pod.name = name.into();
    pod.owner = owner.map(Uid::new);
    pod.slot = Some(1_000_000);
    (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
    pod
}

fn show(run: &mut Run, event: impl FnOnce(Pod) -> PodEvent, mut pod: Pod) {
    run.version += 1;
    pod.version = Some(Version(run.version));
    if let Some(stored) = run.pods.iter_mut().find(|stored| stored.uid == pod.uid) {
        *stored = pod.clone();
    }
    let epoch = run.core.watermark().epoch;
    run.tell(Input::Watch { epoch, events: vec![event(pod)] });
}

/// The names of the foreign pods that were reported since the last call.
fn reported(run: &mut Run) -> Vec<String> {
    let names = run.take_events().into_iter().filter_map(|event| match event {
        Event::Cluster(ClusterEvent::ForeignPod { pod, .. }) => Some(pod),
        _ => None,
    });
    names.collect()
}

fn list(run: &mut Run, source: ListSource) {
    run.version += 1;
    let version = Some(Version(run.version));
    let (pods, watermark) = (run.pods.clone(), run.core.watermark());
    run.tell(Input::List(List::whole(source, pods, version, watermark)));
}

#[test]
fn a_pod_with_our_labels_and_another_name_is_reported_once_and_left() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let mut victim = foreign(&mut run, "victim-db", 1, None);
    run.pods.push(victim.clone());
    show(&mut run, PodEvent::Applied, victim.clone());
    assert_eq!(reported(&mut run), ["victim-db"]);
    let counts = |run: &Run| (run.group("g").running, run.core.executors().len());
    assert_eq!(counts(&run), (2, 2));
    // It changes, ends and terminates on a node that is gone.
    victim.node = Some("lost".into());
    show(&mut run, PodEvent::Applied, victim.clone());
    victim.phase = Phase::Failed;
    show(&mut run, PodEvent::Applied, victim.clone());
    victim.deleting = true;
    show(&mut run, PodEvent::Applied, victim.clone());
    run.list();
    run.wait(300_000);
    show(&mut run, PodEvent::Deleted, victim.clone());
    assert_eq!((run.take(), counts(&run)), (vec![], (2, 2)));
    assert_eq!(run.losses(), []);
}

/// The id in a name is a number as posse writes it.
#[test]
fn a_name_that_posse_would_not_write_is_not_ours() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    for end in ["01", "+1", "1x", "", " 1", "1 ", "\u{661}", "18446744073709551617"] {
        let name = format!("{PREFIX}{end}");
        let pod = foreign(&mut run, &name, 1, None);
        show(&mut run, PodEvent::Applied, pod);
        assert_eq!(reported(&mut run), [name]);
    }
    assert_eq!((run.take(), run.group("g").running), (vec![], 2));
}

#[test]
fn a_stop_deletes_each_executor_on_its_own_if_others_have_its_labels() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let victim = foreign(&mut run, "victim-db", 1, None);
    run.pods.push(victim.clone());
    show(&mut run, PodEvent::Applied, victim);
    run.stop(STOP);
    assert_eq!(run.ends(), ["u1", "u2"], "no delete by labels");
    assert_eq!(run.core.remaining().remaining.len(), 2, "the foreign pod is not named");
    run.pods.retain(|pod| *pod.name == *"victim-db");
    for uid in ["u1", "u2"] {
        let answer = Err(refusal(RefusalClass::NotFound, 404));
        run.tell(Input::Deleted { uid: Uid::new(uid), answer });
    }
    run.wait(100);
    assert!(matches!(run.take()[..], [Action::List { .. }]));
    list(&mut run, ListSource::Stop);
    let result = run.core.stop_result().unwrap();
    assert_eq!((result.remaining.len(), result.terminating.len()), (0, 0), "{result:?}");
}

#[test]
fn a_stop_before_the_first_list_deletes_nothing_by_labels() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    run.stop(STOP);
    run.wait(100);
    assert!(matches!(run.take()[..], [Action::List { .. }]));
    let victim = foreign(&mut run, "victim-db", 1, None);
    let ours = run.pod("g", 7);
    run.pods = vec![victim, ours];
    list(&mut run, ListSource::Stop);
    assert_eq!(run.ends(), ["u7"]);
}

/// Where a run finds a pod, and what it makes of it.
#[derive(Debug)]
struct Found {
    owner: Option<&'static str>,
    stored: Option<u64>,
    id: u64,
    pod_owner: Option<&'static str>,
    is_ours: bool,
}

#[test]
fn a_pod_of_an_earlier_run_is_ours_by_its_owner_or_by_our_record() {
    let found =
        |owner, stored, id, pod_owner, is_ours| Found { owner, stored, id, pod_owner, is_ours };
    let driver = Some("driver");
    for case in [
        // Outside of a cluster the Lease says which ids were used.
        found(None, Some(1_000), 37, None, true),
        found(None, Some(1_000), 1_000, None, true),
        found(None, Some(1_000), 1_001, None, false),
        found(None, Some(0), 1, None, false),
        found(None, Some(0), u64::MAX, None, false),
        // Without a Lease the pods themselves do, in a sane range.
        found(None, None, 37, None, true),
        found(None, None, ID_MAX, None, true),
        found(None, None, ID_MAX + 1, None, false),
        found(None, None, u64::MAX, None, false),
        found(None, None, 37, Some("replica-set"), false),
        // In a cluster the owner does.
        found(driver, Some(0), 5_000, driver, true),
        found(driver, None, 5_000, driver, true),
        found(driver, Some(0), u64::MAX, driver, false),
        found(driver, None, u64::MAX, driver, false),
        found(driver, Some(0), 37, None, false),
        found(driver, Some(0), 37, Some("other"), false),
        // The driver pod before this one had the same instance.
        found(driver, Some(1_000), 37, Some("other"), true),
        found(driver, Some(1_000), 1_001, Some("other"), false),
    ] {
        for is_late in [false, true] {
            // Without a record every pod is as good as the first LIST.
            if is_late && case.stored.is_none() && case.is_ours && case.owner.is_none() {
                continue;
            }
            let identity = InstanceIdentity {
                owner: case.owner.map(Uid::new),
                id_high_water: case.stored.unwrap_or(0),
                is_id_high_water_stored: case.stored.is_some(),
                ..identity()
            };
            let mut run = Run::with_identity(identity, policy(), vec![spec("g", 2)]);
            let name = format!("{PREFIX}{}", case.id);
            let pod = foreign(&mut run, &name, case.id, case.pod_owner);
            if is_late {
                run.list();
                show(&mut run, PodEvent::Applied, pod);
            } else {
                run.pods = vec![pod];
                run.list();
            }
            let is_ours = run.core.executors().get(ExecutorId(case.id)).is_some();
            assert_eq!(is_ours, case.is_ours, "{case:?}, late: {is_late}");
            assert_eq!(reported(&mut run).len(), usize::from(!is_ours), "{case:?}");
            // Whatever it is, creates go on with sane ids.
            let mut new = Vec::new();
            for action in run.take() {
                match action {
                    Action::ReserveIds { up_to } => {
                        assert!(up_to.0 < case.id.saturating_add(3_000).min(ID_MAX), "{up_to}");
                        run.tell(Input::IdsReserved { up_to });
                    }
                    Action::Create { id, .. } => new.push(id.0),
                    other => panic!("{other:?} of {case:?}, late: {is_late}"),
                }
            }
            new.extend(run.creates());
            assert!(new.len() == 2 || is_ours && new.len() == 1, "{case:?}: {new:?}");
            let most = if is_ours { case.id + 1_001 } else { 1_001 + case.stored.unwrap_or(0) };
            assert!(new.iter().all(|&id| id <= most), "{case:?}: {new:?}");
        }
    }
}

#[test]
fn a_pod_that_has_the_name_of_a_later_executor_is_passed_over() {
    let identity = InstanceIdentity { is_id_high_water_stored: true, ..identity() };
    let mut run = Run::with_identity(identity, policy(), vec![spec("g", 2)]);
    run.list();
    assert!(matches!(run.take()[..], [Action::ReserveIds { .. }]));
    run.tell(Input::IdsReserved { up_to: ExecutorId(1_000) });
    assert_eq!(run.creates(), [1, 2]);
    run.created(&[1, 2]);
    let name = format!("{PREFIX}3");
    let squatter = foreign(&mut run, &name, 3, None);
    show(&mut run, PodEvent::Applied, squatter.clone());
    assert_eq!(reported(&mut run), [name]);
    run.target("g", 3);
    assert_eq!(run.creates(), [3]);
    // It changes while the create is open.
    show(&mut run, PodEvent::Applied, squatter.clone());
    run.refused(3, refusal(RefusalClass::Exists, 409));
    assert!(matches!(run.take()[..], [Action::Get { .. }]));
    let watermark = run.core.watermark();
    let answer = Ok(PodAnswer::Ours(squatter.clone()));
    run.tell(Input::Got { id: ExecutorId(3), watermark, answer });
    assert_eq!(run.creates(), [4]);
    show(&mut run, PodEvent::Deleted, squatter);
    assert_eq!((run.take(), run.group("g").requested), (vec![], 1));
}

#[test]
fn pods_of_another_holder_of_the_lease_are_adopted_with_its_ids() {
    let identity = InstanceIdentity { is_id_high_water_stored: true, ..identity() };
    let mut run = Run::with_identity(identity, policy(), vec![spec("g", 0)]);
    run.list();
    run.tell(Input::Lease { held: false, high_water: None });
    for (id, name) in [(7, format!("{PREFIX}7")), (8, "victim-db".to_owned())] {
        let pod = foreign(&mut run, &name, id, None);
        show(&mut run, PodEvent::Applied, pod);
    }
    assert_eq!(run.core.executors().len(), 0);
    run.tell(Input::Lease { held: true, high_water: Some(ExecutorId(1_000)) });
    let adopted: Vec<u64> = run.core.executors().iter().map(|(id, _)| id.0).collect();
    assert_eq!(adopted, [7]);
}

/// Both pods have an executor's name, but only one has our owner.
#[test]
fn a_second_pod_of_an_id_is_deleted_only_if_it_has_our_owner() {
    for (owner, ends) in [(Some("driver"), vec!["foreign-app-x-exec-1"]), (None, vec![])] {
        let driver = Some(Uid::new("driver"));
        let identity = InstanceIdentity { owner: driver.clone(), ..identity() };
        let mut run = Run::with_identity(identity, policy(), vec![spec("g", 1)]);
        run.list();
        assert_eq!(run.creates(), [1]);
        let mut pod = run.pod("g", 1);
        pod.owner = driver;
        show(&mut run, PodEvent::Applied, pod.clone());
        show(&mut run, PodEvent::Deleted, pod);
        run.take();
        let second = foreign(&mut run, "app-x-exec-1", 1, owner);
        show(&mut run, PodEvent::Applied, second);
        let deleted: Vec<String> = run
            .take()
            .into_iter()
            .filter_map(|action| match action {
                Action::Delete { uid, .. } => Some(uid.to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(deleted, ends, "{owner:?}");
    }
}

#[test]
fn an_answer_proves_a_pod_to_be_ours_although_a_webhook_changed_its_owner() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    let watermark = run.core.watermark();
    let mut pod = run.pod("g", 1);
    pod.owner = Some(Uid::new("webhook"));
    show(&mut run, PodEvent::Applied, pod.clone());
    assert_eq!(reported(&mut run).len(), 1, "before the answer nothing is known");
    let answer = Ok(PodAnswer::Ours(pod.clone()));
    run.tell(Input::Created { id: ExecutorId(1), watermark, answer });
    assert_eq!(run.group("g").pending, 1);
    pod.container = ContainerState::Ended;
    pod.phase = Phase::Failed;
    pod.end = Some(Box::new(End { exit_code: Some(1), ..End::default() }));
    show(&mut run, PodEvent::Applied, pod);
    assert_eq!(run.losses().len(), 1);
}
