//! An endpoint of the contract, prepared for requests: names parsed, keys read, nothing left to look up.

use http::{HeaderMap, HeaderName};
use retrysafe_core::contract::{Carrier, Endpoint};

use crate::scope::{AccountSource, ScopeFault, header_name};

/// One endpoint, ready.
pub(crate) struct Plan {
    pub(crate) endpoint: Endpoint,
    pub(crate) account: AccountSource,
    /// The key's header; `None` when the key is in the body.
    pub(crate) key_header: Option<HeaderName>,
    pub(crate) replay_marker: Option<HeaderName>,
    fingerprint_headers: Vec<HeaderName>,
}

impl Plan {
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, ScopeFault> {
        let key_header = match &endpoint.carrier {
            Carrier::Header(name) => Some(header_name(name)?),
            Carrier::BodyField(_) => None,
        };
        Ok(Self {
            account: AccountSource::new(&endpoint.scope, &endpoint.scope_headers)?,
            key_header,
            replay_marker: endpoint.replay_marker.as_deref().map(header_name).transpose()?,
            fingerprint_headers: endpoint
                .fingerprint_headers
                .iter()
                .map(|name| header_name(name))
                .collect::<Result<_, _>>()?,
            endpoint: endpoint.clone(),
        })
    }

    /// The header lines that select the effect (protocol 3), in the contract's order.
    pub(crate) fn selected_headers<'a>(&'a self, headers: &'a HeaderMap) -> Vec<(&'a str, &'a [u8])> {
        self.fingerprint_headers
            .iter()
            .flat_map(|name| headers.get_all(name).iter().map(move |value| (name.as_str(), value.as_bytes())))
            .collect()
    }
}
