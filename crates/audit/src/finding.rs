//! What is wrong, and the list of what can be.

use crate::{
    bundle::Place,
    effect::{Confidence, Evidence},
};

/// How bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// A retry may do harm, or a promise is false.
    Error,
    /// Something is missing or misleading.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    /// As reports spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// One thing that the audit looks for.
#[derive(PartialEq, Eq, Debug)]
pub struct Rule {
    /// `A101`.
    pub id: &'static str,
    /// Unless the evidence is weaker.
    pub severity: Severity,
    /// What it finds, in a few words.
    pub finds: &'static str,
    /// What to do about it.
    pub help: &'static str,
}

/// One finding.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// Which rule.
    pub rule: &'static Rule,
    /// At most the rule's.
    pub severity: Severity,
    /// Numbers of the operations it concerns; none: the whole document.
    pub operations: Vec<usize>,
    /// Where to look.
    pub place: Place,
    /// What is wrong here. The same words for the same mistake, so that many are told as one.
    pub message: String,
    /// What says so.
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// A finding. What only names say is no error: a name is no proof.
    pub(crate) fn new(
        rule: &'static Rule,
        sure: Confidence,
        place: Place,
        message: impl Into<String>,
    ) -> Self {
        let severity = match (rule.severity, sure) {
            (Severity::Error, Confidence::Low) => Severity::Warning,
            (severity, _) => severity,
        };
        Self { rule, severity, operations: Vec::new(), place, message: message.into(), evidence: Vec::new() }
    }

    pub(crate) fn on(mut self, operations: impl IntoIterator<Item = usize>) -> Self {
        self.operations.extend(operations);
        self
    }

    pub(crate) fn because(mut self, evidence: impl IntoIterator<Item = Evidence>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    /// Less than the rule's severity, where something speaks for the document.
    pub(crate) fn milder(mut self, severity: Severity) -> Self {
        self.severity = self.severity.max(severity);
        self
    }
}

macro_rules! rules {
    ($($id:ident $severity:ident $finds:literal $help:literal;)*) => {
        $(pub(crate) static $id: Rule = Rule {
            id: stringify!($id), severity: Severity::$severity, finds: $finds, help: $help,
        };)*
        /// Every rule, by its id.
        pub static RULES: &[&Rule] = &[$(&$id),*];
    };
}

rules! {
    A101 Error "a state-changing operation neither takes a key nor is documented as unsafe to retry"
        "accept an idempotency key, or say that it must not be retried (x-idempotency: {support: unsafe, reason: ...})";
    A102 Warning "most operations beside it take a key, this one does not"
        "accept the same key, or say why not";
    A103 Info "looks like a read that is sent as a POST"
        "say so: use QUERY or GET, or x-idempotency: {support: exempt, reason: read-only}";
    A104 Warning "a key on an operation that changes nothing"
        "remove it: a replayed answer of a read is a stale answer";
    A105 Error "a safe method that changes state"
        "use POST with a key: caches, crawlers and clients repeat GET at will";
    A106 Info "support of keys stands in prose only"
        "declare the header at each operation; `retrysafe overlay` writes it";
    A107 Warning "a key declared with the path lands on its reads too"
        "declare it at the operations that change state";
    A108 Info "webhooks and callbacks: their receiver has to de-duplicate"
        "document the event id by which receivers de-duplicate";
    A109 Error "a part of the document cannot be judged"
        "repair the reference or the duplicate, so that the whole document is audited";
    B201 Warning "an id that may be a key, and no word about what a repetition does"
        "say that a repeated value returns the first answer, or that it is for tracing only";
    B202 Error "a key that is accepted and, by its own description, does nothing"
        "implement it or remove it: clients that see it will retry";
    B203 Error "the wording makes clients mint a new key for each attempt"
        "write: one value for each operation; reuse it when retrying";
    B204 Warning "no replay window"
        "say for how long a key is remembered, in numbers";
    B205 Error "the replay window is shorter than the longest chain of retries"
        "lengthen the window, or shorten the chain";
    B206 Warning "no bound of the key's length or characters"
        "declare maxLength, a pattern or a format";
    B207 Warning "the key's format and its description disagree"
        "make them say the same";
    B208 Warning "an example or a default for the key"
        "remove it: tools send the example, and everybody shares one key";
    B209 Warning "whose key it is does not say"
        "say within what a key is unique: account, tenant, API key";
    B210 Warning "a key in the query"
        "carry it in a header: queries are logged and cached";
    B211 Warning "two carriers or two spellings of the key"
        "choose one";
    B212 Info "keys are required here and optional there"
        "require them where a second effect hurts";
    B213 Warning "a key inside of something in the body"
        "put it at the top of the body, or in a header";
    B214 Info "what makes two requests the same is not defined"
        "say what is compared: method, path, query, body";
    B215 Warning "a structured field whose example is not quoted"
        "RFC 9651 strings are quoted: \"8e03978e-40d5-43dd-bc93-6894a57f9324\"";
    C301 Error "no answer for a key whose first request is still running"
        "declare 409 with a code (or 202 with a status URL), with Retry-After";
    C302 Error "no answer for a key that comes with another request"
        "declare 409 or 422 with a code of its own";
    C303 Error "mismatch and in-flight share a status, and no code tells them apart"
        "add a machine-readable code to the error";
    C304 Warning "422 already means that the input is not valid"
        "give the mismatch a code of its own";
    C305 Warning "409 already means that something exists"
        "give the conflicts of keys codes of their own";
    C306 Warning "nothing marks a replayed answer"
        "declare Idempotent-Replayed on successful answers";
    C307 Warning "a created resource cannot be found when its answer is lost"
        "answer with Location or an id";
    C308 Warning "a temporary refusal without Retry-After"
        "declare Retry-After on 429 and 503";
    C309 Error "the key is required, and its absence has no answer"
        "declare 400";
    C310 Info "whether failures are replayed is not said"
        "say which statuses are stored";
    R401 Error "automatic retries of an operation that nothing makes safe"
        "remove the retries, or accept a key first";
    R402 Warning "retries of statuses that are final or may hide an effect"
        "retry 429, 502, 503 and 504";
    R403 Warning "retries go on longer than keys are remembered"
        "bound them below the replay window";
    R404 Warning "retries without a bound"
        "bound attempts, delay and total time";
    R405 Info "marked as idempotent, but the key is optional"
        "check that the SDK makes a key by itself";
    M501 Warning "a PUT whose name or text says that it adds"
        "use POST with a key, or make it replace";
    M502 Warning "a PUT that names no resource"
        "put the id into the path, or use POST with a key";
    M503 Warning "a DELETE that may delete something else the second time"
        "name what is deleted";
    M504 Info "a PATCH that is relative, or says that it merges"
        "merge patches may be repeated; additions and increments need a key or If-Match";
    M505 Info "PUT and DELETE are idempotent by definition only"
        "verify them: nothing in a document proves it";
    M506 Warning "a condition is asked for, and no answer gives the ETag"
        "declare ETag on the reads of the resource";
    S601 Warning "one key for many items"
        "say what a replay does after a part failed, or give each item an id";
    S602 Warning "a long-running operation without a way to its status"
        "declare Location or Operation-Location: a replay must lead to the same operation";
    S603 Warning "a key with a multipart body"
        "compare parts, not bytes: the boundary differs each time";
    S604 Warning "queries and mutations through one POST"
        "take a key for each mutation";
    S605 Info "a key with a streamed answer"
        "say what a replay returns";
    S606 Warning "an answer with a secret would be stored and replayed"
        "redact or encrypt it, or do not replay it";
    S607 Info "tokens and sessions: exempt by default"
        "codes and refresh tokens work once; say what a repeated call returns";
    S608 Warning "an effect outside of the API, and the key is optional"
        "require the key";
    G801 Error "a state-changing method without an idempotency level, a key, or a word about retries"
        "add a request_id (AIP-155), or set idempotency_level";
    G802 Error "automatic retries of a method that nothing makes safe"
        "take it out of the retryPolicy, or accept a request_id first";
    G803 Warning "retries of codes after which it may have happened"
        "retry UNAVAILABLE only, where a call changes state (AIP-194)";
    G804 Warning "a creation that says it is idempotent, and has no key"
        "say by what a second call is recognised, and with which status it is answered";
    G805 Warning "no side effects, by its level; a change, by its name"
        "correct one of the two: clients send such calls by GET, and repeat them";
    G806 Warning "a request_id that clients do not fill in"
        "an optional text at the top of the request, of format UUID4 (AIP-4235)";
    G807 Info "a stream of requests: it cannot be retried after its first message"
        "resume by offsets, or say that it is not retried";
    G808 Info "verb and name disagree"
        "make them say the same";
    X901 Error "the contract lists an operation that the document does not have"
        "correct one of the two";
    X902 Error "the document has a state-changing operation that the contract does not list"
        "list it, with a key or as unsafe with its reason";
    X903 Error "contract and document disagree on whether a key is taken"
        "correct one of the two; `retrysafe overlay` writes the contract's side";
    X904 Error "contract and document disagree on where the key is"
        "correct one of the two";
    X905 Error "contract and document disagree on the key's length"
        "correct one of the two";
    X906 Error "contract and document disagree on the replay window"
        "correct one of the two";
    X907 Warning "an answer of the contract is not in the document"
        "declare it; `retrysafe overlay` writes it";
    P101 Error "a new key in each attempt"
        "make the key once, before the loop, and use it in every attempt";
    P102 Error "a key made of the time"
        "derive the key from what happened (order-confirm-{order_id}), or make it once and keep it";
    P103 Warning "a claim by SETNX: the holder that was paused still writes after its lock ran out"
        "claim with a unique constraint in the same transaction, or compare a fencing token in every write";
    P104 Error "a look before an insert: two requests at once both find nothing"
        "insert first (ON CONFLICT DO NOTHING, a unique constraint) and look at who won";
    P105 Warning "every failure is tried again, also what no attempt can mend"
        "retry 429, 502, 503, 504, connect timeouts and resets; let the rest through";
    P106 Warning "a delay without jitter: all who failed together come back together"
        "sleep for a random time up to the delay (full jitter)";
    P107 Warning "the time for all attempts begins anew in each"
        "set one deadline before the loop, and cut each attempt's timeout from what is left";
    W001 Error "a waiver has run out"
        "repair what it waived, or renew it with a reason";
    W002 Warning "a waiver that waives nothing"
        "remove it";
}

/// The rule of an id.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().copied().find(|rule| rule.id.eq_ignore_ascii_case(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_alone_never_make_an_error() {
        let place = Place { file: 0, pointer: String::new() };
        for rule in RULES {
            let finding = Finding::new(rule, Confidence::Low, place.clone(), "x");
            assert!(finding.severity > Severity::Error, "{}", rule.id);
        }
        assert_eq!(Finding::new(&A101, Confidence::Medium, place, "x").severity, Severity::Error);
    }

    #[test]
    fn ids_are_found_whatever_their_case() {
        assert_eq!(rule("a101"), Some(&A101));
        assert!(rule("Z1").is_none());
    }
}
