//! Clients that do not give up: each logical operation keeps its key over every attempt, until its result is
//! known or known to be unknown. What a crash proof sends while servers die under it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wire::{Answer, Key, Template, parse};

/// One attempt takes no longer; a server that died is noticed much earlier, by its closed connections.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5);
/// Pauses before the next attempt of an operation.
const PAUSE_AFTER_FAULT_MS: std::ops::Range<u64> = 10..60;
const PAUSE_IN_FLIGHT_MS: std::ops::Range<u64> = 100..300;

/// What is sent.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) target: SocketAddr,
    pub(crate) clients: usize,
    pub(crate) seed: u64,
    pub(crate) body: &'static str,
}

/// Where an operation stands.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// To be tried again at this time; in flight without a break since then.
    Open {
        due: Instant,
        in_flight_since: Option<Instant>,
    },
    /// Being tried right now.
    Trying,
    Success(Answer),
    /// `idempotency_outcome_unknown`: nobody may run it again by himself.
    Unknown,
}

/// All operations so far, and what went wrong with them.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) fates: BTreeMap<u64, Fate>,
    pub(crate) violations: BTreeMap<String, u64>,
    /// The longest that a key was in flight without a break.
    pub(crate) longest_in_flight: Duration,
}

impl Record {
    /// Operations whose result is not known yet.
    pub(crate) fn open(&self) -> usize {
        self.fates.values().filter(|fate| matches!(fate, Fate::Open { .. } | Fate::Trying)).count()
    }

    pub(crate) fn unknown(&self) -> usize {
        self.fates.values().filter(|fate| matches!(fate, Fate::Unknown)).count()
    }

    fn violated(&mut self, text: String) {
        *self.violations.entry(text).or_default() += 1;
    }

    /// Something to try: an open operation that is due, the longest waiting first, else a new one if allowed.
    fn next(&mut self, now: Instant, new: bool) -> Option<(u64, Option<Instant>)> {
        let due = self.fates.iter().filter_map(|(number, fate)| match fate {
            Fate::Open { due, in_flight_since } if *due <= now => Some((*due, *number, *in_flight_since)),
            _ => None,
        });
        let (number, since) = match due.min_by_key(|(due, ..)| *due) {
            Some((_, number, since)) => (number, since),
            None if new => (self.fates.len() as u64, None),
            None => return None,
        };
        self.fates.insert(number, Fate::Trying);
        Some((number, since))
    }

    /// What one attempt says about its operation.
    fn settle(
        &mut self,
        number: u64,
        since: Option<Instant>,
        outcome: Result<Answer>,
        now: Instant,
        pauses: (u64, u64),
    ) {
        let (after_fault, in_flight) = pauses;
        let again =
            |after, since| Fate::Open { due: now + Duration::from_millis(after), in_flight_since: since };
        let fate = match outcome {
            // Nothing is known about this attempt. It may have taken an ended lease over and died with it, so
            // whatever is in flight from here on may be a new lease.
            Err(_) => again(after_fault, None),
            Ok(answer) => match (answer.status, answer.code().as_deref()) {
                (200..=299, _) => Fate::Success(answer),
                (409, Some("idempotency_outcome_unknown")) => Fate::Unknown,
                (409, Some("idempotency_key_in_flight")) => {
                    let since = since.unwrap_or(now);
                    self.longest_in_flight = self.longest_in_flight.max(now.duration_since(since));
                    again(in_flight, Some(since))
                }
                (503, Some(_)) if answer.header("retry-after").is_some() => again(after_fault, None),
                (status, code) => {
                    self.violated(format!("an answer {status} ({})", code.unwrap_or("no code")));
                    again(in_flight, since)
                }
            },
        };
        self.fates.insert(number, fate);
    }
}

/// Clients at work on a thread of their own.
pub(crate) struct Clients {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<Result<()>>,
}

struct Shared {
    work: Work,
    record: Mutex<Record>,
    sent_unanswered: AtomicUsize,
    /// New operations are begun.
    begin: AtomicBool,
    stop: AtomicBool,
}

impl Clients {
    pub(crate) fn start(work: Work) -> Self {
        let shared = Arc::new(Shared {
            work,
            record: Mutex::default(),
            sent_unanswered: AtomicUsize::new(0),
            begin: AtomicBool::new(true),
            stop: AtomicBool::new(false),
        });
        let at_work = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let clients: Vec<_> = (0..at_work.work.clients)
                    .map(|number| tokio::spawn(client(Arc::clone(&at_work), number as u64)))
                    .collect();
                for client in clients {
                    client.await.context("a client")?;
                }
                Ok(())
            })
        });
        Self { shared, thread }
    }

    /// Requests that were sent and not answered yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.shared.sent_unanswered.load(Ordering::SeqCst)
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.shared.record()
    }

    /// Begins no new operation, and goes on with the open ones.
    pub(crate) fn begin_nothing_new(&self) {
        self.shared.begin.store(false, Ordering::SeqCst);
    }

    /// Ends all clients and hands the record over.
    ///
    /// # Errors
    /// A client failed in itself.
    pub(crate) fn finish(self) -> Result<Record> {
        self.shared.stop.store(true, Ordering::SeqCst);
        match self.thread.join() {
            Ok(ended) => ended?,
            Err(_) => bail!("a client panicked"),
        }
        let mut record = self.shared.record();
        Ok(std::mem::take(&mut *record))
    }
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn client(shared: Arc<Shared>, number: u64) {
    const IDLE: Duration = Duration::from_millis(5);
    let work = &shared.work;
    let mut chance = fastrand::Rng::with_seed(work.seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let headers = [("authorization", "Bearer persistent")];
    let mut template = Template::keyed_post(work.target, "/orders", &headers, work.body);
    let mut stream: Option<TcpStream> = None;
    while !shared.stop.load(Ordering::SeqCst) {
        let next = shared.record().next(Instant::now(), shared.begin.load(Ordering::SeqCst));
        let Some((operation, since)) = next else {
            tokio::time::sleep(IDLE).await;
            continue;
        };
        let request = template.keyed(&Key::numbered(work.seed, operation)).to_vec();
        shared.sent_unanswered.fetch_add(1, Ordering::SeqCst);
        let attempt = tokio::time::timeout(ATTEMPT_LIMIT, attempt(&mut stream, work.target, &request)).await;
        shared.sent_unanswered.fetch_sub(1, Ordering::SeqCst);
        let outcome = attempt.context("no answer in time").and_then(|outcome| outcome);
        if outcome.as_ref().map_or(true, Answer::closes) {
            stream = None;
        }
        let pauses = (chance.u64(PAUSE_AFTER_FAULT_MS), chance.u64(PAUSE_IN_FLIGHT_MS));
        shared.record().settle(operation, since, outcome, Instant::now(), pauses);
    }
}

async fn attempt(stream: &mut Option<TcpStream>, target: SocketAddr, request: &[u8]) -> Result<Answer> {
    let stream = match stream {
        Some(stream) => stream,
        None => {
            let fresh = TcpStream::connect(target).await?;
            fresh.set_nodelay(true)?;
            stream.insert(fresh)
        }
    };
    stream.write_all(request).await?;
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            bail!("closed without an answer");
        }
        if let Some((answer, _)) = parse(&bytes)? {
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Result<Answer> {
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Ok(Answer { status, headers, body: body.as_bytes().to_vec() })
    }

    #[test]
    fn an_operation_stays_open_until_its_result_is_known() {
        let mut record = Record::default();
        let start = Instant::now();
        let (number, since) = record.next(start, true).expect("a new one");
        record.settle(number, since, Err(anyhow::anyhow!("reset")), start, (10, 100));
        assert!(record.next(start, false).is_none(), "it is not due yet");
        let later = start + Duration::from_millis(10);
        let (again, since) = record.next(later, true).expect("due");
        assert_eq!(again, number);
        let in_flight = answer(409, &[], r#"{"code":"idempotency_key_in_flight"}"#);
        record.settle(number, since, in_flight, later, (10, 100));
        let much_later = later + Duration::from_secs(7);
        let (_, since) = record.next(much_later, false).expect("due");
        let in_flight = answer(409, &[], r#"{"code":"idempotency_key_in_flight"}"#);
        record.settle(number, since, in_flight, much_later, (10, 100));
        assert_eq!(record.longest_in_flight, Duration::from_secs(7));
        let (_, since) = record.next(much_later + Duration::from_secs(1), false).expect("due");
        record.settle(number, since, answer(201, &[], "{}"), much_later, (10, 100));
        assert_eq!((record.open(), record.unknown(), record.violations.len()), (0, 0, 0));
    }

    #[test]
    fn a_foreign_answer_is_a_violation_and_an_honest_503_is_not() {
        let mut record = Record::default();
        let now = Instant::now();
        record.settle(0, None, answer(500, &[], ""), now, (1, 1));
        assert_eq!(record.violations.len(), 1);
        let busy = answer(503, &[("retry-after", "1")], r#"{"code":"idempotency_store_unavailable"}"#);
        record.settle(1, None, busy, now, (1, 1));
        assert_eq!(record.violations.len(), 1);
        record.settle(2, None, answer(503, &[], "{}"), now, (1, 1));
        assert_eq!(record.violations.len(), 2, "a 503 that does not say when to come back");
    }
}
