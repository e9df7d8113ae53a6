//! What the memory store costs: time for a claim with its completion, time for a replay, and memory for each record.
//!
//! `cargo run --release -p retrysafe-store --example memory_cost -- [keys]`

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, HeaderPair, Outcome},
    record::{Expect, Record, RecoveryClass, State, Write},
    time::Wall,
};
use retrysafe_store::{
    Store,
    memory::{MemoryOptions, MemoryStore},
};

type Fault = Box<dyn std::error::Error>;

fn claim(n: u64, now: Wall) -> Write {
    let random = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let next = Record {
        attempt: AttemptId::new(random),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(random.rotate_left(64)),
        fingerprint: Fingerprint::from_parts(1, 1, [9; 32]),
        recovery: RecoveryClass::Outside,
        contract_version: 1,
        endpoint: "POST /orders".into(),
        opened_at: now,
        state: State::InFlight { lease_until: now.plus(Duration::from_secs(30)) },
    };
    Write { expect: Expect::Absent, next }
}

fn completion(claim: Write, now: Wall) -> Write {
    let header = |name: &str, value: String| HeaderPair { name: name.into(), value: Bytes::from(value) };
    let headers = vec![
        header("content-type", "application/json".into()),
        header("location", "/orders/1".into()),
        header("x-request-id", format!("{:032x}", claim.next.attempt.as_u128())),
    ];
    let body = Body::Kept(Bytes::from(vec![b'x'; 150]));
    let state = State::Completed {
        outcome: Arc::new(Outcome { status: 201, headers, body, trailers: Vec::new() }),
        at: now,
        expires_at: now.plus(Duration::from_secs(86_400)),
        reap_at: now.plus(Duration::from_secs(259_200)),
        resource: None,
    };
    Write { expect: Expect::Attempt(claim.next.attempt), next: Record { state, ..claim.next } }
}

fn resident_bytes() -> Result<u64, Fault> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).ok_or("no resident size")?.parse()?;
    Ok(pages * 4096)
}

/// Processor time of this thread: the machine may be busy with other things.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Keys that are made ready before their writes are measured.
const CHUNK: u64 = 1_000;

fn main() -> Result<(), Fault> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    let store = MemoryStore::new(MemoryOptions::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let before = resident_bytes()?;
    let (mut writing, mut replaying) = (Duration::ZERO, Duration::ZERO);
    let address = |n: u64| -> Result<Address, Fault> {
        let key = format!("{n:08x}-0000-4000-8000-{n:012x}");
        Ok(Address::new(Namespace::new("bench")?, Account::new(&["alice"])?, Key::trusted(&key)?))
    };
    let now = store.now()?;
    runtime.block_on(async {
        for first in (0..keys).step_by(CHUNK as usize) {
            let ready = (first..first + CHUNK)
                .map(|n| Ok((address(n)?, claim(n, now), completion(claim(n, now), now))));
            let ready = ready.collect::<Result<Vec<_>, Fault>>()?;
            let started = processor_time();
            for (address, claim, completion) in &ready {
                store.now()?;
                store.write_if(address, claim).await?;
                store.now()?;
                store.write_if(address, completion).await?;
            }
            writing += processor_time() - started;
        }
        Ok::<(), Fault>(())
    })?;
    let after = resident_bytes()?;
    runtime.block_on(async {
        for first in (0..keys).step_by(CHUNK as usize) {
            // As random keys would come.
            let any = |n: u64| n.wrapping_mul(7919) % keys;
            let ready = (first..first + CHUNK).map(|n| Ok((address(any(n))?, claim(n + keys, now))));
            let ready = ready.collect::<Result<Vec<_>, Fault>>()?;
            let started = processor_time();
            for (address, claim) in &ready {
                store.now()?;
                store.write_if(address, claim).await?;
            }
            replaying += processor_time() - started;
        }
        Ok::<(), Fault>(())
    })?;
    let each = |total: Duration| total.as_nanos() as f64 / keys as f64;
    let usage = store.usage();
    println!("{keys} keys");
    println!("claim and completion {:7.0} ns", each(writing));
    println!("replay               {:7.0} ns", each(replaying));
    println!("memory               {:7.0} bytes a record", (after - before) as f64 / keys as f64);
    println!("  of it the answer   {:7.0} bytes a record", usage.bytes as f64 / usage.records as f64);
    Ok(())
}
