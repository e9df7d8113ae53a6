//! A relay that makes a database far away: every piece of bytes is passed on a little later, each way.
//!
//! Between a check and an insert there is one round trip. On one machine that is a tenth of a millisecond, in production it may be
//! five: the window of a race is as wide as the network is long. An API that is pointed at this relay shows here what it shows
//! there.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
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
}

impl Relay {
    /// Binds.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(delay: Delay) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(delay.listen)?, delay })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Relays until the process ends.
    pub fn run(self) {
        let open = Arc::new(AtomicUsize::new(0));
        for client in self.listener.incoming().flatten() {
            if open.fetch_add(1, Ordering::SeqCst) >= OPEN_MAX {
                open.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let (delay, open) = (self.delay, open.clone());
            std::thread::spawn(move || {
                // A connection that breaks ends both its directions; its ends see that.
                let _ = connection(client, delay);
                open.fetch_sub(1, Ordering::SeqCst);
            });
        }
    }
}

fn connection(client: TcpStream, delay: Delay) -> std::io::Result<()> {
    let server = TcpStream::connect_timeout(&delay.to, CONNECT_LIMIT)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let back = (server.try_clone()?, client.try_clone()?);
    let answers = std::thread::spawn(move || direction(back.0, back.1, delay.each_way));
    direction(client, server, delay.each_way);
    // A direction does not fail, it ends.
    let _ = answers.join();
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
