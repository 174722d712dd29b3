//! The thread that updates volumes of running pods when configmaps, secrets or pods change. It does
//! not create volumes: that happens when a pod starts.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use serde_json::Value;

use super::{VOLUMES, atomic, content, stamp};
use crate::apiserver::api::Api;
use crate::schema::kind::{Key, Kind};
use crate::storage::log_files;
use crate::storage::object::{array_at, text_at};

/// How often all volumes are refreshed: tokens expire without a change of any object.
const FULL_REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// The running thread.
#[derive(Debug)]
pub(crate) struct Refresher {
    thread: JoinHandle<()>,
    stop: Sender<()>,
}

impl Refresher {
    pub(crate) fn start(api: Arc<Api>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let kinds = [Kind::ConfigMap, Kind::Secret, Kind::Pod];
        let [maps, secrets, pods] = kinds.map(|kind| api.subscribe(kind));
        let seen = api.lock().store.version();
        let mut state = RefreshState { api, seen };
        let builder = thread::Builder::new().name("dev-volumes".to_owned());
        let thread = builder.spawn(move || {
            while wait([&maps, &secrets, &pods], &stopped, &mut state) {
                state.handle_changes();
            }
        })?;
        Ok(Self { thread, stop })
    }

    pub(crate) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            log::error!("the embedded node's volume thread panicked");
        }
    }
}

/// Waits for changes. False if the thread has to end.
fn wait(changes: [&Receiver<()>; 3], stopped: &Receiver<()>, state: &mut RefreshState) -> bool {
    let [maps, secrets, pods] = changes;
    select! {
        recv(maps) -> _ => {}
        recv(secrets) -> _ => {}
        recv(pods) -> _ => {}
        recv(stopped) -> _ => return false,
        default(FULL_REFRESH_INTERVAL) => state.seen = 0,
    }
    true
}

#[derive(Debug)]
struct RefreshState {
    api: Arc<Api>,
    /// The store's version up to which changes are handled. 0 refreshes everything.
    seen: u64,
}

impl RefreshState {
    fn handle_changes(&mut self) {
        let pods: Vec<(Key, Value)> = {
            let state = self.api.lock();
            let after = std::mem::replace(&mut self.seen, state.store.version());
            let changed: Option<BTreeSet<Key>> = match state.store.changes_after(after) {
                Ok(changes) if after > 0 => {
                    Some(changes.map(|change| change.now.key.clone()).collect::<BTreeSet<_>>())
                }
                Ok(_) | Err(_) => None,
            };
            let is_affected = |key: &Key, pod: &Value| {
                changed.as_ref().is_none_or(|changed| uses(pod, key, changed))
            };
            let is_source = |key: &Key| matches!(key.kind, Kind::ConfigMap | Kind::Secret);
            let check_all_pods =
                changed.as_ref().is_none_or(|changed| changed.iter().any(is_source));
            let candidates: Vec<_> = match (&changed, check_all_pods) {
                (Some(changed), false) => {
                    changed.iter().filter_map(|key| state.store.get(key).cloned()).collect()
                }
                _ => state.store.objects(Kind::Pod, "").cloned().collect(),
            };
            candidates
                .into_iter()
                .filter(|object| object.key.kind == Kind::Pod && !object.is_terminal())
                .map(|object| (object.key.clone(), object.value()))
                .filter(|(key, pod)| is_affected(key, pod))
                .collect()
        };
        for (key, pod) in pods {
            self.refresh(&key, &pod);
        }
    }

    fn refresh(&self, key: &Key, pod: &Value) {
        let folder = log_files::pod_folder(&self.api.logs, key, text_at(pod, "/metadata/uid"));
        for volume in array_at(pod, "/spec/volumes") {
            let path = folder.join(VOLUMES).join(text_at(volume, "/name"));
            if !path.is_dir() {
                continue;
            }
            let state = self.api.lock();
            let files = content::files(&self.api, &state, pod, volume);
            let stamp = stamp(&state);
            drop(state);
            // If a source was deleted, the volume stays as it was, as with a real kubelet.
            let Some(Ok(files)) = files else { continue };
            if let Err(error) = atomic::write(&path, &files, &stamp) {
                log::debug!("cannot update the volume {}: {error}", path.display());
            }
        }
    }
}

/// True if one of the pod's volumes holds one of these objects.
fn uses(pod: &Value, own: &Key, changed: &BTreeSet<Key>) -> bool {
    let is_changed = |source: &Value| {
        let references = [
            (Kind::ConfigMap, text_at(source, "/configMap/name")),
            (Kind::Secret, text_at(source, "/secret/secretName")),
            (Kind::Secret, text_at(source, "/secret/name")),
        ];
        let was_changed = |(kind, name)| changed.contains(&Key::new(kind, &own.namespace, name));
        references.into_iter().any(was_changed)
            || source.get("downwardAPI").is_some() && changed.contains(own)
    };
    array_at(pod, "/spec/volumes").iter().any(|volume| {
        is_changed(volume) || array_at(volume, "/projected/sources").iter().any(is_changed)
    })
}
