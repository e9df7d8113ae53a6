//! The statements, as texts made once for a schema.
//!
//! Every name is qualified, so that `search_path` cannot matter, and every parameter is cast, so that a null needs no type
//! and a statement means the same prepared, unprepared and with its arguments written into it.
//!
//! **A claim reads first and inserts only what is absent.** `ON CONFLICT DO UPDATE ... WHERE false` would return the
//! present row as well, but it locks that row: every replay would be a write with a sync (measured: fifty times slower).
//! The price is a race in which the statement returns nothing: its snapshot is older than the row that its insert
//! met. The caller then asks again.
//!
//! **A guarded write tests attempt, state and expiry in one condition** (protocol 6). When it loses, the row that comes back is of
//! the same old snapshot and may still look as expected; the caller asks again then, too.

use std::{fmt, sync::Arc};

/// The name of a schema, which is written into statements and so has to be a plain word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema(Box<str>);

impl Schema {
    /// The longest name PostgreSQL keeps.
    pub const MAX_BYTES: usize = 63;

    /// A schema called `name`.
    ///
    /// # Errors
    /// [`SchemaFault`] for anything but `a-z`, `0-9` and `_`, beginning with a letter, or beginning with `pg_`.
    pub fn new(name: &str) -> Result<Self, SchemaFault> {
        let plain = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let fits = (1..=Self::MAX_BYTES).contains(&name.len());
        let letter_first = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        if !fits || !letter_first || !name.bytes().all(plain) || name.starts_with("pg_") {
            return Err(SchemaFault);
        }
        Ok(Self(name.into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Schema {
    /// `retrysafe`.
    fn default() -> Self {
        Self("retrysafe".into())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a schema is not of the allowed shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a schema is named by 1 to {} of a-z, 0-9 and '_', beginning with a letter and not with pg_",
    Schema::MAX_BYTES
)]
pub struct SchemaFault;

/// A custom setting that lives as long as its transaction: the mark by which a write knows that the transaction which
/// commits it is the one that was begun (protocol 17).
const MARK: &str = "retrysafe.transaction";

/// Said in full: the defaults of the database or the role may be others.
pub(super) const READ_COMMITTED: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
pub(super) const SERIALIZABLE: &str = "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE";

/// The savepoint before the handler's first statement. The claim's lock is older, so rolling back to it keeps the lock
/// (protocol 13).
const SAVEPOINT: &str = "retrysafe";

/// How long a transaction may wait and rest, in milliseconds.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    pub(super) lock_ms: i64,
    pub(super) statement_ms: i64,
    pub(super) idle_ms: i64,
}

pub(super) struct Texts {
    pub(super) claim: Arc<str>,
    pub(super) claim_long: Arc<str>,
    pub(super) replace: Arc<str>,
    pub(super) replace_long: Arc<str>,
    pub(super) load: Arc<str>,
    pub(super) body: Arc<str>,
    pub(super) remove: Arc<str>,
    pub(super) due: Arc<str>,
    pub(super) reap: Arc<str>,
    pub(super) locate: Arc<str>,
    pub(super) end_resource: Arc<str>,
    pub(super) list: Arc<str>,
    pub(super) census: Arc<str>,
    pub(super) clock: Arc<str>,
    pub(super) set_mark: Arc<str>,
    pub(super) bump_epoch: Arc<str>,
    pub(super) secret: Arc<str>,
    pub(super) claim_secret: Arc<str>,
    pub(super) proof: Arc<str>,
    pub(super) effect: Arc<str>,
    pub(super) duplicate_effects: Arc<str>,
    pub(super) forget_effects: Arc<str>,
    pub(super) count_day: Arc<str>,
    pub(super) days: Arc<str>,

    pub(super) begin: Arc<str>,
    pub(super) begin_to_look: Arc<str>,
    pub(super) hold: Arc<str>,
    pub(super) savepoint: Arc<str>,
    pub(super) undo: Arc<str>,
    pub(super) constraints: Arc<str>,
    pub(super) complete: Arc<str>,
    pub(super) complete_long: Arc<str>,
    pub(super) finish: Arc<str>,
    pub(super) finish_long: Arc<str>,
    pub(super) commit: Arc<str>,
    pub(super) rollback: Arc<str>,
}

/// Columns that make a [`Row`](crate::sql::row::Row).
const ROW: &str = "fence, expires_ms, response_day, data";

/// The address, in every statement that has one.
const HERE: &str = "namespace = $1::bytea AND account = $2::bytea AND key = $3::bytea";

/// The columns of a record, `$4` to `$11`.
const COLUMNS: &str = "attempt, status, state, due_ms, expires_ms, resource, response_day, data";
const VALUES: &str =
    "$4::bytea, $5::bytea, $6::bigint, $7::bigint, $8::bigint, $9::bytea, $10::bigint, $11::bytea";
const SET: &str = "attempt = $4::bytea, status = $5::bytea, state = $6::bigint, due_ms = $7::bigint, \
                   expires_ms = $8::bigint, resource = $9::bytea, response_day = $10::bigint, data = $11::bytea";

/// What the row has to be, as [`Guard`](crate::sql::row::Guard) gives it: `$12` to `$15`.
const GUARD: &str = "attempt = $12::bytea AND state BETWEEN $13::bigint AND $14::bigint \
                     AND ($15::bigint IS NULL OR CASE state WHEN 0 THEN due_ms ELSE expires_ms END <= $15::bigint)";

impl Texts {
    pub(super) fn new(schema: &Schema, patience: Patience, begin: &str) -> Self {
        let s = format!("\"{schema}\"");
        let next = format!("nextval('{s}.fence')");
        // A body that is kept apart is written by the same statement, and only if the row was.
        let long = |from: &str, body: u8| {
            format!(
                ", apart AS (INSERT INTO {s}.response (day, attempt, body) \
                 SELECT $10::bigint, $4::bytea, ${body}::bytea FROM {from})"
            )
        };
        let claim = |long: &str| {
            format!(
                "WITH won AS (\
                   INSERT INTO {s}.key (namespace, account, key, fence, {COLUMNS}) \
                   SELECT $1::bytea, $2::bytea, $3::bytea, {next}, {VALUES} \
                   WHERE NOT EXISTS (SELECT FROM {s}.key WHERE {HERE}) \
                   ON CONFLICT DO NOTHING RETURNING fence){long} \
                 SELECT 1::bigint, fence, NULL::bigint, NULL::bigint, NULL::bytea FROM won \
                 UNION ALL SELECT 0::bigint, {ROW} FROM {s}.key WHERE {HERE}"
            )
        };
        // $16: 1 where the write opens a claim and so needs a new fence.
        let written = |guard: &str, fence: u8| {
            format!(
                "WITH written AS (\
                   UPDATE {s}.key SET {SET}, fence = CASE ${fence}::bigint WHEN 1 THEN {next} ELSE fence END \
                   WHERE {HERE} AND {guard} RETURNING fence)"
            )
        };
        let replace = |long: &str| {
            format!(
                "{}{long} \
                 SELECT 1::bigint, fence, NULL::bigint, NULL::bigint, NULL::bytea FROM written \
                 UNION ALL SELECT 0::bigint, {ROW} FROM {s}.key WHERE {HERE} AND NOT EXISTS (SELECT FROM written)",
                written(GUARD, 16)
            )
        };
        // These two are sent together with COMMIT, so they must *fail* where they do not apply: changing no row would
        // commit the handler's work without its record.
        let marked = |mark: u8| format!("current_setting('{MARK}', true) = encode(${mark}::bytea, 'hex')");
        let complete = |with: &str| {
            format!(
                "{with}INSERT INTO {s}.key (namespace, account, key, fence, {COLUMNS}) \
                 VALUES ($1::bytea, $2::bytea, $3::bytea, CASE WHEN {} THEN {next} END, {VALUES}) RETURNING fence",
                marked(12)
            )
        };
        let finish = |long: &str| {
            format!(
                "{}{long} SELECT CASE WHEN {} THEN coalesce(max(fence), 0) / count(*) \
                 ELSE ('transaction ' || coalesce(current_setting('{MARK}', true), ''))::bigint END FROM written",
                written(GUARD, 16),
                marked(17),
            )
        };
        let text = |text: String| Arc::<str>::from(text);
        Self {
            claim: text(claim("")),
            claim_long: text(claim(&long("won", 12))),
            replace: text(replace("")),
            replace_long: text(replace(&long("written", 17))),
            load: text(format!("SELECT {ROW} FROM {s}.key WHERE {HERE}")),
            body: text(format!(
                "SELECT body FROM {s}.response WHERE day = $1::bigint AND attempt = $2::bytea"
            )),
            remove: text(format!(
                "DELETE FROM {s}.key WHERE {HERE} AND attempt = $4::bytea \
                 AND state BETWEEN $5::bigint AND $6::bigint AND ($7::bigint IS NULL OR due_ms <= $7::bigint)"
            )),
            due: text(format!(
                "SELECT namespace, account, key, {ROW} FROM {s}.key WHERE state = $1::bigint AND due_ms <= $2::bigint \
                 ORDER BY due_ms, namespace, account, key LIMIT $3::bigint"
            )),
            // Rows that somebody else is changing are left for the next batch (T5).
            reap: text(format!(
                "DELETE FROM {s}.key WHERE ctid = ANY (ARRAY(\
                   SELECT ctid FROM {s}.key WHERE state = 2 AND due_ms <= $1::bigint \
                   ORDER BY due_ms LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) AND state = 2 AND due_ms <= $1::bigint"
            )),
            locate: text(format!(
                "SELECT account, key FROM {s}.key WHERE status = $1::bytea AND namespace = $2::bytea LIMIT 1"
            )),
            end_resource: text(format!(
                "UPDATE {s}.key SET expires_ms = $4::bigint WHERE namespace = $1::bytea AND account = $2::bytea \
                 AND resource = $3::bytea AND state = 2 AND expires_ms > $4::bigint"
            )),
            list: text(format!(
                "SELECT namespace, account, key, {ROW} FROM {s}.key \
                 WHERE ($1::bytea IS NULL OR (namespace, account, key) > ($1::bytea, $2::bytea, $3::bytea)) \
                 AND ($4::bytea IS NULL OR namespace = $4::bytea) AND ($5::bytea IS NULL OR account = $5::bytea) \
                 AND ($6::bigint IS NULL OR state = $6::bigint) \
                 ORDER BY namespace, account, key LIMIT $7::bigint"
            )),
            // Exact up to a bound, then as the last vacuum counted.
            census: text(format!(
                "SELECT (SELECT count(*) FROM {s}.key WHERE state = 0), \
                   (SELECT count(*) FROM {s}.key WHERE state = 1), \
                   (SELECT count(*) FROM (SELECT FROM {s}.key WHERE state = 2 LIMIT $1::bigint) AS counted), \
                   (SELECT reltuples::bigint FROM pg_catalog.pg_class WHERE oid = '{s}.key'::regclass)"
            )),
            clock: text(format!(
                "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, clock_ms FROM {s}.meta"
            )),
            set_mark: text(format!(
                "UPDATE {s}.meta SET clock_ms = $1::bigint WHERE clock_ms IS NULL OR clock_ms < $1::bigint"
            )),
            bump_epoch: text(format!(
                "SELECT setval('{s}.fence', ((last_value >> 48) + 1) << 48) FROM {s}.fence \
                 WHERE last_value >> 48 < 32767"
            )),
            secret: text(format!("SELECT lock_secret FROM {s}.meta")),

            claim_secret: text(format!(
                "INSERT INTO {s}.deployment_key (number, proof) VALUES ($1::bigint, $2::bytea) ON CONFLICT DO NOTHING"
            )),
            proof: text(format!("SELECT proof FROM {s}.deployment_key WHERE number = $1::bigint")),

            effect: text(format!(
                "INSERT INTO {s}.effect (namespace, account, key, step, attempt) \
                 VALUES ($1::bytea, $2::bytea, $3::bytea, $4::bytea, $5::bytea)"
            )),
            // Of two rows one counts: the later one, and of two of one instant the one that lies behind.
            duplicate_effects: text(format!(
                "SELECT count(*) FROM {s}.effect AS later WHERE later.at_ms >= $1::bigint AND later.at_ms < $2::bigint \
                 AND EXISTS (SELECT FROM {s}.effect AS earlier WHERE earlier.namespace = later.namespace \
                   AND earlier.account = later.account AND earlier.key = later.key AND earlier.step = later.step \
                   AND earlier.at_ms > later.at_ms - $3::bigint AND earlier.at_ms <= later.at_ms \
                   AND (earlier.at_ms < later.at_ms OR earlier.ctid < later.ctid))"
            )),
            forget_effects: text(format!(
                "DELETE FROM {s}.effect WHERE ctid = ANY (ARRAY(\
                   SELECT ctid FROM {s}.effect WHERE at_ms < $1::bigint \
                   ORDER BY at_ms LIMIT $2::bigint FOR UPDATE SKIP LOCKED)) AND at_ms < $1::bigint"
            )),
            count_day: text(format!(
                "INSERT INTO {s}.day AS d (day, claims, orphans) VALUES ($1::bigint, $2::bigint, $3::bigint) \
                 ON CONFLICT (day) DO UPDATE SET claims = d.claims + excluded.claims, orphans = d.orphans + excluded.orphans"
            )),
            days: text(format!(
                "(SELECT day, claims, orphans FROM {s}.day ORDER BY day LIMIT $1::bigint) \
                 UNION (SELECT day, claims, orphans FROM {s}.day ORDER BY day DESC LIMIT $1::bigint)"
            )),

            begin: text(begin.to_owned()),
            // Whoever settles needs a snapshot that is younger than its lock, whatever the isolation of the handlers.
            begin_to_look: text(READ_COMMITTED.to_owned()),
            // The read of the record is a statement of its own after this one, so that it sees what the holder of
            // before has committed. One statement for both said "locked" about finished rows (protocol 11).
            hold: text(format!(
                "SELECT pg_try_advisory_xact_lock($1::bigint)::int::bigint, \
                   length(set_config('{MARK}', encode($2::bytea, 'hex'), true))::bigint, \
                   length(set_config('lock_timeout', '{}', true))::bigint, \
                   length(set_config('statement_timeout', '{}', true))::bigint, \
                   length(set_config('idle_in_transaction_session_timeout', '{}', true))::bigint",
                patience.lock_ms, patience.statement_ms, patience.idle_ms
            )),
            savepoint: text(format!("SAVEPOINT {SAVEPOINT}")),
            undo: text(format!("ROLLBACK TO SAVEPOINT {SAVEPOINT}")),
            constraints: text("SET CONSTRAINTS ALL IMMEDIATE".to_owned()),
            complete: text(complete("")),
            complete_long: text(complete(&format!(
                "WITH apart AS (INSERT INTO {s}.response (day, attempt, body) \
                 VALUES ($10::bigint, $4::bytea, $13::bytea)) "
            ))),
            finish: text(finish("")),
            finish_long: text(finish(&long("written", 18))),
            commit: text("COMMIT".to_owned()),
            rollback: text("ROLLBACK".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_a_plain_word() {
        for name in ["retrysafe", "r2", "a_b", &"a".repeat(63)] {
            assert!(Schema::new(name).is_ok(), "{name}");
        }
        for name in ["", "A", "1a", "_a", "a-b", "a b", "a\"b", "a'b", "pg_x", "käse", &"a".repeat(64)] {
            assert_eq!(Schema::new(name), Err(SchemaFault), "{name}");
        }
    }

    #[test]
    fn no_statement_depends_on_the_search_path() {
        let patience = Patience { lock_ms: 1, statement_ms: 1, idle_ms: 1 };
        let texts = Texts::new(&Schema::new("elsewhere").unwrap(), patience, "BEGIN");
        let all = [
            &texts.claim_long,
            &texts.replace_long,
            &texts.load,
            &texts.body,
            &texts.remove,
            &texts.due,
            &texts.reap,
        ];
        for text in all {
            for table in ["key", "response", "fence", "meta"] {
                for word in ["FROM", "INTO", "UPDATE"] {
                    assert!(!text.contains(&format!("{word} {table}")), "{text}");
                }
            }
            assert!(text.contains("\"elsewhere\".") && !text.contains("\"retrysafe\""), "{text}");
        }
    }
}
