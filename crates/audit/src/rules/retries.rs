//! R: retries that a document tells generated clients to make.

use super::{Context, Subject, keys};
use crate::{
    bundle::Found,
    effect::{Confidence, Evidence},
    finding::{self as rule, Finding},
    judge::{Mechanism, Verdict},
    tree::Node,
};

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    let root = context.bundle.root();
    let everywhere = root.get("x-speakeasy-retries");
    let mut found: Vec<Finding> = everywhere.iter().flat_map(bounds).collect();
    for subject in context.subjects() {
        let own = subject.operation.extension("x-speakeasy-retries");
        found.extend(own.iter().flat_map(bounds).map(|finding| finding.on([subject.number])));
        if let Some(retries) = own.as_ref().or(everywhere.as_ref()).filter(|retries| retrying(retries)) {
            found.extend(unsafe_to_retry(subject, retries));
            found.extend(longer_than_keys(context, subject, retries));
        }
        if let Some(retries) = subject.operation.extension("x-fern-retries") {
            let off = retries.node.flag("disabled") == Some(true) || *retries.node == Node::Bool(false);
            found.extend(unsafe_to_retry(subject, &retries).filter(|_| !off));
        }
        let marked =
            subject.operation.extension("x-fern-idempotent").filter(|found| *found.node == Node::Bool(true));
        if let Some(marked) = marked
            && subject.key().is_none_or(|key| !key.parameter.required)
        {
            // Case C31: the marker exposes an option, it does not prove that anybody used it.
            found.push(
                Finding::new(&rule::R405, Confidence::High, marked.place, rule::R405.finds)
                    .on([subject.number]),
            );
        }
    }
    found
}

fn retrying(retries: &Found<'_>) -> bool {
    retries.node.text_of("strategy") != Some("none")
}

/// R401, of everything that nothing makes safe. What a person has to look at is a warning.
fn unsafe_to_retry(subject: Subject<'_>, retries: &Found<'_>) -> Option<Finding> {
    if !subject.changes() || subject.judgement.mechanism != Mechanism::None {
        return None;
    }
    let sure = match subject.judgement.verdict {
        Verdict::Undocumented | Verdict::DocumentedUnsafe => subject.judgement.confidence,
        _ => Confidence::Low,
    };
    let name = retries.place.pointer.rsplit('/').next().unwrap_or_default().to_owned();
    let evidence = Evidence { place: retries.place.clone(), quote: name, weight: Confidence::High };
    let finding = Finding::new(&rule::R401, sure, subject.operation.place().clone(), rule::R401.finds);
    Some(finding.on([subject.number]).because([evidence]))
}

/// R402 and R404: what is retried, and for how long.
fn bounds(retries: &Found<'_>) -> Vec<Finding> {
    if !retrying(retries) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let statuses: Vec<String> = retries
        .node
        .get("statusCodes")
        .into_iter()
        .flat_map(Node::items)
        .map(|node| {
            node.text().map_or_else(|| node.number().unwrap_or_default().to_string(), str::to_uppercase)
        })
        .collect();
    let final_status = |status: &&String| {
        matches!(status.as_str(), "5XX" | "500")
            || status.starts_with('4') && !matches!(status.as_str(), "408" | "429")
    };
    if let Some(odd) = statuses.iter().find(final_status) {
        let message = format!("{odd} is retried");
        found.push(Finding::new(&rule::R402, Confidence::High, retries.place.step("statusCodes"), message));
    }
    let backoff = retries.node.get("backoff");
    let bound = |name| backoff.and_then(|backoff| backoff.get(name)).and_then(Node::number).is_some();
    if !bound("maxInterval") || !bound("maxElapsedTime") {
        found.push(Finding::new(&rule::R404, Confidence::Medium, retries.place.clone(), rule::R404.finds));
    }
    found
}

/// R403.
fn longer_than_keys(context: &Context<'_>, subject: Subject<'_>, retries: &Found<'_>) -> Option<Finding> {
    let elapsed = retries.node.get("backoff")?.get("maxElapsedTime")?.number()? / 1_000.0;
    let window = keys::window(context, subject, subject.key()?)?;
    #[allow(clippy::cast_precision_loss)] // seconds
    let longer = elapsed > window as f64;
    let message = format!("retries go on for {elapsed} s, keys are remembered for {window} s");
    longer.then(|| {
        Finding::new(&rule::R403, Confidence::Medium, retries.place.clone(), message).on([subject.number])
    })
}
