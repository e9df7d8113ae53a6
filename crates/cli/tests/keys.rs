//! `retrysafe keys` as a process, on every store that keeps journals.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{ExitStatus, Output};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::Body,
    record::{Expect, Record, RecoveryClass, State, Uncertainty, Write},
    recovery::{Act, DownstreamKey, Entry, Event, External, Progress, Shape, Snapshot, StepName, Stopped},
};
use retrysafe_store::{
    Store, Written,
    journal::{NewEffect, Notes, Replays, Sent},
    mariadb::{MariaOptions, MariaStore},
    postgres::{PostgresOptions, PostgresStore, StoreAddress},
    sqlite::{SqliteOptions, SqliteStore},
};
use retrysafe_testbed::{mariadb, postgres};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use support::{retrysafe, text};

/// What no output may show unless it was asked for: keys, accounts, bodies, the keys of calls.
const SECRETS: [&str; 4] = ["secret-key", "alice", "4242", "call-key-7"];

/// What a terminal makes of ^D at the beginning of a line.
const END_OF_INPUT: &str = "\u{4}";

fn address(key: &str) -> Address {
    let (account, key) = (Account::new(&["alice"]).unwrap(), Key::trusted(key).unwrap());
    Address::new(Namespace::new("shop").unwrap(), account, key)
}

/// A store with three keys, and the command on it.
struct Desk {
    folder: tempfile::TempDir,
    store: Arc<dyn Store>,
    url: String,
}

impl Desk {
    fn keys(&self, args: &[&str]) -> Output {
        retrysafe(self.folder.path(), &[&["keys"], args, &["--store", &self.url]].concat())
    }

    /// A success, as JSON.
    fn told(&self, args: &[&str]) -> Value {
        let output = self.keys(&[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A refusal, with its exit code.
    fn refused(&self, code: i32, args: &[&str]) -> String {
        let output = self.keys(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }

    /// The command as somebody at a terminal runs it, who types `said` once asked. Everything that the terminal showed.
    fn at_terminal(&self, args: &[&str], said: &str) -> (ExitStatus, String) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || std::fs::File::options().read(true).write(true).open(&name).unwrap();
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_retrysafe"))
            .current_dir(self.folder.path())
            .args([&["keys"], args, &["--store", &self.url]].concat())
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let mut master = std::fs::File::from(master);
        let (mut shown, mut typed, mut chunk) = (Vec::new(), false, [0; 4096]);
        // The terminal ends with an error when the last one has left it.
        while let Ok(read @ 1..) = master.read(&mut chunk) {
            shown.extend_from_slice(&chunk[..read]);
            if !typed && text(&shown).contains("to do it: ") {
                master.write_all(said.as_bytes()).unwrap();
                typed = true;
            }
        }
        assert!(typed, "nobody was asked: {}", text(&shown));
        (child.wait().unwrap(), text(&shown))
    }

    async fn put(&self, key: &str, number: u128, recovery: RecoveryClass, state: State) -> Record {
        let record = Record {
            attempt: AttemptId::new(number),
            fence: Fence::from_u64(0),
            status_id: StatusId::new(1000 + number),
            fingerprint: Fingerprint::from_parts(1, 1, [0; 32]),
            recovery,
            contract_version: 1,
            endpoint: "POST /rides".into(),
            opened_at: self.store.now().unwrap(),
            state,
        };
        let write = Write { expect: Expect::Absent, next: record.clone() };
        let Written::Yes(fence) = self.store.write_if(&address(key), &write).await.unwrap() else {
            panic!("{key} was there");
        };
        Record { fence, ..record }
    }

    async fn load(&self, key: &str) -> Option<Record> {
        self.store.load(&address(key)).await.unwrap()
    }

    /// One that was stopped in the middle of its call.
    async fn put_stopped(&self, key: &str, number: u128) -> Record {
        let now = self.store.now().unwrap();
        let held = self.put(key, number, RecoveryClass::Phased, State::InFlight { lease_until: now }).await;
        let shape = Shape::new("rides").unwrap().phase("create").unwrap();
        let shape = shape.external("charge", External::NEVER_AGAIN).unwrap();
        let (create, charge) = (StepName::new("create").unwrap(), StepName::new("charge").unwrap());
        let request = Snapshot { principal: "alice".into(), fields: Bytes::from_static(b"{\"card\":4242}") };
        let key_of_call = DownstreamKey::from_stored("call-key-7");
        let body = Bytes::from_static(b"4242");
        let events = [
            Event::Opened { plan: shape.text(), request, deadline: now },
            Event::Done { step: create, result: body.clone() },
            Event::Intent { step: charge.clone(), key: key_of_call, request: body },
            Event::Stopped(Stopped::Unresolved { step: charge }),
        ];
        let entry = |(seq, event)| Entry { seq, attempt: held.attempt, at: now, event };
        let mut notes = Notes::entries(held.status_id, (0..).zip(events).map(entry).collect());
        let effect = |name: &str, due| NewEffect {
            name: name.into(),
            key: DownstreamKey::from_stored("call-key-7"),
            payload: Bytes::from_static(b"4242"),
            at: now,
            due,
        };
        notes.staged = vec![effect("mail", now), effect("event", now.plus(Duration::from_secs(3600)))];
        let state = State::Uncertain { since: now, why: Uncertainty::Stopped };
        let stopped = Record { state, ..held };
        let write = Write { expect: Expect::Attempt(stopped.attempt), next: stopped.clone() };
        let written = self.store.journals().unwrap().note_if(&address(key), &write, &notes).await.unwrap();
        assert!(matches!(written, Written::Yes(_)));
        stopped
    }
}

fn handle(record: &Record) -> String {
    format!("shop:{}", record.status_id)
}

fn shows_no_secret(output: &[u8]) {
    let shown = text(output);
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{secret:?} in {shown}");
    }
}

/// All of it, on one store.
async fn a_person_decides(desk: &Desk) {
    let now = desk.store.now().unwrap();
    let live = State::InFlight { lease_until: now.plus(Duration::from_secs(3600)) };
    let live = desk.put("secret-key-1", 1, RecoveryClass::Phased, live).await;
    let lost = State::Uncertain { since: now, why: Uncertainty::UpstreamLost };
    let lost = desk.put("secret-key-2", 2, RecoveryClass::Outside, lost).await;
    let stopped = desk.put_stopped("secret-key-3", 3).await;

    replays_and_effects_are_shown(desk, &stopped).await;
    found_and_told(desk, [&live, &lost, &stopped]);
    nothing_is_done_lightly(desk, [&live, &lost]).await;
    resolved(desk, &lost).await;
    resumed_and_released(desk, &stopped).await;
    a_call_that_was_made_is_resolved(desk).await;
    a_person_at_a_terminal_is_asked(desk).await;

    let log = desk.told(&["log"]);
    let acts: Vec<_> = log["acts"].as_array().unwrap().iter().map(|line| &line["act"]).collect();
    assert_eq!(acts, ["resolve", "resume", "release", "resolve", "release"]);
    assert_eq!(log["acts"][0]["evidence"], "receipt 7");
    assert_eq!(desk.load("secret-key-1").await, Some(live));
}

/// What is written down beside the journal: how often the answer was replayed, and what became of staged effects.
async fn replays_and_effects_are_shown(desk: &Desk, stopped: &Record) {
    let (journals, now) = (desk.store.journals().unwrap(), desk.store.now().unwrap());
    let show = || desk.told(&["show", &handle(stopped)]);
    let before = show();
    assert!(before.get("replays").is_none(), "{before}");
    assert_eq!(before["effects"][1]["state"], "waiting", "{before}");

    let later = now.plus(Duration::from_secs(9));
    let replays = Replays { operation: stopped.status_id, times: 3, first: now, last: later };
    journals.add_replays(&[replays]).await.unwrap();
    let taken = journals.take_staged(now, Duration::from_secs(60), 9).await.unwrap();
    let [mail] = taken.as_slice() else { panic!("{taken:?}") };
    assert!(journals.end_staged(mail, &Sent::Never("no such rider".into()), later).await.unwrap());

    let after = show();
    assert_eq!(after["replays"]["at_least"], 3, "{after}");
    assert_ne!(after["replays"]["first"], after["replays"]["last"], "{after}");
    let line = after["timeline"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&line["event"], &line["at"]),
        (&Value::from("replayed"), &after["replays"]["last"]),
        "{after}"
    );
    let effects = after["effects"].as_array().unwrap();
    let [event, mail] = effects.as_slice() else { panic!("{after}") };
    assert_eq!(
        (&event["name"], &event["state"], &event["attempts"]),
        (&"event".into(), &"waiting".into(), &0.into())
    );
    assert_eq!((&event["ended"], event["due"].is_string()), (&Value::Null, true));
    assert_eq!(
        (&mail["name"], &mail["state"], &mail["attempts"]),
        (&"mail".into(), &"given_up".into(), &1.into())
    );
    assert_eq!((&mail["ended"], &mail["failure"]), (&after["replays"]["last"], &"no such rider".into()));
    assert_eq!((&mail["staged"], &mail["due"]), (&after["timeline"][1]["at"], &Value::Null));
    let page = desk.keys(&["show", &handle(stopped)]);
    let told = text(&page.stdout);
    assert!(told.contains("replayed at least 3 times since "), "{told}");
    assert!(
        told.contains("effect mail: given up ") && told.contains("1 attempt; the last time: no such rider"),
        "{told}"
    );
    assert!(told.contains("effect event: waiting, due ") && told.contains("; 0 attempts\n"), "{told}");
    shows_no_secret(&page.stdout);
}

fn found_and_told(desk: &Desk, [live, lost, stopped]: [&Record; 3]) {
    let listed = |args: &[&str]| {
        let list = desk.told(&[&["list"], args].concat());
        let mut keys: Vec<String> = list["keys"]
            .as_array()
            .unwrap()
            .iter()
            .map(|key| key["key"].as_str().unwrap().to_owned())
            .collect();
        keys.sort();
        keys
    };
    assert_eq!(listed(&[]), [handle(lost), handle(stopped)], "what needs a person");
    assert_eq!(listed(&["--state", "in-flight"]), [handle(live)]);
    assert!(listed(&["--state", "abandoned"]).is_empty());
    assert_eq!(
        listed(&["--state", "all", "--endpoint", "POST /rides", "--account", "alice", "--namespace", "shop"])
            .len(),
        3
    );
    assert!(listed(&["--state", "all", "--account", "bob"]).is_empty());
    assert!(listed(&["--state", "all", "--older-than", "1h"]).is_empty());
    let first = desk.told(&["list", "--state", "all", "--limit", "2"]);
    let rest = listed(&["--state", "all", "--after", first["next"].as_str().unwrap()]);
    assert_eq!((first["keys"].as_array().unwrap().len(), rest.len()), (2, 1));

    let page = desk.keys(&["show", &handle(stopped)]);
    let told = text(&page.stdout);
    assert!(
        told.contains("step create committed") && told.contains("step charge is about to call"),
        "{told}"
    );
    assert!(told.contains("look it up at the provider"), "{told}");
    for quiet in
        [page, desk.keys(&["show", &handle(stopped), "--json"]), desk.keys(&["list", "--state", "all"])]
    {
        shows_no_secret(&quiet.stdout);
    }
    let open = text(&desk.keys(&["show", &handle(stopped), "--reveal"]).stdout);
    SECRETS.iter().for_each(|secret| assert!(open.contains(secret), "{secret:?} in {open}"));
    let by_itself = ["show", "--namespace", "shop", "--account", "alice", "--key", "secret-key-3"];
    assert_eq!(desk.told(&by_itself)["key"], handle(stopped));
}

/// A claim that somebody works on is never touched, and nothing runs twice because nobody asked.
async fn nothing_is_done_lightly(desk: &Desk, [live, lost]: [&Record; 2]) {
    let held = handle(live);
    let why = ["--why", "I want it"];
    for verb in
        [vec!["resume"], vec!["release", "--yes"], vec!["resolve", "--status", "200", "--evidence", "none"]]
    {
        let said = desk.refused(1, &[&verb[..], &[&held], &why].concat());
        assert!(said.contains("somebody works on it"), "{said}");
    }
    let lost = handle(lost);
    let said = desk.refused(1, &[&["resume", &lost], &why[..]].concat());
    assert!(said.contains("not of several steps"), "{said}");
    let said = desk.refused(2, &[&["release", &lost], &why[..]].concat());
    assert!(said.contains("--yes"), "{said}");
    desk.refused(2, &["release", &lost, "--yes", "--why", " "]);
    desk.refused(1, &["show", "shop:000000000000000000000000000000ff"]);
    assert_eq!(desk.told(&["log"])["acts"].as_array().unwrap().len(), 0);
    assert!(matches!(desk.load("secret-key-2").await.unwrap().state, State::Uncertain { .. }));
}

async fn resolved(desk: &Desk, lost: &Record) {
    std::fs::write(desk.folder.path().join("answer.json"), r#"{"receipt":7}"#).unwrap();
    let handle = handle(lost);
    desk.told(&[
        "resolve",
        &handle,
        "--status",
        "201",
        "--body",
        "answer.json",
        "--header",
        "Content-Type: application/json",
        "--evidence",
        "receipt 7",
        "--why",
        "the provider shows it",
        "--who",
        "ann",
    ]);
    let record = desk.load("secret-key-2").await.unwrap();
    let State::Completed { outcome, at, expires_at, .. } = &record.state else { panic!("{record:?}") };
    assert_eq!(outcome.status, 201);
    assert!(outcome.body == Body::Kept(Bytes::from_static(b"{\"receipt\":7}")));
    assert_eq!(&*outcome.headers[0].name, "content-type");
    assert_eq!(expires_at.since(*at), Duration::from_secs(24 * 3600));
    let said = desk.refused(1, &["release", &handle, "--yes", "--why", "again"]);
    assert!(said.contains("completed"), "{said}");
    let shown = desk.told(&["show", &handle]);
    let events: Vec<_> = shown["timeline"].as_array().unwrap().iter().map(|line| &line["event"]).collect();
    assert!(events.contains(&&Value::from("resolve")), "{shown}");
}

async fn resumed_and_released(desk: &Desk, stopped: &Record) {
    let key = handle(stopped);
    desk.told(&["resume", &key, "--why", "the provider is up again"]);
    let resumed = desk.load("secret-key-3").await.unwrap();
    assert!(
        matches!(resumed.state, State::InFlight { lease_until } if lease_until <= desk.store.now().unwrap())
    );
    assert_ne!(resumed.attempt, stopped.attempt, "its first holder is shut out");
    let journal = desk.store.journals().unwrap().journal(stopped.status_id).await.unwrap();
    assert!(Progress::of(&journal).unwrap().resumed);
    assert!(matches!(&journal.last().unwrap().event, Event::Operator { act: Act::Resume, .. }));
    desk.told(&["release", &key, "--yes", "--why", "the provider never saw it", "--evidence", "their log"]);
    assert_eq!(desk.load("secret-key-3").await, None);
    let gone = desk.told(&["show", &key]);
    let events: Vec<_> = gone["timeline"].as_array().unwrap().iter().map(|line| &line["event"]).collect();
    assert_eq!(gone["state"], "absent");
    for event in ["intent", "resume", "release"] {
        assert_eq!(events.iter().filter(|one| ***one == event).count(), 1, "{event}: {gone}");
    }
    assert!(gone.to_string().contains("their log"), "with its evidence: {gone}");
}

/// What somebody at a terminal sees and types.
async fn a_person_at_a_terminal_is_asked(desk: &Desk) {
    let stopped = desk.put_stopped("secret-key-6", 6).await;
    let key = handle(&stopped);
    let acts = || desk.told(&["log"])["acts"].as_array().unwrap().len();
    let before = acts();
    for said in ["no\n", "yes\n", "release it\n", "\n", END_OF_INPUT] {
        let (status, shown) = desk.at_terminal(&["release", &key, "--why", "their log"], said);
        assert_eq!(status.code(), Some(1), "{said:?}: {shown}");
        assert!(shown.contains("nothing was done"), "{said:?}: {shown}");
        // What releasing it means, and what is known of its calls, before it is asked.
        let question = shown.find("Type `release` to do it").unwrap();
        for fact in
            ["POST /rides, received", "the call of step charge may have been made", "it is done twice"]
        {
            assert!(shown.find(fact).is_some_and(|at| at < question), "{fact:?}: {shown}");
        }
        shows_no_secret(shown.as_bytes());
    }
    assert_eq!((desk.load("secret-key-6").await, acts()), (Some(stopped), before), "nothing was done");
    let (status, shown) = desk.at_terminal(&["release", &key, "--why", "their log"], "release\n");
    assert!(status.success() && shown.contains("its key is free"), "{shown}");
    assert_eq!((desk.load("secret-key-6").await, acts()), (None, before + 1));
}

/// The provider shows the call: its result is written down as its holder would have done it.
async fn a_call_that_was_made_is_resolved(desk: &Desk) {
    let stopped = desk.put_stopped("secret-key-5", 5).await;
    let key = handle(&stopped);
    std::fs::write(desk.folder.path().join("result.json"), r#"{"receipt":"r-7"}"#).unwrap();
    std::fs::write(desk.folder.path().join("no.json"), "receipt r-7").unwrap();
    let says = ["--evidence", "their log", "--why", "the provider shows it"];
    let refused = |code, args: &[&str]| desk.refused(code, &[&["resolve", &key], args, &says[..]].concat());
    refused(2, &["--step", "charge", "--result", "no.json"]);
    refused(2, &["--step", "charge", "--result", "result.json", "--status", "201"]);
    let said = refused(1, &["--step", "create", "--result", "result.json"]);
    assert!(said.contains("no call of that step"), "{said}");
    // The contract of the environment is for whole answers, and in nobody's way here.
    let args =
        [&["keys", "resolve", &key, "--step", "charge", "--result", "result.json"], &says[..]].concat();
    let resolved = std::process::Command::new(env!("CARGO_BIN_EXE_retrysafe"))
        .current_dir(desk.folder.path())
        .env("RETRYSAFE_CONTRACT", "elsewhere.toml")
        .args([&args[..], &["--store", &desk.url]].concat())
        .output()
        .unwrap();
    assert!(resolved.status.success(), "{}", text(&resolved.stderr));
    let record = desk.load("secret-key-5").await.unwrap();
    assert!(
        matches!(record.state, State::InFlight { lease_until } if lease_until <= desk.store.now().unwrap())
    );
    let journal = desk.store.journals().unwrap().journal(stopped.status_id).await.unwrap();
    let progress = Progress::of(&journal).unwrap();
    let charge = StepName::new("charge").unwrap();
    assert_eq!(progress.result(&charge), Some(&Bytes::from_static(br#"{"receipt":"r-7"}"#)));
    // Once is enough.
    refused(1, &["--step", "charge", "--result", "result.json"]);
}

fn desk(folder: tempfile::TempDir, store: Arc<dyn Store>, url: &str) -> Desk {
    Desk { folder, store, url: url.to_owned() }
}

fn migrated(folder: &Path, url: &str) {
    assert!(retrysafe(folder, &["migrate", "--store", url]).status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap();
    a_person_decides(&desk(folder, Arc::new(store), "keys.db")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_on_postgres() {
    let (database, folder) = (postgres::Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    migrated(folder.path(), &url);
    let address: StoreAddress = url.parse().unwrap();
    let store = PostgresStore::open(address.driver().unwrap(), PostgresOptions::default()).await.unwrap();
    a_person_decides(&desk(folder, Arc::new(store), &url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_on_mariadb() {
    let (database, folder) = (mariadb::Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    migrated(folder.path(), &url);
    let store = MariaStore::open(MariaOptions::new(&url).unwrap()).await.unwrap();
    a_person_decides(&desk(folder, Arc::new(store), &url)).await;
}
