//! client.2: the retry conformance scenarios of Google Cloud Storage, against a server that plays them on the wire.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use retrysafe_client::{Api, Client};
use retrysafe_core::retry::RetryPolicy;
use serde::Deserialize;
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{profile, runtime, transport};
use crate::prove::Scale;

const SCENARIOS: &str = include_str!("../../../../../vectors/retry/gcs-scenarios.json");
/// A small body, and one that is longer than what each instruction reads of it.
const SMALL: usize = 512;
const UPLOAD: usize = 300 << 10;
const LONG_UPLOAD: usize = 8_300 << 10;

#[derive(Deserialize)]
struct File {
    statuses: Vec<u16>,
    scenarios: Vec<Scenario>,
}

#[derive(Deserialize)]
struct Scenario {
    id: u32,
    name: String,
    idempotence: String,
    succeeds: bool,
    instructions: Vec<Vec<String>>,
}

/// What the server saw of one attempt.
#[derive(Clone, PartialEq, Eq)]
struct Seen {
    key: Option<String>,
    body: usize,
}

pub(crate) fn prove(_: Scale) -> Result<bool> {
    let file: File = serde_json::from_str(SCENARIOS).context("gcs-scenarios.json")?;
    runtime()?.block_on(async {
        let (mut rows, mut right) = (0, 0);
        for scenario in &file.scenarios {
            for instructions in &scenario.instructions {
                rows += 1;
                let verdict = play(scenario, instructions, &file.statuses).await?;
                match verdict {
                    Ok(attempts) => {
                        right += 1;
                        println!(
                            "  {} {:<46} {:<28} {attempts} sent",
                            scenario.id,
                            scenario.name,
                            instructions.join(", ")
                        );
                    }
                    Err(wrong) => {
                        println!("  {} {} {instructions:?}: WRONG: {wrong}", scenario.id, scenario.name)
                    }
                }
            }
        }
        println!("{right} of {rows} rows with the right verdict");
        Ok(rows > 0 && right == rows)
    })
}

async fn play(
    scenario: &Scenario,
    instructions: &[String],
    statuses: &[u16],
) -> Result<Result<usize, String>> {
    let (address, seen) = serve(instructions.iter().cloned().collect()).await?;
    let base = format!("http://{address}");
    let policy = RetryPolicy { statuses: statuses.iter().copied().collect(), ..profile().policy };
    let api = if scenario.idempotence == "keyed" {
        Api::profile(retrysafe_client::Profile { policy, ..profile() })
    } else {
        Api::with_policy(policy)
    };
    let client = Client::builder(api, &base).transport(transport()?).build()?;
    let length = match instructions.iter().find(|one| one.contains("-after-")) {
        Some(one) if one.ends_with("8192K") => LONG_UPLOAD,
        Some(_) => UPLOAD,
        None => SMALL,
    };
    let request = match scenario.idempotence.as_str() {
        "safe" => client.get("/object"),
        _ => client.post("/object").body(vec![b'x'; length]),
    };
    let sent = request.within(Duration::from_secs(20)).send().await;
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let succeeded = sent.as_ref().is_ok_and(|answer| answer.status().is_success());
    if succeeded != scenario.succeeds {
        return Ok(Err(format!("{sent:?}")));
    }
    if scenario.idempotence == "unsafe" && seen.len() != 1 {
        return Ok(Err(format!("{} requests for a call that must not be repeated", seen.len())));
    }
    if scenario.succeeds && seen.len() != instructions.len() + 1 {
        return Ok(Err(format!("{} requests for {} failures", seen.len(), instructions.len())));
    }
    let keyed = scenario.idempotence == "keyed";
    if seen.iter().any(|one| one.key.is_some() != keyed || one.key != seen[0].key) {
        return Ok(Err("not one key on every attempt".into()));
    }
    if succeeded && keyed && seen.last().is_some_and(|last| last.body != length) {
        return Ok(Err("the last attempt had not all of the body".into()));
    }
    Ok(Ok(seen.len()))
}

type Record = Arc<Mutex<Vec<Seen>>>;

async fn serve(instructions: VecDeque<String>) -> Result<(SocketAddr, Record)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (script, seen) = (Arc::new(Mutex::new(instructions)), Record::default());
    let record = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, record) = (Arc::clone(&script), Arc::clone(&record));
            tokio::spawn(async move { one_request(stream, &script, &record).await });
        }
    });
    Ok((address, seen))
}

/// Plays the next instruction for the one request of a connection.
async fn one_request(
    mut stream: TcpStream,
    script: &Mutex<VecDeque<String>>,
    record: &Mutex<Vec<Seen>>,
) -> Option<()> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let header = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(|value| value.trim().to_owned()))
    };
    let length: usize = header("content-length").map_or(Some(0), |length| length.parse().ok())?;
    let instruction = script.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let enough = match instruction.as_deref().and_then(|one| one.strip_prefix("503-after-")) {
        Some("256K") => 256 << 10,
        Some("8192K") => 8_192 << 10,
        _ => length,
    };
    let mut body = bytes.len() - end;
    let mut chunk = vec![0; 64 << 10];
    while body < enough.min(length) {
        match stream.read(&mut chunk).await.ok()? {
            0 => break,
            read => body += read,
        }
    }
    let seen = Seen { key: header("idempotency-key"), body };
    record.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    let answer = match instruction.as_deref() {
        Some("reset") => {
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).ok()?;
            return None;
        }
        Some("broken-stream") => "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf".to_owned(),
        Some("broken-stream-after-256K") => {
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{}", UPLOAD, "x".repeat(256 << 10))
        }
        Some(status) => {
            let status = status.split('-').next().unwrap_or(status);
            format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        }
        None => "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone".to_owned(),
    };
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()?;
    // What is still on its way is read, or its sender would get a reset instead of the answer.
    while stream.read(&mut chunk).await.ok()? > 0 {}
    Some(())
}
