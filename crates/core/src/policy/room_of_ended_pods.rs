//! What ended pods that stay as records hold of the room that a group waits for, a quota's or that of nodes, by the words
//! of those who refuse it: no field tells it.

/// Which records hold what is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holders {
    /// Those in whose pods containers run on: what runs counts.
    RunningOn,
    /// Those whose slots have claims that go with them.
    Claims,
    /// All of them: the objects count, also those that have ended.
    All,
}

impl Holders {
    /// A quota refused a pod: `exceeded quota: NAME, requested: RESOURCE=N,..., used: ..., limited: ...`. A quota on
    /// `count/pods` counts ended pods, and one on claims those that ended pods own. The refusal of a slot's claim
    /// begins with its name.
    pub fn of_quota(message: &str) -> Self {
        if message.starts_with("claim ") {
            return Self::Claims;
        }
        let requested = message.split_once("requested: ").map_or("", |(_, rest)| rest);
        let requested = requested.split_once(", used: ").map_or(requested, |(names, _)| names);
        let mut names = requested.split(',').map(|one| one.split('=').next().unwrap_or_default());
        let is_of_objects = |name: &str| {
            name == "count/pods"
                || name.ends_with("persistentvolumeclaims")
                || (name.ends_with("requests.storage"))
        };
        if names.any(|name| is_of_objects(name.trim())) { Self::All } else { Self::RunningOn }
    }

    /// The scheduler finds no node. It waits for the claim of an ephemeral volume while a quota refuses it, and such a
    /// claim goes with its pod.
    pub fn of_scheduler(message: &str) -> Self {
        match message.contains("waiting for ephemeral volume controller") {
            true => Self::All,
            false => Self::RunningOn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_pods_hold_what_counts_objects() {
        let quota = |names: &str| {
            format!(
                "pods \"a\" is forbidden: exceeded quota: count/pods, requested: {names}, used: count/pods=3, \
                 limited: count/pods=3"
            )
        };
        for (names, want) in [
            ("count/pods=1", Holders::All),
            ("pods=1", Holders::RunningOn),
            ("pods=1,count/pods=1", Holders::All),
            ("limits.memory=1Gi,requests.cpu=500m", Holders::RunningOn),
            ("requests.ephemeral-storage=1Gi", Holders::RunningOn),
            ("persistentvolumeclaims=1", Holders::All),
            ("count/persistentvolumeclaims=1", Holders::All),
            ("requests.storage=1Gi", Holders::All),
            ("gold.storageclass.storage.k8s.io/requests.storage=1Gi", Holders::All),
            ("gold.storageclass.storage.k8s.io/persistentvolumeclaims=1", Holders::All),
        ] {
            assert_eq!(Holders::of_quota(&quota(names)), want, "{names}");
        }
        assert_eq!(Holders::of_quota("the team has no room"), Holders::RunningOn);
        let of_slot = format!("claim app-x-data-2: {}", quota("persistentvolumeclaims=1"));
        assert_eq!(Holders::of_quota(&of_slot), Holders::Claims);
        for (message, want) in [
            (
                "0/3 nodes are available: waiting for ephemeral volume controller to create the \
                 persistentvolumeclaim \"a-scratch\".",
                Holders::All,
            ),
            ("0/3 nodes are available: 3 Insufficient cpu.", Holders::RunningOn),
        ] {
            assert_eq!(Holders::of_scheduler(message), want, "{message}");
        }
    }
}
