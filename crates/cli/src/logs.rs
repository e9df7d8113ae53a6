//! Structured logs on standard error; standard output is for what a person asked to see.

use std::io::IsTerminal;

use clap::Args;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// How the process logs.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// Log one JSON object per line
    #[arg(long)]
    json_logs: bool,
    /// What to log: a level, or directives such as `warn,retrysafe_server=debug`
    #[arg(long, env = "RETRYSAFE_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
}

impl LogArgs {
    /// Starts logging. Neither keys nor bodies are ever logged, at any level of this project's own crates.
    pub(crate) fn start(&self) -> Result<(), Failure> {
        let filter = EnvFilter::try_new(&self.log)
            .map_err(|error| Failure::usage(format!("--log {:?} is not a filter: {error}", self.log)))?;
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let started = match self.json_logs {
            true => logs.json().flatten_event(true).try_init(),
            false => logs.with_ansi(colours).try_init(),
        };
        started.map_err(|error| Failure::runtime(format!("logging cannot be started: {error}")))
    }
}
