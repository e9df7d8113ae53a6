//! The baselines: what we are compared with, started as processes of their own.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{Server, own};
use crate::race::ask;
use crate::tools;
use crate::wire::Template;

/// The handler bare: an axum server without any layer.
pub(crate) fn bare(name: &str, scratch: &Path) -> Result<Server> {
    Server::start(name, own(&["origin"])?, scratch)
}

/// The peer, built in a scratch project of its own (not in our lock file), and its session cookie.
pub(crate) fn peer(scratch: &Path) -> Result<(Server, String)> {
    let files = [
        ("Cargo.toml", include_str!("../../peers/Cargo.toml.in")),
        ("src/main.rs", include_str!("../../peers/axum_idempotent.rs")),
        ("src/handler.rs", include_str!("../handler.rs")),
    ];
    let binary = tools::peer("axum-idempotent", "peer", &files)?;
    let server = Server::start("peer", Command::new(binary), scratch)?;
    let target = server.address("listen")?;
    let answer = ask(target, Template::plain("GET", target, "/session", &[], "").bytes())?;
    let cookie = answer.header("set-cookie").and_then(|value| std::str::from_utf8(value).ok());
    let cookie = cookie.and_then(|cookie| cookie.split(';').next()).context("the peer opened no session")?;
    Ok((server, cookie.to_owned()))
}

/// nginx as a reverse proxy: two workers, kept-alive upstream connections, no logs.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: SocketAddr,
}

const NGINX_READY: Duration = Duration::from_secs(5);

impl Nginx {
    pub(crate) fn start(upstream: SocketAddr, scratch: &Path) -> Result<Self> {
        let program = tools::nginx()?;
        let folder = scratch.join("nginx");
        std::fs::create_dir_all(folder.join("logs"))?;
        // nginx cannot say which port it was given; a port that was free a moment ago is asked for by number.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        std::fs::write(folder.join("nginx.conf"), config(address, upstream))?;
        let child = Command::new(program)
            .arg("-p")
            .arg(&folder)
            .args(["-e", "stderr", "-c", "nginx.conf"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("start nginx")?;
        let nginx = Self { child, address };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if start.elapsed() > NGINX_READY {
                bail!("nginx does not listen on {address}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(nginx)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM first: a killed master leaves its workers behind.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

fn config(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "daemon off; worker_processes 2; pid nginx.pid; error_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; client_body_temp_path body; proxy_temp_path proxy;\n  \
         fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n  \
         keepalive_requests 100000000;\n  \
         upstream origin {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}\n  \
         server {{ listen {listen}; location / {{\n    \
         proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}\n}}\n"
    )
}
