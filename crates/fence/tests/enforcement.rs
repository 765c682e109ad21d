//! Enforcement in PostgreSQL: write paths that nobody ported must fail closed, and the same paths must work
//! once their transaction carries the current token. On a real server, as the application's own role, as a
//! superuser at a prompt, and through a pooler.

#[allow(unused)]
mod support;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use support::Server;
use tenure_core::{Scope, Token};
use tenure_fence::postgres::enforce::{self, Install};
use tenure_fence::postgres::{NO_TOKEN, Postgres, STALE};
use tenure_fence::{FenceError, Takeover};
use tokio_postgres::{Client, NoTls};

const SCOPE: &str = "ledger/writer";
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A database with every kind of table that a write can reach another way.
const SETUP: &str = "
CREATE SCHEMA ledger;
CREATE TABLE ledger.accounts (id int PRIMARY KEY, name text);
CREATE TABLE ledger.entries (id int PRIMARY KEY, account int REFERENCES ledger.accounts ON DELETE CASCADE ON UPDATE CASCADE,
    amount int NOT NULL DEFAULT 0);
CREATE TABLE ledger.events (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE ledger.events_1 PARTITION OF ledger.events FOR VALUES FROM (0) TO (10);
CREATE TABLE ledger.events_2 PARTITION OF ledger.events FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (day);
CREATE TABLE ledger.events_2a PARTITION OF ledger.events_2 FOR VALUES FROM (10) TO (20);
CREATE TABLE ledger.plain_parent (id int, note text);
CREATE TABLE ledger.plain_child () INHERITS (ledger.plain_parent);
CREATE TABLE ledger.lone_parent (id int, note text);
CREATE TABLE ledger.lone_child () INHERITS (ledger.lone_parent);
CREATE TABLE ledger.inbox (id int);
CREATE VIEW ledger.entries_view AS SELECT id, account, amount FROM ledger.entries;
CREATE VIEW ledger.ruled AS SELECT id FROM ledger.entries;
CREATE RULE ruled AS ON INSERT TO ledger.ruled DO INSTEAD INSERT INTO ledger.entries (id) VALUES (NEW.id);
CREATE FUNCTION ledger.book(n int) RETURNS void LANGUAGE sql AS 'INSERT INTO ledger.entries (id) VALUES (n)';
CREATE FUNCTION ledger.book_definer(n int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
    'BEGIN INSERT INTO ledger.entries (id) VALUES (n); END';
CREATE PROCEDURE ledger.book_procedure(n int) LANGUAGE plpgsql AS
    'BEGIN INSERT INTO ledger.entries (id) VALUES (n); END';
CREATE FUNCTION ledger.on_inbox() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO ledger.entries (id) VALUES (NEW.id); RETURN NEW; END';
CREATE TRIGGER on_inbox AFTER INSERT ON ledger.inbox FOR EACH ROW EXECUTE FUNCTION ledger.on_inbox();
GRANT USAGE ON SCHEMA ledger TO application;
GRANT ALL ON ALL TABLES IN SCHEMA ledger TO application;
INSERT INTO ledger.accounts VALUES (1, 'one'), (2, 'two');
INSERT INTO ledger.entries VALUES (1, 1, 10), (2, 2, 20);
INSERT INTO ledger.events VALUES (1, 1, 'a'), (2, 11, 'b');
INSERT INTO ledger.plain_parent VALUES (1, 'p');
INSERT INTO ledger.plain_child VALUES (2, 'c');
INSERT INTO ledger.lone_child VALUES (3, 'l');
";

/// Write paths that know nothing of tokens. Each changes a guarded table, if it is let.
const PATHS: &[(&str, &str)] = &[
    ("insert", "INSERT INTO ledger.entries VALUES (3, 1, 30)"),
    ("update", "UPDATE ledger.entries SET amount = 11 WHERE id = 1"),
    ("update of no row", "UPDATE ledger.entries SET amount = 11 WHERE id = 99"),
    ("delete", "DELETE FROM ledger.entries WHERE id = 1"),
    ("truncate", "TRUNCATE ledger.entries"),
    ("truncate by cascade", "TRUNCATE ledger.accounts CASCADE"),
    ("upsert", "INSERT INTO ledger.entries VALUES (1, 1, 12) ON CONFLICT (id) DO UPDATE SET amount = 12"),
    ("insert from select", "INSERT INTO ledger.entries SELECT id + 10, account FROM ledger.entries"),
    ("update from", "UPDATE ledger.entries e SET amount = 13 FROM ledger.accounts a WHERE a.id = e.account"),
    (
        "writable CTE",
        "WITH gone AS (DELETE FROM ledger.entries WHERE id = 1 RETURNING id) SELECT * FROM gone",
    ),
    (
        "merge",
        "MERGE INTO ledger.entries e USING ledger.accounts a ON e.account = a.id
        WHEN MATCHED THEN UPDATE SET amount = 14 WHEN NOT MATCHED THEN INSERT (id) VALUES (a.id)",
    ),
    ("SQL function", "SELECT ledger.book(4)"),
    ("security definer function", "SELECT ledger.book_definer(5)"),
    ("procedure", "CALL ledger.book_procedure(6)"),
    ("DO block", "DO 'BEGIN INSERT INTO ledger.entries (id) VALUES (7); END'"),
    (
        "prepared statement",
        "PREPARE p AS INSERT INTO ledger.entries (id) VALUES ($1); EXECUTE p(8); DEALLOCATE p",
    ),
    ("updatable view", "UPDATE ledger.entries_view SET amount = 15 WHERE id = 2"),
    ("rule", "INSERT INTO ledger.ruled VALUES (9)"),
    ("another table's trigger", "INSERT INTO ledger.inbox VALUES (10)"),
    ("foreign key, delete cascade", "DELETE FROM ledger.accounts WHERE id = 1"),
    ("foreign key, update cascade", "UPDATE ledger.accounts SET id = 5 WHERE id = 2"),
    (
        "cursor",
        "DECLARE c CURSOR FOR SELECT * FROM ledger.entries FOR UPDATE; MOVE c;
        UPDATE ledger.entries SET amount = 16 WHERE CURRENT OF c",
    ),
    ("partition through its parent", "INSERT INTO ledger.events VALUES (3, 2, 'x')"),
    ("partition by name", "INSERT INTO ledger.events_1 VALUES (4, 3, 'x')"),
    ("partition of a partition", "UPDATE ledger.events_2a SET note = 'x'"),
    ("row that moves between partitions", "UPDATE ledger.events SET day = 12 WHERE id = 1"),
    ("truncate of a partition", "TRUNCATE ledger.events_1"),
    ("inherited child through its parent", "UPDATE ledger.plain_parent SET note = 'x' WHERE id = 2"),
    ("child of a parent that is not guarded", "UPDATE ledger.lone_parent SET note = 'x'"),
    ("inherited child by name", "DELETE FROM ledger.plain_child"),
    ("several statements in one message", "SELECT 1; INSERT INTO ledger.entries (id) VALUES (11); SELECT 2"),
];

fn scope() -> Scope {
    SCOPE.parse().expect("a scope")
}

fn takeover(number: u64) -> Takeover {
    Takeover::unchecked(
        scope(),
        Token::try_from(number).expect("a token"),
        "worker-1".parse().expect("a holder"),
    )
}

async fn connect(port: u16, user: &str, database: &str) -> Client {
    let config = format!("host=127.0.0.1 port={port} user={user} dbname={database}");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// A database of its own on the shared server, guarded, with token 7 installed.
struct Ledger {
    server: Arc<Server>,
    database: String,
    admin: Client,
}

impl Ledger {
    async fn start(database: &str) -> Option<Ledger> {
        let ledger = Ledger::unguarded(database).await?;
        enforce::install(&ledger.admin, &ledger.plan()).await.expect("install");
        Postgres::new().barrier(&ledger.admin, &takeover(7)).await.expect("barrier");
        Some(ledger)
    }

    async fn unguarded(database: &str) -> Option<Ledger> {
        static SHARED: OnceLock<Option<Arc<Server>>> = OnceLock::new();
        let server = SHARED.get_or_init(|| support::postgres().map(Arc::new)).clone()?;
        let root = connect(server.port, "postgres", "postgres").await;
        root.batch_execute(
            "DO 'BEGIN CREATE ROLE application LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN END'",
        )
        .await
        .expect("role");
        root.batch_execute(&format!("CREATE DATABASE {database}")).await.expect("database");
        let admin = connect(server.port, "postgres", database).await;
        admin.batch_execute(SETUP).await.expect("setup");
        Some(Ledger { server, database: database.to_owned(), admin })
    }

    fn plan(&self) -> Install {
        let tables = ["ledger.entries", "ledger.events", "ledger.plain_parent", "ledger.lone_child"];
        Install {
            tables: tables.map(str::to_owned).into(),
            scope: scope(),
            roles: vec!["application".into()],
        }
    }

    async fn application(&self) -> Client {
        connect(self.server.port, "application", &self.database).await
    }

    /// Everything guarded, as text: equal means that nothing was written.
    async fn state(&self) -> String {
        let sql =
            "SELECT concat((SELECT string_agg(e::text, ' ' ORDER BY e::text) FROM ledger.entries e), ' | ',
            (SELECT string_agg(e::text, ' ' ORDER BY e::text) FROM ledger.events e), ' | ',
            (SELECT string_agg(e::text, ' ' ORDER BY e::text) FROM ledger.plain_parent e))";
        self.admin.query_one(sql, &[]).await.expect("state").get(0)
    }
}

/// Runs a path and undoes it, so that the next one finds what it expects. Says what stopped it, if anything
/// did.
async fn attempt(client: &Client, token: Option<u64>, path: &str) -> Result<(), String> {
    client.batch_execute("BEGIN").await.expect("begin");
    let mut sql = String::new();
    if let Some(token) = token {
        sql = format!("SELECT tenure_fence.enter('{SCOPE}', {token});");
    }
    let result = client.batch_execute(&(sql + path)).await;
    client.batch_execute("ROLLBACK").await.expect("rollback");
    let _ = client.batch_execute("DEALLOCATE ALL").await;
    result.map_err(|error| error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()))
}

#[tokio::test]
async fn every_path_that_forgot_is_refused_and_works_with_the_token() {
    let Some(ledger) = Ledger::start("paths").await else { return };
    assert!(PATHS.len() >= 20);
    let before = ledger.state().await;
    for user in ["application", "postgres"] {
        let client = connect(ledger.server.port, user, &ledger.database).await;
        for (name, path) in PATHS {
            assert_eq!(
                attempt(&client, None, path).await,
                Err(NO_TOKEN.into()),
                "{name} as {user} without a token"
            );
            assert_eq!(attempt(&client, Some(7), path).await, Ok(()), "{name} as {user} with the token");
            assert_eq!(
                attempt(&client, Some(6), path).await,
                Err(STALE.into()),
                "{name} as {user} with an old token"
            );
        }
    }
    // In replica role ordinary triggers are silent; these are not.
    ledger.admin.batch_execute("SET session_replication_role = replica").await.expect("set");
    for (name, path) in
        PATHS.iter().filter(|(name, _)| !name.contains("trigger") && !name.contains("foreign key"))
    {
        assert_eq!(attempt(&ledger.admin, None, path).await, Err(NO_TOKEN.into()), "{name} in replica role");
    }
    assert_eq!(ledger.state().await, before, "nothing was written");
}

/// The drivers' own prepared statements, and statements outside any transaction block.
#[tokio::test]
async fn prepared_and_automatic_statements_are_refused() {
    let Some(ledger) = Ledger::start("prepared").await else { return };
    let client = ledger.application().await;
    let statement = client.prepare("INSERT INTO ledger.entries (id) VALUES ($1)").await.expect("prepare");
    let refused = client.execute(&statement, &[&20]).await.expect_err("no token");
    assert_eq!(refused.code().map(|code| code.code()), Some(NO_TOKEN));
    let printed = refused.as_db_error().expect("an answer");
    assert!(printed.message().contains("carries no token for ledger/writer"), "{}", printed.message());
    assert!(printed.hint().expect("a hint").contains("tenure_fence.enter"), "it says what to do");
    // The token is the transaction's, not the connection's: it does not leak into the next one.
    client
        .batch_execute(&format!("BEGIN; SELECT tenure_fence.enter('{SCOPE}', 7); COMMIT"))
        .await
        .expect("enter");
    client.execute(&statement, &[&20]).await.expect_err("the next transaction carries nothing");
    let mut client = client;
    let tx = client.transaction().await.expect("begin");
    tx.batch_execute(&format!("SELECT tenure_fence.enter('{SCOPE}', 7)")).await.expect("enter");
    tx.execute(&statement, &[&20]).await.expect("with the token");
    tx.commit().await.expect("commit");
}

/// By hand at a prompt: COPY, and a file of SQL.
#[tokio::test]
async fn psql_and_copy_are_refused_and_work_with_the_token() {
    let Some(ledger) = Ledger::start("copied").await else { return };
    let psql = |user: &str, input: &str| {
        let port = ledger.server.port.to_string();
        let mut child = Command::new("psql")
            .args([
                "-X",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                user,
                &ledger.database,
            ])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("psql comes with the server");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("input");
        let output = child.wait_with_output().expect("psql");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let copy = "COPY ledger.entries (id, account, amount) FROM STDIN;\n30\t1\t1\n31\t1\t2\n\\.\n";
    let to_partition = "COPY ledger.events_2a FROM STDIN;\n30\t12\tx\n\\.\n";
    for user in ["application", "postgres"] {
        for input in [copy, to_partition, "UPDATE ledger.entries SET amount = 0;\n"] {
            let (done, printed) = psql(user, input);
            assert!(!done && printed.contains("carries no token"), "{user}: {printed}");
        }
        let enter = format!("BEGIN; SELECT tenure_fence.enter('{SCOPE}', 7);\n");
        for input in [copy, to_partition] {
            let (done, printed) = psql(user, &format!("{enter}{input}ROLLBACK;\n"));
            assert!(done, "{user}: {printed}");
        }
    }
}

/// A pooler hands each transaction to another connection: nothing of ours may stick to one.
#[tokio::test]
async fn a_transaction_mode_pooler_changes_nothing() {
    let Some(ledger) = Ledger::start("pooled").await else { return };
    let Some(pooler) = support::pgbouncer(&ledger.server) else { return };
    let mut client = connect(pooler.port, "application", &ledger.database).await;
    for (name, path) in PATHS {
        assert_eq!(attempt(&client, None, path).await, Err(NO_TOKEN.into()), "{name} without a token");
        assert_eq!(attempt(&client, Some(7), path).await, Ok(()), "{name} with the token");
    }
    // The adapter itself, interleaved with a client that carries nothing, over three server connections.
    let fence = Postgres::new();
    let others: Vec<Client> = {
        let mut others = Vec::new();
        for _ in 0..6 {
            others.push(connect(pooler.port, "application", &ledger.database).await);
        }
        others
    };
    let authority = tenure_fence::Unchecked::unchecked(
        scope(),
        Token::try_from(7).expect("a token"),
        Some(std::time::Duration::from_secs(20)),
    );
    for round in 0..20 {
        let tx = fence.begin(&mut client, &authority).await.expect("begin");
        tx.batch_execute(&format!("INSERT INTO ledger.entries (id) VALUES ({})", 100 + round))
            .await
            .expect("insert");
        tx.commit().await.expect("commit");
        for other in &others {
            let refused = attempt(other, None, "DELETE FROM ledger.entries").await;
            assert_eq!(refused, Err(NO_TOKEN.into()), "round {round}");
        }
    }
    fence.barrier(&client, &takeover(8)).await.expect("barrier");
    assert!(matches!(fence.begin(&mut client, &authority).await.map(drop), Err(FenceError::Stale(_))));
}

/// A holder that is inside keeps the successor's barrier waiting, trigger or no trigger.
#[tokio::test]
async fn a_path_that_sets_the_token_by_hand_is_checked_all_the_same() {
    let Some(ledger) = Ledger::start("byhand").await else { return };
    let client = ledger.application().await;
    let carry = |token: u64| format!("SET LOCAL tenure.carried = '{{\"{SCOPE}\": {token}}}';");
    let insert = "INSERT INTO ledger.entries (id) VALUES (40)";
    assert_eq!(attempt(&client, None, &(carry(7) + insert)).await, Ok(()));
    assert_eq!(attempt(&client, None, &(carry(6) + insert)).await, Err(STALE.into()));
    assert_eq!(
        attempt(&client, None, &(carry(8) + insert)).await,
        Err(STALE.into()),
        "nor one that nobody installed"
    );
    // The trigger's own lock: a transaction that wrote before the barrier ends before the barrier does.
    client.batch_execute(&format!("BEGIN; {}{insert}", carry(7))).await.expect("inside");
    let barrier = tokio::spawn({
        let admin = connect(ledger.server.port, "postgres", &ledger.database).await;
        async move { Postgres::new().barrier(&admin, &takeover(9)).await }
    });
    let waiting = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    while !ledger.admin.query_one(waiting, &[]).await.expect("ask").get::<_, bool>(0) {
        assert!(!barrier.is_finished(), "the barrier did not wait");
        tokio::task::yield_now().await;
    }
    client.batch_execute("COMMIT").await.expect("commit");
    barrier.await.expect("join").expect("barrier");
    assert_eq!(attempt(&client, Some(7), insert).await, Err(STALE.into()));
}

#[tokio::test]
async fn partitions_made_later_are_guarded_too() {
    let Some(ledger) = Ledger::start("later").await else { return };
    let ddl = "CREATE TABLE ledger.events_3 PARTITION OF ledger.events FOR VALUES FROM (20) TO (30);
        CREATE TABLE ledger.attached (LIKE ledger.events); INSERT INTO ledger.attached VALUES (50, 35, 'x');
        ALTER TABLE ledger.events ATTACH PARTITION ledger.attached FOR VALUES FROM (30) TO (40);
        CREATE TABLE ledger.second_child () INHERITS (ledger.plain_parent);
        GRANT ALL ON ALL TABLES IN SCHEMA ledger TO application";
    ledger.admin.batch_execute(ddl).await.expect("more tables");
    let client = ledger.application().await;
    for path in [
        "INSERT INTO ledger.events VALUES (60, 25, 'x')",
        "INSERT INTO ledger.events_3 VALUES (60, 25, 'x')",
        "TRUNCATE ledger.events_3",
        "UPDATE ledger.attached SET note = 'y'",
        "TRUNCATE ledger.attached",
        "INSERT INTO ledger.second_child VALUES (60, 'x')",
        "TRUNCATE ledger.second_child",
    ] {
        assert_eq!(attempt(&client, None, path).await, Err(NO_TOKEN.into()), "{path}");
        assert_eq!(attempt(&client, Some(7), path).await, Ok(()), "{path}");
    }
    ledger.admin.batch_execute("SET session_replication_role = replica").await.expect("set");
    let path = "INSERT INTO ledger.events_3 VALUES (60, 25, 'x')";
    assert_eq!(attempt(&ledger.admin, None, path).await, Err(NO_TOKEN.into()), "always, on new ones too");
    let status = enforce::status(&ledger.admin).await.expect("status");
    assert_eq!(status.len(), 11, "{status:?}");
    assert!(status.iter().all(|table| table.problem.is_none()), "{status:?}");
}

#[tokio::test]
async fn status_names_what_is_not_guarded() {
    let Some(ledger) = Ledger::unguarded("status").await else { return };
    enforce::install(&ledger.admin, &ledger.plan()).await.expect("install");
    let status = enforce::status(&ledger.admin).await.expect("status");
    assert!(
        status.iter().all(|t| t.problem.as_deref().is_some_and(|p| p.contains("no token"))),
        "{status:?}"
    );
    Postgres::new().barrier(&ledger.admin, &takeover(7)).await.expect("barrier");
    // A trigger that is switched off is switched on again by the event trigger, unless that is off as well.
    let disable = "ALTER TABLE ledger.entries DISABLE TRIGGER tenure_fence_row";
    ledger.admin.batch_execute(disable).await.expect("disable");
    let status = enforce::status(&ledger.admin).await.expect("status");
    assert!(status.iter().all(|table| table.problem.is_none()), "{status:?}");
    let silence = "ALTER EVENT TRIGGER tenure_fence_cover_new DISABLE";
    ledger.admin.batch_execute(silence).await.expect("disable");
    ledger.admin.batch_execute(disable).await.expect("disable");
    let status = enforce::status(&ledger.admin).await.expect("status");
    let bad: Vec<_> = status.iter().filter(|table| table.problem.is_some()).collect();
    assert_eq!(bad.len(), 1);
    assert_eq!(
        (bad[0].member.as_str(), bad[0].problem.as_deref()),
        ("ledger.entries", Some("rows are not guarded"))
    );
    assert_eq!((bad[0].token.map(Token::get), bad[0].holder.as_deref()), (Some(7), Some("worker-1")));
    // Installing again mends it.
    enforce::install(&ledger.admin, &ledger.plan()).await.expect("install again");
    let status = enforce::status(&ledger.admin).await.expect("status");
    assert!(status.iter().all(|table| table.problem.is_none()), "{status:?}");
}

#[tokio::test]
async fn a_role_that_could_take_the_guard_off_is_refused() {
    let Some(ledger) = Ledger::unguarded("owned").await else { return };
    ledger.admin.batch_execute("ALTER TABLE ledger.events_1 OWNER TO application").await.expect("owner");
    let refused = enforce::install(&ledger.admin, &ledger.plan()).await.expect_err("it owns a partition");
    assert!(matches!(refused, FenceError::Refused { .. }));
    assert!(format!("{refused:?}").contains("can act as the owner of ledger.events_1"), "{refused:?}");
    let guarded = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'tenure_fence%'";
    assert_eq!(
        ledger.admin.query_one(guarded, &[]).await.expect("ask").get::<_, i64>(0),
        0,
        "and nothing was done"
    );
    let mut plan = ledger.plan();
    plan.roles = vec!["postgres".into()];
    let refused = enforce::install(&ledger.admin, &plan).await.expect_err("a superuser");
    assert!(format!("{refused:?}").contains("postgres is a superuser"), "{refused:?}");
}

#[tokio::test]
async fn the_application_can_neither_lower_a_mark_nor_break_the_glass() {
    let Some(ledger) = Ledger::start("rights").await else { return };
    let client = ledger.application().await;
    for sql in [
        "UPDATE tenure_fence.marks SET token = 1",
        "DELETE FROM tenure_fence.marks",
        "INSERT INTO tenure_fence.marks VALUES ('other', 1)",
        "TRUNCATE tenure_fence.marks",
        "DELETE FROM tenure_fence.audit",
        "SELECT tenure_fence.break_glass('ledger/writer', 'because')",
        "SELECT tenure_fence.repair('ledger/writer', 1, 'me', 'because')",
        "SELECT tenure_fence.unguard_table('ledger.entries', 'because')",
        "ALTER TABLE ledger.entries DISABLE TRIGGER ALL",
        "DROP TRIGGER tenure_fence_row ON ledger.entries",
        "SET session_replication_role = replica",
    ] {
        let refused = attempt(&client, None, sql).await;
        assert_eq!(refused, Err("42501".into()), "{sql}");
    }
    // Not even a superuser deletes or lowers a mark by accident.
    for sql in [
        "DELETE FROM tenure_fence.marks",
        "TRUNCATE tenure_fence.marks",
        "UPDATE tenure_fence.marks SET token = 1",
    ] {
        assert_eq!(attempt(&ledger.admin, None, sql).await, Err("TN003".into()), "{sql}");
    }
}

/// Two scopes on one table would let two holders write to it side by side.
#[tokio::test]
async fn a_table_belongs_to_one_scope() {
    let Some(ledger) = Ledger::start("scopes").await else { return };
    let other = Install { scope: "ledger/other".parse().expect("a scope"), ..ledger.plan() };
    let refused = enforce::install(&ledger.admin, &other).await.expect_err("it has one");
    assert!(format!("{refused:?}").contains("already guarded by ledger/writer"), "{refused:?}");
    let client = ledger.application().await;
    assert_eq!(attempt(&client, Some(7), "DELETE FROM ledger.entries").await, Ok(()), "and keeps it");
}

/// Whoever breaks the glass is alone: holders that are inside end first, and nobody comes in meanwhile.
#[tokio::test]
async fn nobody_is_inside_while_the_glass_is_broken() {
    let Some(ledger) = Ledger::start("alone").await else { return };
    let (holder, admin) = (ledger.application().await, &ledger.admin);
    let enter = format!("BEGIN; SELECT tenure_fence.enter('{SCOPE}', 7)");
    let glass = format!("BEGIN; SELECT tenure_fence.break_glass('{SCOPE}', 'ticket 20')");
    let wait_briefly = "SET lock_timeout = '100ms'";
    admin.batch_execute(wait_briefly).await.expect("set");
    holder.batch_execute(wait_briefly).await.expect("set");
    let waited =
        |refused: tokio_postgres::Error| assert_eq!(refused.code().map(|code| code.code()), Some("55P03"));

    holder.batch_execute(&enter).await.expect("inside");
    waited(admin.batch_execute(&glass).await.expect_err("the holder is inside"));
    admin.batch_execute("ROLLBACK").await.expect("rollback");
    holder.batch_execute("COMMIT").await.expect("commit");

    admin.batch_execute(&glass).await.expect("nobody is inside");
    waited(holder.batch_execute(&enter).await.expect_err("the glass is broken"));
    holder.batch_execute("ROLLBACK").await.expect("rollback");
    admin.batch_execute("COMMIT").await.expect("commit");
    holder.batch_execute(&enter).await.expect("it is mended");
}

#[tokio::test]
async fn breaking_the_glass_is_audited_and_ends_with_its_transaction() {
    let Some(ledger) = Ledger::start("glass").await else { return };
    let admin = &ledger.admin;
    let write = "UPDATE ledger.entries SET amount = 1 WHERE id = 1";
    assert_eq!(
        attempt(admin, None, "SELECT tenure_fence.break_glass('ledger/writer', '')").await,
        Err("TN003".into())
    );
    let broken = format!("BEGIN; SELECT tenure_fence.break_glass('{SCOPE}', 'ticket 17'); {write}; COMMIT");
    admin.batch_execute(&broken).await.expect("past the guard");
    assert_eq!(attempt(admin, None, write).await, Err(NO_TOKEN.into()), "only for that transaction");
    // Saying that the glass is broken does not break it.
    let application = ledger.application().await;
    let pretend = format!(
        "SELECT set_config('tenure.glass_broken', '{SCOPE} ' || pg_current_xact_id()::text, true); {write}"
    );
    assert_eq!(attempt(&application, None, &pretend).await, Err(NO_TOKEN.into()), "nobody wrote it down");
    let lines = enforce::audit(admin, Some(10)).await.expect("audit");
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("break glass ledger/writer by postgres - ticket 17"), "{}", lines[0]);
    // The same as one call, and undone together with its line in the audit when a statement fails.
    let mut other = connect(ledger.server.port, "postgres", &ledger.database).await;
    enforce::break_glass(&mut other, &scope(), "ticket 18", write, PATIENCE).await.expect("past the guard");
    let wrong = format!("{write}; SELECT 1 / 0");
    enforce::break_glass(&mut other, &scope(), "ticket 19", &wrong, PATIENCE).await.expect_err("it fails");
    assert_eq!(enforce::audit(admin, None).await.expect("audit").len(), 2);
    // Removing the guard is audited too, and leaves the marks.
    enforce::remove(admin, "ledger.events", "").await.expect_err("without a reason");
    enforce::remove(admin, "ledger.events_1", "moved")
        .await
        .expect_err("a partition is guarded through its root");
    enforce::remove(admin, "ledger.events", "moved elsewhere").await.expect("remove");
    assert_eq!(attempt(admin, None, "DELETE FROM ledger.events").await, Ok(()));
    assert_eq!(attempt(admin, None, "TRUNCATE ledger.events_2a").await, Ok(()));
    assert_eq!(attempt(admin, None, write).await, Err(NO_TOKEN.into()), "the others stay guarded");
    assert_eq!(enforce::audit(admin, None).await.expect("audit").len(), 3);
    assert!(Postgres::new().mark(admin, &scope()).await.expect("mark").is_some());
}

/// A restored database has lines of transactions whose numbers come up again.
#[tokio::test]
async fn a_restored_line_of_a_broken_glass_opens_nothing() {
    let Some(ledger) = Ledger::start("restored").await else { return };
    let application = ledger.application().await;
    application.batch_execute("BEGIN").await.expect("begin");
    let row = application.query_one("SELECT pg_current_xact_id()::text", &[]).await.expect("a number");
    let number: String = row.get(0);
    let restored = format!(
        "INSERT INTO tenure_fence.audit (what, scope, reason, detail) VALUES ('break glass', '{SCOPE}', 'restored', \
         jsonb_build_object('transaction', '{number}', 'began', '1700000000.000000'))"
    );
    ledger.admin.batch_execute(&restored).await.expect("as a restore does");
    let write = format!(
        "SELECT set_config('tenure.glass_broken', '{SCOPE} {number}', true); \
         UPDATE ledger.entries SET amount = 1 WHERE id = 1"
    );
    let refused = application.batch_execute(&write).await.expect_err("another transaction's line");
    assert_eq!(refused.code().map(|code| code.code()), Some(NO_TOKEN));
}

/// The mark names the token that may write: an application that needs it has it from its lease.
#[tokio::test]
async fn the_application_cannot_read_the_mark() {
    let Some(ledger) = Ledger::start("mark").await else { return };
    let application = ledger.application().await;
    let refused = attempt(&application, None, "SELECT token FROM tenure_fence.marks").await;
    assert_eq!(refused, Err("42501".into()));
    // Not even where an older release has granted it.
    ledger.admin.batch_execute("GRANT SELECT ON tenure_fence.marks TO application").await.expect("granted");
    enforce::install(&ledger.admin, &ledger.plan()).await.expect("installed again");
    let refused = attempt(&application, None, "SELECT token FROM tenure_fence.marks").await;
    assert_eq!(refused, Err("42501".into()));
}

/// A token that was never granted, far above all others, keeps every holder out. One audited call lowers the mark.
#[tokio::test]
async fn a_poisoned_mark_is_recoverable() {
    let Some(ledger) = Ledger::start("poisoned").await else { return };
    let application = ledger.application().await;
    let write = "UPDATE ledger.entries SET amount = 1 WHERE id = 1";
    let poison = format!("SELECT tenure_fence.barrier('{SCOPE}', 9007199254740991, 'mallory', NULL)");
    application.batch_execute(&poison).await.expect("by design: it must be able to present a token");
    assert_eq!(attempt(&application, Some(7), write).await, Err("TN001".into()));
    let by = "operator".parse().expect("a name");
    let fence = Postgres::new();
    fence
        .repair(&ledger.admin, &scope(), Token::try_from(6).expect("a token"), &by, "ticket 20")
        .await
        .expect("repaired");
    assert_eq!(attempt(&application, Some(7), write).await, Ok(()));
    let lines = enforce::audit(&ledger.admin, None).await.expect("audit");
    assert!(lines.iter().any(|line| line.contains("repair") && line.contains("ticket 20")), "{lines:?}");
}

/// Names of roles and tables are data, whatever is in them.
#[tokio::test]
async fn a_role_named_like_a_quote_changes_nothing() {
    let Some(ledger) = Ledger::start("quotes").await else { return };
    for role in ["$check$; DROP SCHEMA tenure_fence CASCADE; --", "it's \"quoted\""] {
        let quoted = role.replace('"', "\"\"");
        ledger.admin.batch_execute(&format!("CREATE ROLE \"{quoted}\"")).await.expect("a role");
        let plan = Install { roles: vec![role.into()], ..ledger.plan() };
        enforce::install(&ledger.admin, &plan).await.expect("installed");
    }
    assert!(!enforce::status(&ledger.admin).await.expect("status").is_empty(), "the guard is still there");
}
