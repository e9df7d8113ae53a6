//! gates.1: each broken server is found by its arm, every time; sound ones pass; two cannot be judged.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use retrysafe_gates::plan::{CrashPlan, Outside, Plan};
use retrysafe_gates::report::{Report, Verdict};
use retrysafe_mutants::{CRASH_PLAN, LEASE, LISTED, Mutant, PLAN, Running, TABLE, Terms};
use retrysafe_testbed::postgres::{self, Database};
use retrysafe_testbed::{SmallDisk, address};

use super::{ALLOWANCE, gate, plan, print_findings};
use crate::prove::Scale;
use crate::report::Progress;
use crate::tools::scratch;

/// Runs against each broken server.
const RUNS: usize = 20;
/// Races against each sound one, of each shape half.
const SOUND_RACES: usize = 1_000;
const QUICK_SOUND_RACES: usize = 20;
/// Races of each shape against a broken server: its fault shows in nearly every one.
const ROUNDS: u32 = 10;
/// The natural race shows in one of a few: as many as the gate would choose.
const NATURAL_ROUNDS: u32 = 66;
/// At once in the quick tier, where most of the time is waiting.
const QUICK_WORKERS: usize = 6;

/// Starts a server, and makes the plan for it. `stub`: its effect is a call to the gate.
pub(super) fn subject(mutant: &Mutant, stub: bool) -> Result<(Running, Plan)> {
    let provider = if stub { Some(address()) } else { None };
    let running = Running::start(mutant, &Terms { provider, ..Terms::default() })?;
    let bases: Vec<String> =
        running.addresses().iter().map(|address| format!("\"http://{address}\"")).collect();
    let mut text = format!("base = [{}]\n{PLAN}", bases.join(", "));
    if let Some(provider) = provider {
        text += &format!(
            "[[observe]]\nkind = \"stub\"\n[stub]\nlisten = \"{provider}\"\nhold_at_most = \"400ms\"\n"
        );
    }
    Ok((running, plan(&text)?))
}

/// Whether a server's fault is only seen by who sees the effect itself.
fn needs_stub(mutant: &Mutant) -> bool {
    mutant.name == "stored-before-commit"
}

/// The crash gate, against the server as a process of its own, with what its arm needs.
fn crash(mutant: &Mutant, seed: u64) -> Result<Report> {
    let scratch = scratch()?;
    let (own, stub) = (address(), address());
    let this = std::env::current_exe().context("the path of this binary")?;
    let command = |listen: SocketAddr, more: &[String]| {
        let mut words = vec![this.display().to_string(), "mutant".to_owned(), mutant.name.to_owned()];
        words.extend([format!("--listen={listen}"), format!("--provider={stub}")]);
        words.extend(more.iter().cloned());
        words
    };
    let file = |folder: &Path| format!("--books=sqlite:{}", folder.join("orders.db").display());
    let mut more = vec![format!("--state={}", scratch.path().join("claims").display())];
    let (mut fields, mut tables) = (String::new(), String::new());
    // Both go with this function: what is mounted, and what is on a shared server.
    let (mut disk, mut database) = (None, None);
    if mutant.behaviour.booked.is_some() {
        tables += LISTED;
    }
    match mutant.arm {
        "K7" => {
            let (relay, database) = (address(), database.insert(Database::create()));
            let (host, port) = postgres::host_and_port(postgres::shared());
            more.push(format!("--books={}", database.url_at(&format!("postgres://postgres@{relay}"))));
            tables +=
                &format!("[database]\nlisten = \"{relay}\"\nto = \"{host}:{port}\"\naway = \"200ms\"\n");
        }
        "K8" => {
            let folder = disk.insert(SmallDisk::mount()).folder();
            more.push(file(folder));
            tables += &format!("[crash.disk]\nfolder = {folder:?}\nfull_for = \"200ms\"\n");
        }
        _ if mutant.behaviour.booked.is_some() => {
            more.push(file(scratch.path()));
            let other = address();
            fields += &format!("lease = \"{}ms\"\n", LEASE.as_millis());
            tables += &format!(
                "[crash.second]\ncommand = {:?}\nbase = \"http://{other}\"\n",
                command(other, &more)
            );
        }
        _ => {}
    }
    let text = format!(
        "base = \"http://{own}\"\n{CRASH_PLAN}\n[stub]\nlisten = \"{stub}\"\n\
         [crash]\ncommand = {:?}\nready = \"/health\"\nsettled_within = \"1s\"\nsweep = 0\n{fields}{tables}",
        command(own, &more)
    );
    let plan = CrashPlan::parse_with(&text, "gates.toml", Outside::NOTHING)
        .map_err(|faults| anyhow::anyhow!("{faults}"))?;
    retrysafe_gates::crash::run(&plan, &ALLOWANCE, seed & 0xff_ffff, &mut |_| ())
        .map_err(|not_run| anyhow::anyhow!(not_run.0))
}

fn run(mutant: &Mutant, rounds: u32, seed: u64) -> Result<Report> {
    if mutant.arm.starts_with('K') || mutant.behaviour.booked.is_some() {
        return crash(mutant, seed);
    }
    let (running, mut plan) = subject(mutant, needs_stub(mutant))?;
    plan.concurrency.rounds = Some(rounds);
    let report = gate(&plan, seed)?;
    drop(running);
    Ok(report)
}

/// Whether a report is what the table says of its server.
fn is_right(mutant: &Mutant, report: &Report) -> bool {
    let of_arm = report.part(mutant.arm).and_then(|part| part.verdict);
    match mutant.arm {
        "PASS" => report.verdict == Verdict::Pass,
        "INCONCLUSIVE" => report.verdict == Verdict::Inconclusive,
        _ => report.verdict == Verdict::Fail && of_arm == Some(Verdict::Fail),
    }
}

fn rounds_for(mutant: &Mutant, scale: Scale) -> Result<u32> {
    Ok(match (mutant.arm, mutant.behaviour.natural) {
        ("PASS", _) => u32::try_from(scale.of(SOUND_RACES, QUICK_SOUND_RACES))?.div_ceil(2),
        (_, true) => NATURAL_ROUNDS,
        _ => ROUNDS,
    })
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let jobs: Vec<(&Mutant, u64)> = TABLE
        .iter()
        .flat_map(|mutant| {
            // One run of races is long; one of crashes is one round.
            let raced = mutant.arm == "PASS" && mutant.behaviour.booked.is_none();
            let runs = if raced || scale.quick() { 1 } else { RUNS };
            (0..runs as u64).map(move |run| (mutant, scale.seed.wrapping_add(run)))
        })
        .collect();
    let progress = Progress::new("gates against broken servers", jobs.len());
    let (next, ends) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // In full one at a time: nothing else may widen or narrow a window.
    let workers = if scale.quick() { QUICK_WORKERS } else { 1 };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(&(mutant, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ended = rounds_for(mutant, scale).and_then(|rounds| run(mutant, rounds, seed));
                    ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((mutant, ended));
                    progress.step();
                }
            });
        }
    });
    drop(progress);
    let ends = ends.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut holds = true;
    for mutant in TABLE {
        let runs = ends.iter().filter(|(of, _)| of.name == mutant.name);
        let (mut right, mut all, mut requests) = (0, 0, 0);
        for (_, ended) in runs {
            all += 1;
            match ended {
                Ok(report) if is_right(mutant, report) => {
                    (right, requests) = (right + 1, requests + report.requests)
                }
                Ok(report) => {
                    println!("  WRONG: {} ended with {}", mutant.name, report.verdict.word());
                    print_findings(report)?;
                }
                Err(error) => println!("  WRONG: {}: {error:#}", mutant.name),
            }
        }
        holds &= right == all && all > 0;
        println!("{:<26} {:<13} {right} of {all} runs, {requests} requests", mutant.name, mutant.arm);
    }
    let broken = TABLE.iter().filter(|mutant| mutant.arm.starts_with(['A', 'K'])).count();
    let others = TABLE.iter().filter(|mutant| mutant.arm == "PASS" || mutant.arm == "INCONCLUSIVE").count();
    println!("{broken} broken servers, {others} others");
    Ok(holds)
}

#[cfg(test)]
mod tests {
    use retrysafe_mutants::find;

    use super::*;

    #[test]
    fn a_gate_that_finds_nothing_would_not_hold() {
        let sound = find("sound").expect("a name");
        let report = run(sound, 2, 7).expect("it runs");
        assert!(is_right(sound, &report));
        let broken = find("check-then-insert").expect("a name");
        assert!(!is_right(broken, &report), "a PASS is not what the table says");
    }
}
