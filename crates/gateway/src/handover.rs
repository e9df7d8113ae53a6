//! Between layer and proxy: what a claimed request carries to the upstream, and what the layer is told came back.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use retrysafe_core::address::Key;
use retrysafe_core::contract::{Carrier, Contract, Lookup};
use retrysafe_core::key::KeySyntax;
use retrysafe_core::retry::deadline::wire;
use retrysafe_server::{Body, Guarded, NoUpstreamAnswer, TimeLeft};
use tower_service::Service;

use crate::proxy::{Forward, Proxy, ProxyBody, Sent};

/// The request field that carries the claim's fence, for an upstream or a probe that compares it (protocol 22). What
/// a client sends under this name is removed.
pub const FENCE_HEADER: HeaderName = HeaderName::from_static(retrysafe_server::FENCE_HEADER);
/// The request field that names every hop that has claimed the request (protocol 2).
const HOP_HEADER: HeaderName = HeaderName::from_static(retrysafe_server::HOP_HEADER);

/// The proxy as the layer's inner service.
#[derive(Clone)]
pub(crate) struct Handover {
    proxy: Proxy<Body>,
    contract: Arc<Contract>,
    deadline_header: Option<HeaderName>,
}

impl Handover {
    pub(crate) fn new(proxy: Proxy<Body>, contract: Arc<Contract>) -> Self {
        let deadline_header =
            contract.client.deadline_header.as_deref().and_then(|name| HeaderName::try_from(name).ok());
        Self { proxy, contract, deadline_header }
    }

    fn dress(&self, request: &mut Request<Body>) {
        if let Some(Guarded { fence, address }) = request.extensions().get().cloned() {
            if let Lookup::Endpoint(endpoint, _) =
                self.contract.find(request.method().as_str(), request.uri().path())
                && let Carrier::Header(name) = &endpoint.carrier
            {
                spell_key(request.headers_mut(), name, address.key(), endpoint.key_rules.syntax);
            }
            if let Ok(fence) = HeaderValue::try_from(fence.to_string()) {
                request.headers_mut().insert(FENCE_HEADER, fence);
            }
            if let Ok(hop) = HeaderValue::from_str(address.namespace().as_str()) {
                request.headers_mut().append(HOP_HEADER, hop);
            }
        }
        // What was left when the claim had been won: the layer has taken off what came before.
        if let (Some(name), Some(TimeLeft(left))) =
            (&self.deadline_header, request.extensions().get::<TimeLeft>().copied())
            && let Ok(left) = HeaderValue::try_from(wire::write(name.as_str(), left))
        {
            request.headers_mut().insert(name, left);
        }
    }
}

/// One key has one spelling towards the upstream. A client may quote its key on one attempt and not on the next (K1);
/// an upstream that de-duplicates by the field's bytes would take that for two keys. Under lenient syntax the spelling
/// is the key's own text, because that is also what a probe asks for: an upstream that kept `"a b"` with its quotes
/// would call `a b` absent.
fn spell_key(headers: &mut HeaderMap, name: &str, key: &Key, syntax: KeySyntax) {
    let text = key.as_str();
    // Blanks at the ends are not part of a field's value, so only quotes can carry them.
    let needs_quotes = syntax == KeySyntax::Strict || text.trim() != text;
    let spelled = if needs_quotes {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        text.to_owned()
    };
    if let (Ok(name), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::try_from(spelled)) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
}

impl Service<Request<Body>> for Handover {
    type Response = Response<ProxyBody<Body>>;
    type Error = Infallible;
    type Future = HandedOver;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> HandedOver {
        self.dress(&mut request);
        HandedOver { forward: self.proxy.call(request) }
    }
}

pin_project! {
    /// A handed-over request on its way.
    pub(crate) struct HandedOver {
        #[pin]
        forward: Forward<Body>,
    }
}

impl Future for HandedOver {
    type Output = Result<Response<ProxyBody<Body>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(mut response) = ready!(self.project().forward.poll(cx));
        let verdict = response.extensions().get::<Sent>().map(|sent| match sent {
            Sent::Nothing => NoUpstreamAnswer::NotSent,
            Sent::Unknown => NoUpstreamAnswer::Lost,
        });
        if let Some(verdict) = verdict {
            response.extensions_mut().insert(verdict);
        }
        Poll::Ready(Ok(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_every_spelling_of_a_key_goes_on_as_one() {
        let name = HeaderName::from_static("idempotency-key");
        let spelled = |key: &str, syntax| {
            let mut headers = HeaderMap::new();
            headers.insert(name.clone(), HeaderValue::from_static("as it came"));
            spell_key(&mut headers, "idempotency-key", &Key::trusted(key).unwrap(), syntax);
            headers[&name].to_str().unwrap().to_owned()
        };
        assert_eq!(spelled("a-1", KeySyntax::Lenient), "a-1");
        assert_eq!(spelled("a-1", KeySyntax::Strict), "\"a-1\"");
        assert_eq!(spelled("a, b", KeySyntax::Lenient), "a, b");
        assert_eq!(spelled(" a", KeySyntax::Lenient), "\" a\"");
        assert_eq!(spelled(r#"a"\b"#, KeySyntax::Strict), r#""a\"\\b""#);
    }
}
