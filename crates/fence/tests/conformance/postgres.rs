//! The suite on PostgreSQL: rows of one table, guarded transactions.

use std::sync::{Arc, OnceLock};

use tenure_core::{Permit, Scope, Token};
use tenure_fence::postgres::Postgres;
use tenure_fence::{Barrier, Cursor, FenceError, Mark, Takeover};
use tokio_postgres::{Client, NoTls};

use crate::cases::{Gate, Subject};
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

impl Subject for Rows {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        self.fence.barrier(&self.client().await, takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<Mark>, FenceError> {
        self.fence.mark(&self.client().await, scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<Mark, FenceError> {
        let by = "operator".parse().expect("a name");
        self.fence.repair(&self.client().await, scope, to, &by, "a test's poison").await
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
