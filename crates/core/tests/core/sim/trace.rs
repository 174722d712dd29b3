//! The last steps of a run, printed with a failure.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use posse_core::model::input::{Input, PodEvent};

use super::cluster::is_over;

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

/// An input as one line.
pub fn short(input: &Input) -> String {
    let pod = |pod: &posse_core::model::pod::Pod| {
        let version = pod.version.map_or(0, |version| version.0);
        let over = if is_over(pod) { " over" } else { "" };
        format!("{}:{}@{version}{over}", pod.id, pod.uid)
    };
    match input {
        Input::Watch { epoch, events } => {
            let words: Vec<String> = events
                .iter()
                .map(|event| match event {
                    PodEvent::Applied(p) => format!("+{}", pod(p)),
                    PodEvent::Deleted(p) => format!("-{}", pod(p)),
                    PodEvent::Bookmark(version) => format!("={version}"),
                })
                .collect();
            format!("watch e{epoch} {}", words.join(" "))
        }
        Input::List(list) => {
            let pods: Vec<String> = list.pods.iter().map(pod).collect();
            format!(
                "list {:?} @{:?} {:?} {}",
                list.source,
                list.version,
                list.watermark,
                pods.join(" ")
            )
        }
        other => format!("{other:?}"),
    }
}
