//! One answer for all callers who ask the same question at the same time.

use std::sync::{Condvar, Mutex, PoisonError};

use posse_base::sync::lock;

/// The question of the first caller is under way; those who come meanwhile wait for the next answer, which one
/// of them asks for. So each caller's answer is to a question that was asked after its call began.
#[derive(Debug)]
pub(super) struct Shared<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

#[derive(Debug)]
struct State<T> {
    n_asked: u64,
    n_answered: u64,
    last: Option<T>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        let state = State { n_asked: 0, n_answered: 0, last: None };
        Self { state: Mutex::new(state), answered: Condvar::new() }
    }
}

impl<T: Clone> Shared<T> {
    /// The answer to a question that was asked after this call began. `ask` must end.
    pub(super) fn get(&self, ask: impl FnOnce() -> T) -> T {
        let mut state = lock(&self.state);
        let wanted = state.n_asked + 1;
        loop {
            if state.n_answered >= wanted
                && let Some(answer) = &state.last
            {
                return answer.clone();
            }
            if state.n_asked == state.n_answered {
                break;
            }
            state = self.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.n_asked += 1;
        drop(state);
        let answer = ask();
        let mut state = lock(&self.state);
        (state.n_answered, state.last) = (state.n_asked, Some(answer.clone()));
        self.answered.notify_all();
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn those_who_wait_share_an_answer_that_was_asked_for_after_they_came() {
        const WAITING: u64 = 8;
        let shared = Shared::default();
        let n_questions = AtomicU64::new(0);
        let ask = || n_questions.fetch_add(1, Ordering::Relaxed) + 1;
        let (go, gate) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let (begun, is_asking) = mpsc::channel();
            let (shared, ask) = (&shared, &ask);
            let first = scope.spawn(move || {
                shared.get(|| {
                    begun.send(()).unwrap();
                    gate.recv().unwrap();
                    ask()
                })
            });
            is_asking.recv().unwrap();
            let came = AtomicU64::new(0);
            thread::scope(|inner| {
                let others: Vec<_> = (0..WAITING)
                    .map(|_| {
                        inner.spawn(|| {
                            came.fetch_add(1, Ordering::Relaxed);
                            shared.get(ask)
                        })
                    })
                    .collect();
                while came.load(Ordering::Relaxed) < WAITING {
                    thread::yield_now();
                }
                go.send(()).unwrap();
                for other in others {
                    // Never the first answer, whose question was asked before this caller came.
                    assert!(other.join().unwrap() > 1);
                }
            });
            assert_eq!(first.join().unwrap(), 1);
        });
        assert!(n_questions.load(Ordering::Relaxed) <= 1 + WAITING);
        // Alone, each call asks.
        let before = n_questions.load(Ordering::Relaxed);
        assert_eq!((shared.get(ask), shared.get(ask)), (before + 1, before + 2));
    }
}
