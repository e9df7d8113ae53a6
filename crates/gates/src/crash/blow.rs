//! What is done to the API, as data.

use rustix::process::Signal;

use crate::plan::CrashPlan;
use crate::stub::Lever;

/// What is done to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    KillOnReceipt,
    KillAfterAnswer,
    Cut,
    Terminate,
    Stop,
    Database,
    Disk,
}

impl Blow {
    pub(super) const ALL: [Self; 7] = [
        Self::KillOnReceipt,
        Self::KillAfterAnswer,
        Self::Cut,
        Self::Terminate,
        Self::Stop,
        Self::Database,
        Self::Disk,
    ];

    pub(super) fn about(self) -> (&'static str, &'static str) {
        match self {
            Self::KillOnReceipt => ("K1", "killed when its call is received"),
            Self::KillAfterAnswer => ("K2", "killed when its call is answered"),
            Self::Cut => ("K3", "its call is carried out, and the answer lost"),
            Self::Terminate => ("K5", "SIGTERM while it waits for its call"),
            Self::Stop => ("K6", "stopped past its lease, another request, woken"),
            Self::Database => ("K7", "its database away between call and commit"),
            Self::Disk => ("K8", "its disk full between call and commit"),
        }
    }

    /// What happened to it, in a timeline.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::KillOnReceipt | Self::KillAfterAnswer => "the API is killed",
            Self::Cut => "the call's connection is cut",
            Self::Terminate => "the API is told to end (SIGTERM)",
            Self::Stop => "the API is stopped (SIGSTOP)",
            Self::Database => "every connection to the database is cut",
            Self::Disk => "the disk is full",
        }
    }

    /// When it is done. What is taken away is taken before the call is answered: the commit cannot be faster.
    pub(super) fn lever(self) -> Lever {
        match self {
            Self::KillAfterAnswer => Lever::AfterAnswer,
            Self::Cut => Lever::Cut,
            _ => Lever::OnReceipt,
        }
    }

    pub(super) fn signal(self) -> Option<Signal> {
        match self {
            Self::KillOnReceipt | Self::KillAfterAnswer => Some(Signal::KILL),
            Self::Terminate => Some(Signal::TERM),
            Self::Stop => Some(Signal::STOP),
            Self::Cut | Self::Database | Self::Disk => None,
        }
    }

    /// Whether its work is lost, so that somebody has to finish it. Who is stopped or told to end is not crashed: what it left
    /// is its own to finish.
    pub(super) fn leaves_work(self) -> bool {
        matches!(self, Self::KillOnReceipt | Self::KillAfterAnswer | Self::Database | Self::Disk)
    }

    /// Whether the API has to be started again.
    pub(super) fn ends_it(self) -> bool {
        matches!(self, Self::KillOnReceipt | Self::KillAfterAnswer | Self::Terminate)
    }

    /// The table or field that it needs, where the plan does not have it.
    pub(super) fn lacks(self, plan: &CrashPlan) -> Option<&'static str> {
        match self {
            Self::Stop if plan.lease.is_none() => Some("[crash] lease"),
            Self::Database if plan.plan.database.is_none() => Some("[database]"),
            Self::Disk if plan.disk.is_none() => Some("[crash.disk]"),
            _ => None,
        }
    }
}
