//! What the followers of drivers and logs report.

/// A report about a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowEvent {
    /// A change of its state, as a line of text.
    Line(String),
    /// Bytes of its log.
    Log(Vec<u8>),
}

/// Receives the reports. Returns false if it wants no more of them.
pub type Listener<'a> = &'a (dyn Fn(FollowEvent) -> bool + Sync);
