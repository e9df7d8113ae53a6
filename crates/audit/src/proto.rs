//! Services of protobuf: what their descriptors, and the retries of a gRPC service config, say of repeated calls.
//!
//! A descriptor says little. `idempotency_level` is a claim; a `request_id` field is a key by AIP-155; `google.api.http` tells the
//! verb. What only the name of a method says is a warning at most, as everywhere.
//!
//! Limits: comments are read where the descriptor set holds them (source info). Retries of a client's own code are not seen.

use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, ServiceDescriptor, Value,
};

use crate::{
    effect::{Confidence, Effect, WRITES},
    finding::{self as rule, Rule, Severity},
    judge::{Mechanism, Verdict},
    tree::Node,
    words::{folded, words},
};

/// One method of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rpc {
    /// `package.Service/Method`.
    pub name: String,
    /// The file that declares it.
    pub file: String,
    /// From 1, where the descriptor set holds source info.
    pub line: Option<usize>,
    /// What it does.
    pub effect: Effect,
    /// What would make a retry safe.
    pub mechanism: Mechanism,
    /// Whether it may be sent again.
    pub verdict: Verdict,
    /// How sure that is.
    pub confidence: Confidence,
    /// What says so.
    pub quote: String,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which rule.
    pub rule: &'static Rule,
    /// At most the rule's.
    pub severity: Severity,
    /// Number of the method.
    pub rpc: usize,
    /// What is wrong here.
    pub message: String,
}

/// What was found in the services of a descriptor set.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Every method, in the order of the files.
    pub rpcs: Vec<Rpc>,
    /// In the order of the methods.
    pub findings: Vec<Finding>,
    /// Entries of service configs that name nothing here.
    pub unmatched: Vec<String>,
}

/// Verbs of reading methods.
const READS: &[&str] = &[
    "get",
    "list",
    "search",
    "query",
    "watch",
    "count",
    "check",
    "lookup",
    "fetch",
    "read",
    "describe",
    "find",
    "validate",
    "preview",
    "subscribe",
    "stream",
    "test",
    "ping",
    "health",
    "resolve",
    "export",
    "download",
    "estimate",
    "calculate",
];
/// What is run, executed or generated without leaving anything behind, more often than not.
const ASKED_FOR: &[&str] =
    &["query", "queries", "report", "reports", "content", "answer", "text", "completion", "message", "sql"];
/// Fields that are keys and nothing else, or by AIP-155, folded.
const KEYS: &[&str] =
    &["requestid", "clienttoken", "clientrequestid", "clientrequesttoken", "dedupekey", "deduplicationid"];
/// `idempotency_level` of descriptor.proto.
const NO_SIDE_EFFECTS: i32 = 1;
const IDEMPOTENT: i32 = 2;
/// `UUID4` of google/api/field_info.proto, and `REQUIRED` of google/api/field_behavior.proto.
const UUID4: i32 = 1;
const REQUIRED: i32 = 2;

/// Audits the services of a descriptor set in the files whose names `chosen` accepts, with gRPC service configs beside them.
///
/// # Errors
/// The bytes are no descriptor set.
pub fn audit(
    set: &[u8],
    chosen: impl Fn(&str) -> bool,
    configs: &[(String, Node)],
) -> Result<Report, String> {
    let pool = DescriptorPool::decode(set).map_err(|error| format!("is no set of descriptors: {error}"))?;
    let mut report = Report::default();
    let mut methods: Vec<MethodDescriptor> = Vec::new();
    for service in pool.services().filter(|service| chosen(service.parent_file().name())) {
        for method in service.methods() {
            let rpc = judge(&service, &method);
            report.rpcs.push(rpc);
            methods.push(method);
        }
    }
    for (number, method) in methods.iter().enumerate() {
        declared(&mut report, number, method);
    }
    for (file, config) in configs {
        retries(&mut report, file, config);
    }
    report.findings.sort_by_key(|finding| (finding.rpc, finding.rule.id));
    Ok(report)
}

impl Report {
    fn note(&mut self, rule: &'static Rule, sure: Confidence, rpc: usize, message: impl Into<String>) {
        let place = crate::Place { file: 0, pointer: String::new() };
        // The one place where a name is kept from making an error.
        let severity = crate::Finding::new(rule, sure, place, "").severity;
        self.findings.push(Finding { rule, severity, rpc, message: message.into() });
    }

    /// How many findings are at least this bad.
    pub fn count(&self, worst: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity <= worst).count()
    }
}

fn judge(service: &ServiceDescriptor, method: &MethodDescriptor) -> Rpc {
    let verb = words(method.name());
    // `RunQuery` reads, `GenerateContent` computes: nobody can tell from the outside.
    let asks = verb.iter().skip(1).any(|word| ASKED_FOR.contains(&word.as_str()));
    let verb = verb.iter().find(|word| *word != "batch").cloned().unwrap_or_default();
    let http = http(method);
    let level = level(method);
    let key = key(&method.input());
    let named = if READS.contains(&verb.as_str()) {
        Effect::Read
    } else {
        match verb.as_str() {
            "create" | "insert" | "add" => Effect::Create,
            "update" | "patch" | "set" => Effect::Update,
            "delete" | "remove" => Effect::Delete,
            "replace" | "put" => Effect::Replace,
            "run" | "execute" | "generate" if asks => Effect::Unknown,
            verb if WRITES.contains(&verb) => Effect::Action,
            _ => Effect::Unknown,
        }
    };
    let effect = match (level, http.as_deref()) {
        (NO_SIDE_EFFECTS, _) | (_, Some("get")) => Effect::Read,
        // A POST that is called List is a list.
        _ => named,
    };
    let (mechanism, verdict, confidence, quote) = match (level, key, http.as_deref(), effect) {
        (NO_SIDE_EFFECTS, ..) => (
            Mechanism::DeclaredExtension,
            Verdict::SafeRead,
            Confidence::High,
            "idempotency_level = NO_SIDE_EFFECTS".to_owned(),
        ),
        (_, _, Some("get"), _) => (
            Mechanism::MethodSemantics,
            Verdict::SafeRead,
            Confidence::Medium,
            "google.api.http: get".to_owned(),
        ),
        (_, Some(key), ..) => (Mechanism::KeyBody, Verdict::SafeWithKey, Confidence::Medium, key),
        (IDEMPOTENT, ..) => (
            Mechanism::DeclaredExtension,
            Verdict::IdempotentClaimed,
            Confidence::High,
            "idempotency_level = IDEMPOTENT".to_owned(),
        ),
        (_, _, Some(verb @ ("put" | "delete")), _) => (
            Mechanism::MethodSemantics,
            Verdict::IdempotentClaimed,
            Confidence::Medium,
            format!("google.api.http: {verb}"),
        ),
        (.., Effect::Read) => {
            (Mechanism::None, Verdict::NeedsHuman, Confidence::Low, method.name().to_owned())
        }
        (.., Effect::Unknown) => {
            (Mechanism::None, Verdict::NeedsHuman, Confidence::Low, method.name().to_owned())
        }
        (_, _, Some(verb), _) => {
            (Mechanism::None, Verdict::Undocumented, Confidence::Medium, format!("google.api.http: {verb}"))
        }
        _ => (Mechanism::None, Verdict::Undocumented, Confidence::Low, method.name().to_owned()),
    };
    Rpc {
        name: format!("{}/{}", service.full_name(), method.name()),
        file: method.parent_service().parent_file().name().to_owned(),
        line: line(method),
        effect,
        mechanism,
        verdict,
        confidence,
        quote,
    }
}

/// G801 and G804 to G808: what the descriptor says, and what does not fit together.
fn declared(report: &mut Report, number: usize, method: &MethodDescriptor) {
    let Rpc { effect, verdict, confidence, .. } = report.rpcs[number].clone();
    let level = level(method);
    let verb = words(method.name()).first().cloned().unwrap_or_default();
    let writes = WRITES.contains(&verb.as_str());
    if verdict == Verdict::Undocumented {
        report.note(&rule::G801, confidence, number, rule::G801.finds);
    }
    if level == IDEMPOTENT
        && matches!(verb.as_str(), "create" | "insert" | "add" | "send")
        && key(&method.input()).is_none()
    {
        report.note(&rule::G804, Confidence::Medium, number, rule::G804.finds);
    }
    if level == NO_SIDE_EFFECTS && writes {
        report.note(&rule::G805, Confidence::Low, number, rule::G805.finds);
    }
    if (method.is_client_streaming()) && effect != Effect::Read {
        report.note(&rule::G807, Confidence::High, number, rule::G807.finds);
    }
    let http = http(method);
    let disagrees = match http.as_deref() {
        Some("get") => writes,
        Some("delete") => READS.contains(&verb.as_str()),
        _ => false,
    };
    if disagrees {
        let message = format!("google.api.http says {}, the name says {verb}", http.unwrap_or_default());
        report.note(&rule::G808, Confidence::Low, number, message);
    }
    if let Some(wrong) = malformed(method) {
        report.note(&rule::G806, Confidence::Medium, number, wrong);
    }
}

/// What keeps a `request_id` from being filled in by clients (AIP-4235).
fn malformed(method: &MethodDescriptor) -> Option<String> {
    let input = method.input();
    let top = input.fields().find(|field| folded(field.name()) == "requestid");
    let Some(field) = top else {
        let nested =
            input.fields().filter_map(|field| field.kind().as_message().cloned().map(|inner| (field, inner)));
        let inside = nested
            .into_iter()
            .find(|(_, inner)| inner.fields().any(|field| folded(field.name()) == "requestid"));
        return inside.map(|(field, _)| {
            format!("request_id is inside of {}; clients fill it at the top only", field.name())
        });
    };
    if method.is_client_streaming() || method.is_server_streaming() {
        return Some("request_id on a stream: clients do not fill it".to_owned());
    }
    let options = field.options();
    let formatted = extension(&options, "google.api.field_info").is_some_and(|info| match info {
        Value::Message(info) => number_of(&info, "format") == Some(UUID4),
        _ => false,
    });
    let required =
        extension(&options, "google.api.field_behavior").is_some_and(|behaviour| match behaviour {
            Value::List(all) => all.iter().any(|one| matches!(one, Value::EnumNumber(REQUIRED))),
            _ => false,
        });
    if required {
        return Some("request_id is required: clients fill optional ones only".to_owned());
    }
    (!formatted).then(|| "request_id has no format UUID4 (google.api.field_info)".to_owned())
}

/// G802 and G803: automatic retries of a gRPC service config.
fn retries(report: &mut Report, file: &str, config: &Node) {
    for entry in config.get("methodConfig").into_iter().flat_map(Node::items) {
        let Some(policy) = entry.get("retryPolicy") else { continue };
        let codes: Vec<String> = policy
            .get("retryableStatusCodes")
            .into_iter()
            .flat_map(Node::items)
            .filter_map(Node::text)
            .map(str::to_uppercase)
            .collect();
        let other: Vec<&str> =
            codes.iter().map(String::as_str).filter(|code| *code != "UNAVAILABLE").collect();
        for name in entry.get("name").into_iter().flat_map(Node::items) {
            let service = name.text_of("service").unwrap_or("");
            let method = name.text_of("method").filter(|method| !method.is_empty());
            let wanted = method.map(|method| format!("{service}/{method}"));
            let covers = |rpc: &Rpc| match &wanted {
                Some(wanted) => rpc.name == *wanted,
                // Without a method it is the whole service, and without a service everything.
                None => {
                    service.is_empty()
                        || rpc.name.strip_prefix(service).is_some_and(|rest| rest.starts_with('/'))
                }
            };
            let covered: Vec<usize> =
                (0..report.rpcs.len()).filter(|number| covers(&report.rpcs[*number])).collect();
            if covered.is_empty() {
                report.unmatched.push(format!("{file}: {}", wanted.as_deref().unwrap_or(service)));
            }
            for number in covered {
                let Rpc { effect, verdict, confidence, .. } = report.rpcs[number].clone();
                if verdict == Verdict::Undocumented {
                    let message = format!("{file} retries it, and nothing makes that safe");
                    report.note(&rule::G802, confidence, number, message);
                }
                if effect != Effect::Read && !other.is_empty() {
                    let message = format!("{file} retries {}: it may have happened", other.join(", "));
                    report.note(&rule::G803, Confidence::Medium, number, message);
                }
            }
        }
    }
}

fn level(method: &MethodDescriptor) -> i32 {
    let options = method.method_descriptor_proto().options.as_ref();
    options.and_then(|options| options.idempotency_level).unwrap_or_default()
}

/// The verb of `google.api.http`.
fn http(method: &MethodDescriptor) -> Option<String> {
    let Value::Message(http) = extension(&method.options(), "google.api.http")? else { return None };
    let verbs = ["get", "put", "post", "delete", "patch"];
    verbs.into_iter().find(|verb| http.has_field_by_name(verb)).map(str::to_owned)
}

fn extension(options: &DynamicMessage, name: &str) -> Option<Value> {
    options.extensions().find(|(extension, _)| extension.full_name() == name).map(|(_, value)| value.clone())
}

fn number_of(message: &DynamicMessage, field: &str) -> Option<i32> {
    match message.get_field_by_name(field)?.as_ref() {
        Value::EnumNumber(number) => Some(*number),
        _ => None,
    }
}

/// The key of a request: a text at its top.
fn key(input: &MessageDescriptor) -> Option<String> {
    let named = input.fields().find(|field| {
        let name = folded(field.name());
        matches!(field.kind(), prost_reflect::Kind::String)
            && !field.is_list()
            && (name.contains("idempot") || KEYS.contains(&name.as_str()))
    });
    named.map(|field| format!("{}.{}", input.name(), field.name()))
}

fn line(method: &MethodDescriptor) -> Option<usize> {
    let service = method.parent_service();
    let file = service.parent_file();
    let info = file.file_descriptor_proto().source_code_info.as_ref()?;
    let at = info.location.iter().find(|location| location.path == method.path())?;
    usize::try_from(*at.span.first()?).ok().map(|line| line + 1)
}
