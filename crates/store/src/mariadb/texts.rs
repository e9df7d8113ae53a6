//! The statements, each one round trip.
//!
//! Most are compound (`BEGIN NOT ATOMIC`, MariaDB only): they read, decide and write on the server, so that the winner, a
//! replay and an in-flight answer are one round trip each, and the present row comes back with a refusal. What is decided
//! on the way is only ever *whether a row matched*; everything else is decided above.
//!
//! Every condition handler here is the answer to one race:
//! - 1062, duplicate key: another claim was inserted between our look and our insert. The row is read again.
//! - 1205, lock wait timeout: another transaction holds the address. In [`Texts::begin`] nothing waits at all.
//! - 1305, no such savepoint: this is not the transaction that was begun (protocol 17).

use std::sync::Arc;

/// Set by [`Texts::begin`] and [`Texts::open`] and checked at the end: it dies with the transaction, whoever ended that
/// (a deadlock, DDL, a handler's own `COMMIT`), so that its absence tells a new transaction from the one that was begun.
pub(super) const SAVEPOINT: &str = "retrysafe_handler";

/// What the first column of an answer says.
pub(super) mod verdict {
    /// Nothing was changed; the row that is there follows.
    pub(crate) const SEEN: i64 = 0;
    /// It was done.
    pub(crate) const DONE: i64 = 1;
    /// Another transaction holds the address.
    pub(crate) const LOCKED: i64 = 2;
    /// Another claim came in between: look again.
    pub(crate) const RACED: i64 = 3;
    /// The transaction had ended before.
    pub(crate) const LOST: i64 = 4;
}

/// What a row of an address is found by.
const ADDRESS: &str = "namespace = ? AND account = ? AND `key` = ?";

/// Whether the address has a committed row. A statement of its own on purpose: `IF EXISTS (SELECT ...)` of a compound
/// statement is a *locking* read, which waits for uncommitted rows like a write (measured).
const THERE: &str =
    "SELECT COUNT(*) INTO there FROM retrysafe_key WHERE namespace = ? AND account = ? AND `key` = ?";

/// See [`Guard`](crate::sql::row::Guard). For a removal the time is `due_ms`, in every state.
const GUARD: &str = "attempt = ? AND state BETWEEN ? AND ? \
    AND COALESCE(IF(state = 2, expires_ms, due_ms) <= ?, TRUE)";
const REMOVAL_GUARD: &str = "attempt = ? AND state BETWEEN ? AND ? AND COALESCE(due_ms <= ?, TRUE)";

const COLUMNS: &str = "fence, expires_ms, response_day, data";

/// The columns of a record, from the arguments attempt, status, state, due_ms, expires_ms, resource, response_day, data.
/// The fence goes through `LAST_INSERT_ID`, from where it is read without a look at the row.
const SET: &str = "attempt = ?, status = ?, state = ?, due_ms = ?, expires_ms = ?, resource = ?, \
    response_day = ?, data = ?";
const KEEP_FENCE: &str = "fence = LAST_INSERT_ID(fence)";
const NEW_FENCE: &str = "fence = LAST_INSERT_ID(NEXT VALUE FOR retrysafe_fence)";
const VALUES: &str = "(namespace, account, `key`, attempt, status, state, due_ms, expires_ms, resource, \
    response_day, data, fence) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
    LAST_INSERT_ID(NEXT VALUE FOR retrysafe_fence))";

const INSERT_BODY: &str = "INSERT INTO retrysafe_response (day, attempt, body) VALUES (?, ?, ?);";

/// Ends a transaction that a failed statement left open, and passes the failure on.
const ROLL_BACK_AND_RAISE: &str = "DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;";

/// The texts, made once: a driver keeps prepared what comes as the same bytes.
pub(super) struct Texts {
    /// Address; address and columns; address. Answers verdict and row.
    pub(super) claim: Arc<str>,
    update: [Arc<str>; 4],
    pub(super) load: Arc<str>,
    pub(super) body: Arc<str>,
    pub(super) remove: Arc<str>,
    pub(super) due: Arc<str>,
    pub(super) reap: Arc<str>,
    pub(super) locate: Arc<str>,
    pub(super) end_resource: Arc<str>,
    pub(super) census: Arc<str>,
    pub(super) estimate: Arc<str>,
    pub(super) clock: Arc<str>,
    pub(super) keep_mark: Arc<str>,
    pub(super) claim_secret: Arc<str>,
    pub(super) proof: Arc<str>,
    pub(super) effect: Arc<str>,
    pub(super) duplicate_effects: Arc<str>,
    pub(super) forget_effects: Arc<str>,
    pub(super) count_day: Arc<str>,
    pub(super) days: Arc<str>,
    pub(super) next_fence: Arc<str>,
    pub(super) begin_absent: Arc<str>,
    pub(super) begin_over: Arc<str>,
    pub(super) open: Arc<str>,
    pub(super) undo: Arc<str>,
    commit: [Arc<str>; 2],
    pub(super) settle: Arc<str>,
    pub(super) roll_back: Arc<str>,
}

impl Texts {
    pub(super) fn new() -> Self {
        let select = format!("SELECT {COLUMNS} FROM retrysafe_key WHERE {ADDRESS}");
        let seen =
            format!("SELECT {} AS verdict, {COLUMNS} FROM retrysafe_key WHERE {ADDRESS}", verdict::SEEN);
        let done = format!("SELECT {} AS verdict, LAST_INSERT_ID() AS fence", verdict::DONE);
        Self {
            claim: claim(&seen, &done).into(),
            update: [
                update(KEEP_FENCE, false, &seen, &done).into(),
                update(KEEP_FENCE, true, &seen, &done).into(),
                update(NEW_FENCE, false, &seen, &done).into(),
                update(NEW_FENCE, true, &seen, &done).into(),
            ],
            load: select.as_str().into(),
            body: "SELECT body FROM retrysafe_response WHERE day = ? AND attempt = ?".into(),
            // The body stays behind: its day is dropped as a whole.
            remove: format!("DELETE FROM retrysafe_key WHERE {ADDRESS} AND {REMOVAL_GUARD}").into(),
            due: format!(
                "SELECT namespace, account, `key`, {COLUMNS} FROM retrysafe_key \
                 WHERE state = ? AND due_ms <= ? ORDER BY due_ms LIMIT ?"
            )
            .into(),
            // One commit for all of them. What somebody is changing is passed over, not waited for.
            reap: "DELETE reaped FROM retrysafe_key AS reaped JOIN (\
                   SELECT namespace, account, `key` FROM retrysafe_key WHERE state = 2 AND due_ms <= ? \
                   ORDER BY due_ms LIMIT ? FOR UPDATE SKIP LOCKED) AS due USING (namespace, account, `key`)"
                .into(),
            locate: "SELECT namespace, account, `key` FROM retrysafe_key WHERE status = ? AND namespace = ? LIMIT 1"
                .into(),
            end_resource: "UPDATE retrysafe_key SET expires_ms = ? WHERE resource = ? AND namespace = ? \
                 AND account = ? AND state = 2 AND expires_ms > ?"
                .into(),
            census: census().into(),
            estimate: "SELECT CAST(table_rows AS SIGNED) FROM information_schema.tables \
                 WHERE table_schema = DATABASE() AND table_name = 'retrysafe_key'"
                .into(),
            clock: format!("SELECT {NOW_MS}, clock_ms FROM retrysafe_meta WHERE only_row = 1").into(),
            keep_mark: "UPDATE retrysafe_meta SET clock_ms = ? WHERE only_row = 1 AND COALESCE(clock_ms < ?, TRUE)"
                .into(),
            // Unchanged where it is there.
            claim_secret: "INSERT INTO retrysafe_deployment_key (number, proof) VALUES (?, ?) \
                 ON DUPLICATE KEY UPDATE number = number"
                .into(),
            proof: "SELECT proof FROM retrysafe_deployment_key WHERE number = ?".into(),
            effect: "INSERT INTO retrysafe_effect (namespace, account, `key`, step, attempt) VALUES (?, ?, ?, ?, ?)"
                .into(),
            // Of two rows one counts: the later one, and of two of one instant the one with the higher number.
            duplicate_effects: "SELECT COUNT(*) FROM retrysafe_effect AS later \
                 WHERE later.at_ms >= ? AND later.at_ms < ? AND EXISTS (\
                   SELECT 1 FROM retrysafe_effect AS earlier WHERE earlier.namespace = later.namespace \
                   AND earlier.account = later.account AND earlier.`key` = later.`key` \
                   AND earlier.step = later.step AND earlier.at_ms > later.at_ms - ? \
                   AND earlier.at_ms <= later.at_ms AND (earlier.at_ms < later.at_ms OR earlier.id < later.id))"
                .into(),
            forget_effects: "DELETE FROM retrysafe_effect WHERE at_ms < ? ORDER BY at_ms, id LIMIT ?".into(),
            count_day: "INSERT INTO retrysafe_day (day, claims, orphans) VALUES (?, ?, ?) \
                 ON DUPLICATE KEY UPDATE claims = claims + VALUES(claims), orphans = orphans + VALUES(orphans)"
                .into(),
            days: "(SELECT day, claims, orphans FROM retrysafe_day ORDER BY day LIMIT ?) \
                 UNION (SELECT day, claims, orphans FROM retrysafe_day ORDER BY day DESC LIMIT ?)"
                .into(),
            next_fence: "SELECT NEXT VALUE FOR retrysafe_fence".into(),
            begin_absent: begin_absent().into(),
            begin_over: begin_over().into(),
            open: format!("SAVEPOINT {SAVEPOINT}").into(),
            undo: format!("ROLLBACK TO SAVEPOINT {SAVEPOINT}").into(),
            commit: [commit(false, &done).into(), commit(true, &done).into()],
            settle: format!("SELECT attempt, state, fence FROM retrysafe_key WHERE {ADDRESS} FOR UPDATE").into(),
            roll_back: "ROLLBACK".into(),
        }
    }

    /// A guarded write: (day, attempt, body if apart;) columns, address, guard; address. Answers verdict and fence or row.
    pub(super) fn update(&self, new_fence: bool, body_apart: bool) -> &Arc<str> {
        &self.update[usize::from(new_fence) * 2 + usize::from(body_apart)]
    }

    /// The last message of a transaction: (day, attempt, body if apart;) columns, address, guard. Answers verdict and fence.
    pub(super) fn commit(&self, body_apart: bool) -> &Arc<str> {
        &self.commit[usize::from(body_apart)]
    }
}

/// Milliseconds since 1970 by the database's own clock. `UTC_TIMESTAMP` does not depend on the session's time zone, where an
/// hour of each autumn exists twice.
const NOW_MS: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";

/// Looks first: a claim on a key that is taken is a read, takes no lock and no number. An own claim that comes again is
/// recognised above, by its attempt.
fn claim(seen: &str, done: &str) -> String {
    format!(
        "BEGIN NOT ATOMIC
            DECLARE won, there TINYINT DEFAULT 0;
            DECLARE CONTINUE HANDLER FOR 1062 SET won = 0;
            {THERE};
            IF NOT there THEN
                SET won = 1;
                INSERT INTO retrysafe_key {VALUES};
            END IF;
            IF won THEN {done}; ELSE {seen}; END IF;
         END"
    )
}

fn update(fence: &str, body_apart: bool, seen: &str, done: &str) -> String {
    let (handler, begin, commit, roll_back) = match body_apart {
        true => (ROLL_BACK_AND_RAISE, format!("START TRANSACTION; {INSERT_BODY}"), "COMMIT;", "ROLLBACK;"),
        false => ("", String::new(), "", ""),
    };
    format!(
        "BEGIN NOT ATOMIC
            {handler}
            {begin}
            UPDATE retrysafe_key SET {fence}, {SET} WHERE {ADDRESS} AND {GUARD};
            IF ROW_COUNT() = 1 THEN {commit} {done}; ELSE {roll_back} {seen}; END IF;
         END"
    )
}

/// The read is a transaction of its own, so that the handler's first read makes its snapshot, whatever its isolation.
/// The insert is the lock: InnoDB shows an uncommitted row to those who want to insert the same, and with no patience at
/// all they are told at once.
fn begin_absent() -> String {
    format!(
        "BEGIN NOT ATOMIC
            DECLARE verdict TINYINT DEFAULT {seen};
            DECLARE there TINYINT DEFAULT 0;
            DECLARE CONTINUE HANDLER FOR 1062 SET verdict = {raced};
            DECLARE CONTINUE HANDLER FOR 1205 SET verdict = {locked};
            SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
            {THERE};
            IF NOT there THEN
                COMMIT;
                SET verdict = {done};
                SET STATEMENT innodb_lock_wait_timeout = 0 FOR INSERT INTO retrysafe_key {VALUES};
                IF verdict = {done} THEN SAVEPOINT {SAVEPOINT}; ELSE ROLLBACK; END IF;
                SELECT verdict, LAST_INSERT_ID() AS fence;
            ELSE
                SELECT verdict, {COLUMNS} FROM retrysafe_key WHERE {ADDRESS};
                COMMIT;
            END IF;
         END",
        seen = verdict::SEEN,
        done = verdict::DONE,
        locked = verdict::LOCKED,
        raced = verdict::RACED,
    )
}

/// Over a record that is there: one that expired, or whose holder is lost. The same with an update as the lock.
fn begin_over() -> String {
    format!(
        "BEGIN NOT ATOMIC
            DECLARE verdict TINYINT DEFAULT {done};
            DECLARE changed INT DEFAULT 0;
            DECLARE CONTINUE HANDLER FOR 1205 SET verdict = {locked};
            SET STATEMENT innodb_lock_wait_timeout = 0 FOR
                UPDATE retrysafe_key SET {NEW_FENCE}, {SET} WHERE {ADDRESS} AND {GUARD};
            SET changed = ROW_COUNT();
            IF verdict = {done} AND changed = 1 THEN
                SAVEPOINT {SAVEPOINT};
                SELECT verdict, LAST_INSERT_ID() AS fence;
            ELSEIF verdict = {done} THEN
                ROLLBACK;
                SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
                SELECT {seen} AS verdict, {COLUMNS} FROM retrysafe_key WHERE {ADDRESS};
                COMMIT;
            ELSE
                ROLLBACK;
                SELECT verdict, 0 AS fence;
            END IF;
         END",
        seen = verdict::SEEN,
        done = verdict::DONE,
        locked = verdict::LOCKED,
    )
}

/// Commits only what was begun, and only with the record that it is for.
fn commit(body_apart: bool, done: &str) -> String {
    let body = if body_apart { INSERT_BODY } else { "" };
    format!(
        "BEGIN NOT ATOMIC
            {ROLL_BACK_AND_RAISE}
            DECLARE EXIT HANDLER FOR 1305 BEGIN ROLLBACK; SELECT {lost} AS verdict, 0 AS fence; END;
            RELEASE SAVEPOINT {SAVEPOINT};
            {body}
            UPDATE retrysafe_key SET {KEEP_FENCE}, {SET} WHERE {ADDRESS} AND {GUARD};
            IF ROW_COUNT() = 1 THEN COMMIT; {done}; ELSE ROLLBACK; SELECT {seen} AS verdict, 0 AS fence; END IF;
         END",
        lost = verdict::LOST,
        seen = verdict::SEEN,
    )
}

/// A page of a listing: one text for each shape of a filter, so that the primary key is walked and not the whole table.
pub(super) fn list(filter: &[&str], cursor: bool) -> Arc<str> {
    let mut conditions: Vec<String> = filter.iter().map(|column| format!("{column} = ?")).collect();
    if cursor {
        conditions.push(
            "(namespace > ? OR (namespace = ? AND account > ?) OR (namespace = ? AND account = ? AND `key` > ?))".into(),
        );
    }
    let conditions = if conditions.is_empty() { "TRUE".into() } else { conditions.join(" AND ") };
    format!(
        "SELECT namespace, account, `key`, {COLUMNS} FROM retrysafe_key \
         WHERE {conditions} ORDER BY namespace, account, `key` LIMIT ?"
    )
    .into()
}

/// Lets the sequence go on from `first`, never back. Its grammar takes no arguments.
pub(super) fn jump_fence(first: i64) -> Arc<str> {
    format!("SELECT SETVAL(retrysafe_fence, {first}, 0)").into()
}

/// What is in flight or uncertain is few; completed records are counted up to a bound, beyond which an estimate serves.
fn census() -> String {
    let count = |state| {
        format!(
            "(SELECT COUNT(*) FROM (SELECT 1 FROM retrysafe_key WHERE state = {state} LIMIT {COUNT_MAX}) AS s{state})"
        )
    };
    format!("SELECT {}, {}, {}", count(0), count(1), count(2))
}

/// Up to how many records of a state are counted.
pub(super) const COUNT_MAX: i64 = 20_000;
