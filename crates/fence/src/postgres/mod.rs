//! PostgreSQL. The rule itself is plain SQL (`fence.sql`), so that any language can call it; this module
//! installs it, calls it, and maps its answers. It decides nothing about tokens.
//!
//! ```ignore
//! let fence = Postgres::new();
//! let tx = fence.begin(&mut client, &permit).await?;
//! tx.execute("UPDATE accounts SET balance = balance - 10 WHERE id = 7", &[]).await?;
//! tx.commit().await?;
//! ```
//!
//! Why it holds: `enter` takes a share lock on the scope's row and keeps it until the transaction ends;
//! the barrier updates that row, so it waits for every older transaction that is inside, and every later
//! one sees the new token. READ COMMITTED is enough, because a locking read sees the newest version.
//! Only transaction-local settings are used, so a transaction-mode pooler is no obstacle.
//!
//! [`enforce`] goes further: triggers that refuse every write to a table that does not carry a token.

pub mod enforce;

use std::fmt::Display;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use crate::budget::{self, UNSTATED};
use crate::{
    Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Stale, Takeover,
};

/// The schema, as text, for people who keep their migrations elsewhere.
pub const SCHEMA_SQL: &str = include_str!("fence.sql");

/// A refusal as stale; its detail has the numbers.
pub const STALE: &str = "TN001";
/// A write to a guarded table in a transaction that carries no token for its scope.
pub const NO_TOKEN: &str = "TN002";

/// The fence in one PostgreSQL database. It holds no connection: use it with any, pooled or not.
#[derive(Clone)]
pub struct Postgres {
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

impl Default for Postgres {
    fn default() -> Postgres {
        Postgres::new()
    }
}

impl Postgres {
    /// A fence that reads the system's clock.
    pub fn new() -> Postgres {
        Postgres::with_clock(Arc::new(SystemClock))
    }

    /// A fence that reads another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Postgres {
        Postgres { clock, timeout: UNSTATED }
    }

    /// How long a call may take where no lease bounds it: a barrier of an operator, a repair. 30 seconds
    /// unless said. The server's own timers end what waits longer, so nothing is left behind that waits for a
    /// lock.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Postgres {
        Postgres { timeout, ..self }
    }

    /// Creates the schema `tenure_fence`, or brings it up to date. Needs the right to create schemas.
    pub async fn install(&self, client: &Client) -> Result<(), FenceError> {
        // One transaction and one lock: two installers at once would trip over each other's half.
        let sql = format!("BEGIN; SELECT pg_advisory_xact_lock(7400); {SCHEMA_SQL} COMMIT;");
        match client.batch_execute(&sql).await {
            Ok(()) => Ok(()),
            Err(error) => {
                let _ = client.batch_execute("ROLLBACK").await; // the first error is the one to tell
                Err(FenceError::refused(error))
            }
        }
    }

    /// Installs the takeover's token; see [`Fence::barrier`]. Waits for older transactions inside, no
    /// longer than the lease lasts: they end by their own timers, which are the old lease's.
    pub async fn barrier(&self, client: &Client, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?.unwrap_or(self.timeout);
        let sql = format!(
            "{} SELECT predecessor, seq, encode(cursor, 'hex') FROM tenure_fence.barrier({}, {}, {})",
            timers(budget),
            quote(&takeover.scope().to_string()),
            takeover.token(),
            quote(takeover.holder().as_str()),
        );
        let rows = within(Some(budget), FindOut::Repeat, client.simple_query(&sql))
            .await?
            .map_err(|error| classify(error, FindOut::Repeat))?;
        let row = one_row(&rows)?;
        Ok(Barrier { predecessor: token(row, 0)?, seq: number(row, 1)?, cursor: cursor(row, 2)? })
    }

    /// Begins a guarded transaction. Any number of one holder's may be open at once.
    pub async fn begin<'c, A: Authority>(
        &self,
        client: &'c mut Client,
        authority: &'c A,
    ) -> Result<Guarded<'c, A>, FenceError> {
        let (transaction, _) =
            self.enter(client, authority, |call| format!("SELECT tenure_fence.enter{call}")).await?;
        Ok(Guarded { transaction, authority, clock: self.clock.clone(), find_out: FindOut::ReadBack })
    }

    /// Begins a guarded transaction that may move the cursor. One holder's follow one another.
    pub async fn begin_serial<'c, A: Authority>(
        &self,
        client: &'c mut Client,
        authority: &'c A,
    ) -> Result<Serial<'c, A>, FenceError> {
        let entering =
            |call| format!("SELECT seq, encode(cursor, 'hex') FROM tenure_fence.enter_serial{call}");
        let (transaction, rows) = self.enter(client, authority, entering).await?;
        let row = one_row(&rows)?;
        let seq = number(row, 0)?;
        let cursor = cursor(row, 1)?;
        let guarded =
            Guarded { transaction, authority, clock: self.clock.clone(), find_out: FindOut::Seq(seq) };
        Ok(Serial { guarded, seq, cursor })
    }

    async fn enter<'c, A: Authority>(
        &self,
        client: &'c mut Client,
        authority: &A,
        select: impl FnOnce(String) -> String,
    ) -> Result<(Open<'c>, Vec<SimpleQueryMessage>), FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        // The simple protocol throughout: it needs no prepared statement, which poolers may not carry over,
        // and the BEGIN rides along, so that a guarded transaction makes no more round trips than any other.
        let call = format!(
            "({}, {}, {})",
            quote(&authority.scope().to_string()),
            authority.token(),
            or_null(budget.map(budget::millis)),
        );
        let sql = format!("BEGIN; {}", select(call));
        let transaction = Open { client, open: true }; // dropped, it rolls back: nothing was written
        match tokio::time::timeout(budget.unwrap_or(UNSTATED), transaction.client.simple_query(&sql)).await {
            Ok(entered) => Ok((transaction, entered.map_err(not_applied)?)),
            Err(elapsed) => Err(FenceError::unavailable(elapsed)),
        }
    }

    /// What the fence remembers of a scope.
    pub async fn mark(&self, client: &Client, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        let sql = format!(
            "SELECT token, holder, seq, encode(cursor, 'hex') FROM tenure_fence.marks WHERE scope = {}",
            quote(&scope.to_string()),
        );
        let rows = within(Some(self.timeout), FindOut::Repeat, client.simple_query(&sql))
            .await?
            .map_err(|error| classify(error, FindOut::Repeat))?;
        let Some(row) = rows.iter().find_map(row) else { return Ok(None) };
        let Some(token) = token(row, 0)? else { return Err(FenceError::refused("a mark without a token")) };
        let holder = row.get(1).and_then(|name| name.parse().ok());
        Ok(Some(FenceMark { token, holder, seq: number(row, 2)?, cursor: cursor(row, 3)? }))
    }

    /// Lowers a poisoned mark, audited; see [`Fence::repair`].
    pub async fn repair(
        &self,
        client: &Client,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let sql = format!(
            "{} SELECT tenure_fence.repair({}, {to}, {}, {})",
            timers(self.timeout),
            quote(&scope.to_string()),
            quote(by.as_str()),
            quote(reason),
        );
        within(Some(self.timeout), FindOut::Repeat, client.simple_query(&sql))
            .await?
            .map_err(|error| classify(error, FindOut::Repeat))?;
        self.mark(client, scope).await?.ok_or_else(|| FenceError::refused("the mark has vanished"))
    }

    /// The fence with a connection of its own, to stand in a list of [`Fence`]s.
    pub fn over(self, client: Client) -> PostgresFence {
        PostgresFence { fence: self, client }
    }
}

/// [`Postgres`] with a connection of its own.
pub struct PostgresFence {
    fence: Postgres,
    client: Client,
}

impl Fence for PostgresFence {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(self.fence.barrier(&self.client, takeover))
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(self.fence.mark(&self.client, scope))
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(self.fence.repair(&self.client, scope, to, by, reason))
    }
}

/// A transaction on a connection that is nobody else's meanwhile. The driver's own would cost a round trip
/// for its BEGIN.
struct Open<'c> {
    client: &'c Client,
    open: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.open {
            // Nobody waits for the answer. The driver queues a request when it is first polled, behind all
            // that was sent before; if the connection is gone, so is the transaction.
            let rollback = std::pin::pin!(self.client.simple_query_raw("ROLLBACK"));
            let _ = rollback.poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// A transaction that is inside the fence. Use it like the [`Client`] that it runs on: what is executed on it
/// is part of the transaction. Dropped without [`commit`](Guarded::commit) it rolls back.
#[must_use = "a guarded transaction that is dropped rolls back"]
pub struct Guarded<'c, A: Authority> {
    transaction: Open<'c>,
    authority: &'c A,
    clock: Arc<dyn Clock>,
    find_out: FindOut,
}

impl<A: Authority> Deref for Guarded<'_, A> {
    type Target = Client;
    fn deref(&self) -> &Client {
        self.transaction.client
    }
}

impl<A: Authority> Guarded<'_, A> {
    /// Commits, if the lease still has time and every statement was done; else rolls back.
    pub async fn commit(self) -> Result<(), FenceError> {
        // Returning here drops the transaction, which rolls it back.
        let budget = budget::of(self.authority, &*self.clock)?;
        let Guarded { mut transaction, find_out, .. } = self;
        // After a statement that failed, even if its error was passed over, a COMMIT rolls back and calls
        // that a success. The statement before it then fails as well, and says so.
        within(budget, find_out, transaction.client.batch_execute("SELECT 1; COMMIT"))
            .await?
            .map_err(|error| at_commit(error, find_out))?;
        transaction.open = false;
        Ok(())
    }

    /// Rolls back.
    pub async fn rollback(self) -> Result<(), FenceError> {
        let mut transaction = self.transaction;
        transaction.open = false;
        transaction.client.batch_execute("ROLLBACK").await.map_err(FenceError::unavailable)
    }
}

/// A guarded transaction that may move the cursor.
#[must_use = "a guarded transaction that is dropped rolls back"]
pub struct Serial<'c, A: Authority> {
    guarded: Guarded<'c, A>,
    seq: u64,
    cursor: Option<Cursor>,
}

impl<A: Authority> Deref for Serial<'_, A> {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.guarded
    }
}

impl<A: Authority> Serial<'_, A> {
    /// This transaction's number; with scope and token an idempotency key for other systems.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Where the last committed transaction left the cursor.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.cursor.as_ref()
    }

    /// Moves the cursor; seen by others when this transaction commits.
    pub async fn advance(&mut self, to: Cursor) -> Result<(), FenceError> {
        let authority = self.guarded.authority;
        let sql = format!(
            "SELECT tenure_fence.advance({}, {}, decode('{}', 'hex'))",
            quote(&authority.scope().to_string()),
            authority.token(),
            hex(to.as_bytes()),
        );
        self.guarded.simple_query(&sql).await.map_err(not_applied)?;
        self.cursor = Some(to);
        Ok(())
    }

    /// Commits, if the lease still has time; else rolls back.
    pub async fn commit(self) -> Result<(), FenceError> {
        self.guarded.commit().await
    }

    /// Rolls back.
    pub async fn rollback(self) -> Result<(), FenceError> {
        self.guarded.rollback().await
    }
}

/// What an error says about a call that either happened or did not.
pub fn classify(error: tokio_postgres::Error, find_out: FindOut) -> FenceError {
    match error.code() {
        // The server answered, so whatever the statement was has been rolled back.
        Some(code) => answered(code.clone(), error),
        None => FenceError::unknown(find_out, error),
    }
}

/// The same for a commit: a server that is being shut down while it waits for its replicas has already
/// committed on its own disk when it says so.
fn at_commit(error: tokio_postgres::Error, find_out: FindOut) -> FenceError {
    match error.code().map(SqlState::code) {
        Some(code) if code.starts_with("57P") || code.starts_with("08") => {
            FenceError::unknown(find_out, error)
        }
        _ => classify(error, find_out),
    }
}

/// The same for a step before the commit: without a commit nothing can have been applied.
fn not_applied(error: tokio_postgres::Error) -> FenceError {
    match error.code() {
        Some(code) => answered(code.clone(), error),
        None => FenceError::unavailable(error),
    }
}

fn answered(code: SqlState, error: tokio_postgres::Error) -> FenceError {
    if code.code() == STALE
        && let Some(stale) = error.as_db_error().and_then(|db| db.detail()).and_then(parse_stale)
    {
        return FenceError::Stale(stale);
    }
    match code.code() {
        // Waited too long, was chosen as a deadlock's victim, lost a race of snapshots, or the server is
        // going down or full: nothing was applied and another attempt may fare better.
        "55P03" | "57014" | "40P01" | "40001" | "25P03" | "25P04" => FenceError::unavailable(error),
        other if other.starts_with("53") || other.starts_with("57") || other.starts_with("08") => {
            FenceError::unavailable(error)
        }
        _ => FenceError::refused(error),
    }
}

fn parse_stale(detail: &str) -> Option<Stale> {
    let detail: serde_json::Value = serde_json::from_str(detail).ok()?;
    Some(Stale {
        scope: detail["scope"].as_str()?.parse().ok()?,
        presented: Token::try_from(detail["presented"].as_u64()?).ok()?,
        seen: Token::try_from(detail["seen"].as_u64()?).ok()?,
    })
}

async fn within<T>(
    budget: Option<Duration>,
    find_out: FindOut,
    call: impl Future<Output = T>,
) -> Result<T, FenceError> {
    tokio::time::timeout(budget.unwrap_or(UNSTATED), call)
        .await
        .map_err(|elapsed| FenceError::unknown(find_out, elapsed))
}

/// Statements that bound those after them in the same transaction, on the server, never loosening a timer
/// that is set. What is sent in one message without a BEGIN is one transaction.
fn timers(timeout: Duration) -> String {
    // A little less than the caller waits, so that the server gives up first and says that nothing was done.
    let most = budget::millis(timeout - timeout / 10);
    format!(
        "SELECT pg_catalog.set_config(name, '{most}', true) FROM pg_catalog.pg_settings \
         WHERE name IN ('lock_timeout', 'statement_timeout') AND (setting = '0' OR setting::bigint > {most});"
    )
}

fn row(message: &SimpleQueryMessage) -> Option<&SimpleQueryRow> {
    match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    }
}

/// The row of the last statement; the statements before it set timers.
fn one_row(messages: &[SimpleQueryMessage]) -> Result<&SimpleQueryRow, FenceError> {
    messages
        .iter()
        .rev()
        .find_map(row)
        .ok_or_else(|| FenceError::refused("the fence's function returned no row"))
}

fn number(row: &SimpleQueryRow, column: usize) -> Result<u64, FenceError> {
    row.get(column)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| FenceError::refused("the fence's row has no number where one belongs"))
}

fn token(row: &SimpleQueryRow, column: usize) -> Result<Option<Token>, FenceError> {
    row.get(column)
        .map(|_| number(row, column).and_then(|n| Token::try_from(n).map_err(FenceError::refused)))
        .transpose()
}

fn cursor(row: &SimpleQueryRow, column: usize) -> Result<Option<Cursor>, FenceError> {
    let Some(text) = row.get(column) else { return Ok(None) };
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    bytes
        .map(|bytes| Some(Cursor::from(bytes)))
        .ok_or_else(|| FenceError::refused("a cursor that is not hexadecimal"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text literal that is read the same whatever `standard_conforming_strings` says.
fn quote(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

fn or_null(value: Option<impl Display>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_quotes_stays_a_literal() {
        assert_eq!(quote("a'; DROP TABLE x; --\\"), "E'a''; DROP TABLE x; --\\\\'");
    }
}
