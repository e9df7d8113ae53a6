//! A race on SQLite that is as wide as a system call, with the calls made slow.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use retrysafe_gates::concurrency;
use retrysafe_gates::plan::{Plan, ProcessId, SlowPlan};
use retrysafe_gates::report::{Report, Verdict};
use retrysafe_gates::safety::Allowance;
use retrysafe_mutants::PLAN;
use retrysafe_testbed::{address, strace};

const UP_WITHIN: Duration = Duration::from_secs(30);

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn raced(slow: impl FnOnce(u32) -> SlowPlan) -> Report {
    let listen = address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mutant"));
    command.arg("check-then-insert-sqlite").arg(format!("--listen={listen}")).stdout(Stdio::null());
    let server = Server(command.spawn().expect("it starts"));
    let start = Instant::now();
    while TcpStream::connect(listen).is_err() {
        assert!(start.elapsed() < UP_WITHIN, "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let text = format!("base = \"http://{listen}\"\n{PLAN}[concurrency]\nrequests = 5\nrounds = 3\n");
    let mut plan = Plan::parse(&text, "gates.toml").unwrap_or_else(|faults| panic!("{faults}"));
    plan.slow = Some(slow(server.0.id()));
    let allowance = Allowance { owned: None, time: Duration::from_secs(120) };
    concurrency::run(&plan, &allowance, 7, &mut |_| ()).expect("it can be run")
}

#[test]
fn slow_system_calls_make_the_natural_race_wide() {
    const BY: Duration = Duration::from_millis(20);
    strace();
    let report = raced(|pid| SlowPlan { by: BY, ..SlowPlan::of(ProcessId::Is(pid)) });
    let race = report.part("A1").expect("it ran");
    assert_eq!(race.verdict, Some(Verdict::Fail), "{report:#?}");
    assert!(race.said.iter().any(|said| said.contains("began 20 ms later")), "{race:#?}");
    // Every answer is a system call, too: none came sooner.
    let timeline = &race.counterexample.as_ref().expect("a round").timeline;
    let by = BY.as_secs_f64() * 1_000.0;
    assert!(timeline.iter().all(|line| line.done_ms - line.complete_ms >= by), "{timeline:#?}");
}

#[test]
fn a_process_that_cannot_be_made_slow_is_told_and_not_passed() {
    let report = raced(|_| SlowPlan::of(ProcessId::In("/nowhere/server.pid".into())));
    let race = report.part("A1").expect("it ran");
    // The natural race may be found all the same.
    assert_ne!(race.verdict, Some(Verdict::Pass), "{report:#?}");
    assert!(race.said.iter().any(|said| said.contains("cannot be read")), "{race:#?}");
    assert!(race.change.iter().any(|change| change.contains("--slow-pid")), "{race:#?}");
}
