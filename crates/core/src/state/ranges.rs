//! A set of numbers, stored as ranges: a run retires many ids and takes many slots, mostly
//! consecutive ones.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};

/// Half-open ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Inserts `n`. False if it is in the set already.
    pub fn insert(&mut self, n: u64) -> bool {
        if self.contains(n) {
            return false;
        }
        self.insert_all(n..n.saturating_add(1));
        true
    }

    /// Inserts all numbers of a range. Ranges that touch it are merged with it.
    pub fn insert_all(&mut self, numbers: Range<u64>) {
        if numbers.is_empty() {
            return;
        }
        let Range { mut start, mut end } = numbers;
        while let Some((&before, &before_end)) = self.ends.range(..=end).next_back()
            && before_end >= start
        {
            self.ends.remove(&before);
            (start, end) = (start.min(before), end.max(before_end));
        }
        self.ends.insert(start, end);
    }

    /// Removes `n`. False if it is not in the set.
    pub fn remove(&mut self, n: u64) -> bool {
        let range = self.ends.range(..=n).next_back().filter(|&(_, &end)| n < end);
        let Some((&start, &end)) = range else { return false };
        self.ends.remove(&start);
        if start < n {
            self.ends.insert(start, n);
        }
        if n + 1 < end {
            self.ends.insert(n + 1, end);
        }
        true
    }

    pub fn contains(&self, n: u64) -> bool {
        self.ends.range(..=n).next_back().is_some_and(|(_, &end)| n < end)
    }

    /// How many numbers below `limit` are in the set.
    pub fn count_below(&self, limit: u64) -> u64 {
        self.ends.range(..limit).map(|(&start, &end)| end.min(limit) - start).sum()
    }

    /// The ranges, with both ends.
    pub fn iter(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        self.ends.iter().map(|(&start, &end)| start..=end.saturating_sub(1))
    }

    /// The highest number of the set.
    pub fn last(&self) -> Option<u64> {
        self.ends.last_key_value().map(|(_, &end)| end.saturating_sub(1))
    }

    /// The lowest number that is not in the set.
    pub fn first_absent(&self) -> u64 {
        self.ends.get(&0).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_base::rng::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_the_same_numbers_as_a_plain_set() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut set, mut plain) = (Ranges::default(), BTreeSet::new());
            for _ in 0..200 {
                let n = rng.below(120);
                if rng.chance(30) {
                    assert_eq!(set.remove(n), plain.remove(&n), "{seed}");
                } else if rng.chance(10) {
                    let numbers = n..(n + rng.below(9)).min(120);
                    set.insert_all(numbers.clone());
                    plain.extend(numbers);
                } else {
                    assert_eq!(set.insert(n), plain.insert(n), "{seed}");
                }
                for other in 0..125 {
                    assert_eq!(set.contains(other), plain.contains(&other), "{seed}");
                }
                let first = (0..).find(|n| !plain.contains(n));
                assert_eq!(Some(set.first_absent()), first, "{seed}");
            }
            let gaps = (0..120).filter(|i| plain.contains(i) && !plain.contains(&(i + 1))).count();
            assert_eq!(set.ends.len(), gaps, "seed {seed}: adjacent ranges are not merged");
        }
    }

    #[test]
    fn a_far_number_costs_one_range() {
        let mut set = Ranges::default();
        assert!(set.insert(u64::MAX - 1) && set.insert(7) && set.insert(0));
        assert_eq!((set.ends.len(), set.first_absent()), (3, 1));
    }
}
