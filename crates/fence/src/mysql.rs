//! MySQL and MariaDB (InnoDB). A guarded transaction takes a share lock on the scope's row and keeps it;
//! the barrier takes the row exclusively, so it waits for every older transaction that is inside, and
//! every later one reads the new token: locking reads are current even under REPEATABLE READ.
//!
//! ```ignore
//! let mut tx = fence.begin(&mut conn, &permit).await?;
//! tx.query_drop("UPDATE accounts SET balance = balance - 10 WHERE id = 7").await?;
//! tx.commit().await?;
//! ```
//!
//! Tested on MariaDB; the statements are the same on MySQL 8. With Galera or Group Replication only writes
//! are certified and a share lock is local to its node: use [`MySql::begin_serial`] there, which writes the
//! scope's row. DDL commits implicitly and so leaves the fence: keep it out of guarded transactions.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Transaction, TxOpts};
use tenure_clock::{Clock, SystemClock};
use tenure_core::{HolderName, Scope, Token};
use tokio::sync::Mutex;

use crate::budget::{self, UNSTATED};
use crate::rule::{Standing, judge};
use crate::{Authority, Barrier, Cursor, Fence, FenceError, FenceFuture, FenceMark, FindOut, Takeover};

/// The schema, as text, for people who keep their migrations elsewhere. Scopes are bytes: no collation may
/// take two of them for one. Zero stands for "never seen" and lives only inside a barrier's transaction.
pub const SCHEMA_SQL: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS tenure_fence (
        scope VARBINARY(640) PRIMARY KEY,
        token BIGINT UNSIGNED NOT NULL CHECK (token < 9007199254740992),
        holder VARCHAR(256) CHARACTER SET utf8mb4,
        seq BIGINT UNSIGNED NOT NULL DEFAULT 0,
        position LONGBLOB
    ) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS tenure_fence_audit (
        at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
        scope VARBINARY(640) NOT NULL, was BIGINT UNSIGNED NOT NULL, token BIGINT UNSIGNED NOT NULL,
        who VARCHAR(512) CHARACTER SET utf8mb4 NOT NULL, reason TEXT CHARACTER SET utf8mb4 NOT NULL
    ) ENGINE = InnoDB",
];

/// The fence in one database. It holds no connection: use it with any, pooled or not.
#[derive(Clone)]
pub struct MySql {
    clock: Arc<dyn Clock>,
}

impl Default for MySql {
    fn default() -> MySql {
        MySql::new()
    }
}

type Row = (u64, Option<String>, u64, Option<Vec<u8>>);

impl MySql {
    /// A fence that reads the system's clock.
    pub fn new() -> MySql {
        MySql { clock: Arc::new(SystemClock) }
    }

    /// A fence that reads another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> MySql {
        MySql { clock }
    }

    /// Creates the fence's tables in the connection's database.
    pub async fn install(&self, conn: &mut Conn) -> Result<(), FenceError> {
        for sql in SCHEMA_SQL {
            conn.query_drop(sql).await.map_err(not_applied)?;
        }
        Ok(())
    }

    /// Installs the takeover's token; see [`Fence::barrier`]. Waits for older transactions inside, no
    /// longer than the lease lasts.
    pub async fn barrier(&self, conn: &mut Conn, takeover: &Takeover) -> Result<Barrier, FenceError> {
        let budget = budget::of_takeover(takeover, &*self.clock)?;
        within(budget, raise(conn, takeover.scope(), takeover.token(), Some(takeover.holder()), budget))
            .await
            .unwrap_or_else(|elapsed| Err(FenceError::unknown(FindOut::Repeat, elapsed)))
    }

    /// Begins a guarded transaction. Any number of one holder's may be open at once.
    pub async fn begin<'c, A: Authority>(
        &self,
        conn: &'c mut Conn,
        authority: &'c A,
    ) -> Result<Guarded<'c, A>, FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        within(budget, self.enter(conn, authority, budget))
            .await
            .unwrap_or_else(|elapsed| Err(FenceError::unavailable(elapsed))) // dropped, so rolled back
    }

    async fn enter<'c, A: Authority>(
        &self,
        conn: &'c mut Conn,
        authority: &'c A,
        budget: Option<Duration>,
    ) -> Result<Guarded<'c, A>, FenceError> {
        let (scope, token) = (authority.scope(), authority.token());
        // Read without a lock first: taking the share lock and then raising the mark would deadlock two
        // workers.
        let hint = read_mark(conn, scope).await?.map(|mark| mark.token);
        if judge(scope, token, hint)? == Standing::Raises {
            raise(conn, scope, token, None, budget).await?;
        }
        bound(conn, budget).await?;
        let mut transaction = conn.start_transaction(TxOpts::new()).await.map_err(not_applied)?;
        let seen: Option<u64> = transaction
            .exec_first(
                "SELECT token FROM tenure_fence WHERE scope = ? LOCK IN SHARE MODE",
                (scope.to_string(),),
            )
            .await
            .map_err(not_applied)?;
        judge(scope, token, seen.map(to_token).transpose()?)?;
        Ok(Guarded { transaction, authority, clock: self.clock.clone(), find_out: FindOut::ReadBack })
    }

    /// Begins a guarded transaction that may move the cursor. One holder's follow one another.
    pub async fn begin_serial<'c, A: Authority>(
        &self,
        conn: &'c mut Conn,
        authority: &'c A,
    ) -> Result<Serial<'c, A>, FenceError> {
        let budget = budget::of(authority, &*self.clock)?;
        within(budget, self.enter_serial(conn, authority, budget))
            .await
            .unwrap_or_else(|elapsed| Err(FenceError::unavailable(elapsed)))
    }

    async fn enter_serial<'c, A: Authority>(
        &self,
        conn: &'c mut Conn,
        authority: &'c A,
        budget: Option<Duration>,
    ) -> Result<Serial<'c, A>, FenceError> {
        let (scope, token) = (authority.scope(), authority.token());
        let hint = read_mark(conn, scope).await?.map(|mark| mark.token);
        if judge(scope, token, hint)? == Standing::Raises {
            raise(conn, scope, token, None, budget).await?;
        }
        bound(conn, budget).await?;
        let mut transaction = conn.start_transaction(TxOpts::new()).await.map_err(not_applied)?;
        // The update comes first, and always changes something: the server counts changed rows, not found
        // ones.
        transaction
            .exec_drop(
                "UPDATE tenure_fence SET seq = seq + 1 WHERE scope = ? AND token = ?",
                (scope.to_string(), token.get()),
            )
            .await
            .map_err(not_applied)?;
        let inside = transaction.affected_rows() == 1;
        let row: Option<Row> = transaction
            .exec_first(
                "SELECT token, holder, seq, position FROM tenure_fence WHERE scope = ? FOR UPDATE",
                (scope.to_string(),),
            )
            .await
            .map_err(not_applied)?;
        let mark = row.map(to_mark).transpose()?;
        judge(scope, token, mark.as_ref().map(|mark| mark.token))?;
        let Some(mark) = mark.filter(|_| inside) else {
            return Err(FenceError::unavailable("the mark changed while the transaction began"));
        };
        let find_out = FindOut::Seq(mark.seq);
        let guarded = Guarded { transaction, authority, clock: self.clock.clone(), find_out };
        Ok(Serial { guarded, seq: mark.seq, cursor: mark.cursor })
    }

    /// What the fence remembers of a scope.
    pub async fn mark(&self, conn: &mut Conn, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        within(None, read_mark(conn, scope))
            .await
            .unwrap_or_else(|elapsed| Err(FenceError::unavailable(elapsed)))
    }

    /// Lowers a poisoned mark, audited; see [`Fence::repair`].
    pub async fn repair(
        &self,
        conn: &mut Conn,
        scope: &Scope,
        to: Token,
        by: &HolderName,
        reason: &str,
    ) -> Result<FenceMark, FenceError> {
        let repairing = async {
            let mut tx = conn.start_transaction(TxOpts::new()).await.map_err(not_applied)?;
            let row: Option<Row> = tx
                .exec_first(
                    "SELECT token, holder, seq, position FROM tenure_fence WHERE scope = ? FOR UPDATE",
                    (scope.to_string(),),
                )
                .await
                .map_err(not_applied)?;
            let Some(mark) = row.map(to_mark).transpose()? else {
                return Err(FenceError::refused(format!("no token was ever seen for {scope}")));
            };
            let update = "UPDATE tenure_fence SET token = ?, holder = NULL WHERE scope = ?";
            tx.exec_drop(update, (to.get(), scope.to_string())).await.map_err(not_applied)?;
            let audit = "INSERT INTO tenure_fence_audit (scope, was, token, who, reason) VALUES (?, ?, ?, \
                         CONCAT(?, ' as ', CURRENT_USER()), ?)";
            tx.exec_drop(audit, (scope.to_string(), mark.token.get(), to.get(), by.as_str(), reason))
                .await
                .map_err(not_applied)?;
            tx.commit().await.map_err(|error| at_commit(error, FindOut::Repeat))?;
            Ok(FenceMark { token: to, holder: None, ..mark })
        };
        within(None, repairing)
            .await
            .unwrap_or_else(|elapsed| Err(FenceError::unknown(FindOut::Repeat, elapsed)))
    }

    /// The fence with a connection of its own, to stand in a list of [`Fence`]s.
    pub fn over(self, conn: Conn) -> MySqlFence {
        MySqlFence { fence: self, conn: Mutex::new(conn) }
    }
}

/// [`MySql`] with a connection of its own.
pub struct MySqlFence {
    fence: MySql,
    conn: Mutex<Conn>,
}

impl Fence for MySqlFence {
    fn barrier<'a>(&'a self, takeover: &'a Takeover) -> FenceFuture<'a, Barrier> {
        Box::pin(async move { self.fence.barrier(&mut *self.conn.lock().await, takeover).await })
    }

    fn mark<'a>(&'a self, scope: &'a Scope) -> FenceFuture<'a, Option<FenceMark>> {
        Box::pin(async move { self.fence.mark(&mut *self.conn.lock().await, scope).await })
    }

    fn repair<'a>(
        &'a self,
        scope: &'a Scope,
        to: Token,
        by: &'a HolderName,
        reason: &'a str,
    ) -> FenceFuture<'a, FenceMark> {
        Box::pin(async move { self.fence.repair(&mut *self.conn.lock().await, scope, to, by, reason).await })
    }
}

/// A transaction that is inside the fence. Use it like the [`Transaction`] that it is; dropped without
/// [`commit`](Guarded::commit) it rolls back.
#[must_use = "a guarded transaction that is dropped rolls back"]
pub struct Guarded<'c, A: Authority> {
    transaction: Transaction<'c>,
    authority: &'c A,
    clock: Arc<dyn Clock>,
    find_out: FindOut,
}

impl<'c, A: Authority> Deref for Guarded<'c, A> {
    type Target = Transaction<'c>;
    fn deref(&self) -> &Transaction<'c> {
        &self.transaction
    }
}

impl<A: Authority> DerefMut for Guarded<'_, A> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.transaction
    }
}

impl<A: Authority> Guarded<'_, A> {
    /// Commits, if the lease still has time; else rolls back.
    pub async fn commit(self) -> Result<(), FenceError> {
        let Guarded { transaction, authority, clock, find_out } = self;
        // Returning here drops the transaction, which rolls it back.
        let budget = budget::of(authority, &*clock)?;
        match within(budget, transaction.commit()).await {
            Ok(committed) => committed.map_err(|error| at_commit(error, find_out)),
            Err(elapsed) => Err(FenceError::unknown(find_out, elapsed)),
        }
    }

    /// Rolls back.
    pub async fn rollback(self) -> Result<(), FenceError> {
        self.transaction.rollback().await.map_err(not_applied)
    }
}

/// A guarded transaction that may move the cursor.
#[must_use = "a guarded transaction that is dropped rolls back"]
pub struct Serial<'c, A: Authority> {
    guarded: Guarded<'c, A>,
    seq: u64,
    cursor: Option<Cursor>,
}

impl<'c, A: Authority> Deref for Serial<'c, A> {
    type Target = Transaction<'c>;
    fn deref(&self) -> &Transaction<'c> {
        &self.guarded.transaction
    }
}

impl<A: Authority> DerefMut for Serial<'_, A> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guarded.transaction
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
        self.guarded
            .transaction
            .exec_drop(
                "UPDATE tenure_fence SET position = ? WHERE scope = ? AND token = ?",
                (to.as_bytes(), authority.scope().to_string(), authority.token().get()),
            )
            .await
            .map_err(not_applied)?;
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

/// Raises the mark to `token`, or finds it there, in a transaction of its own.
async fn raise(
    conn: &mut Conn,
    scope: &Scope,
    token: Token,
    holder: Option<&HolderName>,
    budget: Option<Duration>,
) -> Result<Barrier, FenceError> {
    loop {
        match raise_once(conn, scope, token, holder, budget).await {
            // Two first barriers can block each other's insert; the victim has changed nothing.
            Err(RaiseError::Deadlock) => {}
            Err(RaiseError::Other(error)) => return Err(error),
            Ok(barrier) => return Ok(barrier),
        }
    }
}

enum RaiseError {
    Deadlock,
    Other(FenceError),
}

async fn raise_once(
    conn: &mut Conn,
    scope: &Scope,
    token: Token,
    holder: Option<&HolderName>,
    budget: Option<Duration>,
) -> Result<Barrier, RaiseError> {
    let step = |error: Error| match error {
        Error::Server(ref server) if server.code == DEADLOCK => RaiseError::Deadlock,
        error => RaiseError::Other(not_applied(error)),
    };
    bound(conn, budget).await.map_err(RaiseError::Other)?;
    let mut tx = conn.start_transaction(TxOpts::new()).await.map_err(step)?;
    // Locks the row exclusively whether it is there or not; INSERT IGNORE would take a share lock, and two
    // barriers upgrading theirs would deadlock.
    tx.exec_drop(
        "INSERT INTO tenure_fence (scope, token) VALUES (?, 0) ON DUPLICATE KEY UPDATE scope = scope",
        (scope.to_string(),),
    )
    .await
    .map_err(step)?;
    let row: Option<Row> = tx
        .exec_first(
            "SELECT token, holder, seq, position FROM tenure_fence WHERE scope = ? FOR UPDATE",
            (scope.to_string(),),
        )
        .await
        .map_err(step)?;
    let mark = row.filter(|row| row.0 > 0).map(to_mark).transpose().map_err(RaiseError::Other)?;
    judge(scope, token, mark.as_ref().map(|mark| mark.token)).map_err(RaiseError::Other)?;
    tx.exec_drop(
        "UPDATE tenure_fence SET holder = IF(token = ?, COALESCE(?, holder), ?), token = ? WHERE scope = ?",
        (
            token.get(),
            holder.map(HolderName::as_str),
            holder.map(HolderName::as_str),
            token.get(),
            scope.to_string(),
        ),
    )
    .await
    .map_err(step)?;
    tx.commit().await.map_err(|error| RaiseError::Other(at_commit(error, FindOut::Repeat)))?;
    Ok(match mark {
        None => Barrier { predecessor: None, seq: 0, cursor: None },
        Some(mark) => Barrier { predecessor: Some(mark.token), seq: mark.seq, cursor: mark.cursor },
    })
}

/// Hands what is left of the lease to the server's own timers: waits for locks and statements end with it,
/// and MariaDB ends a transaction whose client has frozen instead of letting it block the successor. They
/// stay set until the connection is reset, as pools do when it is returned, or used for the next guarded
/// call.
async fn bound(conn: &mut Conn, budget: Option<Duration>) -> Result<(), FenceError> {
    let Some(budget) = budget else { return Ok(()) };
    let millis = budget::millis(budget);
    let seconds = millis.div_ceil(1000);
    let sql = format!(
        "SET SESSION innodb_lock_wait_timeout = {seconds} \
         /*M!100300 , max_statement_time = {}, idle_transaction_timeout = {seconds} */ \
         /*!80000 , max_execution_time = {millis} */",
        millis as f64 / 1000.0,
    );
    conn.query_drop(sql).await.map_err(not_applied)
}

async fn read_mark(conn: &mut Conn, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
    let row: Option<Row> = conn
        .exec_first(
            "SELECT token, holder, seq, position FROM tenure_fence WHERE scope = ?",
            (scope.to_string(),),
        )
        .await
        .map_err(not_applied)?;
    row.map(to_mark).transpose()
}

fn to_mark((token, holder, seq, position): Row) -> Result<FenceMark, FenceError> {
    let holder = holder.and_then(|name| name.parse().ok());
    Ok(FenceMark { token: to_token(token)?, holder, seq, cursor: position.map(Cursor::from) })
}

fn to_token(number: u64) -> Result<Token, FenceError> {
    Token::try_from(number).map_err(FenceError::refused)
}

const DEADLOCK: u16 = 1213;

/// An error before the commit: nothing has been applied.
fn not_applied(error: Error) -> FenceError {
    match &error {
        // Lock wait, deadlock, statement time (MariaDB, MySQL), killed, interrupted, shutting down, too many.
        Error::Server(server)
            if [1205, DEADLOCK, 1969, 3024, 1927, 1317, 1053, 1040, 1203].contains(&server.code) =>
        {
            FenceError::unavailable(error)
        }
        Error::Server(_) => FenceError::refused(error),
        _ => FenceError::unavailable(error),
    }
}

/// An error of the commit: an answer is a no, silence is not.
fn at_commit(error: Error, find_out: FindOut) -> FenceError {
    match error {
        Error::Server(_) => not_applied(error),
        _ => FenceError::unknown(find_out, error),
    }
}

async fn within<T>(
    budget: Option<Duration>,
    call: impl Future<Output = T>,
) -> Result<T, tokio::time::error::Elapsed> {
    tokio::time::timeout(budget.unwrap_or(UNSTATED), call).await
}
