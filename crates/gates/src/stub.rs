//! The service that an API calls, played by the gate.
//!
//! An effect outside is where duplicates hurt, and the base address of a payment or mail provider is configurable almost
//! everywhere. So this is observer and lever at once: it writes down each call with the key that it carried, and it can keep
//! the first one waiting until every other request of a race was told something. A claim that is made after the effect,
//! and a lock that ends before the handler does, then show every time and not in one round of five.

mod request;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::request::next;
use crate::plan::StubPlan;

/// Calls that may be open at one time.
const OPEN_MAX: usize = 512;
const READ_LIMIT: Duration = Duration::from_secs(30);
/// Calls that are kept; a run is bounded far below.
const CALLS_MAX: usize = 1_000_000;

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// When it was complete, since the origin of the gate.
    pub at: Duration,
    /// When its answer left.
    pub answered: Option<Duration>,
    /// Path, header lines and body, to be searched.
    pub text: String,
    /// The key it carried.
    pub key: Option<String>,
}

/// What is done to the API when it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lever {
    /// When the call is there, before it is answered.
    OnReceipt,
    /// When the answer's bytes are sent.
    AfterAnswer,
    /// Nothing is done to the process: the call is written down, and its connection is cut without an answer.
    Cut,
}

/// What a lever does to the process.
pub type Act = Box<dyn FnOnce() + Send>;

struct Armed {
    nonce: String,
    lever: Lever,
    act: Act,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// The next call with this in it sets the lever off.
    armed: Option<Armed>,
    /// A call with this in it waits, if it is the first one.
    holding: Option<Hold>,
}

struct Hold {
    nonce: String,
    until: Instant,
    seen: usize,
    released: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    origin: Instant,
    plan: StubPlan,
    open: AtomicUsize,
    stopped: AtomicBool,
}

/// The running stub; it ends with this value.
pub struct Stub {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl std::fmt::Debug for Stub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stub").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Stub {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn start(plan: &StubPlan, origin: Instant) -> std::io::Result<Self> {
        let listener = TcpListener::bind(&plan.listen)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            origin,
            plan: plan.clone(),
            open: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::Builder::new()
            .name("gate-stub".to_owned())
            .spawn(move || accept(&listener, &accepting))?;
        Ok(Self { shared, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the first call with this in it waits, until [`Stub::release`] or for the longest time of the plan.
    pub fn hold(&self, nonce: &str) {
        let until = Instant::now() + self.shared.plan.hold_at_most;
        let hold = Hold { nonce: nonce.to_owned(), until, seen: 0, released: false };
        self.shared.lock().holding = Some(hold);
    }

    /// How many calls have come since [`Stub::hold`] that it is about, the held one included.
    #[must_use]
    pub fn seen_while_holding(&self) -> usize {
        self.shared.lock().holding.as_ref().map_or(0, |hold| hold.seen)
    }

    /// The next call with this in it sets a lever off.
    pub fn arm(&self, nonce: &str, lever: Lever, act: Act) {
        self.shared.lock().armed = Some(Armed { nonce: nonce.to_owned(), lever, act });
    }

    /// Takes the lever back; whether it was not set off.
    pub fn disarm(&self) -> bool {
        self.shared.lock().armed.take().is_some()
    }

    /// Lets the held call go.
    pub fn release(&self) {
        if let Some(hold) = &mut self.shared.lock().holding {
            hold.released = true;
        }
        self.shared.changed.notify_all();
    }

    /// The calls with this in them; all of them if it is empty.
    #[must_use]
    pub fn calls(&self, containing: &str) -> Vec<Call> {
        self.shared.lock().calls.iter().filter(|call| call.text.contains(containing)).cloned().collect()
    }

    /// Calls by the key that they carried, of those with this in them. Calls without a key count one by one.
    #[must_use]
    pub fn by_key(&self, containing: &str) -> BTreeMap<Option<String>, usize> {
        let mut counts = BTreeMap::new();
        for call in self.calls(containing) {
            *counts.entry(call.key).or_default() += 1;
        }
        counts
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.release();
        // Wakes the thread that accepts; if it cannot be reached it has ended.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a call down, waits if it is the one that is held, and says when it may be answered.
    fn received(&self, call: Call) -> usize {
        let mut state = self.lock();
        let place = state.calls.len();
        let about = state.holding.as_ref().is_some_and(|hold| call.text.contains(&hold.nonce));
        if place < CALLS_MAX {
            state.calls.push(call);
        }
        if !about {
            return place;
        }
        let mut first = false;
        if let Some(hold) = &mut state.holding {
            hold.seen += 1;
            first = hold.seen == 1;
        }
        self.changed.notify_all();
        // The hold is for one call: a second one is a finding, and is let through to become visible.
        while first && !self.stopped.load(Ordering::SeqCst) {
            let Some(hold) = &state.holding else { break };
            let left = hold.until.saturating_duration_since(Instant::now());
            if hold.released || left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        place
    }

    /// The lever, if this call sets it off.
    fn set_off(&self, text: &str) -> Option<Armed> {
        let mut state = self.lock();
        state
            .armed
            .as_ref()
            .is_some_and(|armed| text.contains(&armed.nonce))
            .then(|| state.armed.take())
            .flatten()
    }

    fn answered(&self, place: usize) {
        let now = self.origin.elapsed();
        if let Some(call) = self.lock().calls.get_mut(place) {
            call.answered = Some(now);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if shared.open.fetch_add(1, Ordering::SeqCst) >= OPEN_MAX {
            shared.open.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let serving = shared.clone();
        let spawned = std::thread::Builder::new().name("gate-call".to_owned()).spawn(move || {
            // A caller that goes away in the middle is a fact about the caller: what it sent is written down.
            let _ = serve(stream, &serving);
            serving.open.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            shared.open.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The calls of one connection, one after the other.
fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READ_LIMIT))?;
    let mut came = Vec::new();
    loop {
        let Some((mut call, length, goes_on)) = next(&mut stream, &mut came, &shared.plan.key_header)? else {
            return Ok(());
        };
        came.drain(..length);
        call.at = shared.origin.elapsed();
        let lever = shared.set_off(&call.text);
        let place = shared.received(call);
        let lever = match lever {
            Some(Armed { lever: Lever::OnReceipt, act, .. }) => {
                act();
                None
            }
            Some(Armed { lever: Lever::Cut, act, .. }) => {
                act();
                return Ok(());
            }
            other => other,
        };
        let plan = &shared.plan;
        let answer = format!(
            "HTTP/1.1 {} Stub\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
            plan.status,
            plan.body.len(),
            plan.body
        );
        stream.write_all(answer.as_bytes())?;
        if let Some(Armed { act, .. }) = lever {
            act();
        }
        shared.answered(place);
        if !goes_on {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn plan() -> StubPlan {
        StubPlan {
            listen: "127.0.0.1:0".into(),
            status: 200,
            body: "{}".into(),
            key_header: "idempotency-key".into(),
            hold: true,
            hold_at_most: Duration::from_secs(20),
        }
    }

    fn call(to: SocketAddr, body: &str, key: &str) -> String {
        let mut stream = TcpStream::connect(to).expect("the stub listens");
        let length = body.len();
        let request = format!(
            "POST /charge HTTP/1.1\r\nidempotency-key: {key}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    }

    #[test]
    fn calls_are_written_down_with_their_keys() {
        let stub = Stub::start(&plan(), Instant::now()).expect("a port");
        for key in ["k1", "k1", "k2"] {
            assert!(call(stub.address(), "nonce-a", key).starts_with("HTTP/1.1 200"));
        }
        call(stub.address(), "nonce-b", "k3");
        assert_eq!(stub.calls("nonce-a").len(), 3);
        assert_eq!(stub.by_key("nonce-a").get(&Some("k1".to_owned())), Some(&2));
        assert!(stub.calls("nonce-a").iter().all(|call| call.answered >= Some(call.at)));
        assert_eq!(stub.calls("").len(), 4);
    }

    #[test]
    fn the_first_call_is_held_and_a_second_one_is_not() {
        let stub = Stub::start(&plan(), Instant::now()).expect("a port");
        stub.hold("n1");
        let address = stub.address();
        let held = std::thread::spawn(move || call(address, "n1", "k"));
        while stub.seen_while_holding() == 0 {
            std::thread::yield_now();
        }
        assert!(call(address, "n2", "k").starts_with("HTTP/1.1 200"), "it is about another operation");
        assert!(call(address, "n1", "k").starts_with("HTTP/1.1 200"), "a second effect becomes visible");
        assert_eq!(stub.seen_while_holding(), 2);
        assert!(stub.calls("n1").iter().any(|call| call.answered.is_none()), "the first one still waits");
        stub.release();
        assert!(held.join().expect("answered").starts_with("HTTP/1.1 200"));
    }
}
