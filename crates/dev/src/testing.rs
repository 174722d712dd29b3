//! Parts of a cluster for unit tests. `tests/dev/` has the tests of whole clusters.

use super::apiserver::api::Api;
use super::faults::Faults;
use super::storage::State;
use posse_base::clock::Clock;
use posse_base::rng::Rng;

/// An API server without clients.
pub(super) fn api() -> Api {
    Api::new(Clock::start(), Faults::default(), 1, "/nonexistent".into(), "PEM".to_owned())
}

/// An empty state.
pub(super) fn state() -> State {
    State::new(1000, Rng::new(7), "2026-01-01T00:00:00Z".to_owned(), "PEM".to_owned())
}
