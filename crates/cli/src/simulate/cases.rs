//! What is compared: who sends, by which budget, through how many layers, with a key or without.

use std::{num::NonZeroU32, time::Duration};

use retrysafe_core::retry::{
    Backoff, Idempotence, Jitter, RetryPolicy,
    budget::{self, Bucket, Concurrency, FleetRule, Ratio, Throttle},
    presets::{self, Curve, Delays},
};

/// Who sends: a policy of the engine, and the sleeps of others where they are not the engine's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Sender {
    pub(super) policy: RetryPolicy,
    /// Sleeps at least this long before a retry.
    pub(super) delays: Option<Delays>,
}

impl Sender {
    fn engine(policy: RetryPolicy) -> Self {
        Self { policy, delays: None }
    }

    /// Another client: its number of attempts, its statuses and its formula; the engine decides what may be retried.
    fn other(attempts: u32, statuses: &[u16], delays: Delays) -> Self {
        let none = Duration::ZERO;
        let backoff = Backoff { jitter: Jitter::Full, base: none, throttled_base: none, cap: none };
        let policy = RetryPolicy {
            attempts: NonZeroU32::new(attempts).unwrap_or(NonZeroU32::MIN),
            backoff,
            statuses: statuses.iter().copied().collect(),
            elapsed: Duration::MAX,
            ..RetryPolicy::default()
        };
        Self { policy, delays: Some(delays) }
    }

    /// The same with another number of attempts.
    pub(super) fn with_attempts(mut self, attempts: NonZeroU32) -> Self {
        self.policy.attempts = attempts;
        self
    }
}

/// Statuses of clients that retry whatever looks like the server's fault.
const SERVER_FAULTS: &[u16] = &[500, 502, 503, 504];
const WIDE: &[u16] = &[408, 409, 429, 500, 502, 503, 504];
/// The base and the cap that this project's default has too, for the shapes of backoff.
const CURVE: Curve = Curve { base: Duration::from_millis(50), cap: Duration::from_secs(20) };
const SHAPE_ATTEMPTS: u32 = 3;

/// Names of senders, with what each is.
pub(super) const SENDERS: &[(&str, &str)] = &[
    ("retrysafe", "this project's default: 3 attempts, full jitter from 50 ms"),
    ("decorrelated", "the same with decorrelated jitter"),
    ("once", "no retry"),
    ("immediate", "3 attempts at once"),
    ("exponential", "3 attempts, 100 and 200 ms, no jitter"),
    ("equal", "3 attempts, half of it jittered"),
    ("aws-2.1", "AWS SDKs since November 2026: 3 attempts, full jitter from 50 ms"),
    ("aws-2.0", "AWS SDKs before: full jitter from 1 s"),
    ("dynamodb", "AWS for DynamoDB: 4 attempts from 25 ms"),
    ("google-cloud", "Google Cloud for Rust: 10 attempts, full jitter from 1 s to 60 s"),
    ("stripe-python", "Stripe for Python: 3 attempts, 0.5 to 5 s"),
    ("stripe-node", "Stripe for Node: 2 attempts"),
    ("stripe-go", "Stripe for Go: 3 attempts"),
    ("openai", "OpenAI and Anthropic: 3 attempts, 0.5 to 8 s"),
    ("twilio-node", "Twilio for Node with autoRetry: 4 attempts, 429 only"),
    ("resend", "Resend: no retry"),
    ("undici", "undici's retry agent: 6 attempts, 0.5 to 30 s, no jitter"),
    ("envoy", "Envoy: 2 attempts, at most 250 ms apart"),
    ("grpc", "gRPC with 5 attempts, 0.1 to 1 s"),
];

/// The sender of this name.
pub(super) fn sender(name: &str) -> Option<Sender> {
    let default = RetryPolicy::default();
    let google = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(60), ..Backoff::default() };
    let ten = NonZeroU32::new(10).unwrap_or(NonZeroU32::MIN);
    Some(match name {
        "retrysafe" => Sender::engine(default),
        "decorrelated" => {
            let backoff = Backoff { jitter: Jitter::Decorrelated, ..Backoff::default() };
            Sender::engine(RetryPolicy { backoff, ..default })
        }
        "once" | "resend" => Sender::engine(RetryPolicy { attempts: NonZeroU32::MIN, ..default }),
        "immediate" => Sender::other(SHAPE_ATTEMPTS, WIDE, Delays::None),
        "exponential" => Sender::other(SHAPE_ATTEMPTS, WIDE, Delays::Exponential(CURVE)),
        "equal" => Sender::other(SHAPE_ATTEMPTS, WIDE, Delays::Equal(CURVE)),
        "aws-2.1" => Sender::engine(presets::aws_2_1()),
        "aws-2.0" => Sender::engine(presets::aws_2_0()),
        "dynamodb" => Sender::engine(presets::dynamodb()),
        "google-cloud" => {
            let statuses = [503].into_iter().collect();
            let elapsed = Duration::from_secs(60);
            Sender::engine(RetryPolicy { attempts: ten, elapsed, backoff: google, statuses, ..default })
        }
        "stripe-python" => Sender::other(3, WIDE, Delays::Stripe),
        "stripe-node" => Sender::other(2, WIDE, Delays::Stripe),
        "stripe-go" => Sender::other(3, WIDE, Delays::StripeGo),
        "openai" => Sender::other(3, WIDE, Delays::OpenAi),
        "twilio-node" => Sender::other(4, &[429], Delays::TwilioNode),
        "undici" => Sender::other(6, &[429, 500, 502, 503, 504], Delays::Undici),
        "envoy" => Sender::other(2, SERVER_FAULTS, Delays::Envoy),
        "grpc" => Sender::other(5, SERVER_FAULTS, Delays::Grpc),
        _ => return None,
    })
}

/// A budget: the rules in each process, and those of the account that all share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    pub(super) process: budget::Rules,
    pub(super) fleet: Option<FleetRule>,
}

/// Names of budgets, with what each is.
pub(super) const BUDGETS: &[(&str, &str)] = &[
    ("none", "every retry is allowed"),
    ("bucket", "in each process 500 tokens, 14 for a transient retry, 5 for a throttled one"),
    ("bucket-10", "the same at 10 for each retry"),
    ("bucket-5", "the same at 5"),
    ("ratio", "in each process 20% of the first attempts of 10 s, and 10 in reserve"),
    ("process", "bucket and ratio: this project's default"),
    ("concurrency", "in each process 20% of the calls under way, at least 3 (Envoy)"),
    ("throttle", "in each process more successes than failures (gRPC)"),
    ("fleet", "20% and 10 in reserve for all processes together, leased from one account"),
];

/// The budget of this name.
pub(super) fn rules(name: &str) -> Option<Rules> {
    let none = budget::Rules::NONE;
    let bucket = |cost| Bucket { transient_cost: cost, ..Bucket::default() };
    let process = match name {
        "none" => none,
        "bucket" => budget::Rules { bucket: Some(Bucket::default()), ..none },
        "bucket-10" => budget::Rules { bucket: Some(bucket(10)), ..none },
        "bucket-5" => budget::Rules { bucket: Some(bucket(5)), ..none },
        "ratio" => budget::Rules { ratio: Some(Ratio::default()), ..none },
        "process" => budget::Rules::default(),
        "concurrency" => budget::Rules { concurrency: Some(Concurrency::default()), ..none },
        "throttle" => budget::Rules { throttle: Some(Throttle::default()), ..none },
        "fleet" => budget::Rules { fleet: true, ..none },
        _ => return None,
    };
    Some(Rules { process, fleet: process.fleet.then(FleetRule::default) })
}

/// What a call carries, and what the server makes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// A key that the server honours.
    Honoured,
    /// None, and the client sends again whatever is lost: what duplicates are made of.
    Ignored,
    /// None, and the client knows that it must not send again what may have happened.
    Absent,
}

/// Names of what a call carries.
pub(super) const KEYS: &[(&str, &str, Key)] = &[
    ("honoured", "one key for a call, which the server recognises", Key::Honoured),
    ("ignored", "no key that counts, and lost calls are sent again", Key::Ignored),
    ("absent", "no key, and lost calls are not sent again", Key::Absent),
];

impl Key {
    pub(super) fn idempotence(self) -> Idempotence {
        match self {
            Self::Honoured | Self::Ignored => Idempotence::Keyed,
            Self::Absent => Idempotence::Unsafe,
        }
    }
}

/// One line of a comparison.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) sender: Sender,
    pub(super) rules: Rules,
    pub(super) key: Key,
    /// Loops around each other, each with this sender.
    pub(super) layers: u32,
}

/// More layers than anybody has, and fewer than take a minute.
pub(super) const LAYERS_MAX: u32 = 4;

/// Ready-made comparisons, with what each shows.
pub(super) const COMPARISONS: &[(&str, &str)] = &[
    ("budgets", "no budget, those of a process, and that of a fleet"),
    ("presets", "what the SDKs of others do"),
    ("backoffs", "the shapes of backoff"),
    ("keys", "with a key, without one, and without one but careful"),
    ("layers", "one, two and three loops around each other"),
];

/// The lines of a ready-made comparison, as they would be written on the command line.
pub(super) fn comparison(name: &str) -> &'static [&'static str] {
    match name {
        "presets" => &[
            "sender=retrysafe,budget=process",
            "sender=aws-2.1,budget=bucket",
            "sender=google-cloud",
            "sender=stripe-python",
            "sender=openai",
            "sender=undici",
        ],
        "backoffs" => &[
            "sender=immediate",
            "sender=exponential",
            "sender=equal",
            "sender=retrysafe",
            "sender=decorrelated",
        ],
        "keys" => &["key=ignored", "key=absent", "key=honoured"],
        "layers" => &["layers=1", "layers=2", "layers=3", "layers=3,budget=fleet"],
        _ => &["budget=none", "budget=bucket", "budget=ratio", "budget=process", "budget=fleet"],
    }
}

impl Case {
    /// Reads `sender=NAME,budget=NAME,key=NAME,layers=N,attempts=N,name=TEXT`, each of which may be left out. Without a
    /// name, the line is its name.
    ///
    /// # Errors
    /// What is wrong with it, and what there is.
    pub(super) fn read(line: &str, base: &Case) -> Result<Self, String> {
        let mut case = Self { name: line.to_owned(), ..base.clone() };
        let mut attempts = None;
        for part in line.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (field, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is no FIELD=VALUE"))?;
            match field {
                "sender" => {
                    case.sender = sender(value)
                        .ok_or_else(|| unknown("sender", value, SENDERS.iter().map(|one| one.0)))?;
                }
                "budget" => {
                    case.rules = rules(value)
                        .ok_or_else(|| unknown("budget", value, BUDGETS.iter().map(|one| one.0)))?;
                }
                "key" => {
                    let found = KEYS.iter().find(|(name, ..)| *name == value);
                    case.key = found.ok_or_else(|| unknown("key", value, KEYS.iter().map(|one| one.0)))?.2;
                }
                "layers" => {
                    let layers = value.parse().ok().filter(|layers| (1..=LAYERS_MAX).contains(layers));
                    case.layers = layers.ok_or_else(|| format!("layers={value} is not 1 to {LAYERS_MAX}"))?;
                }
                "attempts" => {
                    attempts =
                        Some(value.parse().map_err(|_| format!("attempts={value} is no number above 0"))?);
                }
                "name" => value.clone_into(&mut case.name),
                _ => {
                    let fields = ["sender", "budget", "key", "layers", "attempts", "name"];
                    return Err(unknown("field", field, fields.into_iter()));
                }
            }
        }
        if let Some(attempts) = attempts {
            case.sender = case.sender.with_attempts(attempts);
        }
        Ok(case)
    }
}

/// The message about a name that does not exist.
pub(super) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    format!("there is no {what} {name:?}; there is {}", known.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Case {
        Case {
            name: String::new(),
            sender: sender("retrysafe").unwrap(),
            rules: rules("none").unwrap(),
            key: Key::Honoured,
            layers: 1,
        }
    }

    #[test]
    fn every_name_that_help_shows_exists() {
        assert!(SENDERS.iter().all(|(name, _)| sender(name).is_some()));
        assert!(BUDGETS.iter().all(|(name, _)| rules(name).is_some()));
        for (name, _) in COMPARISONS {
            assert!(comparison(name).iter().all(|line| Case::read(line, &base()).is_ok()), "{name}");
        }
    }

    #[test]
    fn a_line_changes_what_it_names() {
        let case = Case::read("layers=2, attempts=5,budget=fleet", &base()).unwrap();
        assert_eq!((case.layers, case.sender.policy.attempts.get()), (2, 5));
        assert!(case.rules.fleet.is_some() && case.key == Key::Honoured);
    }

    #[test]
    fn what_does_not_exist_is_refused_with_what_does() {
        for (line, word) in [
            ("sender=awz", "aws-2.1"),
            ("budget=x", "fleet"),
            ("speed=1", "sender"),
            ("layers=9", "1 to 4"),
            ("x", "FIELD=VALUE"),
        ] {
            assert!(Case::read(line, &base()).unwrap_err().contains(word), "{line}");
        }
    }
}
