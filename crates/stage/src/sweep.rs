//! The thread that drops bundles which are no longer needed. In each round it asks the API server
//! once per namespace which applications have pods; `core::policy::bundle_expiry` decides what to
//! drop.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::certificate::ServerCertificate;
use crate::store::{Bundle, Store};
use posse_core::model::refusal::RefusalClass;
use posse_core::policy::bundle_expiry::{BundleFacts, BundleOwner, BundleTimeouts, judge};
use posse_kube::api::objects::apps_with_pods;
use posse_kube::http::Http;

/// Rounds in the shortest time limit of a bundle, so that bundles are dropped soon after it.
const ROUNDS: u32 = 4;
const ROUND_MIN: Duration = Duration::from_millis(200);
const ROUND_MAX: Duration = Duration::from_secs(60);

/// Stack size of the thread.
const STACK_BYTES: usize = 256 << 10;

/// The running thread. Dropping it stops the thread.
#[derive(Debug)]
pub(super) struct Sweeper {
    /// Nothing is sent: dropping the sender stops the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts the thread. Without `http`, pods are not considered.
    pub(super) fn start(
        store: Arc<Store>,
        http: Option<Http>,
        patience: BundleTimeouts,
        certificate: Option<Arc<ServerCertificate>>,
    ) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        let sweep = Sweep { store, http, patience, apps: Vec::new() };
        let builder = thread::Builder::new().name("stage-sweep".to_owned());
        let thread = builder
            .stack_size(STACK_BYTES)
            .spawn(move || sweep.run(&stopped, certificate.as_deref()))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the stage server's sweep thread panicked");
        }
    }
}

/// An application that has bundles.
#[derive(Debug)]
struct App {
    namespace: String,
    name: String,
    /// Since when it has had no pod. `None` if it has one.
    absent_since: Option<Instant>,
    /// A pod of it was seen in an earlier round.
    was_seen: bool,
}

struct Sweep {
    store: Arc<Store>,
    http: Option<Http>,
    patience: BundleTimeouts,
    apps: Vec<App>,
}

impl Sweep {
    fn run(mut self, stopped: &Receiver<()>, certificate: Option<&ServerCertificate>) {
        let shortest = self.patience.idle_ms.min(self.patience.gone_ms);
        let round = (Duration::from_millis(shortest) / ROUNDS).clamp(ROUND_MIN, ROUND_MAX);
        while stopped.recv_timeout(round) == Err(RecvTimeoutError::Timeout) {
            if let Some(certificate) = certificate {
                certificate.refresh();
            }
            self.round();
        }
    }

    fn round(&mut self) {
        let bundles = self.store.bundles();
        let mut namespaces: Vec<&str> = Vec::new();
        for bundle in &bundles {
            if !namespaces.contains(&bundle.label.namespace.as_str()) {
                namespaces.push(&bundle.label.namespace);
            }
        }
        for namespace in namespaces {
            let apps = self.apps_with_pods(namespace);
            let of_namespace = bundles.iter().filter(|bundle| bundle.label.namespace == namespace);
            of_namespace.for_each(|bundle| self.check_bundle(bundle, apps.as_ref()));
        }
        self.apps.retain(|app| bundles.iter().any(|bundle| app.owns(bundle)));
    }

    /// The applications with pods in a namespace. If they cannot be listed, the owner state that
    /// all bundles of the namespace get.
    fn apps_with_pods(&self, namespace: &str) -> Result<BTreeSet<String>, BundleOwner> {
        let Some(http) = &self.http else { return Err(BundleOwner::Unwatched) };
        apps_with_pods(http, namespace).map_err(|refusal| {
            if refusal.class == RefusalClass::Forbidden {
                log::warn!(
                    "not permitted to list pods in {namespace}, dropping bundles only when \
                     they are unused: {refusal}"
                );
                return BundleOwner::Unwatched;
            }
            log::warn!("cannot list pods in {namespace}, keeping its bundles: {refusal}");
            BundleOwner::Unknown
        })
    }

    fn check_bundle(&mut self, bundle: &Bundle, apps: Result<&BTreeSet<String>, &BundleOwner>) {
        let owner = match apps {
            Ok(apps) => self.owner_state(bundle, apps.contains(&bundle.label.owner)),
            Err(owner) => *owner,
        };
        let (unused_ms, was_fetched) = self.store.use_of(bundle);
        let Some(cause) = judge(BundleFacts { owner, unused_ms, was_fetched }, self.patience)
        else {
            return;
        };
        log::info!("dropping bundle {} ({}): {cause}", bundle.id, bundle.label.file);
        if let Err(error) = self.store.remove(bundle) {
            log::warn!("cannot remove the file of bundle {}: {error}", bundle.id);
        }
    }

    /// Updates and returns what is known about the owner of a bundle.
    fn owner_state(&mut self, bundle: &Bundle, has_pods: bool) -> BundleOwner {
        let found = self.apps.iter().position(|app| app.owns(bundle));
        let i = found.unwrap_or(self.apps.len());
        if found.is_none() {
            self.apps.push(App {
                namespace: bundle.label.namespace.clone(),
                name: bundle.label.owner.clone(),
                absent_since: None,
                was_seen: false,
            });
        }
        let app = &mut self.apps[i];
        if has_pods {
            app.was_seen = true;
            app.absent_since = None;
            return BundleOwner::Present;
        }
        let since = app.absent_since.get_or_insert_with(Instant::now).elapsed();
        let for_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        BundleOwner::Absent { for_ms, was_seen: app.was_seen }
    }
}

impl App {
    fn owns(&self, bundle: &Bundle) -> bool {
        self.namespace == bundle.label.namespace && self.name == bundle.label.owner
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::quotas::Quotas;
    use crate::tests::{Prompt, label};
    use posse_testing::Folder;
    use posse_testing::{Answer, TestServer, plain_client};

    /// An API server that gives these answers in order and repeats the last one.
    fn server(answers: &'static [(u16, &'static str)]) -> TestServer {
        let next = AtomicUsize::new(0);
        TestServer::start(None, move |_| {
            let n = next.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
            let (status, body) = answers[n];
            Answer::json(status, body)
        })
    }

    const PODS: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[
        {"metadata":{"labels":{"posse.dev/app":"wordcount"}}}]}"#;
    const NO_PODS: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;
    const FORBIDDEN: &str = r#"{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,
        "message":"pods is forbidden: User cannot list resource pods"}"#;
    const UNAVAILABLE: &str =
        r#"{"kind":"Status","status":"Failure","code":503,"message":"later"}"#;

    fn sweep(folder: &Folder, server: &TestServer, patience: BundleTimeouts) -> Sweep {
        let quotas = Quotas {
            bundle_bytes_max: 1_000,
            namespace_bytes_max: 100_000,
            namespace_bundles_max: 100,
        };
        let store = Arc::new(Store::open(folder.path(), quotas).unwrap());
        let http = Some(plain_client(server.address));
        Sweep { store, http, patience, apps: Vec::new() }
    }

    fn add(sweep: &Sweep, namespace: &str) {
        let incoming =
            sweep.store.begin(label(namespace, b"hello", "s"), Arc::new(Prompt)).unwrap();
        incoming.store(&mut Cursor::new(b"hello")).unwrap();
    }

    const AT_ONCE: BundleTimeouts = BundleTimeouts { idle_ms: 0, gone_ms: 0 };

    #[test]
    fn each_round_lists_the_pods_of_a_namespace_once() {
        let (folder, server) = (Folder::new(), server(&[(200, PODS)]));
        let mut sweep = sweep(&folder, &server, AT_ONCE);
        (0..5).for_each(|_| ["one", "two"].iter().for_each(|namespace| add(&sweep, namespace)));
        for _ in 0..3 {
            sweep.round();
            let seen = server.seen();
            let lines: Vec<&str> = seen.iter().map(|seen| seen.line()).collect();
            let line = |namespace| {
                format!(
                    "GET /api/v1/namespaces/{namespace}/pods?labelSelector=posse.dev%2Fapp&limit=500 HTTP/1.1"
                )
            };
            assert_eq!(lines, [line("one"), line("two")]);
        }
        assert_eq!(sweep.store.bundles().len(), 10);
    }

    #[test]
    fn bundles_are_dropped_after_the_last_pod_but_not_if_the_list_fails() {
        for (answers, n_left) in [
            (&[(200, PODS), (200, NO_PODS)][..], [1, 0]),
            (&[(200, PODS), (200, PODS)], [1, 1]),
            // No pod was seen and nothing was fetched; with these time limits that is too old at
            // once.
            (&[(200, NO_PODS)], [0, 0]),
            (&[(503, UNAVAILABLE)], [1, 1]),
            (&[(200, PODS), (503, UNAVAILABLE)], [1, 1]),
            // Without permission to list pods, only use counts.
            (&[(200, PODS), (403, FORBIDDEN)], [1, 0]),
            (&[(200, "{}")], [1, 1]),
        ] {
            let (folder, server) = (Folder::new(), server(answers));
            let mut sweep = sweep(&folder, &server, AT_ONCE);
            add(&sweep, "ns");
            let left = [(); 2].map(|()| {
                sweep.round();
                sweep.store.bundles().len()
            });
            assert_eq!(left, n_left, "{answers:?}");
            sweep.round();
            assert!(
                left[1] == 1 || sweep.apps.is_empty(),
                "an application without bundles must be forgotten"
            );
        }
    }

    #[test]
    fn bundles_stay_while_a_driver_is_retried() {
        let answers = &[(200, PODS), (200, NO_PODS), (200, PODS), (200, NO_PODS)];
        let (folder, server) = (Folder::new(), server(answers));
        let patience = BundleTimeouts { idle_ms: 0, gone_ms: 60_000 };
        let mut sweep = sweep(&folder, &server, patience);
        add(&sweep, "ns");
        for _ in 0..6 {
            sweep.round();
            assert_eq!(sweep.store.bundles().len(), 1);
        }
    }
}
