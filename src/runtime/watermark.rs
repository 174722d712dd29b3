//! The reconciler's watermark, shared with the threads that send LIST requests.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::core::model::ids::Version;
use crate::core::model::input::Watermark;

/// The newest resourceVersion that the reconciler has applied. A thread reads it before it sends a
/// LIST, so that the reconciler can tell whether the answer is older than its state.
#[derive(Debug, Default)]
pub struct SharedWatermark {
    epoch: AtomicU32,
    position: AtomicU64,
}

impl SharedWatermark {
    /// Written by the reconciler thread only, after each turn.
    pub fn publish(&self, mark: Watermark) {
        // A reader between these two stores sees the old epoch (answers of that epoch are discarded)
        // or the new epoch without a position, but never a position of another epoch.
        if self.epoch.load(Ordering::Acquire) != mark.epoch {
            self.position.store(0, Ordering::Release);
            self.epoch.store(mark.epoch, Ordering::Release);
        }
        self.position.store(mark.position.map_or(0, |version| version.0), Ordering::Release);
    }

    /// The latest published watermark.
    pub fn read(&self) -> Watermark {
        let epoch = self.epoch.load(Ordering::Acquire);
        let position = self.position.load(Ordering::Acquire);
        if self.epoch.load(Ordering::Acquire) != epoch {
            return Watermark { epoch, position: None };
        }
        Watermark { epoch, position: (position > 0).then_some(Version(position)) }
    }
}
