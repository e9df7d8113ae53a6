//! How a subcommand fails: with a sentence that says what to do, and one of two exit codes.

use std::fmt::Display;
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::net::TcpListener;

/// Something went wrong while running.
const RUNTIME: u8 = 1;
/// The command line or the contract has to be changed first; clap exits with the same code.
const USAGE: u8 = 2;

/// Why a subcommand ended early.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The arguments or the contract cannot be used as they are.
    pub(crate) fn usage(message: impl Display) -> Self {
        Self { code: USAGE, message: message.to_string() }
    }

    /// The machine did not do what was asked of it.
    pub(crate) fn runtime(message: impl Display) -> Self {
        Self { code: RUNTIME, message: message.to_string() }
    }
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)
    }
}

/// Prints a failure and turns it into the exit code.
pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            let red = anstyle::AnsiColor::Red.on_default().bold();
            anstream::eprintln!("{red}error{red:#}: {message}");
            ExitCode::from(code)
        }
    }
}

/// Listens, or says why not and which option chooses another address.
pub(crate) async fn listen(address: SocketAddr, option: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("another process has it; stop that, or choose another address with {option} (port 0 takes a free one)")
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("ports below 1024 need a privilege; choose another with {option}")
            }
            _ => format!("choose an address of this machine with {option}"),
        };
        Failure::runtime(format!("cannot listen on {address}: {error}; {advice}"))
    })
}

/// The address that was really bound, for port 0.
pub(crate) fn bound(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    listener.local_addr().map_err(|error| Failure::runtime(format!("the listener has no address: {error}")))
}
