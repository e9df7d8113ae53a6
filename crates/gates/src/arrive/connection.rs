//! One connection, with or without TLS, whose last byte can wait.
//!
//! Over TLS a byte is a record. The one with the last byte is made beforehand, so that the moment costs one write there too.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::plan::Base;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long the server may take to accept the bytes of one request.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A connection that is open; its socket does not block between two sendings.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    session: Option<Box<ClientConnection>>,
    /// What is sent in the moment.
    last: Vec<u8>,
}

impl Connection {
    /// Connects, and shakes hands where the base speaks TLS.
    pub(super) fn open(to: &Base) -> std::io::Result<Self> {
        let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
        for address in (to.host.as_str(), to.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
                Ok(stream) => return Self::on(stream, to),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn on(mut stream: TcpStream, to: &Base) -> std::io::Result<Self> {
        // The last byte must not wait for the acknowledgement of the rest.
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        let session = match &to.trust {
            None => None,
            Some(trust) => {
                stream.set_read_timeout(Some(CONNECT_LIMIT))?;
                let name = ServerName::try_from(to.host.clone()).map_err(other)?;
                let mut session = ClientConnection::new(trust.speaking(b"http/1.1"), name).map_err(other)?;
                while session.is_handshaking() {
                    session.complete_io(&mut stream)?;
                }
                Some(Box::new(session))
            }
        };
        stream.set_nonblocking(true)?;
        Ok(Self { stream, session, last: Vec::new() })
    }

    /// Sends all but the last byte, and makes that one ready.
    pub(super) fn send_all_but_last(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some((last, rest)) = bytes.split_last() else { return Ok(()) };
        // The server may be slow to take a large body; blocking here costs nobody anything.
        self.stream.set_nonblocking(false)?;
        match &mut self.session {
            None => {
                self.stream.write_all(rest)?;
                self.last = vec![*last];
            }
            Some(session) => {
                let records = sealed(session, rest)?;
                self.stream.write_all(&records)?;
                self.last = sealed(session, &[*last])?;
            }
        }
        self.stream.set_nonblocking(true)
    }

    /// The moment.
    pub(super) fn send_last(&mut self) -> std::io::Result<()> {
        self.stream.write_all(&std::mem::take(&mut self.last))
    }

    /// Whether there is something to read: bytes of an answer, or the end. What TLS says for itself is neither.
    pub(super) fn is_readable(&mut self) -> bool {
        match &mut self.session {
            None => {
                let mut byte = [0_u8];
                !matches!(self.stream.peek(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
            }
            Some(session) => !matches!(opened(session, &mut self.stream), Ok(Opened::Nothing)),
        }
    }

    /// Takes what has come, without waiting: 0 at the end.
    pub(super) fn read(&mut self, chunk: &mut [u8]) -> std::io::Result<usize> {
        let Some(session) = &mut self.session else { return self.stream.read(chunk) };
        match opened(session, &mut self.stream)? {
            Opened::Nothing => Err(ErrorKind::WouldBlock.into()),
            Opened::End => Ok(0),
            Opened::Bytes => session.reader().read(chunk),
        }
    }
}

enum Opened {
    Bytes,
    Nothing,
    End,
}

/// Reads records until there is something in them, or nothing more has come.
fn opened(session: &mut ClientConnection, stream: &mut TcpStream) -> std::io::Result<Opened> {
    loop {
        let state = session.process_new_packets().map_err(other)?;
        if state.plaintext_bytes_to_read() > 0 {
            return Ok(Opened::Bytes);
        }
        if state.peer_has_closed() {
            return Ok(Opened::End);
        }
        match session.read_tls(stream) {
            // Without the end of TLS, what came may have been cut off by somebody else.
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Opened::Nothing),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Bytes as records.
fn sealed(session: &mut ClientConnection, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let (mut records, mut rest) = (Vec::new(), bytes);
    // A session takes so much at once; what it has taken is written before the next piece.
    while !rest.is_empty() || session.wants_write() {
        let taken = session.writer().write(rest)?;
        rest = rest.get(taken..).unwrap_or_default();
        while session.wants_write() {
            session.write_tls(&mut records)?;
        }
    }
    Ok(records)
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> std::io::Error {
    std::io::Error::other(error)
}
