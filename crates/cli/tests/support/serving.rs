//! The binary as a server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A process that is not ready, or not gone, after this has hung.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(30);

/// It, about to start in `folder`.
pub(crate) fn retrysafe(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
    command.current_dir(folder).args(args).env("RETRYSAFE_LOG", "warn");
    command
}

/// A serving process, killed when dropped.
pub(crate) struct Serving {
    pub(crate) child: Child,
    addresses: Value,
}

impl Serving {
    pub(crate) fn start(folder: &Path, args: &[&str]) -> Self {
        let ready = folder.join("ready.json");
        let _ = std::fs::remove_file(&ready);
        let common =
            ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file", "ready.json"];
        let mut child = retrysafe(folder, &[&common, args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let addresses = loop {
            if let Ok(text) = std::fs::read_to_string(&ready) {
                break serde_json::from_str(&text).unwrap();
            }
            if let Some(status) = child.try_wait().unwrap() {
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("ended at the start: {status}\n{said}");
            }
            assert!(started.elapsed() < GIVE_UP, "never ready");
            std::thread::sleep(Duration::from_millis(10));
        };
        Self { child, addresses }
    }

    /// An address that it listens on: `gateway`, `admin`, `shop`.
    pub(crate) fn address(&self, name: &str) -> &str {
        self.addresses[name].as_str().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request as it is and reads until the other side closes.
pub(crate) fn exchange(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
