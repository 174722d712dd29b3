//! The checks of `queue`: is the queue there and open, and would Kueue count the executors?

use std::collections::BTreeSet;

use super::Checks;
use super::report::Status;
use posse_core::model::refusal::RefusalClass;
use posse_kube::api::queues;
use posse_wire::k8s::kueue;
use posse_wire::k8s::preflight::Namespace;

impl Checks {
    /// One line for each queue.
    pub(super) fn queues(&mut self, namespace: Option<&Namespace>) {
        let Some(settings) = &self.settings else { return };
        let groups = settings.groups.iter().filter_map(|group| group.pod.queue.clone());
        let names: BTreeSet<String> = groups.chain(settings.queue.clone()).collect();
        for name in names {
            match namespace {
                Some(namespace) => self.queue(namespace, &name),
                None => self.report.add("queue", Status::Unknown, "the namespace was not read"),
            }
        }
    }

    fn queue(&mut self, namespace: &Namespace, name: &str) {
        let found = queues::queue(&self.connection.http, namespace, &self.namespace, name);
        let (local, closed) = match found {
            Ok(found) => found,
            Err(refusal) if refusal.class == RefusalClass::NotFound => {
                let message = format!("{name}: {refusal}");
                return self.report.advise("queue", Status::Warning, message, QUEUE_REMEDY);
            }
            Err(refusal) => {
                return self.report.add("queue", Status::Unknown, format!("{name}: {refusal}"));
            }
        };
        let cluster = &local.cluster_queue;
        if let Some(problem) = local.problem {
            let message = format!("{name}: {problem}");
            return self.report.advise("queue", Status::Warning, message, CLOSED_REMEDY);
        }
        match closed {
            Ok(None) => {
                let message = format!("{name} is open, by ClusterQueue {cluster}");
                self.report.add("queue", Status::Ok, message);
            }
            Ok(Some(problem)) => {
                let message = format!("{name}: ClusterQueue {cluster}: {problem}");
                self.report.advise("queue", Status::Warning, message, CLOSED_REMEDY);
            }
            Err(refusal) => {
                let message = format!("{name} is open; ClusterQueue {cluster}: {refusal}");
                self.report.add("queue", Status::Note, message);
            }
        }
    }

    /// Warns if nobody held the pod of a dry run for its queue. `created`: the server's answer.
    pub(super) fn admission(&mut self, check: &str, queue: &str, created: &[u8]) {
        if !kueue::is_held(created) {
            let message = format!("Kueue does not hold the pods for queue {queue}");
            self.report.advise(check, Status::Warning, message, UNCOUNTED_REMEDY);
        }
    }
}

const QUEUE_REMEDY: &str =
    "create the LocalQueue in this namespace, or correct `queue`; without Kueue remove it";
const CLOSED_REMEDY: &str = "posse waits for the queue; ask who runs it, or name another one";
const UNCOUNTED_REMEDY: &str = "they would run uncounted: let Kueue's configuration have the integration `pod` and \
                                select this namespace";
