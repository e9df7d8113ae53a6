//! Two ways to bring identical requests together, each catching servers the other misses.
//!
//! - **At once**: all but the last byte of every request is sent; then the last bytes go out in one tight
//!   loop. Catches a check and an insert with anything in between.
//! - **Late arrivals**: the requests are spread over the time in which the first one runs and finishes.
//!   Catches a claim that is given up before its result can be seen, which the first mode never meets.
//!
//! Blocking sockets and one thread: the kernel's buffers hold every answer until it is read, and the driver
//! takes next to nothing from the cores it shares.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::wire::{Answer, Key, Template, parse};

/// How long one answer may take; a server that holds one longer is stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Room between the held-back byte and its release, so that every server has read the rest.
const SETTLE: Duration = Duration::from_micros(500);

/// Connections kept open over many races, spread over one or more servers.
pub(crate) struct Racers {
    lanes: Vec<Lane>,
}

struct Lane {
    target: SocketAddr,
    stream: Option<TcpStream>,
    template: Template,
}

/// One answer, or the connection error in its place.
pub(crate) type Outcome = std::result::Result<Answer, String>;

impl Racers {
    /// `count` connections, dealt over the targets in turn; each sends the same path and body.
    pub(crate) fn new(
        targets: &[SocketAddr],
        count: usize,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let lane = |target: &SocketAddr| {
            let template = Template::keyed_post(*target, path, headers, body);
            Lane { target: *target, stream: None, template }
        };
        Self { lanes: targets.iter().cycle().take(count).map(lane).collect() }
    }

    /// Every connection's request released together.
    ///
    /// # Errors
    /// A connection cannot be opened; errors after that are outcomes.
    pub(crate) fn at_once(&mut self, key: &Key) -> Result<Vec<Outcome>> {
        let mut last = Vec::with_capacity(self.lanes.len());
        for lane in &mut self.lanes {
            let request = lane.template.keyed(key).to_vec();
            let (byte, rest) = request.split_last().context("an empty request")?;
            lane.open()?.write_all(rest)?;
            last.push(*byte);
        }
        std::thread::sleep(SETTLE);
        let sent: Vec<std::io::Result<()>> = self
            .lanes
            .iter_mut()
            .zip(last)
            .map(|(lane, byte)| match &mut lane.stream {
                Some(stream) => stream.write_all(&[byte]),
                None => Err(ErrorKind::NotConnected.into()),
            })
            .collect();
        Ok(self.lanes.iter_mut().zip(sent).map(|(lane, sent)| lane.read(sent)).collect())
    }

    /// The requests sent one after the other, evenly over `spread`.
    ///
    /// # Errors
    /// As [`Racers::at_once`].
    pub(crate) fn late(&mut self, key: &Key, spread: Duration) -> Result<Vec<Outcome>> {
        for lane in &mut self.lanes {
            lane.open()?;
        }
        let gap = spread / u32::try_from(self.lanes.len().max(1))?;
        let start = Instant::now();
        let mut sent = Vec::with_capacity(self.lanes.len());
        for (index, lane) in (0_u32..).zip(&mut self.lanes) {
            if let Some(wait) = (gap * index).checked_sub(start.elapsed()) {
                std::thread::sleep(wait);
            }
            let request = lane.template.keyed(key).to_vec();
            sent.push(lane.open()?.write_all(&request));
        }
        Ok(self.lanes.iter_mut().zip(sent).map(|(lane, sent)| lane.read(sent)).collect())
    }
}

impl Lane {
    fn open(&mut self) -> Result<&mut TcpStream> {
        if self.stream.is_none() {
            let stream =
                TcpStream::connect(self.target).with_context(|| format!("connect to {}", self.target))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            self.stream = Some(stream);
        }
        self.stream.as_mut().context("just opened")
    }

    /// Reads this lane's answer; a broken or closing connection is dropped, the next race opens a new one.
    fn read(&mut self, sent: std::io::Result<()>) -> Outcome {
        let outcome = match (&mut self.stream, sent) {
            (Some(stream), Ok(())) => receive(stream).map_err(|error| format!("{error:#}")),
            (_, Err(error)) => Err(error.to_string()),
            (None, Ok(())) => Err("not connected".to_owned()),
        };
        if outcome.as_ref().map_or(true, Answer::closes) {
            self.stream = None;
        }
        outcome
    }
}

/// Reads one answer from a blocking stream.
///
/// # Errors
/// The connection breaks, times out, or carries something else.
pub(crate) fn receive(stream: &mut TcpStream) -> Result<Answer> {
    let mut bytes = Vec::with_capacity(1024);
    let mut chunk = [0_u8; 4096];
    loop {
        let count = stream.read(&mut chunk).context("no answer")?;
        if count == 0 {
            bail!("closed without an answer");
        }
        bytes.extend_from_slice(&chunk[..count]);
        if let Some((answer, _)) = parse(&bytes)? {
            return Ok(answer);
        }
    }
}

/// One request on a connection of its own.
///
/// # Errors
/// As [`receive`], or no connection.
pub(crate) fn ask(target: SocketAddr, request: &[u8]) -> Result<Answer> {
    let mut stream = TcpStream::connect(target).with_context(|| format!("connect to {target}"))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(request)?;
    receive(&mut stream)
}
