//! A set of executor ids, stored as ranges: a long run retires many ids, mostly consecutive ones.

use std::collections::BTreeMap;

use crate::core::model::ids::ExecutorId;

/// Half-open ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdSet {
    ranges: BTreeMap<u64, u64>,
}

impl IdSet {
    /// Inserts `id`. Adjacent ranges are merged.
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
    fn it_holds_the_same_ids_as_a_plain_set() {
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
            assert_eq!(set.ranges.len(), gaps, "seed {seed}: adjacent ranges are not merged");
        }
    }
}
