//! P105 to P107: loops that retry everything, in step with each other, or without an end.

use tree_sitter::Node;

use super::{
    Finding, Language,
    scopes::{Handler, Scope, goes_on, handlers, sleeps},
    view::{Code, below, holds, squeeze},
};
use crate::finding as rule;

/// What tells one failure from another, squeezed.
const TELLS: &[&str] = &[
    "retryable",
    "retriable",
    "transient",
    "istimeout",
    "is_timeout",
    "isconnect",
    "is_connect",
    "errors.is(",
    "errors.as(",
    "status",
    ".code",
    "isinstance(",
    "instanceof",
    "permanent",
    "fatal",
    "temporary",
    "shouldretry",
    "should_retry",
    "canretry",
    "can_retry",
    ".kind()",
    ".errno",
    "asfatal",
    "is_server_error",
    "is_client_error",
    ".name==",
    "matcherr",
    "matche{",
    "timeout()",
];
const RANDOM: &[&str] = &["rand", "jitter", "uniform", "shuffle"];
/// What a delay is computed with, which says nothing of chance.
const PLAIN: &[&str] = &[
    "pow",
    "min",
    "max",
    "duration::from_millis",
    "duration::from_secs",
    "duration::from_secs_f64",
    "duration::from_secs_f32",
    "from_millis",
    "from_secs",
    "int",
    "float",
    "math.pow",
    "math.min",
    "math.max",
    "time.duration",
    "saturating_mul",
    "number",
    "duration",
    "saturating_pow",
    "math.pow2",
    "u64::pow",
    "timedelta",
    "as_secs",
    "checked_mul",
    "float64",
    "total_seconds",
    "1u64.pow",
    "2u64.pow",
    "2_u64.pow",
];
const DEADLINES: &[&str] =
    &["deadline", "giveup", "expiresat", "overall", "total", "until", "endtime", "stopat"];
const CLOCKS: &[&str] = &[
    "now()",
    "time.time()",
    "time.monotonic()",
    "date.now()",
    "loop.time()",
    "performance.now()",
    "utcnow()",
];

pub(super) fn find<'t>(code: Code<'t>, root: Node<'t>, scopes: &[Scope<'t>]) -> Vec<Finding> {
    let mut found = Vec::new();
    for scope in scopes.iter().filter(|scope| scope.is_loop) {
        found.extend(everything(code, scope));
        found.extend(in_step(code, root, scope));
        found.extend(reset(code, scope));
    }
    if code.language == Language::Python {
        found.extend(
            below(root).filter(|one| one.kind() == "decorator").flat_map(|one| decorator(code, root, one)),
        );
    }
    found
}

/// Loops of programs without locks: what fails there is a race, and trying again is the only answer.
const LOCK_FREE: &[&str] = &[
    "compare_exchange",
    "compareandswap",
    "compare_and_swap",
    "compareandset",
    "ordering::",
    "fetch_update",
    "try_lock",
];

/// P105: a failure that no attempt mends is tried again.
fn everything<'t>(code: Code<'t>, scope: &Scope<'t>) -> Vec<Finding> {
    if holds(&code.squeezed(scope.node), LOCK_FREE) {
        return Vec::new();
    }
    let all = handlers(code, scope.body);
    let waits = sleeps(code, scope.body)
        .any(|(call, _)| !all.iter().any(|one| one.body.byte_range().contains(&call.start_byte())));
    let mut found: Vec<Finding> = all
        .iter()
        .filter(|handler| scope.counted || waits || goes_on(code, handler.body))
        .filter(|handler| takes_all(code, handler) && !leaves(code, handler.body) && !tells(code, handler))
        // A second handler is what tells them apart.
        .filter(|handler| all.iter().filter(|other| same_try(handler.node, other.node)).count() == 1)
        .map(|handler| code.finding(&rule::P105, handler.node))
        .collect();
    let text = code.squeezed(scope.body);
    if found.is_empty() && all.is_empty() && sleeps(code, scope.body).next().is_some() && !holds(&text, TELLS)
    {
        // The other way round: "if it worked, return"; everything else sleeps and tries again.
        let worked = match code.language {
            Language::Go => holds(&text, &["err==nil{"]),
            Language::Rust => holds(&text, &["ifletok(", ".is_ok()"]),
            _ => false,
        };
        found.extend(worked.then(|| code.finding(&rule::P105, scope.node)));
    }
    found
}

fn takes_all(code: Code<'_>, handler: &Handler<'_>) -> bool {
    let catches = &handler.catches;
    match code.language {
        Language::Python => {
            let class = catches.split("as").next().unwrap_or_default();
            catches.is_empty() || matches!(class, "exception" | "baseexception") || catches == "exception"
        }
        // `Err(e) if e.is_timeout()`, `Err(Error::Timeout)`
        Language::Rust => {
            let inside = catches.strip_prefix("err(").and_then(|rest| rest.strip_suffix(')')).unwrap_or("if");
            inside.chars().all(|one| one.is_alphanumeric() || one == '_')
        }
        Language::Go => matches!(catches.as_str(), "err!=nil") || catches.ends_with(";err!=nil"),
        _ => true,
    }
}

/// Whether a handler ends the loop whatever happened.
fn leaves(code: Code<'_>, body: Node<'_>) -> bool {
    let ends = |node: Node<'_>| {
        code.language.leaves(node.kind())
            || node.kind() == "expression_statement"
                && node.named_child(0).is_some_and(|one| code.language.leaves(one.kind()))
    };
    let mut cursor = body.walk();
    // Go keeps the statements of a block in a list of their own.
    let statements: Vec<Node<'_>> = body.named_children(&mut cursor).collect();
    let inner = statements.iter().find(|one| one.kind() == "statement_list").map(|list| {
        let mut cursor = list.walk();
        list.named_children(&mut cursor).collect::<Vec<_>>()
    });
    ends(body) || inner.unwrap_or(statements).into_iter().any(ends)
}

fn tells(code: Code<'_>, handler: &Handler<'_>) -> bool {
    let text = code.squeezed(handler.body);
    if holds(&text, TELLS) {
        return true;
    }
    // `if (isNetworkError(err))`, `match e { ... }`: what asks about the failure itself.
    let name: String =
        handler.catches.rsplit(['(', 's']).next().unwrap_or_default().trim_matches([')', '(']).to_owned();
    let name = match code.language {
        Language::Go => "err".to_owned(),
        Language::Rust => handler.catches.trim_start_matches("err(").trim_end_matches(')').to_owned(),
        Language::Python => {
            handler.catches.rsplit_once("as").map_or(String::new(), |(_, name)| name.to_owned())
        }
        _ => {
            if handler.catches.is_empty() {
                name
            } else {
                handler.catches.split(':').next().unwrap_or_default().to_owned()
            }
        }
    };
    if name.is_empty() || name == "_" {
        return false;
    }
    below(handler.body)
        .filter(|one| {
            matches!(one.kind(), "if_statement" | "if_expression" | "match_expression" | "switch_statement")
        })
        .any(|one| {
            let asked = one.child_by_field_name("condition").or_else(|| one.child_by_field_name("value"));
            asked.is_some_and(|asked| {
                below(asked).any(|part| {
                    part.kind().contains("identifier") && code.of(part).eq_ignore_ascii_case(&name)
                })
            })
        })
}

fn same_try(one: Node<'_>, other: Node<'_>) -> bool {
    one.parent().map(|parent| parent.id()) == other.parent().map(|parent| parent.id())
        && one.kind() == other.kind()
        && one.kind() != "if_statement"
        || one.id() == other.id()
}

/// P106: delays that are the same for everybody who failed at the same moment.
fn in_step<'t>(code: Code<'t>, root: Node<'t>, scope: &Scope<'t>) -> Vec<Finding> {
    let around = code.squeezed(code.whole_function(scope.node));
    // A random id is no random delay.
    if holds(&around.replace("randomuuid", "").replace("randombytes", ""), RANDOM) {
        return Vec::new();
    }
    // A loop that only asks whether something is done waits for no failure.
    let failing = !handlers(code, scope.body).is_empty()
        || holds(
            &code.squeezed(scope.body),
            &["status", ".ok", "err==nil", "ok(", "is_ok", "success", "error"],
        );
    if !failing {
        return Vec::new();
    }
    let counted = sleeps(code, scope.body).filter(|(_, time)| plain_delay(code, root, *time));
    counted.map(|(call, _)| code.finding(&rule::P106, call)).collect()
}

/// Whether a delay is computed without chance. What comes from elsewhere (a Retry-After, a function of another file) is not known.
fn plain_delay<'t>(code: Code<'t>, root: Node<'t>, time: Node<'t>) -> bool {
    let text = code.squeezed(time);
    if holds(&text, &["retryafter", "retry_after", "retry-after"]) || text == "0" {
        return false;
    }
    for call in code.calls(time) {
        let callee = code.callee(call);
        let last = callee.rsplit(['.', ':']).next().unwrap_or_default();
        if is_plain(&callee) {
            continue;
        }
        // A helper of this file is looked into; others are not known.
        let helper = below(root).find(|one| {
            code.language.is_function(one.kind())
                && one.child_by_field_name("name").is_some_and(|name| code.squeezed(name) == last)
        });
        let Some(helper) = helper else { return false };
        if holds(&code.squeezed(helper), RANDOM) {
            return false;
        }
    }
    // A name that is set from a header or a parameter of an unknown kind.
    let given = below(time).filter(|one| one.kind() == "identifier").any(|one| {
        let name = code.of(one);
        let set =
            code.named(code.whole_function(time)).filter(|named| named.name == crate::words::folded(name));
        set.into_iter().any(|named| {
            let value = code.squeezed(named.value);
            let header =
                holds(&value, &["retry-after", "retryafter", "retry_after", "headers", "header.get"]);
            // What another function says is not known.
            header || code.calls(named.value).any(|call| !is_plain(&code.callee(call)))
        })
    });
    !given
}

/// Whether a call only computes: `min(20, base * 2)`.
fn is_plain(callee: &str) -> bool {
    PLAIN.contains(&callee) || callee.rsplit(['.', ':']).next().is_some_and(|last| PLAIN.contains(&last))
}

/// P107: the time for all attempts begins anew with each of them.
fn reset<'t>(code: Code<'t>, scope: &Scope<'t>) -> Vec<Finding> {
    let mut found = Vec::new();
    for named in code.named(scope.body) {
        let value = code.squeezed(named.value);
        let reads = holds(&value, CLOCKS) && value.contains('+') || value.starts_with("time.now().add(");
        if reads && holds(&named.name, DEADLINES) && !named.name.contains("attempt") {
            found.push(code.finding(&rule::P107, named.value));
        }
        if named.name.contains("timeout")
            && holds(&value, &["total", "overall"])
            && !holds(&value, &["-", "remaining", "elapsed"])
        {
            found.push(code.finding(&rule::P107, named.value));
        }
    }
    for call in code.calls(scope.body) {
        let callee = code.callee(call);
        let text = squeeze(code.of(call));
        let background = holds(&callee, &["context.withtimeout", "context.withdeadline"])
            && holds(&text, &["(context.background()", "(context.todo()"]);
        let first = code.arguments(call).first().map(|one| code.squeezed(*one)).unwrap_or_default();
        let last = callee.rsplit(['.', ':']).next().unwrap_or_default();
        let whole = matches!(last, "timeout" | "wait_for" | "waitfor")
            && holds(&first, &["total", "overall"])
            && !holds(&first, &["-", "remaining", "saturating_sub"]);
        if background || whole {
            found.push(code.finding(&rule::P107, call));
        }
    }
    found
}

/// Decorators of Python that retry.
fn decorator<'t>(code: Code<'t>, root: Node<'t>, node: Node<'t>) -> Vec<Finding> {
    let text = code.squeezed(node);
    let called = text.trim_start_matches('@').split('(').next().unwrap_or_default();
    let last = called.rsplit('.').next().unwrap_or_default();
    if !matches!(last, "retry" | "on_exception" | "retry_on_exception") {
        return Vec::new();
    }
    // A decorator of one's own says inside what it retries.
    let own = below(root).any(|one| {
        one.kind() == "function_definition"
            && one.child_by_field_name("name").is_some_and(|name| code.squeezed(name) == last)
    });
    if own {
        return Vec::new();
    }
    let mut found = Vec::new();
    let named =
        holds(&text, &["error", "timeout", "retry=", "retry_if", "retry_on", "exceptions=(", "giveup="]);
    let every = ["(exception)", "(exception,", ",exception)", ",exception,", "=exception,", "=exception)"]
        .iter()
        .any(|every| text.contains(every))
        || text.contains("retry_if_exception_type()");
    if every || !named {
        found.push(code.finding(&rule::P105, node));
    }
    let in_step = holds(
        &text,
        &["wait_exponential(", "wait_fixed(", "wait_incrementing(", "jitter=none", "backoff=2", "delay="],
    );
    let random = holds(
        &text,
        &[
            "random",
            "wait_exponential_jitter",
            "jitter=(",
            "jitter=full",
            "jitter=backoff",
            "jitter=1",
            "jitter=0.",
            "jitter=true",
        ],
    );
    if in_step && !random {
        found.push(code.finding(&rule::P106, node));
    }
    found
}
