//! From the text of `retrysafe.toml` to a [`Contract`], or to everything that is wrong with it.
//!
//! What only the user can know has no default and is noted as undecided: the failure policy, the scope, the longest retry
//! chain, what becomes of unlisted operations, the hop's namespace.

use std::time::Duration;

use toml::de::DeTable;

use super::{
    fault::{Faults, Kind, Sink},
    fields,
    model::*,
    outward,
    policies::Policies,
    routes::{Conflict, Routes},
    section::{Item, Section},
    values::{self, show},
};
use crate::{
    address::Namespace,
    profile::{self, Profile},
};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const CONCURRENT_MAX: u32 = 1024;
const CONCURRENT_BOUND: i64 = 1 << 20;
const STATUS_PATH: &str = "/.retrysafe/status";

const CONTRACT: Kind = Kind { what: "contract", home_of: fields::home_of };

impl Contract {
    /// Reads a contract. `file` is its name, for messages.
    ///
    /// ```
    /// use retrysafe_core::contract::Contract;
    ///
    /// let faults = Contract::parse("api = 'Shop'\nreplay = '24h'\n", "retrysafe.toml").unwrap_err();
    /// assert!(faults.to_string().contains("retrysafe.toml:2:1"));
    /// assert!(faults.faults.iter().any(|fault| fault.path == "longest_retry_chain"));
    /// ```
    ///
    /// # Errors
    /// [`Faults`]: all of them, each with its place and what to write instead. The text has to change; trying again does
    /// not help.
    pub fn parse(text: &str, file: &str) -> Result<Contract, Faults> {
        read(text, file, Guards::Endpoints)
    }

    /// What stands for the contract of a service that answers no requests, where events alone are guarded: it has no endpoint,
    /// so there is no policy to decide. Its `namespace` is a consumer's name; no event comes again after
    /// `longest_retry_chain`, and no attempt at one takes longer than `answer_timeout`.
    ///
    /// # Errors
    /// [`Faults`]: a time is none that a contract may have.
    pub fn of_events(
        namespace: &Namespace,
        longest_retry_chain: Duration,
        answer_timeout: Duration,
    ) -> Result<Contract, Faults> {
        let (chain, answer) = (values::show(longest_retry_chain), values::show(answer_timeout));
        let name = namespace.as_str();
        let text = format!(
            "api = \"{name}\"\nnamespace = \"{name}\"\nlongest_retry_chain = \"{chain}\"\nanswer_timeout = \"{answer}\"\n\
             unlisted = \"refuse\"\n"
        );
        read(&text, name, Guards::Events)
    }
}

/// What a contract is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guards {
    Endpoints,
    Events,
}

fn read(text: &str, file: &str, guards: Guards) -> Result<Contract, Faults> {
    let sink = Sink::new(text, CONTRACT);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let help = "mend the TOML syntax first; the rest of the file is read as well as it can be";
        sink.note(error.span().unwrap_or(0..0), "", format!("not TOML: {}", error.message()), help);
    }
    let root = Section::root(&table, &fields::ROOT, &sink);
    let profile = root.get("profile").and_then(|item| profile(&item));
    // The vendor's fields come from a file of their own. Whatever is wrong with one was found by its test.
    let vendors = profile.map_or("", Profile::source);
    let (vendor_sink, (vendor, _)) = (Sink::new(vendors, CONTRACT), DeTable::parse_recoverable(vendors));
    let beneath =
        profile::fields(vendor.get_ref()).map(|table| Section::beneath(table, &fields::ROOT, &vendor_sink));
    let contract = contract(&root, profile.zip(beneath.as_ref()), guards, &sink);
    match contract {
        Some(contract) if sink.is_clean() && vendor_sink.is_clean() => Ok(contract),
        _ => Err(sink.into_faults(file)),
    }
}

/// The profile that the file names.
fn profile(item: &Item<'_>) -> Option<&'static Profile> {
    let names = Profile::names().map(|name| (name, name));
    let profile = Profile::named(item.word(&names)?)?;
    if !profile.guards() {
        let message = format!("{} sends its key where the layer does not read one", profile.title);
        item.fault(message, "leave the profile out: it only documents what the vendor does");
        return None;
    }
    Some(profile)
}

/// `vendor` is the named profile with what it says: the file's own fields stand above that.
fn contract<'a>(
    root: &Section<'a>,
    vendor: Option<(&'static Profile, &Section<'a>)>,
    guards: Guards,
    sink: &Sink<'_>,
) -> Option<Contract> {
    let (profile, beneath) = vendor.unzip();
    let api = root.require("api", "people call your API something", "write api = \"Shop\"");
    let api = api.and_then(|item| item.text(values::said));
    let namespace = namespace(root);
    let chain_item = root.require(
        "longest_retry_chain",
        "no replay window can be right without it",
        "write the longest time over which any caller retries one operation (queues, webhooks, people on Monday): \"24h\"",
    );
    let chain = chain_item.as_ref().and_then(Item::time);
    let unlisted = root.require(
        "unlisted",
        "state-changing requests that no endpoint lists are passed on unguarded or refused",
        "write unlisted = \"pass\" or \"refuse\"",
    );
    let unlisted =
        unlisted.and_then(|item| item.word(&[("pass", Unlisted::Pass), ("refuse", Unlisted::Refuse)]));
    let words = ClaimMethod::ALL.map(|method| (method.as_str(), method));
    let claim = root.get("claim").and_then(|item| item.word(&words)).unwrap_or(ClaimMethod::Unique);
    let (endpoints, routes) = endpoints(root, beneath, (chain, chain_item.as_ref()), guards, sink);
    let (answers, client) = (outward::answers(root, beneath), outward::client(root, beneath));
    let concurrent = root.number("concurrent_max", 1..=CONCURRENT_BOUND, CONCURRENT_MAX);
    let contract = Contract {
        api: api.unwrap_or_default(),
        version: root.number("version", 1..=i64::from(u32::MAX), 1),
        namespace: namespace?,
        longest_retry_chain: chain?,
        unlisted: unlisted?,
        profile: profile.map(|profile| profile.name),
        claim,
        answers,
        client,
        concurrent_max: usize::try_from(concurrent).unwrap_or(usize::MAX),
        status_path: root.text("status_path", values::local_path).unwrap_or_else(|| STATUS_PATH.to_owned()),
        answer_timeout: root.time("answer_timeout", ANSWER_TIMEOUT),
        endpoints,
        routes,
    };
    Some(contract)
}

fn namespace(root: &Section<'_>) -> Option<Namespace> {
    let why = "two hops with one namespace would take each other's claims for their own";
    let item =
        root.require("namespace", why, "write a short word for this hop: namespace = \"shop-gateway\"")?;
    item.text(|text| {
        Namespace::new(text).map_err(|fault| (fault.to_string(), "write a short plain word".to_owned()))
    })
}

fn endpoints<'a>(
    root: &Section<'a>,
    beneath: Option<&Section<'a>>,
    (chain, chain_item): (Option<Duration>, Option<&Item<'_>>),
    guards: Guards,
    sink: &Sink<'_>,
) -> (Vec<Endpoint>, Routes) {
    let vendor = beneath.map_or_else(Policies::defaults, |vendor| {
        // A time of the vendor's that does not fit this file is noted where the file names the profile.
        Policies::defaults().overridden(vendor, chain).written_at(root.get("profile").as_ref())
    });
    let top = vendor.overridden(root, chain);
    let written = root.get("endpoint");
    if let Some(item) = written.as_ref().filter(|item| item.is_table()) {
        item.fault(
            "`[endpoint]` is one table",
            "write `[[endpoint]]`, in double brackets, for each operation",
        );
        return (Vec::new(), Routes::default());
    }
    let listed = written.map(|item| item.list()).unwrap_or_default();
    if listed.is_empty() && guards == Guards::Endpoints {
        let help = "write [[endpoint]] with method and path for every operation that changes state";
        root.missing("endpoint", "the contract guards nothing", help);
    }
    let (mut endpoints, mut routes) = (Vec::new(), Routes::default());
    let (mut unscoped, mut undecided) = (Vec::new(), Vec::new());
    for item in &listed {
        let Some(section) = item.section(&fields::ENDPOINT) else { continue };
        let policies = top.overridden(&section, chain);
        let windows = policies.windows(chain, chain_item);
        let line = sink.position(item.span.start).0;
        let Some((method, path)) = operation(&section) else { continue };
        let name = format!("{method} {path}");
        // A decision that is there and wrong was noted already; only an absent one is missing.
        if policies.scope.is_none() && section.get("scope").or(root.get("scope")).is_none() {
            unscoped.push(name.clone());
        }
        if policies.failures.is_none() && section.get("failures").or(root.get("failures")).is_none() {
            undecided.push(name.clone());
        }
        let Some(key) = key_use(&section) else { continue };
        let ends_resource = ends_resource(&section, &path, chain);
        let (Some(scope), Some(failures)) = (policies.scope, policies.failures) else { continue };
        endpoints.push(Endpoint {
            method,
            path,
            name: name.into(),
            key,
            carrier: policies.carrier,
            key_rules: policies.key_rules,
            scope,
            scope_headers: policies.scope_headers,
            fingerprint_headers: policies.fingerprint_headers,
            body_rules: policies.body_rules,
            in_flight: policies.in_flight,
            failures,
            windows,
            limits: policies.limits,
            recovery: policies.recovery,
            transaction: policies.transaction,
            probe: policies.probe,
            rejected_before_processing: policies.rejected_before_processing,
            final_5xx: policies.final_5xx,
            undecided: policies.undecided,
            reauthorise: policies.reauthorise,
            store_down: policies.store_down,
            headers: policies.headers,
            replay_marker: policies.replay_marker,
            ends_resource,
            line,
        });
        if let Err(Conflict(earlier)) = routes.insert(endpoints.len() - 1, &endpoints) {
            let earlier = earlier.map(|at| &endpoints[at]);
            let earlier = earlier.map_or_else(
                || "an earlier endpoint takes the same paths".to_owned(),
                |one| format!("line {} lists {} already, and both take the same paths", one.line, one.name),
            );
            section.fault("path", earlier, "keep one of the two endpoints");
        }
    }
    if !unscoped.is_empty() {
        let why = format!("a key belongs to an account, and nothing says which ({})", unscoped.join(", "));
        let help = "write [scope] with source = \"jwt\", \"trusted_header\", \"api_key\", \"application\" or \"anonymous\"";
        root.missing("scope", &why, help);
    }
    if !undecided.is_empty() {
        let why = format!("whether a failed request is replayed or run again ({})", undecided.join(", "));
        let help = "write [failures] with policy = \"A\" (store the first result, the safe side) or \"B\" (by class of status)";
        root.missing("failures", &why, help);
    }
    (endpoints, routes)
}

fn operation(section: &Section<'_>) -> Option<(String, String)> {
    let method = section.require("method", "an endpoint is a method and a path", "write method = \"POST\"");
    let path = section.require("path", "an endpoint is a method and a path", "write path = \"/orders\"");
    let method = method.and_then(|item| item.text(values::method));
    let path = path.and_then(|item| item.text(values::path_template));
    method.zip(path)
}

fn key_use(section: &Section<'_>) -> Option<KeyUse> {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        Required,
        Optional,
        Unsafe,
    }
    let words = [("required", Word::Required), ("optional", Word::Optional), ("unsafe", Word::Unsafe)];
    let why = "every operation takes a key or is documented as unsafe to retry";
    let item = section.require("key", why, "write key = \"required\", \"optional\" or \"unsafe\"");
    let reason = section.text("unsafe_reason", values::said);
    let word = item?.word(&words)?;
    if word != Word::Unsafe && reason.is_some() {
        let message = "only an endpoint that takes no key is unsafe to retry";
        section.fault("unsafe_reason", message, "leave it out, or write key = \"unsafe\"");
    }
    match word {
        Word::Required => Some(KeyUse::Required),
        Word::Optional => Some(KeyUse::Optional),
        Word::Unsafe => {
            if section.get("unsafe_reason").is_none() {
                let why = "people who must not retry are told why";
                section.missing("unsafe_reason", why, "write unsafe_reason = \"appends to a log\"");
            }
            Some(KeyUse::Unsafe { reason: reason? })
        }
    }
}

fn ends_resource(section: &Section<'_>, path: &str, chain: Option<Duration>) -> Option<EndsResource> {
    let ends = section.get("ends_resource")?.section(fields::ENDS_RESOURCE)?;
    let help = "write the parameter of the path that names it: param = \"id\"";
    let param =
        ends.require("param", "the resource that ends is named in the path", help)?.text(values::said)?;
    if !path.contains(&format!("{{{param}}}")) {
        ends.fault("param", format!("{path} has no parameter {{{param}}}"), help);
        return None;
    }
    let grace = ends.time("grace", chain?);
    if let Some(chain) = chain.filter(|chain| grace < *chain) {
        let message = format!(
            "the grace ({}) is shorter than the longest retry chain ({}): a late retry would make the resource again",
            show(grace),
            show(chain)
        );
        ends.fault("grace", message, format!("write grace = \"{}\" or more", show(chain)));
    }
    Some(EndsResource { param, grace })
}
