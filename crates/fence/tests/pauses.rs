//! Two real processes write to a real PostgreSQL and are stopped and woken at random points. A tiny
//! coordinator stands in for the lease service: it grants rising tokens and takes a lease away from a holder
//! that it has stopped, as expiry would. With the fence, no row is ever written by a stale token after a
//! newer one's barrier; without it, the same rounds corrupt.
//!
//! 15 rounds; `TENURE_TEST_FULL=1` runs 200.

#[allow(unused)]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_core::{Generation, Permit, PermitCount, Scope, Token};
use tenure_fence::postgres::Postgres;
use tenure_fence::{FenceError, Takeover};
use tokio_postgres::{Client, NoTls};

const SCOPE: &str = "settlement/batch";
/// Generous: the point is that the writers do *not* stop in time, so that only the fence is left.
const LEASE: Duration = Duration::from_secs(60);

async fn connect(port: u16) -> Client {
    let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// The writer: this test program again, told by its environment. It reads one token per line, takes over, and
/// writes rows until it is told that it is stale or given another token. It prints what it is doing.
#[test]
fn writer() {
    let Ok(port) = std::env::var("TENURE_TEST_WRITER") else { return }; // run as a test, it has nothing to do
    let fenced = std::env::var_os("TENURE_TEST_UNFENCED").is_none();
    let (tell, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = tell.send(line.parse::<u64>().expect("a token"));
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(write_rows(port.parse().expect("a port"), fenced, orders));
}

async fn write_rows(port: u16, fenced: bool, orders: Receiver<u64>) {
    let mut client = connect(port).await;
    let fence = Postgres::new();
    let scope: Scope = SCOPE.parse().expect("a scope");
    let count = PermitCount::default();
    let mut holding = None;
    loop {
        // With nothing to do it waits for a token; at work it looks for one in passing.
        let order = if holding.is_none() { orders.recv().ok() } else { orders.try_recv().ok() };
        if let Some(number) = order {
            let token = Token::try_from(number).expect("a token");
            if fenced {
                let holder = format!("writer-{}", std::process::id()).parse().expect("a name");
                let takeover = Takeover::new(scope.clone(), token, holder, SystemClock.now(), LEASE);
                fence
                    .barrier(&client, &takeover)
                    .await
                    .unwrap_or_else(|error| panic!("barrier {number}: {error}"));
            }
            client.execute(CUT, &[&(number as i64)]).await.expect("cut");
            println!("holding {number}");
            holding = Some(token);
        }
        let Some(token) = holding else { return }; // nobody will ever grant anything more
        let permit = Permit::new(scope.clone(), token, Generation::new(1), SystemClock.now(), LEASE, &count);
        if !fenced {
            settle(&mut client, token.get()).await;
            continue;
        }
        match settle_fenced(&fence, &mut client, &permit).await {
            Ok(()) => {}
            Err(FenceError::Stale(stale)) => {
                println!("stale {} {}", stale.presented, stale.seen);
                holding = None;
            }
            Err(error) => panic!("write {token}: {error}"),
        }
    }
}

/// What a new holder finds, right after its barrier: nothing may be added behind this by an older token.
const CUT: &str = "INSERT INTO cuts (token, n) SELECT $1, coalesce(max(n), 0) FROM rows";
const READ: &str = "SELECT coalesce(max(n), 0) FROM rows";
const WRITE: &str = "INSERT INTO rows (n, token) VALUES ($1, $2)";

async fn settle_fenced(fence: &Postgres, client: &mut Client, permit: &Permit) -> Result<(), FenceError> {
    let tx = fence.begin(client, permit).await?;
    let failed = |error: tokio_postgres::Error| FenceError::Unavailable { cause: Box::new(error) };
    let last: i64 = tx.query_one(READ, &[]).await.map_err(failed)?.get(0);
    let token = permit.token().get() as i64;
    tx.execute(WRITE, &[&(last + 1), &token]).await.map_err(failed)?;
    tx.commit().await
}

async fn settle(client: &mut Client, number: u64) {
    // Without a fence: the same work, in two steps that somebody may come between.
    let last: i64 = client.query_one(READ, &[]).await.expect("read").get(0);
    client.execute(WRITE, &[&(last + 1), &(number as i64)]).await.expect("write");
}

/// One writer process and what it says.
struct Writer {
    child: Child,
    orders: ChildStdin,
    says: Receiver<String>,
}

impl Writer {
    fn start(port: u16, fenced: bool) -> Writer {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["writer", "--exact", "--nocapture", "--test-threads=1"]);
        command.env("TENURE_TEST_WRITER", port.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if !fenced {
            command.env("TENURE_TEST_UNFENCED", "1");
        }
        let mut child = command.spawn().expect("a writer");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (say, says) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = say.send(line);
            }
        });
        Writer { orders: child.stdin.take().expect("a pipe"), child, says }
    }

    fn grant(&mut self, token: u64) {
        writeln!(self.orders, "{token}").expect("the writer reads");
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(done.expect("kill").success());
    }

    /// Waits until it says so; other output is passed over. `false` if it did not within a long time.
    fn has_said(&self, what: &str) -> bool {
        let patience = Duration::from_secs(20);
        loop {
            match self.says.recv_timeout(patience) {
                Ok(line) if line.contains(what) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A small generator of our own: the points in time at which processes are stopped need only be spread out.
struct Dice(u64);

impl Dice {
    fn millis(&mut self, up_to: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Duration::from_millis((self.0 >> 33) % up_to)
    }
}

/// Rows that an older token added behind what a newer one found after its barrier.
const STALE: &str = "SELECT count(*) FROM rows WHERE EXISTS (SELECT 1 FROM cuts WHERE cuts.token > rows.token AND cuts.n < rows.n)";
const TWICE: &str = "SELECT count(*) FROM (SELECT n FROM rows GROUP BY n HAVING count(*) > 1) twice";

/// Runs the rounds and returns how many rows were written, how many of them by a stale token, how many
/// positions were settled twice, and how often a writer was told that it is stale.
async fn rounds(fenced: bool, rounds: u64, port: u16) -> (i64, i64, i64, u64) {
    let admin = connect(port).await;
    Postgres::new().install(&admin).await.expect("install");
    admin
        .batch_execute(
            "DROP TABLE IF EXISTS rows, cuts; CREATE TABLE rows (n bigint, token bigint);
             CREATE TABLE cuts (n bigint, token bigint)",
        )
        .await
        .expect("table");
    let mut dice = Dice(7400 + u64::from(fenced));
    let mut writers = [Writer::start(port, fenced), Writer::start(port, fenced)];
    let mut token = if fenced { 100 } else { 1_000_000 };
    let mut refusals = 0;
    writers[0].grant(token);
    assert!(writers[0].has_said(&format!("holding {token}")));
    for round in 0..rounds {
        let (old, new) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let old_token = token;
        tokio::time::sleep(dice.millis(30)).await; // a random point in the holder's work
        writers[old].signal("STOP");
        // Its lease ends while it stands still, perhaps inside a transaction; the other is granted.
        token += 1;
        writers[new].grant(token);
        // A holder frozen inside a transaction keeps the barrier waiting until it wakes or its lease ends, so
        // it wakes up either before or after the successor is at work, at random.
        tokio::time::sleep(dice.millis(40)).await;
        writers[old].signal("CONT");
        assert!(writers[new].has_said(&format!("holding {token}")), "round {round}: the successor got in");
        if fenced {
            assert!(
                writers[old].has_said(&format!("stale {old_token}")),
                "round {round}: the zombie was told"
            );
            refusals += 1;
        }
        tokio::time::sleep(dice.millis(20)).await;
    }
    drop(writers);
    let count = async |sql: &str| admin.query_one(sql, &[]).await.expect("count").get::<_, i64>(0);
    (count("SELECT count(*) FROM rows").await, count(STALE).await, count(TWICE).await, refusals)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stale_row_after_a_newer_barrier_and_corruption_without_a_fence() {
    let Some(server) = support::postgres() else { return };
    let number = if std::env::var_os("TENURE_TEST_FULL").is_some() { 200 } else { 15 };
    let (rows, stale, twice, refusals) = rounds(true, number, server.port).await;
    eprintln!(
        "with the fence: {rows} rows, {stale} stale, {twice} settled twice, {refusals} stale writers refused"
    );
    assert!(rows > number as i64, "they did work");
    assert_eq!((stale, refusals), (0, number));
    let (rows, stale, twice, _) = rounds(false, number, server.port).await;
    eprintln!("without a fence: {rows} rows, {stale} stale, {twice} settled twice");
    assert!(stale > 0, "the same rounds corrupt without a fence, or they prove nothing");
}
