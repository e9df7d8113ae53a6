//! Intents in PostgreSQL, through sqlx: in the caller's transaction, or before the call.

use sqlx::{PgConnection, PgPool, Postgres, postgres::PgArguments, query::Query};

use super::{Dialect, Intent, IntentFault, IntentFuture, Intents, Sql, SqlValue};
use crate::key::Key;

/// Intents in a table of a PostgreSQL database.
#[derive(Clone, Debug)]
pub struct PgIntents(PgPool);

impl PgIntents {
    /// The intents in the database behind this pool; the table is made where it is not there.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn open(pool: PgPool) -> Result<Self, IntentFault> {
        let statement = Sql::create(Dialect::Postgres);
        bound(&statement).execute(&pool).await.map_err(store)?;
        Ok(Self(pool))
    }

    /// Writes an intent down in a transaction of the caller's: it is kept if, and only if, the caller's rows are.
    ///
    /// # Errors
    /// [`IntentFault`]; the transaction is the caller's to roll back.
    pub async fn save_in(transaction: &mut PgConnection, intent: &Intent) -> Result<(), IntentFault> {
        let statement = Sql::save(Dialect::Postgres, intent)?;
        if bound(&statement).execute(&mut *transaction).await.map_err(store)?.rows_affected() == 1 {
            return Ok(());
        }
        let Sql { text, arguments } = Sql::find(Dialect::Postgres, &intent.key);
        let SqlValue::Text(key) = &arguments[0] else { return Err(IntentFault::Changed) };
        let found = sqlx::query_scalar::<_, Vec<u8>>(sqlx::AssertSqlSafe(text)).bind(key.clone());
        match found.fetch_optional(transaction).await.map_err(store)? {
            Some(bytes) if Intent::from_bytes(&bytes)?.same_call(intent) => Ok(()),
            Some(_) => Err(IntentFault::Changed),
            None => Err(IntentFault::Store("an intent was settled while it was saved".into())),
        }
    }
}

impl Intents for PgIntents {
    fn save<'a>(&'a self, intent: &'a Intent) -> IntentFuture<'a, Result<(), IntentFault>> {
        Box::pin(async move {
            let mut connection = self.0.acquire().await.map_err(store)?;
            Self::save_in(&mut connection, intent).await
        })
    }

    fn settle<'a>(&'a self, key: &'a Key) -> IntentFuture<'a, Result<(), IntentFault>> {
        let statement = Sql::settle(Dialect::Postgres, key);
        Box::pin(async move { bound(&statement).execute(&self.0).await.map(drop).map_err(store) })
    }

    fn open(&self, max: usize) -> IntentFuture<'_, Result<Vec<Intent>, IntentFault>> {
        let Sql { text, .. } = Sql::open(Dialect::Postgres, max);
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        Box::pin(async move {
            let open = sqlx::query_scalar::<_, Vec<u8>>(sqlx::AssertSqlSafe(text)).bind(max);
            let rows = open.fetch_all(&self.0).await.map_err(store)?;
            rows.iter().map(|row| Intent::from_bytes(row)).collect()
        })
    }
}

fn bound(statement: &Sql) -> Query<'static, Postgres, PgArguments> {
    let query = sqlx::query(sqlx::AssertSqlSafe(statement.text.clone()));
    statement.arguments.iter().fold(query, |query, value| match value {
        SqlValue::Text(text) => query.bind(text.clone()),
        SqlValue::Integer(number) => query.bind(*number),
        SqlValue::Bytes(bytes) => query.bind(bytes.clone()),
    })
}

fn store(error: sqlx::Error) -> IntentFault {
    IntentFault::Store(error.into())
}
