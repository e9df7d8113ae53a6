//! What vendors publish about their keys, as data: each fact with its source, or without one and then not verified.
//!
//! `profile = "stripe-v1"` in a contract makes layer and gateway answer as that vendor documents: the profile's fields stand
//! beneath the file's own, which override them as an endpoint overrides the top. A client that calls the vendor reads the
//! same file. What the layer cannot do as the vendor does is said in [`Profile::differences`].
//!
//! ```
//! use retrysafe_core::profile::Profile;
//!
//! let resend = Profile::named("resend").unwrap();
//! let contract = resend.contract().unwrap();
//! assert_eq!(contract.endpoints[0].key_rules.max_len, 256);
//! assert!(resend.facts.iter().any(|fact| fact.about == "scope" && fact.source.is_none()));
//! ```
//!
//! Limits: the data is compiled in, and as old as [`Profile::as_of`] says. A vendor whose key travels in a query parameter or a
//! message has a profile that only documents.

use std::sync::LazyLock;

use serde::{Deserialize, de::IgnoredAny};
use toml::de::{DeTable, DeValue};

use crate::contract::Contract;

/// A vendor's contract.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What contracts call it.
    #[serde(skip)]
    pub name: &'static str,
    /// The API, for people.
    pub title: String,
    /// The month in which the facts were looked up.
    pub as_of: String,
    /// Methods on which the vendor honours keys.
    pub methods: Vec<String>,
    /// What is published.
    #[serde(rename = "fact", default)]
    pub facts: Vec<Fact>,
    /// What the layer does otherwise.
    #[serde(rename = "difference", default)]
    differences: Vec<Difference>,
    /// Whether it has fields of a contract, which [`fields`] finds.
    contract: Option<IgnoredAny>,
    #[serde(skip)]
    source: &'static str,
}

/// Something a vendor publishes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// What it is about: "window", "mismatch".
    pub about: String,
    /// What it is.
    pub says: String,
    /// Where it is published; `None`: nobody has verified it.
    pub source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    says: String,
}

/// Names and texts, in the order that people list them in.
const SOURCES: [(&str, &str); 10] = [
    ("stripe-v1", include_str!("../../../profiles/stripe-v1.toml")),
    ("stripe-v2", include_str!("../../../profiles/stripe-v2.toml")),
    ("resend", include_str!("../../../profiles/resend.toml")),
    ("twilio", include_str!("../../../profiles/twilio.toml")),
    ("aws-ec2", include_str!("../../../profiles/aws-ec2.toml")),
    ("google-cloud", include_str!("../../../profiles/google-cloud.toml")),
    ("paypal", include_str!("../../../profiles/paypal.toml")),
    ("square", include_str!("../../../profiles/square.toml")),
    ("adyen", include_str!("../../../profiles/adyen.toml")),
    ("ietf-07", include_str!("../../../profiles/ietf-07.toml")),
];

/// Read at first use. A text that is no profile would be left out; a test reads them all.
static ALL: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let read = |(name, source): &(&'static str, &'static str)| {
        let profile: Profile = toml::from_str(source).ok()?;
        Some(Profile { name, source, ..profile })
    };
    SOURCES.iter().filter_map(read).collect()
});

impl Profile {
    /// The names, in the order that people list them in.
    #[must_use]
    pub fn names() -> [&'static str; SOURCES.len()] {
        SOURCES.map(|(name, _)| name)
    }

    /// All profiles.
    pub fn all() -> impl Iterator<Item = &'static Profile> {
        ALL.iter()
    }

    /// The profile called `name`.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Profile> {
        ALL.iter().find(|profile| profile.name == name)
    }

    /// What the layer does otherwise than the vendor.
    pub fn differences(&self) -> impl Iterator<Item = &str> {
        self.differences.iter().map(|difference| difference.says.as_str())
    }

    /// Whether the layer can answer as this vendor does.
    #[must_use]
    pub fn guards(&self) -> bool {
        self.contract.is_some()
    }

    /// The text of its file.
    pub(crate) fn source(&self) -> &'static str {
        self.source
    }

    /// The contract of an API of which only this profile is known: one operation, whose key is optional. A client takes header,
    /// window and statuses from it. `None` where the layer cannot read the vendor's keys.
    #[must_use]
    pub fn contract(&self) -> Option<Contract> {
        let method = self.methods.first()?;
        // What a contract must decide beyond its profile matters to nobody who only calls the API.
        let text = format!(
            "api = \"{name}\"\nnamespace = \"{name}\"\nprofile = \"{name}\"\nlongest_retry_chain = \"1m\"\n\
             unlisted = \"pass\"\nscope = {{ source = \"application\" }}\n\n\
             [[endpoint]]\nmethod = \"{method}\"\npath = \"/{{*any}}\"\nkey = \"optional\"\n",
            name = self.name,
        );
        Contract::parse(&text, self.name).ok()
    }
}

/// The fields of a contract that a profile's file holds.
pub(crate) fn fields<'a>(file: &'a DeTable<'a>) -> Option<&'a DeTable<'a>> {
    let (_, value) = file.iter().find(|(key, _)| key.get_ref() == "contract")?;
    match value.get_ref() {
        DeValue::Table(table) => Some(table),
        _ => None,
    }
}
