//! A model of the whole protocol, searched breadth first.
//!
//! Three clients send one keyed request of several steps, two workers complete and reap, a clock ticks, calls are on their
//! way, and anything may crash, sleep or lose an answer. The actors are written here; **what they decide is decided by the
//! real functions** (`decide`, `judge`, `next`, `asked`, `failed`, `upkeep`, `Expect::allows`, `Claim`). So a fault of the
//! protocol, or of its code, is found as the shortest story that leads to it.
//!
//! *Always* properties hold in every world ([`ALWAYS`]); *sometimes* properties are worlds that must be reached
//! ([`SOMETIMES`]): a model in which nothing happens keeps every promise. [`Mutant`]s are protocols that are wrong in one
//! place; a search that does not find a story against each of them would prove nothing.
//!
//! ```
//! use retrysafe_sim::model::{Mutant, search};
//!
//! let mutant = Mutant::FenceAlone;
//! let found = search(mutant.provider(), Some(mutant), mutant.bounds());
//! println!("{}", found.violation.expect("a fence is not enough to guard a takeover"));
//! ```
//!
//! # Limits
//! - One key, one plan of three steps, times in whole ticks. A call is on its way for at most the provider's margin, and the
//!   pause between the last look at an intent's age and the call is shorter than that margin.
//! - A commit whose answer is lost is a crash right after it.

mod act;
mod hold;
mod story;
mod world;

use std::{
    collections::HashSet,
    fmt,
    hash::{BuildHasher, RandomState},
    time::{Duration, Instant},
};

use act::{Setting, successors};
use world::{Actor, Book, Ev, St, World};

pub use story::Step;
pub use world::Provider;

/// A protocol that is wrong in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A takeover is guarded by the fence alone.
    FenceAlone,
    /// A takeover looks at the age of the claim alone.
    AgeOnly,
    /// The intent is written after the call.
    IntentAfterTheCall,
    /// A takeover obeys the class that today's contract has.
    TodaysContract,
    /// A provider that knows of no call is taken for one that will get none.
    AbsenceIsFailure,
    /// The replay window begins with the claim.
    WindowFromTheClaim,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 6] = [
        Mutant::FenceAlone,
        Mutant::AgeOnly,
        Mutant::IntentAfterTheCall,
        Mutant::TodaysContract,
        Mutant::AbsenceIsFailure,
        Mutant::WindowFromTheClaim,
    ];

    /// What is wrong.
    pub fn name(self) -> &'static str {
        match self {
            Mutant::FenceAlone => "guard by fence alone",
            Mutant::AgeOnly => "age-only takeover",
            Mutant::IntentAfterTheCall => "recovery point after the call",
            Mutant::TodaysContract => "takeover by today's contract",
            Mutant::AbsenceIsFailure => "absence taken as failure",
            Mutant::WindowFromTheClaim => "window from the claim",
        }
    }

    /// The provider that this mutant does harm with.
    pub fn provider(self) -> Provider {
        match self {
            Mutant::AbsenceIsFailure => Provider::Asked,
            _ => Provider::Plain,
        }
    }

    /// Bounds within which its shortest story lies: no crashes, and fewer actors than the full search has. A story of those is
    /// one of the full model too.
    pub fn bounds(self) -> Bounds {
        let workers = match self {
            Mutant::TodaysContract | Mutant::WindowFromTheClaim => 0,
            _ => 1,
        };
        Bounds { depth: 30, worlds: 20_000_000, clients: 2, workers, sends: 1, faults: 0 }
    }

    /// Whether it needs a contract that changes while a request is in flight.
    fn deploys(self) -> bool {
        self == Mutant::TodaysContract
    }
}

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The most steps of a story.
    pub depth: u32,
    /// The most worlds. A search that reaches it was not exhaustive.
    pub worlds: usize,
    /// Clients, up to 3.
    pub clients: usize,
    /// Workers, up to 2.
    pub workers: usize,
    /// How often each client sends.
    pub sends: u8,
    /// Crashes, lost answers and failed connections, in all.
    pub faults: u8,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { depth: 14, worlds: 20_000_000, clients: 3, workers: 2, sends: 2, faults: 2 }
    }
}

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// Different worlds that were reached.
    pub worlds: usize,
    /// The depth up to which all of them were.
    pub depth: u32,
    /// How long it took.
    pub took: Duration,
    /// The first world that breaks a promise, by the shortest story.
    pub violation: Option<Story>,
    /// Of [`SOMETIMES`]: how many worlds each was seen in.
    pub sometimes: Vec<(&'static str, usize)>,
}

/// How a promise was broken.
#[derive(Clone, Debug)]
pub struct Story {
    /// Which.
    pub broken: &'static str,
    /// What happened, in its order.
    pub steps: Vec<Step>,
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken: {}", self.broken)?;
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "  {number:>2}. {step}")?;
        }
        Ok(())
    }
}

/// A property of a world.
type Property = (&'static str, fn(&World, &mut Book) -> bool);

/// What is never broken.
const ALWAYS: [Property; 7] = [
    ("a request is charged at most once until its window is over", |world, _| world.epoch.charges <= 1),
    ("local work is committed at most once until its window is over", |world, _| {
        world.epoch.creates <= 1 && world.epoch.finishes <= 1
    }),
    ("every caller is shown the one receipt of a charge that happened", |world, _| !world.epoch.invented),
    ("what is completed was charged", |world, _| world.epoch.done_at.is_none() || world.epoch.charges > 0),
    ("nothing that is in flight or uncertain is reaped", |world, _| !world.epoch.reaped_alive),
    ("nobody begins to charge a caller who was told that it failed", |world, _| !world.epoch.late_charge),
    ("every journal can be read", |world, book| !book.is_broken(&world.journal)),
];

/// What has to be reached, or the model proves nothing.
const SOMETIMES: [Property; 9] = [
    ("completed", |world, _| matches!(record(world), Some(St::Completed { .. }))),
    ("uncertain", |world, _| matches!(record(world), Some(St::Uncertain))),
    ("charged and not yet written down", |world, _| {
        world.epoch.charges == 1 && !has(world, |event| matches!(event, Ev::Result { .. }))
    }),
    ("a completer went on past a charge", |world, _| {
        has(world, |event| event == Ev::Completer) && has(world, |event| matches!(event, Ev::Result { .. }))
    }),
    ("a retry went on past a charge", |world, _| {
        has(world, |event| event == Ev::Retried) && has(world, |event| matches!(event, Ev::Result { .. }))
    }),
    ("completed after a completer went on", |world, _| {
        has(world, |event| event == Ev::Completer) && matches!(record(world), Some(St::Completed { .. }))
    }),
    ("two actors believe that they hold the claim", |world, _| {
        world.actors.iter().filter(|actor| matches!(actor, Actor::Holds { .. })).count() > 1
    }),
    ("two callers were answered", |world, _| world.epoch.shown.is_some() && world.epoch.finishes == 1),
    ("a second operation began", |world, _| world.operations > 1),
];

fn record(world: &World) -> Option<St> {
    world.record.map(|record| record.state)
}

fn has(world: &World, is: impl Fn(Ev) -> bool) -> bool {
    world.journal.events().any(|(_, event)| is(event))
}

/// Searches everything that can happen with `provider`, and with `mutant` in place of the protocol, breadth first.
pub fn search(provider: Provider, mutant: Option<Mutant>, bounds: Bounds) -> Found {
    let began = Instant::now();
    let deploys = mutant.is_some_and(Mutant::deploys);
    let Bounds { sends, workers, .. } = bounds;
    let setting = Setting { provider, mutant, deploys, sends, workers };
    let mut book = Book::new(provider);
    let first = World::new(bounds.clients, sends, bounds.faults, !deploys);
    let mut search = Search::new(first);
    let mut depth = 0;
    let mut violation = None;
    let mut layer = vec![(0, first)];
    let (mut next_layer, mut follow) = (Vec::new(), Vec::new());
    'search: while depth < bounds.depth && !layer.is_empty() && search.from.len() < bounds.worlds {
        for (at, world) in layer.drain(..) {
            successors(&world, &setting, &mut book, &mut follow);
            for (step, world) in follow.drain(..) {
                let Some(new) = search.add(&world, at, step) else { continue };
                search.see(&world, &mut book);
                if let Some((broken, _)) = ALWAYS.iter().find(|(_, holds)| !holds(&world, &mut book)) {
                    violation = Some(search.story(broken, new));
                    break 'search;
                }
                next_layer.push((new, world));
            }
        }
        depth += 1;
        std::mem::swap(&mut layer, &mut next_layer);
    }
    Found {
        worlds: search.from.len(),
        depth,
        took: began.elapsed(),
        violation,
        sometimes: SOMETIMES.iter().map(|(name, _)| *name).zip(search.seen).collect(),
    }
}

/// The worlds that were reached, by a hash of 128 bits, each with where it came from.
struct Search {
    from: Vec<(u32, Step)>,
    known: HashSet<u128>,
    hashers: [RandomState; 2],
    seen: Vec<usize>,
}

impl Search {
    fn new(first: World) -> Self {
        let mut search = Self {
            from: Vec::new(),
            known: HashSet::new(),
            hashers: [RandomState::new(), RandomState::new()],
            seen: vec![0; SOMETIMES.len()],
        };
        search.add(&first, 0, Step::Tick);
        search
    }

    /// Adds a world that was not reached before. `None`: it was.
    fn add(&mut self, world: &World, from: u32, step: Step) -> Option<u32> {
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(world)));
        if !self.known.insert(high << 64 | low) {
            return None;
        }
        self.from.push((from, step));
        u32::try_from(self.from.len() - 1).ok()
    }

    fn see(&mut self, world: &World, book: &mut Book) {
        for ((_, holds), count) in SOMETIMES.iter().zip(&mut self.seen) {
            *count += usize::from(holds(world, book));
        }
    }

    fn story(&self, broken: &'static str, mut at: u32) -> Story {
        let mut steps = Vec::new();
        while let Some((from, step)) = self.from.get(at as usize).filter(|_| at != 0) {
            steps.push(*step);
            at = *from;
        }
        steps.reverse();
        Story { broken, steps }
    }
}
