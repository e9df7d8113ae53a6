//! Chance and order: what makes a run the same whenever its seed is.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    f64::consts::TAU,
    time::Duration,
};

use fastrand::Rng;
use retrysafe_core::retry::Mono;

/// One stream of chance. What is drawn for one purpose does not shift what is drawn for another, so that two cases with
/// one seed meet the same arrivals.
pub(super) struct Chance(Rng);

impl Chance {
    /// The stream number `stream` of a seed.
    pub(super) fn stream(seed: u64, stream: u64) -> Self {
        // Neighbouring seeds must not give neighbouring streams.
        let mut root = Rng::with_seed(seed);
        let (own, spread) = (root.u64(..), root.u64(..) | 1);
        Self(Rng::with_seed(own ^ spread.wrapping_mul(stream.wrapping_add(1))))
    }

    /// Uniform over its whole range: what the engine takes as entropy.
    pub(super) fn entropy(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Whether something of this probability happens.
    pub(super) fn hits(&mut self, probability: f64) -> bool {
        self.0.f64() < probability
    }

    /// The time to the next of events that come independently of each other, `mean` apart.
    pub(super) fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-self.unit().ln())
    }

    /// `|N(mean, deviation)|`.
    pub(super) fn normal(&mut self, mean: Duration, deviation: Duration) -> Duration {
        // Box and Muller's, of which one of two values is used.
        let standard = (-2.0 * self.unit().ln()).sqrt() * (TAU * self.0.f64()).cos();
        Duration::from_secs_f64((mean.as_secs_f64() + deviation.as_secs_f64() * standard).abs())
    }

    /// Above nothing, up to one.
    fn unit(&mut self) -> f64 {
        1.0 - self.0.f64()
    }
}

/// Events to come, in the order of their time; those of one instant in the order in which they were added.
pub(super) struct Agenda<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

struct Entry<E> {
    at: Mono,
    place: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    pub(super) fn add(&mut self, at: Mono, event: E) {
        self.heap.push(Reverse(Entry { at, place: self.added, event }));
        self.added += 1;
    }

    pub(super) fn next(&mut self) -> Option<(Mono, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.place).cmp(&(other.at, other.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order() {
        let mut agenda = Agenda::new();
        let later = Mono::from_nanos(5);
        agenda.add(later, 'b');
        agenda.add(later, 'c');
        agenda.add(Mono::START, 'a');
        let order: Vec<char> = std::iter::from_fn(|| agenda.next()).map(|(_, event)| event).collect();
        assert_eq!(order, ['a', 'b', 'c']);
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let draws = |stream| Chance::stream(7, stream).entropy();
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert_ne!(Chance::stream(8, 1).entropy(), draws(1));
    }

    #[test]
    fn what_is_drawn_has_the_mean_that_was_asked_for() {
        let mut chance = Chance::stream(1, 0);
        let (mean, draws) = (Duration::from_millis(10), 20_000);
        let mut sums = [0.0; 2];
        for _ in 0..draws {
            sums[0] += chance.exponential(mean).as_secs_f64();
            sums[1] += chance.normal(mean, mean / 5).as_secs_f64();
        }
        for sum in sums {
            assert!((sum / f64::from(draws) / mean.as_secs_f64() - 1.0).abs() < 0.03, "{sum}");
        }
    }
}
