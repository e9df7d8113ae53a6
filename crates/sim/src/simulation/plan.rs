//! The plans that are run: what each step does.

use retrysafe_core::recovery::{BadName, Event, External, Shape, StepName};

use super::store::Row;

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Does {
    /// Local work.
    Writes(Row),
    /// A foreign call.
    Calls,
    /// Local work, with the answer.
    Answers,
}

/// The first foreign call, whose receipt is the answer: the second step of every plan.
pub(super) const CHARGE: usize = 1;

const SHORT: &[(&str, Does)] =
    &[("create", Does::Writes(Row::Create)), ("charge", Does::Calls), ("finish", Does::Answers)];
const LONG: &[(&str, Does)] = &[
    ("create", Does::Writes(Row::Create)),
    ("charge", Does::Calls),
    ("enter", Does::Writes(Row::Enter)),
    ("book", Does::Calls),
    ("finish", Does::Answers),
];

/// A plan, and its shape as the protocol knows it.
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) steps: Vec<(StepName, Does)>,
}

impl Plan {
    /// The plan of a seed: the short one and the long one in their turns, each with every provider and every contract. What a
    /// seed drew before there was a second plan it draws still.
    pub(super) fn of(seed: u64, external: External) -> Self {
        let steps = if (seed / 9).is_multiple_of(2) { LONG } else { SHORT };
        Self::new(steps, external).unwrap_or_else(|_| unreachable!("plain names"))
    }

    fn new(steps: &[(&str, Does)], external: External) -> Result<Self, BadName> {
        let mut plan = Self { shape: Shape::new("rides")?, steps: Vec::new() };
        for (name, does) in steps {
            plan.shape = match does {
                Does::Calls => plan.shape.external(name, external)?,
                Does::Writes(_) | Does::Answers => plan.shape.phase(name)?,
            };
            plan.steps.push((StepName::new(name)?, *does));
        }
        Ok(plan)
    }

    /// Its foreign calls.
    pub(super) fn calls(&self) -> impl Iterator<Item = usize> {
        (0..self.steps.len()).filter(|step| self.does(*step) == Does::Calls)
    }

    /// Whether an entry tells that the first foreign call is about to be made.
    pub(super) fn begins_outside(&self, event: &Event) -> bool {
        matches!(event, Event::Intent { step, .. } if self.steps.get(CHARGE).is_some_and(|(first, _)| first == step))
    }

    pub(super) fn does(&self, step: usize) -> Does {
        self.steps.get(step).map_or(Does::Answers, |(_, does)| *does)
    }
}
