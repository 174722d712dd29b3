//! How groups share what not all of them can have.

/// What each group gets of `limit` in addition to what it holds (`held`): the totals are shared
/// evenly among the groups that want more.
pub fn share_on(limit: u32, held: &[u32], wants: &[u32]) -> Vec<u32> {
    let mut open = share(limit, &totals(held, wants));
    for ((open, held), want) in open.iter_mut().zip(held).zip(wants) {
        *open = open.saturating_sub(*held).min(*want);
    }
    share(limit.saturating_sub(held.iter().sum()), &open)
}

/// Shares `available` evenly among the groups that want some; what cannot be divided goes to the
/// first ones.
pub fn share(available: u32, wants: &[u32]) -> Vec<u32> {
    let mut got = vec![0; wants.len()];
    let mut left = available;
    loop {
        let open = wants.iter().zip(&got).filter(|(want, got)| got < want).count();
        let open = u32::try_from(open).unwrap_or(u32::MAX);
        if open == 0 || left == 0 {
            return got;
        }
        let each = (left / open).max(1);
        for (want, got) in wants.iter().zip(&mut got) {
            let n = (want - *got).min(each).min(left);
            *got += n;
            left -= n;
        }
    }
}

/// How many of those that it holds each group gives up, so that groups with less than their share of `limit` get it.
/// `got`: what each group may have now; `movable`: how many it can give up.
pub fn displaced(
    limit: u32,
    held: &[u32],
    wanted: &[u32],
    got: &[u32],
    movable: &[u32],
) -> Vec<u32> {
    let fair = share(limit, &totals(held, wanted));
    let missing = |i: usize| fair[i].saturating_sub(held[i] + got[i]);
    let mut n_missing: u32 = (0..held.len()).map(missing).sum();
    let mut displaced = vec![0; held.len()];
    for (i, n) in displaced.iter_mut().enumerate() {
        *n = held[i].saturating_sub(fair[i]).min(movable[i]).min(n_missing);
        n_missing -= *n;
    }
    displaced
}

fn totals(held: &[u32], wants: &[u32]) -> Vec<u32> {
    held.iter().zip(wants).map(|(held, want)| held.saturating_add(*want)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spark's "SPARK-36052: test splitSlots".
    #[test]
    fn slots_are_split_evenly_and_the_first_ones_get_the_rest() {
        for (available, want) in
            [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (4, [2, 1, 1])]
        {
            assert_eq!(share(available, &[9, 9, 9]), want);
        }
        for available in 0..3 {
            assert_eq!(share(available, &[9]), [available]);
        }
        assert_eq!(share(10, &[1, 0, 100]), [1, 0, 9]);
        assert_eq!(share(u32::MAX, &[3, 4]), [3, 4]);
    }
}
