//! The answer of a call, read whole.

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::history::History;

/// An answer, with its body in memory. A refusal of the operation (422, 404) is an answer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) response: Response<Bytes>,
    pub(super) attempts: u32,
    pub(super) history: History,
}

impl Answer {
    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Its headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Its body.
    pub fn body(&self) -> &Bytes {
        self.response.body()
    }

    /// Its body as JSON.
    ///
    /// # Errors
    /// It is none of this shape.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(self.response.body())
    }

    /// Attempts that it took.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// What happened on the way; empty where the first attempt was the last.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// As a response of the `http` crate.
    pub fn into_response(self) -> Response<Bytes> {
        self.response
    }
}
