//! How long a store's calls take.

use metrics::{Histogram, histogram};

/// Seconds of each call, waiting for a connection or for the writer included: `retrysafe_store_seconds`.
pub(crate) struct Calls {
    pub(crate) load: Histogram,
    pub(crate) write: Histogram,
    pub(crate) remove: Histogram,
}

impl Calls {
    pub(crate) fn new() -> Self {
        let seconds = |call: &'static str| histogram!("retrysafe_store_seconds", "call" => call);
        Self { load: seconds("load"), write: seconds("write"), remove: seconds("remove") }
    }
}

/// Makes `call` and records how long it took, whatever came of it.
#[cfg(feature = "sql")]
pub(crate) async fn timed<T>(seconds: &Histogram, call: impl Future<Output = T>) -> T {
    let started = std::time::Instant::now();
    let answer = call.await;
    seconds.record(started.elapsed());
    answer
}
