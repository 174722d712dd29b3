//! Owns the thread that removes what earlier instances left. Whom, and when, is `core::sweep`'s;
//! nobody waits for it but the end of the run, and that not for long.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use log::{info, warn};

use crate::clock::Clock;
use crate::core::machines::orphan_cleanup::{CleanupReport, CleanupStep, OrphanCleanup};
use crate::core::model::rng::Rng;
use crate::kube::api::orphans::AppExecutors;

/// What the sweeper works with.
#[derive(Debug)]
pub struct Sweeper {
    pub leftovers: AppExecutors,
    /// The instance that is never touched.
    pub ours: String,
    /// The application is this run's alone.
    pub is_exclusive: bool,
    /// Its first message is the start; closed is the end.
    pub go: Receiver<()>,
    pub clock: Clock,
    pub rng: Rng,
}

/// The body of the sweeper's thread; returns when nothing is left to look at, or at the end.
pub fn sweep(sweeper: &Sweeper) {
    if sweeper.go.recv().is_err() {
        return;
    }
    let mut machine = OrphanCleanup::new(&sweeper.ours, sweeper.is_exclusive, sweeper.rng.clone());
    while sweeper.go.try_recv() != Err(TryRecvError::Disconnected) {
        let step = machine.next(sweeper.clock.now());
        while let Some(news) = machine.next_report() {
            tell(&news);
        }
        match step {
            CleanupStep::Delete(pod) => machine.on_deleted(sweeper.leftovers.delete(&pod)),
            CleanupStep::Done => break,
            CleanupStep::List => {
                let answer = sweeper.leftovers.list_others(&sweeper.ours);
                machine.on_listed(answer, sweeper.clock.now());
            }
            CleanupStep::LookUp(owner) => machine.on_owner(sweeper.leftovers.owner(&owner)),
            CleanupStep::Wait { until } => {
                let wait = Duration::from_millis(until.since(sweeper.clock.now()));
                if sweeper.go.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
        }
    }
    log::debug!("the sweeper ends");
}

fn tell(news: &CleanupReport) {
    match news {
        CleanupReport::Kept { instance, n, why } => {
            info!("instance {instance} of this application has {n} executors: {why}");
        }
        CleanupReport::Refused { refusal, is_final: true } => warn!(
            "what earlier instances left is not removed, for we have no right to: {refusal}; \
             `posse cleanup` does it, and shutdown.orphans: keep does without"
        ),
        CleanupReport::Refused { refusal, is_final: false } => {
            warn!("what earlier instances left is looked at again later: {refusal}");
        }
        CleanupReport::Removed { n: 0, .. } => {}
        CleanupReport::Removed { instance, n, why } => {
            info!("removed {n} executors that instance {instance} left: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::kube::testing::{Answer, TestServer, plain_client};

    #[test]
    fn it_waits_for_the_start_and_ends_with_the_run() {
        let old = r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a-old-exec-1",
            "uid":"u1","labels":{"posse.dev/instance":"old"},"ownerReferences":[
            {"kind":"Pod","name":"driver","uid":"o1","controller":true}]},
            "status":{"phase":"Running"}}]}"#;
        let lives = Mutex::new(true);
        let server = TestServer::start(None, move |asked| {
            let json = "Content-Type: application/json\r\n";
            let driver = r#"{"metadata":{"uid":"o1"},"status":{"phase":"Running"}}"#;
            let absent = r#"{"kind":"Status","reason":"NotFound","message":"no","code":404}"#;
            let is_first = std::mem::take(&mut *lives.lock().unwrap());
            match asked.line() {
                line if line.contains("/pods/driver") && is_first => {
                    Answer::Reply(200, json, driver.into())
                }
                line if line.contains("/pods/driver") => Answer::Reply(404, json, absent.into()),
                line if line.starts_with("DELETE") => Answer::Reply(200, json, b"{}".to_vec()),
                _ => Answer::Reply(200, json, old.into()),
            }
        });
        let (send, go) = bounded(1);
        let sweeper = Sweeper {
            leftovers: AppExecutors::new(plain_client(server.address), "n", Some("a")),
            ours: "new".to_owned(),
            is_exclusive: true,
            go,
            clock: Clock::start(),
            rng: Rng::new(1),
        };
        thread::scope(|scope| {
            let thread = scope.spawn(|| sweep(&sweeper));
            assert_eq!(server.seen().len(), 0, "nothing is asked before the start");
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
