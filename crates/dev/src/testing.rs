//! Parts of a cluster for unit tests. `tests/dev/` has the tests of whole clusters.

use super::apiserver::api::Api;
use super::faults::Faults;
use super::storage::DisabledPlugins;
use super::storage::State;
use super::storage::deletion::Collector;
use super::storage::events::Events;
use super::storage::store::Store;
use posse_base::clock::Clock;
use posse_base::rng::Rng;

/// An API server without clients.
pub(super) fn api() -> Api {
    Api::new(Clock::start(), Faults::default(), 1, "/nonexistent".into(), "PEM".to_owned())
}

/// An empty state.
pub(super) fn state() -> State {
    State {
        store: Store::new(1000),
        rng: Rng::new(7),
        now: "2026-01-01T00:00:00Z".to_owned(),
        disabled: DisabledPlugins::default(),
        events: Events::default(),
        collector: Collector::default(),
        has_roles: false,
        authority: "PEM".to_owned(),
    }
}
