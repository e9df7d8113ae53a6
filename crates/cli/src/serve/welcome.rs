//! What a person sees at the start: where everything is, and what to try first.

use std::net::SocketAddr;

use anstyle::{AnsiColor, Style};
use retrysafe_gateway::proxy::Upstream;

use super::store::Place;

/// What there is to tell.
pub(crate) struct Scene<'a> {
    pub(crate) gateway: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) upstream: &'a Upstream,
    pub(crate) sample: bool,
    pub(crate) store: &'a Place,
}

/// Prints it; `anstream` keeps colours off everything that is no terminal.
pub(crate) fn print(scene: &Scene<'_>) {
    anstream::println!("{}", page(scene, &random_key()));
}

/// A key of today's demo, so that trying it again tomorrow makes a new order.
fn random_key() -> String {
    let mut bytes = [0; 3];
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().fold("demo-".to_owned(), |key, byte| format!("{key}{byte:02x}"))
}

fn page(scene: &Scene<'_>, key: &str) -> String {
    let (bold, dim) = (Style::new().bold(), AnsiColor::BrightBlack.on_default());
    let Scene { gateway, admin, upstream, sample, store } = scene;
    let version = env!("CARGO_PKG_VERSION");
    let behind = match sample {
        true => format!("{upstream}  {dim}the sample shop; what really happened: GET /ledger{dim:#}"),
        false => upstream.to_string(),
    };
    let mut page = format!(
        "{bold}retrysafe {version}{bold:#}: a write retried with its key runs once, within the key's scope and replay window\n\
         \n  gateway   {bold}http://{gateway}{bold:#}\n  upstream  {behind}\n  store     {store}\n  \
         admin     http://{admin}/metrics  {dim}/livez /readyz{dim:#}\n"
    );
    if *sample {
        let post = |key: &str, amount: u32| {
            format!(
                "curl -sw '\\n' http://{gateway}/orders -H 'Authorization: Bearer ada' -H 'Idempotency-Key: {key}' \
                 -H 'Content-Type: application/json' -d '{{\"amount\": {amount}}}'"
            )
        };
        let same = post(key, 700);
        let other = post(key, 900);
        let two = post(&format!("{key}-2"), 700);
        page += &format!(
            "\nTry it:\n\n  {dim}# the same key twice: one order, the same answer{dim:#}\n  {same}; {same}\n\
             \n  {dim}# the same key with another body: refused{dim:#}\n  {other}\n\
             \n  {dim}# two at once: one runs, the other is told to wait{dim:#}\n  {two} & {two}; wait\n\
             \n  {dim}# what really happened{dim:#}\n  curl -sw '\\n' http://{gateway}/ledger\n"
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(sample: bool) -> String {
        let upstream = "http://127.0.0.1:4000".parse().unwrap();
        let scene = Scene {
            gateway: "127.0.0.1:1".parse().unwrap(),
            admin: "127.0.0.1:2".parse().unwrap(),
            upstream: &upstream,
            sample,
            store: &Place::Memory,
        };
        anstream::adapter::strip_str(&page(&scene, "demo-1")).to_string()
    }

    #[test]
    fn the_sample_comes_with_lines_to_try() {
        let page = shown(true);
        for part in ["http://127.0.0.1:1\n", "http://127.0.0.1:2/metrics", "GET /ledger"] {
            assert!(page.contains(part), "{part:?} in {page}");
        }
        assert_eq!(page.matches("curl -sw '\\n' http://127.0.0.1:1/orders").count(), 5);
        assert!(page.contains("Idempotency-Key: demo-1'") && page.contains("demo-1-2"));
    }

    #[test]
    fn somebody_elses_api_is_not_told_to_take_orders() {
        let page = shown(false);
        assert!(page.contains("http://127.0.0.1:4000\n") && !page.contains("curl"), "{page}");
    }
}
