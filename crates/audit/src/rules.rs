//! The rules: each looks at a whole document and returns what it found.

mod answers;
mod contract;
mod coverage;
mod keys;
mod methods;
mod retries;
mod shapes;

use retrysafe_core::contract::Contract;

use crate::{
    bundle::Bundle,
    effect::Effect,
    finding::Finding,
    judge::{Global, Judgement, Mechanism},
    keys::Candidate,
    operation::{Direction, Inventory, Operation},
};

/// Everything that rules may look at.
pub(crate) struct Context<'a> {
    pub(crate) bundle: &'a Bundle,
    pub(crate) inventory: &'a Inventory<'a>,
    pub(crate) judgements: &'a [Judgement],
    pub(crate) candidates: &'a [Vec<Candidate<'a>>],
    pub(crate) global: Option<&'a Global>,
    pub(crate) contract: Option<&'a Contract>,
}

/// One operation and what is known about it.
#[derive(Clone, Copy)]
struct Subject<'a> {
    number: usize,
    operation: &'a Operation<'a>,
    judgement: &'a Judgement,
    candidates: &'a [Candidate<'a>],
}

impl<'a> Context<'a> {
    /// The operations that the API's users call.
    fn subjects(&self) -> impl Iterator<Item = Subject<'a>> {
        let all = self.inventory.operations.iter().zip(self.judgements).zip(self.candidates).enumerate();
        all.filter(|(_, ((operation, _), _))| operation.direction == Direction::Path).map(
            |(number, ((operation, judgement), candidates))| Subject {
                number,
                operation,
                judgement,
                candidates,
            },
        )
    }
}

impl<'a> Subject<'a> {
    /// Whether it changes state, as far as the document tells.
    fn changes(self) -> bool {
        self.operation.may_change() && self.judgement.effect != Effect::Read
    }

    /// Its key, where it takes one.
    fn key(self) -> Option<&'a Candidate<'a>> {
        let keyed = matches!(
            self.judgement.mechanism,
            Mechanism::KeyHeader
                | Mechanism::KeyQuery
                | Mechanism::KeyBody
                | Mechanism::RepeatabilityHeaders
                | Mechanism::DeclaredExtension
        );
        crate::judge::chosen(self.candidates).filter(|_| keyed)
    }
}

/// Every finding, in the order of the rules and, within one, of the document.
pub(crate) fn all(context: &Context<'_>) -> Vec<Finding> {
    let families = [
        coverage::find(context),
        keys::find(context),
        answers::find(context),
        retries::find(context),
        methods::find(context),
        shapes::find(context),
        contract::find(context),
    ];
    let mut findings: Vec<Finding> = families.into_iter().flatten().collect();
    findings.sort_by_key(|finding| finding.rule.id);
    findings
}
