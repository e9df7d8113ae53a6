//! The policies of an endpoint, and the defaults at the top of the file: the same fields, read by the same code.
//!
//! Tables of independent settings (windows, limits, in_flight, carrier, fingerprint) are overridden field by field;
//! those that state one decision (scope, failures, probe) are replaced as a whole, so that no decision is half old and
//! half new.

use std::time::Duration;

use super::{
    failures, fields,
    model::*,
    scope,
    section::{Item, Section},
    values::{self, show},
};
use crate::{
    fingerprint::BodyRules,
    key::{KeyRules, KeySyntax},
    record::RecoveryClass,
};

/// SPEC 3.1.
const REPLAY: Duration = Duration::from_secs(24 * 3600);
const REAP: Duration = Duration::from_secs(72 * 3600);
const LEASE: Duration = Duration::from_secs(30);
const RESOURCE_AT_MOST: Duration = Duration::from_secs(30 * 24 * 3600);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const WAIT_AT_MOST: Duration = Duration::from_secs(10);
const BODY_MAX: usize = 1 << 20;
/// Bodies are held in memory while a request runs, so the contract cannot ask for more than this.
const BODY_MAX_BOUND: usize = 256 << 20;
const KEY_LENGTH_BOUND: usize = 1024;
const PROBE_ATTEMPTS: u32 = 5;

/// What one place of the file says about an endpoint's policies, on top of what stood there before.
#[derive(Clone)]
pub(super) struct Policies<'a> {
    pub(super) carrier: Carrier,
    pub(super) key_rules: KeyRules,
    /// `None`: not decided yet.
    pub(super) scope: Option<Scope>,
    pub(super) scope_headers: Vec<String>,
    pub(super) fingerprint_headers: Vec<String>,
    pub(super) body_rules: BodyRules,
    pub(super) in_flight: InFlight,
    /// `None`: not decided yet.
    pub(super) failures: Option<FailurePolicy>,
    pub(super) times: Times<'a>,
    pub(super) limits: Limits,
    pub(super) recovery: RecoveryClass,
    pub(super) transaction: Shape,
    pub(super) probe: Option<Probe>,
    pub(super) rejected_before_processing: Vec<AnswerMatch>,
    pub(super) final_5xx: Vec<u16>,
    pub(super) undecided: Vec<AnswerMatch>,
    pub(super) reauthorise: Option<Reauthorise>,
    pub(super) store_down: StoreDown,
    pub(super) headers: StoredHeaders,
    pub(super) replay_marker: Option<String>,
}

/// Times as written: only together do they make [`Windows`].
#[derive(Clone, Default)]
pub(super) struct Times<'a> {
    replay: Option<(Duration, Item<'a>)>,
    reap: Option<(Duration, Item<'a>)>,
    lease: Option<Duration>,
    resource: Option<ResourceWindow>,
}

impl<'a> Policies<'a> {
    /// The documented defaults, before any line of the file.
    pub(super) fn defaults() -> Self {
        Self {
            carrier: Carrier::Header("idempotency-key".to_owned()),
            key_rules: KeyRules::default(),
            scope: None,
            scope_headers: Vec::new(),
            fingerprint_headers: Vec::new(),
            body_rules: BodyRules::default(),
            in_flight: InFlight { answer: InFlightAnswer::Refuse, retry_after: RETRY_AFTER },
            failures: None,
            times: Times::default(),
            limits: Limits { request_body_max: BODY_MAX, response_body_max: BODY_MAX },
            // The safe side: a lost holder may have done it, so nothing is run again by itself.
            recovery: RecoveryClass::Outside,
            transaction: Shape::One,
            probe: None,
            rejected_before_processing: Vec::new(),
            final_5xx: Vec::new(),
            undecided: Vec::new(),
            reauthorise: None,
            store_down: StoreDown::Closed,
            headers: StoredHeaders::default(),
            replay_marker: None,
        }
    }

    /// The same, as if all its times were written at `place`.
    pub(super) fn written_at(mut self, place: Option<&Item<'a>>) -> Self {
        let Times { replay, reap, .. } = &mut self.times;
        for time in [replay, reap] {
            *time = time.take().and_then(|(time, _)| Some((time, place?.clone())));
        }
        self
    }

    /// These policies with what `section` says instead.
    pub(super) fn overridden(&self, section: &Section<'a>, chain: Option<Duration>) -> Self {
        let mut new = self.clone();
        if let Some(carrier) = table(section, "carrier", fields::CARRIER) {
            new.carrier = carrier_of(&carrier, &self.carrier);
            new.key_rules = key_rules(&carrier, self.key_rules);
        }
        if let Some(scope) = section.get("scope").and_then(|item| scope::read(&item)) {
            new.scope = Some(scope);
        }
        new.scope_headers = section.list("scope_headers", values::header, new.scope_headers);
        if let Some(fingerprint) = table(section, "fingerprint", fields::FINGERPRINT) {
            new.fingerprint_headers = fingerprint.list("headers", values::header, new.fingerprint_headers);
            new.body_rules = body_rules(&fingerprint, new.body_rules);
        }
        if let Some(in_flight) = table(section, "in_flight", fields::IN_FLIGHT) {
            new.in_flight = in_flight_of(&in_flight, &self.in_flight);
        }
        if let Some(policy) = section.get("failures").and_then(|item| failures::read(&item)) {
            new.failures = Some(policy);
        }
        if let Some(windows) = table(section, "windows", fields::WINDOWS) {
            new.times = times(&windows, &self.times, chain);
        }
        if let Some(limits) = table(section, "limits", fields::LIMITS) {
            let bounds = 1..=BODY_MAX_BOUND;
            new.limits = Limits {
                request_body_max: limits.size(
                    "request_body_max",
                    bounds.clone(),
                    self.limits.request_body_max,
                ),
                response_body_max: limits.size("response_body_max", bounds, self.limits.response_body_max),
            };
        }
        new.recovery = recovery(section, self.recovery);
        if let Some(item) = section.get("transaction") {
            let words = [("one", Shape::One), ("claim_first", Shape::ClaimFirst)];
            new.transaction = item.word(&words).unwrap_or(new.transaction);
        }
        if let Some(item) = section.get("probe") {
            new.probe = unless_off(&item, |item| probe_of(&item.section(fields::PROBE)?));
        }
        if let Some(item) = section.get("rejected_before_processing") {
            new.rejected_before_processing = answer_matches(&item);
        }
        if let Some(item) = section.get("final_5xx") {
            new.final_5xx = final_5xx(&item);
        }
        if let Some(item) = section.get("undecided") {
            new.undecided = answer_matches(&item);
        }
        if let Some(item) = section.get("reauthorise") {
            new.reauthorise = unless_off(&item, reauthorise_of);
        }
        if let Some(item) = section.get("store_down") {
            let words = [("closed", StoreDown::Closed), ("open", StoreDown::Open)];
            new.store_down = item.word(&words).unwrap_or(new.store_down);
        }
        if let Some(headers) = table(section, "stored_headers", fields::STORED_HEADERS) {
            new.headers.keep = headers.list("keep", values::header, new.headers.keep);
            new.headers.drop = headers.list("drop", values::header, new.headers.drop);
        }
        if let Some(item) = section.get("replay_marker") {
            new.replay_marker = unless_off(&item, |item| item.text(values::header));
        }
        new
    }

    /// The windows, with SPEC 3.1 and 3.2 kept: the window is no shorter than the longest retry chain, the record no
    /// shorter than the window. `default` is where a fault is noted that no line of the file wrote.
    pub(super) fn windows(&self, chain: Option<Duration>, default: Option<&Item<'_>>) -> Windows {
        let replay = self.times.replay.as_ref().map_or(REPLAY, |(time, _)| *time);
        let reap = self.times.reap.as_ref().map_or(REAP.max(replay), |(time, _)| *time);
        if let Some(chain) = chain.filter(|chain| replay < *chain) {
            let place = self.times.replay.as_ref().map(|(_, item)| item).or(default);
            let message = format!(
                "the replay window ({}) is shorter than the longest retry chain ({}): the last retries would run again",
                show(replay),
                show(chain)
            );
            let help =
                format!("write replay = \"{}\" or more under [windows], or shorten the retries", show(chain));
            if let Some(place) = place {
                place.fault_once(message, help);
            }
        }
        if reap < replay {
            let place = self.times.reap.as_ref().map(|(_, item)| item);
            let message = format!(
                "the record is reaped after {}, before its replay window ({}) has passed",
                show(reap),
                show(replay)
            );
            if let Some(place) = place {
                place.fault_once(message, format!("write reap = \"{}\" or more", show(replay.max(REAP))));
            }
        }
        Windows {
            replay,
            reap,
            lease: self.times.lease.unwrap_or(LEASE),
            resource: self.times.resource.clone(),
        }
    }
}

fn table<'a>(
    section: &Section<'a>,
    field: &'static str,
    known: &'static [&'static str],
) -> Option<Section<'a>> {
    section.get(field)?.section(known)
}

/// `false` in an endpoint takes away what stands at the top of the file.
fn unless_off<T>(item: &Item<'_>, read: impl FnOnce(&Item<'_>) -> Option<T>) -> Option<T> {
    if item.is_off() { None } else { read(item) }
}

fn carrier_of(section: &Section<'_>, base: &Carrier) -> Carrier {
    let header = section.text("header", values::header).map(Carrier::Header);
    let field = section.text("body_field", values::pointer).map(Carrier::BodyField);
    if header.is_some() && field.is_some() {
        section.fault("body_field", "the key is carried in two places", "keep either header or body_field");
    }
    header.or(field).unwrap_or_else(|| base.clone())
}

fn key_rules(section: &Section<'_>, base: KeyRules) -> KeyRules {
    let words = [("lenient", KeySyntax::Lenient), ("strict", KeySyntax::Strict)];
    let bounds = 1..=i64::try_from(KEY_LENGTH_BOUND).unwrap_or(i64::MAX);
    let length = section.get("length_max").and_then(|item| item.number(bounds));
    KeyRules {
        syntax: section.get("syntax").and_then(|item| item.word(&words)).unwrap_or(base.syntax),
        max_len: length.and_then(|length| usize::try_from(length).ok()).unwrap_or(base.max_len),
    }
}

fn body_rules(section: &Section<'_>, base: BodyRules) -> BodyRules {
    let rules = BodyRules {
        exclude: section.list("exclude", values::json_pointer, base.exclude),
        ignore_body: !section.flag("body", !base.ignore_body),
        decoded_max: section.size("decoded_max", 1..=BODY_MAX_BOUND, base.decoded_max),
    };
    if rules.ignore_body && section.get("exclude").is_some() {
        section.fault("exclude", "the whole body is left out already", "keep either exclude or body = false");
    }
    rules
}

fn in_flight_of(section: &Section<'_>, base: &InFlight) -> InFlight {
    let at_most = match base.answer {
        InFlightAnswer::Wait { at_most } => at_most,
        _ => WAIT_AT_MOST,
    };
    let words = [
        ("409", InFlightAnswer::Refuse),
        ("wait", InFlightAnswer::Wait { at_most }),
        ("202", InFlightAnswer::AcceptPreferred),
        ("202-always", InFlightAnswer::AcceptAlways),
    ];
    let mut answer = section.get("answer").and_then(|item| item.word(&words)).unwrap_or(base.answer);
    if let Some(item) = section.get("wait_at_most") {
        match &mut answer {
            InFlightAnswer::Wait { at_most } => *at_most = item.time().unwrap_or(*at_most),
            _ => item.fault("nobody waits here", "write answer = \"wait\", or leave wait_at_most out"),
        }
    }
    InFlight { answer, retry_after: section.time("retry_after", base.retry_after) }
}

fn times<'a>(section: &Section<'a>, base: &Times<'a>, chain: Option<Duration>) -> Times<'a> {
    let written = |field| {
        let item: Item<'a> = section.get(field)?;
        Some((item.time()?, item))
    };
    Times {
        replay: written("replay").or_else(|| base.replay.clone()),
        reap: written("reap").or_else(|| base.reap.clone()),
        lease: section.get("lease").and_then(|item| item.time()).or(base.lease),
        resource: match section.get("resource") {
            Some(item) => unless_off(&item, |item| resource_window(&item.section(fields::RESOURCE)?, chain)),
            None => base.resource.clone(),
        },
    }
}

fn resource_window(section: &Section<'_>, chain: Option<Duration>) -> Option<ResourceWindow> {
    let why = "the window lives as long as the resource, so the answer has to name it";
    section.require("id", why, "write where the answer holds its id: id = \"/id\"");
    // A retry that was under way when the resource ended still has the whole chain before it.
    let grace = section.time("grace", chain.unwrap_or(REPLAY));
    let at_most = section.time("at_most", RESOURCE_AT_MOST);
    Some(ResourceWindow { id: section.text("id", values::pointer)?, grace, at_most })
}

fn recovery(section: &Section<'_>, base: RecoveryClass) -> RecoveryClass {
    let words = [
        ("outside", RecoveryClass::Outside),
        ("atomic", RecoveryClass::Atomic),
        ("phased", RecoveryClass::Phased),
    ];
    let word = section.get("recovery").and_then(|item| item.word(&words));
    match section.get("upstream_deduplicates").and_then(|item| item.flag()) {
        Some(true) => {
            if word.is_some_and(|word| word != RecoveryClass::Outside) {
                let message =
                    "an effect that others de-duplicate is outside, not in the claim's own transaction";
                section.fault("recovery", message, "keep either recovery or upstream_deduplicates = true");
            }
            RecoveryClass::Deduplicated
        }
        Some(false) if base == RecoveryClass::Deduplicated => word.unwrap_or(RecoveryClass::Outside),
        _ => word.unwrap_or(base),
    }
}

fn reauthorise_of(item: &Item<'_>) -> Option<Reauthorise> {
    let section = item.section(fields::REAUTHORISE)?;
    let help = "write the path that answers 2xx to a caller who still may: path = \"/auth/check\"";
    section.require("path", "replays are authorised by asking it", help);
    section.text("path", values::local_path).map(|path| Reauthorise { path })
}

fn probe_of(section: &Section<'_>) -> Option<Probe> {
    let path = section
        .require("path", "the upstream is asked somewhere", "write path = \"/payments?key={key}\"")
        .and_then(|item| item.text(probe_path));
    let status_header = section.text("status_header", values::header);
    let status = section.get("status").and_then(|item| item.status());
    if status_header.is_none() && status.is_none() {
        let why = "when the probe finds the request done, callers get an answer with this status";
        section.missing("status", why, "write status = 201, or status_header = the header that holds it");
    }
    let words = [("stay_uncertain", WhenAbsent::StayUncertain), ("release", WhenAbsent::Release)];
    let when_absent = section.get("when_absent").and_then(|item| item.word(&words));
    let (found, absent) = (section.statuses("found", vec![200]), section.statuses("absent", vec![404]));
    if let Some(both) = found.iter().find(|status| absent.contains(status)) {
        let message = format!("{both} means both that it was done and that it was not");
        section.fault("absent", message, "keep the status in one of found and absent");
    }
    Some(Probe {
        path: path?,
        found,
        absent,
        status_header,
        status: status.unwrap_or(200),
        when_absent: when_absent.unwrap_or(WhenAbsent::StayUncertain),
        fences: section.flag("fences", false),
        attempts: section.number("attempts", 1..=100, PROBE_ATTEMPTS),
    })
}

fn probe_path(text: &str) -> Result<String, values::Wrong> {
    let path = values::local_path(text)?;
    let bare = path.replace("{key}", "").replace("{fence}", "");
    if bare == path {
        let message = format!("{text:?} does not name the request that is asked about");
        return Err((message, "put {key} (or {fence}) where the upstream expects it".to_owned()));
    }
    if bare.contains(['{', '}']) {
        let message = format!("{text:?} has a placeholder that nothing fills");
        return Err((message, "the probe knows {key} and {fence}".to_owned()));
    }
    Ok(path)
}

/// `[503, { status = 429, field = "/error/code", value = "busy" }]`.
fn answer_matches(item: &Item<'_>) -> Vec<AnswerMatch> {
    let one = |item: Item<'_>| {
        if !item.is_table() {
            return Some(AnswerMatch { status: item.status()?, body: None });
        }
        let section = item.section(fields::ANSWER_MATCH)?;
        let help = "write { status = 409, field = \"/error/code\", value = \"busy\" }";
        section.require("status", "an answer is recognised by its status first", help);
        let (field, value) =
            (section.text("field", values::pointer), section.text("value", |text| Ok(text.to_owned())));
        if field.is_some() != value.is_some() {
            section.fault("field", "field and value go together", help);
        }
        Some(AnswerMatch { status: section.get("status")?.status()?, body: field.zip(value) })
    };
    item.list().into_iter().filter_map(one).collect()
}

fn final_5xx(item: &Item<'_>) -> Vec<u16> {
    let one = |item: Item<'_>| {
        let status = item.status()?;
        if status < 500 {
            item.fault(format!("{status} is no 5xx"), "leave it out: what is below 500 is final anyway");
            return None;
        }
        Some(status)
    };
    item.list().into_iter().filter_map(one).collect()
}
