//! The `holderIdentity` of a Lease.

use std::fmt;

/// A holder of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseIdentity {
    /// PID 1 of a pod. After a restart of the container it has the same identity.
    Pod { uid: String },
    /// A process of a host: boot id, PID and start time (PIDs are reused), and the uid of its pod,
    /// if it is in one.
    Process { pod: Option<String>, boot_id: String, pid: u32, start_time: u64 },
}

impl LeaseIdentity {
    /// Parses the identity of a process; none if the text is something else.
    pub fn process(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (pod, boot_id, pid, start_time) = match parts.as_slice() {
            [boot_id, pid, start_time] => (None, *boot_id, pid, start_time),
            [pod, boot_id, pid, start_time] => (Some((*pod).to_owned()), *boot_id, pid, start_time),
            _ => return None,
        };
        if boot_id.is_empty() {
            return None;
        }
        Some(Self::Process {
            pod,
            boot_id: boot_id.to_owned(),
            pid: pid.parse().ok()?,
            start_time: start_time.parse().ok()?,
        })
    }

    /// The uid of the holder's pod, if it is in one.
    pub fn pod_uid(text: &str) -> &str {
        text.split('/').next().unwrap_or_default()
    }
}

impl fmt::Display for LeaseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { uid } => f.write_str(uid),
            Self::Process { pod, boot_id, pid, start_time } => {
                let pod = pod.iter().map(|uid| format!("{uid}/")).collect::<String>();
                write!(f, "{pod}{boot_id}/{pid}/{start_time}")
            }
        }
    }
}
