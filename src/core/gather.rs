//! Owns the gathering of small sets and maps. `collect` would sort what comes first, and each type's
//! own sort is 3 kB of program; this is for a few items, where that gains nothing.

use std::collections::{BTreeMap, BTreeSet};

/// The items as a set.
pub fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}

/// The pairs as a map; of equal keys the last counts.
pub fn map<K: Ord, V>(pairs: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(pairs);
    map
}
