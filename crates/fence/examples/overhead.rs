//! What a fence costs: one-row transactions with and without it, on real servers, as a ratio.
//!
//! `cargo run --release -p tenure-fence --features postgres,sqlite,redis --example overhead`
//!
//! Both kinds take turns in small blocks, so that a slow minute of the machine hits both alike; the median
//! block of each counts. The servers keep their default durability (every commit is synced).

#[allow(unused)]
#[path = "../tests/support/mod.rs"]
mod support;

use std::future::Future;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use tenure_clock::{Clock, SystemClock};
use tenure_core::{Generation, Permit, PermitCount, Scope, Token};
use tenure_fence::postgres::{Postgres, enforce};
use tenure_fence::redis::{Redis, set};
use tenure_fence::sqlite::Sqlite;
use tenure_fence::{Fence, Takeover};
use tokio_postgres::{Client, NoTls};

const BLOCKS: usize = 15;
const BLOCK: usize = 100;

fn permit(scope: &Scope) -> Permit {
    let lease = Duration::from_secs(600);
    Permit::new(
        scope.clone(),
        Token::FIRST,
        Generation::new(1),
        SystemClock.now(),
        lease,
        &PermitCount::default(),
    )
}

fn takeover(scope: &Scope) -> Takeover {
    Takeover::unchecked(scope.clone(), Token::FIRST, "overhead".parse().expect("a name"))
}

fn report(what: &str, mut plain: Vec<f64>, mut fenced: Vec<f64>) {
    plain.sort_by(f64::total_cmp);
    fenced.sort_by(f64::total_cmp);
    let (plain, fenced) = (plain[plain.len() / 2], fenced[fenced.len() / 2]);
    println!("{what:<34} {plain:>9.0} us {fenced:>9.0} us   x {:.2}", fenced / plain);
}

async fn block<F: Future>(mut once: impl FnMut() -> F) -> f64 {
    let start = Instant::now();
    for _ in 0..BLOCK {
        once().await;
    }
    start.elapsed().as_secs_f64() * 1e6 / BLOCK as f64
}

async fn connect(port: u16) -> Client {
    let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

const UPDATE: &str = "UPDATE accounts SET balance = balance - 1 WHERE id = 1";

async fn postgres() {
    let Some(server) = support::postgres() else { return };
    let mut client = connect(server.port).await;
    let table =
        "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint); INSERT INTO accounts VALUES (1, 0)";
    client.batch_execute(table).await.expect("table");
    let fence = Postgres::new();
    fence.install(&client).await.expect("install");
    let scope: Scope = "overhead".parse().expect("a scope");
    fence.barrier(&client, &takeover(&scope)).await.expect("barrier");
    let permit = permit(&scope);
    let statement = client.prepare(UPDATE).await.expect("prepare");

    let (mut plain, mut fenced, mut serial, mut enforced) = (vec![], vec![], vec![], vec![]);
    for round in 0..2 * BLOCKS {
        if round == BLOCKS {
            let tables = vec!["accounts".to_owned()];
            let install = enforce::Install { tables, scope: scope.clone(), roles: Vec::new() };
            enforce::install(&client, &install).await.expect("enforce");
        }
        if round < BLOCKS {
            let start = Instant::now();
            for _ in 0..BLOCK {
                let tx = client.transaction().await.expect("begin");
                tx.execute(&statement, &[]).await.expect("update");
                tx.commit().await.expect("commit");
            }
            plain.push(start.elapsed().as_secs_f64() * 1e6 / BLOCK as f64);
        }
        let start = Instant::now();
        for _ in 0..BLOCK {
            let tx = fence.begin(&mut client, &permit).await.expect("begin");
            tx.execute(&statement, &[]).await.expect("update");
            tx.commit().await.expect("commit");
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / BLOCK as f64;
        if round < BLOCKS {
            fenced.push(each)
        } else {
            enforced.push(each)
        }
        if round < BLOCKS {
            let start = Instant::now();
            for number in 0..BLOCK {
                let mut tx = fence.begin_serial(&mut client, &permit).await.expect("begin");
                tx.execute(&statement, &[]).await.expect("update");
                tx.advance(number.to_string().into_bytes().into()).await.expect("advance");
                tx.commit().await.expect("commit");
            }
            serial.push(start.elapsed().as_secs_f64() * 1e6 / BLOCK as f64);
        }
    }
    report("PostgreSQL", plain.clone(), fenced);
    report("PostgreSQL, with a cursor", plain.clone(), serial);
    report("PostgreSQL, enforced by trigger", plain, enforced);
}

async fn sqlite() {
    let dir = support::folder("overhead");
    let connection = Connection::open(dir.join("db")).expect("open");
    let table = "PRAGMA journal_mode = WAL; CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER);
        INSERT INTO accounts VALUES (1, 0)";
    connection.execute_batch(table).expect("table");
    connection.execute_batch("PRAGMA synchronous = FULL").expect("pragma");
    let mut unfenced = connection;
    let mut fence = Sqlite::open(Connection::open(dir.join("db")).expect("open")).expect("a fence");
    let scope: Scope = "overhead".parse().expect("a scope");
    fence.barrier(&takeover(&scope)).expect("barrier");
    let permit = permit(&scope);
    let (mut plain, mut fenced) = (vec![], vec![]);
    for _ in 0..BLOCKS {
        let start = Instant::now();
        for _ in 0..BLOCK {
            let tx = unfenced.transaction().expect("begin");
            tx.execute(UPDATE, []).expect("update");
            tx.commit().expect("commit");
        }
        plain.push(start.elapsed().as_secs_f64() * 1e6 / BLOCK as f64);
        let start = Instant::now();
        for _ in 0..BLOCK {
            let tx = fence.begin(&permit).expect("begin");
            tx.execute(UPDATE, []).expect("update");
            tx.commit().expect("commit");
        }
        fenced.push(start.elapsed().as_secs_f64() * 1e6 / BLOCK as f64);
    }
    report("SQLite", plain, fenced);
    let _ = std::fs::remove_dir_all(dir);
}

async fn redis() {
    let Some(server) = support::redis() else { return };
    let client = redis::Client::open(("127.0.0.1", server.port)).expect("an address");
    let connection: MultiplexedConnection = client.get_multiplexed_async_connection().await.expect("connect");
    let fence = Redis::default();
    let scope: Scope = "overhead".parse().expect("a scope");
    fence.clone().over(connection.clone()).barrier(&takeover(&scope)).await.expect("barrier");
    let (permit, key) = (permit(&scope), fence.key(&scope, "balance"));
    let (mut plain, mut fenced) = (vec![], vec![]);
    for _ in 0..BLOCKS {
        plain.push(
            block(|| async {
                let mut connection = connection.clone();
                let _: String =
                    redis::cmd("SET").arg(&key).arg("90").query_async(&mut connection).await.expect("set");
            })
            .await,
        );
        fenced.push(
            block(|| async {
                let mut connection = connection.clone();
                fence.write(&mut connection, &permit, &[set(&key, "90")]).await.expect("write");
            })
            .await,
        );
    }
    report("Redis", plain, fenced);
}

#[tokio::main]
async fn main() {
    println!("{:<34} {:>12} {:>12}   ratio", "one-row transaction", "without", "fenced");
    postgres().await;
    sqlite().await;
    redis().await;
}
