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
use crate::core::lease::Record;
use crate::core::leftover::{Facts, Lease, Leftover, Owner, OwnerPod, Verdict, judge};
use crate::core::refusal::{Class, Refusal};
use crate::kube::api::{Leases, Pods};
use crate::kube::leftovers::Leftovers;
use crate::wire::labels::Selection;
use crate::wire::lease::name_of;

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
    let sweep = Sweep { args, connection, namespace, wall_ms: Timestamp::now().as_millisecond() };
    let batches = sweep.batches()?;
    if batches.is_empty() {
        let text = format!("app {} has no executors in namespace {}\n", args.app, sweep.namespace);
        return print(out, &text).map(|()| Code::Clean);
    }
    print(out, &listing(&batches))?;
    let n_removable: usize =
        batches.iter().filter(|batch| batch.is_removable()).map(|batch| batch.pods.len()).sum();
    match (n_removable, args.yes) {
        (0, _) => print(out, "\nthere is nothing to remove\n").map(|()| Code::Clean),
        (n, false) => {
            let n = counted(n, "executor");
            let text = format!("\nnothing was removed; the same with --yes removes {n}\n");
            print(out, &text).map(|()| Code::Clean)
        }
        (_, true) => sweep.remove(&batches, out),
    }
}

/// The executors of one instance that have one owner: they stay or go together.
#[derive(Debug)]
struct Batch {
    instance: Option<String>,
    owner: Option<OwnerPod>,
    state: Owner,
    pods: Vec<Leftover>,
    verdict: Verdict,
}

impl Batch {
    fn is_removable(&self) -> bool {
        matches!(self.verdict, Verdict::Removable(_))
    }
}

fn listing(batches: &[Batch]) -> String {
    let or_dash = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), Clone::clone);
    let rows = batches.iter().map(|batch| {
        [
            or_dash(batch.instance.as_ref()),
            batch.pods.len().to_string(),
            or_dash(batch.owner.as_ref().map(|owner| &owner.name)),
            batch.state.to_string(),
            batch.verdict.to_string(),
        ]
    });
    let heads = ["INSTANCE", "EXECUTORS", "OWNER", "STATE", "VERDICT"].map(str::to_owned);
    table(&heads, rows.collect())
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
    /// What Leases are judged against, milliseconds since 1970.
    wall_ms: i64,
}

impl Sweep<'_> {
    /// All executors, judged. Each owner is looked up once.
    fn batches(&self) -> Result<Vec<Batch>, Failure> {
        let http = self.connection.http.clone();
        let leftovers = Leftovers::new(http, self.namespace.as_str(), self.args.app.as_str());
        let pods = leftovers.list().map_err(|refusal| {
            self.connection.failure("the executors cannot be listed", &refusal)
        })?;
        let mut sorted: BTreeMap<(Option<String>, Option<OwnerPod>), Vec<Leftover>> =
            BTreeMap::new();
        for pod in pods {
            sorted.entry((pod.instance.clone(), pod.owner.clone())).or_default().push(pod);
        }
        let mut states: BTreeMap<OwnerPod, Owner> = BTreeMap::new();
        let mut batches = Vec::new();
        for ((instance, owner), pods) in sorted {
            let state = owner.as_ref().map_or(Owner::None, |owner| {
                states.entry(owner.clone()).or_insert_with(|| leftovers.owner(owner)).clone()
            });
            let facts = Facts {
                owner: state.clone(),
                instance: instance.clone(),
                named: self.args.instance.clone(),
                stale_ms: self.args.stale,
                lease: self.lease_that_matters(instance.as_deref(), &state),
            };
            batches.push(Batch { instance, owner, state, pods, verdict: judge(&facts) });
        }
        Ok(batches)
    }

    /// The Lease, where it has a say: without an owner, and asked for.
    fn lease_that_matters(&self, instance: Option<&str>, owner: &Owner) -> Lease {
        match (instance, self.args.stale) {
            (Some(instance), Some(_)) if *owner == Owner::None => match self.lease(instance) {
                Ok(record) => Lease::read(record.as_ref(), self.wall_ms),
                Err(refusal) => Lease::Unknown(format!("their lease cannot be read: {refusal}")),
            },
            (Some(_) | None, Some(_) | None) => Lease::Absent,
        }
    }

    fn lease(&self, instance: &str) -> Result<Option<Record>, Refusal> {
        self.leases().get(&name_of(&self.selection(instance)))
    }

    fn leases(&self) -> Leases {
        Leases::new(self.connection.http.clone(), self.namespace.as_str())
    }

    fn selection(&self, instance: &str) -> Selection {
        Selection { app: self.args.app.clone(), instance: instance.to_owned() }
    }

    /// Removes what may go, and the Leases of instances of which nothing stays.
    fn remove(&self, batches: &[Batch], out: &mut dyn Write) -> Result<Code, Failure> {
        let mut n_removed = 0;
        let mut failed: Vec<(&str, Refusal)> = Vec::new();
        let mut emptied: BTreeSet<&str> = BTreeSet::new();
        let mut still_there: BTreeSet<&str> = BTreeSet::new();
        for batch in batches {
            let Some(instance) = batch.instance.as_deref() else { continue };
            if !batch.is_removable() {
                still_there.insert(instance);
                continue;
            }
            emptied.insert(instance);
            let pods = self.pods(instance);
            for pod in &batch.pods {
                match delete(&pods, pod) {
                    Ok(()) => n_removed += 1,
                    Err(refusal) => {
                        still_there.insert(instance);
                        failed.push((&pod.name, refusal));
                    }
                }
            }
        }
        let n_leases = emptied.difference(&still_there).filter(|one| self.remove_lease(one));
        let leases = counted(n_leases.count(), "lease");
        print(out, &format!("\nremoved {} and {leases}\n", counted(n_removed, "executor")))?;
        let Some((_, refusal)) = failed.last() else { return Ok(Code::Clean) };
        let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
        let message = format!("could not be removed: {} ({refusal})", names.join(", "));
        Err(Failure::new(Code::Remain, message))
    }

    fn pods(&self, instance: &str) -> Pods {
        let http = self.connection.http.clone();
        Pods::new(http, self.namespace.as_str(), self.selection(instance))
    }

    /// Removes the Lease of an instance where nobody renews it; true where it did. One that stays
    /// does no harm: its name is not used again.
    fn remove_lease(&self, instance: &str) -> bool {
        let name = name_of(&self.selection(instance));
        let removed = self.lease(instance).and_then(|record| {
            let stale_ms = self.args.stale.unwrap_or(0);
            let Some(record) = record else { return Ok(false) };
            if Lease::read(Some(&record), self.wall_ms).is_stale(stale_ms) {
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

/// Deletes that pod and no other of its name, in the server's own time.
fn delete(pods: &Pods, pod: &Leftover) -> Result<(), Refusal> {
    let mut n_tries = 1;
    loop {
        match pods.delete(&pod.name, Some(&pod.uid), None) {
            Ok(_) => return Ok(()),
            // It went by itself, and another may have its name.
            Err(refusal) if matches!(refusal.class, Class::Conflict | Class::NotFound) => {
                return Ok(());
            }
            Err(refusal) if refusal.class == Class::Throttled && n_tries < TRIES_MAX => {
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
