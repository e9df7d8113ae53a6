//! The written form of an intent: JSON, with a version. One that is not known is refused, never guessed.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use retrysafe_core::{address, time::Wall};
use serde::{Deserialize, Serialize};

use super::{Intent, IntentFault};
use crate::key::Key;

const VERSION: u32 = 1;
/// Never written down, whatever their marks say.
const CREDENTIALS: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    HeaderName::from_static("x-api-key"),
];

#[derive(Serialize, Deserialize)]
struct Snapshot {
    version: u32,
    key: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    opened_ms: i64,
    wanted_until_ms: i64,
    window_ends_ms: i64,
}

impl Intent {
    /// Its written form.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, IntentFault> {
        let snapshot = Snapshot {
            version: VERSION,
            key: self.key.as_str().to_owned(),
            method: self.method.to_string(),
            path: self.path.clone(),
            headers: kept(&self.headers),
            body: BASE64_STANDARD.encode(&self.body),
            opened_ms: self.opened.unix_ms(),
            wanted_until_ms: self.wanted_until.unix_ms(),
            window_ends_ms: self.window_ends.unix_ms(),
        };
        serde_json::to_vec(&snapshot).map_err(|error| IntentFault::Store(error.into()))
    }

    /// Reads [`Intent::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, IntentFault> {
        let unreadable = |what: &str| IntentFault::Unreadable(what.to_owned());
        let snapshot: Snapshot =
            serde_json::from_slice(bytes).map_err(|error| IntentFault::Unreadable(error.to_string()))?;
        if snapshot.version != VERSION {
            return Err(IntentFault::Unreadable(format!("version {} is not known", snapshot.version)));
        }
        let key = address::Key::trusted(&snapshot.key).map_err(|_| unreadable("its key"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &snapshot.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unreadable("a header's name"))?;
            let value = BASE64_STANDARD.decode(value).map_err(|_| unreadable("a header's value"))?;
            headers
                .append(name, HeaderValue::from_bytes(&value).map_err(|_| unreadable("a header's value"))?);
        }
        Ok(Self {
            key: Key::carried(key).map_err(|_| unreadable("its key"))?,
            method: Method::from_bytes(snapshot.method.as_bytes()).map_err(|_| unreadable("its method"))?,
            path: snapshot.path,
            headers,
            body: BASE64_STANDARD
                .decode(&snapshot.body)
                .map(Bytes::from)
                .map_err(|_| unreadable("its body"))?,
            opened: Wall::from_unix_ms(snapshot.opened_ms),
            wanted_until: Wall::from_unix_ms(snapshot.wanted_until_ms),
            window_ends: Wall::from_unix_ms(snapshot.window_ends_ms),
        })
    }
}

/// The headers without credentials, values in base64: they may be any bytes.
fn kept(headers: &HeaderMap) -> Vec<(String, String)> {
    let kept = headers.iter().filter(|(name, value)| !CREDENTIALS.contains(name) && !value.is_sensitive());
    kept.map(|(name, value)| (name.to_string(), BASE64_STANDARD.encode(value.as_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_comes_back_without_its_credentials() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"));
        headers.insert("x-tenant", HeaderValue::from_bytes(b"\xe9t\xe9").unwrap());
        let intent = Intent {
            key: Key::from_event("order", 7).unwrap(),
            method: Method::POST,
            path: "/orders?a=1".into(),
            headers,
            body: Bytes::from_static(b"\x00\xff{}"),
            opened: Wall::from_unix_ms(1),
            wanted_until: Wall::from_unix_ms(2),
            window_ends: Wall::from_unix_ms(3),
        };
        let bytes = intent.to_bytes().unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("secret"));
        let read = Intent::from_bytes(&bytes).unwrap();
        assert!(read.same_call(&intent) && read.window_ends == intent.window_ends);
        assert_eq!(read.headers.len(), 1);
        assert_eq!(read.headers["x-tenant"], intent.headers["x-tenant"]);
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let bytes = br#"{"version":2,"key":"k","method":"POST","path":"/","headers":[],"body":"","opened_ms":0,"wanted_until_ms":0,"window_ends_ms":0}"#;
        assert!(matches!(Intent::from_bytes(bytes), Err(IntentFault::Unreadable(_))));
        assert!(matches!(Intent::from_bytes(b"{"), Err(IntentFault::Unreadable(_))));
    }
}
