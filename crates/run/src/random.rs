//! Random bits for names and for the seeds of generators.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// Random bits from the system. They only make runs differ from each other; do not use them for
/// secrets.
pub fn random_bits() -> u64 {
    RandomState::new().build_hasher().finish()
}
