//! The verdict on one operation: what makes a retry of it safe, if anything, and what in the document says so.

use crate::{
    effect::{self, Confidence, Effect, Evidence},
    keys::{Candidate, Standing},
    operation::{In, Inventory, Operation},
    tree::Node,
    words::{find, folded, prose, quote, sentences},
};

/// What would make a retry safe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mechanism {
    /// RFC 9110 calls the method idempotent.
    MethodSemantics,
    /// A key in a header.
    KeyHeader,
    /// A key in the query.
    KeyQuery,
    /// A key in the body.
    KeyBody,
    /// `If-Match` and its kind.
    Conditional,
    /// The caller names what is made; a second one is refused.
    ClientChosenId,
    /// OASIS Repeatable Requests.
    RepeatabilityHeaders,
    /// An extension says so.
    DeclaredExtension,
    /// Only a sentence says so.
    ProseOnly,
    /// Nothing.
    None,
}

impl Mechanism {
    /// As reports spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MethodSemantics => "method-semantics",
            Self::KeyHeader => "key-header",
            Self::KeyQuery => "key-query",
            Self::KeyBody => "key-body",
            Self::Conditional => "conditional",
            Self::ClientChosenId => "client-chosen-id",
            Self::RepeatabilityHeaders => "repeatability-headers",
            Self::DeclaredExtension => "declared-extension",
            Self::ProseOnly => "prose-only",
            Self::None => "none",
        }
    }
}

/// Whether it may be sent again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// It changes nothing.
    SafeRead,
    /// The document or the method says that a second call changes nothing more. Nobody has looked.
    IdempotentClaimed,
    /// With a key.
    SafeWithKey,
    /// It takes no call without one.
    KeyRequired,
    /// A second call is refused, where the condition is sent.
    Conditional,
    /// The document says that it is not.
    DocumentedUnsafe,
    /// It changes state, and the document does not say.
    Undocumented,
    /// The document is not enough to tell.
    NeedsHuman,
}

impl Verdict {
    /// All of them, in the order in which totals are printed.
    pub const ALL: [Self; 8] = [
        Self::SafeRead,
        Self::IdempotentClaimed,
        Self::SafeWithKey,
        Self::KeyRequired,
        Self::Conditional,
        Self::DocumentedUnsafe,
        Self::Undocumented,
        Self::NeedsHuman,
    ];

    /// As reports spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SafeRead => "safe-read",
            Self::IdempotentClaimed => "idempotent-claimed",
            Self::SafeWithKey => "safe-with-key",
            Self::KeyRequired => "key-required",
            Self::Conditional => "conditional",
            Self::DocumentedUnsafe => "documented-unsafe",
            Self::Undocumented => "undocumented",
            Self::NeedsHuman => "needs-human",
        }
    }
}

/// What is known about one operation.
#[derive(Debug)]
pub struct Judgement {
    /// What it does.
    pub effect: Effect,
    /// What would make a retry safe.
    pub mechanism: Mechanism,
    /// Whether it may be sent again.
    pub verdict: Verdict,
    /// How sure the verdict is.
    pub confidence: Confidence,
    /// What says so.
    pub evidence: Vec<Evidence>,
}

/// What the document says of all of its operations.
pub(crate) struct Global {
    pub(crate) evidence: Evidence,
    pub(crate) message: String,
}

/// APIs whose support of keys stands in their documentation and not in their document: host, what is known, where.
const KNOWN: &[(&str, &str)] = &[
    (
        "api.stripe.com",
        "Stripe takes Idempotency-Key on every POST (docs.stripe.com/api/idempotent_requests)",
    ),
    ("api.increase.com", "Increase's SDKs send Idempotency-Key with every POST"),
];

/// Support of keys that no operation declares.
pub(crate) fn global(inventory: &Inventory<'_>) -> Option<Global> {
    let about = prose(&inventory.about);
    // A sentence on how methods are idempotent says nothing of keys.
    let says = |sentence: &&str| {
        sentence.contains("idempot")
            && ["key", "header", "token", "request id"].iter().any(|word| sentence.contains(word))
    };
    let at = |pointer: &str| crate::bundle::Place { file: 0, pointer: pointer.to_owned() };
    if let Some(sentence) = sentences(&about).find(says) {
        let from: String = sentence.trim().chars().take(40).collect();
        let quote = quote(&inventory.about, &from);
        let evidence = Evidence { place: at("/info/description"), quote, weight: Confidence::Medium };
        return Some(Global {
            evidence,
            message: "only the document's introduction speaks of keys".to_owned(),
        });
    }
    let (host, known) = KNOWN.iter().find(|(host, _)| inventory.hosts.contains(host))?;
    let evidence = Evidence { place: at("/servers"), quote: (*host).to_owned(), weight: Confidence::Medium };
    Some(Global { evidence, message: format!("this document declares no keys, though {known}") })
}

/// Judges one operation.
pub(crate) fn judge(
    operation: &Operation<'_>,
    candidates: &[Candidate<'_>],
    global: Option<&Global>,
    collection: bool,
) -> Judgement {
    let effect = effect::judge(operation, collection);
    let of = |mechanism, verdict, confidence, evidence: Vec<Evidence>| Judgement {
        effect: effect.effect,
        mechanism,
        verdict,
        confidence,
        evidence,
    };
    if let Some((verdict, evidence)) = extension(operation) {
        return of(Mechanism::DeclaredExtension, verdict, Confidence::High, vec![evidence]);
    }
    if let Some(key) = chosen(candidates)
        && (operation.may_change() || effect.effect != Effect::Read)
    {
        let verdict = if key.parameter.required { Verdict::KeyRequired } else { Verdict::SafeWithKey };
        return of(carrier(key), verdict, key.confidence, vec![key.evidence()]);
    }
    if effect.effect == Effect::Read {
        let verdict =
            if effect.confidence > Confidence::Low { Verdict::SafeRead } else { Verdict::NeedsHuman };
        return of(Mechanism::None, verdict, effect.confidence, effect.evidence);
    }
    if let Some((confidence, evidence)) = condition(operation) {
        return of(Mechanism::Conditional, Verdict::Conditional, confidence, vec![evidence]);
    }
    if let Some((mechanism, verdict, confidence, evidence)) = claimed(operation) {
        return of(mechanism, verdict, confidence, vec![evidence]);
    }
    let tokens = candidates.iter().find(|one| {
        one.standing == Standing::RefusesReuse
            // AWS names its keys so, and does not always describe them.
            || one.standing == Standing::Ambiguous && folded(one.parameter.name).contains("token")
    });
    if let Some(token) = tokens {
        return of(carrier(token), Verdict::NeedsHuman, Confidence::Low, vec![token.evidence()]);
    }
    if matches!(effect.effect, Effect::Auth | Effect::Telemetry | Effect::Compute | Effect::Unknown) {
        return of(Mechanism::None, Verdict::NeedsHuman, effect.confidence, effect.evidence);
    }
    if let Some(global) = global {
        return of(
            Mechanism::ProseOnly,
            Verdict::NeedsHuman,
            Confidence::Medium,
            vec![global.evidence.clone()],
        );
    }
    of(Mechanism::None, Verdict::Undocumented, effect.confidence, effect.evidence)
}

/// The key of an operation, where it has one: a header before a query parameter before a field.
pub(crate) fn chosen<'a, 'b>(candidates: &'a [Candidate<'b>]) -> Option<&'a Candidate<'b>> {
    let rank = |one: &&Candidate<'_>| {
        (one.parameter.nested, one.confidence != Confidence::High, one.parameter.place_in as u8)
    };
    candidates.iter().filter(|one| one.standing == Standing::Key && !one.parameter.nested).min_by_key(rank)
}

fn carrier(key: &Candidate<'_>) -> Mechanism {
    match key.parameter.place_in {
        In::Header if folded(key.parameter.name).starts_with("repeatability") => {
            Mechanism::RepeatabilityHeaders
        }
        In::Header => Mechanism::KeyHeader,
        In::Query => Mechanism::KeyQuery,
        _ => Mechanism::KeyBody,
    }
}

/// Extensions in use, of any spelling.
fn extension(operation: &Operation<'_>) -> Option<(Verdict, Evidence)> {
    const NAMES: &[&str] =
        &["x-idempotency", "x-idempotent", "x-fern-idempotent", "x-idempotency-key-required", "x-retryable"];
    let found = NAMES.iter().find_map(|name| Some((*name, operation.extension(name)?)))?;
    let (name, value) = found;
    let support = value.node.get("support").unwrap_or(value.node);
    let verdict = match (name, support) {
        ("x-idempotency-key-required", Node::Bool(true)) | (_, Node::Text(_))
            if matches!(support.text(), None | Some("required")) =>
        {
            Verdict::KeyRequired
        }
        (_, Node::Bool(true)) => Verdict::SafeWithKey,
        (_, Node::Bool(false)) if name != "x-idempotency-key-required" => Verdict::DocumentedUnsafe,
        (_, Node::Bool(false)) => Verdict::SafeWithKey,
        (_, Node::Text(word)) => match &**word {
            "optional" | "supported" | "true" => Verdict::SafeWithKey,
            "exempt" | "unsafe" | "false" | "none" => Verdict::DocumentedUnsafe,
            _ => return None,
        },
        _ => return None,
    };
    let said = match support {
        Node::Text(text) => text.to_string(),
        Node::Bool(flag) => flag.to_string(),
        _ => String::new(),
    };
    Some((
        verdict,
        Evidence { place: value.place, quote: format!("{name}: {said}"), weight: Confidence::High },
    ))
}

/// `If-Match` and its kind.
fn condition(operation: &Operation<'_>) -> Option<(Confidence, Evidence)> {
    const NAMES: &[&str] =
        &["ifmatch", "ifnonematch", "ifunmodifiedsince", "xgoogifgenerationmatch", "ifgenerationmatch"];
    let header = operation.parameters.iter().find(|one| NAMES.contains(&&*folded(one.name)))?;
    let confidence = if header.required { Confidence::High } else { Confidence::Medium };
    let evidence = Evidence { place: header.at.clone(), quote: header.name.to_owned(), weight: confidence };
    Some((confidence, evidence))
}

const SAYS_UNSAFE: &[&str] = &[
    "not idempotent",
    "non-idempotent",
    "isn't idempotent",
    "not safe to retry",
    "do not retry",
    "must not be retried",
    "should not be retried",
    "cannot be retried",
    "unsafe to retry",
    "no idempotency",
    "each call creates",
    "each request creates",
    "every call creates",
    "every request creates",
    "each call will create",
    "each request will create",
    "every call will create",
    "every request will create",
    "toggles ",
    "toggle the ",
    "toggle a ",
];
/// How a document says that what was asked for may be there already, and is then refused.
const SAYS_THERE: &[&str] = &[
    "already exist",
    "alreadyexist",
    "exists already",
    "already in use",
    "already taken",
    "already registered",
    "must be unique",
];
/// The same where only a refusal means it: an operation may make a duplicate.
const REFUSALS_SAY_THERE: &[&str] = &["already been", "already used", "duplicate", "not unique"];
/// The same where only an operation's own words mean it.
const OPERATIONS_SAY_THERE: &[&str] = &["already_exist", "with unique", "with a unique", "only once"];
const SAYS_SAFE: &[&str] = &[
    "is idempotent",
    "idempotent operation",
    "idempotent call",
    "idempotent request",
    "operation idempotent",
    "idempotently",
    "safe to retry",
    "can be retried safely",
    "safely be retried",
    "safely retry",
    "safely retried",
    "can safely be repeated",
    "has no effect if",
    "no-op if",
    "does nothing if",
    "create or update",
    "creates or updates",
    "create or replace",
    "creates or replaces",
    "upsert",
    "if it does not exist",
    "if it doesn't exist",
    "if they do not exist",
    "if they don't exist",
    "if not already",
    "will be overwritten",
];

/// A 200 beside a 201 that says: it was there already.
fn found_there(operation: &Operation<'_>) -> Option<Evidence> {
    if operation.method != "POST" || !operation.responses.iter().any(|one| one.status == "201") {
        return None;
    }
    let found = operation.responses.iter().find(|one| one.status == "200")?;
    let (phrase, _) = find(&prose(found.description), &["already", "exists"])?;
    Some(Evidence {
        place: operation.place().step("responses").step("200"),
        quote: quote(found.description, phrase),
        weight: Confidence::Medium,
    })
}

/// What says of a POST that it is refused where its work is done already. A second call then changes nothing; which of the two
/// it was that did, its caller cannot tell.
fn refused_twice(operation: &Operation<'_>) -> Option<Evidence> {
    if operation.method != "POST" {
        return None;
    }
    let says = |told: &str, more: &[&'static str]| find(told, SAYS_THERE).or_else(|| find(told, more));
    let mut refusals = operation.responses.iter().filter(|one| one.status.starts_with('4'));
    let by_answer = refusals.find_map(|one| {
        let told = prose(one.description);
        let exists = || find(&told, &["exist"]).filter(|_| one.status == "409");
        let (phrase, _) = says(&told, REFUSALS_SAY_THERE).or_else(exists)?;
        Some(Evidence {
            place: operation.place().step("responses").step(one.status),
            quote: quote(one.description, phrase),
            weight: Confidence::Medium,
        })
    });
    by_answer.or_else(|| {
        let (phrase, _) = says(&operation.prose(), OPERATIONS_SAY_THERE)?;
        Some(Evidence {
            place: operation.place().step("description"),
            quote: quote(&format!("{}. {}", operation.summary, operation.description), phrase),
            weight: Confidence::Medium,
        })
    })
}

/// What the method, its media type, a tool's extension or a sentence claim.
fn claimed(operation: &Operation<'_>) -> Option<(Mechanism, Verdict, Confidence, Evidence)> {
    let at = operation.place();
    let text = operation.prose();
    let said = |phrase| Evidence {
        place: at.step("description"),
        quote: quote(&format!("{}. {}", operation.summary, operation.description), phrase),
        weight: Confidence::Medium,
    };
    if let Some((phrase, _)) = find(&text, SAYS_UNSAFE) {
        return Some((Mechanism::ProseOnly, Verdict::DocumentedUnsafe, Confidence::Medium, said(phrase)));
    }
    let method =
        || Evidence { place: at.clone(), quote: operation.method.to_lowercase(), weight: Confidence::High };
    if matches!(&*operation.method, "PUT" | "DELETE") {
        return Some((Mechanism::MethodSemantics, Verdict::IdempotentClaimed, Confidence::High, method()));
    }
    if operation.method == "PATCH"
        && !operation.body.media.is_empty()
        && operation.body.media.iter().all(|media| media.starts_with("application/merge-patch+json"))
    {
        let place = at.step("requestBody");
        let evidence =
            Evidence { place, quote: operation.body.media[0].to_owned(), weight: Confidence::Medium };
        return Some((Mechanism::MethodSemantics, Verdict::IdempotentClaimed, Confidence::Medium, evidence));
    }
    if let Some((phrase, _)) = find(&text, SAYS_SAFE) {
        return Some((Mechanism::ProseOnly, Verdict::IdempotentClaimed, Confidence::Medium, said(phrase)));
    }
    if let Some(evidence) = found_there(operation) {
        return Some((Mechanism::ClientChosenId, Verdict::IdempotentClaimed, Confidence::Medium, evidence));
    }
    if let Some(evidence) = refused_twice(operation) {
        return Some((Mechanism::ClientChosenId, Verdict::Conditional, Confidence::Medium, evidence));
    }
    // A name that the caller chose is refused the second time; `generateName` is not one.
    let kubernetes = operation.extension("x-kubernetes-action");
    if let Some(action) = kubernetes.filter(|action| action.node.text() == Some("post")) {
        let evidence = Evidence {
            place: action.place,
            quote: "x-kubernetes-action: post".to_owned(),
            weight: Confidence::Medium,
        };
        return Some((Mechanism::ClientChosenId, Verdict::Conditional, Confidence::Medium, evidence));
    }
    None
}
