//! From facts to a page: the texts of a language, the examples of six, and HTML that needs no other file.

use clap::ValueEnum;
use minijinja::{Environment, UndefinedBehavior, syntax::SyntaxConfig, value::Serde};
use pulldown_cmark::{Options, Parser, html};
use serde_json::{Value, json};

/// The page's language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Language {
    /// English
    En,
    /// Japanese
    Ja,
}

/// The page's form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Format {
    Markdown,
    Html,
}

impl Format {
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Markdown => "md",
            Self::Html => "html",
        }
    }
}

/// One of the documents that a contract makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Topic {
    /// All that a caller has to know
    Retrying,
    /// What becomes of a key, step by step
    Life,
    /// The arithmetic of retries, with this contract's numbers
    Formulas,
    /// What other APIs and their clients do, each fact with its source
    Vendors,
}

impl Topic {
    pub(super) const ALL: [Topic; 4] = [Self::Retrying, Self::Life, Self::Formulas, Self::Vendors];

    /// The name of its file, without an ending.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Life => "life-of-a-key",
            Self::Formulas => "formulas",
            Self::Vendors => "vendors",
        }
    }

    fn text(self, language: Language) -> &'static str {
        match (language, self) {
            (Language::En, Self::Retrying) => include_str!("../../assets/docs/en.md"),
            (Language::En, Self::Life) => include_str!("../../assets/docs/en/life.md"),
            (Language::En, Self::Formulas) => include_str!("../../assets/docs/en/formulas.md"),
            (Language::En, Self::Vendors) => include_str!("../../assets/docs/en/vendors.md"),
            (Language::Ja, Self::Retrying) => include_str!("../../assets/docs/ja.md"),
            (Language::Ja, Self::Life) => include_str!("../../assets/docs/ja/life.md"),
            (Language::Ja, Self::Formulas) => include_str!("../../assets/docs/ja/formulas.md"),
            (Language::Ja, Self::Vendors) => include_str!("../../assets/docs/ja/vendors.md"),
        }
    }
}

/// An example's programming language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Example {
    Curl,
    Python,
    Node,
    Go,
    Java,
    Rust,
}

impl Example {
    const ALL: [Example; 6] = [Self::Curl, Self::Python, Self::Node, Self::Go, Self::Java, Self::Rust];

    /// Its name for people, the name of its highlighting, and its template.
    fn parts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Curl => ("curl", "sh", include_str!("../../assets/docs/examples/curl.sh")),
            Self::Python => ("Python", "python", include_str!("../../assets/docs/examples/retry.py")),
            Self::Node => ("Node", "js", include_str!("../../assets/docs/examples/retry.mjs")),
            Self::Go => ("Go", "go", include_str!("../../assets/docs/examples/retry.go.txt")),
            Self::Java => ("Java", "java", include_str!("../../assets/docs/examples/Retry.java")),
            Self::Rust => ("Rust", "rust", include_str!("../../assets/docs/examples/retry.rs.txt")),
        }
    }
}

const STYLE: &str = include_str!("../../assets/docs/style.css");

/// A page to be.
pub(super) struct Page {
    facts: Value,
    templates: Environment<'static>,
}

impl Page {
    /// # Errors
    /// What the template engine says.
    pub(super) fn new(facts: Value) -> Result<Self, String> {
        let mut templates = Environment::new();
        // A name that the facts do not have is a fault of ours, and must not become a gap in somebody's documents.
        templates.set_undefined_behavior(UndefinedBehavior::Strict);
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true);
        templates.set_syntax(syntax.build().map_err(|error| format!("{error:#}"))?);
        Ok(Self { facts, templates })
    }

    /// # Errors
    /// What the template engine says.
    pub(super) fn render(&self, topic: Topic, language: Language, format: Format) -> Result<String, String> {
        let markdown = self.markdown(topic, language, format)?;
        match format {
            Format::Markdown => Ok(markdown),
            Format::Html => Ok(self.html(&markdown, language)),
        }
    }

    /// One example.
    ///
    /// # Errors
    /// What the template engine says, or that the contract has no endpoint with a key.
    pub(super) fn example(&self, example: Example) -> Result<String, String> {
        let values = &self.facts["example"];
        if values.is_null() {
            return Err("no endpoint of the contract takes a key, so there is no example".to_owned());
        }
        self.filled(example.parts().2, values)
    }

    fn markdown(&self, topic: Topic, language: Language, format: Format) -> Result<String, String> {
        let text = topic.text(language);
        let mut values = self.facts.clone();
        values["extension"] = format.extension().into();
        let mut examples = Vec::new();
        if !self.facts["example"].is_null() {
            for one in Example::ALL {
                let (name, fence, _) = one.parts();
                examples.push(json!({ "name": name, "fence": fence, "code": self.example(one)?.trim_end() }));
            }
        }
        values["examples"] = Value::Array(examples);
        self.filled(text, &values)
    }

    fn filled(&self, template: &str, values: &Value) -> Result<String, String> {
        self.templates.render_str(template, Serde(values)).map_err(|error| format!("{error:#}"))
    }

    fn html(&self, markdown: &str, language: Language) -> String {
        let mut body = String::new();
        html::push_html(&mut body, Parser::new_ext(markdown, Options::ENABLE_TABLES));
        let lang = match language {
            Language::En => "en",
            Language::Ja => "ja",
        };
        let title = markdown.lines().next().unwrap_or_default().trim_start_matches(['#', ' ']);
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<!doctype html>\n<html lang=\"{lang}\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
        )
    }
}
