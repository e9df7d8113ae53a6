//! Targets behind TLS: a server of this test's own ends it in front of the bench's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use retrysafe_gates::arrive::{Lanes, Shot};
use retrysafe_gates::concurrency;
use retrysafe_gates::plan::{Outside, Plan};
use retrysafe_gates::report::{Report, Verdict};
use retrysafe_gates::safety::Allowance;
use retrysafe_gates::wire::Filled;
use retrysafe_mutants::{PLAN, Running, Terms, find};
use retrysafe_testbed::Certificates;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio_rustls::TlsAcceptor;

/// Ends TLS and passes the rest on; it ends with this value.
struct Front {
    address: SocketAddr,
    certificates: Certificates,
    _runtime: tokio::runtime::Runtime,
}

impl Front {
    /// In front of `to`, offering these protocols.
    fn start(to: SocketAddr, protocols: &[&[u8]]) -> Self {
        let certificates = Certificates::make();
        let chain = CertificateDer::pem_file_iter(certificates.server()).expect("a file");
        let chain = chain.collect::<Result<Vec<_>, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(certificates.key()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config =
            builder.expect("versions").with_no_client_auth().with_single_cert(chain, key).expect("a pair");
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("one");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("bound");
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    stream.set_nodelay(true)?;
                    let mut outside = acceptor.accept(stream).await?;
                    let mut inside = tokio::net::TcpStream::connect(to).await?;
                    inside.set_nodelay(true)?;
                    tokio::io::copy_bidirectional(&mut outside, &mut inside).await
                });
            }
        });
        Self { address, certificates, _runtime: runtime }
    }

    fn plan(&self, ca: Option<&str>, more: &str) -> Result<Plan, String> {
        let port = self.address.port();
        let named = ca.map(|file| format!("ca = {file:?}\n")).unwrap_or_default();
        // The server is `localhost` and no other name.
        let text = format!("base = \"https://localhost:{port}\"\n{named}{PLAN}{more}");
        let file = |path: &str| std::fs::read_to_string(path).map_err(|error| error.to_string());
        let outside = Outside { file: &file, ..Outside::NOTHING };
        Plan::parse_with(&text, "gates.toml", outside).map_err(|faults| faults.to_string())
    }

    fn trusted(&self, more: &str) -> Plan {
        let file = self.certificates.authority().display().to_string();
        self.plan(Some(&file), more).unwrap_or_else(|faults| panic!("{faults}"))
    }
}

fn run(plan: &Plan) -> Report {
    let allowance = Allowance { owned: None, time: Duration::from_secs(120) };
    concurrency::run(plan, &allowance, 7, &mut |_| ()).expect("it can be run")
}

fn bench(name: &str) -> Running {
    Running::start(find(name).expect("a name"), &Terms::default()).expect("a port")
}

#[test]
fn races_over_tls_find_what_is_broken_and_pass_what_is_sound() {
    for (name, verdict) in [("sound", Verdict::Pass), ("check-then-insert", Verdict::Fail)] {
        let running = bench(name);
        let front = Front::start(running.addresses()[0], &[b"h2", b"http/1.1"]);
        let mut plan = front.trusted("[concurrency]\nhttp2 = true\nrounds = 3\n");
        if verdict == Verdict::Fail {
            plan.concurrency.rounds = Some(1);
        }
        let report = run(&plan);
        let race = report.part("A1").expect("it ran");
        assert_eq!((report.verdict, race.verdict), (verdict, Some(verdict)), "{name}: {report:#?}");
        if let Some(example) = &race.counterexample {
            let file = front.certificates.authority().display().to_string();
            assert!(example.curl[0].contains("https://localhost:"), "{example:?}");
            assert!(example.curl[0].contains(&format!("--cacert '{file}'")), "{example:?}");
        }
    }
}

#[test]
fn a_packet_over_tls_needs_a_server_that_offers_http2() {
    let running = bench("sound");
    let front = Front::start(running.addresses()[0], &[b"http/1.1"]);
    let plan = front.trusted("");
    let lanes = Lanes::new(plan.bases.clone(), Instant::now(), Duration::from_secs(5));
    let volley = lanes.one_packet(&[shot(), shot()], Duration::ZERO);
    let why = |lost: &retrysafe_gates::arrive::Lost| lost.0.contains("HTTP/2");
    assert!(volley.timed.iter().all(|timed| timed.outcome.as_ref().is_err_and(why)), "{volley:?}");
}

#[test]
fn who_is_vouched_for_by_nobody_is_not_spoken_to() {
    let running = bench("check-then-insert");
    let front = Front::start(running.addresses()[0], &[b"http/1.1"]);
    let plan = front.plan(None, "").expect("browsers' authorities need no file");
    let report = run(&plan);
    assert_eq!(report.verdict, Verdict::Inconclusive, "{report:#?}");
    assert!(format!("{report:?}").contains("UnknownIssuer"), "{report:#?}");
    let server = front.certificates.key().display().to_string();
    let faults = front.plan(Some(&server), "").expect_err("a key is no authority");
    assert!(faults.contains("there is no certificate in it"), "{faults}");
    assert!(front.plan(Some("/nowhere/ca.pem"), "").expect_err("no file").contains("cannot be read"));
}

fn shot() -> Shot {
    let request =
        Filled { method: "POST".into(), path: "/".into(), headers: vec![], body: Some("{}".into()) };
    Shot { base: 0, request }
}

#[test]
fn no_request_over_tls_is_complete_before_all_are_there() {
    use std::io::{Read, Write};
    const TOGETHER: usize = 8;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        // The server answers nobody before it has all of them: one at a time would never end.
        let barrier = Arc::new(Barrier::new(TOGETHER));
        for mut stream in listener.incoming().flatten() {
            let barrier = barrier.clone();
            std::thread::spawn(move || {
                let (mut came, mut chunk) = (Vec::new(), [0; 1024]);
                while !came.ends_with(b"{}") {
                    let count = stream.read(&mut chunk).expect("a request");
                    came.extend_from_slice(&chunk[..count]);
                }
                barrier.wait();
                let _ = stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\nok");
            });
        }
    });
    let front = Front::start(to, &[b"http/1.1"]);
    let plan = front.trusted("");
    let mut lanes = Lanes::new(plan.bases.clone(), Instant::now(), Duration::from_secs(10));
    // Tickets of TLS come before any answer, and are none.
    let volley =
        lanes.at_once((0..TOGETHER).map(|_| shot()).collect(), Duration::from_millis(50), &mut |_| ());
    assert!(volley.timed.iter().all(|it| it.outcome.as_ref().is_ok_and(|answer| answer.status == 201)));
    assert!(volley.early < TOGETHER, "{volley:?}");
    // What the server has closed meanwhile is not used again.
    let again = lanes.at_once((0..TOGETHER).map(|_| shot()).collect(), Duration::ZERO, &mut |_| ());
    assert!(again.timed.iter().all(|it| it.outcome.as_ref().is_ok_and(|answer| answer.status == 201)));
}
