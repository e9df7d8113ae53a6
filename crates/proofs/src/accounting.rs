//! What the servers cost, from the kernel's own books.

use std::time::Duration;

/// Processor time and memory of some processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) rss_kib: u64,
}

/// A process and all it started, now. A process that ended counts nothing.
pub(crate) fn usage(pid: u32) -> Usage {
    let mut total = Usage::default();
    for pid in family(pid) {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        total.cpu += cpu(&read("stat"));
        total.rss_kib += rss_kib(&read("status"));
    }
    total
}

/// Processor time used between two readings of the same processes.
pub(crate) fn spent(before: Usage, after: Usage) -> Duration {
    after.cpu.saturating_sub(before.cpu)
}

/// The process, its children, theirs. Bounded by what the kernel lists.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}

/// User and system time in `/proc/PID/stat`, fields 14 and 15; the name in field 2 may hold blanks.
fn cpu(stat: &str) -> Duration {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return Duration::ZERO };
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_micros((ticks(11) + ticks(12)) * 1_000_000 / per_second.max(1))
}

fn rss_kib(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lines_are_read() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 4 0 1 2 3";
        let per_second = rustix::param::clock_ticks_per_second();
        assert_eq!(cpu(stat), Duration::from_micros(200 * 1_000_000 / per_second));
        assert_eq!(cpu("nonsense"), Duration::ZERO);
        assert_eq!(rss_kib("Name:\tx\nVmRSS:\t  1234 kB\n"), 1234);
        assert_eq!(rss_kib(""), 0);
    }

    #[test]
    fn this_process_uses_something() {
        let usage = usage(std::process::id());
        assert!(usage.rss_kib > 0);
    }

    #[test]
    fn a_process_that_is_gone_counts_nothing() {
        assert_eq!(usage(u32::MAX), Usage::default());
    }
}
