//! The reconciler's watermark, shared with the threads that send LIST requests.

use std::sync::{Mutex, PoisonError};

use posse_core::model::input::Watermark;

/// The newest resourceVersion that the reconciler has applied. A thread reads it before it sends a
/// LIST, so that the reconciler can tell whether the answer is older than its state. Each side holds
/// the lock for a copy of two numbers.
#[derive(Debug, Default)]
pub struct SharedWatermark(Mutex<Watermark>);

impl SharedWatermark {
    /// Written by the reconciler thread only, after each turn.
    pub fn publish(&self, mark: Watermark) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// The latest published watermark.
    pub fn read(&self) -> Watermark {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
