//! Work of a group that is done or given up, and whose pods are gone: the indexes, as the pod of another record tells
//! them to a later process.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::state::ranges::Ranges;

/// The indexes of `completions` that have no record of their own any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    completed: Ranges,
    given_up: Ranges,
}

impl Folded {
    pub fn insert(&mut self, index: u32, is_completed: bool) {
        let indexes = if is_completed { &mut self.completed } else { &mut self.given_up };
        indexes.insert(index.into());
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The indexes below `limit`, and whether the work was completed.
    pub fn below(&self, limit: u32) -> impl Iterator<Item = (u32, bool)> {
        let of = move |indexes: &Ranges, is_completed: bool| {
            let below = indexes.iter().flat_map(move |range| {
                *range.start()..=(*range.end()).min(u64::from(limit).saturating_sub(1))
            });
            let below: Vec<(u32, bool)> = below
                .filter_map(|index| Some((u32::try_from(index).ok()?, is_completed)))
                .filter(|(index, _)| *index < limit)
                .collect();
            below
        };
        of(&self.completed, true).into_iter().chain(of(&self.given_up, false))
    }
}

/// `0-3,7;5`: 0 to 3 and 7 are completed, 5 is given up. A Job writes its completed indexes so.
impl fmt::Display for Folded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |indexes: &Ranges| {
            let ranges = indexes.iter().map(|range| match range.start() == range.end() {
                true => range.start().to_string(),
                false => format!("{}-{}", range.start(), range.end()),
            });
            ranges.collect::<Vec<_>>().join(",")
        };
        write!(f, "{}", list(&self.completed))?;
        match list(&self.given_up).as_str() {
            "" => Ok(()),
            given_up => write!(f, ";{given_up}"),
        }
    }
}

/// Anybody can change an annotation: what is no range is left out.
impl FromStr for Folded {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (completed, given_up) = text.split_once(';').unwrap_or((text, ""));
        Ok(Self { completed: read(completed), given_up: read(given_up) })
    }
}

fn read(list: &str) -> Ranges {
    let mut indexes = Ranges::default();
    for range in list.split(',').filter_map(range) {
        indexes.insert_all(*range.start()..range.end().saturating_add(1));
    }
    indexes
}

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_it_was_written() {
        let mut folded = Folded::default();
        assert!(folded.is_empty());
        for (index, is_completed) in [(0, true), (7, true), (1, true), (5, false), (2, true)] {
            folded.insert(index, is_completed);
        }
        assert_eq!(folded.to_string(), "0-2,7;5");
        assert_eq!("0-2,7;5".parse(), Ok(folded.clone()));
        let below: Vec<_> = folded.below(7).collect();
        assert_eq!(below, [(0, true), (1, true), (2, true), (5, false)]);
        assert_eq!(folded.below(0).count(), 0);
    }

    #[test]
    fn what_is_no_index_is_left_out() {
        for (text, want) in [
            ("", ""),
            (";", ""),
            ("a,3,-,5-,9-8,-1", "3"),
            ("0-18446744073709551615", "0-18446744073709551614"),
            ("1;2;3", "1"),
            ("4,4,5-6;1", "4-6;1"),
        ] {
            let folded: Folded = text.parse().expect("it never fails");
            assert_eq!(folded.to_string(), want, "{text}");
            assert!(folded.below(10).count() <= 10);
        }
    }
}
