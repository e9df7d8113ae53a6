//! What the reader of a terminal sees: progress while it runs, the figure last.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on a terminal, nothing in a log.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new(what: &str, steps: usize) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX))
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}") {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        Self(bar)
    }

    pub(crate) fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
