//! PostgreSQL's messages: which of them are one statement, and where its answer ends.
//!
//! A statement of the extended protocol is everything up to its `Sync`, one of the simple protocol is one `Query`; the
//! answer to either ends with `ReadyForQuery`. The texts are remembered by the names that `Parse` gave them, since
//! `Execute` has none.

use std::collections::{HashMap, VecDeque};

use anyhow::{Context, Result, bail, ensure};

use super::{Answered, Asked, Talk, normal};

const PROTOCOL_3: u32 = 196_608;
const CANCEL: u32 = 80_877_102;
/// Type and length.
const HEAD_BYTES: usize = 5;

/// What one connection has said.
#[derive(Default)]
pub(super) struct Postgres {
    started: bool,
    from_client: VecDeque<u8>,
    from_server: VecDeque<u8>,
    /// Messages of a statement whose end has not come.
    group: Vec<u8>,
    words: Words,
    /// Texts by the name of the prepared statement.
    texts: HashMap<String, String>,
}

/// What a group of messages asks for.
#[derive(Default)]
struct Words {
    parsed: Option<String>,
    bound: Option<String>,
    executes: usize,
}

impl Talk for Postgres {
    fn asked(&mut self, bytes: &[u8]) -> Result<Vec<Asked>> {
        self.from_client.extend(bytes);
        let mut asked = Vec::new();
        loop {
            if !self.started {
                let Some(message) = take(&mut self.from_client, 0)? else { return Ok(asked) };
                let code = message.get(4..8).and_then(|code| code.try_into().ok()).map(u32::from_be_bytes);
                self.started = code == Some(PROTOCOL_3);
                ensure!(
                    self.started || code == Some(CANCEL),
                    "a start-up that is neither plain nor a cancel"
                );
                asked.push(Asked { bytes: message, statement: None, answered: self.started });
                continue;
            }
            let Some(message) = take(&mut self.from_client, 1)? else { return Ok(asked) };
            asked.extend(self.message(message)?);
        }
    }

    fn answered(&mut self, bytes: &[u8]) -> Result<Vec<Answered>> {
        self.from_server.extend(bytes);
        let mut answered: Vec<Answered> = Vec::new();
        while let Some(message) = take(&mut self.from_server, 1)? {
            let ends = message.first() == Some(&b'Z');
            match answered.last_mut().filter(|last| !last.ends) {
                Some(last) => {
                    last.bytes.extend(message);
                    last.ends = ends;
                }
                None => answered.push(Answered { bytes: message, ends }),
            }
        }
        Ok(answered)
    }
}

impl Postgres {
    fn message(&mut self, message: Vec<u8>) -> Result<Option<Asked>> {
        let (kind, body) = (message[0], &message[HEAD_BYTES..]);
        match kind {
            b'Q' => {
                ensure!(self.group.is_empty(), "a query in the middle of another statement");
                let statement = Some(normal(&word(body)?.0));
                return Ok(Some(Asked { bytes: message, statement, answered: true }));
            }
            b'P' => {
                let (name, rest) = word(body)?;
                let text = normal(&word(rest)?.0);
                self.words.parsed = Some(text.clone());
                self.texts.insert(name, text);
            }
            b'B' => {
                let (_portal, rest) = word(body)?;
                let name = word(rest)?.0;
                let text = self.texts.get(&name).with_context(|| format!("{name} was never parsed"))?;
                self.words.bound = Some(text.clone());
            }
            b'E' => self.words.executes += 1,
            b'D' | b'C' | b'H' | b'S' => {}
            // A password, rows of COPY, the goodbye: nobody waits for an answer to one.
            b'p' | b'd' | b'c' | b'f' | b'X' => {
                return Ok(Some(Asked { bytes: message, statement: None, answered: false }));
            }
            other => bail!("a message {:?} that the relay does not know", char::from(other)),
        }
        self.group.extend(&message);
        if kind != b'S' {
            return Ok(None);
        }
        let words = std::mem::take(&mut self.words);
        ensure!(
            words.executes <= 1,
            "{} statements before one Sync: there is no stopping in between",
            words.executes
        );
        let statement = match (words.executes, words.bound, words.parsed) {
            (1, Some(text), _) => text,
            (_, _, Some(text)) => format!("PREPARE {text}"),
            _ => "CLOSE or SYNC".to_owned(),
        };
        Ok(Some(Asked { bytes: std::mem::take(&mut self.group), statement: Some(statement), answered: true }))
    }
}

/// The first message, whose length is `at` bytes behind its start. `None`: it is not whole yet.
fn take(bytes: &mut VecDeque<u8>, at: usize) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    for (index, byte) in length.iter_mut().enumerate() {
        let Some(there) = bytes.get(at + index) else { return Ok(None) };
        *byte = *there;
    }
    let length = usize::try_from(u32::from_be_bytes(length))?;
    ensure!(length >= 4, "a message of {length} bytes");
    let end = at + length;
    Ok((bytes.len() >= end).then(|| bytes.drain(..end).collect()))
}

/// A text that ends with a zero, and what follows it.
fn word(body: &[u8]) -> Result<(String, &[u8])> {
    let end = body.iter().position(|byte| *byte == 0).context("a text without an end")?;
    Ok((String::from_utf8_lossy(&body[..end]).into_owned(), &body[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(body.len() + 4).expect("short").to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn start_up() -> Vec<u8> {
        let mut bytes = 9_u32.to_be_bytes().to_vec();
        bytes.extend(PROTOCOL_3.to_be_bytes());
        bytes.push(0);
        bytes
    }

    fn statements(asked: &[Asked]) -> Vec<&str> {
        asked.iter().filter_map(|one| one.statement.as_deref()).collect()
    }

    #[test]
    fn a_pipeline_is_cut_into_its_statements_wherever_its_bytes_are_cut() {
        let mut all = start_up();
        all.extend(message(b'P', b"s1\0SELECT $1\0\0\0"));
        all.extend([message(b'D', b"Ss1\0"), message(b'S', b"")].concat());
        for _ in 0..2 {
            all.extend(message(b'B', b"\0s1\0\0\0\0\0\0\0"));
            all.extend([message(b'E', b"\0\0\0\0\0"), message(b'S', b"")].concat());
        }
        all.extend(message(b'Q', b"COMMIT\0"));
        for at in 0..=all.len() {
            let mut talk = Postgres::default();
            let mut asked = talk.asked(&all[..at]).expect("known");
            asked.extend(talk.asked(&all[at..]).expect("known"));
            assert_eq!(statements(&asked), ["PREPARE SELECT $?", "SELECT $?", "SELECT $?", "COMMIT"], "{at}");
            let passed: Vec<u8> = asked.into_iter().flat_map(|one| one.bytes).collect();
            assert_eq!(passed, all, "nothing is lost or changed");
        }
    }

    #[test]
    fn two_statements_before_one_sync_are_refused() {
        let mut talk = Postgres::default();
        talk.asked(&start_up()).expect("plain");
        let execute = message(b'E', b"\0\0\0\0\0");
        assert!(talk.asked(&[execute.clone(), execute, message(b'S', b"")].concat()).is_err());
    }

    #[test]
    fn answers_end_where_the_server_is_ready_again() {
        let mut talk = Postgres::default();
        let one = [message(b'D', b"row"), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
        let all = [one.clone(), one.clone()].concat();
        for at in 0..=all.len() {
            let mut answered = talk.answered(&all[..at]).expect("known");
            answered.extend(talk.answered(&all[at..]).expect("known"));
            assert_eq!(answered.iter().filter(|piece| piece.ends).count(), 2, "{at}");
            assert_eq!(answered.into_iter().flat_map(|piece| piece.bytes).collect::<Vec<_>>(), all);
        }
    }
}
