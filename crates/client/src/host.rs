//! What the client takes from the world: time, sleep and chance. All three can be put into a caller's hands.
//!
//! ```
//! use retrysafe_client::{Host, Retries, VirtualClock, retry};
//! use std::time::Duration;
//!
//! # tokio_test(async {
//! let clock = VirtualClock::new();
//! let retries = Retries::to("payments").host(Host::virtual_time(&clock).seeded(7));
//! let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
//! let ended = retry(&retries, async |_| Err::<(), _>(refused())).await;
//! assert!(ended.is_err());
//! assert_eq!(clock.slept().len(), 2); // three attempts, two sleeps, no time lost
//! # });
//! # fn tokio_test(f: impl Future<Output = ()>) {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f);
//! # }
//! ```

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pin_project_lite::pin_project;
use retrysafe_core::{retry::Mono, time::Wall};
use tokio::task::coop::{Unconstrained, unconstrained};

/// A sleep that a [`Clock`] hands out.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock of the caller's own.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time.
    fn now(&self) -> Mono;
    /// Wall time, for `Retry-After` dates and windows.
    fn wall(&self) -> Wall;
    /// Ends once this long has passed.
    fn sleep(&self, delay: Duration) -> Sleep;
}

/// Where time, sleep and chance come from. By default: tokio's timer (which tokio's own paused time moves too), the wall
/// clock, and a generator of the thread.
#[derive(Clone, Default)]
pub struct Host {
    clock: Option<Arc<dyn Clock>>,
    chance: Option<Arc<Mutex<fastrand::Rng>>>,
}

impl Host {
    /// Time that passes only while somebody sleeps. A future that is pending while time is asked for counts as one that
    /// never answers: use it for operations that are ready, or never are.
    #[must_use]
    pub fn virtual_time(clock: &VirtualClock) -> Self {
        Self::with_clock(clock.clone())
    }

    /// Another clock.
    #[must_use]
    pub fn with_clock(clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), chance: None }
    }

    /// The same jitter in every run. Not the keys: those are never predictable.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        self.chance = Some(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))));
        self
    }

    /// Monotonic time.
    pub fn now(&self) -> Mono {
        match &self.clock {
            None => Mono::from_elapsed(tokio::time::Instant::now().saturating_duration_since(origin())),
            Some(clock) => clock.now(),
        }
    }

    /// Wall time.
    pub fn wall(&self) -> Wall {
        match &self.clock {
            None => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Wall::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
            }
            Some(clock) => clock.wall(),
        }
    }

    /// What the wall clock showed at the instant `at`, by what it shows now: a call that ends well never asks.
    #[cfg(feature = "http")]
    pub(crate) fn wall_at(&self, at: Mono) -> Wall {
        let ago = i64::try_from(self.now().since(at).as_millis()).unwrap_or(i64::MAX);
        Wall::from_unix_ms(self.wall().unix_ms().saturating_sub(ago))
    }

    /// Whether time is the machine's own: then waiting for it is a timer of tokio's.
    #[cfg(feature = "tower")]
    pub(crate) fn is_real(&self) -> bool {
        self.clock.is_none()
    }

    pub(crate) fn entropy(&self) -> u64 {
        match &self.chance {
            None => fastrand::u64(..),
            Some(chance) => chance.lock().unwrap_or_else(PoisonError::into_inner).u64(..),
        }
    }

    pub(crate) async fn sleep(&self, delay: Duration) {
        match &self.clock {
            None => tokio::time::sleep(delay).await,
            Some(clock) => clock.sleep(delay).await,
        }
    }

    /// `work`, or `None` once `limit` has passed.
    pub(crate) async fn within<F: Future>(&self, limit: Duration, work: F) -> Option<F::Output> {
        match &self.clock {
            None => Within::new(limit, work).await,
            Some(clock) => {
                tokio::select! {
                    biased;
                    done = work => Some(done),
                    () = clock.sleep(limit) => None,
                }
            }
        }
    }
}

pin_project! {
    /// A future and a limit. The timer is set once the future has to be waited for: an answer that is there costs none.
    pub(crate) struct Within<F> {
        #[pin]
        work: F,
        limit: Duration,
        // Unconstrained: work that has used up its turn must not keep the timer from being asked.
        #[pin]
        timer: Option<Unconstrained<tokio::time::Sleep>>,
    }
}

impl<F> Within<F> {
    pub(crate) fn new(limit: Duration, work: F) -> Self {
        Self { work, limit, timer: None }
    }
}

impl<F: Future> Future for Within<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(done) = this.work.poll(cx) {
            return Poll::Ready(Some(done));
        }
        if this.timer.is_none() {
            this.timer.set(Some(unconstrained(tokio::time::sleep(*this.limit))));
        }
        match this.timer.as_pin_mut() {
            Some(timer) => timer.poll(cx).map(|()| None),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("own_clock", &self.clock.is_some())
            .field("seeded", &self.chance.is_some())
            .finish()
    }
}

/// The origin of tokio's instants. It lies before the first reading: another runtime's paused clock may be a little behind.
fn origin() -> tokio::time::Instant {
    const BEFORE: Duration = Duration::from_secs(3_600);
    static ORIGIN: OnceLock<tokio::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        let now = tokio::time::Instant::now();
        now.checked_sub(BEFORE).unwrap_or(now)
    })
}

/// Time that passes only while somebody sleeps, and then at once. It remembers every sleep.
#[derive(Clone, Default)]
pub struct VirtualClock(Arc<Mutex<Passed>>);

#[derive(Default)]
struct Passed {
    now: Duration,
    slept: Vec<Duration>,
}

impl VirtualClock {
    /// A clock at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves it on.
    pub fn advance(&self, by: Duration) {
        let mut passed = self.passed();
        passed.now = passed.now.saturating_add(by);
    }

    /// Every sleep so far, timeouts that ran out included.
    pub fn slept(&self) -> Vec<Duration> {
        self.passed().slept.clone()
    }

    /// Time since its start.
    pub fn elapsed(&self) -> Duration {
        self.passed().now
    }

    fn passed(&self) -> std::sync::MutexGuard<'_, Passed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Mono {
        Mono::from_elapsed(self.elapsed())
    }

    fn wall(&self) -> Wall {
        Wall::from_unix_ms(i64::try_from(self.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    fn sleep(&self, delay: Duration) -> Sleep {
        let clock = self.clone();
        // Only a sleep that is waited for passes: one beside a future that is ready does not.
        Box::pin(async move {
            let mut passed = clock.passed();
            passed.now = passed.now.saturating_add(delay);
            passed.slept.push(delay);
        })
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualClock").field(&self.elapsed()).finish()
    }
}
