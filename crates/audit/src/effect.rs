//! What an operation does, and how sure that is.
//!
//! The method is a claim of the document and weighs much; names are only names. A POST counts as a read when two signs of
//! different kinds say so (its path *and* its name, or the shape of its answer); one sign alone makes it a question for a
//! person, never a verdict.

use crate::{
    bundle::Place,
    operation::{Operation, Response},
    words::{literals, prose, quote, words},
};

/// What it does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Nothing that a second call would do again.
    Read,
    /// Makes something new.
    Create,
    /// Replaces a whole resource.
    Replace,
    /// Changes a part of one.
    Update,
    /// Deletes.
    Delete,
    /// Does something.
    Action,
    /// Logs in, issues or revokes tokens.
    Auth,
    /// Takes in events, logs or metrics.
    Telemetry,
    /// Computes and answers; costs money, leaves nothing.
    Compute,
    /// A method that nobody defined.
    Unknown,
}

impl Effect {
    /// As reports spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Action => "action",
            Self::Auth => "auth",
            Self::Telemetry => "telemetry",
            Self::Compute => "compute",
            Self::Unknown => "unknown",
        }
    }
}

/// How sure something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Confidence {
    /// Names say so.
    Low,
    /// Several signs, or prose.
    Medium,
    /// The document declares it.
    High,
}

impl Confidence {
    /// As reports spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// A place of the document, and what it says there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Where.
    pub place: Place,
    /// At most 120 characters of it.
    pub quote: String,
    /// What it is worth.
    pub weight: Confidence,
}

/// A judgement of an operation's effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Judged {
    pub(crate) effect: Effect,
    pub(crate) confidence: Confidence,
    pub(crate) evidence: Vec<Evidence>,
}

/// Verbs of reading. Plurals are nouns: `POST /searches` saves one.
const READS: &[&str] = &[
    "search",
    "query",
    "filter",
    "list",
    "get",
    "fetch",
    "find",
    "lookup",
    "read",
    "retrieve",
    "describe",
    "calculate",
    "validate",
    "preview",
    "estimate",
    "check",
    "count",
    "compare",
    "view",
    "browse",
    "suggest",
    "autocomplete",
    "show",
    "explain",
    "exists",
    "test",
    "inspect",
    "diff",
    "batchget",
    "msearch",
    "introspect",
];
/// Verbs with which the name of a reading call begins, whatever follows.
const CALLS_READING: &[&str] = &[
    "get",
    "search",
    "find",
    "query",
    "fetch",
    "lookup",
    "describe",
    "retrieve",
    "has",
    "is",
    "count",
    "calculate",
];
/// What stands before the verb of a summary.
const LEADS: &[&str] = &[
    "use this api to ",
    "use this endpoint to ",
    "this api is used to ",
    "this api can be used to ",
    "api to ",
    "an api to ",
    "endpoint to ",
    "allows you to ",
    "used to ",
    "this endpoint ",
    "this method ",
    "this api ",
    "this operation ",
    "this action ",
];
/// Words that may stand beside such a verb in a segment of a path without making it something else.
const BESIDE: &[&str] = &[
    "batch", "bulk", "by", "all", "advanced", "full", "text", "multi", "many", "ids", "id", "v1", "v2", "v3",
    "json", "info", "fulltext", "and", "graph",
];
/// Verbs of changing. Not those of making (`generate`, `make`, `merge`): what is made may be no more than the answer, a password
/// or one PDF of two. Nor `post`, which is the method's name.
pub(crate) const WRITES: &[&str] = &[
    "create",
    "add",
    "insert",
    "update",
    "upsert",
    "set",
    "put",
    "delete",
    "remove",
    "send",
    "submit",
    "register",
    "start",
    "stop",
    "cancel",
    "approve",
    "run",
    "import",
    "upload",
    "publish",
    "book",
    "pay",
    "charge",
    "refund",
    "transfer",
    "invite",
    "assign",
    "enable",
    "disable",
    "reset",
    "activate",
    "attach",
    "detach",
    "move",
    "copy",
    "clone",
    "trigger",
    "schedule",
    "subscribe",
    "unsubscribe",
    "archive",
    "restore",
    "enqueue",
    "push",
    "save",
    "modify",
    "patch",
    "replace",
    "lock",
    "unlock",
    "complete",
    "confirm",
    "capture",
    "void",
    "accept",
    "reject",
    "rotate",
    "execute",
    "new",
    "store",
    "apply",
    "issue",
    "request",
    "launch",
    "deploy",
    "purge",
    "append",
    "place",
];
/// What a path or a name that ends so is: a tool, that is given something and answers.
const TOOLS: &[&str] = &[
    "validator",
    "validation",
    "checker",
    "calculator",
    "calculation",
    "converter",
    "conversion",
    "generator",
    "parser",
    "analyzer",
    "analyser",
    "detector",
    "detection",
    "recognition",
    "classifier",
    "classification",
    "translator",
    "formatter",
    "estimator",
    "estimation",
    "simulator",
    "prediction",
    "predictions",
    "extractor",
    "extraction",
    "lookup",
];
/// Media that are made for the answer: what keeps a thing answers with its record.
const MADE_TO_ORDER: &[&str] = &["image/", "audio/", "video/", "application/pdf", "application/zip"];
/// What a summary of a read begins with.
const READ_SUMMARIES: &[&str] = &[
    "search",
    "verify",
    "verifies",
    "searches",
    "returns",
    "return",
    "get",
    "gets",
    "list",
    "lists",
    "retrieve",
    "retrieves",
    "query",
    "queries",
    "find",
    "finds",
    "fetch",
    "fetches",
    "look",
    "calculate",
    "calculates",
    "validate",
    "validates",
    "preview",
    "previews",
    "estimate",
    "estimates",
    "check",
    "checks",
    "count",
    "counts",
    "describe",
    "describes",
    "view",
    "read",
    "reads",
    "show",
];
const AUTH: &[&str] = &[
    "login",
    "logout",
    "signin",
    "signout",
    "oauth",
    "oauth2",
    "token",
    "introspect",
    "revoke",
    "authenticate",
    "authorize",
    "authorise",
    "auth",
    "refresh",
    "logoff",
    "logon",
    "session",
    "sessions",
];
const TELEMETRY: &[&str] =
    &["metrics", "events", "logs", "track", "telemetry", "traces", "spans", "beacon", "pageview"];
const COMPUTE: &[&str] = &[
    "sign",
    "encrypt",
    "decrypt",
    "ocr",
    "predict",
    "completions",
    "embeddings",
    "translate",
    "classify",
    "detect",
    "transcribe",
    "transcriptions",
    "translations",
    "moderations",
    "moderate",
    "analyze",
    "analyse",
    "convert",
    "render",
    "recognize",
    "infer",
    "summarize",
    "tokenize",
    "rerank",
    "hash",
    "score",
    "geocode",
    "parse",
];

/// Judges one operation by what its document says of it. `collection`: its path has members in the same document.
pub(crate) fn judge(operation: &Operation<'_>, collection: bool) -> Judged {
    let declared =
        |effect| Judged { effect, confidence: Confidence::High, evidence: vec![method_evidence(operation)] };
    if let Some(stated) = stated(operation) {
        return stated;
    }
    match &*operation.method {
        "GET" | "HEAD" | "OPTIONS" | "TRACE" | "QUERY" => declared(Effect::Read),
        "PUT" => declared(Effect::Replace),
        "PATCH" => declared(Effect::Update),
        "DELETE" => declared(Effect::Delete),
        "POST" => post(operation, collection),
        // COPY, MOVE, PURGE: what they mean stands in no standard that a document of APIs refers to.
        _ => Judged {
            effect: Effect::Unknown,
            confidence: Confidence::Low,
            evidence: vec![method_evidence(operation)],
        },
    }
}

/// Extensions in use that say it outright.
fn stated(operation: &Operation<'_>) -> Option<Judged> {
    let by = |found: crate::bundle::Found<'_>, effect| Judged {
        effect,
        confidence: Confidence::High,
        evidence: vec![Evidence {
            quote: format!(
                "{}: {}",
                found.place.pointer.rsplit('/').next().unwrap_or_default(),
                found.node.text().unwrap_or("true")
            ),
            place: found.place,
            weight: Confidence::High,
        }],
    };
    if let Some(found) = operation.extension("x-effect-type").or_else(|| operation.extension("x-safety")) {
        match found.node.text() {
            Some("read" | "safe" | "read-only" | "readonly" | "none") => {
                return Some(by(found, Effect::Read));
            }
            Some("delete") => return Some(by(found, Effect::Delete)),
            Some("create") => return Some(by(found, Effect::Create)),
            _ => {}
        }
    }
    None
}

fn method_evidence(operation: &Operation<'_>) -> Evidence {
    Evidence {
        place: operation.place().clone(),
        quote: operation.method.to_lowercase(),
        weight: Confidence::High,
    }
}

/// A sign that a POST is something special.
struct Sign {
    effect: Effect,
    kind: Kind,
    evidence: Evidence,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Path,
    Name,
    Shape,
}

fn post(operation: &Operation<'_>, collection: bool) -> Judged {
    let mut signs = Vec::new();
    let mut sign = |effect, kind, place: Place, quote: String| {
        signs.push(Sign { effect, kind, evidence: Evidence { place, quote, weight: Confidence::Low } });
    };
    let at = operation.place();
    let last = literals(operation.path).last().unwrap_or_default();
    let last_words = words(last);
    // The protocols of AWS name the action behind a sharp: `/#X-Amz-Target=Service.DescribeThing`.
    let action = operation
        .path
        .split_once('#')
        .map(|(_, fragment)| words(fragment.rsplit(['=', '.']).next().unwrap_or_default()));
    let is = |list: &[&str], word: &String| list.contains(&word.as_str());
    let reads_by_path = match &action {
        Some(action) => action.first().is_some_and(|word| is(READS, word)),
        None => {
            last_words.iter().any(|word| is(READS, word))
                && last_words.iter().all(|word| is(READS, word) || is(BESIDE, word))
        }
    };
    if reads_by_path {
        sign(Effect::Read, Kind::Path, at.clone(), operation.path.to_owned());
    }
    let path_words: Vec<String> = literals(operation.path).flat_map(words).collect();
    for (effect, list) in [(Effect::Auth, AUTH), (Effect::Telemetry, TELEMETRY), (Effect::Compute, COMPUTE)] {
        // Authentication has a folder of its own; the others end their path.
        let among = if effect == Effect::Auth { &path_words } else { &last_words };
        if among.iter().any(|word| is(list, word)) {
            sign(effect, Kind::Path, at.clone(), operation.path.to_owned());
        }
    }
    let mut name_words = operation.id.map(words).unwrap_or_default();
    // `POST_GetThing`, `Extract_Post`: a generator put the method there, which is no verb of the operation.
    if name_words.len() > 1 && name_words[0] == "post" {
        name_words.remove(0);
    }
    if let [.., using, method] = name_words.as_slice()
        && using == "using"
        && method == "post"
    {
        name_words.truncate(name_words.len() - 2);
    }
    if name_words.len() > 1
        && name_words.last().is_some_and(|word| word == "post")
        && !operation.path.ends_with("post")
    {
        name_words.pop();
    }
    // `/services.get_map`, `/get-map`: a name in the path.
    let called = words(last.rsplit('.').next().unwrap_or_default());
    let starts_reading = called.first().is_some_and(|word| is(CALLS_READING, word))
        && !called.iter().any(|word| word == "started");
    if starts_reading && !reads_by_path {
        sign(Effect::Read, Kind::Name, at.clone(), operation.path.to_owned());
    }
    let verb = [name_words.first(), name_words.last()].into_iter().flatten();
    if verb.clone().any(|word| is(READS, word)) {
        sign(Effect::Read, Kind::Name, at.step("operationId"), operation.id.unwrap_or_default().to_owned());
    }
    for (effect, list) in [(Effect::Auth, AUTH), (Effect::Compute, COMPUTE)] {
        if name_words.iter().any(|word| is(list, word)) {
            sign(effect, Kind::Name, at.step("operationId"), operation.id.unwrap_or_default().to_owned());
        }
    }
    let told = [("summary", operation.summary), ("description", operation.description)]
        .map(|(key, text)| (key, text, told(text)));
    if let Some((key, text, verb)) = told.iter().find(|(.., verb)| is(READ_SUMMARIES, verb)) {
        sign(Effect::Read, Kind::Name, at.step(key), quote(text, verb));
    }
    let told = told.into_iter().map(|(.., verb)| verb).find(|verb| !verb.is_empty()).unwrap_or_default();
    let tool = |words: &[String]| words.last().is_some_and(|word| is(TOOLS, word));
    if tool(&last_words) {
        sign(Effect::Compute, Kind::Path, at.clone(), operation.path.to_owned());
    }
    if tool(&name_words) {
        sign(
            Effect::Compute,
            Kind::Name,
            at.step("operationId"),
            operation.id.unwrap_or_default().to_owned(),
        );
    }
    // `/workbook/functions/microsoft.graph.asin`: a function of a spreadsheet.
    if operation.path.rsplit('/').nth(1) == Some("functions") {
        sign(Effect::Compute, Kind::Path, at.clone(), operation.path.to_owned());
    }
    let successes: Vec<_> = operation.responses.iter().filter(|one| one.status.starts_with('2')).collect();
    let only_200 = !successes.is_empty() && successes.iter().all(|one| one.status == "200");
    if only_200 && successes.iter().any(|one| one.list) {
        sign(
            Effect::Read,
            Kind::Shape,
            at.step("responses"),
            "answers 200 with a list, and nothing else".to_owned(),
        );
    }
    // `2XX` says nothing of what was made.
    let made = operation.responses.iter().any(|one| one.status == "201" && !by_default(one, &successes))
        || successes.iter().any(|one| one.headers.iter().any(|name| name.eq_ignore_ascii_case("location")));
    // Frameworks declare 201 for every POST: a name that says what it reads knows better, and the two together are a question.
    let reads_by_name = name_words.first().is_some_and(|word| is(READS, word) || is(CALLS_READING, word))
        || tool(&last_words)
        || tool(&name_words);
    let told = told.strip_suffix('s').map(str::to_owned).unwrap_or(told);
    let says = |list: &[&str]| {
        verb.clone().any(|word| is(list, word))
            || action.as_ref().is_none_or(Vec::is_empty) && last_words.iter().any(|word| is(list, word))
            || is(list, &told)
    };
    let to_order = !made && only_200 && successes.iter().all(|one| to_order(&one.media));
    if to_order {
        sign(Effect::Compute, Kind::Shape, at.step("responses"), "answers with what it made".to_owned());
    }
    let made = made && !reads_by_name;
    let changes = made || says(WRITES) && !to_order;
    weigh(operation, signs, changes, made || collection && !tool(&last_words))
}

/// Whether a 201 is what frameworks write beside the 200 that an operation really answers with: its own words are the status
/// line's, and it says nothing of a body.
fn by_default(created: &Response<'_>, successes: &[&Response<'_>]) -> bool {
    successes.iter().any(|one| one.status == "200")
        && created.fields.is_empty()
        && created.description.trim().eq_ignore_ascii_case("created")
}

/// Whether an answer is nothing but pictures, sounds or documents.
fn to_order(media: &[&str]) -> bool {
    !media.is_empty() && media.iter().all(|one| MADE_TO_ORDER.iter().any(|kind| one.starts_with(kind)))
}

/// The verb of a summary.
fn told(summary: &str) -> String {
    let lower = prose(summary);
    let rest = LEADS.iter().find_map(|lead| lower.strip_prefix(lead)).unwrap_or(&lower);
    words(rest).into_iter().next().unwrap_or_default()
}

fn weigh(operation: &Operation<'_>, signs: Vec<Sign>, changes: bool, made: bool) -> Judged {
    for effect in [Effect::Auth, Effect::Read, Effect::Compute, Effect::Telemetry] {
        let mine: Vec<&Sign> = signs.iter().filter(|sign| sign.effect == effect).collect();
        let has = |kind| mine.iter().any(|sign| sign.kind == kind);
        let named = has(Kind::Path) || has(Kind::Name);
        if !named || changes && effect != Effect::Auth {
            continue;
        }
        let kinds = [Kind::Path, Kind::Name, Kind::Shape].into_iter().filter(|kind| has(*kind)).count();
        // The shape of an answer is a sign only beside a path that says the same.
        let confidence = if has(Kind::Path) && kinds >= 2 { Confidence::Medium } else { Confidence::Low };
        return Judged {
            effect,
            confidence,
            evidence: mine.into_iter().map(|sign| sign.evidence.clone()).collect(),
        };
    }
    // POST is also how one asks what does not fit into an address: of a hundred operations of which nothing but the method says
    // that they change anything, a fifth only answer (contract-tools.2).
    Judged {
        effect: if made { Effect::Create } else { Effect::Action },
        confidence: if changes || made { Confidence::High } else { Confidence::Low },
        evidence: vec![method_evidence(operation)],
    }
}

/// Whether a GET's name says that it changes something, and what says so.
pub(crate) fn safe_method_that_writes(operation: &Operation<'_>) -> Option<Evidence> {
    if operation.may_change() {
        return None;
    }
    const PLAIN: &[&str] = &[
        "create",
        "delete",
        "update",
        "remove",
        "send",
        "insert",
        "put",
        "purge",
        "reset",
        "terminate",
        "reboot",
    ];
    let at = operation.place();
    let first_word = |name: &str| words(name).first().is_some_and(|word| PLAIN.contains(&word.as_str()));
    if let Some((_, fragment)) = operation.path.split_once('#') {
        let action = fragment.rsplit(['=', '.']).next().unwrap_or_default();
        return first_word(action).then(|| Evidence {
            place: at.clone(),
            quote: operation.path.to_owned(),
            weight: Confidence::Low,
        });
    }
    let told = words(operation.summary).first().cloned().unwrap_or_default();
    let told = told.strip_suffix('s').unwrap_or(&told);
    let name = operation.id.filter(|id| first_word(id))?;
    // `deleteForm` shows one, and a summary that begins with another verb knows better than a name.
    (PLAIN.contains(&told)).then(|| Evidence {
        place: at.step("operationId"),
        quote: format!("{name}: {}", quote(operation.summary, told)),
        weight: Confidence::Low,
    })
}
