//! The create window follows how long the server takes, above what a scheduler needs.

use posse_base::time::Millis;
use posse_core::state::window::Window;

/// One full window of creates, each answered after so many milliseconds. Gives the window's new size.
fn round(window: &mut Window, times_ms: &[u64]) -> u32 {
    let n = window.available(Millis(0));
    (0..n).for_each(|_| window.on_sent());
    times_ms.iter().cycle().take(n as usize).for_each(|&ms| window.on_created(ms));
    window.available(Millis(0))
}

fn rounds(size_max: u32, times_ms: &[u64], n: u32) -> Vec<u32> {
    let mut window = Window::new(size_max);
    (0..n).map(|_| round(&mut window, times_ms)).collect()
}

#[test]
fn quick_answers_open_twelve_creates_and_slow_ones_all() {
    for (size_max, times_ms, want) in [
        (32, vec![5], [8, 12, 12, 12]),
        (32, vec![39], [8, 12, 12, 12]),
        (32, vec![40], [8, 16, 32, 32]),
        (32, vec![1_000], [8, 16, 32, 32]),
        // A few slow answers do not count: the median does.
        (32, vec![5, 5, 5, 5, 500], [8, 12, 12, 12]),
        (8, vec![5], [8, 8, 8, 8]),
        (1, vec![5], [1, 1, 1, 1]),
    ] {
        assert_eq!(rounds(size_max, &times_ms, 4), want, "{size_max} {times_ms:?}");
    }
}

#[test]
fn the_window_follows_a_server_that_becomes_slow_and_quick_again() {
    let mut window = Window::new(32);
    let sizes = [5, 5, 5, 200, 200, 5].map(|ms| round(&mut window, &[ms]));
    assert_eq!(sizes, [8, 12, 12, 24, 32, 12]);
}
