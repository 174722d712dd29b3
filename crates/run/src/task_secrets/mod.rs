//! The Secret of the application's tasks: the values of their `secret_env` and `files`, which no annotation and no argument
//! has. A value is written before its task is added, and removed when no task needs it. The Secret is read at the first task
//! that has such a value, so a run without one asks for nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use log::{debug, warn};
use serde_json::{Value, json};

use crate::credentials::SecretRelease;
use crate::credentials::store::{SecretStore, StoreProblem};
use crate::random::random_bits;
use crate::worker::Worker;
use posse_base::sync::lock;
use posse_control::{RunHandle, StoreError, TaskSecrets as Store};
use posse_core::model::command::{Command, Reply};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::task::Task;
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::control::task_secrets::{
    NewTask, TASK_SECRET_BYTES_MAX, data, n_bytes, new_key, secret_name, stored,
};
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::k8s::labels::Selection;
use posse_wire::pod::build::OwnerRef;
use posse_wire::pod::credential_files::{CredentialFiles, is_ours, secret};

/// How often values that no task needs are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// How often a write is tried if others change the Secret at the same time.
const TRIES_MAX: u32 = 3;
/// How long a run waits at its end for the thread that removes values.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The stack of that thread, bytes.
const STACK_BYTES: usize = 256 << 10;

/// The Secret of the application's tasks.
#[derive(Debug)]
pub struct TaskSecrets {
    secret: Arc<TaskSecret>,
    is_new: bool,
    /// Started with the first value, or with a process that may find some.
    sweeper: Mutex<Option<Sweeper>>,
}

#[derive(Debug)]
struct Sweeper {
    stop: Sender<()>,
    worker: Worker,
}

/// What is needed to write it.
pub struct TaskSecret {
    store: SecretStore,
    core: Arc<dyn RunHandle>,
    state: Mutex<State>,
}

/// What the Secret has of this instance, as far as this process knows.
#[derive(Default)]
struct State {
    /// None: the Secret is to be read before the next write.
    seen: Option<Seen>,
    /// By value.
    entries: BTreeMap<String, Entry>,
    /// How many calls have stored values.
    n_stores: u64,
    /// The last sweep might not read it: no earlier process has stored anything, if no entry says otherwise.
    is_refused: bool,
}

/// The Secret as it was read or written last.
#[derive(Default)]
struct Seen {
    /// None: there is no Secret.
    uid: Option<String>,
    /// The metadata by which the next write makes the driver's pod an owner.
    owner_patch: Option<Value>,
    n_other_bytes: usize,
    /// The keys that somebody has removed.
    missing: Vec<Arc<str>>,
}

struct Entry {
    key: Arc<str>,
    /// How many calls are about to add a task with it.
    n_held: u32,
    /// The last call that stored it.
    last_store: u64,
}

impl TaskSecret {
    pub fn new(
        objects: Objects,
        selection: Selection,
        owner: Option<OwnerRef>,
        common: Arc<CommonMetadata>,
        core: Arc<dyn RunHandle>,
    ) -> Self {
        let (name, change) = (secret_name(&selection.app), "patch");
        let store = SecretStore { objects, name, selection, owner, common, change };
        Self { store, core, state: Mutex::default() }
    }

    /// Stores these values and holds them.
    fn hold(&self, values: &BTreeSet<String>) -> Result<BTreeMap<String, Arc<str>>, StoreError> {
        let mut state = lock(&self.state);
        if state.seen.is_none() {
            self.read(&mut state)?;
        }
        let new: BTreeMap<&String, Arc<str>> = values
            .iter()
            .filter(|&value| !state.entries.contains_key(value))
            .map(|value| (value, new_key(&self.store.selection.instance, random_bits())))
            .collect();
        self.check_size(&state, &new)?;
        let is_whole = state.seen.as_ref().is_some_and(|seen| seen.missing.is_empty());
        if !new.is_empty() || !is_whole {
            self.write(&mut state, &new)?;
        }
        state.n_stores += 1;
        let n_stores = state.n_stores;
        for (value, key) in new {
            state.entries.insert(value.clone(), Entry { key, n_held: 0, last_store: 0 });
        }
        let held = values.iter().filter_map(|value| {
            let entry = state.entries.get_mut(value)?;
            entry.n_held += 1;
            entry.last_store = n_stores;
            Some((value.clone(), Arc::clone(&entry.key)))
        });
        Ok(held.collect())
    }

    fn release(&self, values: &BTreeSet<String>) {
        let mut state = lock(&self.state);
        for value in values {
            if let Some(entry) = state.entries.get_mut(value) {
                entry.n_held = entry.n_held.saturating_sub(1);
            }
        }
    }

    fn check_size(
        &self,
        state: &State,
        new: &BTreeMap<&String, Arc<str>>,
    ) -> Result<(), StoreError> {
        let of_others = state.seen.as_ref().map_or(0, |seen| seen.n_other_bytes);
        let before = state.entries.iter().map(|(value, entry)| n_bytes(&entry.key, value));
        let added = new.iter().map(|(value, key)| n_bytes(key, value));
        let total = of_others + before.chain(added).sum::<usize>();
        if new.is_empty() || total <= TASK_SECRET_BYTES_MAX {
            return Ok(());
        }
        Err(StoreError::Refused(format!(
            "secret {} would have {total} bytes, and the maximum is {TASK_SECRET_BYTES_MAX}: wait until tasks \
             have succeeded, whose values then go within {} s, or give several tasks the same value, which is \
             stored once",
            self.store.name,
            SWEEP_INTERVAL.as_secs()
        )))
    }

    /// Reads what is there of this instance: an earlier process may have written it.
    fn read(&self, state: &mut State) -> Result<(), StoreError> {
        let found = self.store.read().map_err(failure)?;
        let mut seen = Seen::default();
        let mut values = BTreeMap::new();
        if let Some(found) = found {
            let stored = stored(&found, &self.store.selection);
            seen.n_other_bytes = stored.n_other_bytes;
            seen.uid = found["metadata"]["uid"].as_str().map(str::to_owned);
            seen.owner_patch = self.owner_patch(&found);
            values = stored.values;
        }
        seen.missing = state
            .entries
            .values()
            .map(|entry| Arc::clone(&entry.key))
            .filter(|key| !values.contains_key(key))
            .collect();
        for (key, value) in values {
            state.entries.entry(value).or_insert(Entry { key, n_held: 0, last_store: 0 });
        }
        state.seen = Some(seen);
        Ok(())
    }

    /// The Secret goes with the last of its owners, so the driver's pod must be one.
    fn owner_patch(&self, found: &Value) -> Option<Value> {
        let owner = self.store.owner.as_ref()?;
        let metadata = &found["metadata"];
        let mut owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        if owners.iter().any(|one| one["uid"] == owner.uid.as_str()) {
            return None;
        }
        owners.push(json!(owner));
        let version = &metadata["resourceVersion"];
        Some(json!({"ownerReferences": owners, "resourceVersion": version}))
    }

    /// Adds these values, and those that somebody has removed.
    fn write(
        &self,
        state: &mut State,
        new: &BTreeMap<&String, Arc<str>>,
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES_MAX {
            if state.seen.is_none() {
                self.read(state)?;
            }
            // If a write fails, nobody knows what is there.
            let Some(seen) = state.seen.take() else { continue };
            let known = state.entries.iter().map(|(value, entry)| (&entry.key, value));
            let lost = known.filter(|(key, _)| seen.uid.is_none() || seen.missing.contains(key));
            let added = new.iter().map(|(value, key)| (key, *value));
            let data = data(added.chain(lost).map(|(key, value)| (key, Some(value.as_str()))));
            let written = match &seen.uid {
                Some(uid) => {
                    let mut metadata = seen.owner_patch.unwrap_or_else(|| json!({}));
                    metadata["uid"] = json!(uid);
                    let patch = json!({"metadata": metadata, "data": data});
                    self.patch(&patch).map(|()| uid.clone())
                }
                None => {
                    let created = self.store.objects.create(Kind::Secret, &self.object(data));
                    created.map(|meta| meta.uid)
                }
            };
            match written {
                Ok(uid) => {
                    let n_other_bytes = seen.n_other_bytes;
                    state.seen = Some(Seen { uid: Some(uid), n_other_bytes, ..Seen::default() });
                    return Ok(());
                }
                // Another process has created, changed or deleted it meanwhile.
                Err(refusal) if refusal.is_outdated() => {
                    debug!("secret {} has changed: {refusal}", self.store.name);
                }
                Err(refusal) => return Err(failure(self.store.describe(&refusal))),
            }
        }
        let why = format!("secret {} is changed by others all the time", self.store.name);
        Err(StoreError::Unavailable(why))
    }

    fn object(&self, data: Value) -> Value {
        let SecretStore { name, selection, owner, common, .. } = &self.store;
        let none = CredentialFiles::new();
        let mut object = secret(name, selection, owner.as_ref(), common, &none, None);
        object["data"] = data;
        object
    }

    /// Removes the values that no task needs.
    fn sweep(&self) {
        // Before the first LIST is applied, tasks of an earlier process are not known.
        if !self.core.is_ready() {
            return;
        }
        let n_stores = {
            let mut state = lock(&self.state);
            // An earlier process may have stored what no task needs any more, and others may have removed what one needs.
            if !state.entries.is_empty() || (state.seen.is_none() && !state.is_refused) {
                let found = self.read(&mut state);
                state.is_refused = matches!(found, Err(StoreError::Refused(_)));
            }
            if state.entries.is_empty() {
                return;
            }
            state.n_stores
        };
        let Ok(Reply::TaskSecretKeys(needed)) = self.core.ask(Command::TaskSecretKeys, None) else {
            return;
        };
        let mut state = lock(&self.state);
        // What a call has stored since may belong to a task that the answer does not know.
        let is_needed = |entry: &Entry| {
            entry.n_held > 0 || entry.last_store > n_stores || needed.contains(&entry.key)
        };
        let unused = state.entries.values().filter(|entry| !is_needed(entry));
        let unused: Vec<Arc<str>> = unused.map(|entry| Arc::clone(&entry.key)).collect();
        let removed = if unused.is_empty() { Ok(()) } else { self.remove(unused.iter()) };
        match removed {
            Ok(()) => state.entries.retain(|_, entry| is_needed(entry)),
            Err(refusal) => {
                state.seen = None;
                warn!("secret {} keeps values that no task needs: {refusal}", self.store.name);
            }
        }
        self.restore(&mut state);
    }

    /// Writes anew what others have removed.
    fn restore(&self, state: &mut State) {
        let is_missing = |entry: &Entry| {
            let seen = state.seen.as_ref();
            seen.is_some_and(|seen| seen.uid.is_none() || seen.missing.contains(&entry.key))
        };
        if !state.entries.values().any(is_missing) {
            return;
        }
        let name = &self.store.name;
        match self.write(state, &BTreeMap::new()) {
            Ok(()) => warn!("secret {name} was changed or deleted: it is written anew"),
            Err(StoreError::Refused(why) | StoreError::Unavailable(why)) => {
                warn!("secret {name} was changed or deleted, and cannot be written: {why}");
            }
        }
    }

    fn patch(&self, patch: &Value) -> Result<(), Refusal> {
        self.store.objects.patch(Kind::Secret, &self.store.name, patch)
    }

    fn remove<'a>(&self, keys: impl Iterator<Item = &'a Arc<str>>) -> Result<(), Refusal> {
        let patch = json!({"data": data(keys.map(|key| (key, None)))});
        match self.patch(&patch) {
            Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(()),
            other => other,
        }
    }

    /// Removes all values of this instance, and the Secret if it has no others and no other owner.
    fn remove_all(&self) -> Result<(), Refusal> {
        let SecretStore { objects, name, selection, owner, .. } = &self.store;
        let Some(found) = objects.get(Kind::Secret, name)? else { return Ok(()) };
        if !is_ours(&found, &selection.app) {
            return Ok(());
        }
        let stored = stored(&found, selection);
        let metadata = &found["metadata"];
        let is_own =
            |one: &Value| owner.as_ref().is_some_and(|owner| one["uid"] == owner.uid.as_str());
        let owners = metadata["ownerReferences"].as_array();
        let has_other_owner = owners.is_some_and(|all| !all.iter().all(is_own));
        if !stored.has_others && !has_other_owner {
            let text = |field: &str| metadata[field].as_str().unwrap_or_default();
            let (uid, version) = (text("uid"), text("resourceVersion"));
            let deleted = objects.delete_version(Kind::Secret, name, uid, version);
            // With a role that only changes it, it stays and is empty.
            if !deleted.as_ref().is_err_and(|refusal| refusal.class == RefusalClass::Forbidden) {
                return deleted;
            }
        }
        if stored.values.is_empty() { Ok(()) } else { self.remove(stored.values.keys()) }
    }
}

fn failure(problem: StoreProblem) -> StoreError {
    let StoreProblem { what, may_pass } = problem;
    if may_pass { StoreError::Unavailable(what) } else { StoreError::Refused(what) }
}

impl TaskSecrets {
    /// `is_new`: no earlier process of the instance can have written any values.
    pub fn new(secret: TaskSecret, is_new: bool) -> Self {
        let own = Self { secret: Arc::new(secret), is_new, sweeper: Mutex::default() };
        if !is_new {
            own.start_sweeper();
        }
        own
    }

    /// Starts the thread that removes values, once.
    fn start_sweeper(&self) {
        let mut sweeper = lock(&self.sweeper);
        if sweeper.is_some() {
            return;
        }
        let (stop, stopped) = bounded::<()>(0);
        let secret = Arc::clone(&self.secret);
        let body = move || {
            while stopped.recv_timeout(SWEEP_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                secret.sweep();
            }
        };
        match Worker::start("task-secrets", STACK_BYTES, body) {
            Ok(worker) => *sweeper = Some(Sweeper { stop, worker }),
            Err(error) => debug!("no thread removes values of ended tasks: {error}"),
        }
    }

    /// Ends the thread, and removes the values with the run.
    pub fn stop(&self, release: SecretRelease) {
        let was_used = lock(&self.secret.state).n_stores > 0;
        if let Some(Sweeper { stop, worker }) = lock(&self.sweeper).take() {
            drop(stop);
            // It may still wait for the server, as the next request would.
            let _ended = worker.join_by(Instant::now() + STOP_TIMEOUT);
        }
        match release {
            SecretRelease::Keep => {}
            SecretRelease::Delete if was_used || !self.is_new => match self.secret.remove_all() {
                Ok(()) => {}
                Err(refusal) if was_used => {
                    warn!(
                        "secret {} with values of tasks may remain: {refusal}",
                        self.secret.store.name
                    );
                }
                Err(refusal) => debug!("secret {}: {refusal}", self.secret.store.name),
            },
            SecretRelease::Delete => {}
        }
    }
}

impl Store for TaskSecrets {
    fn store(
        &self,
        tasks: Vec<NewTask>,
        add: &mut dyn FnMut(Vec<Arc<Task>>),
    ) -> Result<(), StoreError> {
        let values: BTreeSet<String> = tasks.iter().flat_map(NewTask::values).cloned().collect();
        let keys = if values.is_empty() {
            BTreeMap::new()
        } else {
            let keys = self.secret.hold(&values)?;
            self.start_sweeper();
            keys
        };
        let key = |value: &str| keys.get(value).cloned();
        add(tasks.into_iter().filter_map(|task| task.with_keys(key)).collect());
        self.secret.release(&values);
        Ok(())
    }
}

impl fmt::Debug for TaskSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSecret").field("name", &self.store.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
