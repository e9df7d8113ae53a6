//! A tree of source code, and the questions that are asked of it: what is named what, what is called with what.

use tree_sitter::Node;

use super::{Finding, Language};
use crate::{finding::Rule, words::folded};

/// At most this much of a line is quoted.
const QUOTE_MAX: usize = 120;

/// The text of a file and its language.
#[derive(Clone, Copy)]
pub(super) struct Code<'t> {
    pub(super) text: &'t str,
    pub(super) language: Language,
}

/// Something that has a name here: a variable, a field, an argument, a header.
pub(super) struct Named<'t> {
    /// Folded: `X-Idempotency_Key` is `xidempotencykey`.
    pub(super) name: String,
    pub(super) value: Node<'t>,
}

impl<'t> Code<'t> {
    pub(super) fn of(self, node: Node<'_>) -> &'t str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    /// Lower case, without spaces: for looking for what is written in many ways.
    pub(super) fn squeezed(self, node: Node<'_>) -> String {
        squeeze(self.of(node))
    }

    pub(super) fn finding(self, rule: &'static Rule, node: Node<'_>) -> Finding {
        let row = node.start_position().row;
        let line = self.text.lines().nth(row).unwrap_or_default().trim();
        Finding { rule, line: row + 1, quote: line.chars().take(QUOTE_MAX).collect() }
    }

    /// What a call calls, without its arguments.
    pub(super) fn callee(self, call: Node<'_>) -> String {
        let function =
            call.child_by_field_name("function").or_else(|| call.child_by_field_name("constructor"));
        function.map(|function| self.squeezed(function)).unwrap_or_default()
    }

    /// The arguments of a call.
    pub(super) fn arguments(self, call: Node<'t>) -> Vec<Node<'t>> {
        let Some(list) = call.child_by_field_name("arguments") else { return Vec::new() };
        let mut cursor = list.walk();
        list.named_children(&mut cursor).filter(|one| one.kind() != "comment").collect()
    }

    /// The calls below a node, itself included.
    pub(super) fn calls(self, node: Node<'t>) -> impl Iterator<Item = Node<'t>> {
        below(node).filter(move |one| self.language.is_call(one.kind()))
    }

    /// The names that a node gives to values, if it is one that does.
    fn named_here(self, node: Node<'t>) -> Vec<Named<'t>> {
        let pair = |name: &str, value: &str| {
            let (name, value) = (node.child_by_field_name(name)?, node.child_by_field_name(value)?);
            Some(Named { name: self.name(name), value })
        };
        let named = match node.kind() {
            "assignment" | "assignment_expression" | "assignment_statement" | "short_var_declaration" => {
                pair("left", "right")
            }
            "keyword_argument" | "variable_declarator" | "var_spec" | "named_expression" | "const_spec" => {
                pair("name", "value")
            }
            "pair" => pair("key", "value"),
            "let_declaration" => pair("pattern", "value"),
            "field_initializer" => pair("field", "value").or_else(|| pair("name", "value")),
            "shorthand_property_identifier" | "shorthand_field_initializer" => {
                Some(Named { name: self.name(node), value: node })
            }
            "keyed_element" => {
                let (name, value) = (node.named_child(0), node.named_child(1));
                name.zip(value).map(|(name, value)| Named { name: self.name(name), value })
            }
            kind if self.language.is_call(kind) => return self.named_by_call(node),
            _ => None,
        };
        Vec::from_iter(named)
    }

    /// `headers.insert("Idempotency-Key", v)` and `.idempotency_key(v)`.
    fn named_by_call(self, call: Node<'t>) -> Vec<Named<'t>> {
        let arguments = self.arguments(call);
        let mut named = Vec::new();
        if let [name, value, ..] = arguments.as_slice() {
            named.push(Named { name: self.name(*name), value: *value });
        }
        if let [value] = arguments.as_slice() {
            let callee = self.callee(call);
            let last = callee.rsplit(['.', ':']).next().unwrap_or_default();
            let name = folded(last);
            let name =
                ["set", "with", "add"].iter().find_map(|verb| name.strip_prefix(verb)).unwrap_or(&name);
            named.push(Named { name: name.to_owned(), value: *value });
        }
        named
    }

    /// Everything that gets a name below a node.
    pub(super) fn named(self, node: Node<'t>) -> impl Iterator<Item = Named<'t>> {
        below(node).flat_map(move |one| self.named_here(one))
    }

    /// `headers["Idempotency-Key"]`, `req.key`, `'key'`: what it is called, folded.
    fn name(self, node: Node<'_>) -> String {
        let text = self.of(node).trim();
        let text = match text.rfind('[') {
            Some(at) if text.ends_with(']') => &text[at + 1..text.len() - 1],
            _ => text,
        };
        let quoted = text.trim_matches(['"', '\'', '`', '[', ']']);
        let last =
            if quoted == text { text.rsplit(['.', ':', '>']).next().unwrap_or_default() } else { quoted };
        // `let mut key`, `key: &str`
        folded(last.trim_start_matches("mut "))
    }

    /// The innermost function around a node, or the whole file.
    pub(super) fn function(self, node: Node<'t>) -> Node<'t> {
        let mut at = node;
        while let Some(parent) = at.parent() {
            at = parent;
            if self.language.is_function(at.kind()) {
                break;
            }
        }
        at
    }

    /// The outermost function around a node, or the whole file where there is none.
    pub(super) fn whole_function(self, node: Node<'t>) -> Node<'t> {
        let mut found = None;
        let mut at = node;
        while let Some(parent) = at.parent() {
            if self.language.is_function(parent.kind()) {
                found = Some(parent);
            }
            at = parent;
        }
        found.unwrap_or(at)
    }
}

/// Every node below one, itself first, in the order of the text. No recursion: files nest as deep as they like.
pub(super) fn below<'t>(node: Node<'t>) -> impl Iterator<Item = Node<'t>> {
    let mut waiting = vec![node];
    std::iter::from_fn(move || {
        let next = waiting.pop()?;
        let mut cursor = next.walk();
        let children: Vec<Node<'t>> = next.named_children(&mut cursor).collect();
        waiting.extend(children.into_iter().rev());
        Some(next)
    })
}

pub(super) fn squeeze(text: &str) -> String {
    text.chars().filter(|one| !one.is_whitespace()).flat_map(char::to_lowercase).collect()
}

pub(super) fn holds(text: &str, any: &[&str]) -> bool {
    any.iter().any(|one| text.contains(one))
}
