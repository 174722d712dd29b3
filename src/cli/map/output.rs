//! What the lines of `posse map` have written.

use std::io::{self, Write as _};
use std::sync::atomic::AtomicBool;

use crate::core::model::text::printable;
use crate::kube::api::objects::Objects;
use crate::submit::listener::FollowEvent;
use crate::submit::logs::LogFollower;

/// Prints what the executor of a line has written, each line with the number in front.
pub(super) fn print_output(line: u64, pod: String, objects: &Objects) {
    let print = |event: FollowEvent| {
        let FollowEvent::Log(bytes) = event else { return true };
        let text = String::from_utf8_lossy(&bytes);
        let mut out = io::stdout().lock();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        write!(out, "[{line}] {}{end}", printable(&text)).and_then(|()| out.flush()).is_ok()
    };
    let objects = objects.clone();
    let is_ended = &AtomicBool::new(false);
    LogFollower { objects, listener: &print, tail: None, is_ended }.read_once(&pod);
}
