//! A fleet's account in Redis, by its clock.
//!
//! An exchange reads the books and writes them back if they are still the same, in one script: whoever was faster makes the
//! others read again. **Limits.** What Redis forgets is spent or not as chance has it: with a replica that was behind, or
//! without a log, the account of the last moments is lost, and the fleet may retry that much more. No key and no outcome is
//! kept here.

use std::sync::Arc;

use redis::{Client, aio::MultiplexedConnection};
use retrysafe_core::{
    retry::budget::{FleetRule, Lease, Report},
    time::Wall,
};

use super::{FleetFault, FleetFuture, FleetStore, books};

/// How often the books may have changed under an exchange before it is given up; the same report is sent again later.
const TRIES_MAX: u32 = 64;

/// Writes books that replace what was read.
const WRITE: &str = "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2]) return 1";

/// An account in a key of a Redis server.
#[derive(Clone)]
pub struct RedisFleet {
    client: Client,
    key: Arc<str>,
    rule: FleetRule,
}

impl RedisFleet {
    /// The account of this name on the server at this address (`redis://host:port/database`).
    ///
    /// # Errors
    /// [`FleetFault`]: the address is none, or the server does not answer.
    pub async fn open(url: &str, name: &str, rule: FleetRule) -> Result<Self, FleetFault> {
        let client = Client::open(url).map_err(fault)?;
        let account = Self { client, key: format!("retrysafe:fleet:{name}").into(), rule };
        let mut connection = account.connection().await?;
        let _pong: String = redis::cmd("PING").query_async(&mut connection).await.map_err(fault)?;
        Ok(account)
    }

    /// One for each exchange: they are seconds apart, and one that broke is nobody's trouble the next time.
    async fn connection(&self) -> Result<MultiplexedConnection, FleetFault> {
        self.client.get_multiplexed_async_connection().await.map_err(fault)
    }

    async fn apply(&self, instance: u64, report: &Report) -> Result<Lease, FleetFault> {
        let mut connection = self.connection().await?;
        for _ in 0..TRIES_MAX {
            // In one transaction: books and the time at which they were these.
            let (written, (seconds, micros)): (Option<Vec<u8>>, (i64, i64)) = redis::pipe()
                .atomic()
                .cmd("GET")
                .arg(&*self.key)
                .cmd("TIME")
                .query_async(&mut connection)
                .await
                .map_err(fault)?;
            let now = Wall::from_unix_ms(seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
            let (lease, books) = books::exchange(self.rule, written.as_deref(), instance, report, now)?;
            let replaced: i64 = redis::cmd("EVAL")
                .arg(WRITE)
                .arg(1)
                .arg(&*self.key)
                .arg(written.unwrap_or_default())
                .arg(books)
                .query_async(&mut connection)
                .await
                .map_err(fault)?;
            if replaced == 1 {
                return Ok(lease);
            }
        }
        Err(FleetFault(format!("others wrote {TRIES_MAX} times in a row; send the same report again").into()))
    }
}

impl FleetStore for RedisFleet {
    fn rule(&self) -> FleetRule {
        self.rule
    }

    fn exchange<'a>(&'a self, instance: u64, report: &'a Report) -> FleetFuture<'a> {
        Box::pin(self.apply(instance, report))
    }
}

fn fault(error: redis::RedisError) -> FleetFault {
    FleetFault(error.into())
}

/// The address may hold a password.
impl std::fmt::Debug for RedisFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisFleet").field("key", &self.key).finish_non_exhaustive()
    }
}
