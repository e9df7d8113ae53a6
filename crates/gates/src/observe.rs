//! Counting effects where they happen, and not in the answers.
//!
//! An answer says what its writer believes. So effects are counted in a table, a list, a log, a counter or a call to another
//! service, by a text that only this operation has. Effects may come late (a queue, a batch), so a count is only taken as
//! final when it was the same twice, some time apart.

mod database;
mod lines;

use std::time::{Duration, Instant};

use crate::arrive::{Lanes, Shot};
use crate::plan::{Base, HeaderLine, Observer, Source, Values};
use crate::stub::Stub;
use crate::trust::Trust;
use crate::wire::{Answer, Filled};

/// Between two reads that must be the same.
const APART: Duration = Duration::from_millis(50);
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Why an observer cannot count, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blind {
    /// The observer's name.
    pub observer: String,
    /// What happened, and what to change.
    pub what: String,
}

/// What one observer counted for a few operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The observer's name.
    pub observer: String,
    /// For all of them together.
    pub total: u64,
    /// For each that the observer tells apart.
    pub each: Option<Vec<u64>>,
}

/// The observers of a plan, at work.
#[derive(Debug)]
pub struct Observers<'a> {
    observers: &'a [Observer],
    /// For whole addresses.
    trust: &'a Trust,
    quiet: Duration,
    stub: Option<&'a Stub>,
    lanes: Lanes,
}

/// What the observers that only know totals said before.
#[derive(Clone, Debug)]
pub struct Baseline(Vec<u64>);

impl<'a> Observers<'a> {
    /// Observers that look at these bases where they name a path, and wait for `quiet` at most. A stub, if there is one, is
    /// running.
    #[must_use]
    pub fn new(
        observers: &'a [Observer],
        (bases, trust): (&[Base], &'a Trust),
        quiet: Duration,
        stub: Option<&'a Stub>,
    ) -> Self {
        Self {
            observers,
            trust,
            quiet,
            stub,
            lanes: Lanes::new(bases.to_vec(), Instant::now(), ANSWER_LIMIT),
        }
    }

    /// Whether every observer counts the effects of one operation by itself.
    #[must_use]
    pub fn all_count_one(&self) -> bool {
        self.observers.iter().all(|observer| observer.source.counts_one())
    }

    /// What totals are now, to be subtracted later.
    ///
    /// # Errors
    /// An observer cannot count.
    pub fn baseline(&mut self) -> Result<Baseline, Blind> {
        let nobody = Values::default();
        let observers = self.observers;
        let mut counts = Vec::new();
        for observer in observers {
            counts.push(if observer.source.counts_one() { 0 } else { self.count(observer, &nobody)? });
        }
        Ok(Baseline(counts))
    }

    /// What is there now.
    ///
    /// # Errors
    /// An observer cannot count.
    pub fn read(&mut self, operations: &[Values], baseline: &Baseline) -> Result<Vec<Seen>, Blind> {
        let observers = self.observers;
        let mut seen = Vec::new();
        for (observer, before) in observers.iter().zip(&baseline.0) {
            let name = observer.name.clone();
            if observer.source.counts_one() {
                // By key, two accounts are one question; by nonce, two keys of one body are.
                let mut asked: Vec<Vec<String>> = Vec::new();
                let mut each = Vec::new();
                for values in operations {
                    let question = observer.source.question(values);
                    if !asked.contains(&question) {
                        each.push(self.count(observer, values)?);
                        asked.push(question);
                    }
                }
                seen.push(Seen { observer: name, total: each.iter().sum(), each: Some(each) });
            } else {
                let nobody = Values::default();
                let now = self.count(observer, &nobody)?;
                seen.push(Seen { observer: name, total: now.saturating_sub(*before), each: None });
            }
        }
        Ok(seen)
    }

    /// What is there when nothing is added any more: two equal reads, some time apart. Returns at once when a read passes
    /// `enough`.
    ///
    /// # Errors
    /// An observer cannot count.
    pub fn settled(
        &mut self,
        operations: &[Values],
        baseline: &Baseline,
        enough: &dyn Fn(&[Seen]) -> bool,
    ) -> Result<Vec<Seen>, Blind> {
        let start = Instant::now();
        let mut last = self.read(operations, baseline)?;
        loop {
            if enough(&last) {
                return Ok(last);
            }
            std::thread::sleep(APART);
            let now = self.read(operations, baseline)?;
            if now == last || start.elapsed() > self.quiet {
                return Ok(now);
            }
            last = now;
        }
    }

    fn count(&mut self, observer: &Observer, values: &Values) -> Result<u64, Blind> {
        let counted = match &observer.source {
            Source::List { url, jsonpath, headers } => self
                .get(&url.fill(values), headers, values)
                .and_then(|answer| lines::nodes(&answer.body, &jsonpath.fill(values))),
            Source::Stub { contains } => match self.stub {
                Some(stub) => Ok(stub.calls(&contains.fill(values)).len() as u64),
                None => Err("the stub is not running".to_owned()),
            },
            Source::Sql { url, query } => database::count(&url.fill(values), &query.fill(values)),
            Source::Metric { url, series } => {
                self.get(&url.fill(values), &[], values).map(|answer| lines::metric(&answer.body, series))
            }
            Source::Log { file, contains } => lines::in_file(file, &contains.fill(values)),
            Source::Command { argv } => {
                let argv: Vec<String> = argv.iter().map(|part| part.fill(values)).collect();
                lines::printed(&argv)
            }
        };
        counted.map_err(|what| Blind { observer: observer.name.clone(), what })
    }

    /// A GET at the first base, or at a whole address.
    fn get(&mut self, url: &str, headers: &[HeaderLine], values: &Values) -> Result<Answer, String> {
        let headers: Vec<(String, String)> =
            headers.iter().map(|line| (line.name.clone(), line.value.fill(values))).collect();
        let outcome = match absolute(url, self.trust)? {
            None => self.lanes.one(Shot { base: 0, request: Filled::get(url, &headers) }).outcome,
            Some((base, path)) => {
                let mut lanes = Lanes::new(vec![base], Instant::now(), ANSWER_LIMIT);
                lanes.one(Shot { base: 0, request: Filled::get(&path, &headers) }).outcome
            }
        };
        let answer = outcome.map_err(|lost| format!("GET {url}: {}", lost.0))?;
        if answer.status != 200 {
            return Err(format!(
                "GET {url} answered {}; name an address that answers 200, with its headers",
                answer.status
            ));
        }
        Ok(answer)
    }
}

/// A whole address as a base and a path; `None` for a path.
fn absolute(url: &str, trust: &Trust) -> Result<Option<(Base, String)>, String> {
    if url.starts_with('/') {
        return Ok(None);
    }
    let mut base = crate::plan::base(Some(trust))(url).map_err(|(fault, help)| format!("{fault}; {help}"))?;
    let after = url.split_once("://").map_or(url, |(_, after)| after);
    let path = after.find('/').and_then(|at| after.get(at..)).unwrap_or("/").to_owned();
    base.prefix.clear();
    Ok(Some((base, path)))
}
