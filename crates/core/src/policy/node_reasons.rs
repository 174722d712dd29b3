//! Tells which losses an executor's node has caused.

use crate::model::event::LossReason;
use crate::model::pod::Pod;

/// True if the pod's node caused the loss. Shutdowns, drains and preemptions are decisions of
/// others; a bad image or configuration fails on any node.
pub fn is_node_at_fault(reason: LossReason, pod: &Pod) -> bool {
    match reason {
        LossReason::AdmissionRejected | LossReason::NodeLost | LossReason::StartTimeout => true,
        // `status.reason` is "Evicted" after node pressure; the eviction API sets a condition
        // instead.
        LossReason::Evicted => pod.end.as_ref().is_some_and(|end| &*end.pod_reason == "Evicted"),
        LossReason::AppError
        | LossReason::Completed
        | LossReason::ConfigError
        | LossReason::DeadlineExceeded
        | LossReason::DiskExceeded
        | LossReason::Deleted
        | LossReason::Disconnected
        | LossReason::ImageError
        | LossReason::HeartbeatTimeout
        | LossReason::Killed
        | LossReason::MaxAge
        | LossReason::NodeShutdown
        | LossReason::OomKilled
        | LossReason::Preempted
        | LossReason::Unknown => false,
    }
}

/// True if the place says who caused such a loss: one node, if it happens there alone, or else who caused it by its
/// reason. The others are decisions, or a node's fault wherever they happen.
pub fn depends_on_place(reason: LossReason) -> bool {
    match reason {
        LossReason::AppError
        | LossReason::Completed
        | LossReason::ConfigError
        | LossReason::Disconnected
        | LossReason::DiskExceeded
        | LossReason::HeartbeatTimeout
        | LossReason::ImageError
        | LossReason::OomKilled
        | LossReason::StartTimeout
        | LossReason::Unknown => true,
        LossReason::AdmissionRejected
        | LossReason::DeadlineExceeded
        | LossReason::Deleted
        | LossReason::Evicted
        | LossReason::Killed
        | LossReason::MaxAge
        | LossReason::NodeLost
        | LossReason::NodeShutdown
        | LossReason::Preempted => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::End;
    use crate::testing::pod;

    #[test]
    fn only_losses_caused_by_the_node_count_against_it() {
        let mut evicted = pod(1, 1);
        evicted.end = Some(Box::new(End { pod_reason: "Evicted".into(), ..End::default() }));
        let drained = pod(2, 1);
        for (reason, pod, want) in [
            (LossReason::Evicted, &evicted, true),
            (LossReason::Evicted, &drained, false),
            (LossReason::NodeLost, &drained, true),
            (LossReason::AdmissionRejected, &drained, true),
            (LossReason::StartTimeout, &drained, true),
            (LossReason::NodeShutdown, &drained, false),
            (LossReason::ImageError, &drained, false),
            (LossReason::AppError, &drained, false),
        ] {
            assert_eq!(is_node_at_fault(reason, pod), want, "{reason:?}");
        }
    }
}
