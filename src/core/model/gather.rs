//! Builds maps.

/// Puts all items into a new collection, one after the other. `collect` sorts the items of a tree first, which
/// takes 4 kB of the image's binary for each kind of iterator, and these are short.
pub fn gather<C: Default + Extend<T>, T>(items: impl IntoIterator<Item = T>) -> C {
    let mut all = C::default();
    all.extend(items);
    all
}
