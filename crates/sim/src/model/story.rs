//! What happened, told to people.

use std::fmt;

use super::world::CLIENTS;

/// One thing that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each is told by its text
pub enum Step {
    Tick,
    Deploy,
    CallDied { who: usize },
    Charged { who: usize, receipt: u8, again: bool },
    Sends { who: usize },
    Reads { who: usize },
    Decides { who: usize, over: bool },
    DecidesUncertain { who: usize },
    DecidesToClose { who: usize },
    DecidesToReap { who: usize },
    Leaves { who: usize },
    Loses { who: usize },
    Marks { who: usize },
    Wins { who: usize, over: bool, attempt: u8 },
    Reaps { who: usize },
    Frees { who: usize, removed: bool },
    Begins { who: usize },
    Opens { who: usize },
    Creates { who: usize },
    WritesIntent { who: usize },
    WritesResent { who: usize },
    TakesAbsenceForFailure { who: usize },
    FindsResult { who: usize, receipt: u8 },
    Calls { who: usize },
    ReadsAnswer { who: usize, receipt: u8 },
    WritesResult { who: usize, receipt: u8 },
    Completes { who: usize, receipt: u8 },
    Parks { who: usize },
    Stops { who: usize },
    IsRefused { who: usize },
    Replayed { who: usize, receipt: u8 },
    ToldInFlight { who: usize },
    ToldUnknown { who: usize },
    Crashes { who: usize },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Step::*;
        let name = |who: usize| match who < CLIENTS {
            true => format!("request {}", who + 1),
            false => format!("worker {}", who - CLIENTS + 1),
        };
        match *self {
            Tick => f.write_str("a second passes"),
            Deploy => f.write_str("a new contract is deployed: from now on the request runs in steps"),
            CallDied { who } => write!(f, "the call of {} is lost on its way", name(who)),
            Charged { who, receipt, again: false } => {
                write!(f, "the provider gets the call of {} and charges: receipt {receipt}", name(who))
            }
            Charged { who, receipt, again: true } => {
                write!(
                    f,
                    "the provider gets the call of {}, knows its key, and answers with receipt {receipt}",
                    name(who)
                )
            }
            Sends { who } => write!(f, "{} comes in and tries to claim the key", name(who)),
            Reads { who } => write!(f, "{} reads the record", name(who)),
            Decides { who, over: true } => {
                write!(f, "{} decides to take over the claim whose lease has ended", name(who))
            }
            Decides { who, over: false } => write!(f, "{} decides to claim the key", name(who)),
            DecidesUncertain { who } => write!(f, "{} decides to mark the record uncertain", name(who)),
            DecidesToClose { who } => write!(f, "{} decides to free the key: nothing was begun", name(who)),
            DecidesToReap { who } => write!(f, "{} decides to delete the record", name(who)),
            Leaves { who } => write!(f, "{} leaves the record as it is", name(who)),
            Loses { who } => write!(f, "the write of {} finds something else and changes nothing", name(who)),
            Marks { who } => write!(f, "{} marks the record uncertain", name(who)),
            Wins { who, over: false, attempt } => {
                write!(f, "{} wins the claim: attempt {attempt}", name(who))
            }
            Wins { who, over: true, attempt } => {
                write!(f, "{} takes the claim over: attempt {attempt}", name(who))
            }
            Reaps { who } => write!(f, "{} deletes the record", name(who)),
            Frees { who, removed: true } => write!(f, "{} frees the key", name(who)),
            Frees { who, removed: false } => {
                write!(f, "{} would free the key, but it is somebody else's", name(who))
            }
            Begins { who } => write!(f, "{} goes straight to its call", name(who)),
            Opens { who } => write!(f, "{} reads the journal and writes its first entry", name(who)),
            Creates { who } => write!(f, "{} commits `create` with its recovery point", name(who)),
            WritesIntent { who } => write!(f, "{} writes the intent of `charge`", name(who)),
            WritesResent { who } => write!(f, "{} writes down that it sends `charge` again", name(who)),
            TakesAbsenceForFailure { who } => {
                write!(
                    f,
                    "{} asks the provider, which knows of no charge, and takes that for a failure",
                    name(who)
                )
            }
            FindsResult { who, receipt } => {
                write!(f, "{} asks the provider, is told of receipt {receipt}, and writes it down", name(who))
            }
            Calls { who } => write!(f, "{} sends the charge", name(who)),
            ReadsAnswer { who, receipt } => write!(f, "{} reads the answer: receipt {receipt}", name(who)),
            WritesResult { who, receipt } => write!(f, "{} writes receipt {receipt} down", name(who)),
            Completes { who, receipt } => {
                write!(f, "{} completes the request with receipt {receipt}", name(who))
            }
            Parks { who } => {
                write!(f, "{} got no answer, writes that down and lets another go on", name(who))
            }
            Stops { who } => write!(f, "{} cannot know, and shows the request to a person", name(who)),
            IsRefused { who } => {
                write!(f, "the commit of {} is refused: its claim was taken over", name(who))
            }
            Replayed { who, receipt } => {
                write!(f, "{} is answered with receipt {receipt}, as stored", name(who))
            }
            ToldInFlight { who } => write!(f, "{} is told that it is in flight", name(who)),
            ToldUnknown { who } => write!(f, "{} is told that the outcome is unknown", name(who)),
            Crashes { who } => write!(f, "the process of {} is killed", name(who)),
        }
    }
}
