//! What the grammars call things.

/// A language that is read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Language {
    /// Rust.
    Rust,
    /// Python.
    Python,
    /// JavaScript, with JSX.
    JavaScript,
    /// TypeScript.
    TypeScript,
    /// TypeScript with JSX.
    Tsx,
    /// Go.
    Go,
}

impl Language {
    /// By the ending of a file's name.
    pub fn of(extension: &str) -> Option<Self> {
        Some(match extension {
            "rs" => Self::Rust,
            "py" => Self::Python,
            "js" | "mjs" | "cjs" | "jsx" => Self::JavaScript,
            "ts" | "mts" | "cts" => Self::TypeScript,
            "tsx" => Self::Tsx,
            "go" => Self::Go,
            _ => return None,
        })
    }

    pub(super) fn grammar(self) -> tree_sitter::Language {
        match self {
            Self::Rust => tree_sitter_rust::LANGUAGE.into(),
            Self::Python => tree_sitter_python::LANGUAGE.into(),
            Self::JavaScript => tree_sitter_javascript::LANGUAGE.into(),
            Self::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(),
            Self::Tsx => tree_sitter_typescript::LANGUAGE_TSX.into(),
            Self::Go => tree_sitter_go::LANGUAGE.into(),
        }
    }

    /// Loops.
    pub(super) fn is_loop(self, kind: &str) -> bool {
        match self {
            Self::Rust => matches!(kind, "loop_expression" | "while_expression" | "for_expression"),
            Self::Python => matches!(kind, "for_statement" | "while_statement"),
            Self::Go => kind == "for_statement",
            _ => matches!(kind, "for_statement" | "while_statement" | "do_statement" | "for_in_statement"),
        }
    }

    /// Functions with or without a name.
    pub(super) fn is_function(self, kind: &str) -> bool {
        match self {
            Self::Rust => matches!(kind, "function_item" | "closure_expression"),
            Self::Python => matches!(kind, "function_definition" | "lambda"),
            Self::Go => matches!(kind, "function_declaration" | "method_declaration" | "func_literal"),
            _ => matches!(
                kind,
                "function_declaration"
                    | "function_expression"
                    | "arrow_function"
                    | "method_definition"
                    | "generator_function"
            ),
        }
    }

    /// Calls.
    pub(super) fn is_call(self, kind: &str) -> bool {
        match self {
            Self::Python => kind == "call",
            _ => matches!(kind, "call_expression" | "new_expression"),
        }
    }

    /// What ends a function or a loop where it stands.
    pub(super) fn leaves(self, kind: &str) -> bool {
        matches!(
            kind,
            "return_statement"
                | "raise_statement"
                | "throw_statement"
                | "break_statement"
                | "return_expression"
                | "break_expression"
        )
    }
}
