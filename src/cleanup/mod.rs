//! `posse cleanup`: lists the orphaned executors and stale Leases of ended instances, and deletes them
//! with --yes. `core` decides what is an orphan.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use log::Level;
use serde_json::{Value, json};

use crate::args::format::FormatArgs;
use crate::args::{CleanupArgs, ClientArgs};
use crate::control_client::find_place;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::location::locate;
use crate::namespace::Namespace;
use crate::table::{or_dash, table};
use crate::terminal::print;
use crate::world::World;
use posse_control::client::ClientError;
use posse_core::machines::lease::LeaseScope;
use posse_core::model::ids::Uid;
use posse_core::model::lease::Record;
use posse_core::model::owner::Owner;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::policy::orphans::{
    LeaseAge, OrphanCandidate, OrphanFacts, OrphanVerdict, OwnerState, judge,
};
use posse_kube::api::leases::Leases;
use posse_kube::api::orphans::AppExecutors;
use posse_kube::api::pod_groups;
use posse_kube::api::retry::with_retries_if;
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::lease::{NamedLease, name_of};

use self::orphan_objects::OrphanObject;

mod lease_ends;
mod node_dir;
mod orphan_objects;

/// `posse cleanup`.
///
/// # Errors
/// The API server refuses or does not answer (exit code 3), or something was not deleted (12).
pub fn cleanup(
    args: &CleanupArgs,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let app = args.app.as_deref();
    let place = match app {
        // A live run with --dev has the cluster of the earlier ones.
        Some(app) => {
            let (app, namespace) = (Some(app.to_owned()), args.namespace.clone());
            let client = ClientArgs { app, namespace, ..ClientArgs::default() };
            match find_place(&client, world) {
                // It is about those that have ended, and there is no choice between these.
                Err(ClientError::Several { .. }) => Namespace::new(&client.namespace, world)?,
                Ok(_) | Err(_) => locate(&client, false, world)?.namespace,
            }
        }
        None => Namespace::new(&args.namespace, world)?,
    };
    let pods = AppExecutors::new(place.connection.http.clone(), &place.name, app);
    let wall_ms = Timestamp::now().as_millisecond();
    let lease_watch = world.lease_watch;
    let mut cleanup = Cleanup { args, place, pods, wall_ms, lease_watch, renewed: BTreeSet::new() };
    if let Some(dir) = &args.node_dir {
        return cleanup.clean_node_dir(&world.dir.join(dir), out);
    }
    let batches = cleanup.batches()?;
    let orphan_objects = cleanup.orphan_objects()?;
    let output = args.output;
    if batches.is_empty() && orphan_objects.is_empty() && !output.is_for_programs() {
        let subject = app.map_or_else(|| "posse".to_owned(), |app| format!("app {app}"));
        let text = format!("{subject} has no executors in namespace {}\n", cleanup.place.name);
        return print(out, &text).map(|()| Code::Clean);
    }
    let listing =
        Batches { batches: &batches, orphan_objects: &orphan_objects, shows_app: args.all_apps };
    let listed = print_listing(&listing, output, out);
    let is_any = batches.iter().any(Batch::is_removable) || !orphan_objects.is_empty();
    if !args.yes || !is_any {
        listed?;
        return say_removable(&batches, &orphan_objects, output, out);
    }
    // Whoever does not read the list any more wants all of it removed, too.
    let removed = cleanup.delete_removable(&batches, &orphan_objects, out);
    listed.and(removed)
}

/// What --yes would remove.
fn say_removable(
    batches: &[Batch],
    orphan_objects: &[OrphanObject],
    output: FormatArgs,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let removable = || batches.iter().filter(|batch| batch.is_removable());
    let n_pods: usize = removable().map(|batch| batch.pods.len()).sum();
    let n_leases = removable().filter(|batch| batch.lease.is_some()).count();
    if n_pods + n_leases + orphan_objects.len() == 0 {
        return conclude(output, "there is nothing to remove", out);
    }
    let mut what = count(n_pods, "executor");
    if n_leases > 0 {
        what.push_str(&format!(" and {}", count(n_leases, "lease")));
    }
    what.push_str(&count_each(orphan_objects.iter()));
    conclude(output, &format!("nothing was removed; the same with --yes removes {what}"), out)
}

/// Says what was done, below the table, or in the log if a program reads the output.
fn conclude(output: FormatArgs, text: &str, out: &mut dyn Write) -> Result<Code, Failure> {
    if output.is_for_programs() {
        log::info!("{text}");
        return Ok(Code::Clean);
    }
    print(out, &format!("\n{text}\n")).map(|()| Code::Clean)
}

/// The executors of one instance with the same owner, which are kept or deleted together. Or a Lease
/// without executors.
#[derive(Debug)]
struct Batch {
    instance: InstanceLabels,
    owner: Option<Owner>,
    state: OwnerState,
    pods: Vec<OrphanCandidate>,
    lease: Option<NamedLease>,
    verdict: OrphanVerdict,
}

/// The application and the instance by the pods' labels, which may be missing.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InstanceLabels {
    app: Option<String>,
    instance: Option<String>,
}

impl InstanceLabels {
    fn selection(&self) -> Option<Selection> {
        Some(Selection { app: self.app.clone()?, instance: self.instance.clone()? })
    }

    /// The name of the instance's Lease; empty without the labels.
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
        let InstanceLabels { app, instance } = &self.instance;
        let is_application_lease =
            self.lease.as_ref().is_some_and(|lease| lease.scope == LeaseScope::Application);
        let instance = if is_application_lease { None } else { instance.as_ref() };
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

/// All that was found.
struct Batches<'a> {
    batches: &'a [Batch],
    orphan_objects: &'a [OrphanObject],
    /// The applications differ.
    shows_app: bool,
}

impl Listing for Batches<'_> {
    fn table(&self, is_wide: bool) -> String {
        let heads = ["APP", "INSTANCE", "EXECUTORS", "OWNER", "STATE", "VERDICT"];
        let rows = self.batches.iter().map(Batch::cells);
        let mut text = match (self.batches.is_empty(), self.shows_app || is_wide) {
            (true, _) => String::new(),
            (false, true) => table(heads, rows),
            (false, false) => {
                let [_, heads @ ..] = heads;
                table(heads, rows.map(|[_, cells @ ..]| cells))
            }
        };
        for left in self.orphan_objects {
            let (word, name) = (left.word(), &left.name);
            text.push_str(&format!("{word} {name}: its application has ended\n"));
        }
        text
    }

    fn json(&self) -> Value {
        let all = self.batches.iter().map(|batch| {
            let pods: Vec<&str> = batch.pods.iter().map(|pod| pod.name.as_str()).collect();
            json!({
                "app": batch.instance.app,
                "instance": batch.instance.instance,
                "pods": pods,
                "lease": batch.lease.as_ref().map(|lease| &lease.name),
                "owner": batch.owner.as_ref().map(|owner| &owner.name),
                "state": batch.state.to_string(),
                "verdict": batch.verdict.to_string(),
                "removable": batch.is_removable(),
            })
        });
        let objects = self.orphan_objects.iter().map(|left| {
            json!({"app": left.app, "kind": left.word(), "name": left.name, "removable": true})
        });
        all.chain(objects).collect()
    }

    /// What --yes removes.
    fn names(&self) -> Vec<String> {
        let removable = self.batches.iter().filter(|batch| batch.is_removable());
        let names = removable.flat_map(|batch| {
            let pods = batch.pods.iter().map(|pod| format!("pod/{}", pod.name));
            pods.chain(batch.lease.iter().map(|lease| format!("lease/{}", lease.name)))
        });
        names.chain(self.orphan_objects.iter().map(OrphanObject::full_name)).collect()
    }
}

fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// ` and 2 volumes and 1 secret`, without what there is none of.
fn count_each<'l>(orphan_objects: impl Iterator<Item = &'l OrphanObject>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    orphan_objects.for_each(|left| *counts.entry(left.word()).or_default() += 1);
    // Volumes first, as they are listed.
    counts.iter().rev().map(|(word, n)| format!(" and {}", count(*n, word))).collect()
}

/// One cleanup.
struct Cleanup<'a> {
    args: &'a CleanupArgs,
    place: Namespace,
    pods: AppExecutors,
    /// The current time in milliseconds since 1970, for the age of Leases.
    wall_ms: i64,
    lease_watch: Duration,
    /// The uids of Leases that look stale, and that their holders renewed while they were watched.
    renewed: BTreeSet<Uid>,
}

impl Cleanup<'_> {
    /// All executors, and stale Leases without executors, with the verdict for each. Each owner is
    /// looked up once.
    fn batches(&mut self) -> Result<Vec<Batch>, Failure> {
        let mut pods = self.pods.list().map_err(|refusal| {
            self.place.connection.failure("cannot list the executors", &refusal)
        })?;
        pods.retain(|pod| !self.args.spares_ended || !pod.phase.is_final());
        // By application and instance, owner, and whether the names are those of executors.
        let mut sorted: BTreeMap<_, Vec<OrphanCandidate>> = BTreeMap::new();
        for pod in pods {
            let labels = InstanceLabels { app: pod.app.clone(), instance: pod.instance.clone() };
            sorted.entry((labels, pod.owner.clone(), pod.has_executor_name)).or_default().push(pod);
        }
        let mut states: BTreeMap<Owner, OwnerState> = BTreeMap::new();
        let mut found = Vec::new();
        for ((instance, owner, have_executor_names), pods) in sorted {
            let state = self.state(owner.as_ref(), &mut states);
            let lease = self.relevant_lease(&instance, &state);
            found.push((instance, owner, have_executor_names, state, pods, lease));
        }
        let stale = self.stale_leases();
        let relevant = found.iter().filter_map(|(labels, .., lease)| {
            Some((labels.lease_name(), lease.as_ref()?.as_ref().ok()?.as_ref()?))
        });
        let listed = stale.iter().map(|lease| (lease.name.clone(), &lease.record));
        self.renewed = self.watch_stale(relevant.chain(listed).collect());
        let mut batches = Vec::new();
        for (instance, owner, have_executor_names, state, pods, lease) in found {
            let age = self.age(lease);
            let verdict = self.judge(&instance, &state, have_executor_names, age);
            batches.push(Batch { instance, owner, state, pods, lease: None, verdict });
        }
        for lease in stale {
            if batches.iter().any(|batch| batch.instance.lease_name() == lease.name) {
                continue;
            }
            let Selection { app, instance } = lease.selection.clone();
            let instance = InstanceLabels { app: Some(app), instance: Some(instance) };
            let owner = lease.record.owner.clone();
            let state = self.state(owner.as_ref(), &mut states);
            let age = self.age_of(&lease.record);
            let verdict = self.judge(&instance, &state, true, age);
            let (pods, lease) = (Vec::new(), Some(lease));
            batches.push(Batch { instance, owner, state, pods, lease, verdict });
        }
        Ok(batches)
    }

    fn state(&self, owner: Option<&Owner>, known: &mut BTreeMap<Owner, OwnerState>) -> OwnerState {
        owner.map_or(OwnerState::None, |owner| {
            known.entry(owner.clone()).or_insert_with(|| self.pods.owner(owner)).clone()
        })
    }

    fn judge(
        &self,
        labels: &InstanceLabels,
        state: &OwnerState,
        have_executor_names: bool,
        lease: LeaseAge,
    ) -> OrphanVerdict {
        judge(&OrphanFacts {
            owner: state.clone(),
            instance: labels.instance.clone(),
            have_executor_names,
            named: self.args.instance.clone(),
            stale_ms: self.args.stale,
            lease,
            is_exclusive: false,
        })
    }

    /// The Leases that were not renewed within --stale.
    fn stale_leases(&self) -> Vec<NamedLease> {
        let Some(stale_ms) = self.args.stale else { return Vec::new() };
        let mut leases = self.leases().list(self.args.app.as_deref()).unwrap_or_else(|refusal| {
            log::warn!(
                "cannot list leases, so leases without executors are not cleaned up: {refusal}"
            );
            Vec::new()
        });
        leases.retain(|lease| LeaseAge::read(Some(&lease.record), self.wall_ms).is_stale(stale_ms));
        leases
    }

    /// The instance's Lease, if the verdict depends on it: without an owner, and with --stale.
    fn relevant_lease(
        &self,
        labels: &InstanceLabels,
        owner: &OwnerState,
    ) -> Option<Result<Option<Record>, Refusal>> {
        self.args.stale.filter(|_| *owner == OwnerState::None)?;
        Some(self.lease(&labels.selection()?))
    }

    fn age(&self, lease: Option<Result<Option<Record>, Refusal>>) -> LeaseAge {
        match lease {
            None | Some(Ok(None)) => LeaseAge::Absent,
            Some(Ok(Some(record))) => self.age_of(&record),
            Some(Err(refusal)) => {
                LeaseAge::Unknown(format!("their lease cannot be read: {refusal}"))
            }
        }
    }

    fn age_of(&self, record: &Record) -> LeaseAge {
        match (LeaseAge::read(Some(record), self.wall_ms), self.renewed.contains(&record.uid)) {
            (LeaseAge::Unchanged { duration_ms, .. }, true) => {
                LeaseAge::Unchanged { for_ms: 0, duration_ms }
            }
            (age, _) => age,
        }
    }

    /// Watches the Leases that look stale for one renewal interval. Clocks differ, and a holder whose
    /// clock is behind writes old times: only a Lease that nobody renews is stale. Returns the uids of
    /// the renewed ones, and of those that cannot be read again.
    fn watch_stale(&self, leases: BTreeMap<String, &Record>) -> BTreeSet<Uid> {
        let Some(stale_ms) = self.args.stale else { return BTreeSet::new() };
        let is_stale = |record: &Record| {
            !record.holder.is_empty()
                && LeaseAge::read(Some(record), self.wall_ms).is_stale(stale_ms)
        };
        let stale: Vec<_> = leases.into_iter().filter(|(_, record)| is_stale(record)).collect();
        if stale.is_empty() {
            return BTreeSet::new();
        }
        thread::park_timeout(self.lease_watch);
        let renewed = stale.into_iter().filter(|(name, before)| match self.leases().get(name) {
            Ok(Some(now)) => now.version_text != before.version_text,
            Ok(None) => false,
            Err(refusal) => {
                log::warn!("lease {name} cannot be read again, so it is kept: {refusal}");
                true
            }
        });
        renewed.map(|(_, record)| record.uid.clone()).collect()
    }

    fn lease(&self, selection: &Selection) -> Result<Option<Record>, Refusal> {
        let found = self.leases().get(&name_of(LeaseScope::Instance, selection))?;
        Ok(found.filter(|record| record.is_ours))
    }

    fn leases(&self) -> Leases {
        Leases::new(self.place.connection.http.clone(), self.place.name.as_str())
    }

    /// Deletes the removable executors, the Leases of instances without remaining executors, and the
    /// claims and Secrets.
    fn delete_removable(
        &self,
        batches: &[Batch],
        orphan_objects: &[OrphanObject],
        out: &mut dyn Write,
    ) -> Result<Code, Failure> {
        let mut n_deleted = 0;
        let mut failed: Vec<(&str, Refusal)> = Vec::new();
        let mut emptied: Vec<&InstanceLabels> = Vec::new();
        let mut remaining: BTreeSet<String> = BTreeSet::new();
        let (with_pods, leases): (Vec<&Batch>, Vec<&Batch>) =
            batches.iter().partition(|batch| batch.lease.is_none());
        for batch in with_pods {
            if !batch.is_removable() {
                remaining.insert(batch.instance.lease_name());
                continue;
            }
            emptied.push(&batch.instance);
            for pod in &batch.pods {
                match delete(&self.pods, pod) {
                    Ok(()) => n_deleted += 1,
                    Err(refusal) => {
                        remaining.insert(batch.instance.lease_name());
                        failed.push((&pod.name, refusal));
                    }
                }
            }
        }
        // Each instance once, even if its executors have several owners.
        emptied.retain(|instance| remaining.insert(instance.lease_name()));
        emptied.iter().for_each(|instance| self.delete_pod_groups(instance));
        let deleted = emptied.into_iter().filter(|instance| self.delete_lease(instance));
        let mut n_leases = deleted.count();
        for batch in leases.into_iter().filter(|batch| batch.is_removable()) {
            let Some(NamedLease { name, record, .. }) = &batch.lease else { continue };
            match self.leases().delete(name, record) {
                Ok(()) => n_leases += 1,
                // The Lease was acquired or deleted meanwhile.
                Err(refusal)
                    if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) => {
                }
                Err(refusal) => failed.push((name, refusal)),
            }
        }
        let mut deleted: Vec<&OrphanObject> = Vec::new();
        for left in orphan_objects {
            match self.delete_object(left) {
                Ok(()) => deleted.push(left),
                Err(refusal) => failed.push((&left.name, refusal)),
            }
        }
        let leases = count(n_leases, "lease");
        let mut text = format!("removed {} and {leases}", count(n_deleted, "executor"));
        text.push_str(&count_each(deleted.into_iter()));
        conclude(self.args.output, &text, out)?;
        let Some((_, refusal)) = failed.last() else { return Ok(Code::Clean) };
        let names: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
        let message = format!("not deleted: {} ({refusal})", names.join(", "));
        Err(Failure::new(Code::Remain, message))
    }

    /// Deletes the PodGroups of an instance whose gangs are gone. One without an owner would stay for ever.
    fn delete_pod_groups(&self, instance: &InstanceLabels) {
        let Some(selection) = instance.selection() else { return };
        let Namespace { connection, name } = &self.place;
        if let Err(refusal) = pod_groups::delete_of(&connection.http, name, &selection) {
            // Who may not delete them has most likely made none.
            let is_forbidden = refusal.class == RefusalClass::Forbidden;
            let level = if is_forbidden { Level::Debug } else { Level::Warn };
            let instance = &selection.instance;
            log::log!(level, "the PodGroups of instance {instance} are not deleted: {refusal}");
        }
    }

    /// Deletes the Lease of an instance if its holder does not renew it. True if deleted. A remaining
    /// Lease does no harm, because its name is not used again.
    fn delete_lease(&self, instance: &InstanceLabels) -> bool {
        let Some(selection) = instance.selection() else { return false };
        let name = name_of(LeaseScope::Instance, &selection);
        let deleted = self.lease(&selection).and_then(|record| {
            let stale_ms = self.args.stale.unwrap_or(0);
            let Some(record) = record else { return Ok(false) };
            if self.age_of(&record).is_stale(stale_ms) {
                return self.leases().delete(&name, &record).map(|()| true);
            }
            log::warn!("lease {name} is kept: its holder renewed it and may be alive");
            Ok(false)
        });
        deleted.unwrap_or_else(|refusal| {
            log::warn!("lease {name} is not deleted: {refusal}");
            false
        })
    }
}

/// Deletes the pod by its uid. Waits if the server throttles.
fn delete(pods: &AppExecutors, pod: &OrphanCandidate) -> Result<(), Refusal> {
    let is_throttled = |refusal: &Refusal| refusal.class == RefusalClass::Throttled;
    match with_retries_if(is_throttled, || pods.delete(pod)) {
        // The pod is gone already; another pod may have its name.
        Err(refusal)
            if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) =>
        {
            Ok(())
        }
        result => result,
    }
}

#[cfg(test)]
mod tests;
