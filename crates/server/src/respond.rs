//! The layer's own answers as HTTP responses. They are never stored (S3).

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use retrysafe_core::{codes::Code, contract::Answers, decide::Refusal, ids::StatusId};

use crate::body::Body;

/// Renders own answers as the contract shapes them.
pub(crate) struct Responder {
    answers: Answers,
}

impl Responder {
    pub(crate) fn new(answers: &Answers) -> Self {
        Self { answers: answers.clone() }
    }

    /// A refusal.
    pub(crate) fn refusal(&self, refusal: Refusal) -> Response<Body> {
        let rendered = retrysafe_core::answers::render(&self.answers, refusal);
        let mut response = Response::new(Body::full(Bytes::from(rendered.body)));
        *response.status_mut() = StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::CONFLICT);
        for (name, value) in rendered.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<http::HeaderName>(), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        no_store(&mut response);
        response
    }

    /// 202 with the operation's status URL.
    pub(crate) fn accepted(&self, status_path: &str, id: StatusId, retry_after: Duration) -> Response<Body> {
        let url = format!("{status_path}/{id}");
        let code = Code::KeyInFlight;
        let body = serde_json::json!({
            "code": code.as_str(),
            "title": code.title(),
            "status": 202,
            "status_url": url,
        });
        let mut response = Response::new(Body::full(Bytes::from(body.to_string())));
        *response.status_mut() = StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds(retry_after)));
        if let Ok(url) = HeaderValue::try_from(url) {
            headers.insert(header::LOCATION, url);
        }
        no_store(&mut response);
        response
    }

    /// 404 for a status id that is not there, or not this caller's: the two must look the same.
    pub(crate) fn no_such_status(&self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_FOUND;
        no_store(&mut response);
        response
    }
}

/// The page that explains a code, for whoever follows a problem's `type`.
pub(crate) fn page(code: Code) -> Response<Body> {
    let mut response = Response::new(Body::full(Bytes::from_static(code.page().as_bytes())));
    let markdown = HeaderValue::from_static("text/markdown; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, markdown);
    response
}

/// Answers about a key are private to its caller and true only now (protocol 31).
pub(crate) fn no_store(response: &mut Response<Body>) {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Retry-After has whole seconds (RFC 9110 10.2.3). Rounded up: rounding down would invite an early retry.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
