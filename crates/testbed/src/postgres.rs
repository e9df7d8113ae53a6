//! PostgreSQL.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::Certificates;
use crate::tools::{
    self, command_as, database_name, find, free_port, give, run, signal, spawn, unprivileged, wait_for,
};

/// Names the shared server: `postgres://user[:password]@host:port`, without a database.
pub const VARIABLE: &str = "RETRYSAFE_TEST_POSTGRES";

const DEFAULT: &str = "postgres://postgres@127.0.0.1:5432";
const FOLDERS: &[&str] = &["/usr/lib/postgresql/*/bin"];
const PACKAGE: &str = "postgresql";
const CLIENT_PACKAGE: &str = "postgresql-client";

/// The address of a server that tests share. They may make databases on it and nothing else.
pub fn shared() -> &'static str {
    static SHARED: OnceLock<String> = OnceLock::new();
    static STARTED: OnceLock<Throwaway> = OnceLock::new();
    SHARED.get_or_init(|| {
        tools::shared(VARIABLE, DEFAULT, answers, || {
            STARTED.get_or_init(|| Throwaway::start(&[("fsync", "off")])).address()
        })
    })
}

/// Host and port of an address.
pub fn host_and_port(address: &str) -> (String, u16) {
    let place = address.rsplit(['@', '/']).next().unwrap_or(address);
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "5432"));
    (host.to_owned(), port.parse().unwrap_or_else(|_| panic!("{address} has no port")))
}

fn answers(address: &str) -> bool {
    let mut psql = psql(address, "postgres");
    psql.args(["-c", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
    psql.status().is_ok_and(|status| status.success())
}

fn psql(address: &str, database: &str) -> Command {
    let mut psql = Command::new(find("psql", FOLDERS, CLIENT_PACKAGE).join("psql"));
    psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d"]).arg(format!("{address}/{database}"));
    psql.env("PGCONNECT_TIMEOUT", "5").stdin(Stdio::null());
    psql
}

/// A database of its own on some server, dropped at the end with whatever is connected to it.
#[derive(Debug)]
pub struct Database {
    address: String,
    name: String,
}

impl Database {
    /// A new database on the shared server.
    pub fn create() -> Self {
        Self::on(shared())
    }

    /// A new database on the server at `address`.
    pub fn on(address: &str) -> Self {
        let database = Self { address: address.to_owned(), name: database_name() };
        database.admin(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database.name));
        database.admin(&format!("CREATE DATABASE {}", database.name));
        database
    }

    /// Its address, for clients.
    pub fn url(&self) -> String {
        format!("{}/{}", self.address, self.name)
    }

    /// Its address through something that stands in front of its server.
    pub fn url_at(&self, address: &str) -> String {
        format!("{address}/{}", self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs SQL with `psql`; returns what it prints, unaligned, without headers.
    pub fn psql(&self, sql: &str) -> String {
        let mut psql = psql(&self.address, &self.name);
        psql.args(["-c", sql]);
        run(psql).trim_end().to_owned()
    }

    fn admin(&self, sql: &str) {
        let mut psql = psql(&self.address, "postgres");
        // A notice that a database is not there is no news.
        psql.env("PGOPTIONS", "-c client_min_messages=error").args(["-c", sql]);
        run(psql);
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let mut psql = psql(&self.address, "postgres");
        psql.args(["-c", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)]);
        // A server that the test has killed has taken it along.
        let _ = psql.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// A server that belongs to one test: it may be killed, stopped and configured. Gone with its data at the end.
#[derive(Debug)]
pub struct Throwaway {
    folder: TempDir,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    port: u16,
    settings: Vec<String>,
    running: Option<Child>,
}

impl Throwaway {
    /// A new server with these settings, trusting everybody on 127.0.0.1.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let programs = find("initdb", FOLDERS, PACKAGE);
        // Where `initdb` is a wrapper, the server itself may be elsewhere.
        let programs =
            if programs.join("postgres").is_file() { programs } else { find("postgres", FOLDERS, PACKAGE) };
        let user = unprivileged("postgres");
        let folder =
            tempfile::Builder::new().prefix("retrysafe-postgres-").tempdir().expect("a temporary folder");
        give(folder.path(), user);
        let mut initdb = command_as(user, &programs.join("initdb"));
        initdb.args([
            "--no-sync",
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
        ]);
        initdb.arg(folder.path().join("data")).current_dir(folder.path());
        run(initdb);
        let settings = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut server = Self { folder, programs, user, port: free_port(), settings, running: None };
        server.launch();
        server
    }

    /// One that speaks TLS to whoever asks for it.
    pub fn start_encrypted(certificates: &Certificates) -> Self {
        let user = unprivileged("postgres");
        give(certificates.folder(), user);
        // Nobody else may read its key, or the server refuses it.
        give(&certificates.key(), user);
        let (certificate, key) = (certificates.server(), certificates.key());
        Self::start(&[
            ("fsync", "off"),
            ("ssl", "on"),
            ("ssl_cert_file", &certificate.display().to_string()),
            ("ssl_key_file", &key.display().to_string()),
        ])
    }

    /// Its address, without a database.
    pub fn address(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `kill -9` of the server and all its sessions: nothing is written down any more.
    pub fn kill(&mut self) {
        let pids = self.sessions();
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // A session goes by itself once it notices; a test must not meet one that has not.
        wait_for("the end of the server's sessions", || {
            pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        });
    }

    /// Starts it again after [`Throwaway::kill`].
    pub fn restart(&mut self) {
        let _ = fs::remove_file(self.folder.path().join("data/postmaster.pid"));
        self.launch();
    }

    /// The process ids of everything that belongs to it, but for the server itself.
    pub fn sessions(&self) -> Vec<u32> {
        let Some(child) = &self.running else { return Vec::new() };
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let children = fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Sends a signal to one of its processes.
    pub fn signal(&self, name: &str, pid: u32) {
        signal(name, pid);
    }

    fn launch(&mut self) {
        let mut postgres = command_as(self.user, &self.programs.join("postgres"));
        postgres.arg("-D").arg(self.folder.path().join("data")).current_dir(self.folder.path());
        postgres.args(["-p", &self.port.to_string(), "-k", "", "-c", "listen_addresses=127.0.0.1"]);
        for setting in &self.settings {
            postgres.args(["-c", setting]);
        }
        let log = fs::File::options().append(true).create(true).open(self.folder.path().join("log"));
        let log = log.expect("the server's log");
        postgres.stdout(log.try_clone().expect("the server's log")).stderr(log);
        self.running = Some(spawn(postgres));
        let address = self.address();
        wait_for("the start of PostgreSQL", || answers(&address));
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        self.kill();
    }
}
