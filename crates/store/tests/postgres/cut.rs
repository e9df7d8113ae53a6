//! Something between client and server that cuts the connection at a word.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use retrysafe_testbed::postgres::{host_and_port, shared};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Where the cut is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The server never sees the word.
    Before,
    /// The server sees it, and its answer is lost.
    After,
}

/// Passes everything on until it is armed; then the next message with the word is the last of its connection.
pub(crate) struct Cutter {
    pub(crate) address: String,
    armed: Arc<AtomicBool>,
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    pub(crate) async fn start(word: &'static str, cut: Cut) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = format!("postgres://postgres@127.0.0.1:{}", listener.local_addr().unwrap().port());
        let (armed, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let seen = (Arc::clone(&armed), Arc::clone(&cuts));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (armed, cuts) = (Arc::clone(&seen.0), Arc::clone(&seen.1));
                tokio::spawn(pass(client, word, cut, armed, cuts));
            }
        });
        Self { address, armed, cuts }
    }

    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// How often it has cut. A test that passes without a cut has shown nothing.
    pub(crate) fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

async fn pass(client: TcpStream, word: &str, cut: Cut, armed: Arc<AtomicBool>, cuts: Arc<AtomicUsize>) {
    let (host, port) = host_and_port(shared());
    let server = TcpStream::connect((host.as_str(), port)).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mute = Arc::new(AtomicBool::new(false));
    let muted = Arc::clone(&mute);
    // After a cut the server is heard to its end: closing before it has answered would reset the connection, and take from
    // the server what it has not read yet.
    let back = tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            if !muted.load(Ordering::SeqCst) && to_client.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
        let message = &buffer[..length];
        let there = message.windows(word.len()).any(|window| window == word.as_bytes());
        let now = there && armed.swap(false, Ordering::SeqCst);
        if now {
            cuts.fetch_add(1, Ordering::SeqCst);
            mute.store(true, Ordering::SeqCst);
            if cut == Cut::After {
                to_server.write_all(message).await.unwrap();
            }
            let _ = to_server.shutdown().await;
            let _ = back.await;
            return;
        }
        if to_server.write_all(message).await.is_err() {
            break;
        }
    }
    back.abort();
}
