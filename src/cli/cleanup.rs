//! Owns `posse cleanup`: lists what ended instances of an application left behind, and removes it
//! where told to. What is left over is `core::leftover`'s to say.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use crate::cli::args::CleanupArgs;
use crate::cli::exit::{Code, Failure};
use crate::cli::server::Connection;
use crate::cli::{World, print};
use crate::control::table::table;
use crate::core::machines::lease::{LeaseScope, Record};
use crate::core::model::pod::OwnerPod;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::policy::orphans::{
    LeaseAge, OrphanCandidate, OrphanFacts, OrphanVerdict, OwnerState, judge,
};
use crate::kube::api::leases::Leases;
use crate::kube::api::orphans::AppExecutors;
use crate::wire::labels::Selection;
use crate::wire::lease::{NamedLease, name_of};

/// How often a delete is tried that the server puts off.
const TRIES_MAX: u32 = 5;
/// How long to wait between them where the server does not say, and the longest wait it can ask for.
const WAIT_MS: u64 = 1_000;
const WAIT_MS_MAX: u64 = 10_000;

/// `posse cleanup`.
///
/// # Errors
/// The server cannot be asked (exit code 3), or some could not be removed (exit code 12).
pub fn cleanup(
    args: &CleanupArgs,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let connection = Connection::new(&args.server, world)?;
    let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
    let app = args.app.as_deref();
    let leftovers = AppExecutors::new(connection.http.clone(), &namespace, app);
    let wall_ms = Timestamp::now().as_millisecond();
    let sweep = Sweep { args, connection, namespace, leftovers, wall_ms };
    let batches = sweep.batches()?;
    if batches.is_empty() {
        let whose = app.map_or_else(|| "posse".to_owned(), |app| format!("app {app}"));
        let text = format!("{whose} has no executors in namespace {}\n", sweep.namespace);
        return print(out, &text).map(|()| Code::Clean);
    }
    print(out, &listing(&batches, args.all_apps))?;
    let removable = || batches.iter().filter(|batch| batch.is_removable());
    let n_pods: usize = removable().map(|batch| batch.pods.len()).sum();
    let n_leases = removable().filter(|batch| batch.lease.is_some()).count();
    match (n_pods + n_leases, args.yes) {
        (0, _) => print(out, "\nthere is nothing to remove\n").map(|()| Code::Clean),
        (_, false) => {
            let what = match n_leases {
                0 => counted(n_pods, "executor"),
                n => format!("{} and {}", counted(n_pods, "executor"), counted(n, "lease")),
            };
            let text = format!("\nnothing was removed; the same with --yes removes {what}\n");
            print(out, &text).map(|()| Code::Clean)
        }
        (_, true) => sweep.remove(&batches, out),
    }
}

/// The executors of one instance that have one owner: they stay or go together. Or a Lease without
/// any.
#[derive(Debug)]
struct Batch {
    whose: Whose,
    owner: Option<OwnerPod>,
    state: OwnerState,
    pods: Vec<OrphanCandidate>,
    lease: Option<NamedLease>,
    verdict: OrphanVerdict,
}

/// An application and an instance, as far as the labels tell.
#[derive(Debug)]
struct Whose {
    app: Option<String>,
    instance: Option<String>,
}

impl Whose {
    fn selection(&self) -> Option<Selection> {
        Some(Selection { app: self.app.clone()?, instance: self.instance.clone()? })
    }

    /// The name of their Lease; empty where the labels do not tell.
    fn lease_name(&self) -> String {
        let selection = self.selection();
        selection.map_or_else(String::new, |selection| name_of(LeaseScope::Instance, &selection))
    }
}

impl Batch {
    fn is_removable(&self) -> bool {
        matches!(self.verdict, OrphanVerdict::Removable(_))
    }

    fn cells(&self) -> [String; 6] {
        let or_dash = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), Clone::clone);
        let Whose { app, instance } = &self.whose;
        let is_applications =
            self.lease.as_ref().is_some_and(|lease| lease.scope == LeaseScope::Application);
        let instance = if is_applications { None } else { instance.as_ref() };
        [
            or_dash(app.as_ref()),
            or_dash(instance),
            self.pods.len().to_string(),
            or_dash(self.owner.as_ref().map(|owner| &owner.name)),
            self.state.to_string(),
            self.verdict.to_string(),
        ]
    }
}

fn listing(batches: &[Batch], shows_app: bool) -> String {
    let heads = ["APP", "INSTANCE", "EXECUTORS", "OWNER", "STATE", "VERDICT"].map(str::to_owned);
    let rows: Vec<[String; 6]> = batches.iter().map(Batch::cells).collect();
    if shows_app {
        return table(&heads, rows);
    }
    let without = |[_, cells @ ..]: [String; 6]| cells;
    table(&without(heads), rows.into_iter().map(without).collect())
}

fn counted(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// One cleaning.
struct Sweep<'a> {
    args: &'a CleanupArgs,
    connection: Connection,
    namespace: String,
    leftovers: AppExecutors,
    /// What Leases are judged against, milliseconds since 1970.
    wall_ms: i64,
}

impl Sweep<'_> {
    /// All executors, and the Leases of instances that have none, judged. Each owner is looked up
    /// once.
    fn batches(&self) -> Result<Vec<Batch>, Failure> {
        let pods = self.leftovers.list().map_err(|refusal| {
            self.connection.failure("the executors cannot be listed", &refusal)
        })?;
        let mut sorted: BTreeMap<(Option<String>, Option<OwnerPod>), Vec<OrphanCandidate>> =
            BTreeMap::new();
        for pod in pods {
            let whose = format!("{} {}", text(pod.app.as_ref()), text(pod.instance.as_ref()));
            sorted.entry((Some(whose), pod.owner.clone())).or_default().push(pod);
        }
        let mut states: BTreeMap<OwnerPod, OwnerState> = BTreeMap::new();
        let mut batches = Vec::new();
        for ((_, owner), pods) in sorted {
            let first = &pods[0];
            let whose = Whose { app: first.app.clone(), instance: first.instance.clone() };
            let state = self.state(owner.as_ref(), &mut states);
            let lease = self.lease_that_matters(&whose, &state);
            let verdict = self.judge(&whose, &state, lease);
            batches.push(Batch { whose, owner, state, pods, lease: None, verdict });
        }
        for lease in self.stale_leases() {
            if batches.iter().any(|batch| batch.whose.lease_name() == lease.name) {
                continue;
            }
            let Selection { app, instance } = lease.selection.clone();
            let whose = Whose { app: Some(app), instance: Some(instance) };
            let owner = lease.record.owner.clone();
            let state = self.state(owner.as_ref(), &mut states);
            let read = LeaseAge::read(Some(&lease.record), self.wall_ms);
            let verdict = self.judge(&whose, &state, read);
            let (pods, lease) = (Vec::new(), Some(lease));
            batches.push(Batch { whose, owner, state, pods, lease, verdict });
        }
        Ok(batches)
    }

    fn state(
        &self,
        owner: Option<&OwnerPod>,
        known: &mut BTreeMap<OwnerPod, OwnerState>,
    ) -> OwnerState {
        owner.map_or(OwnerState::None, |owner| {
            known.entry(owner.clone()).or_insert_with(|| self.leftovers.owner(owner)).clone()
        })
    }

    fn judge(&self, whose: &Whose, state: &OwnerState, lease: LeaseAge) -> OrphanVerdict {
        judge(&OrphanFacts {
            owner: state.clone(),
            instance: whose.instance.clone(),
            named: self.args.instance.clone(),
            stale_ms: self.args.stale,
            lease,
        })
    }

    /// The Leases that nobody has renewed for so long as was asked for.
    fn stale_leases(&self) -> Vec<NamedLease> {
        let Some(stale_ms) = self.args.stale else { return Vec::new() };
        let mut leases = self.leases().list(self.args.app.as_deref()).unwrap_or_else(|refusal| {
            log::warn!("leases without executors are not looked for: {refusal}");
            Vec::new()
        });
        leases.retain(|lease| LeaseAge::read(Some(&lease.record), self.wall_ms).is_stale(stale_ms));
        leases
    }

    /// The Lease, where it has a say: without an owner, and asked for.
    fn lease_that_matters(&self, whose: &Whose, owner: &OwnerState) -> LeaseAge {
        match (whose.selection(), self.args.stale) {
            (Some(selection), Some(_)) if *owner == OwnerState::None => {
                match self.lease(&selection) {
                    Ok(record) => LeaseAge::read(record.as_ref(), self.wall_ms),
                    Err(refusal) => {
                        LeaseAge::Unknown(format!("their lease cannot be read: {refusal}"))
                    }
                }
            }
            (Some(_) | None, Some(_) | None) => LeaseAge::Absent,
        }
    }

    fn lease(&self, selection: &Selection) -> Result<Option<Record>, Refusal> {
        self.leases().get(&name_of(LeaseScope::Instance, selection))
    }

    fn leases(&self) -> Leases {
        Leases::new(self.connection.http.clone(), self.namespace.as_str())
    }

    /// Removes what may go, and the Leases of instances of which nothing stays.
    fn remove(&self, batches: &[Batch], out: &mut dyn Write) -> Result<Code, Failure> {
        let mut n_removed = 0;
        let mut failed: Vec<(&str, Refusal)> = Vec::new();
        let mut emptied: Vec<&Whose> = Vec::new();
        let mut still_there: BTreeSet<String> = BTreeSet::new();
        let (with_pods, leases): (Vec<&Batch>, Vec<&Batch>) =
            batches.iter().partition(|batch| batch.lease.is_none());
        for batch in with_pods {
            if !batch.is_removable() {
                still_there.insert(batch.whose.lease_name());
                continue;
            }
            emptied.push(&batch.whose);
            for pod in &batch.pods {
                match delete(&self.leftovers, pod) {
                    Ok(()) => n_removed += 1,
                    Err(refusal) => {
                        still_there.insert(batch.whose.lease_name());
                        failed.push((&pod.name, refusal));
                    }
                }
            }
        }
        // Each once, however many owners its executors have.
        emptied.retain(|whose| still_there.insert(whose.lease_name()));
        let removed = emptied.into_iter().filter(|whose| self.remove_lease(whose));
        let mut n_leases = removed.count();
        for batch in leases.into_iter().filter(|batch| batch.is_removable()) {
            let Some(NamedLease { name, record, .. }) = &batch.lease else { continue };
            match self.leases().delete(name, record) {
                Ok(()) => n_leases += 1,
                // Somebody took it meanwhile, or it went.
                Err(refusal)
                    if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) => {
                }
                Err(refusal) => failed.push((name, refusal)),
            }
        }
        let leases = counted(n_leases, "lease");
        print(out, &format!("\nremoved {} and {leases}\n", counted(n_removed, "executor")))?;
        let Some((_, refusal)) = failed.last() else { return Ok(Code::Clean) };
        let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
        let message = format!("could not be removed: {} ({refusal})", names.join(", "));
        Err(Failure::new(Code::Remain, message))
    }

    /// Removes the Lease of an instance where nobody renews it; true where it did. One that stays
    /// does no harm: its name is not used again.
    fn remove_lease(&self, whose: &Whose) -> bool {
        let Some(selection) = whose.selection() else { return false };
        let name = name_of(LeaseScope::Instance, &selection);
        let removed = self.lease(&selection).and_then(|record| {
            let stale_ms = self.args.stale.unwrap_or(0);
            let Some(record) = record else { return Ok(false) };
            if LeaseAge::read(Some(&record), self.wall_ms).is_stale(stale_ms) {
                return self.leases().delete(&name, &record).map(|()| true);
            }
            log::warn!("lease {name} stays: its holder renewed it and may be alive");
            Ok(false)
        });
        removed.unwrap_or_else(|refusal| {
            log::warn!("lease {name} stays: {refusal}");
            false
        })
    }
}

fn text(label: Option<&String>) -> &str {
    label.map_or("", String::as_str)
}

/// Deletes that pod and no other of its name, in the server's own time.
fn delete(leftovers: &AppExecutors, pod: &OrphanCandidate) -> Result<(), Refusal> {
    let mut n_tries = 1;
    loop {
        match leftovers.delete(pod) {
            Ok(()) => return Ok(()),
            // It went by itself, and another may have its name.
            Err(refusal)
                if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) =>
            {
                return Ok(());
            }
            Err(refusal) if refusal.class == RefusalClass::Throttled && n_tries < TRIES_MAX => {
                let wait_ms = refusal.retry_after_ms.unwrap_or(WAIT_MS).min(WAIT_MS_MAX);
                thread::park_timeout(Duration::from_millis(wait_ms));
                n_tries += 1;
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

#[cfg(test)]
mod tests;
