//! What the core keeps so that a turn need not visit every executor must equal a recount.

use std::collections::BTreeSet;

use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::pod::StartProblemKind;
use posse_core::model::status::{ExecutorStatus, State};
use posse_core::model::task::Shape;
use posse_core::reconciler::Reconciler;
use posse_core::state::counts::Counts;
use posse_core::state::executors::{Executors, Group};
use posse_core::state::victim_order::VictimOrder;

use super::check::{CheckResult, fail};

const START_PROBLEMS: [StartProblemKind; 6] = [
    StartProblemKind::Config,
    StartProblemKind::Image,
    StartProblemKind::Unschedulable,
    StartProblemKind::Gated,
    StartProblemKind::Queued,
    StartProblemKind::Ignored,
];

/// What the status keeps of earlier ones is right for every executor.
pub fn status_is_current(core: &mut Reconciler) -> CheckResult {
    let status = core.status();
    let shown: Vec<&ExecutorStatus> = status.executors.iter().flat_map(|block| &**block).collect();
    let executors = core.executors().iter().map(|(id, executor)| {
        let pod = executor.uid.as_ref().and_then(|uid| core.snapshot().get(uid));
        executor.status(id, pod)
    });
    let fresh: Vec<ExecutorStatus> = executors.collect();
    if !shown.iter().copied().eq(&fresh) {
        return fail(format!("the status shows {shown:?}, but the executors are {fresh:?}"));
    }
    Ok(())
}

pub fn indexes_are_right(core: &Reconciler) -> CheckResult {
    let executors = core.executors();
    let known = executors.creates().count();
    let creates = executors.iter().filter(|(_, executor)| executor.create.is_some()).count();
    if known != creates {
        return fail(format!("the ledger has {creates} creates, {known} are known"));
    }
    let (known, ours) = (core.snapshot().n_ours(), core.snapshot().our_pods().count());
    if known != ours {
        return fail(format!("{ours} pods are ours, {known} are known"));
    }
    for (name, group) in executors.groups().iter() {
        order_is_right(name, group, core)?;
        ready_is_right(name, group, core)?;
        problems_are_right(name, group, executors)?;
        throttles_are_right(name, group, executors)?;
    }
    Ok(())
}

fn order_is_right(name: &GroupName, group: &Group, core: &Reconciler) -> CheckResult {
    let place = |&id| {
        let executor = core.executors().get(id)?;
        let pod = executor.uid.as_ref().and_then(|uid| core.snapshot().get(uid));
        executor.victim_order(id, pod, &group.spec)
    };
    let want: BTreeSet<VictimOrder> = group.members.iter().filter_map(place).collect();
    if group.order != want {
        return fail(format!("the order of {name} is {:?}, not {want:?}", group.order));
    }
    Ok(())
}

fn ready_is_right(name: &GroupName, group: &Group, core: &Reconciler) -> CheckResult {
    let is_ready = |&&id: &&ExecutorId| {
        let executor = core.executors().get(id);
        let pod = executor.and_then(|e| core.snapshot().get(e.uid.as_ref()?));
        let runs = executor.is_some_and(|e| e.state == State::Running && !e.awaits_heartbeat);
        runs && pod.is_some_and(|pod| pod.ready)
    };
    let n_ready = group.members.iter().filter(is_ready).count();
    if group.n_ready as usize != n_ready {
        return fail(format!("{name}: {} are ready, not {n_ready}", group.n_ready));
    }
    Ok(())
}

fn problems_are_right(name: &GroupName, group: &Group, executors: &Executors) -> CheckResult {
    for kind in START_PROBLEMS {
        let since = |&id| match executors.get(id)?.start.problem? {
            (found, since) if found == kind => Some((since, id)),
            _ => None,
        };
        let want: BTreeSet<_> = group.members.iter().filter_map(since).collect();
        let known = group.problems.of(kind);
        if *known != want {
            return fail(format!("{name}, {kind:?}: {known:?}, not {want:?}"));
        }
    }
    Ok(())
}

/// Each executor is known to one throttle: that of its shape.
fn throttles_are_right(name: &GroupName, group: &Group, executors: &Executors) -> CheckResult {
    let throttles = &group.tasks.throttles;
    let shapes: BTreeSet<Shape> =
        group.members.iter().filter_map(|&id| Some(executors.get(id)?.shape)).collect();
    for shape in shapes {
        let members = group.members.iter().filter_map(|&id| Some((id, executors.get(id)?)));
        let members = members.filter(|(_, executor)| executor.shape == shape);
        let mut want = Counts::default();
        let mut problems = BTreeSet::new();
        for (id, executor) in members {
            want.add(executor.state);
            problems.extend(executor.start.problem.map(|(kind, since)| (kind as usize, since, id)));
        }
        let throttle = throttles.of(shape);
        if throttle.counts != want {
            return fail(format!("{name} {shape:?}: {:?}, not {want:?}", throttle.counts));
        }
        let of_kind = |kind: StartProblemKind| {
            throttle.problems.of(kind).iter().map(move |&(since, id)| (kind as usize, since, id))
        };
        let known: BTreeSet<_> = START_PROBLEMS.into_iter().flat_map(of_kind).collect();
        if known != problems {
            return fail(format!("{name} {shape:?}: {known:?}, not {problems:?}"));
        }
    }
    let n_executors: usize = throttles.all().map(|one| one.counts.n() as usize).sum();
    if n_executors != group.members.len() {
        return fail(format!("{name}: the throttles have {n_executors}"));
    }
    Ok(())
}
