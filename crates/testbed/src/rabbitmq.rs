//! RabbitMQ.
//!
//! Only a shared broker: tests make queues of their own on it, and break connections instead of the broker.

use std::{
    fs,
    net::{TcpStream, ToSocketAddrs},
    path::Path,
    process::Child,
    sync::OnceLock,
    time::Duration,
};

use tempfile::TempDir;

use crate::tools::{self, command_that_stays, find, free_port, give, spawn, unprivileged, wait_at_most};

/// Names the shared broker: an AMQP address.
pub const VARIABLE: &str = "RETRYSAFE_TEST_RABBITMQ";

const DEFAULT: &str = "amqp://guest:guest@127.0.0.1:5672/%2f";
const PORT: u16 = 5672;
const FOLDERS: &[&str] = &["/usr/lib/rabbitmq/bin"];
const PACKAGE: &str = "rabbitmq-server";

/// Erlang compiles much of itself at each start.
const START: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(1);

/// The broker is a grandchild, which no signal reaches when this process ends: its shell watches instead, and then ends the
/// whole session.
const WATCH: &str = r#"
    setsid "$1" & broker=$!
    while [ -d "/proc/$2" ] && [ -d "/proc/$broker" ]; do sleep 1; done
    kill -s KILL -- "-$broker"
"#;

/// The address of a broker that tests share.
pub fn shared() -> &'static str {
    static SHARED: OnceLock<String> = OnceLock::new();
    static STARTED: OnceLock<Broker> = OnceLock::new();
    SHARED.get_or_init(|| {
        tools::shared(VARIABLE, DEFAULT, answers, || STARTED.get_or_init(Broker::start).address())
    })
}

fn answers(address: &str) -> bool {
    let place = address.rsplit('@').next().unwrap_or(address).split('/').next().unwrap_or_default();
    let (host, port) = place.rsplit_once(':').unwrap_or((place, ""));
    let addresses = (host, port.parse().unwrap_or(PORT)).to_socket_addrs();
    addresses.is_ok_and(|mut all| all.any(|one| TcpStream::connect_timeout(&one, CONNECT).is_ok()))
}

/// A broker that ends with this process.
struct Broker {
    _folder: TempDir,
    _running: Child,
    port: u16,
}

impl Broker {
    fn address(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    fn start() -> Self {
        let program = find("rabbitmq-server", FOLDERS, PACKAGE).join("rabbitmq-server");
        let user = unprivileged("rabbitmq");
        let folder =
            tempfile::Builder::new().prefix("retrysafe-rabbitmq-").tempdir().expect("a temporary folder");
        give(folder.path(), user);
        let (port, distribution) = (free_port(), free_port());
        let own = |name: &str| folder.path().join(name).display().to_string();
        let mut server = command_that_stays(user, Path::new("/bin/sh"));
        server.args(["-c", WATCH, "sh"]).arg(program).arg(std::process::id().to_string());
        server.current_dir(folder.path());
        // Its cookie goes there, and another broker on this machine has another name.
        server.env("HOME", folder.path()).env("RABBITMQ_NODENAME", format!("test{port}@localhost"));
        server.env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1").env("ERL_EPMD_ADDRESS", "127.0.0.1");
        server.env("RABBITMQ_NODE_PORT", port.to_string());
        server.env("RABBITMQ_DIST_PORT", distribution.to_string());
        server.env("RABBITMQ_MNESIA_BASE", own("db")).env("RABBITMQ_LOG_BASE", own("log"));
        for unused in ["RABBITMQ_CONFIG_FILE", "RABBITMQ_CONF_ENV_FILE", "RABBITMQ_ENABLED_PLUGINS_FILE"] {
            server.env(unused, own("none"));
        }
        let log = fs::File::create(folder.path().join("output")).expect("the broker's output");
        server.stdout(log.try_clone().expect("the broker's output")).stderr(log);
        let running = spawn(server);
        let broker = Self { _folder: folder, _running: running, port };
        wait_at_most(START, "the start of RabbitMQ", || answers(&broker.address()));
        broker
    }
}
