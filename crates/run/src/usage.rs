//! What executors use, for the page. Nobody else asks, so the server is asked only while somebody looks.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use log::debug;

use posse_base::sync::lock;
use posse_core::model::refusal::RefusalClass;
use posse_kube::api::pods::Pods;
use posse_wire::k8s::usage::PodUsage;

/// The metrics server measures this often.
const PAUSE: Duration = Duration::from_secs(15);
/// Who has no metrics API, or may not read it, will hardly have it soon.
const PAUSE_WITHOUT: Duration = Duration::from_secs(300);

/// What the metrics API said last.
#[derive(Debug)]
pub struct Usage {
    pods: Pods,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    usage: Vec<PodUsage>,
    next_at: Option<Instant>,
}

impl Usage {
    pub fn new(pods: Pods) -> Self {
        Self { pods, last: Mutex::default() }
    }
}

impl posse_control::Usage for Usage {
    fn read(&self) -> Vec<PodUsage> {
        let mut last = lock(&self.last);
        if last.next_at.is_some_and(|at| Instant::now() < at) {
            return last.usage.clone();
        }
        // Who asks meanwhile gets the last answer.
        last.next_at = Some(Instant::now() + PAUSE);
        drop(last);
        let found = self.pods.usage();
        let mut last = lock(&self.last);
        last.usage = found.unwrap_or_else(|refusal| {
            debug!("the metrics API does not tell what executors use: {refusal}");
            if matches!(refusal.class, RefusalClass::NotFound | RefusalClass::Forbidden) {
                last.next_at = Some(Instant::now() + PAUSE_WITHOUT);
            }
            Vec::new()
        });
        last.usage.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use posse_control::Usage as _;
    use posse_testing::{Answer, TestServer, plain_client};
    use posse_wire::k8s::labels::Selection;

    #[test]
    fn the_metrics_api_is_asked_now_and_then_and_may_be_missing() {
        for (status, body, want) in [
            (
                200,
                r#"{"items":[{"metadata":{"name":"w-1-exec-3"},"containers":[{"usage":{"cpu":"2","memory":"1Ki"}}]}]}"#,
                vec![("w-1-exec-3".to_owned(), 2_000, 1_024)],
            ),
            (404, "404 page not found", vec![]),
            (403, "{}", vec![]),
        ] {
            let asked = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&asked);
            let server = TestServer::start(None, move |seen| {
                let path = "GET /apis/metrics.k8s.io/v1beta1/namespaces/n/pods?labelSelector=";
                assert!(seen.head.starts_with(path), "{}", seen.head);
                count.fetch_add(1, Ordering::SeqCst);
                Answer::json(status, body)
            });
            let selection = Selection { app: "w".to_owned(), instance: "1".to_owned() };
            let usage = Usage::new(Pods::new(plain_client(server.address), "n", selection));
            for _ in 0..2 {
                let found = usage.read().into_iter();
                let found = found.map(|one| (one.pod, one.cpu_milli, one.memory_bytes));
                assert_eq!(found.collect::<Vec<_>>(), want, "{status}");
            }
            assert_eq!(asked.load(Ordering::SeqCst), 1, "{status}");
        }
    }
}
