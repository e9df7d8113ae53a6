//! `cargo xtask test`: the whole quick tier, on a machine that has the Rust toolchain and a C compiler.
//!
//! Everything else a stage needs it gets for itself and says so: this file adds missing toolchain
//! components, the proofs put Python and Node packages under `target/tools`.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::prove;
use crate::root::{cargo, root};
use crate::stage::Stages;
use crate::tidy;

/// Runs every stage; `true` if all of them held and at least one test ran.
pub(crate) fn run(proofs: bool) -> Result<bool> {
    component("rustfmt", "fmt")?;
    component("clippy", "clippy")?;
    let mut stages = Stages::default();
    stages.command("format", cargo(["fmt", "--all", "--check"]))?;
    stages.stage("tidy", |_| tidy::run())?;
    stages.command(
        "clippy",
        cargo(["clippy", "--locked", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    )?;
    // Doctests run too: `cargo test` without a target filter includes them.
    stages.command("tests", cargo(["test", "--locked", "--workspace", "--no-fail-fast"]))?;
    if proofs {
        let [build, run] = prove::quick_commands();
        stages.command("build proofs", build)?;
        stages.command("quick proofs", run)?;
    }
    Ok(stages.close())
}

/// Makes sure a component of the toolchain is there; a minimal rustup profile lacks both of ours.
fn component(name: &str, subcommand: &str) -> Result<()> {
    let present = |mut command: Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if present(cargo([subcommand, "--version"])) {
        return Ok(());
    }
    println!("{name} is missing: adding it to the toolchain with rustup");
    let added = Command::new("rustup")
        .current_dir(root())
        .args(["component", "add", name])
        .status()
        .is_ok_and(|status| status.success());
    if !added {
        bail!("{name} is not installed and `rustup component add {name}` failed; install it and run again");
    }
    Ok(())
}
