//! A plan as values, with nothing left to read.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Template, Values};
use crate::trust::Trust;

/// Where the API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// `127.0.0.1:8080`, as the `Host` header has it.
    pub authority: String,
    /// Name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// What stands in front of every path; empty or from a slash, without one at its end.
    pub prefix: String,
    /// It speaks TLS, and is believed if these say so.
    pub trust: Option<Trust>,
}

impl Base {
    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.trust.is_some() { "https" } else { "http" }
    }
}

/// A header, with whether its value may be printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderLine {
    /// As the file spells it.
    pub name: String,
    /// Its value.
    pub value: Template,
}

impl HeaderLine {
    /// Whether the value is a credential, by its name or because it came from the environment.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        let credential = ["authorization", "cookie", "token", "secret", "api-key", "apikey", "password"];
        self.value.is_secret() || credential.iter().any(|word| name.contains(word))
    }
}

/// One operation of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// `POST`
    pub method: String,
    /// From the slash, with its query.
    pub path: Template,
    /// Besides the key's and the tag.
    pub headers: Vec<HeaderLine>,
    /// The body, if there is one.
    pub body: Option<Template>,
}

impl Operation {
    /// Whether two operations differ in anything.
    #[must_use]
    pub fn tells_operations_apart(&self) -> bool {
        self.templates().any(Template::tells_operations_apart)
    }

    /// Whether the key is somewhere in the operation itself.
    #[must_use]
    pub fn carries_key(&self) -> bool {
        self.templates().any(Template::carries_key)
    }

    fn templates(&self) -> impl Iterator<Item = &Template> {
        self.headers.iter().map(|line| &line.value).chain(self.body.as_ref()).chain([&self.path])
    }
}

/// Where the key goes, and what the API says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The header; none where the operation itself has `{{key}}` in it.
    pub header: Option<String>,
    /// Written as a quoted string (RFC 9651).
    pub quoted: bool,
    /// A request without one is refused; `None` where the API does not say.
    pub required: Option<bool>,
}

/// An answer that is recognised by its status and, where that is not enough, by a text in its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// The status.
    pub status: u16,
    /// A text in the body.
    pub contains: Option<String>,
}

/// What answers mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// Received, unfinished.
    pub in_flight: Vec<Sign>,
    /// Same key, another request.
    pub mismatch: Vec<Sign>,
    /// Nothing was run, come again.
    pub not_now: Vec<Sign>,
    /// It may have happened, and people look at it: an end, and not a success.
    pub uncertain: Vec<Sign>,
    /// No key where one is required.
    pub missing_key: Vec<Sign>,
    /// The header that marks a replay, lower case.
    pub replay_marker: Option<String>,
    /// Headers that may differ between an answer and its replay, lower case.
    pub varying_headers: Vec<String>,
    /// A mismatch is told while the first request is still running.
    pub mismatch_beats_in_flight: bool,
}

/// A place where effects are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observer {
    /// What people call it.
    pub name: String,
    /// Where it looks.
    pub source: Source,
}

/// Where an observer looks. Each counts for one nonce, or everything where the nonce is not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A GET whose JSON has one node for each effect.
    List {
        /// A path of the first base, or a whole address.
        url: Template,
        /// RFC 9535.
        jsonpath: Template,
        /// For the GET.
        headers: Vec<HeaderLine>,
    },
    /// Calls that [`crate::stub`] got.
    Stub {
        /// A call counts when this is in its path, headers or body.
        contains: Template,
    },
    /// A query whose first value is a count.
    Sql {
        /// `sqlite:FILE`, `postgres://...`, `mysql://...`
        url: Template,
        /// The query.
        query: Template,
    },
    /// A counter of a Prometheus page.
    Metric {
        /// A path of the first base, or a whole address.
        url: Template,
        /// The lines that begin with this are added up.
        series: String,
    },
    /// Lines of a file.
    Log {
        /// The file.
        file: PathBuf,
        /// A line counts when it has this.
        contains: Template,
    },
    /// A program that prints a count.
    Command {
        /// Program and arguments.
        argv: Vec<Template>,
    },
}

impl Source {
    /// Whether it counts the effects of one operation, and not those of all together.
    #[must_use]
    pub fn counts_one(&self) -> bool {
        self.templates().iter().any(|template| template.has_places())
    }

    /// What it asks for these values. Two operations for which it asks the same are counted by one look.
    #[must_use]
    pub fn question(&self, values: &Values) -> Vec<String> {
        self.templates().iter().map(|template| template.fill(values)).collect()
    }

    fn templates(&self) -> Vec<&Template> {
        match self {
            Self::List { url, jsonpath, .. } => vec![url, jsonpath],
            Self::Stub { contains } | Self::Log { contains, .. } => vec![contains],
            Self::Sql { query, .. } => vec![query],
            Self::Metric { .. } => Vec::new(),
            Self::Command { argv } => argv.iter().collect(),
        }
    }
}

/// The service that the API calls, played by the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StubPlan {
    /// Where it listens.
    pub listen: String,
    /// Its answer.
    pub status: u16,
    /// The body of its answer; `{{nonce}}` and the like are not known here.
    pub body: String,
    /// The header that carries the key downstream, lower case.
    pub key_header: String,
    /// The first call of a race is answered when all others were told something, or after `hold_at_most`.
    pub hold: bool,
    /// The longest time a call is held.
    pub hold_at_most: Duration,
}

/// The database of the API, with the gate's relay in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabasePlan {
    /// Where the API is told that its database is.
    pub listen: SocketAddr,
    /// Where it really is.
    pub to: SocketAddr,
    /// How much later bytes come, in each direction.
    pub each_way: Duration,
    /// How long it is away when the crash gate cuts it.
    pub away: Duration,
}

/// A process whose system calls are made slow while it is raced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowPlan {
    /// Which.
    pub process: ProcessId,
    /// How much later each call begins.
    pub by: Duration,
    /// The calls, by the names that strace has for them.
    pub calls: Vec<String>,
}

/// A process of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessId {
    /// It is this one.
    Is(u32),
    /// A file has its number in it.
    In(PathBuf),
}

/// How much to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// In one race.
    pub requests: usize,
    /// Races of each shape; `None`: as many as the power asks for.
    pub rounds: Option<u32>,
    /// A fault that shows in this share of the rounds...
    pub detect: f64,
    /// ...is missed with at most this probability.
    pub miss: f64,
    /// Races in one packet over HTTP/2 as well.
    pub http2: bool,
    /// How long all but the last byte lies there before the race.
    pub settle: Duration,
    /// Over which time late requests are spread; `None`: as measured.
    pub spread: Option<Duration>,
    /// How long observers are read until they say the same twice.
    pub quiet: Duration,
    /// How long one answer may take.
    pub timeout: Duration,
}

/// Everything a gate needs to know about one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One, or several instances of the same API.
    pub bases: Vec<Base>,
    /// Whom to believe where TLS is spoken.
    pub trust: Trust,
    /// The operation.
    pub request: Operation,
    /// The key.
    pub key: KeyPlace,
    /// Headers of a second account, in place of those of the same names.
    pub second_account: Option<Vec<HeaderLine>>,
    /// Another operation that takes keys.
    pub other_operation: Option<Operation>,
    /// The operation as one that fails and may have had its effect.
    pub failing: Option<Operation>,
    /// What answers mean.
    pub answers: Answers,
    /// At least one.
    pub observers: Vec<Observer>,
    /// The service that the API calls.
    pub stub: Option<StubPlan>,
    /// What stands in front of its database.
    pub database: Option<DatabasePlan>,
    /// A process that is made slow.
    pub slow: Option<SlowPlan>,
    /// How much to send.
    pub concurrency: Concurrency,
}

/// What a report may show of a plan.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Where requests went.
    pub bases: &'a [Base],
    secret_headers: Vec<String>,
}

impl<'a> Shown<'a> {
    /// Of these bases; credentials of these header lines are not shown.
    pub fn new(bases: &'a [Base], lines: impl Iterator<Item = &'a HeaderLine>) -> Self {
        let secret = lines.filter(|line| line.is_secret()).map(|line| line.name.to_ascii_lowercase());
        Self { bases, secret_headers: secret.collect() }
    }

    /// Whether the value of a header is a credential.
    #[must_use]
    pub fn is_secret(&self, name: &str) -> bool {
        self.secret_headers.iter().any(|secret| secret.eq_ignore_ascii_case(name))
    }
}

impl Plan {
    /// What a report may show.
    #[must_use]
    pub fn shown(&self) -> Shown<'_> {
        let operations = [Some(&self.request), self.other_operation.as_ref(), self.failing.as_ref()];
        let lines = operations.into_iter().flatten().flat_map(|operation| &operation.headers);
        Shown::new(&self.bases, lines.chain(self.second_account.iter().flatten()))
    }
}

/// An operation that is said to be idempotent without a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The operation.
    pub operation: Operation,
    /// What is read to see its state: a GET.
    pub read: Template,
    /// A newer write of the same thing, for a late retry of the older one.
    pub newer_body: Option<Template>,
    /// Members of the state that may differ, by name.
    pub volatile: Vec<String>,
    /// What makes the thing first.
    pub setup: Option<Setup>,
}

/// What makes a thing, and where its answer says what it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The operation.
    pub operation: Operation,
    /// A JSON pointer into its answer; none: the thing is called by the nonce.
    pub id: Option<String>,
}

/// What the crash gate needs.
#[derive(Clone, Debug, PartialEq)]
pub struct CrashPlan {
    /// The operation, its answers, observers and stub. The stub is there, and its hold is off.
    pub plan: Plan,
    /// Program and arguments of the API, which the gate starts and kills.
    pub command: Vec<String>,
    /// A GET of this path answers when the API is up.
    pub ready: String,
    /// How long it may take to be up.
    pub ready_within: Duration,
    /// How long a retry may take from the restart to an end.
    pub settled_within: Duration,
    /// How long the API itself may take to finish what was left; `None`: it does not, and is not asked to.
    pub completes_within: Option<Duration>,
    /// How long a claim is held at most; `None`: nobody takes over from a process that is stopped.
    pub lease: Option<Duration>,
    /// Another process of the API on the same store, which takes over from one that is stopped.
    pub second: Option<SecondPlan>,
    /// The disk that holds its files.
    pub disk: Option<DiskPlan>,
    /// Points of the sweep over system calls, at most.
    pub sweep: u32,
}

impl CrashPlan {
    /// Everywhere that requests go: the second process's base is the last.
    #[must_use]
    pub fn all_bases(&self) -> Vec<Base> {
        let second = self.second.iter().map(|second| &second.base);
        self.plan.bases.iter().chain(second).cloned().collect()
    }
}

/// A second process of the API.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondPlan {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where it is.
    pub base: Base,
}

/// A file system of its own that the API writes to, small enough to be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskPlan {
    /// A folder on it.
    pub folder: PathBuf,
    /// The gate writes this many bytes at most.
    pub at_most: u64,
    /// How long there is no room.
    pub full_for: Duration,
}

/// What the verify gate needs.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyPlan {
    /// One, or several instances of the same API.
    pub bases: Vec<Base>,
    /// Whom to believe where TLS is spoken.
    pub trust: Trust,
    /// At least one.
    pub claims: Vec<Claim>,
    /// Beside the state itself: mails, audit rows, webhooks.
    pub observers: Vec<Observer>,
    /// How long observers are read until they say the same twice.
    pub quiet: Duration,
    /// How long one answer may take.
    pub timeout: Duration,
}
