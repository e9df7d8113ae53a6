//! What the proxy counts. Nothing per request that went well: the layer counts those that matter.

use metrics::{Gauge, counter, describe_counter, describe_gauge, gauge};

use super::error::ProxyError;

const FAILURES: &str = "retrysafe_gateway_failures_total";
const CONNECTIONS: &str = "retrysafe_gateway_connections";

/// Says what the metrics mean, and returns the gauge of open connections.
pub(super) fn connections() -> Gauge {
    describe_counter!(FAILURES, "Requests without an answer of the upstream's, by code");
    describe_gauge!(CONNECTIONS, "Client connections that are open now");
    gauge!(CONNECTIONS)
}

/// Counts a failure.
pub(super) fn failed(error: &ProxyError) {
    counter!(FAILURES, "code" => error.code().as_str()).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_explains_every_metric() {
        let page = include_str!("../../../../docs/reference/metrics.md");
        for name in [FAILURES, CONNECTIONS] {
            assert!(page.contains(&format!("`{name}`")), "docs/reference/metrics.md does not explain {name}");
        }
    }
}
