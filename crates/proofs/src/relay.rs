//! Stands between a service and its database, knows where statements begin and end, and can hold the world still at any of
//! them: before a statement is passed on, when it has been done and its answer is withheld, or just after the answer.
//!
//! A run is traced first: [`Relay::count`] begins, [`Relay::counted`] says which statements there were. Then one run for each
//! point: [`Relay::stop_at`], [`Relay::wait`] until it is reached and everything stands still, a kill, [`Relay::go_on`].
//!
//! A point is named by the statement's text without its arguments and by how often it was seen before: what a service does by
//! itself in between (it reads the clock) moves no point of the request.

mod mariadb;
mod postgres;

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How much is read at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long the statements in front of the chosen one may take.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Which database is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Postgres,
    MariaDb,
}

/// When, at a statement, the world stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Moment {
    /// The database has not seen it, and never will.
    Before,
    /// It is on its way, and arrives when whoever sent it is gone.
    Late,
    /// The database has done it; the service has not been told.
    Unanswered,
    /// The service was told.
    Answered,
}

/// One statement of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Step {
    /// Without its arguments.
    pub(crate) statement: String,
    /// How many of the same text were before it.
    pub(crate) before: usize,
}

/// What a client sent: one statement, or something else that is passed on as it is.
struct Asked {
    bytes: Vec<u8>,
    statement: Option<String>,
    /// Whether the other side's answer to it has an end that is told.
    answered: bool,
}

/// What a server sent, up to the end of an answer or to where it was cut.
struct Answered {
    bytes: Vec<u8>,
    ends: bool,
}

/// The two directions of one connection. An error is a message that is not understood: passing it on unseen would let
/// statements by uncounted.
trait Talk: Send {
    fn asked(&mut self, bytes: &[u8]) -> Result<Vec<Asked>>;
    fn answered(&mut self, bytes: &[u8]) -> Result<Vec<Answered>>;
}

/// The relay; it stops listening with this value.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    gone: Arc<AtomicBool>,
}

struct Shared {
    speaks: Speaks,
    server: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Statements ever, counted or not.
    sent: u64,
    counting: bool,
    seen: HashMap<String, usize>,
    steps: Vec<Step>,
    target: Option<(Step, Moment)>,
    stand: Stand,
    /// Connections from before a kill carry nothing any more.
    generation: u64,
    deliver: bool,
    open: Vec<Known>,
    last_id: u64,
    fault: Option<String>,
}

/// A connection that is being carried.
struct Known {
    id: u64,
    generation: u64,
    client: TcpStream,
    server: TcpStream,
}

/// Whether the world stands still.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
enum Stand {
    #[default]
    Goes,
    /// The point is found, and nothing behind it is passed on; the last of what is before it is under way.
    Stopping,
    Stands,
}

impl Relay {
    /// In front of the server at `server` (`host:port`).
    ///
    /// # Errors
    /// No port is free.
    pub(crate) fn start(speaks: Speaks, server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("a port for the relay")?;
        let address = listener.local_addr()?;
        let (gone, state, changed) = (Arc::new(AtomicBool::new(false)), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { speaks, server, state, changed });
        let (told, accepting) = (Arc::clone(&gone), Arc::clone(&shared));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if told.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                thread::spawn(move || shared.carry(client));
            }
        });
        Ok(Self { address, shared, gone })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts statements from now on.
    pub(crate) fn count(&self) {
        self.begin(None);
    }

    /// Waits until nothing has been sent for so long: a service that has just come up does things by itself.
    pub(crate) fn quiet_for(&self, so_long: Duration) {
        let mut state = self.shared.lock();
        loop {
            let before = state.sent;
            let (woken, timeout) =
                self.shared.changed.wait_timeout(state, so_long).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() && state.sent == before {
                return;
            }
        }
    }

    /// The statements since [`Relay::count`].
    ///
    /// # Errors
    /// Something was not understood.
    pub(crate) fn counted(&self) -> Result<Vec<Step>> {
        let mut state = self.shared.lock();
        state.counting = false;
        match &state.fault {
            Some(fault) => Err(anyhow::anyhow!("the relay lost track: {fault}")),
            None => Ok(state.steps.clone()),
        }
    }

    /// Counts from now on, and stands still at this point.
    pub(crate) fn stop_at(&self, step: &Step, moment: Moment) {
        self.begin(Some((step.clone(), moment)));
    }

    /// Waits until it stands still; `false`: `over` came first.
    ///
    /// # Errors
    /// Something was not understood.
    pub(crate) fn wait(&self, over: impl Fn() -> bool) -> Result<bool> {
        const LOOK: Duration = Duration::from_millis(5);
        let mut state = self.shared.lock();
        loop {
            if let Some(fault) = &state.fault {
                anyhow::bail!("the relay lost track: {fault}");
            }
            match state.stand {
                Stand::Stands => return Ok(true),
                Stand::Goes if over() => return Ok(false),
                Stand::Stopping | Stand::Goes => {}
            }
            state = self.shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// After the kill. Every connection from before it ends, and has ended when this returns; what was held of one that a
    /// dead service sent arrives first if `deliver`.
    pub(crate) fn go_on(&self, deliver: bool) {
        let mut state = self.shared.lock();
        state.generation += 1;
        let generation = state.generation;
        state.deliver = deliver;
        state.counting = false;
        state.target = None;
        state.stand = Stand::Goes;
        for known in &state.open {
            let _ = known.client.shutdown(Shutdown::Both);
            if !deliver {
                let _ = known.server.shutdown(Shutdown::Both);
            }
        }
        self.shared.changed.notify_all();
        let until = Instant::now() + DRAIN_LIMIT;
        while state.open.iter().any(|known| known.generation < generation) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn begin(&self, target: Option<(Step, Moment)>) {
        let mut state = self.shared.lock();
        state.counting = true;
        state.seen.clear();
        state.steps.clear();
        state.target = target;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        self.go_on(false);
        // So that the thread which accepts looks once more.
        let _ = TcpStream::connect(self.address);
    }
}

/// What becomes of something that a client sent.
enum Gate {
    /// It is passed on; its answer is treated so.
    Pass(Ticket),
    /// The world stood still before it, and the connection is over.
    Drop,
}

/// What becomes of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ticket {
    Plain,
    /// Withheld; then the world stands still.
    Withhold,
    /// Passed on; then the world stands still.
    Stand,
}

/// One connection, as its two threads see it.
struct Connection {
    generation: u64,
    talk: Mutex<Box<dyn Talk>>,
    /// What the answers to come are for.
    awaited: Mutex<VecDeque<Ticket>>,
}

impl Connection {
    fn awaited(&self) -> MutexGuard<'_, VecDeque<Ticket>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn talk(&self) -> MutexGuard<'_, Box<dyn Talk>> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry(self: Arc<Self>, client: TcpStream) {
        // A server that is down refuses; so does the relay, by closing.
        let Ok(server) = TcpStream::connect(&self.server) else { return };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (Ok(client_back), Ok(server_back)) = (client.try_clone(), server.try_clone()) else { return };
        let (Ok(client_known), Ok(server_known)) = (client.try_clone(), server.try_clone()) else { return };
        let (id, generation) = {
            let mut state = self.lock();
            state.last_id += 1;
            let (id, generation) = (state.last_id, state.generation);
            state.open.push(Known { id, generation, client: client_known, server: server_known });
            (id, generation)
        };
        let talk: Box<dyn Talk> = match self.speaks {
            Speaks::Postgres => Box::<postgres::Postgres>::default(),
            Speaks::MariaDb => Box::<mariadb::MariaDb>::default(),
        };
        let connection =
            Arc::new(Connection { generation, talk: Mutex::new(talk), awaited: Mutex::default() });
        let (shared, other) = (Arc::clone(&self), Arc::clone(&connection));
        let back = thread::spawn(move || {
            let ended = shared.back(&other, server_back, &client_back);
            shared.note(ended);
            let _ = client_back.shutdown(Shutdown::Both);
        });
        let ended = self.forth(&connection, client, &server);
        self.note(ended);
        // What was delivered late is heard to its end by the server: closing with its answer unread would reset the
        // connection and could take the statement back from it.
        let _ = server.shutdown(Shutdown::Write);
        let _ = back.join();
        let _ = server.shutdown(Shutdown::Both);
        self.lock().open.retain(|known| known.id != id);
        self.changed.notify_all();
    }

    fn note(&self, ended: Result<()>) {
        if let Err(error) = ended {
            self.lock().fault.get_or_insert_with(|| format!("{error:#}"));
            self.changed.notify_all();
        }
    }

    /// From the client to the server.
    fn forth(&self, connection: &Connection, mut client: TcpStream, mut server: &TcpStream) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Ok(length @ 1..) = client.read(&mut chunk) {
            let asked = connection.talk().asked(&chunk[..length])?;
            for one in asked {
                let ticket = match one.statement {
                    Some(statement) => match self.gate(connection, statement) {
                        Gate::Pass(ticket) => ticket,
                        Gate::Drop => return Ok(()),
                    },
                    None => Ticket::Plain,
                };
                if one.answered {
                    connection.awaited().push_back(ticket);
                }
                if server.write_all(&one.bytes).is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// From the server to the client.
    fn back(&self, connection: &Connection, mut server: TcpStream, mut client: &TcpStream) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut heard = true;
        while let Ok(length @ 1..) = server.read(&mut chunk) {
            let pieces = connection.talk().answered(&chunk[..length])?;
            for piece in pieces {
                let ticket = connection.awaited().front().copied().unwrap_or(Ticket::Plain);
                // A client that is gone does not keep the server from being heard to its end.
                heard = heard && ticket != Ticket::Withhold && client.write_all(&piece.bytes).is_ok();
                if piece.ends {
                    connection.awaited().pop_front();
                    self.ended(ticket);
                }
            }
        }
        Ok(())
    }

    /// An answer has ended. Told under the lock, so that nobody looks just before it and waits just after it.
    fn ended(&self, ticket: Ticket) {
        let mut state = self.lock();
        if ticket != Ticket::Plain && state.stand == Stand::Stopping {
            state.stand = Stand::Stands;
        }
        self.changed.notify_all();
    }

    /// Counts a statement, and waits where the world stands still.
    fn gate(&self, connection: &Connection, statement: String) -> Gate {
        let mut state = self.lock();
        state.sent += 1;
        loop {
            if state.generation != connection.generation {
                return if state.deliver { Gate::Pass(Ticket::Plain) } else { Gate::Drop };
            }
            if state.stand == Stand::Goes {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.counting {
            return Gate::Pass(Ticket::Plain);
        }
        let seen = state.seen.entry(statement.clone()).or_default();
        let step = Step { statement, before: *seen };
        *seen += 1;
        state.steps.push(step.clone());
        let moment = match &state.target {
            Some((wanted, moment)) if *wanted == step => *moment,
            _ => return Gate::Pass(Ticket::Plain),
        };
        state.stand = Stand::Stopping;
        match moment {
            Moment::Unanswered => return Gate::Pass(Ticket::Withhold),
            Moment::Answered => return Gate::Pass(Ticket::Stand),
            Moment::Before | Moment::Late => {}
        }
        // What was sent in front of it, in the same pipeline perhaps, is done first.
        let until = Instant::now() + DRAIN_LIMIT;
        while !connection.awaited().is_empty() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.stand = Stand::Stands;
        self.changed.notify_all();
        while state.generation == connection.generation {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.deliver { Gate::Pass(Ticket::Plain) } else { Gate::Drop }
    }
}

/// A statement without its arguments: quoted texts and numbers become `?`, spaces one space.
fn normal(text: &str) -> String {
    let mut normal = String::with_capacity(text.len());
    let mut rest = text.trim().chars().peekable();
    while let Some(next) = rest.next() {
        let in_word = normal.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_');
        match next {
            '\'' => {
                while rest.next_if(|inside| *inside != '\'').is_some() {}
                rest.next();
                normal.push('?');
            }
            digit if digit.is_ascii_digit() && !in_word => {
                while rest.next_if(|more| more.is_ascii_alphanumeric()).is_some() {}
                // A sign belongs to the number, a minus behind an operand does not.
                if normal.ends_with("(-") || normal.ends_with(" -") || normal.ends_with(",-") {
                    normal.pop();
                }
                normal.push('?');
            }
            space if space.is_whitespace() => {
                if !normal.ends_with(' ') {
                    normal.push(' ');
                }
            }
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_recognised_whatever_its_arguments_are() {
        let of = |key: &str, at: i32| {
            normal(&format!("INSERT INTO key1\n  VALUES ('\\x{key}'::bytea, x'{key}', ({at})::bigint);"))
        };
        assert_eq!(of("00ff", 17), of("a1b2", -4000));
        assert_eq!(of("00", 1), "INSERT INTO key1 VALUES (?::bytea, x?, (?)::bigint);");
        assert_ne!(normal("SELECT a FROM t"), normal("SELECT b FROM t"));
        assert_eq!(normal("BEGIN"), "BEGIN");
        assert_eq!(normal("SELECT 'it''s'"), normal("SELECT 'a''b'"));
    }
}
