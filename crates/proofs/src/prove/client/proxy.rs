//! A proxy of bytes that does to each connection what its plan says: reset, close, hold up or send twice, at any offset.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Bytes of a request or answer, at most.
const MESSAGE_MAX: usize = 64 << 10;
/// How long a held up byte waits.
const DELAY: Duration = Duration::from_millis(15);

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// The request goes on up to this byte, then both sides are reset.
    ResetRequest(usize),
    /// The request goes on up to this byte, then both sides are closed.
    CloseRequest(usize),
    /// The answer comes back up to this byte, then its reader is reset.
    ResetAnswer(usize),
    /// The answer comes back up to this byte, then the connection is closed.
    CloseAnswer(usize),
    /// The answer is held up at this byte.
    Delay(usize),
    /// The request arrives twice, at once.
    Duplicate,
    /// The answer never comes back.
    Swallow,
}

/// The kinds, for the count.
pub(super) const KINDS: [&str; 8] = [
    "none",
    "reset request",
    "close request",
    "reset answer",
    "close answer",
    "delay",
    "duplicate",
    "swallow",
];

impl Fault {
    fn kind(self) -> usize {
        match self {
            Fault::None => 0,
            Fault::ResetRequest(_) => 1,
            Fault::CloseRequest(_) => 2,
            Fault::ResetAnswer(_) => 3,
            Fault::CloseAnswer(_) => 4,
            Fault::Delay(_) => 5,
            Fault::Duplicate => 6,
            Fault::Swallow => 7,
        }
    }
}

/// What the proxy has done so far.
#[derive(Default)]
pub(super) struct Done {
    connections: AtomicU64,
    /// Next offset of the request, and of the answer.
    offsets: [AtomicU64; 2],
    /// Longest request and answer seen.
    lengths: [AtomicU64; 2],
    kinds: Mutex<[u64; KINDS.len()]>,
    /// Offsets at which a request, or an answer, was reset.
    reset: Mutex<[std::collections::BTreeSet<usize>; 2]>,
    /// Off: everything goes through.
    faults: AtomicBool,
}

impl Done {
    pub(super) fn set_faults(&self, on: bool) {
        self.faults.store(on, Ordering::Relaxed);
    }

    pub(super) fn kinds(&self) -> [u64; KINDS.len()] {
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the bytes of a request (0) or an answer (1): at how many a reset came, and how many there are.
    pub(super) fn covered(&self, side: usize) -> (usize, usize) {
        let length = self.lengths[side].load(Ordering::Relaxed) as usize;
        let reset = self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        (reset[side].range(0..=length).count(), length + 1)
    }

    /// The plan of a connection: seven in ten meet a fault. Offsets are taken one after the other, so that all of them come.
    fn plan(&self, chance: &mut fastrand::Rng) -> Fault {
        if !self.faults.load(Ordering::Relaxed) || chance.u8(0..10) >= 7 {
            return Fault::None;
        }
        let next = |side: usize| {
            let length = self.lengths[side].load(Ordering::Relaxed) + 1;
            (self.offsets[side].fetch_add(1, Ordering::Relaxed) % length) as usize
        };
        match chance.u8(0..100) {
            0..35 => Fault::ResetRequest(next(0)),
            35..45 => Fault::CloseRequest(next(0)),
            45..75 => Fault::ResetAnswer(next(1)),
            75..85 => Fault::CloseAnswer(next(1)),
            85..92 => Fault::Delay(next(1)),
            92..98 => Fault::Duplicate,
            _ => Fault::Swallow,
        }
    }

    /// `message`: what the fault was done to. Only results count for the offsets of an answer; refusals have other lengths.
    fn note(&self, fault: Fault, message: &[u8]) {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)[fault.kind()] += 1;
        let mut reset = self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            Fault::ResetRequest(at) => drop(reset[0].insert(at)),
            Fault::ResetAnswer(at) if is_result(message) => drop(reset[1].insert(at)),
            _ => {}
        }
    }
}

/// Starts the proxy in front of `upstream`; returns its address and its books.
pub(super) async fn start(upstream: SocketAddr, seed: u64) -> Result<(SocketAddr, Arc<Done>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let done = Arc::new(Done::default());
    let books = Arc::clone(&done);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let number = books.connections.fetch_add(1, Ordering::Relaxed);
            let books = Arc::clone(&books);
            tokio::spawn(async move {
                let mut chance = fastrand::Rng::with_seed(seed.wrapping_add(number));
                carry(client, upstream, &books, &mut chance).await
            });
        }
    });
    Ok((address, done))
}

/// Carries the one request of a connection.
async fn carry(
    mut client: TcpStream,
    upstream: SocketAddr,
    done: &Done,
    chance: &mut fastrand::Rng,
) -> Option<()> {
    let fault = done.plan(chance);
    let mut server = TcpStream::connect(upstream).await.ok()?;
    let cut = match fault {
        Fault::ResetRequest(at) | Fault::CloseRequest(at) => at,
        _ => MESSAGE_MAX,
    };
    let request = forward(&mut client, &mut server, cut, None).await?;
    if matches!(fault, Fault::ResetRequest(_) | Fault::CloseRequest(_)) && request.len() >= cut {
        done.note(fault, &request);
        return end(client, Some(server), matches!(fault, Fault::ResetRequest(_)));
    }
    done.lengths[0].fetch_max(request.len() as u64, Ordering::Relaxed);
    if fault == Fault::Duplicate {
        let mut second = TcpStream::connect(upstream).await.ok()?;
        tokio::spawn(async move {
            second.write_all(&request).await.ok()?;
            forward(&mut second, &mut tokio::io::sink(), MESSAGE_MAX, None).await
        });
    }
    let (cut, pause) = match fault {
        Fault::ResetAnswer(at) | Fault::CloseAnswer(at) => (at, None),
        Fault::Delay(at) => (MESSAGE_MAX, Some(at)),
        Fault::Swallow => (0, None),
        _ => (MESSAGE_MAX, None),
    };
    let answer = forward(&mut server, &mut client, cut, pause).await?;
    done.note(fault, &answer);
    match fault {
        Fault::ResetAnswer(_) => return end(client, None, true),
        Fault::CloseAnswer(_) => return end(client, None, false),
        // Until its reader gives up.
        Fault::Swallow => drop(client.read(&mut [0; 1]).await),
        _ if is_result(&answer) => drop(done.lengths[1].fetch_max(answer.len() as u64, Ordering::Relaxed)),
        _ => {}
    }
    Some(())
}

/// Passes one message on, `cut` bytes of it at most, and returns what was read of it. With a cut the rest is not read; the
/// answer to a request that arrived whole is awaited whole all the same.
async fn forward(
    from: &mut TcpStream,
    to: &mut (impl AsyncWriteExt + Unpin),
    cut: usize,
    pause: Option<usize>,
) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let mut passed = 0;
    loop {
        let until = read.len().min(cut);
        if let Some(at) = pause.filter(|at| (passed..until).contains(at)) {
            to.write_all(&read[passed..at]).await.ok()?;
            to.flush().await.ok()?;
            passed = at;
            tokio::time::sleep(DELAY).await;
        }
        to.write_all(&read[passed..until]).await.ok()?;
        passed = until;
        if whole(&read) || (read.len() >= cut && cut > 0) || read.len() > MESSAGE_MAX {
            to.flush().await.ok()?;
            return Some(read);
        }
        if from.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

fn is_result(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/1.1 201")
}

/// Whether a message of HTTP/1 with a content length is all there.
fn whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    bytes.len() >= end + 4 + length.unwrap_or(0_usize)
}

fn end(client: TcpStream, server: Option<TcpStream>, reset: bool) -> Option<()> {
    if reset {
        for stream in [Some(&client), server.as_ref()].into_iter().flatten() {
            SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok()?;
        }
    }
    Some(())
}
