//! Asks what became of an uncertain request, by the contract's probe.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use retrysafe_core::{address::Key, contract::Probe, ids::Fence};

use crate::inquire::Inquire;

/// The pause before a probe is sent again, doubled each time.
const PAUSE: Duration = Duration::from_millis(50);

/// What the probe found.
pub(crate) enum Found {
    /// It was done; this was its answer.
    Done(http::response::Parts, Bytes),
    /// The upstream does not know the key.
    Absent,
    /// No answer, or one that the contract does not explain.
    Unclear,
}

/// The probe's path for one key and the fence of the lost run.
pub(crate) fn path(probe: &Probe, key: &Key, fence: Fence) -> String {
    probe.path.replace("{key}", &percent_encode(key.as_str())).replace("{fence}", &fence.to_string())
}

/// Sends the probe up to its number of attempts.
pub(crate) async fn ask(inquire: &dyn Inquire, probe: &Probe, path: &str, headers: &HeaderMap) -> Found {
    let mut pause = PAUSE;
    for attempt in 1..=probe.attempts.max(1) {
        if let Ok(answer) = inquire.get(path, headers).await {
            let status = answer.status().as_u16();
            if probe.found.contains(&status) {
                let (mut parts, body) = answer.into_parts();
                parts.status = original_status(probe, &parts);
                return Found::Done(parts, body);
            }
            if probe.absent.contains(&status) {
                return Found::Absent;
            }
        }
        if attempt < probe.attempts {
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }
    Found::Unclear
}

fn original_status(probe: &Probe, parts: &http::response::Parts) -> StatusCode {
    let header = probe.status_header.as_deref().and_then(|name| parts.headers.get(name));
    let stated = header.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    stated.or_else(|| StatusCode::from_u16(probe.status).ok()).unwrap_or(parts.status)
}

/// Keys hold any visible ASCII (Mollie's have `/ + =`), so everything that is not unreserved is encoded (RFC 3986 2.3).
fn percent_encode(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            other => {
                let _ = write!(encoded, "%{other:02X}");
            }
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_cannot_change_the_path_of_the_probe() {
        assert_eq!(percent_encode("a/../b?c=d#e+f"), "a%2F..%2Fb%3Fc%3Dd%23e%2Bf");
    }
}
