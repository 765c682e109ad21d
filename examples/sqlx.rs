//! A fenced transaction with `sqlx`: a driver that this project has no adapter for, and needs none. The rule
//! is plain SQL.
//!
//! `DATABASE_URL=postgres://postgres@localhost/ledger cargo run -p tenure-examples --features sqlx --example
//! sqlx`

use std::error::Error;
use std::time::Duration;

use sqlx::postgres::PgPool;
use tenure_fence::postgres::{SCHEMA_SQL, STALE};

const RESOURCE: &str = "accounts/writer";
const FENCE: &str = "postgres:accounts";
const MAX_OP: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@localhost/ledger")?;
    let pool = PgPool::connect(&url).await?;
    // Once per database, with a migration rather than at every start.
    sqlx::raw_sql(SCHEMA_SQL).execute(&pool).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance bigint NOT NULL)")
        .execute(&pool)
        .await?;
    sqlx::raw_sql("INSERT INTO accounts VALUES (7, 100) ON CONFLICT DO NOTHING").execute(&pool).await?;

    let client = tenure_examples::client()?;
    let session = client.session().open().await?;
    let lease = session.acquire(RESOURCE).fences([FENCE]).wait().await?;
    let (scope, token) = (lease.scope().to_string(), lease.takeover()?.token().get() as i64);

    // Barrier first: when it returns, nothing that the predecessor has sent can land any more.
    let barrier = "SELECT tenure_fence.barrier($1, $2, $3, $4)";
    let left_ms = lease.remaining().as_millis() as i64;
    let barrier = sqlx::query(barrier).bind(&scope).bind(token).bind(lease.holder().as_str()).bind(left_ms);
    barrier.execute(&pool).await?;
    lease.armed(&FENCE.parse()?);

    let permit = lease.permit_for(MAX_OP)?;
    let left_ms = permit.time_left().as_millis() as i64;
    let step = async {
        let mut transaction = pool.begin().await?;
        let enter =
            sqlx::query("SELECT tenure_fence.enter($1, $2, $3)").bind(&scope).bind(token).bind(left_ms);
        enter.execute(&mut *transaction).await?;
        let update = "UPDATE accounts SET balance = balance - 10 WHERE id = 7 RETURNING balance";
        let balance: i64 = sqlx::query_scalar(update).fetch_one(&mut *transaction).await?;
        // What is committed after the lease has ended is what a fence is for; what need not be is not even
        // tried.
        if permit.time_left().is_zero() {
            return Ok(None);
        }
        transaction.commit().await?;
        Ok::<_, sqlx::Error>(Some(balance))
    };
    match step.await {
        Ok(Some(balance)) => println!("the balance is {balance}, under token {token}"),
        Ok(None) => println!("the lease ran out before the commit: nothing was written"),
        Err(error) => {
            let code = error.as_database_error().and_then(|database| database.code());
            if code.as_deref() == Some(STALE) {
                println!("a newer holder is at work: nothing was written");
            }
            return Err(error.into());
        }
    }
    drop(permit);
    lease.release().await?;
    Ok(())
}
