//! Questions to the place where the effect happens: replays are authorised again (K4), lost requests are looked up
//! (protocol 22).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use retrysafe_server::{Inquire, InquireFuture, NoAnswer};
use serde_json::json;

use crate::support::{
    api::{Api, created, endpoint, json_reply, order},
    faulty::{Call, Faulty},
    post,
};

/// Answers what it is told, and keeps what it was asked.
#[derive(Default)]
struct Asked {
    answers: Mutex<VecDeque<Result<Response<Bytes>, NoAnswer>>>,
    questions: Mutex<Vec<(String, HeaderMap)>>,
}

impl Asked {
    fn will_say(&self, status: u16, body: &'static str) {
        let response =
            Response::builder().status(status).header("x-original-status", "202").body(Bytes::from(body));
        self.answers.lock().unwrap().push_back(Ok(response.unwrap()));
    }

    fn will_be_silent(&self) {
        self.answers.lock().unwrap().push_back(Err(NoAnswer));
    }

    fn questions(&self) -> Vec<String> {
        self.questions.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }
}

impl Inquire for Asked {
    fn get<'a>(&'a self, path: &'a str, headers: &'a HeaderMap) -> InquireFuture<'a> {
        self.questions.lock().unwrap().push((path.to_owned(), headers.clone()));
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(Err(NoAnswer));
        Box::pin(async move { answer })
    }
}

fn asking(lines: &str) -> (Api, Arc<Asked>) {
    let asked = Arc::new(Asked::default());
    let inquire = Arc::clone(&asked);
    let api = Api::built(&endpoint("", lines), Faulty::new(), |builder| builder.inquire(inquire));
    (api, asked)
}

const REAUTHORISE: &str = "reauthorise = { path = \"/auth/check\" }\nin_flight = { answer = \"202-always\" }";

/// K4, protocol 1: replay, mismatch and in-flight alike tell something about another request.
#[tokio::test(start_paused = true)]
async fn k4_whoever_lost_the_permission_sees_no_answer_about_the_key() {
    let (api, asked) = asking(REAUTHORISE);
    let first = api.order("k").await;
    assert_eq!(asked.questions(), [""; 0], "the first run is authorised by its handler");
    asked.will_say(204, "");
    assert_eq!(api.order("k").await, first, "still permitted");
    assert_eq!(
        asked.questions.lock().unwrap()[0].1["authorization"],
        "Bearer alice",
        "with the caller's own credentials"
    );

    let gate = api.gate();
    let _running = api.spawn(order("running"));
    gate.reached(1).await;
    for status in [401, 403] {
        for request in [order("k"), post("/orders", "alice", "k", "{}"), order("running")] {
            asked.will_say(status, "{\"error\": \"no\"}");
            let refused = api.send(request).await;
            assert_eq!((refused.status.as_u16(), refused.json()), (status, json!({ "error": "no" })));
            assert!(!refused.headers.contains_key("location"));
        }
    }
    // Who cannot be asked permits nothing.
    for say in [500, 302, 404] {
        asked.will_say(say, "");
        let answer = api.order("k").await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable".into()),
            "{say}"
        );
    }
    asked.will_be_silent();
    assert_eq!(api.order("k").await.code(), "upstream_unavailable");
    assert_eq!(api.store.count(Call::Complete), 1, "refusals are never stored");
    asked.will_say(200, "");
    assert_eq!(api.order("k").await, first);
}

/// Protocol 31: a status poll is authorised again, each time.
#[tokio::test(start_paused = true)]
async fn protocol_31_each_poll_is_authorised_again() {
    let (api, asked) = asking(REAUTHORISE);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    asked.will_say(200, "");
    let accepted = api.order("k").await;
    let url = accepted.headers["location"].to_str().unwrap().to_owned();
    gate.release();
    first.await.unwrap();
    let poll = || {
        axum::extract::Request::get(&url)
            .header("authorization", "Bearer alice")
            .body(axum::body::Body::empty())
            .unwrap()
    };
    asked.will_say(403, "");
    assert_eq!(api.send(poll()).await.status, StatusCode::FORBIDDEN);
    asked.will_say(200, "");
    assert_eq!(api.send(poll()).await.status, StatusCode::CREATED);
}

const PROBE: &str = "probe = { path = \"/orders?key={key}&fence={fence}\", status_header = \"x-original-status\", attempts = 2 }";
const FENCING: &str = "probe = { path = \"/orders?key={key}\", status = 201, attempts = 2, fences = true, when_absent = \"release\" }";

fn lost_then_created(n: u64) -> axum::response::Response {
    if n > 1 {
        return created(n);
    }
    let mut response = json_reply(502, json!({}));
    response.extensions_mut().insert(retrysafe_server::NoUpstreamAnswer::Lost);
    response
}

/// Protocol 22: what the probe finds is the answer, and it is stored.
#[tokio::test(start_paused = true)]
async fn protocol_22_a_probe_that_finds_it_done_settles_the_record() {
    let (api, asked) = asking(PROBE);
    api.replies(lost_then_created);
    asked.will_be_silent();
    asked.will_say(200, "{\"id\": \"found\"}");
    let answer = api.order("k/1?").await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["id"].as_str()),
        (202, Some("found")),
        "its original status"
    );
    let fence = api.store.record().await.fence;
    assert_eq!(asked.questions()[1], format!("/orders?key=k%2F1%3F&fence={fence}"));
    assert_eq!(api.order("k/1?").await, answer);
    assert_eq!((api.effects(), asked.questions().len()), (1, 2), "settled once for all");
}

/// Protocol 22: "absent" never permits a re-run; the first run may still be on its way.
#[tokio::test(start_paused = true)]
async fn protocol_22_absent_permits_nothing_unless_the_probe_fences() {
    let (api, asked) = asking(PROBE);
    api.replies(lost_then_created);
    for _ in 0..3 {
        asked.will_say(404, "");
        assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    }
    assert_eq!((api.effects(), api.store.state().await), (1, "uncertain"));
    asked.will_say(200, "{}");
    assert_eq!(api.order("k").await.status.as_u16(), 202, "it arrived after all");
    assert_eq!(api.effects(), 1);

    let (api, asked) = asking(FENCING);
    api.replies(lost_then_created);
    asked.will_say(404, "");
    assert_eq!(api.order("k").await.code(), "upstream_unavailable");
    assert_eq!(
        api.order("k").await.json()["id"],
        "o-2",
        "the contract's word: the first run can no longer happen"
    );
}

#[tokio::test(start_paused = true)]
async fn protocol_22_a_probe_that_says_nothing_clear_leaves_it_uncertain() {
    let (api, asked) = asking(FENCING);
    api.replies(lost_then_created);
    for status in [500, 302, 401] {
        asked.will_say(status, "");
    }
    asked.will_be_silent();
    for _ in 0..2 {
        assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    }
    assert_eq!((api.effects(), api.store.state().await), (1, "uncertain"));
}

/// A caller who may not see the answer does not make us ask what became of it either.
#[tokio::test(start_paused = true)]
async fn k4_nobody_probes_without_permission() {
    let (api, asked) = asking(&format!("{PROBE}\nreauthorise = {{ path = \"/auth/check\" }}"));
    api.replies(lost_then_created);
    asked.will_say(404, "");
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    asked.will_say(403, "");
    assert_eq!(api.order("k").await.status, StatusCode::FORBIDDEN);
    assert_eq!(asked.questions().last().unwrap(), "/auth/check");
}
