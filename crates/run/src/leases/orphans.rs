//! The thread that deletes orphans: executors of ended runs of the same application. `core` decides
//! which pods and when. The run waits for this thread only briefly at its end.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use log::{info, warn};

use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_core::machines::orphan_cleanup::{CleanupReport, CleanupStep, OrphanCleanup};
use posse_kube::api::orphans::AppExecutors;

/// The state of the orphan cleanup thread.
#[derive(Debug)]
pub struct OrphanCleanupThread {
    pub pods: AppExecutors,
    /// This run's instance, whose pods are never deleted here.
    pub own_instance: String,
    /// No other driver of the application may run.
    pub is_exclusive: bool,
    /// The first message starts the cleanup; closing the channel ends the thread.
    pub start: Receiver<()>,
    pub clock: Clock,
    pub rng: Rng,
}

impl OrphanCleanupThread {
    /// Runs until no orphan can appear any more, or the channel is closed.
    pub fn run(&self) {
        if self.start.recv().is_err() {
            return;
        }
        let mut machine =
            OrphanCleanup::new(&self.own_instance, self.is_exclusive, self.rng.clone());
        while self.start.try_recv() != Err(TryRecvError::Disconnected) {
            let step = machine.next(self.clock.now());
            while let Some(news) = machine.next_report() {
                log_news(&news);
            }
            match step {
                CleanupStep::Delete(pod) => machine.on_deleted(self.pods.delete(&pod)),
                CleanupStep::Done => break,
                CleanupStep::List => {
                    let answer = self.pods.list_others(&self.own_instance);
                    machine.on_listed(answer, self.clock.now());
                }
                CleanupStep::LookUp(owner) => machine.on_owner(self.pods.owner(&owner)),
                CleanupStep::Wait { until } => {
                    let wait = Duration::from_millis(until.since(self.clock.now()));
                    if self.start.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                        break;
                    }
                }
            }
        }
        log::debug!("the orphan cleanup thread ends");
    }
}

fn log_news(news: &CleanupReport) {
    match news {
        CleanupReport::Kept { instance, n, why } => {
            info!("instance {instance} of this application has {n} executors: {why}");
        }
        CleanupReport::Refused { refusal, is_final: true } => warn!(
            "orphaned executors are not deleted, because this is not permitted: {refusal}; \
             `posse cleanup` deletes them, `shutdown.orphans: keep` turns this cleanup off"
        ),
        CleanupReport::Refused { refusal, is_final: false } => {
            warn!("cannot look for orphaned executors, retrying later: {refusal}");
        }
        CleanupReport::Removed { n: 0, .. } => {}
        CleanupReport::Removed { instance, n, why } => {
            info!("deleted {n} orphaned executors of instance {instance}: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crossbeam_channel::bounded;

    use super::*;
    use posse_testing::{Answer, TestServer, plain_client};

    #[test]
    fn the_cleanup_waits_for_the_start_and_ends_with_the_run() {
        let old = r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a-old-exec-1",
            "uid":"u1","labels":{"posse.dev/app":"a","posse.dev/instance":"old"},"ownerReferences":[
            {"kind":"Pod","name":"driver","uid":"o1","controller":true}]},
            "status":{"phase":"Running"}}]}"#;
        // The driver is alive, so the cleanup has nothing to delete and waits to look again.
        let server = TestServer::start(None, move |asked| {
            let json = "Content-Type: application/json\r\n";
            let driver = r#"{"metadata":{"uid":"o1"},"status":{"phase":"Running"}}"#;
            match asked.line().contains("/pods/driver") {
                true => Answer::Reply(200, json, driver.into()),
                false => Answer::Reply(200, json, old.into()),
            }
        });
        let (send, start) = bounded(1);
        let cleanup = OrphanCleanupThread {
            pods: AppExecutors::new(plain_client(server.address), "n", Some("a")),
            own_instance: "new".to_owned(),
            is_exclusive: true,
            start,
            clock: Clock::start(),
            rng: Rng::new(1),
        };
        thread::scope(|scope| {
            let thread = scope.spawn(|| cleanup.run());
            assert_eq!(server.seen().len(), 0, "no request before the start");
            send.send(()).unwrap();
            let list = server.wait();
            assert!(list.line().contains("posse.dev%2Finstance%21%3Dnew"), "{}", list.line());
            assert!(server.wait().line().starts_with("GET /api/v1/namespaces/n/pods/driver"));
            drop(send);
            thread.join().unwrap();
        });
        assert!(!server.seen().iter().any(|asked| asked.line().starts_with("DELETE")));
    }
}
