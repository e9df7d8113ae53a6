//! What is carried out again after a failure: loops that retry, functions that something else retries.

use tree_sitter::Node;

use super::{
    Language,
    view::{Code, below, holds, squeeze},
};

/// What is repeated.
pub(super) struct Scope<'t> {
    /// The loop, or the function.
    pub(super) node: Node<'t>,
    /// What is carried out each time.
    pub(super) body: Node<'t>,
    /// It is a loop of this file, and not something that a library repeats.
    pub(super) is_loop: bool,
    /// Its head counts, or names attempts: it is there to be carried out more than once.
    pub(super) counted: bool,
}

/// A place where a failure is caught.
pub(super) struct Handler<'t> {
    pub(super) node: Node<'t>,
    /// What it catches, squeezed.
    pub(super) catches: String,
    pub(super) body: Node<'t>,
}

const ATTEMPTS: &[&str] = &["attempt", "retr", "tries", "backoff"];
/// Calls that bring the next piece of work: such a loop goes on with something else.
const WORK: &[&str] = &[
    ".recv(",
    ".receive(",
    ".try_recv(",
    ".recv_timeout(",
    ".send_timeout(",
    ".receivemessage(",
    ".poll(",
    ".pop(",
    ".get_message(",
    ".accept(",
    ".dequeue(",
    "lpop(",
    "brpop(",
    "readmessage(",
    "fetchmessage(",
    ".take(",
    "queue.get(",
    ".next(",
    "consume(",
    "getnext",
    "next_job(",
    "nextjob(",
    "xreadgroup(",
    "receive_messages(",
];
pub(super) const SLEEPS: &[&str] = &[
    "sleep",
    "delay",
    "settimeout",
    "sleep_ms",
    "pause",
    "usleep",
    "after",
    "wait",
    "asyncsleep",
    "sleepasync",
];

/// Everything in a file that is carried out again after a failure.
pub(super) fn retries<'t>(code: Code<'t>, root: Node<'t>) -> Vec<Scope<'t>> {
    let mut found = Vec::new();
    for node in below(root) {
        if code.language.is_loop(node.kind()) {
            if let Some(body) = node.child_by_field_name("body")
                && is_retry(code, node, body)
            {
                let head = squeeze(&code.text[node.start_byte()..body.start_byte()]);
                let counted = !matches!(
                    head.as_str(),
                    "loop" | "whiletrue" | "while1:" | "whiletrue:" | "while(true)" | "for(;;)" | "for"
                );
                found.push(Scope { node, body, is_loop: true, counted });
            }
        } else if let Some(body) = repeated_by_another(code, node) {
            found.push(Scope { node, body, is_loop: false, counted: true });
        }
    }
    found
}

fn is_retry<'t>(code: Code<'t>, node: Node<'t>, body: Node<'t>) -> bool {
    let whole = code.of(node);
    let body_at = body.start_byte() - node.start_byte();
    let behind = body.end_byte() - node.start_byte();
    let header = squeeze(&whole[..body_at]) + &squeeze(&whole[behind..]);
    let text = code.squeezed(body);
    // Whoever retries stops at the first success; what goes on after it is work that repeats.
    if over_items(code, node, &header) || !ends_on_success(code, body, &header) {
        return false;
    }
    if holds(&header, ATTEMPTS) {
        return true;
    }
    // "If it worked, return" is the same, told from the other side.
    let caught = !handlers(code, body).is_empty() || holds(&text, &["err==nil", "ifletok("]);
    if !caught || holds(&text, WORK) || by_index(code, node, &text) {
        return false;
    }
    let endless = matches!(
        header.as_str(),
        "loop" | "whiletrue" | "while1:" | "whiletrue:" | "while(true)" | "for(;;)" | "for"
    );
    let counted = match code.language {
        Language::Python => header.contains("inrange("),
        Language::Rust => header.contains(".."),
        _ => node.kind() == "for_statement",
    };
    endless && goes_on(code, body)
        || counted
        || node.kind().starts_with("while") && sleeps(code, body).next().is_some()
        || node.kind() == "do_statement"
}

/// Whether something ends a loop from within, other than the handling of a failure, or its condition asks whether it is done.
fn ends_on_success<'t>(code: Code<'t>, body: Node<'t>, header: &str) -> bool {
    let asked = holds(header, &["done", "success", "ok", "sent", "result", "!"]);
    let caught: Vec<_> = handlers(code, body).iter().map(|handler| handler.body.byte_range()).collect();
    asked
        || below(body)
            .filter(|one| code.language.leaves(one.kind()))
            .any(|one| !caught.iter().any(|range| range.contains(&one.start_byte())))
}

/// Whether a loop takes one thing after another: then its second round is no second attempt.
fn over_items(code: Code<'_>, node: Node<'_>, header: &str) -> bool {
    match code.language {
        Language::Python => {
            node.kind() == "for_statement"
                && !holds(header, &["range(", "count("])
                && !header.contains("backoff")
        }
        Language::Rust => {
            node.kind() == "for_expression"
                && !header.contains("..")
                && !holds(header, &["backoff", "delays"])
        }
        Language::Go => {
            header.contains("range")
                && !holds(
                    header,
                    &["rangemax", "rangeattempts", "rangeretries", "range3", "range5", "range10"],
                )
        }
        _ => node.kind() == "for_in_statement",
    }
}

/// Whether a counting loop uses its count to choose an item.
fn by_index(code: Code<'_>, node: Node<'_>, body: &str) -> bool {
    let mut names = below(node).take(12).filter(|one| one.kind() == "identifier");
    let Some(first) = names.next() else { return false };
    body.contains(&format!("[{}]", code.of(first).to_lowercase()))
}

/// An endless loop that goes on after a failure, because it sleeps or says so.
pub(super) fn goes_on<'t>(code: Code<'t>, body: Node<'t>) -> bool {
    sleeps(code, body).next().is_some()
        || below(body).any(|one| matches!(one.kind(), "continue_statement" | "continue_expression"))
}

/// The calls that wait, below a node, with what they wait for.
pub(super) fn sleeps<'t>(code: Code<'t>, node: Node<'t>) -> impl Iterator<Item = (Node<'t>, Node<'t>)> {
    code.calls(node).filter_map(move |call| {
        let callee = code.callee(call);
        let last = callee.rsplit(['.', ':']).next().unwrap_or_default().to_owned();
        let plain = match last.as_str() {
            "after" => callee == "time.after",
            "wait" => callee == "wait",
            last => SLEEPS.contains(&last),
        };
        let arguments = code.arguments(call);
        // setTimeout takes the time last, everything else takes it first.
        let time = if last == "settimeout" { arguments.get(1) } else { arguments.first() };
        time.copied().filter(|_| plain).map(|time| (call, time))
    })
}

/// The places below a node where a failure is caught.
pub(super) fn handlers<'t>(code: Code<'t>, node: Node<'t>) -> Vec<Handler<'t>> {
    below(node).filter_map(|one| handler(code, one)).collect()
}

fn handler<'t>(code: Code<'t>, node: Node<'t>) -> Option<Handler<'t>> {
    let squeezed = |node: Node<'_>| code.squeezed(node);
    let (catches, body) = match (code.language, node.kind()) {
        (Language::Python, "except_clause") => {
            let body = below(node).find(|one| one.kind() == "block")?;
            let catches = squeeze(&code.of(node)[..body.start_byte() - node.start_byte()]);
            (catches.strip_prefix("except").unwrap_or(&catches).trim_end_matches(':').to_owned(), body)
        }
        (Language::Rust, "match_arm") => {
            let catches = squeezed(node.child_by_field_name("pattern")?);
            (catches.starts_with("err(").then_some(catches)?, node.child_by_field_name("value")?)
        }
        (Language::Rust, "if_expression") => {
            let condition = squeezed(node.child_by_field_name("condition")?);
            let caught = condition.strip_prefix("leterr(")?;
            (format!("err({}", caught.split('=').next()?), node.child_by_field_name("consequence")?)
        }
        (Language::Go, "if_statement") => {
            let condition = squeezed(node.child_by_field_name("condition")?);
            (condition.contains("err!=nil").then_some(condition)?, node.child_by_field_name("consequence")?)
        }
        (_, "catch_clause") => {
            let catches = node.child_by_field_name("parameter").map(squeezed).unwrap_or_default();
            (catches, node.child_by_field_name("body")?)
        }
        _ => return None,
    };
    Some(Handler { node, catches, body })
}

/// A function that is handed to something that retries, or decorated with it.
fn repeated_by_another<'t>(code: Code<'t>, node: Node<'t>) -> Option<Node<'t>> {
    let retries = |text: &str| holds(text, &["retry", "retries", "backoff."]);
    if node.kind() == "decorated_definition" {
        let mut cursor = node.walk();
        let decorated = node
            .named_children(&mut cursor)
            .any(|one| one.kind() == "decorator" && retries(&code.squeezed(one)));
        return node.child_by_field_name("definition").filter(|_| decorated)?.child_by_field_name("body");
    }
    if !code.language.is_function(node.kind()) {
        return None;
    }
    let arguments = node.parent()?;
    let call = arguments.parent().filter(|call| code.language.is_call(call.kind()))?;
    let callee = code.callee(call);
    let last = callee.rsplit(['.', ':']).next().unwrap_or_default();
    let by_package = ["retry.do", "backoff.retry", "retry::spawn", "retry_async"]
        .iter()
        .any(|known| callee.contains(known));
    (by_package || last.contains("retry") || last.contains("retries"))
        .then(|| node.child_by_field_name("body"))?
}
