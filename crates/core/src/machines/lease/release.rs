//! What becomes of a Lease that its holder gives up.

/// How the Lease is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRelease {
    /// Delete the Lease, because nothing of the instance remains. Without permission to delete, as
    /// `Keep`.
    Delete,
    /// Clear the holder, but keep the Lease with its high water: pods remain, or its owner pod
    /// deletes it.
    Keep,
}

impl LeaseRelease {
    /// After a start that failed. Nobody has looked for executors, and only the Lease tells which are the instance's.
    pub fn of_failed_start(is_new_instance: bool) -> Self {
        if is_new_instance { Self::Delete } else { Self::Keep }
    }
}
