//! An endpoint of the contract, prepared for requests: names parsed, keys read, nothing left to look up.

use http::{HeaderMap, HeaderName};
use retrysafe_core::{
    contract::{Carrier, Endpoint},
    pointer::JsonPointer,
};

use crate::scope::{AccountSource, ScopeFault, header_name};

/// One endpoint, ready.
pub(crate) struct Plan {
    pub(crate) endpoint: Endpoint,
    pub(crate) account: AccountSource,
    /// Where the key is.
    pub(crate) key_place: KeyPlace,
    pub(crate) replay_marker: Option<HeaderName>,
    fingerprint_headers: Vec<HeaderName>,
}

/// The carrier of keys, parsed.
pub(crate) enum KeyPlace {
    Header(HeaderName),
    Body(JsonPointer),
}

impl Plan {
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, ScopeFault> {
        let key_place = match &endpoint.carrier {
            Carrier::Header(name) => KeyPlace::Header(header_name(name)?),
            Carrier::BodyField(pointer) => {
                KeyPlace::Body(pointer.parse().map_err(|_| ScopeFault::Pointer(pointer.clone()))?)
            }
        };
        Ok(Self {
            account: AccountSource::new(&endpoint.scope, &endpoint.scope_headers)?,
            key_place,
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
