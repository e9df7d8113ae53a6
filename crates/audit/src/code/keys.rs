//! P101 and P102: keys that are another in each attempt.

use tree_sitter::Node;

use super::{
    Finding,
    scopes::Scope,
    view::{Code, Named, holds},
};
use crate::finding as rule;

/// Values that are new each time, squeezed.
const MINTS: &[&str] = &[
    "uuid4(",
    "uuid1(",
    "uuid7(",
    "uuid::new_v4",
    "uuid::now_v7",
    "uuid::now_v1",
    "randomuuid(",
    "uuidv4(",
    "uuidv7(",
    "uuidv1(",
    "uuid.new(",
    "uuid.newstring(",
    "uuid.newrandom(",
    "uuid.must(",
    "uuid.newv4(",
    "uuid.newv7(",
    "nanoid(",
    "uuid()",
    "ulid(",
    "ulid::new",
    "ulid.make(",
    "token_hex(",
    "token_urlsafe(",
    "xid.new(",
    "ksuid.new(",
    "randombytes(",
    "new_v4()",
    "math.random(",
    "cuid(",
    "createid(",
];
/// Readings of a clock, squeezed.
const CLOCKS: &[&str] = &[
    "date.now(",
    "time.time(",
    "time.time_ns(",
    "datetime.now(",
    "datetime.utcnow(",
    "time.now()",
    "systemtime::now(",
    "utc::now(",
    "local::now(",
    "instant::now(",
    "performance.now(",
    "newdate(",
    "unixnano()",
    "time.monotonic(",
    "offsetdatetime::now",
    "timestamp::now(",
    "timezone.now(",
];
/// What makes of a reading a period, which stays the same for its length: a month's invoice has a month's key.
const PERIODS: &[&str] = &[
    "strftime",
    ":%y",
    "today",
    ".date()",
    ".slice(0",
    ".format(\"2006",
    ".truncate(",
    ".isocalendar",
    "toisostring().substring(0",
    "%y%m",
];
/// "Only where there is none yet", in four spellings.
const ABSENT: &[&str] = &[
    "isnone",
    "===null",
    "==null",
    "==nil",
    "undefined",
    "notkey",
    "notself.",
    "!key",
    "!self.",
    "==\"\"",
    "notidempotency",
    "!idempotency",
    "is_none()",
    "!this.",
    "!opts",
    "!options",
    "not_",
];
const OR: &[&str] = &["??", "||", ".get_or_insert", ".unwrap_or_else", ".or_else", "setdefault("];

pub(super) fn find<'t>(code: Code<'t>, root: Node<'t>, scopes: &[Scope<'t>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for scope in scopes {
        let minted = bound(code, scope.body, MINTS);
        for key in code.named(scope.body).filter(|one| is_key(&one.name)) {
            let fresh = holds(&code.squeezed(key.value), MINTS) || uses(code, key.value, &minted);
            if fresh && !only_where_absent(code, key.value) {
                found.push(code.finding(&rule::P101, key.value));
            }
        }
    }
    for key in code.named(root).filter(|one| is_key(&one.name)) {
        let text = code.squeezed(key.value);
        let read = || bound(code, code.function(key.value), CLOCKS);
        if (holds(&text, CLOCKS) || uses(code, key.value, &read())) && !holds(&text, PERIODS) {
            found.push(code.finding(&rule::P102, key.value));
        }
    }
    found
}

/// Whether a folded name is that of a key, and not of something about keys.
pub(super) fn is_key(name: &str) -> bool {
    const OTHERS: &[&str] = &[
        "clienttoken",
        "clientrequesttoken",
        "paypalrequestid",
        "dedupekey",
        "deduplicationid",
        "deduplicationkey",
        "repeatabilityrequestid",
    ];
    if OTHERS.contains(&name) {
        return true;
    }
    let rest = ["idempotency", "idempotence", "idempotent", "idempotentcy"].iter().find_map(|word| {
        let at = name.find(word)?;
        // `parse_idempotency_key`, `store_idempotency_key` do something with one.
        (at <= 1 || holds(&name[..at], &["stripe", "headers", "request", "new", "payment", "order"]))
            .then(|| &name[at + word.len()..])
    });
    rest.is_some_and(|rest| {
        matches!(rest, "" | "key" | "token" | "id" | "guid" | "uuid" | "header" | "keyheader" | "headername")
    })
}

/// Names that are given such values below a node.
fn bound<'t>(code: Code<'t>, node: Node<'t>, values: &[&str]) -> Vec<String> {
    let named = code.named(node).filter(|one| {
        let value = code.squeezed(one.value);
        // A whole function that makes a key among other things is no key.
        value.len() < 200
            && holds(&value, values)
            && !holds(&value, PERIODS)
            && !only_where_absent(code, one.value)
    });
    named.map(|Named { name, .. }| name).filter(|name| name.len() > 1).collect()
}

/// Whether a value is made of one of these names.
fn uses<'t>(code: Code<'t>, value: Node<'t>, names: &[String]) -> bool {
    if names.is_empty() {
        return false;
    }
    super::view::below(value)
        .filter(|one| one.kind().contains("identifier"))
        .any(|one| names.contains(&crate::words::folded(code.of(one))))
}

/// Whether a value is made only where there is none yet: `key or uuid4()`, `if key is None: key = uuid4()`.
fn only_where_absent<'t>(code: Code<'t>, value: Node<'t>) -> bool {
    let mut statement = value;
    while let Some(parent) = statement.parent() {
        let kind = parent.kind();
        if kind.contains("block") || matches!(kind, "module" | "source_file" | "program" | "statement_list") {
            break;
        }
        statement = parent;
    }
    let text = code.of(statement);
    if text.contains(" or ") || holds(&code.squeezed(statement), OR) {
        return true;
    }
    // Go keeps the statements of a block in a list of their own.
    let block = statement
        .parent()
        .map(|one| if one.kind() == "statement_list" { one.parent().unwrap_or(one) } else { one });
    let around = block.and_then(|block| block.parent());
    let condition = around
        .filter(|one| one.kind().starts_with("if_"))
        .and_then(|one| one.child_by_field_name("condition"));
    condition.is_some_and(|condition| holds(&code.squeezed(condition), ABSENT))
}
