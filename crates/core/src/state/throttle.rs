//! The throttles of a group: one for its template, and one for each other shape of its tasks. What one shape cannot
//! do slows down that shape alone.

use std::collections::BTreeMap;

use crate::model::ids::ExecutorId;
use crate::model::task::Shape;
use crate::state::counts::Counts;
use crate::state::create_backoff::CreateBackoff;
use crate::state::node_blame::Places;
use crate::state::start_problems::StartProblems;
use posse_base::time::Millis;

/// The most shapes of a group that have a throttle of their own. The tasks of further ones share that of the
/// template.
pub const SHAPES_MAX: usize = 256;
/// What is known about the starts of one shape.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    pub backoff: CreateBackoff,
    /// Create requests in flight.
    n_in_flight: u32,
    pub counts: Counts,
    pub problems: StartProblems,
    pub places: Places,
    /// How many pods of the group were accepted when the server first refused one of this shape; none: it has accepted
    /// one since.
    refused_at: Option<u64>,
    /// Open tasks.
    n_tasks: usize,
}

impl Throttle {
    pub fn n_in_flight(&self) -> u32 {
        self.n_in_flight
    }

    /// A create request was sent.
    pub fn on_sent(&mut self) {
        self.n_in_flight += 1;
    }

    /// It was answered. How many were in flight with it.
    pub fn on_answered(&mut self) -> u32 {
        debug_assert!(self.n_in_flight > 0, "an answer without a request");
        let n_in_flight = self.n_in_flight;
        self.n_in_flight = n_in_flight.saturating_sub(1);
        n_in_flight
    }

    /// The server has accepted a create of the shape.
    pub fn on_created(&mut self, id: ExecutorId, sent_at: Millis) {
        self.refused_at = None;
        self.backoff.on_created(id, sent_at);
    }

    /// The server has refused the pod of a task. `n_accepted`: how many pods of the group were accepted so far. True if
    /// it has accepted others since it first refused one of this shape.
    pub fn on_task_refused(&mut self, n_accepted: u64) -> bool {
        *self.refused_at.get_or_insert(n_accepted) < n_accepted
    }

    fn is_used(&self) -> bool {
        self.n_tasks > 0 || self.n_in_flight > 0 || self.counts.n() > 0
    }
}

/// All throttles of a group.
#[derive(Clone, Debug, Default)]
pub struct Throttles {
    template: Throttle,
    others: BTreeMap<Shape, Throttle>,
}

impl Throttles {
    /// The shape by which an executor or a task of this one is throttled.
    pub fn claim(&mut self, shape: Shape) -> Shape {
        if shape == Shape::TEMPLATE || self.others.contains_key(&shape) {
            return shape;
        }
        if self.others.len() == SHAPES_MAX {
            self.others.retain(|_, throttle| throttle.is_used());
        }
        if self.others.len() == SHAPES_MAX {
            return Shape::TEMPLATE;
        }
        self.others.insert(shape, Throttle::default());
        shape
    }

    pub fn of(&self, shape: Shape) -> &Throttle {
        self.others.get(&shape).unwrap_or(&self.template)
    }

    pub fn of_mut(&mut self, shape: Shape) -> &mut Throttle {
        self.others.get_mut(&shape).unwrap_or(&mut self.template)
    }

    /// The create requests in flight of all shapes.
    pub fn n_in_flight(&self) -> u32 {
        self.all().map(|throttle| throttle.n_in_flight).sum()
    }

    /// The throttles that are in use.
    pub fn all(&self) -> impl Iterator<Item = &Throttle> {
        [&self.template].into_iter().chain(self.others.values())
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Throttle> {
        [&mut self.template].into_iter().chain(self.others.values_mut())
    }

    pub fn on_task_open(&mut self, shape: Shape) {
        self.of_mut(shape).n_tasks += 1;
    }

    /// It is over. What was learnt about a shape is forgotten with its last task.
    pub fn on_task_over(&mut self, shape: Shape) {
        let throttle = self.of_mut(shape);
        throttle.n_tasks = throttle.n_tasks.saturating_sub(1);
        if throttle.n_tasks == 0 && shape != Shape::TEMPLATE {
            throttle.backoff = CreateBackoff::default();
            throttle.refused_at = None;
        }
    }

    /// All tasks of the group are over.
    pub fn on_no_tasks(&mut self) {
        for throttle in self.all_mut() {
            throttle.n_tasks = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::task::Task;

    fn shape(i: usize) -> Shape {
        Task { image: Some(format!("i:{i}")), ..Task::default() }.shape()
    }

    #[test]
    fn what_decides_about_the_start_is_the_shape() {
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        let plain = Task::default();
        for (task, is_template) in [
            (Task { args: words(&["1"]), retries: 3, ..plain.clone() }, true),
            (Task { env: [("A".into(), "1".into())].into(), ..plain.clone() }, true),
            (Task { image: Some("i".into()), ..plain.clone() }, false),
            (Task { cpu: Some("1".into()), ..plain.clone() }, false),
            (Task { memory: Some("1".into()), ..plain.clone() }, false),
            (Task { resources: [("gpu".into(), "1".into())].into(), ..plain.clone() }, false),
            (Task { node_selector: [("a".into(), "b".into())].into(), ..plain.clone() }, false),
            (Task { command: words(&["sim"]), ..plain.clone() }, false),
        ] {
            assert_eq!(task.shape() == Shape::TEMPLATE, is_template, "{task:?}");
        }
        let one = Task { command: words(&["sim", "1"]), ..plain.clone() };
        let two = Task { command: words(&["sim", "2"]), ..plain.clone() };
        let other = Task { command: words(&["sum", "1"]), ..plain };
        assert_eq!(one.shape(), two.shape());
        assert_ne!(one.shape(), other.shape());
    }

    #[test]
    fn a_group_has_a_bounded_number_of_throttles() {
        let mut throttles = Throttles::default();
        for i in 0..SHAPES_MAX {
            let claimed = throttles.claim(shape(i));
            assert_eq!(claimed, shape(i));
            throttles.on_task_open(claimed);
        }
        assert_eq!(throttles.claim(shape(SHAPES_MAX)), Shape::TEMPLATE);
        assert_eq!(throttles.claim(shape(7)), shape(7), "it is there");
        throttles.on_task_over(shape(7));
        assert_eq!(throttles.claim(shape(SHAPES_MAX)), shape(SHAPES_MAX), "7 is not used");
        throttles.on_no_tasks();
        assert_eq!(throttles.claim(shape(7)), shape(7));
        assert_eq!(throttles.all().count(), 2);
    }
}
