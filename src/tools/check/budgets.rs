//! The check of PodDisruptionBudgets: could a node of executors be drained?

use super::Checks;
use super::report::Status;
use posse_kube::api::preflight;

impl Checks {
    pub(super) fn budgets(&mut self) {
        if self.executors.is_empty() {
            return;
        }
        let http = &self.connection.http;
        let closed = match preflight::closed_budgets(http, &self.namespace, &self.executors) {
            Ok(closed) => closed,
            Err(refusal) => {
                return self.report.add("disruption", Status::Unknown, refusal.to_string());
            }
        };
        if closed.is_empty() {
            let message = "no PodDisruptionBudget forbids all evictions of executors";
            return self.report.add("disruption", Status::Ok, message);
        }
        for budget in closed {
            let message = format!(
                "the PodDisruptionBudget {} ({}) lets nobody evict an executor, so a drain of its node never ends",
                budget.name, budget.field
            );
            self.report.advise("disruption", Status::Warning, message, REMEDY);
        }
    }
}

const REMEDY: &str = "use minAvailable with a number: executors have no controller with a scale, which the others ask for";
