//! What the caller is to tell and to carry out, in this order: an event is public before the request that follows from
//! it.
//!
//! Always true: nothing is told after the end of the run, because whoever follows the events has ended then.

use std::collections::VecDeque;

use crate::model::action::Action;
use crate::model::event::{Event, RunEvent};

/// The events and actions that were not polled yet, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    events: VecDeque<Event>,
    actions: VecDeque<Action>,
    /// The end of the run was told.
    is_over: bool,
}

impl Outbox {
    pub fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub fn tell(&mut self, event: Event) {
        self.tell_at(self.n_events(), event);
    }

    /// How many events wait: the place of the next one.
    pub fn n_events(&self) -> usize {
        self.events.len()
    }

    /// Tells an event before those that were told since `place` was the next one.
    pub fn tell_at(&mut self, place: usize, event: Event) {
        if !self.is_over {
            self.is_over = is_end(&event);
            self.events.insert(place, event);
        }
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub fn check(&self) {
        let n_before = self.events.len() - usize::from(self.is_over && !self.events.is_empty());
        debug_assert!(
            !self.events.iter().take(n_before).any(is_end),
            "something is told after the end: {:?}",
            self.events
        );
    }
}

fn is_end(event: &Event) -> bool {
    matches!(event, Event::Run(RunEvent::Stopped { .. }))
}
