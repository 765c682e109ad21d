//! Two clients, one winner: an acquire is a compare-and-set in one step of the log, so there cannot be two.

use tenure_client::{Client, Session};

use super::BoxError;

const RESOURCE: &str = "race/prize";

/// What came of a race.
#[derive(Debug, PartialEq, Eq)]
pub struct Race {
    /// Which of the two was granted it.
    pub winner: usize,
    /// Under which token.
    pub token: u64,
}

/// Both send their request at the same moment; the loser learns who holds it.
pub async fn race(racers: &[Session; 2]) -> Result<Race, BoxError> {
    let (first, second) = tokio::join!(racers[0].acquire(RESOURCE), racers[1].acquire(RESOURCE));
    let (winner, lease) = match (first, second) {
        (Ok(lease), Err(lost)) if lost.is_held() => (0, lease),
        (Err(lost), Ok(lease)) if lost.is_held() => (1, lease),
        (Ok(_), Ok(_)) => return Err("two winners".into()),
        (Err(error), _) => return Err(error.into()),
        (_, Err(error)) => return Err(error.into()),
    };
    let token = lease.permit()?.token().get();
    lease.release().await?;
    Ok(Race { winner, token })
}

/// The same with nothing but a register: written only if it does not exist yet. Exclusive, too, but it has
/// neither an end nor a token: whoever wins and dies has won for ever.
pub async fn race_by_hand(client: &Client, key: &str) -> Result<[bool; 2], BoxError> {
    let (one, other) = (client.registers(), client.registers());
    let absent = Default::default();
    let (first, second) = tokio::join!(one.put_if(key, "first", absent), other.put_if(key, "second", absent));
    Ok([first?, second?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::testing::Bench;

    #[tokio::test(start_paused = true)]
    async fn of_two_racers_exactly_one_wins_and_tokens_rise() {
        let bench = Bench::new();
        let processes = [bench.process(), bench.process()];
        let open = |at: usize| processes[at].client().session().holder(format!("racer-{at}")).open();
        let racers = [open(0).await.expect("a session"), open(1).await.expect("a session")];
        let mut last = 0;
        for _ in 0..100 {
            let race = race(&racers).await.expect("one wins, the other learns that it is held");
            assert!(race.token > last, "{race:?} after {last}");
            last = race.token;
        }
        let won = race_by_hand(processes[0].client(), "race/by-hand").await.expect("both are answered");
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
    }
}
