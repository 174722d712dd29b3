//! What following a driver reports, and to whom.

/// What is said on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowEvent {
    /// A change of the state, in words.
    Line(String),
    /// Bytes of the driver's log.
    Log(Vec<u8>),
}

/// Where it goes; false once nobody listens any more.
pub type Listener<'a> = &'a (dyn Fn(FollowEvent) -> bool + Sync);
