//! Owns a set of executor ids kept as ranges: a long run spends many ids, most of them in a row.

use std::collections::BTreeMap;

use crate::core::model::ids::ExecutorId;

/// Ids as half-open ranges, none of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdSet {
    ranges: BTreeMap<u64, u64>,
}

impl IdSet {
    /// Puts `id` in. Adjacent ranges melt together.
    pub fn insert(&mut self, id: ExecutorId) {
        if self.contains(id) {
            return;
        }
        let mut start = id.0;
        let mut end = id.0.saturating_add(1);
        if let Some((&before, &before_end)) = self.ranges.range(..start).next_back()
            && before_end == start
        {
            self.ranges.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.ranges.remove(&end) {
            end = after_end;
        }
        self.ranges.insert(start, end);
    }

    /// True where `id` was put in.
    #[must_use]
    pub fn contains(&self, id: ExecutorId) -> bool {
        self.ranges.range(..=id.0).next_back().is_some_and(|(_, &end)| id.0 < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn holds_what_a_plain_set_holds() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut set, mut plain) = (IdSet::default(), BTreeSet::new());
            for _ in 0..200 {
                let id = rng.below(120);
                set.insert(ExecutorId(id));
                plain.insert(id);
                for other in 0..125 {
                    assert_eq!(set.contains(ExecutorId(other)), plain.contains(&other), "{seed}");
                }
            }
            let gaps = (0..120).filter(|i| plain.contains(i) && !plain.contains(&(i + 1))).count();
            assert_eq!(set.ranges.len(), gaps, "seed {seed}: ranges that touch have not melted");
        }
    }
}
