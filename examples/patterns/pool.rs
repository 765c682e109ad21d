//! A semaphore: a limited number of slots for many clients (licences, GPUs, connections to an old machine). A
//! grant names its slot, and each slot is its own fencing scope, so live holders never shut each other out.

use std::time::Duration;

use tenure_client::Session;

use super::BoxError;

/// Uses one slot of the pool for so long, in turn. Says which one it was.
pub async fn job(session: &Session, pool: &str, slots: u32, length: Duration) -> Result<u32, BoxError> {
    let lease = session.semaphore(pool, slots).acquire().wait().await?;
    let slot = lease.scope().slot.ok_or("a semaphore grants slots")?;
    let permit = lease.permit()?;
    tokio::time::sleep(length).await;
    drop(permit);
    lease.release().await?;
    Ok(slot.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::testing::Bench;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn no_more_than_two_work_at_once() {
        const LENGTH: Duration = Duration::from_secs(5);
        let bench = Bench::new();
        let began = Instant::now();
        let mut jobs = Vec::new();
        for _ in 0..4 {
            let session = bench.process().client().session().open().await.expect("a session");
            jobs.push(tokio::spawn(async move { job(&session, "licences", 2, LENGTH).await }));
        }
        let mut slots = Vec::new();
        for job in jobs {
            slots.push(job.await.expect("no panic").expect("it has its turn"));
        }
        slots.sort_unstable();
        assert_eq!(slots, [0, 0, 1, 1]);
        assert!(began.elapsed() >= LENGTH * 2, "four worked in the time of two: {:?}", began.elapsed());
    }
}
