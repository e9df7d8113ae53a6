//! The shop through real sockets, as its callers see it.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

use std::time::Duration;

use retrysafe_shop::{Shop, ShopOptions, serve};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A running shop. Dropping it stops the server.
struct Running {
    address: String,
    _stop: oneshot::Sender<()>,
    file: tempfile::TempDir,
}

async fn start(options: ShopOptions) -> Running {
    start_on(tempfile::tempdir().unwrap(), options).await
}

async fn start_on(file: tempfile::TempDir, options: ShopOptions) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shop = Shop::open(file.path().join("shop.db")).unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(serve(listener, shop, options, async {
        let _ = stopped.await;
    }));
    Running { address, _stop: stop, file }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Running {
    /// Everything the server sent before it closed the connection.
    async fn raw(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let raw = self.raw(method, path, headers, body).await;
        let (head, body) = raw.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {raw:?}"));
        let status = head[9..12].parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    async fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        self.send("POST", path, &format!("Authorization: Bearer ada\r\n{headers}"), body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "Authorization: Bearer ada\r\n", "").await
    }

    async fn effects(&self) -> usize {
        self.get("/ledger").await.json().as_array().unwrap().len()
    }
}

const ORDER: &str = r#"{"amount":700,"item":"tea"}"#;

#[tokio::test]
async fn an_order_is_made_found_listed_and_noted() {
    let shop = start(ShopOptions::default()).await;
    let made = shop.post("/orders", "Idempotency-Key: k1\r\n", ORDER).await;
    assert_eq!(made.status, 201);
    let order = made.json();
    assert_eq!((&order["amount"], &order["item"]), (&json!(700), &json!("tea")));
    let location = made.header("location").unwrap().to_owned();
    assert_eq!(location, format!("/orders/{}", order["id"].as_str().unwrap()));
    assert_eq!(shop.get(&location).await.json(), order);
    assert_eq!(shop.get("/orders").await.json(), json!([order]));
    assert_eq!(shop.get("/payments").await.json(), json!([]));
    let ledger = shop.get("/ledger").await.json();
    let entry = &ledger[0];
    assert_eq!(
        (&entry["id"], &entry["endpoint"], &entry["key"], &entry["account"]),
        (&order["id"], &json!("POST /orders"), &json!("k1"), &json!("ada"))
    );
    assert!(entry["at"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn the_same_key_twice_makes_two_orders_because_nobody_looks_at_it() {
    let shop = start(ShopOptions::default()).await;
    for _ in 0..2 {
        assert_eq!(shop.post("/payments", "Idempotency-Key: k\r\n", ORDER).await.status, 201);
    }
    assert_eq!(shop.effects().await, 2);
}

#[tokio::test]
async fn refusals_have_no_effect() {
    let shop = start(ShopOptions::default()).await;
    for body in [r#"{"amount":0}"#, r#"{"amount":-1}"#, r#"{"amount":1.5}"#, r#"{"amount":null}"#, "{}"] {
        let refused = shop.post("/orders", "", body).await;
        assert_eq!(
            (refused.status, refused.json()["code"].clone()),
            (422, json!("amount_invalid")),
            "{body}"
        );
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    }
    assert_eq!(shop.post("/orders", "", "not json").await.status, 400);
    for headers in ["", "Authorization: Bearer \r\n", "Authorization: Basic YTpi\r\n"] {
        let refused = shop.send("POST", "/orders", headers, ORDER).await;
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    }
    assert_eq!(shop.effects().await, 0);
}

#[tokio::test]
async fn accounts_are_apart_and_a_deletion_leaves_the_ledger() {
    let shop = start(ShopOptions::default()).await;
    let location = shop.post("/orders", "", ORDER).await.header("location").unwrap().to_owned();
    let bob = "Authorization: Bearer bob\r\n";
    assert_eq!(shop.send("GET", &location, bob, "").await.status, 404);
    assert_eq!(shop.send("DELETE", &location, bob, "").await.status, 404);
    let ada = "Authorization: Bearer ada\r\n";
    assert_eq!(shop.send("DELETE", &location, ada, "").await.status, 204);
    assert_eq!(shop.send("DELETE", &location, ada, "").await.status, 404);
    assert_eq!(shop.get(&location).await.status, 404);
    let ledger = shop.get("/ledger").await.json();
    let endpoints: Vec<_> = ledger.as_array().unwrap().iter().map(|entry| &entry["endpoint"]).collect();
    assert_eq!(endpoints, ["POST /orders", "DELETE /orders/{id}"]);
}

#[tokio::test]
async fn the_ledger_is_filtered_and_paged() {
    let shop = start(ShopOptions::default()).await;
    for key in ["a", "b", "b", "c"] {
        shop.post("/orders", &format!("Idempotency-Key: {key}\r\n"), ORDER).await;
    }
    assert_eq!(shop.get("/ledger?key=b").await.json().as_array().unwrap().len(), 2);
    assert_eq!(shop.get("/ledger?account=ada").await.json().as_array().unwrap().len(), 4);
    assert_eq!(shop.get("/ledger?account=bob").await.json(), json!([]));
    let mut keys = Vec::new();
    let mut after = "0".to_owned();
    loop {
        let page = shop.get(&format!("/ledger?limit=3&after={after}")).await;
        keys.extend(page.json().as_array().unwrap().iter().map(|e| e["key"].as_str().unwrap().to_owned()));
        match page.header("x-next-after") {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(keys, ["a", "b", "b", "c"]);
}

#[tokio::test]
async fn effects_survive_a_restart_on_the_same_file() {
    let first = start(ShopOptions::default()).await;
    first.post("/orders", "Idempotency-Key: k\r\n", ORDER).await;
    let Running { file, .. } = first;
    let second = start_on(file, ShopOptions::default()).await;
    assert_eq!(second.get("/ledger?key=k").await.json().as_array().unwrap().len(), 1);
    assert_eq!(second.get("/operations/k").await.status, 200);
}

#[tokio::test]
async fn a_probe_reports_what_was_done() {
    let shop = start(ShopOptions::default()).await;
    let made = shop.post("/orders", "Idempotency-Key: a%2Fb\r\n", ORDER).await;
    let probed = shop.get("/operations/a%252Fb?fence=9").await;
    assert_eq!((probed.status, probed.header("x-original-status")), (200, Some("201")));
    assert_eq!((&probed.body, probed.header("location")), (&made.body, made.header("location")));
    let other = shop.send("GET", "/operations/a%252Fb?fence=9", "Authorization: Bearer bob\r\n", "").await;
    assert_eq!(other.status, 404, "another account's key is another key");
}

#[tokio::test]
async fn a_probe_that_finds_nothing_shuts_the_door_behind_it() {
    let shop = start(ShopOptions::default()).await;
    assert_eq!(shop.get("/operations/k?fence=5").await.status, 404);
    for fence in ["", "Retrysafe-Fence: 4\r\n", "Retrysafe-Fence: 5\r\n", "Retrysafe-Fence: x\r\n"] {
        let late = shop.post("/orders", &format!("Idempotency-Key: k\r\n{fence}"), ORDER).await;
        assert_eq!((late.status, late.json()["code"].clone()), (409, json!("fenced")), "{fence:?}");
    }
    assert_eq!(shop.get("/operations/k?fence=3").await.status, 404, "a floor never sinks");
    assert_eq!(shop.post("/orders", "Idempotency-Key: k\r\nRetrysafe-Fence: 4\r\n", ORDER).await.status, 409);
    assert_eq!(shop.effects().await, 0);
    assert_eq!(shop.post("/orders", "Idempotency-Key: k\r\nRetrysafe-Fence: 6\r\n", ORDER).await.status, 201);
    assert_eq!(shop.post("/orders", "Idempotency-Key: other\r\n", ORDER).await.status, 201);
    assert_eq!(shop.get("/operations/k?fence=x").await.status, 400);
}

#[tokio::test]
async fn a_deduplicating_shop_answers_a_key_from_its_book() {
    let shop = start(ShopOptions { deduplicate: true, ..ShopOptions::default() }).await;
    let first = shop.post("/orders", "Idempotency-Key: k\r\n", ORDER).await;
    let again = shop.post("/orders", "Idempotency-Key: k\r\n", ORDER).await;
    assert_eq!(
        (again.status, &again.body, again.header("location")),
        (201, &first.body, first.header("location"))
    );
    shop.post("/orders", "", ORDER).await;
    shop.post("/orders", "", ORDER).await;
    assert_eq!(shop.effects().await, 3, "without a key there is nothing to recognise");
}

#[tokio::test]
async fn cutting_really_closes_the_connection_without_a_byte() {
    let shop = start(ShopOptions { faults: true, ..ShopOptions::default() }).await;
    let bearer = "Authorization: Bearer ada\r\n";
    let before = shop.raw("POST", "/orders", &format!("{bearer}X-Shop-Fault: cut\r\n"), ORDER).await;
    assert_eq!((before.as_str(), shop.effects().await), ("", 0));
    let after =
        shop.raw("POST", "/orders", &format!("{bearer}X-Shop-Fault: commit-then-cut\r\n"), ORDER).await;
    assert_eq!((after.as_str(), shop.effects().await), ("", 1));
}

#[tokio::test]
async fn faulty_answers_with_and_without_the_effect() {
    let shop = start(ShopOptions { faults: true, ..ShopOptions::default() }).await;
    assert_eq!(shop.post("/orders", "X-Shop-Fault: status=503\r\n", ORDER).await.status, 503);
    assert_eq!(shop.effects().await, 0);
    assert_eq!(shop.post("/orders", "X-Shop-Fault: commit-then-status=500\r\n", ORDER).await.status, 500);
    assert_eq!(shop.effects().await, 1);
    assert_eq!(shop.post("/orders", "X-Shop-Fault: explode\r\n", ORDER).await.status, 400);
    let once = "Idempotency-Key: k\r\nX-Shop-Fault: once,status=500\r\n";
    assert_eq!(shop.post("/orders", once, ORDER).await.status, 500);
    assert_eq!(shop.post("/orders", once, ORDER).await.status, 201);
}

#[tokio::test]
async fn queued_faults_hit_clients_that_send_no_header() {
    let shop = start(ShopOptions { faults: true, ..ShopOptions::default() }).await;
    let queued = shop.post("/faults", "", r#"{"faults":[{"fault":"status=503","times":2}]}"#).await;
    assert_eq!(queued.status, 200);
    shop.get("/orders").await;
    assert_eq!(shop.post("/orders", "", ORDER).await.status, 503, "reads do not use a fault up");
    assert_eq!(shop.post("/orders", "", ORDER).await.status, 503);
    assert_eq!(shop.post("/orders", "", ORDER).await.status, 201);
    assert_eq!(shop.post("/faults", "", r#"{"fault":"explode"}"#).await.status, 400);
    shop.post("/faults", "", r#"{"fault":"cut"}"#).await;
    assert_eq!(shop.send("DELETE", "/faults", "", "").await.status, 204);
    assert_eq!(shop.post("/orders", "", ORDER).await.status, 201);
}

#[tokio::test]
async fn faults_are_off_unless_switched_on() {
    let shop = start(ShopOptions::default()).await;
    assert_eq!(shop.post("/orders", "X-Shop-Fault: cut\r\n", ORDER).await.status, 201);
    assert_eq!(shop.post("/faults", "", r#"{"fault":"cut"}"#).await.status, 404);
}

#[tokio::test]
async fn a_write_whose_caller_hung_up_is_finished() {
    let shop =
        start(ShopOptions { faults: true, handler: Duration::from_millis(1), ..ShopOptions::default() })
            .await;
    let mut stream = TcpStream::connect(&shop.address).await.unwrap();
    let request = "POST /orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer ada\r\nIdempotency-Key: k\r\n\
                   X-Shop-Fault: delay=100\r\nContent-Length: 14\r\n\r\n{\"amount\":700}";
    stream.write_all(request.as_bytes()).await.unwrap();
    // What a client's timeout does.
    drop(stream);
    for _ in 0..200 {
        if shop.effects().await == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the write was dropped with its connection");
}

#[tokio::test]
async fn stripe_shapes_are_what_the_sdks_expect() {
    let shop = start(ShopOptions::default()).await;
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let body = "amount=2000&currency=eur&description=two+teas&metadata[order]=o%2F1";
    for (path, object) in [("/v1/charges", "charge"), ("/v1/payment_intents", "payment_intent")] {
        let made = shop.post(path, form, body).await;
        let value = made.json();
        assert_eq!((made.status, &value["object"]), (200, &json!(object)));
        assert_eq!((&value["amount"], &value["currency"]), (&json!(2000), &json!("eur")));
        assert_eq!(
            (&value["description"], &value["metadata"]),
            (&json!("two teas"), &json!({"order": "o/1"}))
        );
        let id = value["id"].as_str().unwrap();
        assert_eq!(shop.get(&format!("{path}/{id}")).await.json(), value);
        let list = shop.get(path).await.json();
        assert_eq!((&list["object"], &list["data"]), (&json!("list"), &json!([value])));
    }
    let refused = shop.post("/v1/charges", form, "amount=-1&currency=usd").await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (422, &json!("invalid_request_error")));
    assert!(shop.send("POST", "/v1/charges", form, body).await.json()["error"].is_object());
    assert_eq!(shop.effects().await, 2);
}
