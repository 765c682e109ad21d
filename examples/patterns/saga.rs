//! A saga under a lease: the lease selects the driver, the journal records the progress, and every step is
//! idempotent. If a step is refused for good, the steps before it are undone in reverse order.
//!
//! The journal is a register that only the driver's token can write, so a paused driver cannot set it back.
//! The steps are other systems that check no token: each call carries a key that names the saga and the step,
//! and is done once for that key.

use tenure_client::{Client, Lease};

use super::BoxError;

/// What other systems do. Asked twice under one key, they do it once.
pub trait World {
    /// Does a step; false if it is refused for good.
    fn step(&mut self, key: &str, step: &str) -> bool;
    /// Undoes it.
    fn undo(&mut self, key: &str, step: &str);
}

/// The steps of an order.
pub const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// How a saga ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every step is done.
    Done,
    /// A step was refused, and those before it are undone.
    Undone,
    /// This driver stopped half-way; another will go on.
    LeftTo(usize),
}

/// Waits in the queue for the saga, and drives it from where the last driver left it. `stops_before` is where
/// this driver dies.
pub async fn drive(
    client: &Client,
    driver: &str,
    saga: &str,
    world: &mut impl World,
    stops_before: Option<usize>,
) -> Result<Ended, BoxError> {
    let session = client.session().holder(driver).open().await?;
    let lease = session.acquire(format!("saga/{saga}")).wait().await?;
    // The grant is the barrier of the registers: nothing that an earlier driver sent can change the journal
    // any more.
    let mut done = journal(client, saga).await?;
    while done < STEPS.len() {
        if stops_before == Some(done) {
            session.died().await;
            return Ok(Ended::LeftTo(done));
        }
        let key = format!("{saga}:{}", STEPS[done]);
        // Done first and written down second: a driver that dies in between leaves a step that is asked for
        // again.
        if !world.step(&key, STEPS[done]) {
            for step in STEPS[..done].iter().rev() {
                world.undo(&format!("{saga}:{step}"), step);
            }
            lease.release().await?;
            return Ok(Ended::Undone);
        }
        done += 1;
        write_down(client, &lease, saga, done).await?;
    }
    lease.release().await?;
    Ok(Ended::Done)
}

async fn journal(client: &Client, saga: &str) -> Result<usize, BoxError> {
    let value = client.registers().get(format!("saga/{saga}/done")).await?.value;
    Ok(match value {
        None => 0,
        Some(value) => std::str::from_utf8(&value)?.parse()?,
    })
}

async fn write_down(client: &Client, lease: &Lease, saga: &str, done: usize) -> Result<(), BoxError> {
    let permit = lease.permit()?;
    client.registers().guarded(&permit).put(format!("saga/{saga}/done"), done.to_string()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tenure_client::testing::Bench;

    #[derive(Default)]
    struct Shop {
        refuses: Option<&'static str>,
        asked: BTreeMap<String, u32>,
        done: Vec<String>,
        undone: Vec<String>,
    }

    impl World for Shop {
        fn step(&mut self, key: &str, step: &str) -> bool {
            if self.refuses == Some(step) {
                return false;
            }
            let asked = self.asked.entry(key.to_owned()).or_default();
            *asked += 1;
            if *asked == 1 {
                self.done.push(step.to_owned());
            }
            true
        }

        fn undo(&mut self, _key: &str, step: &str) {
            self.undone.push(step.to_owned());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_driver_goes_on_where_the_last_one_died() {
        let bench = Bench::new();
        let (one, other) = (bench.process(), bench.process());
        let mut shop = Shop::default();
        let left = drive(one.client(), "driver-1", "order-42", &mut shop, Some(2)).await.expect("it drives");
        assert_eq!(left, Ended::LeftTo(2));
        let ended = drive(other.client(), "driver-2", "order-42", &mut shop, None).await.expect("it drives");
        assert_eq!(ended, Ended::Done);
        assert_eq!(shop.done, STEPS);
        assert!(shop.asked.values().all(|asked| *asked == 1), "nothing was done again: {:?}", shop.asked);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_is_refused_undoes_those_before_it() {
        let bench = Bench::new();
        let mut shop = Shop { refuses: Some("ship"), ..Shop::default() };
        let ended = drive(bench.process().client(), "driver-1", "order-43", &mut shop, None).await;
        assert_eq!(ended.expect("it drives"), Ended::Undone);
        assert_eq!(shop.undone, ["charge", "reserve"]);
    }
}
