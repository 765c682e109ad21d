//! The suite on MariaDB: rows of one InnoDB table, guarded transactions.

use std::sync::{Arc, OnceLock};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};
use tenure_core::{Permit, Scope, Token};
use tenure_fence::mysql::MySql;
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, Takeover};

use crate::cases::{Gate, REASON, Subject};
use crate::support::{self, Server};

crate::conform!(Rows::start);

struct Rows {
    server: Arc<Server>,
    fence: MySql,
}

impl Rows {
    async fn start(case: &str) -> Option<Rows> {
        static SHARED: OnceLock<Option<Arc<Server>>> = OnceLock::new();
        let server = if case == "a_restart_does_not_forget_the_mark" {
            Arc::new(support::mariadb()?)
        } else {
            SHARED.get_or_init(|| support::mariadb().map(Arc::new)).clone()?
        };
        let rows = Rows { server, fence: MySql::new() };
        let mut conn = rows.conn(None).await;
        conn.query_drop("CREATE DATABASE IF NOT EXISTS fenced").await.expect("database");
        let mut conn = rows.conn(Some("fenced")).await;
        rows.fence.install(&mut conn).await.expect("install");
        conn.query_drop(
            "CREATE TABLE IF NOT EXISTS entries (scope VARBINARY(640), name VARBINARY(64), value TEXT
             CHARACTER SET utf8mb4, PRIMARY KEY (scope, name)) ENGINE = InnoDB",
        )
        .await
        .expect("table");
        Some(rows)
    }

    async fn conn(&self, database: Option<&str>) -> Conn {
        let opts = OptsBuilder::default()
            .ip_or_hostname("127.0.0.1")
            .tcp_port(self.server.port)
            .prefer_socket(false)
            .user(Some("root"))
            .db_name(database);
        for _ in 0..200 {
            if let Ok(conn) = Conn::new(opts.clone()).await {
                return conn;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("MariaDB does not answer");
    }

    async fn fenced(&self) -> Conn {
        self.conn(Some("fenced")).await
    }
}

const PUT: &str = "INSERT INTO entries VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE value = VALUES(value)";

impl Subject for Rows {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        self.fence.barrier(&mut self.fenced().await, takeover).await
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.fence.mark(&mut self.fenced().await, scope).await
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        let by = "operator".parse().expect("a name");
        self.fence.repair(&mut self.fenced().await, scope, to, &by, REASON).await
    }

    async fn audit(&self, scope: &Scope) -> String {
        let sql = "SELECT GROUP_CONCAT(who, ' ', reason) FROM tenure_fence_audit WHERE scope = ?";
        let lines = self.fenced().await.exec_first(sql, (scope.to_string(),)).await;
        lines.expect("audit").expect("a line")
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        let mut conn = self.fenced().await;
        let mut tx = self.fence.begin(&mut conn, permit).await?;
        tx.exec_drop(PUT, (permit.scope().to_string(), key, value)).await.expect("put");
        tx.commit().await
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        let mut conn = self.fenced().await;
        let mut tx = self.fence.begin(&mut conn, permit).await?;
        let delete = "DELETE FROM entries WHERE scope = ? AND name = ?";
        tx.exec_drop(delete, (permit.scope().to_string(), key)).await.expect("delete");
        tx.commit().await
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        let mut conn = self.fenced().await;
        let mut tx = self.fence.begin_serial(&mut conn, permit).await?;
        tx.exec_drop(PUT, (permit.scope().to_string(), key, value)).await.expect("put");
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
        let mut conn = self.fenced().await;
        let mut tx = self.fence.begin(&mut conn, permit).await?;
        tx.exec_drop(PUT, (permit.scope().to_string(), key, value)).await.expect("put");
        gate.pass().await;
        tx.commit().await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let mut conn = self.fenced().await;
        let get = "SELECT value FROM entries WHERE scope = ? AND name = ?";
        conn.exec_first(get, (scope.to_string(), key)).await.expect("get")
    }

    async fn restart(&mut self) -> bool {
        Arc::get_mut(&mut self.server).expect("a server of its own").crash_and_restart();
        true
    }
}
