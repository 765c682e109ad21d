//! SQLite. One write lock guards the whole file, so a guarded transaction takes it up front, checks the
//! mark under it, and no barrier can come between. This module never lets a connection write with a
//! journal or sync setting under which a power cut could forget the mark.
//!
//! ```ignore
//! let tx = fence.begin(&permit)?;
//! tx.execute("UPDATE accounts SET balance = balance - 10 WHERE id = 7", [])?;
//! tx.commit()?;
//! ```
//!
//! Calls block: from asynchronous code, use a thread for blocking work. Not for network file systems,
//! whose locks cannot be trusted; databases attached to the connection are not in the atomic step.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};

use crate::budget::{self, UNSTATED};
use crate::rule::{Standing, judge};
use crate::{Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

/// The schema, as text, for people who keep their migrations elsewhere.
pub const SCHEMA_SQL: &str = "
CREATE TABLE IF NOT EXISTS tenure_fence (
    scope  TEXT PRIMARY KEY NOT NULL,
    token  INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    holder TEXT,
    seq    INTEGER NOT NULL DEFAULT 0,
    cursor BLOB
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenure_fence_audit (
    at     TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    scope  TEXT NOT NULL, was INTEGER NOT NULL, token INTEGER NOT NULL, by TEXT NOT NULL, reason TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS tenure_fence_never_deleted BEFORE DELETE ON tenure_fence
BEGIN SELECT RAISE(ABORT, 'a fence mark is never deleted: that would let every old token in again'); END;
";

/// The fence in one database file, with the connection that guarded transactions run on.
pub struct Sqlite {
    connection: Connection,
    clock: Arc<dyn Clock>,
}

impl Sqlite {
    /// Takes over a connection: creates the fence's tables and makes every commit durable.
    pub fn open(connection: Connection) -> Result<Sqlite, FenceError> {
        Sqlite::with_clock(connection, Arc::new(SystemClock))
    }

    /// The same with another clock.
    pub fn with_clock(connection: Connection, clock: Arc<dyn Clock>) -> Result<Sqlite, FenceError> {
        connection.busy_timeout(UNSTATED).map_err(classify)?;
        let journal: String =
            connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(classify)?;
        let in_memory = connection.path().is_none_or(str::is_empty);
        if !in_memory && ["off", "memory"].contains(&journal.to_lowercase().as_str()) {
            return Err(FenceError::refused(format!(
                "journal_mode is {journal}: a crash could bring back a smaller token; use WAL or DELETE"
            )));
        }
        // With less, a power cut can lose the last commits, and with them the mark.
        connection.execute_batch("PRAGMA synchronous = FULL").map_err(classify)?;
        connection.execute_batch(SCHEMA_SQL).map_err(classify)?;
        Ok(Sqlite { connection, clock })
    }

    /// The connection, for reads. A write through it is not guarded.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Installs the takeover's token; see [`Fence::barrier`].
    pub fn barrier(&mut self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?;
        let tx = self.lock(budget)?;
        let mark = read_mark(&tx, takeover.scope())?;
        let standing = judge(takeover.scope(), takeover.token(), mark.as_ref().map(|mark| mark.token))?;
        raise(&tx, takeover.scope(), takeover.token(), Some(takeover.holder()), standing)?;
        tx.commit().map_err(|error| unless_busy(error, FindOut::Repeat))?;
        Ok(match mark {
            None => Barrier { predecessor: None, seq: 0, cursor: None },
            Some(mark) => Barrier { predecessor: Some(mark.token), seq: mark.seq, cursor: mark.cursor },
        })
    }

    /// Begins a guarded transaction. Waits for the file's write lock, no longer than the lease lasts.
    pub fn begin<'c, A: Authority>(&'c mut self, authority: &'c A) -> Result<Guarded<'c, A>, FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        let clock = self.clock.clone();
        let tx = self.lock(budget)?;
        let mark = read_mark(&tx, authority.scope())?;
        let standing = judge(authority.scope(), authority.token(), mark.as_ref().map(|mark| mark.token))?;
        if standing == Standing::Raises {
            raise(&tx, authority.scope(), authority.token(), None, standing)?;
        }
        let (seq, cursor) = mark.map_or((0, None), |mark| (mark.seq, mark.cursor));
        Ok(Guarded { transaction: tx, authority, clock, seq, cursor, find_out: FindOut::ReadBack })
    }

    /// What the fence remembers of a scope.
    pub fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        read_mark(&self.connection, scope)
    }

    /// Lowers a poisoned mark, audited; see [`Fence::repair`].
    pub fn repair(
        &mut self,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let tx = self.lock(None)?;
        let Some(mark) = read_mark(&tx, scope)? else {
            return Err(FenceError::refused(format!("no token was ever seen for {scope}")));
        };
        tx.execute(
            "UPDATE tenure_fence SET token = ?2, holder = NULL WHERE scope = ?1",
            params![scope.to_string(), to.get() as i64],
        )
        .map_err(classify)?;
        tx.execute(
            "INSERT INTO tenure_fence_audit (scope, was, token, by, reason) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![scope.to_string(), mark.token.get() as i64, to.get() as i64, by.as_str(), reason],
        )
        .map_err(classify)?;
        tx.commit().map_err(|error| unless_busy(error, FindOut::Repeat))?;
        Ok(FenceMark { token: to, holder: None, ..mark })
    }

    /// Takes the write lock now: a deferred transaction could pass its check and fail to upgrade later, or
    /// check against a snapshot that a barrier has already replaced.
    fn lock(&mut self, budget: Option<Duration>) -> Result<Transaction<'_>, FenceError> {
        self.connection.busy_timeout(budget.unwrap_or(UNSTATED)).map_err(classify)?;
        self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(classify)
    }

    /// The fence behind a lock, to stand in a list of [`Fence`]s. Its calls block.
    pub fn shared(self) -> SqliteFence {
        SqliteFence(Mutex::new(self))
    }
}

/// [`Sqlite`] behind a lock.
pub struct SqliteFence(Mutex<Sqlite>);

impl Fence for SqliteFence {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(async move { self.locked().barrier(takeover) })
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(async move { self.locked().mark(scope) })
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(async move { self.locked().repair(scope, to, by, reason) })
    }
}

impl SqliteFence {
    fn locked(&self) -> std::sync::MutexGuard<'_, Sqlite> {
        // A panic elsewhere rolled its transaction back: the connection is as good as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction that is inside the fence. Use it like the [`Transaction`] that it is; dropped without
/// [`commit`](Guarded::commit) it rolls back.
#[must_use = "a guarded transaction that is dropped rolls back"]
pub struct Guarded<'c, A: Authority> {
    transaction: Transaction<'c>,
    authority: &'c A,
    clock: Arc<dyn Clock>,
    seq: u64,
    cursor: Option<Cursor>,
    find_out: FindOut,
}

impl<'c, A: Authority> Deref for Guarded<'c, A> {
    type Target = Transaction<'c>;
    fn deref(&self) -> &Transaction<'c> {
        &self.transaction
    }
}

impl<A: Authority> Guarded<'_, A> {
    /// Where the last committed transaction left the cursor.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Moves the cursor and gives this transaction a number; seen by others when it commits.
    pub fn advance(&mut self, to: Cursor) -> Result<u64, FenceError> {
        let seq: i64 = self
            .transaction
            .query_row(
                "UPDATE tenure_fence SET seq = ?3, cursor = ?4 WHERE scope = ?1 AND token = ?2 RETURNING seq",
                params![
                    self.authority.scope().to_string(),
                    self.authority.token().get() as i64,
                    (self.seq + 1) as i64,
                    to.as_bytes()
                ],
                |row| row.get(0),
            )
            .map_err(classify)?;
        self.cursor = Some(to);
        self.find_out = FindOut::Seq(seq as u64);
        Ok(seq as u64)
    }

    /// Commits, if the lease still has time; else rolls back.
    pub fn commit(self) -> Result<(), FenceError> {
        // Returning here drops the transaction, which rolls it back.
        budget::of(self.authority, &*self.clock)?;
        self.transaction.commit().map_err(|error| unless_busy(error, self.find_out))
    }

    /// Rolls back.
    pub fn rollback(self) -> Result<(), FenceError> {
        self.transaction.rollback().map_err(classify)
    }
}

fn read_mark(connection: &Connection, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
    let row = connection
        .prepare("SELECT token, holder, seq, cursor FROM tenure_fence WHERE scope = ?1")
        .and_then(|mut statement| {
            statement
                .query_row([scope.to_string()], |row| {
                    let holder: Option<String> = row.get(1)?;
                    let cursor: Option<Vec<u8>> = row.get(3)?;
                    Ok((row.get::<_, i64>(0)?, holder, row.get::<_, i64>(2)?, cursor))
                })
                .optional()
        })
        .map_err(classify)?;
    let Some((token, holder, seq, cursor)) = row else { return Ok(None) };
    let token = Token::try_from(token as u64).map_err(FenceError::refused)?;
    let holder = holder.and_then(|name| name.parse().ok());
    Ok(Some(FenceMark { token, holder, seq: seq as u64, cursor: cursor.map(Cursor::from) }))
}

fn raise(
    tx: &Transaction<'_>,
    scope: &Scope,
    token: Token,
    holder: Option<&HolderName>,
    standing: Standing,
) -> Result<(), FenceError> {
    // A repeated barrier changes nothing but names the holder, if a write came before it.
    let sql = match standing {
        Standing::Raises => {
            "INSERT INTO tenure_fence (scope, token, holder) VALUES (?1, ?2, ?3)
             ON CONFLICT (scope) DO UPDATE SET token = excluded.token, holder = excluded.holder"
        }
        Standing::Current => "UPDATE tenure_fence SET holder = ?3 WHERE scope = ?1 AND token = ?2",
    };
    let values = params![scope.to_string(), token.get() as i64, holder.map(HolderName::as_str)];
    tx.execute(sql, values).map_err(classify)?;
    Ok(())
}

/// Before a commit nothing is applied: either somebody else has the lock, or the answer is a true no.
fn classify(error: rusqlite::Error) -> FenceError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::OperationInterrupted) => {
            FenceError::unavailable(error)
        }
        _ => FenceError::refused(error),
    }
}

/// At the commit an I/O error leaves open whether the journal made it to the disk.
fn unless_busy(error: rusqlite::Error, find_out: FindOut) -> FenceError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => FenceError::unknown(find_out, error),
        _ => classify(error),
    }
}
