//! `retrysafe keys`: what became of keys, and the three things that a person may do about one.
//!
//! Finding ([`which`]), telling ([`list`], [`timeline`], [`log`]) and acting ([`act`]) are apart. What an act may replace is
//! decided by `core`; here it is asked for, logged and carried out.

mod act;
mod list;
mod log;
mod show;
mod timeline;
mod which;

use std::time::Duration;

use clap::{Args, Subcommand};
use retrysafe_core::contract::show;
use retrysafe_core::time::Wall;
use retrysafe_store::{Store, StoreError, journal::Journal};

use crate::database;
use crate::failure::Failure;
use crate::place::Place;

/// Look at keys, and decide what only a person can decide
///
/// A key is named by what `list` prints: NAMESPACE:OPERATION. Neither keys nor accounts nor bodies are printed unless
/// --reveal asks for them.
///
/// The three verbs say three things: `resume`, go on from the recovery point; `resolve`, it was done and this is the outcome;
/// `release`, it was not done, and the next retry runs it from its beginning. None of them touches a claim that somebody
/// works on. Each is written to the log (`retrysafe keys log`) with who and why, in the commit that does it.
#[derive(Args, Debug)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    word: Word,
}

#[derive(Subcommand, Debug)]
enum Word {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Resume(act::ResumeArgs),
    Resolve(act::ResolveArgs),
    Release(act::ReleaseArgs),
    Log(log::LogArgs),
}

/// What all of them ask for.
#[derive(Args, Debug)]
struct Common {
    /// The store: a SQLite file, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE (MariaDB)
    #[arg(long, env = "RETRYSAFE_STORE", default_value = "retrysafe.db", value_name = "FILE|URL")]
    store: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &KeysArgs) -> Result<(), Failure> {
    database::runtime()?.block_on(async {
        match &args.word {
            Word::List(args) => list::run(args).await,
            Word::Show(args) => show::run(args).await,
            Word::Resume(args) => act::resume(args).await,
            Word::Resolve(args) => act::resolve(args).await,
            Word::Release(args) => act::release(args).await,
            Word::Log(args) => log::run(args).await,
        }
    })
}

/// The part of a store that keeps journals and the log.
fn journals<'a>(store: &'a dyn Store, place: &Place) -> Result<&'a dyn Journal, Failure> {
    store
        .journals()
        .ok_or_else(|| Failure::usage(format!("{place}: this store keeps no journals and no log")))
}

fn refused(place: &Place) -> impl Fn(StoreError) -> Failure {
    let place = place.to_string();
    move |error| Failure::runtime(format!("{place}: {}", database::chain(&error)))
}

/// How long, as people say it: nobody reads the milliseconds of three days.
fn about(time: Duration) -> String {
    let whole = |unit: u64| Duration::from_secs(time.as_secs() / unit * unit);
    show(match time.as_secs() {
        0 => Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        1..600 => whole(1),
        600..36_000 => whole(60),
        _ => whole(3_600),
    })
}

/// An instant for people and machines alike.
fn instant(at: Wall) -> String {
    jiff::Timestamp::from_millisecond(at.unix_ms())
        .map_or_else(|_| format!("{} ms", at.unix_ms()), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_in_the_unit_that_matters() {
        let about = |ms| about(Duration::from_millis(ms));
        let cases = [(326, "326ms"), (59_999, "59s"), (3_599_999, "59m"), (2_591_999_982, "719h"), (0, "0s")];
        for (ms, told) in cases {
            assert_eq!(about(ms), told, "{ms}");
        }
    }
}
