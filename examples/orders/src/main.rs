//! Serves the order API on 127.0.0.1:3000, with its file in the present folder.

use std::path::Path;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (router, _store) = example_orders::app(Path::new(".")).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("orders are taken at http://127.0.0.1:3000/orders");
    axum::serve(listener, router).await?;
    Ok(())
}
