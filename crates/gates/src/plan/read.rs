//! From the text of `gates.toml` to a [`Plan`], or to everything that is wrong with it.

use std::path::PathBuf;
use std::time::Duration;

use retrysafe_core::contract::{
    Contract, Endpoint, Faults,
    walk::{Item, Kind, Section, Sink, Wrong, header, local_path, said},
};
use serde_json_path::JsonPath;
use toml::de::DeTable;

use super::{
    Answers, Base, Claim, Concurrency, CrashPlan, HeaderLine, KeyPlace, Observer, Operation, Plan, Setup,
    Sign, Source, StubPlan, Template, Values, VerifyPlan, contract,
};

/// Every table and its fields; the reference page has a row for each.
pub const FIELDS: &[(&str, &[&str])] = &[
    ("top level", ROOT),
    ("request, other_operation, failing", OPERATION),
    ("key", KEY),
    ("second_account", ACCOUNT),
    ("answers", ANSWERS),
    ("answers: a sign", SIGN),
    ("[[observe]]: list", LIST),
    ("[[observe]]: stub", STUB_OBSERVER),
    ("[[observe]]: sql", SQL),
    ("[[observe]]: metric", METRIC),
    ("[[observe]]: log", LOG),
    ("[[observe]]: command", COMMAND),
    ("stub", STUB),
    ("concurrency", CONCURRENCY),
    ("[[claim]]", CLAIM),
    ("claim.setup", SETUP),
    ("crash", CRASH),
];

const ROOT: &[&str] = &[
    "base",
    "contract",
    "request",
    "key",
    "second_account",
    "other_operation",
    "failing",
    "answers",
    "observe",
    "stub",
    "concurrency",
    "claim",
    "crash",
];
const OPERATION: &[&str] = &["method", "path", "headers", "body"];
const KEY: &[&str] = &["header", "quoted", "required"];
const ACCOUNT: &[&str] = &["headers"];
const ANSWERS: &[&str] = &[
    "in_flight",
    "mismatch",
    "not_now",
    "uncertain",
    "missing_key",
    "replay_marker",
    "varying_headers",
    "mismatch_beats_in_flight",
];
const SIGN: &[&str] = &["status", "contains"];
const LIST: &[&str] = &["kind", "name", "url", "jsonpath", "headers"];
const STUB_OBSERVER: &[&str] = &["kind", "name", "contains"];
const SQL: &[&str] = &["kind", "name", "url", "query"];
const METRIC: &[&str] = &["kind", "name", "url", "series"];
const LOG: &[&str] = &["kind", "name", "file", "contains"];
const COMMAND: &[&str] = &["kind", "name", "command"];
const STUB: &[&str] = &["listen", "status", "body", "key_header", "hold", "hold_at_most"];
const CONCURRENCY: &[&str] =
    &["requests", "rounds", "detect", "miss", "settle", "spread", "quiet", "timeout"];

const CLAIM: &[&str] = &["method", "path", "headers", "body", "read", "newer_body", "volatile", "setup"];
const SETUP: &[&str] = &["method", "path", "headers", "body", "id"];

const CRASH: &[&str] =
    &["command", "ready", "ready_within", "settled_within", "completes_within", "lease", "sweep"];

const KINDS: &[(&str, &[&str])] = &[
    ("list", LIST),
    ("stub", STUB_OBSERVER),
    ("sql", SQL),
    ("metric", METRIC),
    ("log", LOG),
    ("command", COMMAND),
];

const REQUESTS: u32 = 20;
/// More connections than a race gains by, and a bound for file descriptors.
const REQUESTS_MAX: i64 = 200;
/// A week of rounds is a typing error.
const ROUNDS_MAX: i64 = 100_000;
const DETECT: f64 = 0.1;
const MISS: f64 = 0.001;
const SETTLE: Duration = Duration::from_millis(10);
const QUIET: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);
const HOLD_AT_MOST: Duration = Duration::from_secs(2);
const READY_WITHIN: Duration = Duration::from_secs(30);
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
const SWEEP: u32 = 20;
/// Each point is a start of the API.
const SWEEP_MAX: i64 = 1_000;
/// Headers of one sending: they say nothing about the answer.
const VARYING: &[&str] = &[
    "date",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "age",
    "server-timing",
    "x-request-id",
    "x-correlation-id",
    "x-response-time",
    "x-runtime",
    "x-process-time",
    "traceparent",
];
const GATES: Kind = Kind { what: "plan", home_of };

/// The table that has a field of this name, where only one has.
fn home_of(name: &str) -> Option<&'static str> {
    let mut homes = FIELDS.iter().filter(|(_, fields)| fields.contains(&name)).map(|(table, _)| *table);
    match (homes.next(), homes.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a file may refer to: reading it is somebody else's business.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// The value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file, or why it cannot be read.
    pub file: &'a dyn Fn(&str) -> Result<String, String>,
}

impl Outside<'_> {
    /// Neither variables nor files.
    pub const NOTHING: Outside<'static> =
        Outside { env: &|_| None, file: &|_| Err("no file is read here".to_owned()) };
}

impl std::fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outside")
    }
}

impl Plan {
    /// Reads a plan whose values need no environment. `file` is its name, for messages.
    ///
    /// # Errors
    /// [`Faults`]: all of them, each with its place and what to write instead.
    pub fn parse(text: &str, file: &str) -> Result<Plan, Faults> {
        Self::parse_with(text, file, Outside::NOTHING)
    }

    /// As [`Plan::parse`]; `outside` is asked for the values of `{{env.NAME}}` and for the contract.
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse_with(text: &str, file: &str, outside: Outside<'_>) -> Result<Plan, Faults> {
        walk(text, file, |root| plan(root, outside))
    }
}

impl VerifyPlan {
    /// Reads what the verify gate needs of a file; see [`Plan::parse_with`].
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse_with(text: &str, file: &str, outside: Outside<'_>) -> Result<VerifyPlan, Faults> {
        walk(text, file, |root| verify_plan(root, outside.env))
    }
}

impl CrashPlan {
    /// Reads what the crash gate needs of a file; see [`Plan::parse_with`].
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse_with(text: &str, file: &str, outside: Outside<'_>) -> Result<CrashPlan, Faults> {
        walk(text, file, |root| crash_plan(root, outside))
    }
}

/// Reads a file with its faults.
fn walk<T>(text: &str, file: &str, read: impl FnOnce(&Section<'_>) -> Option<T>) -> Result<T, Faults> {
    let sink = Sink::new(text, GATES);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let help = "mend the TOML syntax first; the rest of the file is read as well as it can be";
        sink.note(error.span().unwrap_or(0..0), "", format!("not TOML: {}", error.message()), help);
    }
    let plan = read(&Section::root(&table, ROOT, &sink));
    match plan {
        Some(plan) if sink.is_clean() => Ok(plan),
        _ => Err(sink.into_faults(file)),
    }
}

fn plan(root: &Section<'_>, outside: Outside<'_>) -> Option<Plan> {
    let env = outside.env;
    let bases = bases(root);
    let request_item = root.require(
        "request",
        "a gate sends one operation of yours",
        "write [request] with method, path and body",
    );
    let request = request_item.as_ref().and_then(|item| operation(item, env));
    let stated = request.as_ref().and_then(|request| stated(root, request, outside));
    let key = key(root, stated.as_ref());
    let second_account = root.get("second_account").and_then(|item| {
        let section = item.section(ACCOUNT)?;
        section.require(
            "headers",
            "it is somebody else by its headers",
            "write headers = { Authorization = \"Bearer bob\" }",
        );
        Some(headers(&section, env))
    });
    let other_operation = root.get("other_operation").and_then(|item| operation(&item, env));
    let failing = root.get("failing").and_then(|item| operation(&item, env));
    let stub = root.get("stub").and_then(|item| stub(&item));
    let observers = observers(root, stub.is_some(), env);
    let answers = answers(root, stated.as_ref());
    let concurrency = concurrency(root);
    let (request, key) = (request?, key?);
    if let Some(item) = &request_item {
        if !request.tells_operations_apart() {
            item.fault(
                "two operations of this request are the same",
                "put {{nonce}} (a text) or {{number}} into a field of the body that you can find again, such as a note or a reference",
            );
        }
        if key.header.is_none() && !request.carries_key() {
            item.fault(
                "the key is nowhere",
                "leave [key] header out (Idempotency-Key), name the header, or put {{key}} into the body",
            );
        }
    }
    Some(Plan {
        bases,
        request,
        key,
        second_account,
        other_operation,
        failing,
        answers,
        observers,
        stub,
        concurrency,
    })
}

fn verify_plan(root: &Section<'_>, env: Env<'_>) -> Option<VerifyPlan> {
    let bases = bases(root);
    let why = "the gate verifies operations that are said to be idempotent";
    let claims = root.require("claim", why, "write [[claim]] with method, path, body and read");
    let claims: Vec<Claim> =
        claims.map(|item| item.list().iter().filter_map(|one| claim(one, env)).collect()).unwrap_or_default();
    let stub = root.get("stub").is_some();
    let observers = match root.get("observe") {
        Some(_) => observers(root, stub, env),
        None => Vec::new(),
    };
    let Concurrency { quiet, timeout, .. } = concurrency(root);
    Some(VerifyPlan { bases, claims, observers, quiet, timeout })
}

fn crash_plan(root: &Section<'_>, outside: Outside<'_>) -> Option<CrashPlan> {
    let plan = plan(root, outside);
    let why = "the gate starts the API, kills it and starts it again";
    let item = root.require("crash", why, "write [crash] with command and ready")?;
    if root.get("stub").is_none() {
        let help = "add [stub] and [[observe]] kind = \"stub\", and point the API's provider at it";
        item.fault("the gate kills the API when it calls somebody else, and there is no stub to call", help);
    }
    let section = item.section(CRASH)?;
    let raw = |text: &str| -> Result<String, Wrong> { Ok(text.to_owned()) };
    let command: Option<Vec<String>> = section
        .require("command", "the gate starts it", "write command = [\"./server\", \"--port\", \"8080\"]")
        .map(|item| item.list().iter().filter_map(|one| one.text(raw)).collect());
    let ready = section
        .require("ready", "it answers when the API is up", "write ready = \"/health\"")
        .and_then(|item| item.text(local_path));
    let optional = |field: &'static str| section.get(field).and_then(|item| item.time());
    if command.as_ref().is_some_and(Vec::is_empty) {
        item.fault("the command is empty", "write the program and its arguments");
    }
    let mut plan = plan?;
    if let Some(stub) = &mut plan.stub {
        stub.hold = false;
    }
    Some(CrashPlan {
        plan,
        command: command?,
        ready: ready?,
        ready_within: section.time("ready_within", READY_WITHIN),
        settled_within: section.time("settled_within", SETTLED_WITHIN),
        completes_within: optional("completes_within"),
        lease: optional("lease"),
        sweep: section.number("sweep", 0..=SWEEP_MAX, SWEEP),
    })
}

fn claim(item: &Item<'_>, env: Env<'_>) -> Option<Claim> {
    let section = item.section(CLAIM)?;
    let operation = operation_of(&section, env);
    let read = section
        .require("read", "the state is read before and after", "write read = \"/orders/{{id}}\"")
        .and_then(|item| item.text(|text| path(text, env)));
    let newer_body = section.text("newer_body", template(env));
    let volatile = section.list("volatile", said, Vec::new());
    let setup = section.get("setup").and_then(|item| {
        let section = item.section(SETUP)?;
        let id = section.text("id", |text| match text.starts_with('/') {
            true => Ok(text.to_owned()),
            false => Err((format!("{text:?} is not a JSON pointer"), format!("write \"/{text}\""))),
        });
        Some(Setup { operation: operation_of(&section, env)?, id })
    });
    Some(Claim { operation: operation?, read: read?, newer_body, volatile, setup })
}

fn bases(root: &Section<'_>) -> Vec<Base> {
    let Some(item) =
        root.require("base", "a gate has to know where the API is", "write base = \"http://127.0.0.1:8080\"")
    else {
        return Vec::new();
    };
    let first: Vec<Base> = if item.is_list() {
        item.list().iter().filter_map(|one| one.text(base)).collect()
    } else {
        item.text(base).into_iter().collect()
    };
    if first.is_empty() {
        item.fault("there is no address in it", "write base = \"http://127.0.0.1:8080\"");
    }
    first
}

/// `http://host:port/prefix`.
pub(crate) fn base(text: &str) -> Result<Base, Wrong> {
    let help = "write \"http://127.0.0.1:8080\"".to_owned();
    if text.starts_with("https://") {
        return Err((
            "gates speak plain HTTP".to_owned(),
            "name the address behind whatever ends TLS, or put a local forwarder in front of it".to_owned(),
        ));
    }
    let wrong = |message: String| Err((message, help.clone()));
    let Some(rest) = text.strip_prefix("http://") else {
        return wrong(format!("{text:?} is not an HTTP address"));
    };
    let (authority, prefix) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => match port.parse() {
            Ok(port) => (host, port),
            Err(_) => return wrong(format!("{port:?} is not a port")),
        },
        _ => (authority, 80),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains('@') || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
        return wrong(format!("{text:?} is not an HTTP address"));
    }
    Ok(Base {
        authority: authority.to_owned(),
        host: host.to_owned(),
        port,
        prefix: prefix.trim_end_matches('/').to_owned(),
    })
}

fn template(env: Env<'_>) -> impl Fn(&str) -> Result<Template, Wrong> + '_ {
    move |text| {
        Template::read(text, env)
            .map_err(|fault| (fault, "write the text, with {{nonce}} where operations differ".to_owned()))
    }
}

fn operation(item: &Item<'_>, env: Env<'_>) -> Option<Operation> {
    operation_of(&item.section(OPERATION)?, env)
}

fn operation_of(section: &Section<'_>, env: Env<'_>) -> Option<Operation> {
    let method = section.text("method", |text| match text {
        "POST" | "PUT" | "PATCH" | "DELETE" => Ok(text.to_owned()),
        _ => Err((
            format!("{text:?} changes nothing, or is no method"),
            "write POST, PUT, PATCH or DELETE".to_owned(),
        )),
    });
    let path = section
        .require("path", "an operation has a path", "write path = \"/orders\"")
        .and_then(|item| item.text(|text| path(text, env)));
    let headers = headers(section, env);
    let body = section.text("body", template(env));
    Some(Operation { method: method.unwrap_or_else(|| "POST".to_owned()), path: path?, headers, body })
}

fn path(text: &str, env: Env<'_>) -> Result<Template, Wrong> {
    let plain = text.split("{{").next().unwrap_or_default();
    if !text.starts_with('/') || !plain.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err((
            format!("{text:?} is not a path"),
            "write the path from its slash: \"/orders\"".to_owned(),
        ));
    }
    template(env)(text)
}

fn headers(section: &Section<'_>, env: Env<'_>) -> Vec<HeaderLine> {
    let Some(item) = section.get("headers") else { return Vec::new() };
    let mut lines = Vec::new();
    for (name, at, value) in Section::entries(&item) {
        if let Err((message, help)) = header(name) {
            item.fault_at(at, message, help);
            continue;
        }
        let read = value.text(|text| {
            if !text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
                return Err((
                    "a header value has characters that headers cannot carry".to_owned(),
                    "write visible ASCII".to_owned(),
                ));
            }
            template(env)(text)
        });
        lines.extend(read.map(|value| HeaderLine { name: name.to_owned(), value }));
    }
    lines
}

/// What the contract says of the operation, if the plan names one.
struct Stated {
    contract: Contract,
    /// Its place in the contract.
    endpoint: Endpoint,
}

fn stated(root: &Section<'_>, request: &Operation, outside: Outside<'_>) -> Option<Stated> {
    let item = root.get("contract")?;
    let contract = item.text(|path| {
        let help = "name a contract that `retrysafe check` accepts".to_owned();
        let text =
            (outside.file)(path).map_err(|why| (format!("{path} cannot be read: {why}"), help.clone()))?;
        Contract::parse(&text, path).map_err(|faults| {
            let first = faults
                .faults
                .first()
                .map(|fault| format!("{}:{}: {}", fault.line, fault.column, fault.message));
            (format!("{path} is no contract: {}", first.unwrap_or_default()), help)
        })
    })?;
    let path = request.path.fill(&Values { id: "1".to_owned(), nonce: "1".to_owned(), ..Values::default() });
    match contract::endpoint(&contract, &request.method, &path) {
        Some(endpoint) => {
            let endpoint = endpoint.clone();
            Some(Stated { contract, endpoint })
        }
        None => {
            let message = format!("the contract guards no {} {path}", request.method);
            item.fault(message, "name an operation that it lists with a key, or leave the contract out");
            None
        }
    }
}

fn key(root: &Section<'_>, stated: Option<&Stated>) -> Option<KeyPlace> {
    let standard = KeyPlace { header: Some("Idempotency-Key".to_owned()), quoted: false, required: None };
    let standard = stated.map_or(standard, |stated| contract::key(&stated.endpoint));
    let Some(item) = root.get("key") else { return Some(standard) };
    let section = item.section(KEY)?;
    let header = match section.get("header") {
        None => standard.header,
        // The operation itself has `{{key}}` in it.
        Some(item) if item.is_off() => None,
        Some(item) => item.text(|text| header(text).map(|_| text.to_owned())),
    };
    let required = section.get("required").map_or(standard.required, |item| item.flag());
    Some(KeyPlace { header, quoted: section.flag("quoted", standard.quoted), required })
}

fn answers(root: &Section<'_>, stated: Option<&Stated>) -> Answers {
    let plain = |statuses: &[u16]| -> Vec<Sign> {
        statuses.iter().map(|&status| Sign { status, contains: None }).collect()
    };
    let mut answers = Answers {
        in_flight: plain(&[409, 425]),
        mismatch: plain(&[422, 409, 400]),
        not_now: Vec::new(),
        uncertain: Vec::new(),
        missing_key: plain(&[400, 422, 428]),
        replay_marker: None,
        varying_headers: VARYING.iter().map(|&name| name.to_owned()).collect(),
        mismatch_beats_in_flight: false,
    };
    if let Some(Stated { contract, endpoint }) = stated {
        contract::answers(contract, endpoint, &mut answers);
    }
    let Some(section) = root.get("answers").and_then(|item| item.section(ANSWERS)) else { return answers };
    for (field, signs) in [
        ("in_flight", &mut answers.in_flight),
        ("mismatch", &mut answers.mismatch),
        ("not_now", &mut answers.not_now),
        ("uncertain", &mut answers.uncertain),
        ("missing_key", &mut answers.missing_key),
    ] {
        if let Some(item) = section.get(field) {
            *signs = item.list().iter().filter_map(sign).collect();
        }
    }
    answers.replay_marker = section.text("replay_marker", header).or(answers.replay_marker);
    answers.varying_headers.extend(section.list("varying_headers", header, Vec::new()));
    answers.mismatch_beats_in_flight = section.flag("mismatch_beats_in_flight", false);
    answers
}

fn sign(item: &Item<'_>) -> Option<Sign> {
    if !item.is_table() {
        return item.status().map(|status| Sign { status, contains: None });
    }
    let section = item.section(SIGN)?;
    let status = section.require("status", "an answer has a status", "write status = 409")?.status()?;
    Some(Sign { status, contains: section.text("contains", said) })
}

fn stub(item: &Item<'_>) -> Option<StubPlan> {
    let section = item.section(STUB)?;
    let listen = section
        .require("listen", "your API has to be told where it is", "write listen = \"127.0.0.1:9099\"")?
        .text(|text| match text.parse::<std::net::SocketAddr>() {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err((format!("{text:?} is not an address"), "write \"127.0.0.1:9099\"".to_owned())),
        })?;
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

fn observers(root: &Section<'_>, stub: bool, env: Env<'_>) -> Vec<Observer> {
    let why = "a gate does not trust answers: it counts effects somewhere else";
    let help =
        "write [[observe]] with kind = \"list\", \"sql\", \"stub\", \"metric\", \"log\" or \"command\"";
    let Some(item) = root.require("observe", why, help) else { return Vec::new() };
    item.list().iter().filter_map(|one| observer(one, stub, env)).collect()
}

fn observer(item: &Item<'_>, stub: bool, env: Env<'_>) -> Option<Observer> {
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
                .and_then(|item| item.text(|text| database(text, env)));
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

fn nonce(env: Env<'_>) -> Option<Template> {
    Template::read("{{nonce}}", env).ok()
}

fn jsonpath(text: &str, env: Env<'_>) -> Result<Template, Wrong> {
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

fn database(text: &str, env: Env<'_>) -> Result<Template, Wrong> {
    let known = ["sqlite:", "postgres://", "postgresql://", "mysql://"];
    if text.starts_with("{{env.") || known.iter().any(|scheme| text.starts_with(scheme)) {
        return template(env)(text);
    }
    Err((
        "this names no database that gates read".to_owned(),
        "write sqlite:FILE, postgres://... or mysql://...; for others, kind = \"command\"".to_owned(),
    ))
}

fn concurrency(root: &Section<'_>) -> Concurrency {
    let mut read = Concurrency {
        requests: REQUESTS as usize,
        rounds: None,
        detect: DETECT,
        miss: MISS,
        settle: SETTLE,
        spread: None,
        quiet: QUIET,
        timeout: TIMEOUT,
    };
    let Some(section) = root.get("concurrency").and_then(|item| item.section(CONCURRENCY)) else {
        return read;
    };
    read.requests = section.number("requests", 2..=REQUESTS_MAX, REQUESTS) as usize;
    read.rounds = section
        .get("rounds")
        .and_then(|item| item.number(1..=ROUNDS_MAX))
        .and_then(|rounds| u32::try_from(rounds).ok());
    for (field, share) in [("detect", &mut read.detect), ("miss", &mut read.miss)] {
        if let Some(value) = section.get(field).and_then(|item| item.share()) {
            *share = value;
        }
    }
    read.settle = section.time("settle", SETTLE);
    read.spread = section.get("spread").and_then(|item| item.time());
    read.quiet = section.time("quiet", QUIET);
    read.timeout = section.time("timeout", TIMEOUT);
    read
}
