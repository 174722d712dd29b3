//! Lease holders: the identity of this process, and whether another holder on this host has ended.

use std::{fs, io, process};

use posse_core::machines::lease::{HolderState, LeaseIdentity, LeaseTerms};
use posse_process::tree;

/// The identity of this process: the uid of its pod if posse is the pod's PID 1, otherwise this
/// process of this host. If /proc does not tell the host, `nonce` takes its place; then others can
/// recognise the end of this process only by the Lease's expiry.
pub fn identity(pod_uid: Option<&str>, nonce: u64) -> LeaseIdentity {
    let pid = process::id();
    let pod = pod_uid.map(str::to_owned);
    if let (Some(uid), 1) = (&pod, pid) {
        return LeaseIdentity::Pod { uid: uid.clone() };
    }
    let problem = match (host(), start_time(pid)) {
        (Ok(boot_id), Ok(Some(start_time))) => {
            return LeaseIdentity::Process { pod, boot_id, pid, start_time };
        }
        (Err(error), _) | (_, Err(error)) => error.to_string(),
        (Ok(_), Ok(None)) => "no start time".to_owned(),
    };
    log::debug!("cannot identify this host by /proc: {problem}");
    LeaseIdentity::Process { pod, boot_id: format!("{nonce:016x}"), pid, start_time: 0 }
}

/// A holder for people: which process, and where. The uid of a pod stays as it is.
pub fn describe(holder: &str) -> String {
    let Some(LeaseIdentity::Process { pod, boot_id, pid, .. }) = LeaseIdentity::process(holder)
    else {
        return holder.to_owned();
    };
    match (pod, host()) {
        (Some(pod), _) => format!("process {pid} of pod {pod}"),
        (None, Ok(ours)) if ours == boot_id => format!("process {pid} of this host"),
        (None, Ok(_) | Err(_)) => {
            let boot_id = boot_id.split('.').next().unwrap_or_default();
            format!("process {pid} of another host (boot id {boot_id})")
        }
    }
}

/// Why a Lease is lost: another process has it, or it could not be renewed in time.
pub fn loss(holder: Option<&str>, terms: LeaseTerms) -> String {
    match holder {
        Some(holder) => format!("{} holds it", describe(holder)),
        None => format!("the lease was not renewed for {} s", terms.give_up_ms / 1_000),
    }
}

/// Whether a holder is a process of this host that has ended.
pub(super) fn fate(holder: &str) -> HolderState {
    let Some(LeaseIdentity::Process { boot_id, pid, start_time: began, .. }) =
        LeaseIdentity::process(holder)
    else {
        return HolderState::Unknown;
    };
    match host() {
        Ok(ours) if ours == boot_id => {}
        Ok(_) | Err(_) => return HolderState::Unknown,
    }
    match start_time(pid) {
        Ok(Some(now)) if now == began => HolderState::Unknown,
        Ok(_) => HolderState::Gone,
        Err(e) if e.kind() == io::ErrorKind::NotFound => HolderState::Gone,
        Err(_) => HolderState::Unknown,
    }
}

/// The boot id of this host and the PID namespace: process numbers are unique only within both.
fn host() -> io::Result<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    let namespace: String =
        namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{}.{namespace}", boot_id.trim()))
}

/// When a process started, in clock ticks since the boot; `None` for a zombie.
fn start_time(pid: u32) -> io::Result<Option<u64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = tree::fields(&stat).unwrap_or_default();
    let has_ended = matches!(fields.first(), Some(&("Z" | "X")));
    Ok(fields.get(19).filter(|_| !has_ended).and_then(|field| field.parse().ok()))
}

#[cfg(test)]
mod tests {
    use std::process::{self, Command, Stdio};
    use std::thread;

    use posse_testing::{PATIENCE, Wait};

    use super::*;

    #[test]
    fn a_holder_is_named_by_process_and_host() {
        let ours = identity(None, 0).to_string();
        assert_eq!(describe(&ours), format!("process {} of this host", process::id()));
        for (holder, want) in [
            (
                "693ca700-1.4026531836/9302/225081",
                "process 9302 of another host (boot id 693ca700-1)",
            ),
            ("uid/693ca700-1.4026531836/7/225081", "process 7 of pod uid"),
            ("3f2504e0-4f89-41d3", "3f2504e0-4f89-41d3"),
        ] {
            assert_eq!(describe(holder), want);
        }
    }

    #[test]
    fn a_lease_that_nobody_took_was_not_renewed() {
        assert_eq!(loss(None, LeaseTerms::USUAL), "the lease was not renewed for 40 s");
        let other = "3f2504e0-4f89-41d3";
        assert_eq!(loss(Some(other), LeaseTerms::USUAL), format!("{other} holds it"));
    }

    #[test]
    fn a_running_process_differs_from_an_ended_one() {
        let ours = identity(None, 0);
        assert_eq!(fate(&ours.to_string()), HolderState::Unknown);
        let LeaseIdentity::Process { pod: None, boot_id, pid, start_time } = ours else {
            panic!("{ours:?}")
        };
        let process = |boot_id: &str, pid, start_time| {
            let (pod, boot_id) = (Some("uid".to_owned()), boot_id.to_owned());
            LeaseIdentity::Process { pod, boot_id, pid, start_time }
        };
        let before_us = process(&boot_id, pid, start_time - 1);
        assert_eq!(fate(&before_us.to_string()), HolderState::Gone);
        let elsewhere = process(&format!("{boot_id}0"), pid, start_time);
        assert_eq!(fate(&elsewhere.to_string()), HolderState::Unknown);
        assert_eq!(fate("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), HolderState::Unknown);
        let pod = identity(Some("uid"), 0);
        assert_eq!(LeaseIdentity::pod_uid(&pod.to_string()), "uid");

        // An ended process counts as gone, reaped or not.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let began = super::start_time(child.id()).unwrap().unwrap();
        let text = process(&boot_id, child.id(), began).to_string();
        assert_eq!(fate(&text), HolderState::Unknown);
        drop(child.stdin.take());
        let mut wait = Wait::new("the end of the process", PATIENCE);
        while fate(&text) == HolderState::Unknown {
            assert!(wait.goes_on(), "the process did not end");
            thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(fate(&text), HolderState::Gone);
    }
}
