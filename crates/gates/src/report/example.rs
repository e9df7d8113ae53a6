//! A counter-example: who was sent and told what, when, and the commands that show it by hand.

use serde::Serialize;

use crate::arms::{Exchange, Round, Step};
use crate::plan::{Base, Shown};
use crate::wire::Filled;

/// More lines say nothing more.
const CURLS_MAX: usize = 4;

/// One round that broke a promise.
#[derive(Clone, Debug, Serialize)]
pub struct Counterexample {
    /// Which round.
    pub round: u32,
    /// How its requests arrived.
    pub shape: String,
    /// What each observer counted.
    pub effects: Vec<(String, u64)>,
    /// One line for each request, by the time it was sent.
    pub timeline: Vec<Line>,
    /// Commands for a shell.
    pub curl: Vec<String>,
}

/// One request.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Its part in the round.
    pub step: String,
    /// Which request: A, B.
    pub request: String,
    /// Where it went.
    pub base: String,
    /// Milliseconds since the round's first request was complete.
    pub sent_ms: f64,
    /// It was complete.
    pub complete_ms: f64,
    /// Its answer was there.
    pub done_ms: f64,
    /// What it was told.
    pub told: String,
    /// The status; none without an answer.
    pub status: Option<u16>,
}

impl Counterexample {
    /// From the round itself.
    #[must_use]
    pub fn of(round: &Round, shown: &Shown<'_>) -> Self {
        // From the moment at which the first request was complete: how long the bytes before lay there says nothing.
        let start = round.exchanges.iter().map(|it| it.timed.last_sent).min().unwrap_or_default();
        let ms = |at: std::time::Duration| at.saturating_sub(start).as_secs_f64() * 1_000.0;
        let line = |exchange: &Exchange| Line {
            step: exchange.step.word().to_owned(),
            request: letter(exchange.variant),
            base: shown.bases.get(exchange.base).map(|base| base.authority.clone()).unwrap_or_default(),
            sent_ms: ms(exchange.timed.first_sent),
            complete_ms: ms(exchange.timed.last_sent),
            done_ms: ms(exchange.timed.done),
            told: exchange.told.word(),
            status: exchange.timed.outcome.as_ref().ok().map(|answer| answer.status),
        };
        let mut timeline: Vec<Line> = round.exchanges.iter().map(line).collect();
        timeline.sort_by(|one, two| one.complete_ms.total_cmp(&two.complete_ms));
        Self {
            round: round.number,
            shape: round.shape.word().to_owned(),
            effects: round.seen.iter().map(|seen| (seen.observer.clone(), seen.total)).collect(),
            timeline,
            curl: commands(round, shown),
        }
    }
}

fn letter(variant: usize) -> String {
    let letter = u8::try_from(variant % 26).map_or('?', |at| char::from(b'A' + at));
    letter.to_string()
}

/// Commands that do the same by hand: what was together, in the background; then the rest.
fn commands(round: &Round, shown: &Shown<'_>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let together: Vec<&Exchange> = round.exchanges.iter().filter(|it| it.step == Step::Race).collect();
    for exchange in round.exchanges.iter().filter(|it| it.step == Step::First) {
        lines.push(command(&exchange.request, base(exchange, shown), shown));
    }
    let mut known: Vec<(&Filled, usize)> = Vec::new();
    for exchange in &together {
        if !known.iter().any(|(request, at)| **request == exchange.request && *at == exchange.base) {
            known.push((&exchange.request, exchange.base));
        }
    }
    for (request, at) in known.iter().take(CURLS_MAX) {
        let count = together.iter().filter(|it| it.request == **request && it.base == *at).count();
        let to = shown.bases.get(*at);
        lines.push(format!("for n in $(seq {count}); do {} & done", command(request, to, shown)));
    }
    if !together.is_empty() {
        lines.push("wait".to_owned());
    }
    let after = round.exchanges.iter().filter(|it| it.step == Step::After);
    lines.extend(
        after.take(CURLS_MAX).map(|exchange| command(&exchange.request, base(exchange, shown), shown)),
    );
    lines
}

fn base<'a>(exchange: &Exchange, shown: &Shown<'a>) -> Option<&'a Base> {
    shown.bases.get(exchange.base)
}

/// One curl command. Credentials stand in it as variables, to be set by whoever runs it.
pub(crate) fn command(request: &Filled, base: Option<&Base>, shown: &Shown<'_>) -> String {
    let (authority, prefix) = base.map_or(("", ""), |base| (base.authority.as_str(), base.prefix.as_str()));
    let scheme = base.map_or("http", Base::scheme);
    let url = quoted(&format!("{scheme}://{authority}{prefix}{}", request.path));
    let mut line = format!("curl -si -X {} {url}", request.method);
    if let Some(file) = base.and_then(|base| base.trust.as_ref()?.file()) {
        line += &format!(" --cacert {}", quoted(file));
    }
    for (name, value) in &request.headers {
        line += &if shown.is_secret(name) {
            let variable: String = name
                .to_ascii_uppercase()
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
                .collect();
            format!(" -H \"{name}: ${variable}\"")
        } else {
            format!(" -H {}", quoted(&format!("{name}: {value}")))
        };
    }
    if let Some(body) = &request.body {
        if !request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            line += " -H 'content-type: application/json'";
        }
        line += &format!(" --data-raw {}", quoted(body));
    }
    line
}

/// For a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn a_command_can_be_pasted_and_holds_no_credential() {
        let plan = Plan::parse(
            "base = 'http://127.0.0.1:8080/api'\n[request]\npath = '/o'\nbody = '{\"n\": \"{{nonce}}\"}'\nheaders = { Authorization = 'Bearer s3cret', Accept = 'a/b' }\n[[observe]]\nkind = 'log'\nfile = 'f'\n",
            "gates.toml",
        )
        .expect("a plan");
        let request = Filled {
            method: "POST".into(),
            path: "/o".into(),
            headers: vec![("Authorization".into(), "Bearer s3cret".into()), ("Accept".into(), "a/b".into())],
            body: Some("it's".into()),
        };
        let line = command(&request, plan.bases.first(), &plan.shown());
        assert_eq!(
            line,
            "curl -si -X POST 'http://127.0.0.1:8080/api/o' -H \"Authorization: $AUTHORIZATION\" -H 'Accept: a/b' \
             -H 'content-type: application/json' --data-raw 'it'\\''s'"
        );
    }
}
