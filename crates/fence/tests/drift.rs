//! What becomes of a guarded database later: tables are dropped, swapped and given away, partitions are
//! added, roles gain rights. What is no longer guarded must be reported, and the owner of a table must be
//! able to go on working.

#[allow(unused)]
mod support;

use std::sync::{Arc, OnceLock};

use support::Server;
use tenure_core::{Scope, Token};
use tenure_fence::postgres::enforce::{self, Install};
use tenure_fence::postgres::{NO_TOKEN, Postgres};
use tenure_fence::{FenceError, Takeover};
use tokio_postgres::{Client, NoTls};

const SCOPE: &str = "ledger/writer";

/// `keeper` owns the tables and their schema, `NAME_app` is the role of the application.
const SETUP: &str = "
CREATE SCHEMA ledger AUTHORIZATION keeper;
SET ROLE keeper;
CREATE TABLE ledger.entries (id int);
CREATE TABLE ledger.events (id int, day int) PARTITION BY RANGE (day);
CREATE TABLE ledger.events_1 PARTITION OF ledger.events FOR VALUES FROM (0) TO (10);
CREATE TABLE ledger.parent (id int);
RESET ROLE;
CREATE FOREIGN DATA WRAPPER nowhere;
CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
";

struct Ledger {
    server: Arc<Server>,
    database: String,
    admin: Client,
}

async fn connect(server: &Server, user: &str, database: &str) -> Client {
    let config = format!("host=127.0.0.1 port={} user={user} dbname={database}", server.port);
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

impl Ledger {
    async fn unguarded(database: &str) -> Option<Ledger> {
        static SHARED: OnceLock<Option<Arc<Server>>> = OnceLock::new();
        let server = SHARED.get_or_init(|| support::postgres().map(Arc::new)).clone()?;
        let root = connect(&server, "postgres", "postgres").await;
        root.batch_execute(
            "DO 'BEGIN CREATE ROLE keeper LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN END'",
        )
        .await
        .expect("role");
        root.batch_execute(&format!("CREATE ROLE {database}_app LOGIN")).await.expect("role");
        root.batch_execute(&format!("CREATE DATABASE {database}")).await.expect("database");
        let admin = connect(&server, "postgres", database).await;
        admin.batch_execute(SETUP).await.expect("setup");
        let ledger = Ledger { server, database: database.to_owned(), admin };
        ledger
            .run(&format!(
                "GRANT USAGE ON SCHEMA ledger TO {0}; GRANT ALL ON ALL TABLES IN SCHEMA ledger TO {0}",
                ledger.app()
            ))
            .await;
        Some(ledger)
    }

    async fn guarded(database: &str) -> Option<Ledger> {
        let ledger = Ledger::unguarded(database).await?;
        ledger.install().await.expect("install");
        let scope: Scope = SCOPE.parse().expect("a scope");
        let token = Token::try_from(7).expect("a token");
        let takeover = Takeover::unchecked(scope, token, "worker-1".parse().expect("a holder"));
        Postgres::new().barrier(&ledger.admin, &takeover).await.expect("barrier");
        assert_eq!(ledger.problems().await, Vec::<(String, String)>::new());
        Some(ledger)
    }

    fn app(&self) -> String {
        format!("{}_app", self.database)
    }

    async fn install(&self) -> Result<(), FenceError> {
        let plan = Install {
            tables: ["ledger.entries", "ledger.events", "ledger.parent"].map(str::to_owned).into(),
            scope: SCOPE.parse().expect("a scope"),
            roles: vec![self.app()],
        };
        enforce::install(&self.admin, &plan).await.map(drop)
    }

    async fn run(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// What `status` reports, table and problem.
    async fn problems(&self) -> Vec<(String, String)> {
        let status = enforce::status(&self.admin).await.expect("status");
        status.into_iter().filter_map(|table| Some((table.member, table.problem?))).collect()
    }

    /// The one problem that there is.
    #[track_caller]
    fn only(problems: Vec<(String, String)>, table: &str, word: &str) {
        let [(member, problem)] = problems.as_slice() else { panic!("one problem, not {problems:?}") };
        assert!(member == table && problem.contains(word), "{problems:?}");
    }

    async fn refused(&self, word: &str) {
        let refused = self.install().await.expect_err("the application could take the guard off");
        assert!(format!("{refused:?}").contains(word), "{word}: {refused:?}");
    }
}

async fn code(client: &Client, sql: &str) -> Result<(), String> {
    let done = client.batch_execute(sql).await;
    done.map_err(|error| error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()))
}

/// A superuser installed the guard; the owner of the tables had no right to the trigger function that a new
/// partition clones.
#[tokio::test]
async fn the_owner_can_still_add_partitions_and_they_are_guarded() {
    let Some(ledger) = Ledger::guarded("partitions").await else { return };
    // The fence's own schema is applied again whenever a program starts; that must not take the right away.
    Postgres::new().install(&ledger.admin).await.expect("again");
    let keeper = connect(&ledger.server, "keeper", &ledger.database).await;
    for sql in [
        "CREATE TABLE ledger.events_2 PARTITION OF ledger.events FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE ledger.events_3 (LIKE ledger.events)",
        "ALTER TABLE ledger.events ATTACH PARTITION ledger.events_3 FOR VALUES FROM (20) TO (30)",
        "CREATE TABLE ledger.child () INHERITS (ledger.parent)",
    ] {
        assert_eq!(code(&keeper, sql).await, Ok(()), "{sql}");
    }
    for table in ["events_2", "events_3", "child"] {
        for sql in [format!("DELETE FROM ledger.{table}"), format!("TRUNCATE ledger.{table}")] {
            assert_eq!(code(&keeper, &sql).await, Err(NO_TOKEN.into()), "{sql}");
        }
    }
    assert_eq!(ledger.problems().await, Vec::<(String, String)>::new());
    // The right is of no use to others: they cannot name the function.
    let app = connect(&ledger.server, &ledger.app(), &ledger.database).await;
    assert_eq!(code(&app, "SELECT tenure_fence.break_glass('x', 'y')").await, Err("42501".into()));
    let stranger =
        "CREATE TEMP TABLE t (id int); CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION
        tenure_fence.guard('x')";
    assert_eq!(code(&keeper, stranger).await, Err("42501".into()));
}

#[tokio::test]
async fn a_table_that_was_dropped_and_made_again_is_reported() {
    let Some(ledger) = Ledger::guarded("recreated").await else { return };
    ledger.run("DROP TABLE ledger.entries").await;
    Ledger::only(ledger.problems().await, "ledger.entries", "was dropped");
    ledger.run("CREATE TABLE ledger.entries (id int)").await;
    Ledger::only(
        ledger.problems().await,
        "ledger.entries",
        "is called ledger.entries now and is not guarded",
    );
    ledger.install().await.expect("install again");
    assert_eq!(ledger.problems().await, Vec::<(String, String)>::new(), "installing again mends it");
    // One that will not come back is taken off the list by its name.
    ledger.run("DROP TABLE ledger.parent").await;
    enforce::remove(&ledger.admin, "ledger.parent", "no longer needed").await.expect("remove");
    assert_eq!(ledger.problems().await, Vec::<(String, String)>::new());
}

#[tokio::test]
async fn a_table_that_was_renamed_and_swapped_is_reported() {
    let Some(ledger) = Ledger::guarded("swapped").await else { return };
    ledger
        .run("ALTER TABLE ledger.entries RENAME TO entries_old; CREATE TABLE ledger.entries (id int)")
        .await;
    let problems = ledger.problems().await;
    Ledger::only(problems.clone(), "ledger.entries_old", "was called ledger.entries at install");
    Ledger::only(
        problems,
        "ledger.entries_old",
        "another relation is called ledger.entries now and is not guarded",
    );
}

#[tokio::test]
async fn a_foreign_table_in_a_guarded_family_is_refused_and_reported() {
    let Some(ledger) = Ledger::guarded("foreign_later").await else { return };
    let partition = "CREATE FOREIGN TABLE ledger.far PARTITION OF ledger.events FOR VALUES FROM (90) TO (99) SERVER elsewhere";
    let child = "CREATE FOREIGN TABLE ledger.far_child () INHERITS (ledger.parent) SERVER elsewhere";
    for sql in [partition, child] {
        assert_eq!(code(&ledger.admin, sql).await, Err("TN003".into()), "{sql}");
    }
    // Where nobody could install the event trigger they get in, and are reported.
    ledger.run("ALTER EVENT TRIGGER tenure_fence_cover_new DISABLE").await;
    ledger.run(child).await;
    Ledger::only(ledger.problems().await, "ledger.far_child", "foreign table");
    ledger.run("DROP FOREIGN TABLE ledger.far_child").await;
    ledger.run(partition).await;
    Ledger::only(ledger.problems().await, "ledger.far", "foreign table");
    // An unrelated command does not fail for it.
    ledger.run("ALTER EVENT TRIGGER tenure_fence_cover_new ENABLE ALWAYS").await;
    ledger.run("CREATE TABLE ledger.unrelated (id int)").await;
    let refused = ledger.install().await.expect_err("install refuses it too");
    assert!(format!("{refused:?}").contains("foreign table"), "{refused:?}");
}

#[tokio::test]
async fn an_owner_that_has_become_the_application_is_reported() {
    let Some(ledger) = Ledger::guarded("given_away").await else { return };
    let app = ledger.app();
    ledger.run(&format!("ALTER TABLE ledger.events_1 OWNER TO {app}")).await;
    Ledger::only(ledger.problems().await, "ledger.events_1", "can act as the owner of ledger.events_1");
    ledger.run("ALTER TABLE ledger.events_1 OWNER TO keeper").await;
    assert_eq!(ledger.problems().await, Vec::<(String, String)>::new());
    ledger.run(&format!("GRANT keeper TO {app}")).await;
    assert!(ledger.problems().await.len() >= 4, "every table is the keeper's");
    ledger.run(&format!("REVOKE keeper FROM {app}; ALTER ROLE {app} CREATEROLE")).await;
    assert!(ledger.problems().await.iter().all(|(_, problem)| problem.contains("has CREATEROLE")));
    assert!(!ledger.problems().await.is_empty());
}

#[tokio::test]
async fn a_role_that_could_take_the_guard_off_in_a_roundabout_way_is_refused() {
    let Some(ledger) = Ledger::unguarded("roundabout").await else { return };
    let app = ledger.app();
    for (give, take, word) in [
        ("ALTER ROLE app CREATEROLE", "ALTER ROLE app NOCREATEROLE", "has CREATEROLE"),
        (
            "ALTER SCHEMA ledger OWNER TO app",
            "ALTER SCHEMA ledger OWNER TO keeper",
            "can act as the owner of the schema ledger",
        ),
        (
            "CREATE SCHEMA IF NOT EXISTS tenure_fence; ALTER SCHEMA tenure_fence OWNER TO app",
            "ALTER SCHEMA tenure_fence OWNER TO postgres",
            "can act as the owner of the schema tenure_fence",
        ),
        (
            "GRANT pg_write_all_data TO app",
            "REVOKE pg_write_all_data FROM app",
            "may write to tenure_fence.marks",
        ),
        (
            "GRANT pg_execute_server_program TO app",
            "REVOKE pg_execute_server_program FROM app",
            "can act as pg_execute",
        ),
    ] {
        ledger.run(&give.replace("app", &app)).await;
        ledger.refused(word).await;
        ledger.run(&take.replace("app", &app)).await;
    }
    ledger.install().await.expect("it has no such right any more");
}

/// A role with the TRIGGER right takes the names of our triggers, and nothing guards.
#[tokio::test]
async fn a_trigger_that_only_has_the_name_is_not_believed() {
    let Some(ledger) = Ledger::unguarded("squatted").await else { return };
    ledger.run(
        "CREATE FUNCTION ledger.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
         CREATE TRIGGER tenure_fence_row BEFORE INSERT ON ledger.entries FOR EACH ROW EXECUTE FUNCTION ledger.nothing()",
    )
    .await;
    ledger.refused("another trigger called tenure_fence_row").await;
    ledger.run("DROP TRIGGER tenure_fence_row ON ledger.entries").await;
    ledger.install().await.expect("install");
    ledger.run("ALTER EVENT TRIGGER tenure_fence_cover_new DISABLE").await;
    ledger
        .run(
            "DROP TRIGGER tenure_fence_row ON ledger.entries;
         CREATE TRIGGER tenure_fence_row BEFORE INSERT OR UPDATE OR DELETE ON ledger.entries FOR EACH ROW
            EXECUTE FUNCTION ledger.nothing();
         ALTER TABLE ledger.entries ENABLE ALWAYS TRIGGER tenure_fence_row",
        )
        .await;
    let problems = ledger.problems().await;
    let found = |(member, problem): &&(String, String)| {
        member == "ledger.entries" && problem.contains("rows are not guarded")
    };
    assert!(problems.iter().find(found).is_some(), "{problems:?}");
}

/// The setting that `repair` uses can be set by anybody who may write to the table of marks.
#[tokio::test]
async fn a_forged_repair_lowers_nothing() {
    let Some(ledger) = Ledger::guarded("forged").await else { return };
    let app = ledger.app();
    ledger.run(&format!("GRANT pg_write_all_data TO {app}")).await;
    assert!(!ledger.problems().await.is_empty(), "and the right is reported");
    let client = connect(&ledger.server, &app, &ledger.database).await;
    let forged = "SET tenure.repairing = 'ledger/writer'; UPDATE tenure_fence.marks SET token = 1";
    assert_eq!(code(&client, forged).await, Err("TN003".into()));
}

/// A transaction inside keeps them waiting. When they give up, so does the server: nobody is left in a queue
/// for the lock.
#[tokio::test]
async fn what_gives_up_leaves_nobody_waiting() {
    let Some(ledger) = Ledger::guarded("patience").await else { return };
    let inside = connect(&ledger.server, &ledger.app(), &ledger.database).await;
    inside.batch_execute(&format!("BEGIN; SELECT tenure_fence.enter('{SCOPE}', 7)")).await.expect("inside");
    let mut client = connect(&ledger.server, "postgres", &ledger.database).await;
    let (scope, token) = (SCOPE.parse().expect("a scope"), Token::try_from(8).expect("a token"));
    let by = "operator".parse().expect("a name");
    let timeout = std::time::Duration::from_millis(500);
    let fence = Postgres::new().timeout(timeout);
    let nobody_waits = async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        let waiting: i64 = ledger.admin.query_one(waiting, &[]).await.expect("ask").get(0);
        assert_eq!(waiting, 0, "somebody waits for a lock");
    };

    let takeover =
        Takeover::unchecked(SCOPE.parse().expect("a scope"), token, "worker-2".parse().expect("a holder"));
    let refused = fence.barrier(&client, &takeover).await.map(drop).expect_err("somebody is inside");
    assert!(matches!(refused, FenceError::Unavailable { .. }), "{refused:?}");
    nobody_waits().await;
    let refused =
        fence.repair(&client, &scope, token, &by, "a test").await.map(drop).expect_err("somebody is inside");
    assert!(matches!(refused, FenceError::Unavailable { .. }), "{refused:?}");
    nobody_waits().await;
    let refused = enforce::break_glass(&mut client, &scope, "a test", "SELECT 1", timeout).await;
    let refused = refused.expect_err("somebody is inside");
    assert!(matches!(refused, FenceError::Unavailable { .. }), "{refused:?}");
    nobody_waits().await;

    // The timers are the transaction's: what follows on the same connection is not bounded by them, and
    // works.
    let left: String = client.query_one("SHOW statement_timeout", &[]).await.expect("ask").get(0);
    assert_eq!(left, "0");
    inside.batch_execute("COMMIT").await.expect("commit");
    fence.barrier(&client, &takeover).await.expect("nobody is inside");
}
