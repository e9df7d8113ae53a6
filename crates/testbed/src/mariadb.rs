//! MariaDB.

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

/// Names the shared server: `mysql://user[:password]@host:port`, without a database.
pub const VARIABLE: &str = "RETRYSAFE_TEST_MARIADB";

const DEFAULT: &str = "mysql://root@127.0.0.1:3306";
const FOLDERS: &[&str] = &["/usr/sbin", "/usr/bin"];
const PACKAGE: &str = "mariadb-server";
const CLIENT_PACKAGE: &str = "mariadb-client";

/// The address of a server that tests share. They may make databases on it and nothing else.
pub fn shared() -> &'static str {
    static SHARED: OnceLock<String> = OnceLock::new();
    static STARTED: OnceLock<Throwaway> = OnceLock::new();
    SHARED.get_or_init(|| {
        tools::shared(VARIABLE, DEFAULT, answers, || STARTED.get_or_init(|| Throwaway::start(&[])).address())
    })
}

fn answers(address: &str) -> bool {
    let mut client = client(address);
    client.args(["-e", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
    client.status().is_ok_and(|status| status.success())
}

/// The client for an address. Its password goes by the environment, where no list of processes shows it.
fn client(address: &str) -> Command {
    let mut client = Command::new(find("mariadb", FOLDERS, CLIENT_PACKAGE).join("mariadb"));
    let place = address.trim_start_matches("mysql://");
    let (who, place) = place.rsplit_once('@').unwrap_or(("root", place));
    let (user, password) = who.split_once(':').unwrap_or((who, ""));
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "3306"));
    client.args(["--no-defaults", "--protocol=tcp", "--batch", "--skip-column-names", "--connect-timeout=5"]);
    client.args(["-h", host, "-P", port, "-u", user]).env("MYSQL_PWD", password).stdin(Stdio::null());
    client
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
        let mut client = client(&database.address);
        client.args(["-e", &format!("DROP DATABASE IF EXISTS {0}; CREATE DATABASE {0}", database.name)]);
        run(client);
        database
    }

    /// Its address, for clients.
    pub fn url(&self) -> String {
        self.url_at(&self.address)
    }

    /// Its address through something that stands in front of its server.
    pub fn url_at(&self, address: &str) -> String {
        format!("{address}/{}", self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs SQL with the client; returns what it prints, without headers.
    pub fn run(&self, sql: &str) -> String {
        let mut client = client(&self.address);
        client.args(["-D", &self.name, "-e", sql]);
        run(client).trim_end().to_owned()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Whoever still has a transaction open on it would keep it: their sessions end first.
        let sessions = format!("SELECT id FROM information_schema.processlist WHERE db = '{}'", self.name);
        let mut list = client(&self.address);
        let listed = list.args(["-e", &sessions]).stderr(Stdio::null()).output();
        // A server that the test has killed has taken the database along.
        let Ok(listed) = listed else { return };
        let mut sql = String::new();
        for id in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            sql.push_str(&format!("KILL CONNECTION {id}; "));
        }
        sql.push_str(&format!("SET lock_wait_timeout = 10; DROP DATABASE IF EXISTS {}", self.name));
        let mut drop = client(&self.address);
        // A session that has gone by itself is no reason to stop.
        let _ = drop.args(["--force", "-e", &sql]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// A server that belongs to one test: it may be killed, stopped and configured. Gone with its data at the end.
#[derive(Debug)]
pub struct Throwaway {
    folder: TempDir,
    user: Option<(u32, u32)>,
    port: u16,
    settings: Vec<String>,
    running: Option<Child>,
}

impl Throwaway {
    /// A new server with these settings, letting everybody on 127.0.0.1 in as root.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let programs = find("mariadb-install-db", FOLDERS, PACKAGE);
        let user = unprivileged("mysql");
        let folder =
            tempfile::Builder::new().prefix("retrysafe-mariadb-").tempdir().expect("a temporary folder");
        let temporary = folder.path().join("tmp");
        fs::create_dir(&temporary).expect("a folder for temporary tables");
        give(folder.path(), user);
        give(&temporary, user);
        let mut install = command_as(user, &programs.join("mariadb-install-db"));
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        install.arg(format!("--datadir={}", folder.path().join("data").display()));
        // A server that starts removes what it finds of temporary tables there, which another's may be.
        install.arg(format!("--tmpdir={}", temporary.display()));
        install.current_dir(folder.path());
        run(install);
        let settings = settings.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        let mut server = Self { folder, user, port: free_port(), settings, running: None };
        server.launch();
        server
    }

    /// One that speaks TLS to whoever asks for it.
    pub fn start_encrypted(certificates: &Certificates) -> Self {
        let user = unprivileged("mysql");
        give(certificates.folder(), user);
        give(&certificates.key(), user);
        let (certificate, key) = (certificates.server(), certificates.key());
        Self::start(&[
            ("ssl-cert", &certificate.display().to_string()),
            ("ssl-key", &key.display().to_string()),
        ])
    }

    /// Its address, without a database.
    pub fn address(&self) -> String {
        format!("mysql://root@127.0.0.1:{}", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `kill -9`: nothing is written down any more.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again after [`Throwaway::kill`].
    pub fn restart(&mut self) {
        self.launch();
    }

    /// Sends a signal to it, by name: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        if let Some(child) = &self.running {
            signal(name, child.id());
        }
    }

    fn launch(&mut self) {
        let program: PathBuf = find("mariadbd", FOLDERS, PACKAGE).join("mariadbd");
        let own = |name: &str| self.folder.path().join(name).display().to_string();
        let mut server = command_as(self.user, &program);
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--skip-name-resolve"]);
        server.arg(format!("--port={}", self.port)).arg(format!("--datadir={}", own("data")));
        server.arg(format!("--socket={}", own("socket"))).arg(format!("--pid-file={}", own("pid")));
        server.arg(format!("--tmpdir={}", own("tmp")));
        server.args(&self.settings).current_dir(self.folder.path());
        let log = fs::File::options().append(true).create(true).open(self.folder.path().join("log"));
        let log = log.expect("the server's log");
        server.stdout(log.try_clone().expect("the server's log")).stderr(log);
        self.running = Some(spawn(server));
        let address = self.address();
        wait_for("the start of MariaDB", || answers(&address));
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        self.kill();
    }
}
