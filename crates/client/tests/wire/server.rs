//! A server of raw sockets that plays a script: one act for each request, whatever connection it comes on.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// What the server does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Reads it whole and answers with these bytes; the connection stays.
    Answer(String),
    /// The same, and closes: what is missing of the answer never comes.
    AnswerAndClose(String),
    /// Reads it whole and resets the connection.
    Reset,
    /// Reads it whole and closes the connection without an answer.
    Close,
    /// Resets the connection before it has read a byte.
    ResetUnread,
    /// Reads it whole and answers nothing.
    Hang,
    /// Answers after a while.
    Late(Duration, String),
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<Seen>>>,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// An answer with this status and body.
pub(crate) fn answer(status: u16, extra: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{extra}\r\n{body}", body.len())
}

/// An own answer of our server layer.
pub(crate) fn problem(status: u16, code: &str, retryable: bool, extra: &str) -> String {
    let body = format!("{{\"code\":\"{code}\",\"retryable\":{retryable},\"status\":{status}}}");
    answer(status, &format!("content-type: application/problem+json\r\n{extra}"), &body)
}

impl Server {
    /// Plays these acts; afterwards every request is answered with 201.
    pub(crate) async fn play(acts: impl IntoIterator<Item = Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let script = Arc::new(Mutex::new(acts.into_iter().collect::<VecDeque<_>>()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, Arc::clone(&script), Arc::clone(&seen)));
            }
        });
        Self { address, requests }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.requests.lock().unwrap().clone()
    }
}

async fn connection(
    mut stream: TcpStream,
    script: Arc<Mutex<VecDeque<Act>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> Option<()> {
    loop {
        // An act that reads nothing takes effect as soon as the connection is there.
        let unread = matches!(script.lock().unwrap().front(), Some(Act::ResetUnread));
        if unread {
            script.lock().unwrap().pop_front();
            return reset(stream);
        }
        let request = read_request(&mut stream).await?;
        seen.lock().unwrap().push(request);
        let act = script.lock().unwrap().pop_front().unwrap_or_else(|| Act::Answer(answer(201, "", "done")));
        match act {
            Act::Answer(bytes) => stream.write_all(bytes.as_bytes()).await.ok()?,
            Act::Late(delay, bytes) => {
                tokio::time::sleep(delay).await;
                stream.write_all(bytes.as_bytes()).await.ok()?;
            }
            Act::AnswerAndClose(bytes) => {
                stream.write_all(bytes.as_bytes()).await.ok()?;
                return stream.shutdown().await.ok();
            }
            Act::Reset => return reset(stream),
            Act::Close => return stream.shutdown().await.ok(),
            Act::Hang => std::future::pending().await,
            Act::ResetUnread => return reset(stream),
        }
    }
}

fn reset(stream: TcpStream) -> Option<()> {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).ok()?;
    drop(stream);
    Some(())
}

async fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut seen = Seen { head, body: bytes.split_off(end) };
    let length: usize = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
    while seen.body.len() < length {
        if stream.read_buf(&mut seen.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(seen)
}

/// Frames of HTTP/2, as far as refusals need them.
pub(crate) mod h2 {
    use super::*;

    const GOAWAY: u8 = 7;
    const RST_STREAM: u8 = 3;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const REFUSED_STREAM: u32 = 7;

    /// What the server does with the first request of a connection.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Refusal {
        /// RST_STREAM with REFUSED_STREAM.
        RefusedStream,
        /// GOAWAY that names no stream: none was processed.
        GoAwayBefore,
        /// GOAWAY that names this stream as one that may be processed, and then the end.
        GoAwayAfter,
    }

    /// Refuses the first requests, one on each connection; answers the next with 200. Returns the address.
    pub(crate) async fn refuse(refusals: Vec<Refusal>) -> (SocketAddr, Arc<Mutex<u32>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(0));
        let (count, script) = (Arc::clone(&requests), Arc::new(Mutex::new(VecDeque::from(refusals))));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&count)));
            }
        });
        (address, requests)
    }

    async fn serve(
        mut stream: TcpStream,
        script: Arc<Mutex<VecDeque<Refusal>>>,
        count: Arc<Mutex<u32>>,
    ) -> Option<()> {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.ok()?;
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.ok()?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            stream.read_exact(&mut payload).await.ok()?;
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            match (head[3], head[4] & 1) {
                (SETTINGS, 0) => stream.write_all(&frame(SETTINGS, 1, 0, &[])).await.ok()?,
                (HEADERS, _) => {
                    *count.lock().unwrap() += 1;
                    let refusal = script.lock().unwrap().pop_front();
                    match refusal {
                        Some(Refusal::RefusedStream) => {
                            let reason = REFUSED_STREAM.to_be_bytes();
                            stream.write_all(&frame(RST_STREAM, 0, id, &reason)).await.ok()?;
                        }
                        Some(Refusal::GoAwayBefore) => {
                            stream.write_all(&frame(GOAWAY, 0, 0, &[0; 8])).await.ok()?;
                            return stream.shutdown().await.ok();
                        }
                        Some(Refusal::GoAwayAfter) => {
                            let mut payload = [0; 8];
                            payload[..4].copy_from_slice(&id.to_be_bytes());
                            stream.write_all(&frame(GOAWAY, 0, 0, &payload)).await.ok()?;
                            return stream.shutdown().await.ok();
                        }
                        // HPACK, static table: `:status: 200` is entry 8. END_STREAM and END_HEADERS.
                        None => stream.write_all(&frame(HEADERS, 5, id, &[0x88])).await.ok()?,
                    }
                }
                _ => {}
            }
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags];
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }
}
