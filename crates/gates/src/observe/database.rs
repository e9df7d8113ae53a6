//! The first value of a query, in the databases that this build reads.

/// Runs the query and reads a count.
pub(super) fn count(url: &str, query: &str) -> Result<u64, String> {
    if let Some(file) = url.strip_prefix("sqlite:") {
        return sqlite(file, query);
    }
    if url.starts_with("postgres") {
        return postgres(url, query);
    }
    mysql(url, query)
}

#[cfg(feature = "sqlite")]
fn sqlite(file: &str, query: &str) -> Result<u64, String> {
    use rusqlite::{Connection, OpenFlags};
    // In WAL mode a reader waits for nobody; otherwise it waits for its turn.
    const TURN: std::time::Duration = std::time::Duration::from_secs(10);
    let said = |error: rusqlite::Error| format!("{file}: {error}");
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(said)?;
    connection.busy_timeout(TURN).map_err(said)?;
    let count: i64 = connection.query_row(query, [], |row| row.get(0)).map_err(said)?;
    u64::try_from(count).map_err(|_| format!("{file}: the query gave {count}, which is no count"))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &str, _: &str) -> Result<u64, String> {
    Err(missing("SQLite", "sqlite"))
}

/// A runtime for one query: gates are threads.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn within<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(15);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let late = || Err("the database did not answer in time".to_owned());
        tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| late())
    })
}

#[cfg(feature = "postgres")]
fn postgres(url: &str, query: &str) -> Result<u64, String> {
    use tokio_postgres::{NoTls, SimpleQueryMessage};
    within(async {
        let said = |error: tokio_postgres::Error| format!("PostgreSQL: {error}");
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(said)?;
        let driver = tokio::spawn(connection);
        // As text: a count may be of any type.
        let rows = client.simple_query(query).await.map_err(said)?;
        drop(client);
        // It ends when its client is gone.
        let _ = driver.await;
        let first = rows.iter().find_map(|row| match row {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        first
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| "PostgreSQL: the query gave no count".to_owned())
    })
}

#[cfg(not(feature = "postgres"))]
fn postgres(_: &str, _: &str) -> Result<u64, String> {
    Err(missing("PostgreSQL", "postgres"))
}

#[cfg(feature = "mysql")]
fn mysql(url: &str, query: &str) -> Result<u64, String> {
    use mysql_async::prelude::Queryable;
    within(async {
        let said = |error: mysql_async::Error| format!("MariaDB: {error}");
        let options = mysql_async::Opts::from_url(url).map_err(|error| format!("MariaDB: {error}"))?;
        let mut connection = mysql_async::Conn::new(options).await.map_err(said)?;
        let first: Option<u64> = connection.query_first(query).await.map_err(said)?;
        connection.disconnect().await.map_err(said)?;
        first.ok_or_else(|| "MariaDB: the query gave no count".to_owned())
    })
}

#[cfg(not(feature = "mysql"))]
fn mysql(_: &str, _: &str) -> Result<u64, String> {
    Err(missing("MariaDB", "mysql"))
}

#[cfg(any(not(feature = "sqlite"), not(feature = "postgres"), not(feature = "mysql")))]
fn missing(database: &str, feature: &str) -> String {
    format!(
        "this build does not read {database} (feature `{feature}`); use kind = \"command\" with its client"
    )
}
