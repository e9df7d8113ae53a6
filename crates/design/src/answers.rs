//! The questions, and what can be answered.

use std::time::Duration;

use retrysafe_core::contract::read_duration;
use serde::Deserialize;

macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal $says:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
        pub enum $name { $(#[doc = $says] #[serde(rename = $word)] $variant),* }
        impl $name {
            /// Every answer: the word that a file has, and what it means.
            pub const ALL: &'static [(Self, &'static str, &'static str)] = &[$((Self::$variant, $word, $says)),*];
            /// The word that a file has.
            pub fn as_str(self) -> &'static str {
                Self::ALL.iter().find(|(one, ..)| *one == self).map_or("", |(_, word, _)| word)
            }
        }
    };
}

choice! {
    /// Question 1.
    Interface {
        Rest = "rest" "REST: the deadline travels in a header, by convention",
        Grpc = "grpc" "gRPC: the deadline travels by itself (grpc-timeout)",
        Both = "both" "both",
    }
}
choice! {
    /// Question 3: where keys can be kept.
    StoreKind {
        Relational = "relational" "a relational database, with unique constraints and transactions",
        ConditionalWrites = "kv" "a key-value store with conditional writes",
        Cache = "cache" "a cache only, which may forget",
    }
}
choice! {
    /// Question 7: for how long it has to do.
    Horizon {
        OneOff = "one_off" "one fix of one place",
        Contract = "contract" "a contract that all later endpoints inherit",
        Deadline = "deadline" "it has to be there in days: what the store already does",
    }
}
choice! {
    /// Question 7: how much may be spent.
    Effort {
        Days = "days" "what is there is used as it is",
        Weeks = "weeks" "a table, a layer and tests are added",
        Months = "months" "isolation and code around the store may change",
    }
}
choice! {
    /// Who controls the retry loop.
    Callers {
        Own = "own" "our own developers, at both ends",
        ThirdParties = "third_parties" "third parties, on raw HTTP",
        Sdk = "sdk" "users of our SDKs",
    }
}
choice! {
    /// Where the rules can be enforced.
    Service {
        Rust = "rust" "the service is in Rust: the layer joins its transactions",
        Other = "other" "any other language: a gateway in front",
    }
}
choice! {
    /// Whose key it is.
    Identity {
        ApiKey = "api_key" "an API key that does not rotate",
        Jwt = "jwt" "a claim of a JWT",
        Application = "application" "the application knows (in Rust only)",
        Anonymous = "anonymous" "nobody: one scope for all",
    }
}
choice! {
    /// What becomes of failures (SPEC 6.1).
    Failures {
        A = "A" "store the first result, whatever it is (the safe side)",
        B = "B" "do not pin failures that pass",
    }
}

/// One question, as it is asked.
#[derive(PartialEq, Eq, Debug)]
pub struct Question {
    /// The field of the answers.
    pub field: &'static str,
    /// Its number in the list of seven; none: needed to write the contract.
    pub number: Option<u8>,
    /// What is asked.
    pub asks: &'static str,
    /// What is assumed where nobody knows, and why. None: only the owner can know.
    pub default: Option<(&'static str, &'static str)>,
}

macro_rules! questions {
    ($($field:literal $number:expr, $asks:literal, $default:expr;)*) => {
        /// Every question, in the order in which they are asked.
        pub const QUESTIONS: &[Question] = &[$(Question { field: $field, number: $number, asks: $asks, default: $default }),*];
    };
}

questions! {
    "api" None, "What do people call the API?", None;
    "interface" Some(1), "REST, gRPC or both?", Some(("rest", "most APIs are"));
    "endpoints" Some(2), "Which operations are not idempotent? (POST /orders, one by one, or from an OpenAPI document)", None;
    "store" Some(3), "Where can keys be kept?", Some(("relational", "claim and rows in one commit"));
    "irreversible_calls" Some(4), "Does a request call external systems that cannot be rolled back (charges, mail)?", None;
    "sdk_languages" Some(5), "In which languages are there SDKs?", Some(("", "none"));
    "raw_http" Some(5), "Do integrators call raw HTTP?", Some(("true", "somebody always does"));
    "longest_retry_chain" Some(6), "How long is the longest chain of retries (queues, dispute windows, a person on Monday)?", Some(("72h", "a Friday's failure is repaired on Monday"));
    "horizon" Some(7), "One fix, a contract for all that follows, or a deadline?", Some(("contract", "keys outlive the endpoint that they were made for"));
    "effort_ceiling" Some(7), "How much may it cost?", Some(("weeks", "a table, a layer, and tests"));
    "schema_migration" Some(7), "Is a migration of the schema possible?", Some(("true", "one table is added, none is changed"));
    "isolation_migration" Some(7), "Can the isolation level be raised to SERIALIZABLE?", Some(("false", "every transaction on those rows would have to follow"));
    "serializable_today" Some(7), "Do the transactions run SERIALIZABLE already?", Some(("false", "few do"));
    "callers" None, "Who controls the retry loop?", None;
    "service" None, "In which language is the service?", Some(("other", "a gateway stands in front of anything"));
    "identity" None, "Whose key is it: what is verified, and stays the same over all retries?", None;
    "failures" None, "What becomes of failures?", Some(("A", "a stored failure is never a second charge"));
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answers {
    /// Name of the API.
    pub api: String,
    /// Question 1.
    pub interface: Interface,
    /// Question 2: `POST /orders`; `PUT /orders/{id} optional` where a key is honoured and not asked for.
    pub endpoints: Vec<String>,
    /// Question 3.
    pub store: StoreKind,
    /// Question 4.
    pub irreversible_calls: bool,
    /// Question 5.
    pub sdk_languages: Vec<String>,
    /// Question 5.
    pub raw_http: bool,
    /// Question 6: `72h`.
    pub longest_retry_chain: String,
    /// Question 7.
    pub horizon: Horizon,
    /// Question 7.
    pub effort_ceiling: Effort,
    /// Question 7.
    pub schema_migration: bool,
    /// Question 7.
    pub isolation_migration: bool,
    /// Question 7.
    pub serializable_today: bool,
    /// Who controls the retry loop.
    pub callers: Callers,
    /// Where it can be enforced.
    pub service: Service,
    /// Whose key it is.
    pub identity: Identity,
    /// What becomes of failures.
    pub failures: Failures,
}

impl Answers {
    /// Reads a file of answers (TOML), and checks what can be checked.
    ///
    /// # Errors
    /// What is missing, or no answer.
    pub fn parse(text: &str) -> Result<Self, String> {
        let answers: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        if answers.endpoints.is_empty() {
            return Err("endpoints: name at least one operation, as \"POST /orders\"".to_owned());
        }
        for endpoint in &answers.endpoints {
            let mut parts = endpoint.split(' ');
            let method = parts.next().unwrap_or_default();
            let path = parts.next().unwrap_or_default();
            let well = !method.is_empty()
                && method.chars().all(|one| one.is_ascii_uppercase())
                && path.starts_with('/')
                && !path.contains(['"', '\n'])
                && matches!(parts.next(), None | Some("optional"))
                && parts.next().is_none();
            if !well {
                return Err(format!(
                    "endpoints: {endpoint:?} is no operation; write \"POST /orders\" or \"PUT /orders/{{id}} optional\""
                ));
            }
        }
        if answers.api.trim().is_empty() || answers.api.contains(['"', '\n', '\\']) {
            return Err("api: a name on one line, without quotation marks".to_owned());
        }
        read_duration(&answers.longest_retry_chain).map_err(|why| format!("longest_retry_chain: {why}"))?;
        Ok(answers)
    }

    /// Question 6 as a time.
    pub fn chain(&self) -> Duration {
        read_duration(&self.longest_retry_chain).unwrap_or(Duration::ZERO)
    }
}
