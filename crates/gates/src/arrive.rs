//! Identical requests brought together.
//!
//! - **At once.** All but the last byte of every request is sent and lies in the server's hands; then the last bytes go out
//!   in one loop of a few microseconds each. Threads that start together arrive over milliseconds, which is longer than
//!   most races are open: they catch a natural check-then-insert in one round of a hundred, this in one of five.
//! - **Late.** The requests are spread over the time in which the first one runs and finishes. This meets locks that end
//!   too early and claims given up before their result can be seen, which the first shape never does.
//!
//! - **In one packet**, over HTTP/2 (`packet`): no spread at all, and one connection for all.
//!
//! One thread and sockets that do not block: the kernel keeps what came until it is read, and the gate takes little from
//! the processors it shares with the server. Whether the requests were together is not taken from clocks alone: right
//! after the last byte it is asked which sockets have an answer *already* ([`Volley::early`]).

mod connection;
#[cfg(feature = "http2")]
mod packet;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use self::connection::Connection;
use crate::plan::Base;
use crate::wire::{Answer, Filled, parse};

/// Between two looks at the sockets.
const LOOK: Duration = Duration::from_micros(100);

/// One request of a volley.
#[derive(Clone, Debug)]
pub struct Shot {
    /// Which of the bases.
    pub base: usize,
    /// What is sent.
    pub request: Filled,
}

/// Why there is no answer. The request may have been carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost(pub String);

/// What became of one request, with its times since the origin of the gate.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Its first byte was on its way.
    pub first_sent: Duration,
    /// It was complete.
    pub last_sent: Duration,
    /// The first byte of an answer was seen.
    pub first_byte: Option<Duration>,
    /// The answer was complete, or the request was given up.
    pub done: Duration,
    /// The answer.
    pub outcome: Result<Answer, Lost>,
}

/// Requests that were sent together.
#[derive(Clone, Debug)]
pub struct Volley {
    /// In the order of the shots.
    pub timed: Vec<Timed>,
    /// How many had an answer already when the last request became complete. None: the server had all of them in hand.
    pub early: usize,
}

/// Connections that are kept from one volley to the next.
#[derive(Debug)]
pub struct Lanes {
    bases: Vec<Base>,
    origin: Instant,
    timeout: Duration,
    /// Connections that nobody uses now, by base.
    idle: Vec<Vec<Connection>>,
}

struct Lane {
    base: usize,
    stream: Option<Connection>,
    bytes: Vec<u8>,
    came: Vec<u8>,
    first_sent: Duration,
    last_sent: Option<Duration>,
    first_byte: Option<Duration>,
    end: Option<(Duration, Result<Answer, Lost>)>,
}

impl Lanes {
    /// No connection yet. Times are counted from `origin`.
    #[must_use]
    pub fn new(bases: Vec<Base>, origin: Instant, timeout: Duration) -> Self {
        let idle = bases.iter().map(|_| Vec::new()).collect();
        Self { bases, origin, timeout, idle }
    }

    /// How many bases there are.
    #[must_use]
    pub fn bases(&self) -> usize {
        self.bases.len()
    }

    /// Now, on the clock of the gate.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The origin of that clock.
    #[must_use]
    pub fn clock(&self) -> Instant {
        self.origin
    }

    /// What a base is called in reports.
    #[must_use]
    pub fn name(&self, base: usize) -> &str {
        self.bases.get(base).map_or("", |base| base.authority.as_str())
    }

    /// All shots complete in one moment, `settle` after the rest of them was sent. `watch` is told again and again how many
    /// have ended.
    pub fn at_once(&mut self, shots: Vec<Shot>, settle: Duration, watch: &mut dyn FnMut(usize)) -> Volley {
        let mut lanes: Vec<Lane> = shots.into_iter().map(|shot| self.open(shot)).collect();
        for lane in &mut lanes {
            lane.send_all_but_last(self.origin);
        }
        std::thread::sleep(settle);
        for lane in &mut lanes {
            lane.send_last(self.origin);
        }
        let early = lanes.iter_mut().filter_map(|lane| lane.has_answer().then_some(())).count();
        self.read(&mut lanes, None, watch);
        self.close(lanes, early)
    }

    /// The shots one after the other, evenly over `spread`.
    pub fn late(&mut self, shots: Vec<Shot>, spread: Duration, watch: &mut dyn FnMut(usize)) -> Volley {
        let gap = spread / u32::try_from(shots.len().max(1)).unwrap_or(u32::MAX);
        let mut lanes: Vec<Lane> = shots.into_iter().map(|shot| self.open(shot)).collect();
        let start = Instant::now();
        let mut early = 0;
        for at in 0..lanes.len() {
            let due = start + gap * u32::try_from(at).unwrap_or(u32::MAX);
            self.read(lanes.get_mut(..at).unwrap_or_default(), Some(due), watch);
            if let Some(lane) = lanes.get_mut(at) {
                lane.send_all_but_last(self.origin);
                lane.send_last(self.origin);
            }
        }
        early += lanes.iter_mut().filter_map(|lane| lane.has_ended_or_answer().then_some(())).count();
        self.read(&mut lanes, None, watch);
        self.close(lanes, early)
    }

    /// All shots complete in one packet, over HTTP/2.
    #[must_use]
    pub fn one_packet(&self, shots: &[Shot], settle: Duration) -> Volley {
        #[cfg(feature = "http2")]
        return packet::send(&self.bases, shots, settle, self.origin, self.timeout);
        #[cfg(not(feature = "http2"))]
        {
            let (now, _) = (self.now(), settle);
            let why = || Err(Lost("this build has no HTTP/2 (feature `http2`)".to_owned()));
            let lost =
                |_| Timed { first_sent: now, last_sent: now, first_byte: None, done: now, outcome: why() };
            Volley { timed: shots.iter().map(lost).collect(), early: 0 }
        }
    }

    /// One request alone.
    pub fn one(&mut self, shot: Shot) -> Timed {
        let lost = |at| Timed {
            first_sent: at,
            last_sent: at,
            first_byte: None,
            done: at,
            outcome: Err(Lost("nothing was sent".to_owned())),
        };
        let now = self.now();
        self.late(vec![shot], Duration::ZERO, &mut |_| ()).timed.pop().unwrap_or_else(|| lost(now))
    }

    fn open(&mut self, shot: Shot) -> Lane {
        let base = shot.base.min(self.bases.len().saturating_sub(1));
        let mut lane = Lane {
            base,
            stream: None,
            bytes: Vec::new(),
            came: Vec::new(),
            first_sent: self.now(),
            last_sent: None,
            first_byte: None,
            end: None,
        };
        let (Some(to), Some(idle)) = (self.bases.get(base), self.idle.get_mut(base)) else {
            lane.lose(self.origin, "there is no base".to_owned());
            return lane;
        };
        lane.bytes = shot.request.bytes(to);
        // A kept connection that the server has closed meanwhile has something to read: its end.
        let kept =
            std::iter::from_fn(|| idle.pop()).find_map(|mut kept| (!kept.is_readable()).then_some(kept));
        match kept.map_or_else(|| Connection::open(to), Ok) {
            Ok(stream) => lane.stream = Some(stream),
            Err(error) => lane.lose(self.origin, format!("no connection to {}: {error}", to.authority)),
        }
        lane
    }

    /// Reads what comes until all lanes have ended, or until `until`.
    fn read(&self, lanes: &mut [Lane], until: Option<Instant>, watch: &mut dyn FnMut(usize)) {
        loop {
            for lane in lanes.iter_mut().filter(|lane| lane.end.is_none()) {
                lane.take(self.origin, self.timeout);
            }
            let ended = lanes.iter().filter(|lane| lane.end.is_some()).count();
            watch(ended);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match left {
                Some(left) if left.is_zero() => return,
                Some(left) => std::thread::sleep(left.min(LOOK)),
                None if ended == lanes.len() => return,
                None => std::thread::sleep(LOOK),
            }
        }
    }

    fn close(&mut self, lanes: Vec<Lane>, early: usize) -> Volley {
        let timed = lanes.into_iter().map(|lane| self.close_one(lane)).collect();
        Volley { timed, early }
    }

    fn close_one(&mut self, lane: Lane) -> Timed {
        let (done, outcome) =
            lane.end.unwrap_or_else(|| (self.origin.elapsed(), Err(Lost("not waited for".to_owned()))));
        let reusable = outcome
            .as_ref()
            .is_ok_and(|answer| !answer.closes() && answer.header("content-length").is_some());
        if let (true, Some(stream), Some(idle)) = (reusable, lane.stream, self.idle.get_mut(lane.base)) {
            idle.push(stream);
        }
        Timed {
            first_sent: lane.first_sent,
            last_sent: lane.last_sent.unwrap_or(lane.first_sent),
            first_byte: lane.first_byte,
            done,
            outcome,
        }
    }
}

impl Lane {
    fn lose(&mut self, origin: Instant, why: String) {
        self.stream = None;
        self.end = Some((origin.elapsed(), Err(Lost(why))));
    }

    fn send_all_but_last(&mut self, origin: Instant) {
        let Some(stream) = &mut self.stream else { return };
        self.first_sent = origin.elapsed();
        if let Err(error) = stream.send_all_but_last(&self.bytes) {
            self.lose(origin, format!("the request could not be sent: {error}"));
        }
    }

    fn send_last(&mut self, origin: Instant) {
        let Some(stream) = &mut self.stream else { return };
        match stream.send_last() {
            Ok(()) => self.last_sent = Some(origin.elapsed()),
            Err(error) => self.lose(origin, format!("the request's last byte could not be sent: {error}")),
        }
    }

    fn has_answer(&mut self) -> bool {
        self.stream.as_mut().is_some_and(Connection::is_readable)
    }

    fn has_ended_or_answer(&mut self) -> bool {
        self.end.is_some() || self.has_answer()
    }

    /// Takes what has come, without waiting.
    fn take(&mut self, origin: Instant, timeout: Duration) {
        let Some(stream) = &mut self.stream else { return };
        let mut chunk = [0_u8; 16 * 1024];
        let ended = loop {
            match stream.read(&mut chunk) {
                Ok(0) => break true,
                Ok(count) => {
                    self.first_byte.get_or_insert_with(|| origin.elapsed());
                    self.came.extend_from_slice(chunk.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.lose(origin, format!("the connection broke before an answer: {error}"));
                    return;
                }
            }
        };
        match parse(&self.came, ended) {
            Ok(Some(answer)) => {
                if ended {
                    self.stream = None;
                }
                self.end = Some((origin.elapsed(), Ok(answer)));
            }
            Ok(None) if ended => self.lose(origin, "the connection was closed before an answer".to_owned()),
            Ok(None) => {
                let since = self.last_sent.unwrap_or(self.first_sent);
                if origin.elapsed().saturating_sub(since) > timeout {
                    self.lose(origin, format!("no answer within {} s", timeout.as_secs_f32()));
                }
            }
            Err(error) => self.lose(origin, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    /// A server of one answer for each connection, which says when each request was complete.
    fn server(wait_for: usize) -> (Base, mpsc::Receiver<Instant>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let barrier = std::sync::Arc::new(std::sync::Barrier::new(wait_for));
            for stream in listener.incoming().flatten() {
                let (tell, barrier, mut stream) = (tell.clone(), barrier.clone(), stream);
                std::thread::spawn(move || {
                    let mut came = Vec::new();
                    let mut chunk = [0; 1024];
                    while !came.ends_with(b"{}") {
                        let count = stream.read(&mut chunk).expect("a request");
                        came.extend_from_slice(&chunk[..count]);
                    }
                    let _ = tell.send(Instant::now());
                    barrier.wait();
                    let _ = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok");
                });
            }
        });
        let base = Base {
            authority: format!("127.0.0.1:{port}"),
            host: "127.0.0.1".into(),
            port,
            prefix: String::new(),
            trust: None,
        };
        (base, told)
    }

    fn shots(count: usize) -> Vec<Shot> {
        let request =
            Filled { method: "POST".into(), path: "/".into(), headers: vec![], body: Some("{}".into()) };
        (0..count).map(|_| Shot { base: 0, request: request.clone() }).collect()
    }

    #[test]
    fn no_request_is_complete_before_all_are_there() {
        let (base, told) = server(8);
        let mut lanes = Lanes::new(vec![base], Instant::now(), Duration::from_secs(10));
        // The server answers nobody before it has all of them: one at a time would never end.
        let volley = lanes.at_once(shots(8), Duration::from_millis(5), &mut |_| ());
        assert_eq!(told.try_iter().count(), 8);
        for timed in &volley.timed {
            assert_eq!(timed.outcome.as_ref().map(|answer| answer.status), Ok(201));
            assert!(timed.first_sent <= timed.last_sent && timed.last_sent <= timed.done);
        }
        let all_but_last_sent = volley.timed.iter().map(|timed| timed.first_sent).max();
        assert!(volley.timed.iter().all(|timed| Some(timed.last_sent) >= all_but_last_sent));
    }

    #[cfg(feature = "http2")]
    #[test]
    fn a_server_without_http2_is_a_loss_that_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
            }
        });
        let base = Base {
            authority: "old".into(),
            host: "127.0.0.1".into(),
            port,
            prefix: String::new(),
            trust: None,
        };
        let lanes = Lanes::new(vec![base], Instant::now(), Duration::from_secs(5));
        let volley = lanes.one_packet(&shots(2), Duration::ZERO);
        assert!(
            volley
                .timed
                .iter()
                .all(|timed| timed.outcome.as_ref().is_err_and(|lost| lost.0.contains("HTTP/2"))),
            "{volley:?}"
        );
    }

    #[test]
    fn a_dead_server_is_a_loss_and_not_an_answer() {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let base = Base {
            authority: "gone".into(),
            host: "127.0.0.1".into(),
            port,
            prefix: String::new(),
            trust: None,
        };
        let mut lanes = Lanes::new(vec![base], Instant::now(), Duration::from_secs(1));
        let volley = lanes.at_once(shots(2), Duration::ZERO, &mut |_| ());
        assert!(volley.timed.iter().all(|timed| timed.outcome.is_err()));
    }

    #[test]
    fn who_does_not_answer_in_time_is_given_up() {
        let (base, _told) = server(2);
        let mut lanes = Lanes::new(vec![base], Instant::now(), Duration::from_millis(50));
        let lost = lanes.one(shots(1).pop().expect("one"));
        assert!(lost.outcome.expect_err("nobody answers").0.contains("no answer within"));
    }
}
