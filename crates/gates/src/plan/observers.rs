//! Where effects are counted.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use retrysafe_core::contract::walk::{Item, Section, Wrong, header, said};
use serde_json_path::JsonPath;

use super::fields::{DATABASE, KINDS, STUB};
use super::operations::{headers, template};
use super::read::Env;
use super::{DatabasePlan, Observer, Source, StubPlan, Template, Values};

const HOLD_AT_MOST: Duration = Duration::from_secs(2);
const AWAY: Duration = Duration::from_secs(2);

pub(super) fn observers(root: &Section<'_>, stub: bool, env: Env<'_>) -> Vec<Observer> {
    let why = "a gate does not trust answers: it counts effects somewhere else";
    let help =
        "write [[observe]] with kind = \"list\", \"sql\", \"stub\", \"metric\", \"log\" or \"command\"";
    let Some(item) = root.require("observe", why, help) else { return Vec::new() };
    item.list().iter().filter_map(|one| observer(one, stub, env)).collect()
}

pub(super) fn observer(item: &Item<'_>, stub: bool, env: Env<'_>) -> Option<Observer> {
    let (kind, section) = item.section_by("kind", KINDS, "it says where effects are counted")?;
    let text = |field: &'static str, why: &str, help: &str| {
        section.require(field, why, help).and_then(|item| item.text(template(env)))
    };
    let contains = || section.text("contains", template(env)).or_else(|| nonce(env));
    // Both fields are read before either can end the reading: every fault is told.
    let source = match kind {
        "list" => {
            let url = text("url", "it is asked for the list", "write url = \"/orders\"");
            let why = "it finds the effects in the list";
            let jsonpath = section
                .require("jsonpath", why, "write jsonpath = \"$[?@.note == '{{nonce}}']\"")
                .and_then(|item| item.text(|text| jsonpath(text, env)));
            Source::List { url: url?, jsonpath: jsonpath?, headers: headers(&section, env) }
        }
        "stub" => {
            if !stub {
                let help = "add [stub] with listen = \"127.0.0.1:9099\", and point your API there";
                item.fault("there is no stub to count calls of", help);
            }
            Source::Stub { contains: contains()? }
        }
        "sql" => {
            let url = section
                .require("url", "it says which database", "write url = \"sqlite:orders.db\"")
                .and_then(|item| item.text(|text| database_url(text, env)));
            let help = "write query = \"SELECT count(*) FROM orders WHERE note = '{{nonce}}'\"";
            let query = text("query", "its first value is the count", help);
            Source::Sql { url: url?, query: query? }
        }
        "metric" => {
            let url = text("url", "it is asked for the metrics", "write url = \"/metrics\"");
            let series = section
                .require("series", "it names the counter", "write series = \"orders_created_total\"")
                .and_then(|item| item.text(said));
            Source::Metric { url: url?, series: series? }
        }
        "log" => {
            let file = section
                .require("file", "its lines are counted", "write file = \"app.log\"")
                .and_then(|item| item.text(|text| Ok(PathBuf::from(text))));
            let contains = contains();
            Source::Log { file: file?, contains: contains? }
        }
        _ => {
            let help = "write command = [\"redis-cli\", \"llen\", \"orders\"]";
            let parts = section.require("command", "it prints the count", help)?.list();
            Source::Command { argv: parts.iter().filter_map(|one| one.text(template(env))).collect() }
        }
    };
    if let Source::Command { argv } = &source
        && argv.is_empty()
    {
        item.fault("the command is empty", "write the program and its arguments");
    }
    let name = section.text("name", said).unwrap_or_else(|| kind.to_owned());
    Some(Observer { name, source })
}

pub(super) fn nonce(env: Env<'_>) -> Option<Template> {
    Template::read("{{nonce}}", env).ok()
}

pub(super) fn jsonpath(text: &str, env: Env<'_>) -> Result<Template, Wrong> {
    let read = template(env)(text)?;
    let sample = Values { key: "key".to_owned(), nonce: "gate-1".to_owned(), number: 1, id: "1".to_owned() };
    match JsonPath::parse(&read.fill(&sample)) {
        Ok(_) => Ok(read),
        Err(error) => Err((
            format!("{text:?} is not a JSONPath: {error}"),
            "write it as RFC 9535 has it: \"$.orders[?@.note == '{{nonce}}']\"".to_owned(),
        )),
    }
}

pub(super) fn database_url(text: &str, env: Env<'_>) -> Result<Template, Wrong> {
    let known = ["sqlite:", "postgres://", "postgresql://", "mysql://"];
    if text.starts_with("{{env.") || known.iter().any(|scheme| text.starts_with(scheme)) {
        return template(env)(text);
    }
    Err((
        "this names no database that gates read".to_owned(),
        "write sqlite:FILE, postgres://... or mysql://...; for others, kind = \"command\"".to_owned(),
    ))
}

pub(super) fn stub(item: &Item<'_>) -> Option<StubPlan> {
    let section = item.section(STUB)?;
    let listen = section
        .require("listen", "your API has to be told where it is", "write listen = \"127.0.0.1:9099\"")?
        .text(|text| address(text).map(|_| text.to_owned()))?;
    let raw = |text: &str| -> Result<String, Wrong> { Ok(text.to_owned()) };
    Some(StubPlan {
        listen,
        status: section.get("status").and_then(|item| item.status()).unwrap_or(200),
        body: section
            .text("body", raw)
            .unwrap_or_else(|| "{\"id\": \"stub\", \"status\": \"ok\"}".to_owned()),
        key_header: section.text("key_header", header).unwrap_or_else(|| "idempotency-key".to_owned()),
        hold: section.flag("hold", true),
        hold_at_most: section.time("hold_at_most", HOLD_AT_MOST),
    })
}

fn address(text: &str) -> Result<SocketAddr, Wrong> {
    text.parse().map_err(|_| {
        (format!("{text:?} is not an address"), "write \"127.0.0.1:9099\", with its port".to_owned())
    })
}

pub(super) fn database(item: &Item<'_>) -> Option<DatabasePlan> {
    let section = item.section(DATABASE)?;
    let listen = section
        .require("listen", "your API has to be told where it is", "write listen = \"127.0.0.1:15432\"")
        .and_then(|item| item.text(address));
    let to = section
        .require("to", "it is relayed to the database", "write to = \"127.0.0.1:5432\"")
        .and_then(|item| item.text(address));
    let each_way = section.get("each_way").and_then(|item| item.any_time()).unwrap_or_default();
    Some(DatabasePlan { listen: listen?, to: to?, each_way, away: section.time("away", AWAY) })
}
