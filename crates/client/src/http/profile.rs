//! APIs without a contract of ours whose handling of keys is published: what a client has to know about them.
//!
//! The vendors are those of [`retrysafe_core::profile`], read from the same files as a contract that says
//! `profile = "stripe-v1"`.

use std::time::Duration;

use retrysafe_core::{contract::Carrier, key::KeyRules, policy::Place, profile, retry::RetryPolicy};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// What an API does with keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Name for logs.
    pub name: String,
    /// Where the key goes.
    pub carrier: Carrier,
    /// Length of keys, and their spelling.
    pub rules: KeyRules,
    /// Methods on which keys are honoured.
    pub methods: Vec<String>,
    /// How long an answer is replayed.
    pub replay: Duration,
    /// How to retry, with the failures that are stored under the key: the same key only fetches those again.
    pub policy: RetryPolicy,
}

impl Profile {
    /// The vendor called `name`: `stripe-v1`, `stripe-v2`, `resend`, `twilio`, `paypal`, `square`, `adyen` or `ietf-07`. `None`
    /// for another name, and for vendors whose keys travel where this client sends none.
    ///
    /// An API that stores a 500, as Stripe's first version does, cannot be asked again under the same key.
    ///
    /// ```
    /// use retrysafe_client::Profile;
    ///
    /// let stripe = Profile::named("stripe-v1").unwrap();
    /// assert!(stripe.policy.stored.contains(500));
    /// assert_eq!(stripe.methods, ["POST"]);
    /// ```
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let vendor = profile::Profile::named(name)?;
        let contract = vendor.contract()?;
        let endpoint = contract.endpoints.first()?;
        Some(Self {
            name: vendor.name.to_owned(),
            carrier: endpoint.carrier.clone(),
            rules: endpoint.key_rules,
            methods: vendor.methods.clone(),
            replay: endpoint.windows.replay,
            policy: RetryPolicy::for_endpoint(&contract, endpoint, Place::Library),
        })
    }

    /// An API that honours a bare key in this header on POST and PATCH, and replays for a day.
    #[must_use]
    pub fn plain(name: &str, header: &str) -> Self {
        Self {
            name: name.to_owned(),
            carrier: Carrier::Header(header.to_ascii_lowercase()),
            rules: KeyRules::default(),
            methods: vec!["POST".to_owned(), "PATCH".to_owned()],
            replay: DAY,
            policy: RetryPolicy::default(),
        }
    }
}
