//! The thread that deletes orphans: executors of ended runs of the same application. `core` decides
//! which pods and when. The run waits for this thread only briefly at its end.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
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
    /// The first message starts the cleanup, each other one lets it begin again; closing the channel ends the thread.
    pub start: Receiver<()>,
    pub clock: Clock,
    pub rng: Rng,
}

impl OrphanCleanupThread {
    /// Runs until the channel is closed.
    pub fn run(&self) {
        if self.start.recv().is_err() {
            return;
        }
        let mut machine =
            OrphanCleanup::new(&self.own_instance, self.is_exclusive, self.rng.clone());
        loop {
            let step = machine.next(self.clock.now());
            while let Some(news) = machine.next_report() {
                log_news(&news);
            }
            let wait = match step {
                CleanupStep::Delete(pod) => {
                    machine.on_deleted(self.pods.delete(&pod));
                    Duration::ZERO
                }
                CleanupStep::Done => Duration::MAX,
                CleanupStep::List => {
                    let answer = self.pods.list_others(&self.own_instance);
                    machine.on_listed(answer, self.clock.now());
                    Duration::ZERO
                }
                CleanupStep::LookUp(owner) => {
                    machine.on_owner(self.pods.owner(&owner));
                    Duration::ZERO
                }
                CleanupStep::Wait { until } => Duration::from_millis(until.since(self.clock.now())),
            };
            match self.start.recv_timeout(wait) {
                Ok(()) => machine.begin_again(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
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
             `posse cleanup` deletes them"
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

    /// A server with one executor of another instance, whose driver is in this phase or gone.
    fn server(driver: Option<&'static str>) -> TestServer {
        let old = r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a-old-exec-1",
            "uid":"u1","labels":{"posse.dev/app":"a","posse.dev/instance":"old"},"ownerReferences":[
            {"kind":"Pod","name":"driver","uid":"o1","controller":true}]},
            "status":{"phase":"Running"}}]}"#;
        TestServer::start(None, move |asked| {
            let phase = driver.map(|phase| {
                format!(r#"{{"metadata":{{"uid":"o1"}},"status":{{"phase":"{phase}"}}}}"#)
            });
            match (asked.line().contains("/pods/driver"), phase) {
                (true, Some(driver)) => Answer::json(200, driver),
                (true, None) => Answer::json(404, "{}"),
                (false, _) => Answer::json(200, old),
            }
        })
    }

    fn cleanup(server: &TestServer, start: Receiver<()>) -> OrphanCleanupThread {
        OrphanCleanupThread {
            pods: AppExecutors::new(plain_client(server.address), "n", Some("a")),
            own_instance: "new".to_owned(),
            is_exclusive: true,
            start,
            clock: Clock::start(),
            rng: Rng::new(1),
        }
    }

    #[test]
    fn the_cleanup_waits_for_the_start_and_ends_with_the_run() {
        // The driver is alive, so the cleanup has nothing to delete and waits to look again.
        let server = server(Some("Running"));
        let (send, start) = bounded(1);
        let cleanup = cleanup(&server, start);
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

    #[test]
    fn the_cleanup_begins_again_when_it_is_told() {
        let server = server(None);
        let (send, start) = bounded(1);
        let cleanup = cleanup(&server, start);
        thread::scope(|scope| {
            let thread = scope.spawn(|| cleanup.run());
            for _ in 0..2 {
                // The next round is half a minute away.
                send.send(()).unwrap();
                while !server.wait().line().starts_with("GET /api/v1/namespaces/n/pods?") {}
            }
            drop(send);
            thread.join().unwrap();
        });
    }
}
