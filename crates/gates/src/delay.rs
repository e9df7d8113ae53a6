//! A relay in front of a database: it makes it far away, and it can take it away.
//!
//! Every piece of bytes is passed on a little later, each way.
//! Between a check and an insert there is one round trip. On one machine that is a tenth of a millisecond, in production it may be
//! five: the window of a race is as wide as the network is long. An API that is pointed at this relay shows here what it shows
//! there.
//!
//! A [`Hand`] cuts every connection in one moment and refuses new ones until the database is back: what an API does between an
//! effect and a commit that never comes is seen in no other way.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Connections at one time; a pool has fewer.
const OPEN_MAX: usize = 256;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Pieces that are on their way in one direction; more wait at their sender.
const ON_THE_WAY: usize = 1_024;

/// Where it listens, and what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Where the API connects.
    pub listen: SocketAddr,
    /// The database.
    pub to: SocketAddr,
    /// Added in each direction.
    pub each_way: Duration,
}

/// A relay that is bound.
#[derive(Debug)]
pub struct Relay {
    listener: TcpListener,
    delay: Delay,
    hand: Hand,
}

/// What cuts a relay, from whichever thread knows the moment.
#[derive(Clone, Debug, Default)]
pub struct Hand(Arc<Mutex<Wire>>);

#[derive(Debug, Default)]
struct Wire {
    /// Both ends of each connection that is relayed.
    open: BTreeMap<u64, [TcpStream; 2]>,
    next: u64,
    /// Connections that have a thread, those on their way to the database included.
    served: usize,
    is_cut: bool,
    /// Connections that came while it was cut, since the last cut.
    refused: usize,
    ended: bool,
}

impl Hand {
    /// Ends every connection and refuses new ones; how many it ended.
    pub fn cut(&self) -> usize {
        let mut wire = self.lock();
        (wire.is_cut, wire.refused) = (true, 0);
        let ended = std::mem::take(&mut wire.open);
        for end in ended.values().flatten() {
            // One that has ended by itself is cut already.
            let _ = end.shutdown(Shutdown::Both);
        }
        ended.len()
    }

    /// New connections are relayed again.
    pub fn mend(&self) {
        self.lock().is_cut = false;
    }

    /// Whether the database is away.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.lock().is_cut
    }

    /// How many connections were refused since the last cut.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.lock().refused
    }

    fn lock(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more is served; it counts as refused where the relay is cut.
    fn takes(&self) -> bool {
        let mut wire = self.lock();
        wire.refused += usize::from(wire.is_cut);
        let takes = !wire.is_cut && wire.served < OPEN_MAX;
        wire.served += usize::from(takes);
        takes
    }

    /// Keeps both ends for the cut; `None` where it came first.
    fn join(&self, client: &TcpStream, server: &TcpStream) -> std::io::Result<Option<u64>> {
        let ends = [client.try_clone()?, server.try_clone()?];
        let mut wire = self.lock();
        if wire.is_cut {
            wire.refused += 1;
            return Ok(None);
        }
        wire.next += 1;
        let number = wire.next;
        wire.open.insert(number, ends);
        Ok(Some(number))
    }
}

/// A relay at work in threads of its own; it ends with this value, and so do its connections.
#[derive(Debug)]
pub struct Relaying {
    address: SocketAddr,
    hand: Hand,
}

impl Relaying {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What cuts it.
    #[must_use]
    pub fn hand(&self) -> Hand {
        self.hand.clone()
    }
}

impl Drop for Relaying {
    fn drop(&mut self) {
        self.hand.lock().ended = true;
        self.hand.cut();
        // Wakes the thread that accepts; if it cannot be reached it has ended.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_LIMIT);
    }
}

impl Relay {
    /// Binds.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(delay: Delay) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(delay.listen)?, delay, hand: Hand::default() })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Relays in a thread of its own.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(self) -> std::io::Result<Relaying> {
        let relaying = Relaying { address: self.address()?, hand: self.hand.clone() };
        std::thread::Builder::new().name("gate-relay".to_owned()).spawn(move || self.run())?;
        Ok(relaying)
    }

    /// Relays until the process ends.
    pub fn run(self) {
        for client in self.listener.incoming() {
            if self.hand.lock().ended {
                return;
            }
            let Ok(client) = client else { continue };
            if !self.hand.takes() {
                continue;
            }
            let (delay, hand) = (self.delay, self.hand.clone());
            std::thread::spawn(move || {
                // A connection that breaks ends both its directions; its ends see that.
                let _ = connection(client, delay, &hand);
                hand.lock().served -= 1;
            });
        }
    }
}

fn connection(client: TcpStream, delay: Delay, hand: &Hand) -> std::io::Result<()> {
    let server = TcpStream::connect_timeout(&delay.to, CONNECT_LIMIT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let Some(number) = hand.join(&client, &server)? else { return Ok(()) };
    let back = (server.try_clone()?, client.try_clone()?);
    let answers = std::thread::spawn(move || direction(back.0, back.1, delay.each_way));
    direction(client, server, delay.each_way);
    // A direction does not fail, it ends.
    let _ = answers.join();
    hand.lock().open.remove(&number);
    Ok(())
}

/// Bytes go on when their time has come, however many are behind them.
fn direction(mut from: TcpStream, to: TcpStream, later: Duration) {
    let (put, take) = sync_channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let writer = std::thread::spawn(move || deliver(&take, to));
    let mut chunk = [0_u8; 16 * 1024];
    while let Ok(count) = from.read(&mut chunk) {
        let piece = chunk.get(..count).unwrap_or_default().to_vec();
        if count == 0 || put.send((Instant::now() + later, piece)).is_err() {
            break;
        }
    }
    drop(put);
    let _ = writer.join();
}

fn deliver(pieces: &Receiver<(Instant, Vec<u8>)>, mut to: TcpStream) {
    while let Ok((due, piece)) = pieces.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    // The other direction may go on: a half-closed connection is one.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_both_ways_and_take_their_time() {
        let echo = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = echo.local_addr().expect("bound");
        std::thread::spawn(move || {
            for mut stream in echo.incoming().flatten() {
                let mut bytes = [0; 5];
                stream.read_exact(&mut bytes).expect("five bytes");
                stream.write_all(&bytes).expect("taken");
            }
        });
        let each_way = Duration::from_millis(20);
        let relay = Relay::bind(Delay { listen: ([127, 0, 0, 1], 0).into(), to, each_way }).expect("a port");
        let address = relay.address().expect("bound");
        std::thread::spawn(move || relay.run());
        let start = Instant::now();
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(b"hello").expect("sent");
        let mut back = String::new();
        client.read_to_string(&mut back).expect("the echo ends its connection");
        assert_eq!(back, "hello");
        // Never sooner; how much later is the machine's.
        assert!(start.elapsed() >= 2 * each_way);
    }

    #[test]
    fn a_cut_ends_what_is_open_and_refuses_what_comes_until_it_is_mended() {
        let echo = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = echo.local_addr().expect("bound");
        std::thread::spawn(move || {
            for mut stream in echo.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        let delay = Delay { listen: ([127, 0, 0, 1], 0).into(), to, each_way: Duration::ZERO };
        let relay = Relay::bind(delay).and_then(Relay::start).expect("a port");
        let hand = relay.hand();
        let echoes = |client: &mut TcpStream| {
            let mut byte = [0];
            client.write_all(b"x").and_then(|()| client.read_exact(&mut byte)).is_ok()
        };
        let connect = || TcpStream::connect(relay.address()).expect("it listens");
        let mut open = connect();
        assert!(echoes(&mut open));
        assert_eq!(hand.cut(), 1, "one was open");
        assert!(hand.is_cut() && !echoes(&mut open), "it is gone");
        assert!(!echoes(&mut connect()), "nobody comes through");
        assert_eq!(hand.refused(), 1);
        hand.mend();
        assert!(!hand.is_cut() && echoes(&mut connect()), "the database is back");
        assert!(!echoes(&mut open), "what was cut stays cut");
    }

    #[test]
    fn a_database_that_is_not_there_ends_the_connection() {
        let to = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
        let relay = Relay::bind(Delay { listen: ([127, 0, 0, 1], 0).into(), to, each_way: Duration::ZERO })
            .expect("a port");
        let address = relay.address().expect("bound");
        std::thread::spawn(move || relay.run());
        let mut client = TcpStream::connect(address).expect("it listens");
        let mut nothing = Vec::new();
        assert!(matches!(client.read_to_end(&mut nothing), Ok(0) | Err(_)));
    }
}
