//! Owns the last steps of a run, for the one who reads a failure.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
    static KEPT_MAX: Cell<usize> = const { Cell::new(0) };
}

pub fn begin(lines_max: usize) {
    IS_ON.set(true);
    KEPT_MAX.set(lines_max);
    KEPT.take();
}

pub fn end() -> Vec<String> {
    IS_ON.set(false);
    KEPT.take().into()
}

pub fn trace(line: impl FnOnce() -> String) {
    if IS_ON.get() {
        KEPT.with_borrow_mut(|kept| {
            kept.push_back(line());
            if kept.len() > KEPT_MAX.get() {
                kept.pop_front();
            }
        });
    }
}
