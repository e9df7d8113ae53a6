//! What the gateway asks its upstream besides passing requests on: what became of a key, and whether a caller may
//! still see an answer.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_LOCATION, CONTENT_RANGE,
    CONTENT_TYPE, EXPECT, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    RANGE, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body_util::{BodyExt, Limited};
use retrysafe_server::{Body, Inquire, InquireFuture, NoAnswer};
use tower_service::Service;

use crate::handover::FENCE_HEADER;
use crate::proxy::{Proxy, Sent, UpstreamTimeout};

/// A question is answered within this, body included, or not at all: somebody waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Fields of the original request that describe its body, its conditions or its operation. Everything else says who
/// asks, in ways that only the upstream knows, and goes along.
static NOT_ASKED: [HeaderName; 17] = [
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_LOCATION,
    CONTENT_RANGE,
    CONTENT_TYPE,
    EXPECT,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    RANGE,
    UPGRADE,
    HeaderName::from_static("prefer"),
    FENCE_HEADER,
];

/// Asks the upstream through the same pool as everything else.
pub(crate) struct Questions {
    pub(crate) proxy: Proxy<Body>,
    /// The fields that carry keys: a question is not the operation and must not look like it.
    pub(crate) key_headers: Vec<HeaderName>,
    /// The longest answer: as long as the longest outcome that would be stored of it.
    pub(crate) answer_bytes_max: usize,
    /// Named where the caller spoke HTTP/2 and sent no `Host`.
    pub(crate) host: HeaderValue,
}

impl Questions {
    fn request(&self, path: &str, of: &HeaderMap) -> Option<Request<Body>> {
        let mut headers = of.clone();
        for name in NOT_ASKED.iter().chain(&self.key_headers) {
            headers.remove(name);
        }
        headers.entry(HOST).or_insert_with(|| self.host.clone());
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = path.parse::<Uri>().ok()?;
        *request.headers_mut() = headers;
        request.extensions_mut().insert(UpstreamTimeout(ANSWER_TIMEOUT));
        Some(request)
    }

    async fn ask(&self, request: Request<Body>) -> Result<Response<Bytes>, NoAnswer> {
        let Ok(answer) = self.proxy.clone().call(request).await;
        if answer.extensions().get::<Sent>().is_some() {
            return Err(NoAnswer);
        }
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, self.answer_bytes_max).collect().await.map_err(|_| NoAnswer)?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}

impl Inquire for Questions {
    fn get<'a>(&'a self, path: &'a str, headers: &'a HeaderMap) -> InquireFuture<'a> {
        Box::pin(async move {
            let request = self.request(path, headers).ok_or(NoAnswer)?;
            tokio::time::timeout(ANSWER_TIMEOUT, self.ask(request)).await.map_err(|_| NoAnswer)?
        })
    }
}
