//! MariaDB's packets: a command is one statement, and its answer ends where the protocol's grammar says.
//!
//! Nothing in the packets themselves marks that end: how many there are follows from the kind of the command, from counts in
//! the first packet of a result, and from a flag in its last that says whether another result follows.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result, bail, ensure};

use super::{Answered, Asked, Talk, normal};

/// Three bytes of length, one of the place in the exchange.
const HEAD_BYTES: usize = 4;
const LENGTH_MAX: usize = 0xff_ffff;

const CLIENT_COMPRESS: u32 = 0x20;
const CLIENT_SSL: u32 = 0x800;
const CLIENT_DEPRECATE_EOF: u32 = 0x0100_0000;
const MORE_RESULTS: u16 = 8;

const OK: u8 = 0x00;
const EOF: u8 = 0xfe;
const ERR: u8 = 0xff;

const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;

/// What one connection has said.
#[derive(Default)]
pub(super) struct MariaDb {
    /// Set by the client's answer to the greeting.
    capabilities: Option<u32>,
    from_client: VecDeque<u8>,
    from_server: VecDeque<u8>,
    /// What the answers to come belong to.
    awaited: VecDeque<Awaited>,
    part: Part,
    texts: HashMap<u32, String>,
}

enum Awaited {
    /// The handshake, until the server lets the client in or not.
    Welcome,
    /// The statement whose text will have the number in the answer.
    Prepared(String),
    Results,
}

/// Where in an answer we are.
#[derive(Clone, Copy, Default, Debug)]
enum Part {
    #[default]
    First,
    /// So many descriptions of columns (and, with old clients, ends of them) are left; then there are rows or not.
    Columns {
        left: u64,
        then_rows: bool,
    },
    Rows,
}

impl Talk for MariaDb {
    fn asked(&mut self, bytes: &[u8]) -> Result<Vec<Asked>> {
        self.from_client.extend(bytes);
        let mut asked = Vec::new();
        while let Some(packet) = take(&mut self.from_client)? {
            asked.push(self.command(packet)?);
        }
        Ok(asked)
    }

    fn answered(&mut self, bytes: &[u8]) -> Result<Vec<Answered>> {
        self.from_server.extend(bytes);
        let mut answered: Vec<Answered> = Vec::new();
        while let Some(packet) = take(&mut self.from_server)? {
            // Before the client has said anything there is the greeting.
            let ends = self.capabilities.is_some() && self.packet(&packet[HEAD_BYTES..])?;
            match answered.last_mut().filter(|last| !last.ends) {
                Some(last) => {
                    last.bytes.extend(packet);
                    last.ends = ends;
                }
                None => answered.push(Answered { bytes: packet, ends }),
            }
        }
        Ok(answered)
    }
}

impl MariaDb {
    fn command(&mut self, packet: Vec<u8>) -> Result<Asked> {
        let (place, body) = (packet[3], &packet[HEAD_BYTES..]);
        if self.capabilities.is_none() {
            let capabilities = u32::from_le_bytes(body.get(..4).context("no capabilities")?.try_into()?);
            ensure!(
                capabilities & (CLIENT_SSL | CLIENT_COMPRESS) == 0,
                "the client wants TLS or compression"
            );
            self.capabilities = Some(capabilities);
            self.awaited.push_back(Awaited::Welcome);
            return Ok(Asked { bytes: packet, statement: None, answered: true });
        }
        if place != 0 {
            // More of the handshake.
            return Ok(Asked { bytes: packet, statement: None, answered: false });
        }
        let (kind, rest) = body.split_first().context("an empty command")?;
        let text = || normal(&String::from_utf8_lossy(rest));
        let (statement, awaited) = match *kind {
            QUERY => (text(), Awaited::Results),
            PREPARE => (format!("PREPARE {}", text()), Awaited::Prepared(text())),
            EXECUTE => {
                let number = u32::from_le_bytes(rest.get(..4).context("no number")?.try_into()?);
                let text = self.texts.get(&number).context("a statement that was never prepared")?;
                (text.clone(), Awaited::Results)
            }
            0x02 => ("USE".to_owned(), Awaited::Results),
            0x0e => ("PING".to_owned(), Awaited::Results),
            0x1a => ("RESET STATEMENT".to_owned(), Awaited::Results),
            0x1f => ("RESET CONNECTION".to_owned(), Awaited::Results),
            // The goodbye, long arguments, the end of a prepared statement: none of them has an answer.
            0x01 | 0x18 | 0x19 => return Ok(Asked { bytes: packet, statement: None, answered: false }),
            other => bail!("a command {other:#x} that the relay does not know"),
        };
        self.awaited.push_back(awaited);
        Ok(Asked { bytes: packet, statement: Some(statement), answered: true })
    }

    /// Whether an answer ends with this packet.
    fn packet(&mut self, body: &[u8]) -> Result<bool> {
        let first = *body.first().context("an empty packet")?;
        let ends = match (self.awaited.front().context("an answer to nothing")?, self.part) {
            (Awaited::Welcome, _) => matches!(first, OK | ERR),
            (_, _) if first == ERR => true,
            (Awaited::Prepared(text), Part::First) => {
                let number = u32::from_le_bytes(body.get(1..5).context("no number")?.try_into()?);
                let count = |at: usize| -> Result<u64> {
                    Ok(u16::from_le_bytes(body.get(at..at + 2).context("no count")?.try_into()?).into())
                };
                let (columns, parameters) = (count(5)?, count(7)?);
                self.texts.insert(number, text.clone());
                let left = self.descriptions(columns) + self.descriptions(parameters);
                self.part = Part::Columns { left, then_rows: false };
                left == 0
            }
            (Awaited::Results, Part::First) if first == OK => !more_results(&body[1..], false)?,
            (Awaited::Results, Part::First) => {
                let (columns, rest) = number(body)?;
                // A client that keeps the descriptions is told whether they come once more.
                let come = rest.first().is_none_or(|come| *come != 0);
                let left = if come { self.descriptions(columns) } else { 0 };
                self.part = if left == 0 { Part::Rows } else { Part::Columns { left, then_rows: true } };
                false
            }
            (_, Part::Columns { left, then_rows }) => {
                self.part = match left - 1 {
                    0 if then_rows => Part::Rows,
                    left => Part::Columns { left, then_rows },
                };
                left == 1 && !then_rows
            }
            (_, Part::Rows) => {
                let last = first == EOF && body.len() < if self.marks_ends() { 9 } else { LENGTH_MAX };
                let more = last && more_results(&body[1..], self.marks_ends())?;
                if more {
                    self.part = Part::First;
                }
                last && !more
            }
        };
        if ends {
            self.part = Part::First;
            self.awaited.pop_front();
        }
        Ok(ends)
    }

    /// Whether the ends of descriptions and of rows are packets of their own, as for old clients.
    fn marks_ends(&self) -> bool {
        self.capabilities.is_some_and(|capabilities| capabilities & CLIENT_DEPRECATE_EOF == 0)
    }

    /// Packets that describe so many columns.
    fn descriptions(&self, columns: u64) -> u64 {
        columns + u64::from(columns > 0 && self.marks_ends())
    }
}

/// Whether the packet at the end of a result, without its first byte, says that there is another.
fn more_results(body: &[u8], old: bool) -> Result<bool> {
    let status = if old {
        &body[2.min(body.len())..]
    } else {
        let (_affected, rest) = number(body)?;
        number(rest)?.1
    };
    let status = u16::from_le_bytes(status.get(..2).context("no status")?.try_into()?);
    Ok(status & MORE_RESULTS != 0)
}

/// A number of the length that its first byte tells, and what follows it.
fn number(body: &[u8]) -> Result<(u64, &[u8])> {
    let (first, rest) = body.split_first().context("no number")?;
    let bytes = match *first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        small => return Ok((small.into(), rest)),
    };
    let digits = rest.get(..bytes).context("half a number")?;
    Ok((digits.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)), &rest[bytes..]))
}

/// The first packet, if it is whole.
fn take(bytes: &mut VecDeque<u8>) -> Result<Option<Vec<u8>>> {
    if bytes.len() < HEAD_BYTES {
        return Ok(None);
    }
    let length = usize::from(bytes[0]) | usize::from(bytes[1]) << 8 | usize::from(bytes[2]) << 16;
    ensure!(length < LENGTH_MAX, "a packet that goes on in the next one");
    let end = HEAD_BYTES + length;
    Ok((bytes.len() >= end).then(|| bytes.drain(..end).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(place: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(body.len()).expect("short").to_le_bytes()[..3].to_vec();
        bytes.push(place);
        bytes.extend(body);
        bytes
    }

    /// A connection that is let in.
    fn open(capabilities: u32) -> MariaDb {
        let mut talk = MariaDb::default();
        assert!(!talk.answered(&packet(0, b"\x0agreeting")).expect("known")[0].ends);
        talk.asked(&packet(1, &[&capabilities.to_le_bytes()[..], b"rest"].concat())).expect("plain");
        assert!(talk.answered(&packet(2, b"\0\0\0\x02\0\0\0")).expect("known")[0].ends);
        talk
    }

    /// Where the answers to one command end, fed byte by byte.
    fn ends(talk: &mut MariaDb, packets: &[Vec<u8>]) -> Vec<bool> {
        let mut ends = vec![false; packets.len()];
        for (packet, ends) in packets.iter().zip(&mut ends) {
            for byte in packet {
                for piece in talk.answered(&[*byte]).expect("known") {
                    *ends |= piece.ends;
                }
            }
        }
        ends
    }

    const MODERN: u32 = CLIENT_DEPRECATE_EOF;
    const OLD: u32 = 0;

    #[test]
    fn an_answer_without_rows_ends_at_once_unless_another_follows() {
        let mut talk = open(MODERN);
        let asked = talk.asked(&packet(0, b"\x03UPDATE t SET a = 7")).expect("known");
        assert_eq!(asked[0].statement.as_deref(), Some("UPDATE t SET a = ?"));
        let results = [packet(1, b"\0\x01\0\x0a\0\0\0"), packet(2, b"\0\0\0\x02\0\0\0")];
        assert_eq!(ends(&mut talk, &results), [false, true]);
    }

    #[test]
    fn rows_end_by_their_last_packet_for_both_generations_of_clients() {
        let row = packet(9, b"\x011");
        let end_of_rows = packet(9, b"\xfe\0\0\x02\0\0\0");
        let old_end = packet(9, b"\xfe\0\0\x02\0");
        let describe = packet(9, b"\x03def");
        let count = packet(1, b"\x01");
        let mut talk = open(MODERN);
        talk.asked(&packet(0, b"\x03SELECT 1")).expect("known");
        assert_eq!(
            ends(&mut talk, &[count.clone(), describe.clone(), row.clone(), end_of_rows]),
            [false, false, false, true]
        );
        let mut talk = open(OLD);
        talk.asked(&packet(0, b"\x03SELECT 1")).expect("known");
        let results = [count, describe, old_end.clone(), row, old_end];
        assert_eq!(ends(&mut talk, &results), [false, false, false, false, true]);
    }

    #[test]
    fn an_error_ends_whatever_it_is_in() {
        let mut talk = open(MODERN);
        talk.asked(&packet(0, b"\x03SELECT 1")).expect("known");
        let results = [packet(1, b"\x01"), packet(2, b"\x03def"), packet(3, b"\xff\x01\x02#HY000no")];
        assert_eq!(ends(&mut talk, &results), [false, false, true]);
    }

    #[test]
    fn a_prepared_statement_is_known_by_its_number_and_descriptions_may_stay_away() {
        let mut talk = open(MODERN);
        talk.asked(&packet(0, b"\x16SELECT ?")).expect("known");
        let answer = [b"\0".as_slice(), &5_u32.to_le_bytes(), &[1, 0, 1, 0, 0, 0, 0]].concat();
        let results = [packet(1, &answer), packet(2, b"\x03def"), packet(3, b"\x03def")];
        assert_eq!(ends(&mut talk, &results), [false, false, true]);
        let execute = [b"\x17".as_slice(), &5_u32.to_le_bytes(), b"\0\x01\0\0\0"].concat();
        let asked = talk.asked(&packet(0, &execute)).expect("known");
        assert_eq!(asked[0].statement.as_deref(), Some("SELECT ?"));
        let results = [packet(1, b"\x01\0"), packet(2, b"\0\0\x011"), packet(3, b"\xfe\0\0\x02\0\0\0")];
        assert_eq!(ends(&mut talk, &results), [false, false, true]);
    }

    #[test]
    fn a_goodbye_has_no_answer() {
        let mut talk = open(MODERN);
        assert!(!talk.asked(&packet(0, b"\x01")).expect("known")[0].answered);
        assert!(talk.asked(&packet(0, b"\x11")).is_err(), "what is not known is not let through");
    }
}
