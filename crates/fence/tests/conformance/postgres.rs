//! The suite on PostgreSQL: rows of one table, guarded transactions.

use std::sync::{Arc, OnceLock};

use tenure_core::{Permit, Scope, Token};
use tenure_fence::postgres::Postgres;
use tenure_fence::{Barrier, Cursor, FenceEffect, FenceError, FenceMark, Takeover};
use tokio_postgres::{Client, NoTls};

use crate::cases::{self, Gate, REASON, Subject};
use crate::support::{self, Server};

crate::conform!(Rows::start);

struct Rows {
    server: Arc<Server>,
    fence: Postgres,
}

async fn connect(server: &Server) -> Client {
    let config = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", server.port);
    for _ in 0..200 {
        // A server that recovers from a crash accepts connections before it serves them.
        if let Ok((client, connection)) = tokio_postgres::connect(&config, NoTls).await {
            tokio::spawn(connection);
            return client;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("PostgreSQL does not answer");
}

impl Rows {
    async fn start(case: &str) -> Option<Rows> {
        static SHARED: OnceLock<Option<Arc<Server>>> = OnceLock::new();
        // The case that crashes the server has one of its own.
        let server = if case == "a_restart_does_not_forget_the_mark" {
            Arc::new(support::postgres()?)
        } else {
            SHARED.get_or_init(|| support::postgres().map(Arc::new)).clone()?
        };
        let rows = Rows { server, fence: Postgres::new() };
        let client = rows.client().await;
        rows.fence.install(&client).await.expect("install");
        client
            .batch_execute(
                // One transaction, and the lock lasts as long: the next one sees the table.
                "SELECT pg_advisory_xact_lock(1); CREATE TABLE IF NOT EXISTS rows (scope text, key text, value text,
                 PRIMARY KEY (scope, key));",
            )
            .await
            .expect("table");
        Some(rows)
    }

    async fn client(&self) -> Client {
        connect(&self.server).await
    }
}

const PUT: &str = "INSERT INTO rows VALUES ($1, $2, $3) ON CONFLICT (scope, key) DO UPDATE SET value = $3";

/// The server answers the COMMIT of a transaction that has failed with a ROLLBACK, which a driver takes for a
/// success.
#[tokio::test]
async fn a_failed_statement_that_was_passed_over_is_not_called_written() {
    let Some(rows) = Rows::start("ignored").await else { return };
    let (scope, mut client) = (cases::fresh_scope("ignored"), rows.client().await);
    let permit = cases::permit(&scope, 1);
    let tx = rows.fence.begin(&mut client, &permit).await.expect("begin");
    tx.execute(PUT, &[&scope.to_string(), &"a", &"lost"]).await.expect("put");
    tx.batch_execute("SELECT 1 / 0").await.expect_err("it is no number");
    let refused = tx.commit().await.expect_err("nothing was written");
    assert_eq!(refused.effect(), FenceEffect::NotApplied, "{refused}");
    assert_eq!(rows.get(&scope, "a").await, None);

    // Dropped half-way it is undone, and the connection is as good as before.
    let tx = rows.fence.begin(&mut client, &permit).await.expect("begin");
    tx.execute(PUT, &[&scope.to_string(), &"a", &"dropped"]).await.expect("put");
    drop(tx);
    let tx = rows.fence.begin(&mut client, &permit).await.expect("begin again");
    tx.execute(PUT, &[&scope.to_string(), &"b", &"kept"]).await.expect("put");
    tx.commit().await.expect("commit");
    assert_eq!((rows.get(&scope, "a").await, rows.get(&scope, "b").await), (None, Some("kept".into())));
}

/// Inside with others the cursor cannot be moved: two of them doing so would wait for each other's share
/// lock.
#[tokio::test]
async fn the_cursor_moves_only_for_whoever_is_inside_alone() {
    let Some(rows) = Rows::start("alone").await else { return };
    let (scope, mut client) = (cases::fresh_scope("alone"), rows.client().await);
    let permit = cases::permit(&scope, 1);
    let tx = rows.fence.begin(&mut client, &permit).await.expect("begin");
    let refused = tx.batch_execute(&format!("SELECT tenure_fence.advance('{scope}', 1, 'row 1')")).await;
    let refused = refused.expect_err("it began with enter");
    assert_eq!(refused.code().map(|code| code.code()), Some("TN003"), "{refused}");
}

impl Subject for Rows {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        self.fence.barrier(&self.client().await, takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.fence.mark(&self.client().await, scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        let by = "operator".parse().expect("a name");
        self.fence.repair(&self.client().await, scope, to, &by, REASON).await
    }

    async fn audit(&self, scope: &Scope) -> String {
        let sql = "SELECT string_agg(concat(reason, detail), ' ') FROM tenure_fence.audit WHERE scope = $1";
        self.client().await.query_one(sql, &[&scope.to_string()]).await.expect("audit").get(0)
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        let mut client = self.client().await;
        let tx = self.fence.begin(&mut client, permit).await?;
        tx.execute(PUT, &[&permit.scope().to_string(), &key, &value]).await.expect("put");
        tx.commit().await
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        let mut client = self.client().await;
        let tx = self.fence.begin(&mut client, permit).await?;
        tx.execute("DELETE FROM rows WHERE scope = $1 AND key = $2", &[&permit.scope().to_string(), &key])
            .await
            .expect("delete");
        tx.commit().await
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        let mut client = self.client().await;
        let mut tx = self.fence.begin_serial(&mut client, permit).await?;
        tx.execute(PUT, &[&permit.scope().to_string(), &key, &value]).await.expect("put");
        tx.advance(cursor).await?;
        tx.commit().await
    }

    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        let mut client = self.client().await;
        let tx = self.fence.begin(&mut client, permit).await?;
        tx.execute(PUT, &[&permit.scope().to_string(), &key, &value]).await.expect("put");
        gate.pass().await;
        tx.commit().await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let client = self.client().await;
        let row = client
            .query_opt("SELECT value FROM rows WHERE scope = $1 AND key = $2", &[&scope.to_string(), &key])
            .await
            .expect("get");
        row.map(|row| row.get(0))
    }

    async fn restart(&mut self) -> bool {
        Arc::get_mut(&mut self.server).expect("a server of its own").crash_and_restart();
        true
    }
}
