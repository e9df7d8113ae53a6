//! Serves the order API: on a file in the present folder, or on the PostgreSQL database that is named.
//!
//! `cargo run -p example-orders [postgres://USER@HOST/DATABASE [LISTEN]]`

use std::path::Path;

const LISTEN: &str = "127.0.0.1:3000";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let router = match arguments.next() {
        Some(url) => example_orders::postgres::app(&url, Path::new(".")).await?,
        None => example_orders::app(Path::new(".")).await?.0,
    };
    let listen = arguments.next().unwrap_or_else(|| LISTEN.to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("orders are taken at http://{listen}/orders");
    axum::serve(listener, router).await?;
    Ok(())
}
