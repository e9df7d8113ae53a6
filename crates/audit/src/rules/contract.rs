//! X: a contract and a document, compared both ways.

use retrysafe_core::contract::{Carrier, Contract, Endpoint, KeyUse, Unlisted, show};

use super::{Context, Subject, keys};
use crate::{
    bundle::Place,
    effect::Confidence,
    finding::{self as rule, Finding, Severity},
    judge::Verdict,
    operation::In,
    tree::Node,
};

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    let Some(contract) = context.contract else { return Vec::new() };
    let mut found = Vec::new();
    let mut listed = vec![false; context.inventory.operations.len()];
    for endpoint in &contract.endpoints {
        let declared = context.subjects().find(|one| same(context, one, endpoint));
        match declared {
            Some(subject) => {
                listed[subject.number] = true;
                found.extend(compare(context, subject, endpoint));
            }
            None => {
                let place = Place { file: 0, pointer: "/paths".to_owned() };
                let message = format!(
                    "{} is in the contract (line {}) and not in the document",
                    endpoint.name, endpoint.line
                );
                found.push(Finding::new(&rule::X901, Confidence::High, place, message));
            }
        }
    }
    found.extend(unlisted(context, contract, &listed));
    found
}

/// What changes state and is not in the contract.
fn unlisted(context: &Context<'_>, contract: &Contract, listed: &[bool]) -> Vec<Finding> {
    // Where unlisted requests are refused, nothing happens twice; people only wonder why.
    let mildest = match contract.unlisted {
        Unlisted::Pass => Severity::Error,
        Unlisted::Refuse => Severity::Warning,
    };
    let open = context.subjects().filter(|one| {
        one.changes()
            && !listed[one.number]
            && matches!(
                one.judgement.verdict,
                Verdict::Undocumented | Verdict::SafeWithKey | Verdict::KeyRequired
            )
    });
    open.map(|one| {
        let finding = Finding::new(
            &rule::X902,
            one.judgement.confidence,
            one.operation.place().clone(),
            rule::X902.finds,
        );
        finding.milder(mildest).on([one.number])
    })
    .collect()
}

/// The same method, and a path of the same shape; names of parameters do not matter, and a server's path may stand in front.
fn same(context: &Context<'_>, subject: &Subject<'_>, endpoint: &Endpoint) -> bool {
    let wanted = anonymous(&endpoint.path);
    subject.operation.method.eq_ignore_ascii_case(&endpoint.method)
        && context
            .inventory
            .bases
            .iter()
            .any(|base| anonymous(&format!("{base}{}", subject.operation.path)) == wanted)
}

fn anonymous(path: &str) -> String {
    let part = |part: &str| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

fn compare(context: &Context<'_>, subject: Subject<'_>, endpoint: &Endpoint) -> Vec<Finding> {
    let mut found = Vec::new();
    let place = subject.operation.place().clone();
    let mut note = |rule, place: &Place, message: String| {
        found.push(Finding::new(rule, Confidence::High, place.clone(), message).on([subject.number]));
    };
    let key = crate::judge::chosen(subject.candidates);
    let Some(key) = key else {
        if !matches!(endpoint.key, KeyUse::Unsafe { .. }) {
            note(&rule::X903, &place, "the contract takes a key, the document declares none".to_owned());
        }
        return found;
    };
    match (&endpoint.key, key.parameter.required) {
        (KeyUse::Unsafe { .. }, _) => {
            note(
                &rule::X903,
                key.at(),
                "the document declares a key, the contract says that it is unsafe to retry".to_owned(),
            );
            return found;
        }
        (KeyUse::Required, false) => {
            note(&rule::X903, key.at(), "the contract requires the key, the document does not".to_owned());
        }
        (KeyUse::Optional, true) => {
            note(&rule::X903, key.at(), "the document requires the key, the contract does not".to_owned());
        }
        _ => {}
    }
    let agrees = match (&endpoint.carrier, key.parameter.place_in) {
        (Carrier::Header(name), In::Header) => key.parameter.name.eq_ignore_ascii_case(name),
        (Carrier::BodyField(pointer), In::Body) => pointer.trim_start_matches('/') == key.parameter.name,
        _ => false,
    };
    if !agrees {
        let carrier = match &endpoint.carrier {
            Carrier::Header(name) => format!("the header {name}"),
            Carrier::BodyField(pointer) => format!("the field {pointer}"),
        };
        note(
            &rule::X904,
            key.at(),
            format!("the contract's key is {carrier}, the document's is {}", key.parameter.name),
        );
    }
    #[allow(clippy::cast_precision_loss)] // lengths of keys
    let longest = endpoint.key_rules.max_len as f64;
    if let Some(length) =
        key.parameter.shaped("maxLength").and_then(Node::number).filter(|length| *length != longest)
    {
        note(
            &rule::X905,
            key.at(),
            format!("a key has at most {longest} bytes by the contract, {length} by the document"),
        );
    }
    let window = endpoint.windows.replay;
    if let Some(seconds) = keys::window(context, subject, key).filter(|seconds| *seconds != window.as_secs())
    {
        note(
            &rule::X906,
            key.at(),
            format!("the replay window is {} by the contract, {seconds} s by the document", show(window)),
        );
    }
    if !subject.operation.declares(409) {
        note(&rule::X907, &place.step("responses"), "the layer's 409 is not declared".to_owned());
    }
    found
}
