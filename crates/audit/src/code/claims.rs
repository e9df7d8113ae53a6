//! P103 and P104: claims that do not hold: a lock in Redis without a fence, a look before an insert.

use tree_sitter::Node;

use super::{
    Finding,
    view::{Code, below, holds},
};
use crate::{finding as rule, words::words};

/// What a claim of a request is about.
const CLAIMS: &[&str] = &[
    "idem",
    "dedup",
    "claim",
    "processed",
    "seen",
    "once",
    "eventid",
    "event_id",
    "event.id",
    "requestid",
    "request_id",
    "webhook",
    "messageid",
    "message_id",
    "msgid",
    "duplicate",
    "inflight",
    "in_flight",
    "in-flight",
];
/// Locks that are for something else.
const OTHERS: &[&str] =
    &["cache", "ratelimit", "rate_limit", "rate:", "leader", "cron", "throttle", "session"];

pub(super) fn find<'t>(code: Code<'t>, root: Node<'t>) -> Vec<Finding> {
    let mut found = Vec::new();
    for call in code.calls(root) {
        if claims_by_setnx(code, call) {
            found.push(code.finding(&rule::P103, call));
        }
    }
    let functions = below(root)
        .filter(|one| code.language.is_function(one.kind()) && code.function(*one).parent().is_none());
    let mut any = false;
    for function in functions {
        any = true;
        found.extend(looked_before(code, function));
    }
    if !any {
        found.extend(looked_before(code, root));
    }
    found
}

/// P103.
fn claims_by_setnx<'t>(code: Code<'t>, call: Node<'t>) -> bool {
    let callee = code.callee(call);
    let last = callee.rsplit(['.', ':']).next().unwrap_or_default();
    let arguments: String = code.arguments(call).iter().map(|one| code.squeezed(*one) + ",").collect();
    let command = |text: &str| text.contains("\"setnx\"") || text.contains("'setnx'");
    let nx = ["nx=true", "nx:true", "\"nx\"", "'nx'", "existencecheck::nx"]
        .iter()
        .any(|nx| arguments.contains(nx));
    let asked = matches!(last, "setnx" | "set_nx" | "setnxex")
        || matches!(last, "set" | "set_options" | "setargs") && nx
        || matches!(last, "cmd" | "do" | "execute_command" | "send_command" | "sendcommand" | "call")
            && (command(&arguments) || nx && arguments.contains("set"))
        || last == "arg" && nx && callee.contains("cmd(\"set\")");
    if !asked {
        return false;
    }
    let function = code.function(call);
    let name = function.child_by_field_name("name").map(|name| code.squeezed(name)).unwrap_or_default();
    // `cmd("SET").arg(key).arg("NX")` has its key in another call of the chain.
    let mut chain = call;
    while let Some(parent) = chain
        .parent()
        .filter(|one| code.language.is_call(one.kind()) || one.kind().contains("field_expression"))
    {
        chain = parent;
    }
    let about = format!("{arguments}{callee}{name}{}", code.squeezed(chain));
    let around = code.squeezed(function);
    // Where the key is made in the line above.
    let near = holds(&about, CLAIMS) || holds(&around, &["idempotency", "dedup"]);
    near && !holds(&about, OTHERS) && !around.contains("fenc")
}

/// A step of a function that has to do with a table.
#[derive(PartialEq)]
enum Step {
    Look(String),
    Insert(String),
}

/// P104.
fn looked_before<'t>(code: Code<'t>, function: Node<'t>) -> Option<Finding> {
    let text = code.squeezed(function);
    let arbitrated = holds(
        &text,
        &[
            "onconflict",
            "insertignore",
            "insertorignore",
            "onduplicatekey",
            "wherenotexists",
            "forupdate",
            "serializable",
            "integrityerror",
            "uniqueviolation",
            "unique_violation",
            "isuniqueviolation",
            "is_unique_violation",
            "p2002",
            "23505",
            "er_dup_entry",
            "duplicatekey",
            "get_or_create",
            "select_for_update",
            "upsert",
            "onconflictdonothing",
            "on_conflict",
            "errduplicated",
            "pg_advisory",
            "advisory_xact",
            "e11000",
            "11000",
            "duplicateentry",
            "uniqueconstraint",
            "attribute_not_exists",
            "duplicateerror",
            "with_for_update",
            ".merge(",
        ],
    );
    if arbitrated {
        return None;
    }
    let mut looked: Vec<String> = Vec::new();
    for node in below(function) {
        match step(code, node) {
            Some(Step::Look(table)) => looked.push(table),
            Some(Step::Insert(table)) if looked.contains(&table) => {
                return Some(code.finding(&rule::P104, node));
            }
            _ => {}
        }
    }
    None
}

fn step<'t>(code: Code<'t>, node: Node<'t>) -> Option<Step> {
    if node.kind().contains("string") && !node.kind().contains("content") && !node.kind().contains("fragment")
    {
        return sql(code.of(node));
    }
    if code.language.is_call(node.kind()) {
        return object(code, node);
    }
    None
}

/// A statement in a text: which table it looks into or inserts into.
fn sql(text: &str) -> Option<Step> {
    let lower = text.to_lowercase();
    let lower = lower.trim_matches(['"', '\'', '`', '#', 'r', 'f', ' ', '\n', '\t', '(']).trim();
    let after = |word: &str| {
        let rest = lower.split_once(word)?.1;
        let table: String = rest
            .trim_start()
            .chars()
            .take_while(|one| one.is_alphanumeric() || matches!(one, '_' | '.'))
            .collect();
        (!table.is_empty()).then_some(table)
    };
    if lower.starts_with("select") {
        let condition = lower.split_once("where")?.1;
        // A look at what is claimed; other looks decide other things.
        let about = holds(condition, CLAIMS)
            || condition.contains("key")
            || condition.contains("external_id")
            || condition.contains("reference")
            || holds(&after("from")?, CLAIMS);
        return about.then(|| after("from")).flatten().map(Step::Look);
    }
    if lower.starts_with("insert into") {
        return after("insert into").map(Step::Insert);
    }
    None
}

const LOOKS: &[&str] = &[
    "findone",
    "findunique",
    "findfirst",
    "findby",
    "findoneby",
    "find_one",
    "find_by",
    "exists",
    "get_or_none",
    "findbypk",
    "first",
    "one_or_none",
    "count_documents",
    "countdocuments",
    "scalar_one_or_none",
    "find_by_key",
    "get_by_key",
];
const INSERTS: &[&str] = &["create", "insert", "insertone", "insert_one", "save", "add", "bulk_create"];

/// A call of a mapper: `Order.objects.filter(key=key).exists()`, `prisma.order.findUnique(...)`, `db.Where(...).First(&order)`.
fn object<'t>(code: Code<'t>, call: Node<'t>) -> Option<Step> {
    let whole = code.of(call.child_by_field_name("function")?);
    let callee = code.callee(call);
    let last = callee.rsplit(['.', ':']).next().unwrap_or_default();
    let text = code.squeezed(call);
    if LOOKS.contains(&last) {
        let about = holds(&text, CLAIMS) || holds(&text, &["key", "external_id", "externalid", "reference"]);
        return about.then(|| model(whole, &text)).flatten().map(Step::Look);
    }
    if INSERTS.contains(&last) {
        return model(whole, &text).map(Step::Insert);
    }
    None
}

/// What a chain of calls is about: its model, in the singular.
fn model(chain: &str, text: &str) -> Option<String> {
    const PLUMBING: &[&str] = &[
        "db",
        "self",
        "this",
        "prisma",
        "session",
        "objects",
        "repo",
        "repository",
        "collection",
        "tx",
        "ctx",
        "await",
        "conn",
        "store",
        "models",
        "entities",
        "query",
        "filter",
        "client",
        "where",
        "context",
        "s",
        "r",
        "h",
        "app",
        "req",
        "state",
        "pool",
        "manager",
        "trx",
        "knex",
        "table",
    ];
    // `session.query(Order)`, `db.collection("orders")`, `knex("orders")`: the model is what is asked for.
    for asked in [
        "query(",
        "collection(",
        "table(",
        "knex(",
        "select(",
        ".add(",
        "from(",
        "create(&",
        "first(&",
        "model(&",
        "save(",
    ] {
        if let Some((_, rest)) = text.split_once(asked) {
            let rest = rest.trim_start_matches(['"', '\'', '&', '`']);
            let name: String = rest.chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect();
            if !name.is_empty() && !holds(&name, CLAIMS) || name.contains("event") {
                return Some(singular(&name));
            }
        }
    }
    let before = chain.split('(').next().unwrap_or_default();
    let parts: Vec<&str> = before.split(['.', ':']).filter(|part| !part.is_empty()).collect();
    let (_, owners) = parts.split_last()?;
    let owner = owners.iter().rev().find(|part| !PLUMBING.contains(&part.trim().to_lowercase().as_str()))?;
    Some(singular(&words(owner).join("")))
}

fn singular(name: &str) -> String {
    let name = name
        .trim_end_matches("repository")
        .trim_end_matches("repo")
        .trim_end_matches("model")
        .trim_end_matches("store");
    name.strip_suffix('s').unwrap_or(name).to_owned()
}
