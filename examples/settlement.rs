//! A settlement batch on PostgreSQL: one of many hosts settles payments, in order, each exactly once.
//!
//! The lease decides who works; the fence in the database makes sure that nobody else's work lands, not even
//! what a paused host sends when it wakes; the cursor, moved in the same transaction as the work, tells the
//! successor where to go on.
//!
//! `DATABASE_URL=postgres://postgres@localhost/ledger cargo run -p tenure-examples --example settlement`

use std::error::Error;
use std::time::Duration;

use tenure_client::Client;
use tenure_fence::FenceError;
use tenure_fence::postgres::Postgres;
use tokio_postgres::NoTls;

const RESOURCE: &str = "settlement/batch";
/// By this name the store shows the fence: `tenure get settlement/batch`.
const FENCE: &str = "postgres:ledger";
/// Payments settled in one transaction, and how long one may take.
const CHUNK: i64 = 100;
const MAX_OP: Duration = Duration::from_secs(2);

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS payments (id bigint PRIMARY KEY, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS settled (payment bigint PRIMARY KEY, token bigint NOT NULL);
INSERT INTO payments SELECT n, n % 97 FROM generate_series(1, 1000) n ON CONFLICT DO NOTHING";
const SETTLE: &str = "
INSERT INTO settled SELECT id, $3 FROM payments WHERE id > $1 ORDER BY id LIMIT $2 RETURNING payment";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@localhost/ledger")?;
    let (mut database, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let (barriers, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let fence = Postgres::new();
    fence.install(&database).await?;
    database.batch_execute(TABLES).await?;

    let client: Client = tenure_examples::client()?;
    let session = client.session().open().await?;
    let lease = session.acquire(RESOURCE).fences([FENCE]).wait().await?;

    // Barrier first: when it returns, nothing that the predecessor has sent can land any more. Only now is it
    // time to read.
    let found = lease.take_over(&[(FENCE, &fence.clone().over(barriers))]).await?;
    let cursor = found[0].cursor.as_ref().and_then(|cursor| cursor.as_text()?.parse().ok());
    let mut last: i64 = cursor.unwrap_or(0);
    println!("settling from payment {} on", last + 1);

    loop {
        // Asked anew for every transaction: an hour-long batch must not rest on a check made at its start.
        let permit = lease.permit_for(MAX_OP)?;
        let token = permit.token().get() as i64;
        let step = async {
            let mut transaction = fence.begin_serial(&mut database, &*permit).await?;
            let rows = transaction.query(SETTLE, &[&last, &CHUNK, &token]).await.map_err(refused)?;
            let Some(newest) = rows.iter().map(|row| row.get::<_, i64>(0)).max() else { return Ok(None) };
            transaction.advance(newest.to_string().into_bytes().into()).await?;
            transaction.commit().await?;
            Ok::<_, FenceError>(Some(newest))
        };
        match step.await {
            Ok(Some(newest)) => last = newest,
            Ok(None) => break,
            Err(stale @ FenceError::Stale(_)) => {
                // Another host is at work. This is what the fence is for: count it, and stop.
                lease.report_refused(&FENCE.parse()?, &stale);
                return Err(stale.into());
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!("settled up to payment {last}");
    lease.release().await?;
    Ok(())
}

fn refused(error: tokio_postgres::Error) -> FenceError {
    FenceError::Refused { cause: Box::new(error) }
}
