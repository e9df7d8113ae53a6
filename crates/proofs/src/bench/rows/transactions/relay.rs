//! Something between a client and PostgreSQL that counts round trips.
//!
//! It reads the frames of the protocol and nothing in them: a client that asks for an answer (`Sync` or a simple query) while
//! all earlier ones are there begins a round trip; one that does not wait adds a message to it. The `ROLLBACK` that who did not
//! win leaves behind is not counted: nobody waits for it, and when it arrives is chance.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use anyhow::Result;
use retrysafe_testbed::postgres::host_and_port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const BUFFER_BYTES: usize = 64 * 1024;
/// Type and length of a frame.
const HEADER_BYTES: usize = 5;
/// A simple query of this length is `ROLLBACK`: nothing else that the bench sends is one.
const ROLLBACK_BYTES: usize = 9;

#[derive(Default)]
struct Counts {
    trips: AtomicU64,
    messages: AtomicU64,
}

/// What was counted of one request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Counted {
    pub(super) trips: u64,
    pub(super) messages: u64,
}

pub(super) struct Relay {
    /// The address, without a database.
    pub(super) address: String,
    counts: Arc<Counts>,
}

impl Relay {
    pub(super) async fn start(server: &str) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = format!("postgres://postgres@127.0.0.1:{}", listener.local_addr()?.port());
        let counts = Arc::new(Counts::default());
        let (counting, server) = (Arc::clone(&counts), host_and_port(server));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect((server.0.as_str(), server.1)).await {
                    pass(client, server, &counting);
                }
            }
        });
        Ok(Self { address, counts })
    }

    /// So far.
    pub(super) fn counted(&self) -> Counted {
        Counted {
            trips: self.counts.trips.load(Ordering::SeqCst),
            messages: self.counts.messages.load(Ordering::SeqCst),
        }
    }
}

fn pass(client: TcpStream, server: TcpStream, counts: &Arc<Counts>) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    // The start-up asks for an answer too, without a type.
    let waiting = Arc::new(AtomicI64::new(1));
    let (asking, counts) = (Arc::clone(&waiting), Arc::clone(counts));
    tokio::spawn(forward(
        from_client,
        to_server,
        Frames { untyped: true, ..Frames::default() },
        move |kind, length| {
            if !matches!(kind, b'S' | b'Q') {
                return;
            }
            let first = asking.fetch_add(1, Ordering::SeqCst) == 0;
            if kind == b'S' || length != ROLLBACK_BYTES {
                counts.messages.fetch_add(1, Ordering::SeqCst);
                counts.trips.fetch_add(u64::from(first), Ordering::SeqCst);
            }
        },
    ));
    tokio::spawn(forward(from_server, to_client, Frames::default(), move |kind, _| {
        if kind == b'Z' {
            waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }));
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut frames: Frames,
    mut each: impl FnMut(u8, usize) + Send,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        // Before it is passed on: the answer must not be counted before its question.
        frames.feed(&buffer[..length], &mut each);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Where in the stream of frames one is.
#[derive(Default)]
struct Frames {
    /// The next frame is the start-up, which has a length only.
    untyped: bool,
    header: Vec<u8>,
    rest: usize,
}

impl Frames {
    fn feed(&mut self, mut bytes: &[u8], each: &mut impl FnMut(u8, usize)) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let skipped = self.rest.min(bytes.len());
                self.rest -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            if self.untyped && self.header.is_empty() {
                self.header.push(0);
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let [kind, length @ ..] = self.header.as_slice()
                && let Ok(length) = <[u8; HEADER_BYTES - 1]>::try_from(length)
            {
                // The length counts itself.
                self.rest = (u32::from_be_bytes(length) as usize).saturating_sub(length.len());
                if !self.untyped {
                    each(*kind, self.rest);
                }
                self.untyped = false;
                self.header.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_however_they_are_cut() {
        let mut stream = vec![0, 0, 0, 8, 1, 2, 3, 4];
        for (kind, body) in [(b'Q', &b"SELECT 'S'"[..]), (b'S', b""), (b'B', b"\0S")] {
            stream.push(kind);
            stream.extend(u32::try_from(body.len() + 4).expect("short").to_be_bytes());
            stream.extend(body);
        }
        for size in 1..stream.len() {
            let mut seen = Vec::new();
            let mut frames = Frames { untyped: true, ..Frames::default() };
            for piece in stream.chunks(size) {
                frames.feed(piece, &mut |kind, length| seen.push((kind, length)));
            }
            assert_eq!(seen, [(b'Q', 10), (b'S', 0), (b'B', 2)], "in pieces of {size}");
        }
    }
}
