//! One row of the business on each driver's own connection: nothing of retrysafe's is between a handler and its database.

use std::future::Future;

use mysql_async::prelude::Queryable;
use retrysafe_server::Refuse;

/// As the servers are given it; SQLite's is below.
pub(super) const SERVER_TABLES: &str = "CREATE TABLE sale (id VARCHAR(64) PRIMARY KEY, request VARCHAR(64) NOT NULL); \
     CREATE TABLE stock (id INT PRIMARY KEY, taken INT NOT NULL); INSERT INTO stock VALUES (1, 0)";
pub(super) const SQLITE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS sale (id TEXT PRIMARY KEY, request TEXT NOT NULL) STRICT";

/// A connection that a sale is written on.
pub(super) trait PutRow: Send {
    fn put(&mut self, id: &str, request: &str) -> impl Future<Output = Result<(), Refuse>> + Send;

    /// Takes one from the stock: the row that every sale of a path needs.
    fn take(&mut self) -> impl Future<Output = Result<(), Refuse>> + Send;
}

impl PutRow for retrysafe_store::postgres::Handle {
    async fn put(&mut self, id: &str, request: &str) -> Result<(), Refuse> {
        let insert = self.prepare_cached("INSERT INTO public.sale (id, request) VALUES ($1, $2)").await?;
        self.execute(&insert, &[&id, &request]).await?;
        Ok(())
    }

    async fn take(&mut self) -> Result<(), Refuse> {
        self.execute("UPDATE public.stock SET taken = taken + 1 WHERE id = 1", &[]).await?;
        Ok(())
    }
}

impl PutRow for sqlx::PgConnection {
    async fn put(&mut self, id: &str, request: &str) -> Result<(), Refuse> {
        let insert = sqlx::query("INSERT INTO public.sale (id, request) VALUES ($1, $2)");
        insert.bind(id).bind(request).execute(self).await?;
        Ok(())
    }

    async fn take(&mut self) -> Result<(), Refuse> {
        sqlx::query("UPDATE public.stock SET taken = taken + 1 WHERE id = 1").execute(self).await?;
        Ok(())
    }
}

impl PutRow for mysql_async::Conn {
    async fn put(&mut self, id: &str, request: &str) -> Result<(), Refuse> {
        self.exec_drop("INSERT INTO sale (id, request) VALUES (?, ?)", (id, request)).await?;
        Ok(())
    }

    async fn take(&mut self) -> Result<(), Refuse> {
        self.query_drop("UPDATE stock SET taken = taken + 1 WHERE id = 1").await?;
        Ok(())
    }
}
