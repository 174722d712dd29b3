//! Records and retained failed pods give way to the work: a quota or a node that they hold is what it waits for.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::collections::{BTreeMap, BTreeSet};

use super::tasks::{say, task};
use crate::core_run::{Run, end_with, pod_with_claims, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::action::{Action, Patch};
use posse_core::model::fact::{EndedWork, Fact, Knowledge, Topic};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::input::Input;
use posse_core::model::pod::{
    ContainerState, Phase, Pod, Rare, Rest, StartProblem, StartProblemKind,
};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, OnLoss, Policy, RecordUse, Restart};
use posse_core::model::task::Task;
use posse_core::state::ended_indexes::Folded;

/// What a quota counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    /// `count/pods`
    Objects,
    /// `pods`
    Running,
    /// `persistentvolumeclaims`, and each slot has one.
    Claims,
}

/// The earliest deadline of what runs on, in seconds.
const FROM_S: u32 = 8;

/// A server with a quota, which answers everything at once.
struct Server {
    run: Run,
    counts: Counts,
    quota: usize,
    /// The slots of the executors that were created, by id.
    slots: BTreeMap<u64, (GroupName, u32)>,
    /// The slots whose claims are there.
    claims: BTreeSet<(GroupName, u32)>,
    /// Those that are deleted and stay as long as the slot's pod.
    deleted_claims: BTreeSet<(GroupName, u32)>,
    /// How often the claims of done slots were looked for.
    n_looks: u32,
    /// The executor whose pod stays when it is deleted.
    held: Option<u64>,
}

impl Server {
    fn refusal(&self) -> Refusal {
        let (what, name) = match self.counts {
            Counts::Objects => ("pods", "count/pods"),
            Counts::Running => ("pods", "pods"),
            Counts::Claims => {
                ("claim app-x-g-3-data: persistentvolumeclaims", "persistentvolumeclaims")
            }
        };
        let message = format!(
            "{what} \"x\" is forbidden: exceeded quota: q, requested: {name}=1, used: {name}=3, limited: {name}=3"
        );
        Refusal { message, ..refusal(RefusalClass::Capacity, 403) }
    }

    fn has_room(&self, slot: &(GroupName, u32)) -> bool {
        let is_counted = |pod: &&Pod| self.counts == Counts::Objects || !pod.phase.is_final();
        match self.counts {
            Counts::Claims => self.claims.contains(slot) || self.claims.len() < self.quota,
            Counts::Objects | Counts::Running => {
                self.run.pods.iter().filter(is_counted).count() < self.quota
            }
        }
    }

    /// Carries out what was asked for, and what follows from it within `ms`.
    fn carry_out(&mut self, ms: u64) {
        for _ in 0..200 {
            for action in self.run.take() {
                self.answer(action);
                self.drop_claims();
            }
            if self.run.asked.is_empty() {
                break;
            }
        }
        if ms > 0 {
            self.run.wait(ms);
            self.carry_out(0);
        }
    }

    /// Deleted claims go with the pods that use them.
    fn drop_claims(&mut self) {
        let used: BTreeSet<_> =
            self.run.pods.iter().filter_map(|pod| self.slots.get(&pod.id.0)).collect();
        let (stay, go) = std::mem::take(&mut self.deleted_claims)
            .into_iter()
            .partition(|one| used.contains(one));
        self.deleted_claims = stay;
        let go: BTreeSet<_> = go;
        self.claims.retain(|one| !go.contains(one));
    }

    fn answer(&mut self, action: Action) {
        match action {
            Action::Create { id, group, slot, .. } if self.has_room(&(group.clone(), slot)) => {
                assert!(!self.deleted_claims.contains(&(group.clone(), slot)), "{group} {slot}");
                self.slots.insert(id.0, (group.clone(), slot));
                self.claims.insert((group, slot));
                self.run.created(&[id.0]);
                let with_slot = |pod: &mut Pod| pod.slot = pod.task.is_none().then_some(slot);
                self.run.watch(&[id.0], with_slot);
                self.run.running(&[id.0]);
            }
            Action::Create { id, .. } => {
                let refusal = self.refusal();
                self.run.refused(id.0, refusal);
            }
            Action::Patch { uid, patch, .. } => {
                let Some(id) = self.id_of(&uid.to_string()) else { return };
                self.run.watch(&[id], |pod| {
                    let (folded, deadline_s) = match &patch {
                        Patch::Completed { folded, rest_deadline_s } => {
                            pod.completed = true;
                            (folded, rest_deadline_s)
                        }
                        Patch::Counted { folded, rest_deadline_s } => {
                            pod.counted = Some(1);
                            (folded, rest_deadline_s)
                        }
                        _ => (&None, &None),
                    };
                    // What would end by itself later stays for so long.
                    if *deadline_s == Some(FROM_S) {
                        (pod.phase, pod.end.as_mut().unwrap().rest) = (Phase::Failed, None);
                    }
                    if let Some(folded) = folded {
                        pod.end.as_mut().unwrap().folded = Some(folded.as_str().into());
                    }
                });
                self.run.tell(Input::Patched { uid, answer: Ok(()) });
            }
            Action::GiveUpClaims { slots } => {
                self.n_looks += 1;
                let n_before = self.deleted_claims.len();
                for (group, slots) in slots {
                    let of_slots = slots.into_iter().map(|slot| (group.clone(), slot));
                    self.deleted_claims.extend(of_slots.filter(|one| self.claims.contains(one)));
                }
                let n = self.deleted_claims.len() - n_before;
                self.run.tell(Input::ClaimsGivenUp { n });
            }
            Action::Delete { uid, .. } => {
                self.assert_told(&uid.to_string());
                self.run.tell(Input::Deleted { uid: uid.clone(), answer: Ok(None) });
                let id = self.id_of(&uid.to_string());
                if let Some(id) = id.filter(|id| Some(*id) == self.held) {
                    let finalizers = "example.com/audit".into();
                    self.run.watch(&[id], |pod| {
                        pod.rare = Some(
                            Rare { finalizers: Clone::clone(&finalizers), ..Rare::default() }
                                .into(),
                        );
                        pod.deleting = true;
                    });
                } else if let Some(id) = id {
                    self.run.gone(&[id]);
                }
            }
            _ => {}
        }
    }

    /// Without a record of the run, another pod tells already of the index that a deleted one has done.
    fn assert_told(&self, uid: &str) {
        let pod = self.run.pods.iter().find(|pod| pod.uid.to_string() == uid);
        let Some(slot) = pod.filter(|pod| pod.completed).and_then(|pod| pod.slot) else { return };
        let tells = |pod: &Pod| {
            let text = pod.end.as_ref().and_then(|end| end.folded.as_deref()).unwrap_or_default();
            let folded: Folded = text.parse().unwrap();
            folded.below(slot + 1).any(|(index, _)| index == slot)
        };
        assert!(self.run.core.has_record() || self.run.pods.iter().any(tells), "{slot} is lost");
    }

    fn id_of(&self, uid: &str) -> Option<u64> {
        self.run.pods.iter().find(|pod| pod.uid.to_string() == uid).map(|pod| pod.id.0)
    }

    /// The executors that run.
    fn live(&self) -> Vec<u64> {
        let live =
            self.run.pods.iter().filter(|pod| pod.phase == Phase::Running && pod.end.is_none());
        live.map(|pod| pod.id.0).collect()
    }
}

fn server(policy: Policy, group: GroupSpec, counts: Counts, quota: usize) -> Server {
    of_groups(policy, vec![group], counts, quota)
}

fn of_groups(policy: Policy, groups: Vec<GroupSpec>, counts: Counts, quota: usize) -> Server {
    let run = Run::new(policy, groups);
    let mut server = of_run(run, counts, quota);
    server.carry_out(100);
    server
}

fn of_run(run: Run, counts: Counts, quota: usize) -> Server {
    let (slots, claims, deleted_claims) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    Server { run, counts, quota, slots, claims, deleted_claims, n_looks: 0, held: None }
}

fn with_claims(group: GroupSpec) -> GroupSpec {
    GroupSpec { pod: pod_with_claims(), ..group }
}

/// The main container has ended with this code, and another one runs on.
fn ends_beside(code: i32) -> impl Fn(&mut Pod) {
    move |pod| {
        end_with(code)(pod);
        pod.phase = Phase::Running;
        pod.end.as_mut().unwrap().rest = Some(Rest { from_s: FROM_S, deadline_s: None });
    }
}

/// Six parts of the work under a quota that their records hold. posse may be killed after each of them.
#[test]
fn no_part_of_the_work_waits_for_the_records_of_others_or_runs_twice() {
    for (counts, quota, is_beside) in [
        (Counts::Objects, 3, false),
        (Counts::Objects, 2, false),
        (Counts::Objects, 3, true),
        (Counts::Running, 2, true),
        (Counts::Running, 2, false),
        (Counts::Claims, 3, false),
        (Counts::Claims, 2, false),
    ] {
        for is_killed in [false, true] {
            let group =
                GroupSpec { restart: Restart::OnFailure, completions: Some(6), ..spec("g", 2) };
            let group = if counts == Counts::Claims { with_claims(group) } else { group };
            let mut server = server(policy(), group.clone(), counts, quota);
            let mut done: Vec<u32> = Vec::new();
            for n in 1..=6 {
                let what = format!("{counts:?} {quota} {is_beside} {is_killed} {n}");
                let Some(id) = server.live().first().copied() else { panic!("none runs: {what}") };
                done.push(server.slots[&id].1);
                match is_beside {
                    true => server.run.watch(&[id], ends_beside(0)),
                    false => server.run.watch(&[id], end_with(0)),
                }
                server.carry_out(5_000);
                if is_killed {
                    let pods = std::mem::take(&mut server.run.pods);
                    let (version, now) = (server.run.version, server.run.now);
                    let run = Run::unlisted(policy(), vec![group.clone()]);
                    server.run = Run { pods, version, now, ..run };
                    server.run.list();
                    server.carry_out(5_000);
                }
                assert_eq!(server.run.group("g").completed, n, "{what}");
            }
            done.sort_unstable();
            assert_eq!(done, [0, 1, 2, 3, 4, 5], "{counts:?} {quota} {is_beside} {is_killed}");
            assert_eq!(server.live(), [0; 0]);
        }
    }
}

/// An earlier run may have left its failed pods, which this one does not see.
#[test]
fn what_earlier_runs_may_hold_is_told_with_a_way_out() {
    for (counts, is_told) in [(Counts::Objects, true), (Counts::Running, false)] {
        let mut server = server(policy(), spec("g", 2), counts, 0);
        server.carry_out(5_000);
        let message = server.run.group("g").message.unwrap();
        assert_eq!(message.contains("`posse cleanup`"), is_told, "{message}");
    }
}

/// Nothing is deleted that holds nothing: the records of ended pods stay under a quota on what runs.
#[test]
fn records_stay_that_hold_nothing() {
    let group = GroupSpec { restart: Restart::OnFailure, completions: Some(6), ..spec("g", 2) };
    let mut server = server(policy(), group, Counts::Running, 2);
    let ids = server.live();
    server.run.watch(&ids, end_with(0));
    // Somebody else takes the room.
    server.quota = 0;
    server.carry_out(60_000);
    assert_eq!(server.run.waits_for("g"), Some("quota"));
    assert_eq!((server.run.pods.len(), server.live().len()), (2, 0));
    let message = server.run.group("g").message.unwrap();
    assert!(!message.contains("our own"), "{message}");
    // The last record of an index has nobody who could take it over.
    (server.counts, server.quota) = (Counts::Objects, 1);
    server.carry_out(120_000);
    assert_eq!(server.run.pods.len(), 1);
    let message = server.run.group("g").message.unwrap();
    assert!(
        message.contains(
            "our own 1 completed executors, whose pods stay as records, hold a part of it"
        ),
        "{message}"
    );
}

#[test]
fn retained_failed_pods_give_way_before_a_quota_is_waited_for() {
    let mut server = server(policy(), spec("g", 3), Counts::Objects, 3);
    for _ in 0..4 {
        let id = server.live()[0];
        server.run.failed(&[id]);
        server.carry_out(5_000);
        assert_eq!(server.live().len(), 3);
    }
}

#[test]
fn the_records_of_tasks_give_way() {
    for (counts, is_beside) in [(Counts::Objects, false), (Counts::Running, true)] {
        let group = GroupSpec { max: Some(2), ..spec("g", 0) };
        let mut server = server(policy(), group, counts, 2);
        let tasks: Vec<Task> = (0..6).map(|n| task(&format!("t{n}"), 0)).collect();
        say(&mut server.run, &tasks);
        server.carry_out(5_000);
        for n in 1..=6 {
            let id = *server.live().first().expect("one runs");
            match is_beside {
                true => server.run.watch(&[id], ends_beside(0)),
                false => server.run.watch(&[id], end_with(0)),
            }
            server.carry_out(5_000);
            assert_eq!(server.run.group("g").ended_tasks, n, "{counts:?}");
        }
        // A record stays that holds nothing.
        let is_kept = server.run.core.executors().get(ExecutorId(1)).is_some();
        assert_eq!(is_kept, counts == Counts::Running);
    }
}

/// Who terminates may take long: a lost node, a finalizer, a drain of an hour.
#[test]
fn records_do_not_wait_for_another_executor_to_be_gone() {
    let work = GroupSpec { restart: Restart::OnFailure, completions: Some(6), ..spec("w", 1) };
    let mut server = of_groups(policy(), vec![spec("s", 1), work], Counts::Objects, 4);
    {
        let of = |server: &Server, group: &str| {
            let pods = server.run.pods.iter().filter(|pod| pod.phase == Phase::Running);
            let mut ids = pods.filter(|pod| *pod.group.0 == *group).map(|pod| pod.id.0);
            ids.next().unwrap()
        };
        for _ in 0..2 {
            let id = of(&server, "w");
            server.run.watch(&[id], end_with(0));
            server.carry_out(5_000);
        }
        let id = of(&server, "s");
        server.run.watch(&[id], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 3_600));
        server.carry_out(20_000);
        let n_live = server.live().len();
        assert_eq!(n_live, 3, "the one that goes, its successor, and the work");
    }
}

/// Somebody's finalizer holds the pod of a record that gives way.
#[test]
fn records_do_not_wait_for_one_that_is_held() {
    let group = GroupSpec { restart: Restart::OnFailure, completions: Some(6), ..spec("g", 1) };
    let mut server = server(policy(), group, Counts::Objects, 3);
    server.held = Some(1);
    for n in 1..=6 {
        let Some(id) = server.live().first().copied() else { panic!("none runs: {n}") };
        server.run.watch(&[id], end_with(0));
        server.carry_out(5_000);
        assert_eq!(server.run.group("g").completed, n);
    }
}

/// The run has a record, so nobody needs the pods of work that is done, not even the last one.
#[test]
fn with_a_record_a_quota_that_counts_ended_pods_holds_nothing_up() {
    for (quota, on_loss, counts) in [
        (1, OnLoss::Executor, Counts::Objects),
        (3, OnLoss::Group, Counts::Objects),
        (1, OnLoss::Executor, Counts::Claims),
    ] {
        let policy = Policy { record: RecordUse::On, outlives_driver: true, ..policy() };
        let count = u32::try_from(quota).unwrap().min(2);
        let group = GroupSpec {
            restart: Restart::OnFailure,
            completions: Some(6),
            on_loss,
            ..spec("g", count)
        };
        let group = if counts == Counts::Claims { with_claims(group) } else { group };
        let mut server = server(policy, group, counts, quota);
        for n in 1..=6 {
            let id = *server.live().first().expect("one runs");
            server.run.watch(&[id], end_with(0));
            server.carry_out(5_000);
            assert_eq!(server.run.group("g").completed, n, "{quota}");
        }
        let has_room = counts == Counts::Claims || server.run.pods.len() < quota;
        assert!(has_room, "the driver's next pod has room");
    }
}

/// The group that waits for a quota on claims gives up none itself: all of its slots are needed.
#[test]
fn claims_of_another_groups_done_slots_give_way() {
    let policy = Policy { record: RecordUse::On, outlives_driver: true, ..policy() };
    let done = GroupSpec { restart: Restart::OnFailure, completions: Some(1), ..spec("a", 1) };
    let groups = [done, spec("b", 1)].map(with_claims);
    let mut server = of_groups(policy, groups.into(), Counts::Claims, 1);
    let ids = server.live();
    server.run.watch(&ids, end_with(0));
    server.carry_out(5_000);
    assert_eq!((server.run.group("a").completed, server.live().len()), (1, 1));
    assert_eq!(server.run.group("b").running, 1);
}

/// Somebody else deletes the pods of work that is done. The claims of their slots stay, and no record holds them.
#[test]
fn claims_of_done_slots_give_way_without_their_pods() {
    let group = with_claims(GroupSpec {
        restart: Restart::OnFailure,
        completions: Some(4),
        ..spec("g", 1)
    });
    for (record, quota) in [(RecordUse::Off, 2), (RecordUse::On, 1)] {
        let policy = Policy { record, ..policy() };
        let mut server = server(policy, group.clone(), Counts::Claims, quota);
        for n in 1..=4 {
            let Some(id) = server.live().first().copied() else { panic!("none runs: {n} {quota}") };
            server.run.watch(&[id], end_with(0));
            if n == 1 && server.run.pods.iter().any(|pod| pod.id.0 == id) {
                server.run.gone(&[id]);
            }
            server.carry_out(5_000);
            assert_eq!(server.run.group("g").completed, n, "{quota}");
        }
    }
    // The record alone knows what is done.
    let policy = Policy { record: RecordUse::On, ..policy() };
    let mut run = Run::unlisted(policy, vec![group]);
    let ended = EndedWork { completed: [0, 1].into(), given_up: [2].into() };
    let topic = Topic::Work(GroupName::from("g"), 0);
    let knowledge = Some(Knowledge::Work { attempt: 1, ended });
    run.core.restore(vec![Fact { topic, knowledge }], Millis(0));
    let mut server = of_run(run, Counts::Claims, 3);
    server.claims = (0..3).map(|slot| (GroupName::from("g"), slot)).collect();
    server.run.list();
    server.carry_out(5_000);
    assert_eq!(server.live().len(), 1);
    assert_eq!(server.claims, [(GroupName::from("g"), 3)].into());
}

/// The scheduler waits for a claim that a quota refuses. Nobody refuses a create.
#[test]
fn claims_of_done_slots_give_way_to_those_of_ephemeral_volumes() {
    let done = GroupSpec { restart: Restart::OnFailure, completions: Some(2), ..spec("a", 2) };
    let groups = vec![with_claims(done), spec("b", 1)];
    let mut server = of_groups(policy(), groups, Counts::Claims, 3);
    let of_a = |id: &u64| *server.slots[id].0.0 == *"a";
    let (done, waiting): (Vec<u64>, _) = server.live().into_iter().partition(of_a);
    server.run.watch(&done, end_with(0));
    server.carry_out(5_000);
    assert_eq!(server.claims.len(), 3, "nobody waits");
    let message = "0/3 nodes are available: waiting for ephemeral volume controller".to_owned();
    let kind = StartProblemKind::Unschedulable;
    server.run.watch(&waiting, |pod| {
        (pod.phase, pod.container) = (Phase::Pending, ContainerState::Waiting);
        let message = message.as_str().into();
        pod.start_problem = Some(Box::new(StartProblem { kind, message, n_started: 0 }));
    });
    server.carry_out(5_000);
    assert_eq!((server.claims.len(), server.n_looks), (2, 1));
}

/// Each attempt needs all of its records, and nothing else knows of them.
#[test]
fn records_of_an_attempt_are_named_if_they_hold_the_quota() {
    let group = GroupSpec {
        restart: Restart::OnFailure,
        completions: Some(6),
        on_loss: OnLoss::Group,
        ..spec("g", 2)
    };
    let mut server = server(policy(), group, Counts::Objects, 3);
    for _ in 0..3 {
        let Some(id) = server.live().first().copied() else { break };
        server.run.watch(&[id], end_with(0));
        server.carry_out(20_000);
    }
    let message = server.run.group("g").message.unwrap();
    assert!(message.contains("our own 3 completed executors"), "{message}");
}
