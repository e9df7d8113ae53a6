//! The report for people: a line for each arm, and the round that shows a fault.

use anstyle::{AnsiColor, Style};
use retrysafe_gates::arms::Arm;
use retrysafe_gates::crash;
use retrysafe_gates::plan::{CrashPlan, Plan, Values, VerifyPlan};
use retrysafe_gates::report::{Counterexample, Line, Part, Report, Verdict};
use retrysafe_gates::safety::Estimate;

/// Requests of a timeline that are printed; the JSON has all.
const LINES_MAX: usize = 12;
/// Characters of the drawn timeline.
const WIDTH: usize = 36;

fn style(verdict: Option<Verdict>) -> Style {
    match verdict {
        Some(Verdict::Pass) => AnsiColor::Green.on_default().bold(),
        Some(Verdict::Fail) => AnsiColor::Red.on_default().bold(),
        Some(Verdict::Inconclusive) => AnsiColor::Yellow.on_default().bold(),
        None => Style::new().dimmed(),
    }
}

/// Prints a report.
pub(super) fn report(report: &Report) {
    anstream::println!("{} gate: {}\n", report.gate, report.target);
    for part in &report.parts {
        line(part);
    }
    let examples: Vec<_> =
        report.parts.iter().filter_map(|part| Some((part, part.counterexample.as_ref()?))).collect();
    // One is enough to begin with: arms that fail together mostly fail for one reason.
    if let Some((part, example)) = examples.first() {
        counterexample(part, example);
    }
    if examples.len() > 1 {
        anstream::println!(
            "\n{} more rounds that show a fault are in the report (--json FILE)",
            examples.len() - 1
        );
    }
    anstream::println!();
    if let Some(overlap) = &report.overlap {
        anstream::println!("overlap: {overlap}");
    }
    if let Some(power) = &report.power {
        anstream::println!("power: {power}");
    }
    let style = style(Some(report.verdict));
    anstream::println!(
        "{style}{}{style:#}: {} requests in {:.1} s (--seed {})",
        report.verdict.word(),
        report.requests,
        report.seconds,
        report.seed
    );
}

fn line(part: &Part) {
    let style = style(part.verdict);
    let word = part.verdict.map_or("not run", Verdict::word);
    let rounds = match (part.failed_rounds, part.rounds) {
        (_, 0) => String::new(),
        (0, rounds) => format!("{rounds} rounds"),
        (failed, rounds) => format!("{failed} of {rounds} rounds"),
    };
    anstream::println!("{:<4} {style}{word:<12}{style:#} {:<38} {rounds}", part.id, part.title);
    for said in &part.said {
        anstream::println!("     {said}");
    }
    for change in &part.change {
        anstream::println!("     change: {change}");
    }
}

fn counterexample(part: &Part, example: &Counterexample) {
    anstream::println!(
        "\n{}, round {} ({}), requests {}:",
        part.id,
        example.round,
        part.title,
        example.shape
    );
    for (observer, count) in &example.effects {
        anstream::println!("  observer `{observer}` counted {count}");
    }
    let end = example.timeline.iter().map(|line| line.done_ms).fold(0.0_f64, f64::max);
    for line in example.timeline.iter().take(LINES_MAX) {
        let status = line.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
        anstream::println!(
            "  {:<5} {} {} {:>8.2} to {:>8.2} ms  {status:<4} {}",
            line.step,
            line.request,
            drawn(line, end),
            line.complete_ms,
            line.done_ms,
            line.told
        );
    }
    if example.timeline.len() > LINES_MAX {
        anstream::println!("  ... and {} more", example.timeline.len() - LINES_MAX);
    }
    anstream::println!("  by hand:");
    for command in &example.curl {
        anstream::println!("    {command}");
    }
}

/// A request as a bar: dots from its first byte, a line from its last one to its answer.
fn drawn(line: &Line, end: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a column of a few dozen")]
    let column =
        |at: f64| ((at / end.max(f64::MIN_POSITIVE)) * WIDTH as f64).clamp(0.0, WIDTH as f64) as usize;
    let (sent, complete, done) = (column(line.sent_ms), column(line.complete_ms), column(line.done_ms));
    (0..WIDTH)
        .map(|at| match at {
            at if at < sent || at > done => ' ',
            at if at < complete => '.',
            _ => '=',
        })
        .collect()
}

/// Prints what would be sent.
pub(super) fn dry_run(plan: &Plan, estimate: Estimate) {
    let bases: Vec<&str> = plan.bases.iter().map(|base| base.authority.as_str()).collect();
    anstream::println!("nothing is sent. A run would send to {}:\n", bases.join(", "));
    for arm in Arm::ALL {
        let about = arm.about();
        anstream::println!("{:<4} {:<38} finds {}", about.id, about.title, about.catches);
    }
    anstream::println!(
        "\noperation: {} (every request carries {})",
        plan.request.method,
        retrysafe_gates::concurrency::TAG
    );
    anstream::println!(
        "at most {} requests; {} effects where keys work, {} where they do not",
        estimate.requests,
        estimate.effects,
        estimate.effects_at_worst
    );
    for observer in &plan.observers {
        let counts = if observer.source.counts_one() {
            "each operation"
        } else {
            "a total: nothing else may write meanwhile"
        };
        anstream::println!("observer `{}` counts {counts}", observer.name);
    }
}

/// Prints what the verify gate would send.
pub(super) fn dry_verify(plan: &VerifyPlan, estimate: Estimate) {
    let bases: Vec<&str> = plan.bases.iter().map(|base| base.authority.as_str()).collect();
    anstream::println!(
        "nothing is sent. A run would send to {}, each several times and twice at once:\n",
        bases.join(", ")
    );
    let shown = Values { id: "{id}".to_owned(), nonce: "{nonce}".to_owned(), ..Values::default() };
    for claim in &plan.claims {
        anstream::println!(
            "{} {}, read by GET {}",
            claim.operation.method,
            claim.operation.path.fill(&shown),
            claim.read.fill(&shown)
        );
    }
    anstream::println!(
        "\nat most {} requests, {} of them writes",
        estimate.requests,
        estimate.effects_at_worst
    );
}

/// Prints what the crash gate would do.
pub(super) fn dry_crash(plan: &CrashPlan, estimate: Estimate) {
    anstream::println!(
        "nothing is started. A run would start `{}` again and again, and kill it:\n",
        plan.command.join(" ")
    );
    for (id, what) in crash::parts() {
        anstream::println!("{id}   {what}");
    }
    anstream::println!("\nup to {} operations, each retried until it has an end", estimate.effects);
}
