//! Requests that become complete in one packet: the last frames of all of them, over one HTTP/2 connection, in one write. Over
//! TLS they are one record.
//!
//! There is no spread at all between the last bytes. It does not replace connections of their own: a server that works through one
//! connection's streams in order hides its race here, and one with a lock for each session there. So both are run.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderName, HeaderValue, Request, Uri};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Lost, Shot, Timed, Volley};
use crate::plan::Base;
use crate::wire::{ANSWER_MAX, Answer, Filled};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ALPN: &[u8] = b"h2";

/// Sends the shots over one connection for each base: by ALPN over TLS, by prior knowledge without.
pub(super) fn send(
    bases: &[Base],
    shots: &[Shot],
    settle: Duration,
    origin: Instant,
    timeout: Duration,
) -> Volley {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return nobody(shots, origin, &format!("no runtime for HTTP/2: {error}")),
    };
    runtime.block_on(async {
        match volley(bases, shots, settle, origin, timeout).await {
            Ok(volley) => volley,
            Err(why) => nobody(shots, origin, &why),
        }
    })
}

/// A request that is complete but for its last frame.
struct Waiting {
    stream: h2::SendStream<Bytes>,
    last: Bytes,
    answer: ResponseFuture,
    first_sent: Duration,
}

async fn volley(
    bases: &[Base],
    shots: &[Shot],
    settle: Duration,
    origin: Instant,
    timeout: Duration,
) -> Result<Volley, String> {
    let mut connections = Vec::new();
    for base in bases {
        connections.push(tokio::time::timeout(CONNECT_LIMIT, connect(base)).await.map_err(|_| late(base))??);
    }
    let mut waiting = Vec::new();
    for shot in shots {
        let place = shot.base.min(bases.len().saturating_sub(1));
        let (Some(base), Some((sender, _))) = (bases.get(place), connections.get_mut(place)) else {
            return Err("there is no base".to_owned());
        };
        let begun = begin(base, sender, &shot.request, origin);
        // A server that allows fewer streams at one time makes this wait.
        waiting.push(tokio::time::timeout(CONNECT_LIMIT, begun).await.map_err(|_| {
            format!(
                "{} takes fewer than {} streams at one time; lower [concurrency] requests",
                base.authority,
                shots.len()
            )
        })??);
    }
    tokio::time::sleep(settle).await;
    for ((_, ping), base) in connections.iter_mut().zip(bases) {
        // Warm to the last moment; its answer also says that all before it was read.
        let pong = tokio::time::timeout(CONNECT_LIMIT, ping.ping(h2::Ping::opaque()));
        pong.await.map_err(|_| late(base))?.map_err(|_| late(base))?;
    }
    let mut answers = Vec::new();
    // Nothing waits in this loop, so the frames of all requests are in the buffer before the first write.
    for mut request in waiting {
        let sent = request.stream.send_data(request.last, true);
        let first_sent = request.first_sent;
        let last_sent = origin.elapsed();
        let reading = async move {
            sent.map_err(|error| error.to_string())?;
            tokio::time::timeout(timeout, read(request.answer, origin))
                .await
                .map_err(|_| "no answer in time".to_owned())?
        };
        answers.push((first_sent, last_sent, tokio::spawn(reading)));
    }
    let mut timed = Vec::new();
    for (first_sent, last_sent, reading) in answers {
        let ended = reading.await.map_err(|error| format!("HTTP/2: {error}"))?;
        let (first_byte, done, outcome) = match ended {
            Ok((first_byte, done, answer)) => (Some(first_byte), done, Ok(answer)),
            Err(why) => (None, origin.elapsed(), Err(Lost(why))),
        };
        timed.push(Timed { first_sent, last_sent, first_byte, done, outcome });
    }
    Ok(Volley { timed, early: 0 })
}

fn late(base: &Base) -> String {
    let how = if base.trust.is_some() { "offer HTTP/2 over TLS" } else { "speak HTTP/2 without TLS" };
    format!("{} does not {how}; take http2 out of [concurrency]", base.authority)
}

async fn connect(base: &Base) -> Result<(SendRequest<Bytes>, h2::PingPong), String> {
    let refused =
        |error: &dyn std::fmt::Display| format!("no HTTP/2 connection to {}: {error}", base.authority);
    let stream =
        TcpStream::connect((base.host.as_str(), base.port)).await.map_err(|error| refused(&error))?;
    stream.set_nodelay(true).map_err(|error| refused(&error))?;
    let Some(trust) = &base.trust else { return handshake(base, stream).await };
    let name = ServerName::try_from(base.host.clone()).map_err(|error| refused(&error))?;
    let connector = TlsConnector::from(trust.speaking(ALPN));
    let stream = connector.connect(name, stream).await.map_err(|error| refused(&error))?;
    if stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(late(base));
    }
    handshake(base, stream).await
}

async fn handshake(
    base: &Base,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(SendRequest<Bytes>, h2::PingPong), String> {
    let made = h2::client::handshake(stream).await;
    let (sender, mut connection) =
        made.map_err(|error| format!("no HTTP/2 connection to {}: {error}", base.authority))?;
    let ping = connection.ping_pong().ok_or_else(|| late(base))?;
    // Its end is seen by whoever waits for an answer.
    tokio::spawn(async move { drop(connection.await) });
    Ok((sender, ping))
}

/// Sends everything of a request but its last frame.
async fn begin(
    base: &Base,
    sender: &mut SendRequest<Bytes>,
    filled: &Filled,
    origin: Instant,
) -> Result<Waiting, String> {
    let said = |error: &dyn std::fmt::Display| format!("HTTP/2: {error}");
    let uri: Uri = format!("{}://{}{}{}", base.scheme(), base.authority, base.prefix, filled.path)
        .parse()
        .map_err(|error| said(&error))?;
    let mut request =
        Request::builder().method(filled.method.as_str()).uri(uri).body(()).map_err(|error| said(&error))?;
    let named = |name: &str| filled.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
    let json =
        (filled.body.is_some() && !named("content-type")).then_some(("content-type", "application/json"));
    let own = filled.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    for (name, value) in own.chain(json) {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| said(&error))?;
        request.headers_mut().append(name, HeaderValue::from_str(value).map_err(|error| said(&error))?);
    }
    let body = Bytes::from(filled.body.clone().unwrap_or_default());
    *sender = sender.clone().ready().await.map_err(|error| said(&error))?;
    let (answer, mut stream) = sender.send_request(request, false).map_err(|error| said(&error))?;
    let first_sent = origin.elapsed();
    let rest = body.slice(..body.len().saturating_sub(1));
    let last = body.slice(rest.len()..);
    stream.reserve_capacity(body.len());
    if !rest.is_empty() {
        stream.send_data(rest, false).map_err(|error| said(&error))?;
    }
    Ok(Waiting { stream, last, answer, first_sent })
}

async fn read(answer: ResponseFuture, origin: Instant) -> Result<(Duration, Duration, Answer), String> {
    let said = |error: h2::Error| format!("HTTP/2: {error}");
    let (head, mut body) = answer.await.map_err(said)?.into_parts();
    let first_byte = origin.elapsed();
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(said)?;
        body.flow_control().release_capacity(chunk.len()).map_err(said)?;
        bytes.extend_from_slice(&chunk);
        if bytes.len() > ANSWER_MAX {
            return Err("the answer is longer than 64 MiB".to_owned());
        }
    }
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .collect();
    Ok((first_byte, origin.elapsed(), Answer { status: head.status.as_u16(), headers, body: bytes }))
}

/// Nothing was answered, for one reason.
fn nobody(shots: &[Shot], origin: Instant, why: &str) -> Volley {
    let now = origin.elapsed();
    let lost = || Timed {
        first_sent: now,
        last_sent: now,
        first_byte: None,
        done: now,
        outcome: Err(Lost(why.to_owned())),
    };
    Volley { timed: shots.iter().map(|_| lost()).collect(), early: 0 }
}
