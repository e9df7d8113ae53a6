//! What an audit found, and its totals.

use std::collections::BTreeMap;

use crate::{
    finding::{Finding, Severity},
    judge::{Judgement, Mechanism, Verdict},
    keys::{Candidate, Standing},
    operation::{Direction, In, Inventory, Operation},
};

/// An audited document.
#[derive(Debug)]
pub struct Report<'a> {
    /// Its operations, and what was not understood.
    pub inventory: Inventory<'a>,
    /// One for each operation, in the same order.
    pub judgements: Vec<Judgement>,
    /// What is wrong, in the order of the rules.
    pub findings: Vec<Finding>,
    /// What looks like a key, of each operation.
    pub seen: Vec<Vec<Seen>>,
}

/// Numbers to compare with: of operations that are called by the API's users.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// All operations.
    pub operations: usize,
    /// Those whose method may change state.
    pub mutating: usize,
    /// The same, by method.
    pub methods: BTreeMap<String, usize>,
    /// Those that declare a key, by where it is.
    pub keyed: BTreeMap<&'static str, usize>,
    /// Parameters and fields that look like a key, by what they are.
    pub candidates: BTreeMap<&'static str, usize>,
    /// Verdicts on those whose method may change state.
    pub verdicts: BTreeMap<&'static str, usize>,
    /// Operations of webhooks and callbacks, which are not in the other numbers.
    pub received: usize,
    /// Deprecated or internal ones, which are.
    pub deprecated: usize,
    /// What was not understood.
    pub unread: usize,
}

/// A parameter or field that looks like a key, and what it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// As the document spells it.
    pub name: String,
    /// What it is.
    pub standing: Standing,
    /// It is a field of the body.
    pub in_body: bool,
    /// It must be sent.
    pub required: bool,
    /// The words that decided.
    pub quote: String,
}

impl Seen {
    pub(crate) fn all(candidates: &[Candidate<'_>]) -> Vec<Self> {
        let seen = |one: &Candidate<'_>| Self {
            name: one.parameter.name.to_owned(),
            standing: one.standing,
            in_body: one.parameter.place_in == In::Body,
            required: one.parameter.required,
            quote: one.quote.clone(),
        };
        candidates.iter().map(seen).collect()
    }
}

impl Report<'_> {
    /// The operations that the API's users call, with their judgements.
    pub fn judged(&self) -> impl Iterator<Item = (usize, &Operation<'_>, &Judgement)> {
        let both = self.inventory.operations.iter().zip(&self.judgements).enumerate();
        both.filter(|(_, (operation, _))| operation.direction == Direction::Path)
            .map(|(number, (operation, judgement))| (number, operation, judgement))
    }

    /// Counts.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { unread: self.inventory.unread.len(), ..Totals::default() };
        totals.received =
            self.inventory.operations.iter().filter(|one| one.direction != Direction::Path).count();
        for (number, operation, judgement) in self.judged() {
            totals.operations += 1;
            totals.deprecated += usize::from(operation.deprecated);
            if !operation.may_change() {
                continue;
            }
            totals.mutating += 1;
            *totals.methods.entry(operation.method.clone()).or_default() += 1;
            *totals.verdicts.entry(judgement.verdict.as_str()).or_default() += 1;
            if matches!(
                judgement.mechanism,
                Mechanism::KeyHeader
                    | Mechanism::KeyQuery
                    | Mechanism::KeyBody
                    | Mechanism::RepeatabilityHeaders
            ) && judgement.verdict != Verdict::NeedsHuman
            {
                *totals.keyed.entry(judgement.mechanism.as_str()).or_default() += 1;
            }
            let mut kinds: Vec<&'static str> = Vec::new();
            for one in self.seen.get(number).into_iter().flatten() {
                let kind = match (one.standing, one.in_body) {
                    (Standing::Key, false) => "key",
                    (Standing::Key, true) => "key in the body",
                    (Standing::Ambiguous, false) => "ambiguous",
                    (Standing::Ambiguous, true) => "ambiguous in the body",
                    (Standing::Tracing, _) => "tracing",
                    (Standing::RefusesReuse, _) => "refuses reuse",
                    (Standing::Unsupported, _) => "unsupported",
                };
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
            for kind in kinds {
                *totals.candidates.entry(kind).or_default() += 1;
            }
        }
        totals
    }

    /// How many findings are at least this bad.
    pub fn count(&self, worst: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity <= worst).count()
    }
}
