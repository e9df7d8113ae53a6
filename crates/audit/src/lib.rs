//! Which operations of an API are unsafe to retry, judged from its documents and its code.
//!
//! For every operation of an OpenAPI document (2.0 to 3.2) the audit says what it does ([`Effect`]), what would make a retry safe
//! ([`Mechanism`]), whether it is ([`Verdict`]), how sure that is and what in the document says so; then [rules](RULES) look for
//! what is missing or misleading. Everything here is pure: files are read, and reports written, by others.
//!
//! ```
//! use retrysafe_audit::{Bundle, Node, Verdict, audit};
//!
//! let document = Node::parse("
//! openapi: 3.1.0
//! paths:
//!   /orders:
//!     post: {summary: Place an order, responses: {'201': {description: made}}}
//! ")?;
//! let bundle = Bundle::new("openapi.yaml", document);
//! let report = audit(&bundle, None)?;
//! assert_eq!(report.judgements[0].verdict, Verdict::Undocumented);
//! assert_eq!(report.findings[0].rule.id, "A101");
//! # Ok::<(), String>(())
//! ```
//!
//! Limits: it reads what a document says, not what a server does. `idempotent-claimed` is a claim; nothing here verifies it.

#![forbid(unsafe_code)]

mod bundle;
pub mod calm;
pub mod code;
mod effect;
mod finding;
mod judge;
mod keys;
pub mod lines;
mod operation;
pub mod proto;
mod report;
mod rules;
mod tree;
mod words;

pub use bundle::{Bundle, FILES_MAX, Place};
pub use effect::{Confidence, Effect, Evidence};
pub use finding::{Finding, RULES, Rule, Severity, rule};
pub use judge::{Judgement, Mechanism, Verdict};
pub use keys::Standing;
pub use operation::{Direction, Inventory, Operation};
pub use report::{Report, Seen, Totals};
pub use tree::{Map, Node, step};

use retrysafe_core::contract::Contract;

/// Audits a document, and compares it with a contract where there is one.
///
/// # Errors
/// It is no OpenAPI document.
pub fn audit<'a>(bundle: &'a Bundle, contract: Option<&Contract>) -> Result<Report<'a>, String> {
    let inventory = operation::inventory(bundle)?;
    let global = judge::global(&inventory);
    let candidates: Vec<Vec<keys::Candidate<'_>>> =
        inventory.operations.iter().map(keys::candidates).collect();
    let collections = operation::collections(&inventory);
    let judgements: Vec<Judgement> = inventory
        .operations
        .iter()
        .zip(&candidates)
        .map(|(operation, candidates)| {
            judge::judge(operation, candidates, global.as_ref(), collections.contains(operation.path))
        })
        .collect();
    let seen = candidates.iter().map(|all| report::Seen::all(all)).collect();
    let context = rules::Context {
        bundle,
        inventory: &inventory,
        judgements: &judgements,
        candidates: &candidates,
        global: global.as_ref(),
        contract,
    };
    let findings = rules::all(&context);
    drop(candidates);
    Ok(Report { inventory, judgements, findings, seen })
}
