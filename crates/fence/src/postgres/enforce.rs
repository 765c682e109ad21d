//! Enforcement in PostgreSQL: a guarded table refuses every INSERT, UPDATE, DELETE, TRUNCATE and COPY of
//! a transaction that does not carry the current token of the table's scope. The hard part of fencing is
//! the write path that forgot; here it fails closed, with an error that says what to do.
//!
//! What it cannot cover: whoever can change the table's definition (its owner, a superuser) can disable a
//! trigger, detach a partition, or swap the table. That is why [`install`] refuses to guard a table that the
//! application's role owns, or could come to own. [`status`] tells what is guarded now, [`remove`] is
//! audited.

use std::time::Duration;

use tokio_postgres::{Client, SimpleQueryMessage};

use tenure_core::{Scope, Token};

use super::{Postgres, classify, or_null, quote, timers, within};
use crate::{FenceError, FindOut};

/// The triggers and their functions, as text, for people who keep their migrations elsewhere. Applied
/// after [`SCHEMA_SQL`](super::SCHEMA_SQL).
pub const ENFORCE_SQL: &str = include_str!("enforce.sql");

/// What to guard.
#[derive(Clone, Debug)]
pub struct Install {
    /// Tables, each as it would be written in SQL (`ledger.entries`).
    pub tables: Vec<String>,
    /// The scope that all of them are bound to.
    pub scope: Scope,
    /// The roles that the application logs in as; they get the right to call the fence and must not be
    /// able to take the triggers off.
    pub roles: Vec<String>,
}

/// What [`install`] has to say besides "done".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Things that are weaker than they could be, in words.
    pub warnings: Vec<String>,
}

/// One guarded table, or one partition or child of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedTable {
    /// The table that was named at install.
    pub root: String,
    /// The table itself, a partition, or a child.
    pub member: String,
    /// What it is bound to, as text.
    pub scope: String,
    /// The token that may write now.
    pub token: Option<Token>,
    /// Who installed it.
    pub holder: Option<String>,
    /// What is wrong with it, if anything is.
    pub problem: Option<String>,
}

/// Guards tables: all of them or none. Repeating it is harmless and mends what is missing.
pub async fn install(client: &Client, install: &Install) -> Result<Installed, FenceError> {
    Postgres::new().install(client).await?;
    let mut sql = format!("BEGIN; SELECT pg_advisory_xact_lock(7400); {ENFORCE_SQL}");
    for table in &install.tables {
        sql += &format!(
            "SELECT tenure_fence.guard_table({}::regclass, {});",
            quote(table),
            quote(&install.scope.to_string())
        );
    }
    for role in &install.roles {
        let role = identifier(role);
        sql += &format!(
            "GRANT USAGE ON SCHEMA tenure_fence TO {role}; REVOKE SELECT ON tenure_fence.marks FROM {role};
             GRANT EXECUTE ON FUNCTION tenure_fence.barrier, tenure_fence.enter, tenure_fence.enter_serial,
                tenure_fence.advance, tenure_fence.guard TO {role};"
        );
    }
    // Checked inside the transaction, after everything is in place: what is refused leaves no trace.
    let roles: Vec<String> = install.roles.iter().map(|role| quote(role)).collect();
    for table in &install.tables {
        let roles = roles.join(", ");
        sql += &format!("SELECT tenure_fence.admit({}::regclass, ARRAY[{roles}]::text[]);", quote(table));
    }
    sql += "COMMIT;";
    if let Err(error) = client.batch_execute(&sql).await {
        let _ = client.batch_execute("ROLLBACK").await; // the first error is the one to tell
        return Err(classify(error, FindOut::Repeat));
    }
    let mut warnings = Vec::new();
    if let Err(error) = client.batch_execute(EVENT_TRIGGER_SQL).await {
        warnings.push(format!(
            "new partitions will not be guarded against TRUNCATE until install is run again, because the event \
             trigger needs a superuser: {error}"
        ));
    }
    Ok(Installed { warnings })
}

/// What is guarded now. Empty if nothing is; an error if enforcement was never installed.
pub async fn status(client: &Client) -> Result<Vec<GuardedTable>, FenceError> {
    let rows = client
        .simple_query("SELECT root, member, scope, token, holder, problem FROM tenure_fence.status()")
        .await
        .map_err(|error| classify(error, FindOut::Repeat))?;
    rows.iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })
        .map(|row| {
            let text = |column| row.get(column).map(str::to_owned);
            let needed = |column| text(column).ok_or_else(|| FenceError::refused("status without a name"));
            Ok(GuardedTable {
                root: needed(0)?,
                member: needed(1)?,
                scope: needed(2)?,
                token: super::token(row, 3)?,
                holder: text(4),
                problem: text(5),
            })
        })
        .collect()
}

/// Takes the guard off a table and its family, audited. The marks stay: a mark is never deleted.
pub async fn remove(client: &Client, table: &str, reason: &str) -> Result<(), FenceError> {
    let name = quote(table);
    let sql = format!("SELECT tenure_fence.unguard_table(to_regclass({name}), {}, {name})", quote(reason));
    client.batch_execute(&sql).await.map_err(|error| classify(error, FindOut::Repeat))
}

/// Runs statements past the guard, in one transaction that keeps every holder out until it ends and leaves a
/// line in the audit; both commit, or neither does. For what cannot wait for a lease, by those who were
/// granted the right.
///
/// The server cancels each statement after `timeout`, and this call gives up when that has passed altogether.
/// Whoever has the means to should then send a cancel request, because the server may still be at work.
pub async fn break_glass(
    client: &mut Client,
    scope: &Scope,
    reason: &str,
    statements: &str,
    timeout: Duration,
) -> Result<(), FenceError> {
    let glass = format!("SELECT tenure_fence.break_glass({}, {})", quote(&scope.to_string()), quote(reason));
    let bound = timers(timeout);
    let failed = |error| classify(error, FindOut::ReadBack);
    let work = async {
        let transaction = client.transaction().await.map_err(failed)?;
        transaction.batch_execute(&bound).await.map_err(failed)?;
        transaction.batch_execute(&glass).await.map_err(failed)?;
        transaction.batch_execute(statements).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)
    };
    within(Some(timeout), FindOut::ReadBack, work).await?
}

/// What operators did past the rules, newest first, as lines for people.
pub async fn audit(client: &Client, limit: Option<u32>) -> Result<Vec<String>, FenceError> {
    let sql = format!(
        "SELECT concat_ws(' ', at, what, scope, 'by', role, '-', reason, detail) FROM tenure_fence.audit \
         ORDER BY at DESC LIMIT {}",
        or_null(limit)
    );
    let rows = client.simple_query(&sql).await.map_err(|error| classify(error, FindOut::Repeat))?;
    Ok(rows
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .collect())
}

/// Needs a superuser, so it stands apart from what every table owner may do.
const EVENT_TRIGGER_SQL: &str = "BEGIN;
DROP EVENT TRIGGER IF EXISTS tenure_fence_cover_new;
CREATE EVENT TRIGGER tenure_fence_cover_new ON ddl_command_end
    WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE', 'CREATE FOREIGN TABLE',
                 'ALTER FOREIGN TABLE')
    EXECUTE FUNCTION tenure_fence.cover_new();
ALTER EVENT TRIGGER tenure_fence_cover_new ENABLE ALWAYS;
COMMIT;";

fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
