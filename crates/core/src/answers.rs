//! The layer's own answers: from a refusal to a status, headers and a body.
//!
//! Unless the contract says otherwise they are RFC 9457 problem details with the members `code`, `retryable` and, where
//! trying again makes sense, `retry_after_ms`. Some clients need the API's own error envelope: stripe-node takes any JSON
//! body without an `error` member for a *successful* object, so a plain problem would reach its caller as a charge
//! without an id. `[answers] envelope = "stripe"` or a template of one's own shapes them.
//!
//! ```
//! use retrysafe_core::{answers::render, codes::Code, contract::Contract, decide::Refusal};
//!
//! # let text = include_str!("../tests/contract/small.toml");
//! let contract = Contract::parse(text, "retrysafe.toml")?;
//! let answer = render(&contract.answers, Refusal::of(Code::PayloadMismatch));
//! assert_eq!(answer.status, 409);
//! assert!(answer.body.contains(r#""code":"idempotency_key_payload_mismatch""#));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Limits: an own answer is never stored (S3) and holds nothing of the request; a template sees the values below and no
//! others: `code`, `title`, `detail`, `type` (texts), `status` (a number), `retryable` (true or false), `retry_after_ms`
//! and `retry_after_s` (numbers, or none where retrying does not help).

use std::{fmt, time::Duration};

use minijinja::{Environment, UndefinedBehavior, context};
use serde_json::json;

use crate::{codes::Code, contract::Answers, decide::Refusal};

/// The envelope of the Stripe API, for its SDKs.
pub const STRIPE: &str = include_str!("answers/stripe.jinja");

// minijinja escapes values by the ending of a template's name.
const JSON: &str = "answer.json";
const MARKUP: &str = "answer.html";
const PLAIN: &str = "answer.txt";

/// One of the layer's own answers, ready to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rendered {
    /// Its status.
    pub status: u16,
    /// Its headers; names are lower case, values visible ASCII.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: String,
}

/// Renders `refusal` as the contract shapes the layer's own answers.
pub fn render(answers: &Answers, refusal: Refusal) -> Rendered {
    let code = refusal.code;
    let status = status(answers, code);
    let mut headers = vec![("content-type".to_owned(), answers.content_type.clone())];
    if let Some(after) = refusal.retry_after {
        headers.push(("retry-after".to_owned(), seconds(after).to_string()));
    }
    if status == 401 {
        // RFC 9110, 15.5.2: a 401 names a way in.
        headers.push(("www-authenticate".to_owned(), "Bearer".to_owned()));
    }
    for own in &answers.headers {
        let value = if code.retryable() { &own.when_retryable } else { &own.when_final };
        headers.push((own.name.clone(), value.clone()));
    }
    let shaped = answers.template.as_ref().and_then(|template| template.fill(answers, refusal).ok());
    // A template that was good for every code at load time does not fail here; if it did, the caller still has to be told.
    let body = shaped.unwrap_or_else(|| problem(answers, refusal).to_string());
    Rendered { status, headers, body }
}

/// The status of a code under this contract.
pub fn status(answers: &Answers, code: Code) -> u16 {
    let own = answers.statuses.iter().find(|(of, _)| *of == code);
    own.map_or(code.status(), |(_, status)| *status)
}

fn problem(answers: &Answers, refusal: Refusal) -> serde_json::Value {
    let code = refusal.code;
    let mut problem = json!({
        "type": format!("{}{code}", answers.type_base),
        "title": code.title(),
        "status": status(answers, code),
        "detail": code.detail(),
        "code": code.as_str(),
        "retryable": code.retryable(),
    });
    if let Some(after) = refusal.retry_after {
        problem["retry_after_ms"] = json!(millis(after));
    }
    problem
}

/// `Retry-After` counts whole seconds. Rounded up: a client that comes too early is only refused again.
fn seconds(after: Duration) -> u64 {
    after.as_secs() + u64::from(after.subsec_nanos() > 0)
}

fn millis(after: Duration) -> u64 {
    u64::try_from(after.as_millis()).unwrap_or(u64::MAX)
}

/// A template for the API's own error envelope, compiled, and known to render for every code.
#[derive(Clone)]
pub struct Template {
    source: String,
    name: &'static str,
    compiled: Environment<'static>,
}

/// Why a template cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct TemplateFault {
    /// What is wrong, with its line in the template where that is known.
    pub message: String,
}

impl Template {
    /// Compiles `source` and renders it once for every code, with and without a Retry-After: no template fails for the
    /// first time in front of a caller.
    ///
    /// # Errors
    /// [`TemplateFault`] where it does not compile, asks for a value that does not exist, or is no JSON although the
    /// contract's content type says so.
    pub fn compile(source: &str, answers: &Answers) -> Result<Self, TemplateFault> {
        let mut compiled = Environment::new();
        let name = name(&answers.content_type);
        compiled.set_undefined_behavior(UndefinedBehavior::Strict);
        compiled.add_template_owned(name, source.to_owned()).map_err(|error| fault(&error))?;
        let template = Self { source: source.to_owned(), name, compiled };
        for code in Code::ALL {
            for retry_after in [None, Some(Duration::from_millis(1500))] {
                let body = template.fill(answers, Refusal { code, retry_after })?;
                if name == JSON {
                    serde_json::from_str::<serde::de::IgnoredAny>(&body).map_err(|error| TemplateFault {
                        message: format!(
                            "for {code} the template is no JSON ({error}); values bring their own quotes"
                        ),
                    })?;
                }
            }
        }
        Ok(template)
    }

    /// The text it was compiled from.
    pub fn source(&self) -> &str {
        &self.source
    }

    fn fill(&self, answers: &Answers, refusal: Refusal) -> Result<String, TemplateFault> {
        let code = refusal.code;
        let values = context! {
            code => code.as_str(),
            title => code.title(),
            detail => code.detail(),
            type => format!("{}{code}", answers.type_base),
            status => status(answers, code),
            retryable => code.retryable(),
            retry_after_ms => refusal.retry_after.map(millis),
            retry_after_s => refusal.retry_after.map(seconds),
        };
        let template = self.compiled.get_template(self.name).map_err(|error| fault(&error))?;
        template.render(values).map_err(|error| fault(&error))
    }
}

/// Values are escaped for the content type: no value can end a string or open a tag.
fn name(content_type: &str) -> &'static str {
    match content_type {
        text if text.contains("json") => JSON,
        text if text.contains("xml") || text.contains("html") => MARKUP,
        _ => PLAIN,
    }
}

fn fault(error: &minijinja::Error) -> TemplateFault {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let message = match error.line() {
        Some(line) => format!("line {line} of the template: {what}"),
        None => what,
    };
    TemplateFault { message }
}

impl PartialEq for Template {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Template {}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.source).finish()
    }
}
