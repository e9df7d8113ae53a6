//! `example-checkout URL DATABASE CART AMOUNT`: places an order, once.

use anyhow::Context;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, database, cart, amount] = &arguments[..] else {
        anyhow::bail!("usage: example-checkout URL DATABASE CART AMOUNT");
    };
    let client = example_checkout::client(url, database.as_ref())?;
    let (answered, open) = example_checkout::take_up(&client).await?;
    println!("taken up: {answered} answered, {open} still open");
    let amount = amount.parse().context("the amount is a number of cents")?;
    let answer = example_checkout::place(&client, cart, amount).await?;
    println!("{} {}", answer.status(), String::from_utf8_lossy(answer.body()));
    Ok(())
}
