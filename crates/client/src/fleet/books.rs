//! The written form of a fleet's books: JSON with a version. One that is not known is refused, never guessed.

use std::collections::BTreeMap;

use retrysafe_core::{
    retry::budget::{Books, Fleet, FleetRule, Holder, Lease, Report, Slot},
    time::Wall,
};
use serde::{Deserialize, Serialize};

use super::FleetFault;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Written {
    version: u32,
    /// Number, first attempts, spent, paced.
    slots: Vec<(i64, u64, u64, u64)>,
    /// Instance, report, tokens, fresh, quota, until in milliseconds.
    holders: Vec<(u64, u64, u32, u32, u32, i64)>,
}

/// One exchange on books as a store has them (`None`: there are none yet): the lease, and the books to write back.
pub(super) fn exchange(
    rule: FleetRule,
    written: Option<&[u8]>,
    instance: u64,
    report: &Report,
    now: Wall,
) -> Result<(Lease, Vec<u8>), FleetFault> {
    let books = written.map_or_else(|| Ok(Books::default()), read)?;
    let mut fleet = Fleet::from_books(rule, books);
    let lease = fleet.exchange(instance, report, now);
    Ok((lease, write(fleet.books())?))
}

fn read(bytes: &[u8]) -> Result<Books, FleetFault> {
    let written: Written = serde_json::from_slice(bytes).map_err(|error| FleetFault(error.into()))?;
    if written.version != VERSION {
        return Err(FleetFault(format!("books of version {} are not known", written.version).into()));
    }
    let slot = |(number, first_attempts, spent, paced)| Slot { number, first_attempts, spent, paced };
    let holder = |(instance, report, tokens, fresh, quota, until)| {
        (instance, Holder { report, tokens, fresh, quota, until: Wall::from_unix_ms(until) })
    };
    Ok(Books {
        slots: written.slots.into_iter().map(slot).collect(),
        holders: written.holders.into_iter().map(holder).collect::<BTreeMap<_, _>>(),
    })
}

fn write(books: &Books) -> Result<Vec<u8>, FleetFault> {
    let slots = books.slots.iter().map(|slot| (slot.number, slot.first_attempts, slot.spent, slot.paced));
    let holders = books.holders.iter().map(|(instance, holder)| {
        let Holder { report, tokens, fresh, quota, until } = *holder;
        (*instance, report, tokens, fresh, quota, until.unix_ms())
    });
    let written = Written { version: VERSION, slots: slots.collect(), holders: holders.collect() };
    serde_json::to_vec(&written).map_err(|error| FleetFault(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_come_back_as_they_were() {
        let rule = FleetRule::default();
        let now = Wall::from_unix_ms(5_000);
        let report = Report { number: 1, first_attempts: 1_000, wanted: 5, ..Report::default() };
        let (lease, bytes) = exchange(rule, None, 7, &report, now).unwrap();
        assert!(lease.tokens > 0);
        let books = read(&bytes).unwrap();
        assert_eq!(write(&books).unwrap(), bytes);
        // A report whose answer was lost is answered again, and changes nothing.
        let (again, same) = exchange(rule, Some(&bytes), 7, &report, now).unwrap();
        assert_eq!((again, same), (lease, bytes));
        assert!(read(br#"{"version":9,"slots":[],"holders":[]}"#).is_err());
    }
}
