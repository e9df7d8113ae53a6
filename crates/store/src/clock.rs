//! The clocks of the machine, and clocks for tests.
//!
//! What a reading means is decided by [`retrysafe_core::clock::judge`]; every store takes a [`Clock`] and keeps a
//! [`TimeKeeper`] that remembers the latest time told.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retrysafe_core::{
    clock::{BootId, Jump, Limits, Mark, Reading, Verdict, judge},
    time::Wall,
};

use crate::{ErrorKind, StoreError};

/// A source of readings.
pub trait Clock: Send + Sync + 'static {
    /// What the clocks say now.
    fn read(&self) -> Reading;
}

/// The machine's own clocks: `CLOCK_REALTIME` and, on Linux, `CLOCK_BOOTTIME`.
#[derive(Debug)]
pub struct SystemClock {
    boot: BootId,
    #[cfg(not(target_os = "linux"))]
    started: std::time::Instant,
}

impl SystemClock {
    /// The clocks of this machine.
    ///
    /// Elsewhere than on Linux no name of the boot is known, so that each process counts as a boot of its own: being
    /// switched off for longer than the bound then has to be acknowledged.
    pub fn new() -> Self {
        Self {
            boot: boot_id().unwrap_or_else(random_boot_id),
            #[cfg(not(target_os = "linux"))]
            started: std::time::Instant::now(),
        }
    }

    #[cfg(target_os = "linux")]
    fn since_boot(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    }

    #[cfg(not(target_os = "linux"))]
    fn since_boot(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn read(&self) -> Reading {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let wall =
            Wall::from_unix_ms(time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000));
        Reading { wall, boot: self.boot, since_boot: self.since_boot() }
    }
}

/// Linux names each boot by a random UUID.
fn boot_id() -> Option<BootId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).ok().map(BootId)
}

fn random_boot_id() -> BootId {
    let mut bytes = [0; 16];
    // Without randomness every process of this machine shares one boot and a counter that starts anew, which is judged
    // as no time having passed: late, never early.
    let _ = getrandom::fill(&mut bytes);
    BootId(u128::from_ne_bytes(bytes))
}

/// A clock that stands still until a test moves it. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Reading>>);

impl ManualClock {
    /// A clock at `wall`, an hour after boot 1.
    pub fn at(wall: Wall) -> Self {
        let since_boot = Duration::from_secs(3600);
        Self(Arc::new(Mutex::new(Reading { wall, boot: BootId(1), since_boot })))
    }

    /// Time passes.
    pub fn advance(&self, time: Duration) {
        self.change(|reading| {
            reading.wall = reading.wall.plus(time);
            reading.since_boot = reading.since_boot.saturating_add(time);
        });
    }

    /// Somebody sets the wall clock; no time passes.
    pub fn set_wall(&self, wall: Wall) {
        self.change(|reading| reading.wall = wall);
    }

    /// The machine is started anew after having been off for `time`.
    pub fn reboot_after(&self, time: Duration) {
        self.change(|reading| {
            reading.wall = reading.wall.plus(time);
            reading.boot = BootId(reading.boot.0.wrapping_add(1));
            reading.since_boot = Duration::ZERO;
        });
    }

    /// Another wall clock of the same machine, `ahead` of this one's. From here on each is
    /// moved by itself.
    pub fn skewed(&self, ahead: Duration) -> Self {
        let mut reading = self.read();
        reading.wall = reading.wall.plus(ahead);
        Self(Arc::new(Mutex::new(reading)))
    }

    fn change(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Clock for ManualClock {
    fn read(&self) -> Reading {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn read(&self) -> Reading {
        (**self).read()
    }
}

/// Tells the time of one store handle: a clock, its limits, and the latest mark.
pub(crate) struct TimeKeeper {
    clock: Arc<dyn Clock>,
    limits: Limits,
    mark: Mutex<Option<Mark>>,
    /// Whether the last reading was a jump, so that it is logged once and not with every request.
    closed: AtomicBool,
}

impl TimeKeeper {
    pub(crate) fn new(clock: Arc<dyn Clock>, limits: Limits) -> Self {
        Self { clock, limits, mark: Mutex::new(None), closed: AtomicBool::new(false) }
    }

    /// The mark to keep with the records, and its time.
    pub(crate) fn now(&self) -> Result<Mark, StoreError> {
        let reading = self.clock.read();
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        match judge(mark.as_ref(), &reading, &self.limits) {
            Verdict::Now(next) => {
                *mark = Some(next);
                if self.closed.load(Ordering::Relaxed) && self.closed.swap(false, Ordering::Relaxed) {
                    tracing::warn!("the clock is within its bound again: the store is open");
                }
                Ok(next)
            }
            Verdict::Jumped(jump) => {
                if !self.closed.swap(true, Ordering::Relaxed) {
                    tracing::error!("the clock jumped, the store is closed: {jump}");
                }
                Err(StoreError::with_source(ErrorKind::ClockJumped, "reading the clock", Jumped(jump)))
            }
        }
    }

    /// Takes over a mark that another process, or an earlier run, has stored.
    pub(crate) fn learn(&self, stored: Mark) {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        *mark = Some(mark.map_or(stored, |own| own.latest(stored)));
    }

    /// Takes the clock as it is, after a person has looked.
    pub(crate) fn acknowledge(&self) -> Mark {
        let reading = self.clock.read();
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Mark::acknowledged(mark.as_ref(), &reading);
        *mark = Some(next);
        next
    }
}

impl fmt::Debug for TimeKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeKeeper").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// [`Jump`] as the source of an error: both instants and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Jumped(Jump);
