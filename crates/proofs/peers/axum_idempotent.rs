//! The peer of the bench: axum-idempotent 0.6 with its Moka store and the header as the key, in front of the
//! same handler. Every request carries one session cookie, which `GET /session` hands out; without a session
//! the peer stores nothing.

// Its request body is for the driver.
#[allow(dead_code)]
mod handler;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use tower_cookies::CookieManagerLayer;

async fn open_session(session: Session<MokaStore>) -> Result<&'static str, axum::http::StatusCode> {
    let failed = |_| axum::http::StatusCode::INTERNAL_SERVER_ERROR;
    let hour = Ttl::new(3600).map_err(failed)?;
    let set = session.set("user", &"bench".to_owned(), hour, None).await;
    set.map_err(|_| axum::http::StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok("open")
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let ready_file = std::env::args().skip_while(|argument| argument != "--ready-file").nth(1);
    let options = IdempotentOptions::default()
        .use_idempotency_key_header(Some("Idempotency-Key"), true)
        .expire_after(3600);
    let session = SessionLayer::new(Arc::new(MokaStore::builder().build()))
        .with_cookie_options(CookieOptions::build().name("session").max_age(3600).path("/").secure(false));
    let app = Router::new()
        .route("/bench", post(handler::order))
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/session", get(open_session))
        .layer(session)
        .layer(CookieManagerLayer::new());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    if let Some(path) = ready_file {
        std::fs::write(path, format!("{{\"listen\":\"{}\"}}", listener.local_addr()?))?;
    }
    axum::serve(listener, app).await
}
