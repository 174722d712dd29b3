//! The check of controllers that would take executors for their own, because their selectors match the labels.

use super::Checks;
use super::report::Status;
use posse_kube::api::preflight;
use posse_wire::config::DriverPod;

impl Checks {
    pub(super) fn adopters(&mut self) {
        let driver = self.settings.as_ref().map(|settings| &settings.driver.pod);
        // With `posse submit` the driver's pod is the controller of the executors, and a pod has one alone.
        if driver.is_none_or(|pod| *pod != DriverPod::default()) {
            return;
        }
        let http = &self.connection.http;
        for adopter in preflight::adopters(http, &self.namespace, &self.executors) {
            let message = format!(
                "{adopter} selects executors by their labels: it takes those without a driver's pod for its own, and \
                 deletes what is too many"
            );
            self.report.advise("labels", Status::Warning, message, REMEDY);
        }
    }
}

const REMEDY: &str = "take labels for the template that no controller of the namespace selects";
