//! A request of a [`Client`], and its sending.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Version, header};
use http_body::Body;
use http_body_util::BodyExt;
use serde::Serialize;

use super::{Answer, Client, address, wire::AnyBody};
use crate::{
    BoxError,
    http::{
        Asked, Bodies, BodyFactory, Error, Prepared, Refused,
        call::{Finished, Manner, call},
    },
    key::{Key, KeyRefused},
    operation::Operation,
};

/// A request that is being put together.
#[must_use = "`send` sends it"]
pub struct RequestBuilder<'c> {
    pub(crate) client: &'c Client,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    again: Option<BodyFactory<AnyBody>>,
    pub(crate) key: Option<Key>,
    pub(crate) durable: bool,
    pub(crate) within: Option<Duration>,
    hedge: Option<Duration>,
    fault: Option<Refused>,
}

impl<'c> RequestBuilder<'c> {
    pub(super) fn new(client: &'c Client, method: Method, path: &str) -> Self {
        Self {
            client,
            method,
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            again: None,
            key: None,
            durable: false,
            within: None,
            hedge: None,
            fault: None,
        }
    }

    /// A header. The idempotency key among them wins over any other.
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        let made = (HeaderName::from_bytes(name.as_ref()), HeaderValue::from_bytes(value.as_ref()));
        match made {
            (Ok(name), Ok(value)) => drop(self.headers.append(name, value)),
            (Err(error), _) => self.fault = Some(Refused::Request(error.to_string())),
            (_, Err(error)) => self.fault = Some(Refused::Request(error.to_string())),
        }
        self
    }

    /// A body as it is.
    pub fn body(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), again: None, ..self }
    }

    /// A body that is a stream, made anew for each attempt. Each time it has to be the same content: it travels under one key.
    ///
    /// ```no_run
    /// # async fn run(client: retrysafe_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bytes::Bytes;
    /// use http_body::Frame;
    /// use http_body_util::StreamBody;
    ///
    /// let lines = || {
    ///     let lines = ["one\n", "two\n"].map(|line| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))));
    ///     StreamBody::new(futures_util::stream::iter(lines))
    /// };
    /// let answer = client.post("/lines").event("import", 17)?.body_with(lines).send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn body_with<B>(self, make: impl Fn() -> B + Send + Sync + 'static) -> Self
    where
        B: Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<BoxError>,
    {
        let again = BodyFactory::new(move || AnyBody::new(make().map_err(Into::into)));
        Self { body: Bytes::new(), again: Some(again), ..self }
    }

    /// A JSON body.
    ///
    /// # Errors
    /// [`Refused::Request`]: the value has no JSON form.
    pub fn json(mut self, value: &impl Serialize) -> Result<Self, Refused> {
        let body = serde_json::to_vec(value).map_err(|error| Refused::Request(error.to_string()))?;
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { body: body.into(), again: None, ..self })
    }

    /// The key.
    pub fn key(self, key: Key) -> Self {
        Self { key: Some(key), ..self }
    }

    /// The key of the operation that this event causes: [`Key::from_event`].
    ///
    /// # Errors
    /// [`KeyRefused`].
    pub fn event(self, event: &str, id: impl fmt::Display) -> Result<Self, KeyRefused> {
        Ok(Self { key: Some(Key::from_event(event, id)?), ..self })
    }

    /// A deadline for the whole call. One that is inherited can only be tightened.
    pub fn within(self, limit: Duration) -> Self {
        Self { within: Some(limit), ..self }
    }

    /// Starts another attempt when none has answered for this long, where a retry would be allowed.
    pub fn hedge(self, delay: Duration) -> Self {
        Self { hedge: Some(delay), ..self }
    }

    /// Writes the intent down before the first byte is sent: key, address, body and deadline. After a crash
    /// [`Client::resume`] sends it again under the same key. Credentials are not written down.
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    /// Sends it, as often as it takes and is safe.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn send(self) -> Result<Answer, Error<Bytes>> {
        let client = self.client;
        if !self.durable {
            let (manner, bodies) = (self.manner(), self.bodies());
            let prepared = Prepared::new(client.api(), self.asked()?)?;
            return send(client, prepared, bodies, manner).await;
        }
        let manner = self.manner();
        let (intent, prepared) = self.begin().await?;
        client.settled(&intent, send(client, prepared, Bodies::none(), manner).await).await
    }

    /// Sends it as (another) try of an operation, whose key it keeps and turns as the outcome demands.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn send_as(self, operation: &mut Operation) -> Result<Answer, Error<Bytes>> {
        let (client, manner, bodies) = (self.client, self.manner(), self.bodies());
        let mut asked = self.asked()?;
        asked.key = Some(operation.key_for(Prepared::digest(client.api(), &asked))?);
        let prepared = Prepared::new(client.api(), asked)?;
        // From here on it may be dropped, and must not forget.
        operation.begins();
        let sent = send(client, prepared, bodies, manner).await;
        operation.ended(&sent);
        sent
    }

    pub(crate) fn asked(self) -> Result<Asked, Refused> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let uri = address(&self.client.inner().base, &self.path)?;
        let again = self.again.is_some();
        Ok(Asked {
            method: self.method,
            uri,
            headers: self.headers,
            version: Version::default(),
            extensions: Extensions::default(),
            body: (!again).then_some(self.body),
            again,
            key: self.key,
        })
    }

    /// Whether the body is bytes, which can be written down and compared.
    pub(crate) fn is_bytes(&self) -> bool {
        self.again.is_none()
    }

    fn bodies(&self) -> Bodies<AnyBody> {
        Bodies { once: None, again: self.again.clone() }
    }

    pub(crate) fn manner(&self) -> Manner {
        Manner { whole: Some(self.client.inner().answer_max), within: self.within, hedge: self.hedge }
    }
}

impl fmt::Debug for RequestBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBuilder").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Sends what is prepared.
pub(crate) async fn send(
    client: &Client,
    prepared: Prepared,
    bodies: Bodies<AnyBody>,
    manner: Manner,
) -> Result<Answer, Error<Bytes>> {
    let inner = client.inner();
    match call(&inner.wire, &inner.api, &prepared, bodies, manner).await {
        Ok(Finished { answer, attempts, history }) => {
            let response = answer.map(|body| body.into_whole().unwrap_or_default());
            Ok(Answer { response, attempts, history })
        }
        Err(error) => Err(error.map(|body| body.into_whole().unwrap_or_default())),
    }
}
