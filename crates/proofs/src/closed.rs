//! A closed loop over kept-alive connections: as soon as one answer is in, the next request goes out.
//!
//! One thread, pre-built requests with the key patched in place, and of the answers only status and length
//! are read: next to a server on the same two cores the driver has to be the cheaper side.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wire::{Key, Template, measure};

/// A stuck server ends the run instead of the patience of the reader.
const RUN_LIMIT: Duration = Duration::from_secs(600);
const BUFFER_BYTES: usize = 64 * 1024;

/// Which keys the requests carry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys {
    /// Another one each: numbers from `first` on.
    Unique { seed: u64, first: u64 },
    /// One of `count`, in turn.
    Among { seed: u64, count: u64 },
}

impl Keys {
    fn nth(self, number: u64) -> Key {
        match self {
            Self::Unique { seed, first } => Key::numbered(seed, first + number),
            Self::Among { seed, count } => Key::numbered(seed, number % count.max(1)),
        }
    }
}

/// What to send.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) target: SocketAddr,
    pub(crate) template: Template,
    pub(crate) keys: Keys,
    pub(crate) connections: usize,
    pub(crate) requests: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) took: Duration,
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Microseconds from sending to the whole answer.
    pub(crate) latency_us: Histogram<u64>,
}

impl Run {
    pub(crate) fn requests(&self) -> u64 {
        self.statuses.values().sum()
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.requests() as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }

    /// # Errors
    /// Any answer that is not a success: a bench of refusals measures nothing.
    pub(crate) fn all_succeeded(&self) -> Result<()> {
        let other: BTreeMap<_, _> =
            self.statuses.iter().filter(|(status, _)| !(200..300).contains(*status)).collect();
        if !other.is_empty() {
            bail!("answers other than success: {other:?}");
        }
        Ok(())
    }
}

/// Runs the load to its last request.
///
/// # Errors
/// A connection fails, an answer is no HTTP/1.1, or the run exceeds its limit.
pub(crate) fn run(load: &Load) -> Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let next = Arc::new(AtomicU64::new(0));
        let mut streams = Vec::with_capacity(load.connections);
        for _ in 0..load.connections {
            let stream = TcpStream::connect(load.target)
                .await
                .with_context(|| format!("connect to {}", load.target))?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        let start = Instant::now();
        let lanes: Vec<_> = streams
            .into_iter()
            .map(|stream| tokio::spawn(lane(stream, load.clone(), Arc::clone(&next))))
            .collect();
        let collect = async {
            let (mut statuses, mut latency_us) = (BTreeMap::new(), histogram()?);
            for lane in lanes {
                let (counts, latencies) = lane.await??;
                for (status, count) in counts {
                    *statuses.entry(status).or_default() += count;
                }
                latency_us.add(latencies)?;
            }
            anyhow::Ok(Run { took: start.elapsed(), statuses, latency_us })
        };
        tokio::time::timeout(RUN_LIMIT, collect).await.context("the run exceeds its limit")?
    })
}

fn histogram() -> Result<Histogram<u64>> {
    const MAX_US: u64 = 60_000_000;
    Ok(Histogram::new_with_bounds(1, MAX_US, 3)?)
}

async fn lane(
    mut stream: TcpStream,
    mut load: Load,
    next: Arc<AtomicU64>,
) -> Result<(BTreeMap<u16, u64>, Histogram<u64>)> {
    let (mut statuses, mut latencies) = (BTreeMap::new(), histogram()?);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= load.requests {
            return Ok((statuses, latencies));
        }
        let sent = Instant::now();
        stream.write_all(load.template.keyed(&load.keys.nth(number))).await.context("send")?;
        let mut filled = 0;
        let status = loop {
            let count = stream.read(&mut buffer[filled..]).await.context("receive")?;
            if count == 0 {
                bail!("the server closed the connection, or an answer exceeds {BUFFER_BYTES} bytes");
            }
            filled += count;
            if let Some((status, _)) = measure(&buffer[..filled])? {
                break status;
            }
        };
        latencies.saturating_record(u64::try_from(sent.elapsed().as_micros())?.max(1));
        *statuses.entry(status).or_default() += 1;
    }
}
