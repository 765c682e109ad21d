//! The suite on SQLite: a file, one connection per call, writers as threads would have them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use tenure_clock::{Clock, ManualClock};
use tenure_core::{Permit, Scope, Token};
use tenure_fence::sqlite::Sqlite;
use tenure_fence::{Barrier, Cursor, FenceError, FenceMark, Takeover};

use crate::cases::{self, Gate, REASON, Subject};
use crate::support;

crate::conform!(File::start);

struct File(Arc<PathBuf>);

impl File {
    async fn start(_case: &str) -> Option<File> {
        let file = File(Arc::new(support::folder("sqlite").join("db")));
        let connection = Connection::open(&*file.0).expect("open");
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL;
                 CREATE TABLE rows (scope TEXT, key TEXT, value TEXT, PRIMARY KEY (scope, key))",
            )
            .expect("table");
        Some(file)
    }

    fn fence(&self) -> Sqlite {
        Sqlite::open(Connection::open(&*self.0).expect("open")).expect("a fence")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().expect("a folder"));
    }
}

const PUT: &str = "INSERT INTO rows VALUES (?1, ?2, ?3) ON CONFLICT (scope, key) DO UPDATE SET value = ?3";

impl Subject for File {
    async fn barrier(&self, takeover: &Takeover) -> Result<Barrier, FenceError> {
        tokio::task::block_in_place(|| self.fence().barrier(takeover))
    }

    async fn mark(&self, scope: &Scope) -> Result<Option<FenceMark>, FenceError> {
        self.fence().mark(scope)
    }

    async fn repair(&self, scope: &Scope, to: Token) -> Result<FenceMark, FenceError> {
        self.fence().repair(scope, to, &"operator".parse().expect("a name"), REASON)
    }

    async fn audit(&self, scope: &Scope) -> String {
        let sql = "SELECT group_concat(by || ' ' || reason) FROM tenure_fence_audit WHERE scope = ?1";
        self.fence().connection().query_row(sql, [scope.to_string()], |row| row.get(0)).expect("audit")
    }

    async fn put(&self, permit: &Permit, key: &str, value: &str) -> Result<(), FenceError> {
        tokio::task::block_in_place(|| {
            let mut fence = self.fence();
            let tx = fence.begin(permit)?;
            tx.execute(PUT, [&permit.scope().to_string(), key, value]).expect("put");
            tx.commit()
        })
    }

    async fn delete(&self, permit: &Permit, key: &str) -> Result<(), FenceError> {
        let mut fence = self.fence();
        let tx = fence.begin(permit)?;
        tx.execute("DELETE FROM rows WHERE scope = ?1 AND key = ?2", [&permit.scope().to_string(), key])
            .expect("delete");
        tx.commit()
    }

    async fn put_and_advance(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        cursor: Cursor,
    ) -> Result<(), FenceError> {
        tokio::task::block_in_place(|| {
            let mut fence = self.fence();
            let mut tx = fence.begin(permit)?;
            tx.execute(PUT, [&permit.scope().to_string(), key, value]).expect("put");
            tx.advance(cursor)?;
            tx.commit()
        })
    }

    /// A frozen writer would hold the file's only write lock, and SQLite has no timer to take it away: what
    /// can be frozen without blocking everybody is the time before the lock. See `docs/fencing.md`.
    async fn put_through(
        &self,
        permit: &Permit,
        key: &str,
        value: &str,
        gate: Gate,
    ) -> Result<(), FenceError> {
        gate.pass().await;
        self.put(permit, key, value).await
    }

    async fn get(&self, scope: &Scope, key: &str) -> Option<String> {
        let connection = Connection::open(&*self.0).expect("open");
        connection
            .query_row(
                "SELECT value FROM rows WHERE scope = ?1 AND key = ?2",
                [&scope.to_string(), key],
                |row| row.get(0),
            )
            .optional()
            .expect("get")
    }

    /// Every call opens the file anew, so every call is a restart; a fresh process would see the same bytes.
    async fn restart(&mut self) -> bool {
        true
    }
}

/// SQLite cannot take its one write lock away from a frozen writer. The successor's barrier must then say
/// that it could not be done, never pretend; and once the writer is out, it must see what was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_frozen_inside_keeps_the_barrier_waiting_but_never_lands_after_it() {
    let file = File::start("frozen").await.expect("SQLite is built in");
    let scope = cases::fresh_scope("frozen");
    let (mut old, mut new) = (file.fence(), file.fence());
    let permit = cases::permit(&scope, 1);
    let tx = old.begin(&permit).expect("begin");
    tx.execute(PUT, [&scope.to_string(), "a", "old"]).expect("put");
    let refused =
        new.barrier(&cases::takeover_for(&scope, 2, Duration::from_millis(200))).expect_err("locked");
    assert!(matches!(refused, FenceError::Unavailable { .. }), "{refused}");
    tx.commit().expect("still the holder");
    let barrier = new.barrier(&cases::takeover(&scope, 2)).expect("barrier");
    assert_eq!(barrier.predecessor, Some(cases::token(1)));
    assert_eq!(file.get(&scope, "a").await.as_deref(), Some("old"));
}

/// The commit asks the clock again.
#[tokio::test]
async fn a_transaction_that_outlasts_its_lease_rolls_back() {
    let file = File::start("outlasts").await.expect("SQLite is built in");
    let scope = cases::fresh_scope("outlasts");
    let clock = Arc::new(ManualClock::default());
    let mut fence =
        Sqlite::with_clock(Connection::open(&*file.0).expect("open"), clock.clone()).expect("a fence");
    let count = tenure_core::PermitCount::default();
    let lease = Duration::from_secs(10);
    let permit = Permit::new(
        scope.clone(),
        cases::token(1),
        tenure_core::Generation::new(1),
        clock.now(),
        lease,
        &count,
    );
    let tx = fence.begin(&permit).expect("begin");
    tx.execute(PUT, [&scope.to_string(), "a", "late"]).expect("put");
    clock.advance(lease);
    assert!(matches!(tx.commit(), Err(FenceError::OutOfTime { .. })));
    assert_eq!(file.get(&scope, "a").await, None);
    assert_eq!(fence.mark(&scope).expect("mark"), None, "the mark rose in the same step, or not at all");
}

/// Under these settings a crash could bring an old token back.
#[tokio::test]
async fn a_database_that_forgets_on_a_crash_is_refused() {
    let file = File::start("journal").await.expect("SQLite is built in");
    let connection = Connection::open(&*file.0).expect("open");
    connection.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA journal_mode = OFF").expect("pragma");
    assert!(matches!(Sqlite::open(connection), Err(FenceError::Refused { .. })));
    let fence = file.fence();
    let level: i64 =
        fence.connection().query_row("PRAGMA synchronous", [], |row| row.get(0)).expect("pragma");
    assert_eq!(level, 2, "every commit is synced");
    fence.connection().execute("DELETE FROM tenure_fence", []).expect("nothing is there yet");
    let mut fence = file.fence();
    fence.barrier(&cases::takeover(&cases::fresh_scope("kept"), 1)).expect("barrier");
    fence.connection().execute("DELETE FROM tenure_fence", []).expect_err("a mark is never deleted");
}
