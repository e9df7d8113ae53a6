//! PgBouncer, in transaction mode.

use std::{
    fs,
    net::TcpStream,
    process::{Child, Stdio},
};

use tempfile::TempDir;

use crate::tools::{command_as, find, free_port, give, spawn, unprivileged, wait_for};

/// A pooler in front of one server, gone at the end.
#[derive(Debug)]
pub struct PgBouncer {
    _folder: TempDir,
    port: u16,
    running: Child,
}

impl PgBouncer {
    /// A pooler in transaction mode in front of the PostgreSQL at `host:port`, with `pool` connections to each database.
    pub fn start(host: &str, port: u16, pool: usize) -> Self {
        let program = find("pgbouncer", &["/usr/sbin"], "pgbouncer").join("pgbouncer");
        let user = unprivileged("postgres");
        let folder =
            tempfile::Builder::new().prefix("retrysafe-pgbouncer-").tempdir().expect("a temporary folder");
        let own = free_port();
        let (users, settings) = (folder.path().join("users.txt"), folder.path().join("pgbouncer.ini"));
        fs::write(&users, "\"postgres\" \"\"\n").expect("the users of the pooler");
        let text = format!(
            "[databases]\n* = host={host} port={port}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {own}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {pool}\n\
             max_client_conn = 500\nlogfile = {}\npidfile = {}\n",
            users.display(),
            folder.path().join("log").display(),
            folder.path().join("pid").display(),
        );
        fs::write(&settings, text).expect("the settings of the pooler");
        for path in [folder.path(), &users, &settings] {
            give(path, user);
        }
        let mut command = command_as(user, &program);
        command.arg(&settings).stdout(Stdio::null()).stderr(Stdio::null());
        let running = spawn(command);
        wait_for("the start of PgBouncer", || TcpStream::connect(("127.0.0.1", own)).is_ok());
        Self { _folder: folder, port: own, running }
    }

    /// Its address, without a database.
    pub fn address(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}
