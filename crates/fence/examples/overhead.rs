//! What a fence costs: one-row transactions with and without it, on real servers, as a ratio.
//!
//! `cargo run --release -p tenure-fence --features postgres,sqlite,redis --example overhead`
//!
//! Both kinds take turns, one transaction each, so that a slow moment of the machine or its disk hits both
//! alike; which goes first changes every time; the median of each counts. Both have a connection of their own
//! to the same server, the same durability (every commit is synced before it is answered) and the same
//! statement on a row of their own.

#[allow(unused)]
#[path = "../tests/support/mod.rs"]
mod support;

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

/// Transactions of each kind that count, after some that only warm up.
const ROUNDS: usize = 2_000;
const WARM_UP: usize = 200;

fn permit(scope: &Scope) -> Permit {
    let lease = Duration::from_secs(3_600);
    let count = PermitCount::default();
    Permit::new(scope.clone(), Token::FIRST, Generation::new(1), SystemClock.now(), lease, &count)
}

fn takeover(scope: &Scope) -> Takeover {
    Takeover::unchecked(scope.clone(), Token::FIRST, "overhead".parse().expect("a name"))
}

async fn timed(mut once: impl AsyncFnMut()) -> f64 {
    let start = Instant::now();
    once().await;
    start.elapsed().as_secs_f64() * 1e6
}

async fn compare(what: &str, mut plain: impl AsyncFnMut(), mut fenced: impl AsyncFnMut()) {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let (a, b) = if round % 2 == 0 {
            let a = timed(&mut plain).await;
            (a, timed(&mut fenced).await)
        } else {
            let b = timed(&mut fenced).await;
            (timed(&mut plain).await, b)
        };
        if round >= WARM_UP {
            without.push(a);
            with.push(b);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (without, with) = (median(&mut without), median(&mut with));
    println!("{what:<34} {without:>9.0} us {with:>9.0} us   x {:.2}", with / without);
}

async fn connect(port: u16) -> Client {
    let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

async fn postgres() {
    let Some(server) = support::postgres() else { return };
    let admin = connect(server.port).await;
    let fence = Postgres::new();
    fence.install(&admin).await.expect("install");
    let scope: Scope = "overhead".parse().expect("a scope");
    fence.barrier(&admin, &takeover(&scope)).await.expect("barrier");
    let permit = permit(&scope);
    for table in ["plain", "fenced", "serial", "enforced"] {
        let sql = format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, balance bigint); INSERT INTO {table} VALUES (1, 0)"
        );
        admin.batch_execute(&sql).await.expect("table");
    }
    let install = enforce::Install { tables: vec!["enforced".into()], scope, roles: Vec::new() };
    enforce::install(&admin, &install).await.expect("enforce");

    let (mut unfenced, mut client) = (connect(server.port).await, connect(server.port).await);
    let update = |table: &str| format!("UPDATE {table} SET balance = balance - 1 WHERE id = 1");
    let plain = unfenced.prepare(&update("plain")).await.expect("prepare");
    let mut unfenced = async || {
        let tx = unfenced.transaction().await.expect("begin");
        tx.execute(&plain, &[]).await.expect("update");
        tx.commit().await.expect("commit");
    };
    for (what, table) in [("PostgreSQL", "fenced"), ("PostgreSQL, enforced by trigger", "enforced")] {
        let statement = client.prepare(&update(table)).await.expect("prepare");
        let fenced = async || {
            let tx = fence.begin(&mut client, &permit).await.expect("begin");
            tx.execute(&statement, &[]).await.expect("update");
            tx.commit().await.expect("commit");
        };
        compare(what, &mut unfenced, fenced).await;
    }
    let statement = client.prepare(&update("serial")).await.expect("prepare");
    let mut number = 0_u64;
    let serial = async || {
        number += 1;
        let mut tx = fence.begin_serial(&mut client, &permit).await.expect("begin");
        tx.execute(&statement, &[]).await.expect("update");
        tx.advance(number.to_string().into_bytes().into()).await.expect("advance");
        tx.commit().await.expect("commit");
    };
    compare("PostgreSQL, with a cursor", &mut unfenced, serial).await;
}

async fn sqlite() {
    let dir = support::folder("overhead");
    let mut unfenced = Connection::open(dir.join("db")).expect("open");
    let tables = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
        CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER); INSERT INTO accounts VALUES (1, 0), (2, 0)";
    unfenced.execute_batch(tables).expect("tables");
    let mut fence = Sqlite::open(Connection::open(dir.join("db")).expect("open")).expect("a fence");
    let scope: Scope = "overhead".parse().expect("a scope");
    fence.barrier(&takeover(&scope)).expect("barrier");
    let permit = permit(&scope);
    let plain = async || {
        let tx = unfenced.transaction().expect("begin");
        tx.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 1", []).expect("update");
        tx.commit().expect("commit");
    };
    let fenced = async || {
        let tx = fence.begin(&permit).expect("begin");
        tx.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 2", []).expect("update");
        tx.commit().expect("commit");
    };
    compare("SQLite", plain, fenced).await;
    let _ = std::fs::remove_dir_all(dir);
}

async fn redis() {
    let Some(server) = support::redis() else { return };
    let client = redis::Client::open(("127.0.0.1", server.port)).expect("an address");
    let connect = async || -> MultiplexedConnection {
        client.get_multiplexed_async_connection().await.expect("connect")
    };
    let (mut unfenced, mut connection) = (connect().await, connect().await);
    let fence = Redis::default();
    let scope: Scope = "overhead".parse().expect("a scope");
    fence.clone().over(connection.clone()).barrier(&takeover(&scope)).await.expect("barrier");
    let permit = permit(&scope);
    let (mine, key) = (fence.key(&scope, "plain"), fence.key(&scope, "balance"));
    let (mut one, mut other) = (0_u64, 0_u64);
    let plain = async || {
        one += 1;
        let mut command = redis::cmd("SET");
        let _: String = command.arg(&mine).arg(one).query_async(&mut unfenced).await.expect("set");
    };
    let fenced = async || {
        other += 1;
        fence.write(&mut connection, &permit, &[set(&key, other)]).await.expect("write");
    };
    compare("Redis", plain, fenced).await;
}

#[tokio::main]
async fn main() {
    println!("{:<34} {:>12} {:>12}   ratio", "one-row transaction", "without", "fenced");
    postgres().await;
    sqlite().await;
    redis().await;
}
