//! Finding programs, ports and users.

use std::{
    ffi::OsStr,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU16, AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(20);

/// The address of a server that tests share: the one that `variable` names, the `usual` one if it answers, or one that is
/// started now.
pub(crate) fn shared(
    variable: &str,
    usual: &str,
    answers: impl Fn(&str) -> bool,
    start: impl FnOnce() -> String,
) -> String {
    if let Ok(named) = std::env::var(variable) {
        let named = named.trim_end_matches('/').to_owned();
        assert!(answers(&named), "{variable} names {named}, which does not answer; start it, or unset it");
        return named;
    }
    if answers(usual) { usual.to_owned() } else { start() }
}

/// The name of a database that no other test has now. A run that was killed, and whose process id comes round again, may
/// have left one of that name.
pub(crate) fn database_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("retrysafe_test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Ports of [`address`], below those that systems give away themselves.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// An address for a server that binds later, in another process, and perhaps again after a crash: nobody else is given it.
///
/// A port that was free a moment ago is not free any more when many processes ask for one, and the system itself takes ports for
/// connections that go out. But it has a whole network of loopback hosts: each process has its own, and gives each port once.
pub fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(PORTS.start);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    // Never 127.0.0.1, where everybody is; process ids have 22 bits at most.
    let host = Ipv4Addr::new(127, 64 | high, middle, low);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(PORTS.contains(&port), "no port is free on {host}");
        let address = SocketAddr::from((host, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port on 127.0.0.1");
    listener.local_addr().expect("a bound address").port()
}

/// The folder of a program: on the path, in one of `folders`, or installed with the Debian package `package`.
pub(crate) fn find(program: &str, folders: &[&str], package: &str) -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    if let Some(found) = look(program, folders) {
        return found;
    }
    let _one_at_a_time = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = look(program, folders) {
        return found;
    }
    eprintln!("{program} is missing: apt-get install {package}");
    for arguments in [&["update", "-q"][..], &["install", "-y", "-q", "--no-install-recommends", package]] {
        let ended = Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .status();
        if !ended.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("apt-get {arguments:?}: {ended:?}");
        }
    }
    look(program, folders).unwrap_or_else(|| {
        panic!("{program} is needed and not here, and `apt-get install {package}` did not bring it; install it by hand")
    })
}

/// Sees to it that strace is on the path.
pub fn strace() {
    find("strace", &[], "strace");
}

fn look(program: &str, folders: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = folders.iter().flat_map(|folder| versions(Path::new(folder))).collect();
    places.extend(std::env::split_paths(&path));
    places.into_iter().find(|place| place.join(program).is_file())
}

/// `/usr/lib/postgresql/*/bin`: the latest version first.
fn versions(pattern: &Path) -> Vec<PathBuf> {
    let text = pattern.to_string_lossy();
    let Some((before, after)) = text.split_once("/*/") else { return vec![pattern.to_owned()] };
    let mut found: Vec<PathBuf> = fs::read_dir(before)
        .map(|entries| entries.flatten().map(|entry| entry.path().join(after)).collect())
        .unwrap_or_default();
    found.sort();
    found.reverse();
    found
}

/// The user that servers run as, since most refuse to run as root; `None` where we are not root.
pub(crate) fn unprivileged(preferred: &str) -> Option<(u32, u32)> {
    let root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !root {
        return None;
    }
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    ids(preferred).or_else(|| ids("nobody"))
}

/// A command as that user, ended with this process.
pub(crate) fn command_as(user: Option<(u32, u32)>, program: &Path) -> Command {
    command_with(user, &["--pdeathsig", "KILL"], program)
}

/// A command as that user, which outlives this process unless it looks after itself.
pub(crate) fn command_that_stays(user: Option<(u32, u32)>, program: &Path) -> Command {
    command_with(user, &["--pdeathsig", "clear"], program)
}

fn command_with(user: Option<(u32, u32)>, settings: &[&str], program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if let Some((uid, gid)) = user {
        command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
    }
    command.args(settings).arg(program);
    command.stdin(Stdio::null());
    command
}

/// Starts a child that ends when this *process* ends. The signal comes when the thread that started the child ends, and the
/// threads of tests are short, so one thread starts all of them and stays.
pub(crate) fn spawn(command: Command) -> Child {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static NURSE: Mutex<Option<mpsc::Sender<Job>>> = Mutex::new(None);
    let mut nurse = NURSE.lock().unwrap_or_else(PoisonError::into_inner);
    let jobs = nurse.get_or_insert_with(|| {
        let (jobs, waiting) = mpsc::channel::<Job>();
        thread::spawn(move || {
            for (mut command, answer) in waiting {
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let what = format!("{command:?}");
    let (answer, child) = mpsc::channel();
    jobs.send((command, answer)).expect("the thread that starts servers");
    child.recv().expect("an answer").unwrap_or_else(|error| panic!("{what} does not start: {error}"))
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    if !output.status.success() {
        panic!(
            "{command:?} failed: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `there` is true.
pub(crate) fn wait_for(what: &str, there: impl FnMut() -> bool) {
    wait_at_most(PATIENCE, what, there);
}

/// The same for what takes longer.
pub(crate) fn wait_at_most(patience: Duration, what: &str, mut there: impl FnMut() -> bool) {
    let started = Instant::now();
    while !there() {
        assert!(started.elapsed() < patience, "{what} did not happen within {patience:?}");
        thread::sleep(POLL);
    }
}

/// Gives a file or folder to a user.
pub(crate) fn give(path: &Path, user: Option<(u32, u32)>) {
    if let Some((uid, gid)) = user {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("chown of an own folder");
    }
}

/// Sends a signal to one process.
pub(crate) fn signal(name: &str, pid: u32) {
    let mut command = Command::new("kill");
    command.args([OsStr::new("-s"), OsStr::new(name), OsStr::new(&pid.to_string())]);
    run(command);
}
