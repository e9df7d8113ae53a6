//! Redis.
//!
//! Only a shared server: tests use keys with a prefix of their own, which are deleted at the end.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::tools::{
    self, command_as, database_name, find, free_port, give, run, spawn, unprivileged, wait_for,
};

/// Names the shared server: `redis://[user:password@]host:port`.
pub const VARIABLE: &str = "RETRYSAFE_TEST_REDIS";

const DEFAULT: &str = "redis://127.0.0.1:6379";
const FOLDERS: &[&str] = &["/usr/bin", "/usr/local/bin"];
const PACKAGE: &str = "redis-server";
const CLIENT_PACKAGE: &str = "redis-tools";

/// The address of a server that tests share.
pub fn shared() -> &'static str {
    static SHARED: OnceLock<String> = OnceLock::new();
    static STARTED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| {
        tools::shared(VARIABLE, DEFAULT, answers, || STARTED.get_or_init(Server::start).address())
    })
}

fn answers(address: &str) -> bool {
    let mut client = client(address);
    client.arg("PING").stderr(Stdio::null());
    client.output().is_ok_and(|output| output.stdout.starts_with(b"PONG"))
}

fn client(address: &str) -> Command {
    let mut client = Command::new(program("redis-cli", CLIENT_PACKAGE));
    client.args(["--raw", "-u", address]).stdin(Stdio::null());
    client
}

fn program(name: &str, package: &str) -> PathBuf {
    find(name, FOLDERS, package).join(name)
}

/// A part of a server's keys that belongs to one test, deleted at the end.
#[derive(Debug)]
pub struct Space {
    prefix: String,
}

impl Space {
    /// A new one on the shared server.
    pub fn create() -> Self {
        let _server = shared();
        Self { prefix: format!("{}:", database_name()) }
    }

    /// The address of its server.
    pub fn url(&self) -> &str {
        shared()
    }

    /// What the names of its accounts begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Whatever has the prefix in its name: what uses the server may put words of its own before it.
        let mut list = client(shared());
        list.args(["--scan", "--pattern", &format!("*{}*", self.prefix)]);
        for key in run(list).lines() {
            let mut delete = client(shared());
            delete.args(["DEL", key]);
            run(delete);
        }
    }
}

/// A server that ends with this process.
struct Server {
    _folder: TempDir,
    _running: Child,
    port: u16,
}

impl Server {
    fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn start() -> Self {
        let user = unprivileged("redis");
        let folder =
            tempfile::Builder::new().prefix("retrysafe-redis-").tempdir().expect("a temporary folder");
        give(folder.path(), user);
        let port = free_port();
        let mut server = command_as(user, &program("redis-server", PACKAGE));
        server.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()]);
        server.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { _running: spawn(server), _folder: folder, port };
        wait_for("the start of Redis", || answers(&server.address()));
        server
    }
}
