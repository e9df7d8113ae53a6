//! Everything that is there, the line of what will happen, and the promises.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    fmt,
};

use retrysafe_core::{
    claim::Claim,
    ids::StatusId,
    record::{Expect, Record, RecoveryClass, RemoveIf, State, Write},
    recovery::{Attended, Event, External, Found, Intent, Progress, Terms},
    time::Wall,
};

use super::{
    CLIENTS, Clocks, Counts, END_MS, KEYS, PATIENCE, PEOPLE_AT_MS, PROVIDER_MARGIN, PROVIDER_WINDOW,
    QUIET_AT_MS, Run, SERVERS, SKEW_MS, WALL_SKEW_MS, WINDOW,
    chance::Chance,
    plan::{CHARGE, Plan},
    provider,
    store::{Commit, Op, Row, Said, Store},
};
use crate::model::{Mutant, Provider};

/// What is going to happen.
#[derive(Clone, Debug)]
pub(super) enum Happens {
    /// A client sends, or sends again.
    Sends {
        client: usize,
    },
    Arrives {
        client: usize,
        request: u32,
        server: usize,
    },
    Told {
        client: usize,
        request: u32,
        told: Told,
    },
    /// A client has waited long enough.
    GivesUp {
        client: usize,
        request: u32,
    },
    OpArrives {
        task: u32,
        ticket: u32,
        key: usize,
        op: Op,
    },
    OpSaid {
        task: u32,
        ticket: u32,
        said: Option<Said>,
    },
    CallArrives {
        task: u32,
        ticket: u32,
        call: Called,
    },
    CallSaid {
        task: u32,
        ticket: u32,
        receipt: Option<u32>,
    },
    AskArrives {
        task: u32,
        ticket: u32,
        call: Called,
    },
    AskSaid {
        task: u32,
        ticket: u32,
        found: Found,
    },
    Renews {
        task: u32,
    },
    RenewalArrives {
        task: u32,
        key: usize,
        write: Box<Write>,
    },
    Passes {
        server: usize,
    },
    Crashes {
        server: usize,
    },
    Pauses {
        server: usize,
    },
    Deploys,
    Quiet,
    PersonLooks,
}

/// A foreign call, as its provider knows it: of which operation, and which step.
pub(super) type Called = (StatusId, usize);

/// What a caller is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Receipt(u32),
    InFlight,
    Unknown,
}

/// A process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    pub(super) up: bool,
    pub(super) paused_until: u64,
    /// What its own wall clock tells besides the truth.
    pub(super) wall_ms: i64,
    /// What it adds to that, since it heard what the store's clock said then.
    pub(super) offset_ms: i64,
}

/// Somebody who wants something done, and asks until it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) key: usize,
    pub(super) sends_left: u32,
    pub(super) request: u32,
    /// Shown a receipt since it is quiet.
    pub(super) satisfied: bool,
}

/// An attempt at something, in one process.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) server: usize,
    pub(super) key: usize,
    /// Who is told.
    pub(super) caller: Option<(usize, u32)>,
    pub(super) ticket: u32,
    pub(super) rounds: u32,
    pub(super) at: At,
    pub(super) held: Option<Held>,
}

/// A claim in somebody's hands.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) operation: StatusId,
    pub(super) progress: Option<Progress>,
    pub(super) lost: bool,
}

/// What a task waits for.
#[derive(Clone, Debug)]
pub(super) enum At {
    Claiming(Box<Commit>),
    Marking(Box<Commit>),
    TakingOver(Box<Commit>, bool),
    /// Has taken over to free a key, and looks at the journal once more.
    Closing,
    Freeing(RemoveIf),
    Reaping(RemoveIf),
    Reading,
    Committing(Box<Commit>, Then),
    Calling(usize),
    Asking(Box<Intent>, usize),
}

/// What follows a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    GoOn,
    Call(usize),
    Tell(Told),
}

/// What a key stands for since it was last free: what the promise is about.
#[derive(Clone, Default, Debug)]
pub(super) struct Epoch {
    pub(super) operations: Vec<StatusId>,
    /// Of each call, with its step.
    pub(super) receipts: Vec<(usize, u32)>,
    pub(super) creates: u32,
    pub(super) enters: u32,
    pub(super) finishes: u32,
    pub(super) done_at: Option<u64>,
    /// Freed by somebody who knows that nothing happened.
    pub(super) freed: bool,
    pub(super) shown: Option<u32>,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) mutant: Option<Mutant>,
    pub(super) provider: Provider,
    pub(super) external: External,
    pub(super) plan: Plan,
    clocks: Clocks,
    pub(super) terms: Terms,
    pub(super) chance: Chance,
    /// Chance of its own, so that wall clocks change nothing else of what a seed draws.
    walls: Chance,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    due: BTreeMap<u64, Happens>,
    numbers: u64,
    pub(super) store: Store,
    pub(super) charged: BTreeMap<Called, Vec<(u64, u32)>>,
    pub(super) receipts: u32,
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Client>,
    pub(super) tasks: BTreeMap<u32, Task>,
    pub(super) tasks_made: u32,
    /// The last of each is the present one.
    pub(super) epochs: Vec<Vec<Epoch>>,
    pub(super) deployed: bool,
    pub(super) quiet: bool,
    pub(super) counts: Counts,
    broken: Option<&'static str>,
    digest: u64,
    events: u64,
    told: Option<Vec<String>>,
}

/// What a right clock says at the beginning.
const EPOCH_MS: i64 = 1_000_000;

/// Makes another stream of a seed.
const WALLS: u64 = 0x7761_6c6c_7761_6c6c;

impl World {
    pub(super) fn new(seed: u64, mutant: Option<Mutant>, clocks: Clocks, tells: bool) -> Self {
        let provider = provider(seed, mutant);
        let external = match provider {
            Provider::Asked => External::ASK,
            Provider::Deduplicates => External::resend(PROVIDER_WINDOW, PROVIDER_MARGIN),
            Provider::Plain => External::NEVER_AGAIN,
        };
        let mut world = Self {
            seed,
            mutant,
            provider,
            external,
            plan: Plan::of(seed, external),
            clocks,
            terms: Terms {
                tries_max: 6,
                pause_first: std::time::Duration::from_millis(200),
                pause_longest: std::time::Duration::from_millis(1_000),
                patience: PATIENCE,
                keep: std::time::Duration::from_millis(12_000),
            },
            chance: Chance::of(seed),
            walls: Chance::of(seed ^ WALLS),
            now: 0,
            queue: BinaryHeap::new(),
            due: BTreeMap::new(),
            numbers: 0,
            store: Store::new(KEYS, mutant),
            charged: BTreeMap::new(),
            receipts: 0,
            servers: Vec::new(),
            clients: Vec::new(),
            tasks: BTreeMap::new(),
            tasks_made: 0,
            epochs: vec![vec![Epoch::default()]; KEYS],
            deployed: true,
            quiet: false,
            counts: Counts::default(),
            broken: None,
            digest: seed,
            events: 0,
            told: tells.then(Vec::new),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for server in 0..SERVERS {
            self.servers.push(Server { up: true, paused_until: 0, wall_ms: 0, offset_ms: 0 });
            let off_ms = self.off_by();
            self.hears_the_time(server, off_ms);
            let first = self.chance.between(100, 900);
            self.at(first, Happens::Passes { server });
            let crash = self.chance.between(1_000, 12_000);
            self.at(crash, Happens::Crashes { server });
            let pause = self.chance.between(500, 8_000);
            self.at(pause, Happens::Pauses { server });
        }
        for client in 0..CLIENTS {
            let key = client % KEYS;
            self.clients.push(Client { key, sends_left: 6, request: 0, satisfied: false });
            let first = self.chance.between(0, 2_000);
            self.at(first, Happens::Sends { client });
        }
        // In a third of the runs the contract changes while requests are in flight, from outside to steps.
        if self.mutant == Some(Mutant::TodaysContract) || (self.seed / 3).is_multiple_of(3) {
            self.deployed = false;
            let deploys = self.chance.between(1_000, 15_000);
            self.at(deploys, Happens::Deploys);
        }
        self.at(QUIET_AT_MS, Happens::Quiet);
        self.at(PEOPLE_AT_MS, Happens::PersonLooks);
    }

    pub(super) fn run(mut self) -> (Run, Vec<String>) {
        while let Some(Reverse((at, number))) = self.queue.pop() {
            if at > END_MS || self.broken.is_some() {
                break;
            }
            let Some(happens) = self.due.remove(&number) else { continue };
            self.now = at;
            self.events += 1;
            self.digest =
                (self.digest ^ at ^ number.rotate_left(32)).wrapping_mul(0x0100_0000_01b3).rotate_left(7);
            self.happen(happens);
        }
        if self.broken.is_none() {
            self.ends_well();
        }
        let Self { seed, broken, digest, events, counts, told, .. } = self;
        (Run { seed, broken, digest, events, counts }, told.unwrap_or_default())
    }

    /// In `after` milliseconds.
    pub(super) fn at(&mut self, after: u64, happens: Happens) {
        self.numbers += 1;
        self.queue.push(Reverse((self.now + after, self.numbers)));
        self.due.insert(self.numbers, happens);
    }

    pub(super) fn tell(&mut self, what: fmt::Arguments<'_>) {
        if let Some(told) = &mut self.told {
            told.push(format!("{:>6} ms  {what}", self.now));
        }
    }

    pub(super) fn breaks(&mut self, promise: &'static str) {
        self.tell(format_args!("BROKEN: {promise}"));
        self.broken.get_or_insert(promise);
    }

    /// What the store's clock says.
    fn truth(&self) -> i64 {
        EPOCH_MS + i64::try_from(self.now).unwrap_or(i64::MAX)
    }

    /// The time as a process tells it: the store's, counted on from what it heard.
    pub(super) fn clock(&self, server: usize) -> Wall {
        let (wall, offset) =
            self.servers.get(server).map_or((0, 0), |server| (server.wall_ms, server.offset_ms));
        let own = self.truth() + wall;
        Wall::from_unix_ms(match self.clocks {
            Clocks::OfTheStore => own + offset,
            Clocks::OfProcesses => own,
        })
    }

    /// How far off the next process is in what it hears of the store's clock.
    pub(super) fn off_by(&mut self) -> i64 {
        either_way(&mut self.chance, SKEW_MS)
    }

    /// A process begins, on whatever machine: it is told the store's time, a little off by the way it came.
    pub(super) fn hears_the_time(&mut self, server: usize, off_ms: i64) {
        let heard = self.truth() + off_ms;
        let wall_ms = either_way(&mut self.walls, WALL_SKEW_MS);
        let own = self.truth() + wall_ms;
        if let Some(state) = self.servers.get_mut(server) {
            (state.wall_ms, state.offset_ms) = (wall_ms, heard - own);
        }
    }

    /// Whether something fails that fails `per_mille` times in a thousand, while anything may.
    pub(super) fn fails(&mut self, per_mille: u64) -> bool {
        // Drawn in any case, so that the quiet phase is the same chance.
        self.chance.happens(per_mille) && !self.quiet
    }

    pub(super) fn epoch(&mut self, key: usize) -> Option<&mut Epoch> {
        self.epochs.get_mut(key).and_then(|epochs| epochs.last_mut())
    }

    /// A commit was applied, for the first time.
    pub(super) fn applied(&mut self, key: usize, commit: &Commit) {
        let Commit { write, entries, row, .. } = commit;
        let state = match &write.next.state {
            State::InFlight { lease_until } => {
                format_args!("in flight until {}", lease_until.unix_ms() - EPOCH_MS)
            }
            State::Uncertain { .. } => format_args!("uncertain"),
            State::Completed { expires_at, .. } => {
                format_args!("completed until {}", expires_at.unix_ms() - EPOCH_MS)
            }
        };
        let written: Vec<&'static str> = entries.iter().map(|entry| named(&entry.event)).collect();
        let attempt = write.next.attempt.as_u128() >> 112;
        self.tell(format_args!("key {key}, attempt {attempt:04x}: {state} {written:?}"));
        if write.opens_claim() && !matches!(write.expect, Expect::Takeover { .. } | Expect::Attempt(_)) {
            self.begins(key, write.next.status_id);
        }
        if matches!(write.expect, Expect::Takeover { .. }) && write.opens_claim() {
            self.counts.takeovers += 1;
        }
        self.counts.uncertain += u64::from(matches!(write.next.state, State::Uncertain { .. }));
        if let Some(epoch) = self.epoch(key) {
            epoch.creates += u32::from(*row == Row::Create);
            epoch.enters += u32::from(*row == Row::Enter);
            epoch.finishes += u32::from(*row == Row::Finish);
            // The window is counted from when its holder looked at the clock, which a slow commit may be long after.
            if let State::Completed { at, .. } = write.next.state {
                epoch.done_at.get_or_insert(u64::try_from(at.unix_ms() - EPOCH_MS).unwrap_or(0));
            }
        }
        self.check(key, write, *row);
        let journal = self.store.journal(write.next.status_id);
        let folded = Progress::of(journal);
        // Past its first call a request is brought to its end, whoever was told what (protocol 24).
        let late = entries.iter().any(|entry| {
            self.plan.begins_outside(&entry.event)
                && resumed_by_completer(journal)
                && folded.as_ref().is_ok_and(|progress| progress.is_late(entry.at))
        });
        if !journal.is_empty() && folded.is_err() {
            self.breaks("every journal can be read");
        }
        if late {
            self.breaks("nobody begins to charge a caller who was told that it failed");
        }
    }

    /// A key was claimed anew.
    fn begins(&mut self, key: usize, operation: StatusId) {
        self.counts.claims += 1;
        let now = self.now;
        // Clocks differ: the window is over for somebody a little earlier.
        let slack = 2 * SKEW_MS;
        let window = u64::try_from(WINDOW.as_millis()).unwrap_or(u64::MAX);
        let Some(epochs) = self.epochs.get_mut(key) else { return };
        let over = epochs.last().is_none_or(|epoch| {
            epoch.freed || epoch.done_at.is_some_and(|done| done + window <= now + slack)
        });
        let fresh = epochs.last().is_some_and(|epoch| epoch.operations.is_empty());
        if over && !fresh {
            self.counts.second_operations += 1;
            epochs.push(Epoch::default());
        }
        if let Some(epoch) = epochs.last_mut() {
            epoch.operations.push(operation);
        }
    }

    fn check(&mut self, key: usize, write: &Write, row: Row) {
        let in_steps = row == Row::Finish && write.next.recovery == RecoveryClass::Phased;
        let calls: Vec<usize> = if in_steps { self.plan.calls().collect() } else { Vec::new() };
        let Some(epoch) = self.epoch(key) else { return };
        let made = |call: &usize| epoch.receipts.iter().any(|(step, _)| step == call);
        let twice = epoch.creates > 1 || epoch.enters > 1 || epoch.finishes > 1;
        let uncharged = matches!(write.next.state, State::Completed { .. }) && !made(&CHARGE);
        let left_out = !calls.iter().all(made);
        if twice {
            self.breaks("local work is committed at most once until its window is over");
        }
        if uncharged {
            self.breaks("what is completed was charged");
        }
        if left_out {
            self.breaks("a plan that came to its end made each of its calls");
        }
    }

    /// The provider does what it is called for, or knows the call. The receipt.
    pub(super) fn charge(&mut self, call: Called) -> u32 {
        let (operation, step) = call;
        let now = self.now;
        let window = u64::try_from(PROVIDER_WINDOW.as_millis()).unwrap_or(u64::MAX);
        let known = self.charged.get(&call).and_then(|charges| charges.first()).copied();
        if let Some((first, receipt)) = known
            && self.provider == Provider::Deduplicates
            && now < first + window
        {
            return receipt;
        }
        self.receipts += 1;
        *(if step == CHARGE { &mut self.counts.charges } else { &mut self.counts.bookings }) += 1;
        let receipt = self.receipts;
        self.charged.entry(call).or_default().push((now, receipt));
        // The latest: a claim that was freed, and sent again because its answer was lost, is the same operation once more.
        let mut epochs = self.epochs.iter_mut().flat_map(|epochs| epochs.iter_mut().rev());
        let epoch = epochs.find(|epoch| epoch.operations.contains(&operation));
        let twice = epoch.is_none_or(|epoch| {
            epoch.receipts.push((step, receipt));
            epoch.receipts.iter().filter(|(of, _)| *of == step).count() > 1
        });
        self.tell(format_args!("the provider is called for step {step}: receipt {receipt}"));
        if twice {
            self.breaks("each call of a request is made at most once until its window is over");
        }
        receipt
    }

    /// A caller is about to be shown a receipt.
    pub(super) fn shows(&mut self, key: usize, receipt: u32) {
        let epochs = self.epochs.get_mut(key).into_iter().flatten();
        let epoch = epochs.into_iter().find(|epoch| epoch.receipts.contains(&(CHARGE, receipt)));
        let right = epoch.is_some_and(|epoch| *epoch.shown.get_or_insert(receipt) == receipt);
        if !right {
            self.breaks("every caller is shown the one receipt of a charge that happened");
        }
    }

    /// A record was removed.
    pub(super) fn removed(&mut self, key: usize, guard: RemoveIf, record: &Record) {
        match guard {
            RemoveIf::Reapable { .. } => {
                self.counts.reaped += 1;
                if !matches!(record.state, State::Completed { .. }) {
                    self.breaks("nothing that is in flight or uncertain is reaped");
                }
            }
            RemoveIf::Attempt(_) => {
                self.counts.freed += 1;
                if let Some(epoch) = self.epoch(key) {
                    let done = epoch.creates > 0 || !epoch.receipts.is_empty();
                    epoch.freed = true;
                    if done {
                        self.breaks("a key is freed by itself only where nothing was done");
                    }
                }
            }
        }
    }

    /// Nothing has failed for a while.
    fn ends_well(&mut self) {
        let open = (0..KEYS).filter_map(|key| self.store.record(key)).any(|record| match record.state {
            State::InFlight { .. } | State::Uncertain { .. } => true,
            State::Completed { .. } => false,
        });
        if open {
            self.breaks("in the end nothing is in flight or uncertain");
        } else if self.clients.iter().any(|client| !client.satisfied) {
            self.breaks("in the end every client was shown its receipt");
        }
    }
}

/// Up to `most` more or less than nothing.
fn either_way(chance: &mut Chance, most: u64) -> i64 {
    i64::try_from(chance.below(2 * most + 1)).unwrap_or(0) - i64::try_from(most).unwrap_or(0)
}

/// A word for an entry.
fn named(event: &Event) -> &'static str {
    match event {
        Event::Opened { .. } => "opened",
        Event::Resumed { .. } => "resumed",
        Event::Done { .. } => "done",
        Event::Intent { .. } => "intent",
        Event::Resent { .. } => "resent",
        Event::NotSent { .. } => "not sent",
        Event::Result { .. } => "result",
        Event::Failed { .. } => "failed",
        Event::Stopped(_) => "stopped",
        Event::Ended { .. } => "ended",
        Event::Operator { .. } => "operator",
    }
}

/// Whether a completer was the last who went on with it.
fn resumed_by_completer(journal: &[retrysafe_core::recovery::Entry]) -> bool {
    let last = journal.iter().rev().find_map(|entry| match entry.event {
        Event::Opened { .. } => Some(Attended::Retry),
        Event::Resumed { by } => Some(by),
        _ => None,
    });
    last == Some(Attended::Completer)
}
