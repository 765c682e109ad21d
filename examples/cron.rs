//! A cron singleton: started on every host at the same minute, it runs on one.
//!
//! Whoever does not get the lease goes home with success. The report is published under the token, so that a
//! run that was paused over its own end cannot replace the report of the run after it.
//!
//! `cargo run -p tenure-examples --example cron -- /tmp/reports`

use std::error::Error;
use std::time::Duration;

use tenure_fence::files::Files;

const RESOURCE: &str = "cron/nightly-report";
const FENCE: &str = "files:reports";
/// How long the job keeps the resource at the most, whatever happens to it.
const MAX_OP: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name the folder that reports go to")?;
    let files = Files::open(folder)?;
    let client = tenure_examples::client()?;
    let session = client.session().open().await?;
    let lease = match session.acquire(RESOURCE).fences([FENCE]).await {
        Ok(lease) => lease,
        Err(held) if held.is_held() => {
            println!("another host runs it");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    lease.take_over(&[(FENCE, &files)]).await?;

    let report = format!("report number {}\n", lease.generation().get());
    let permit = lease.permit_for(MAX_OP)?;
    files.publish(&*permit, |_previous, next| std::fs::write(next.join("report.txt"), &report))?;
    let published = files.current(lease.scope())?.ok_or("nothing was published")?;
    println!("published {}", published.join("report.txt").display());
    drop(permit);
    lease.release().await?;
    Ok(())
}
