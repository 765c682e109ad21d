//! A leader with registers: candidates wait in the queue, the leader counts on from where the last one
//! stopped.
//!
//! The count lives in the store itself, in a register that only the token of the leader's lease can write:
//! the store is its own fence, and the grant its barrier. Start it several times against one store and stop
//! the leader with Ctrl-C or with `kill -STOP`: another one goes on, and the old one's late write is refused.
//!
//! `tenure serve` in one terminal, then `TENURE_ENDPOINTS=127.0.0.1:7400 cargo run -p tenure-examples
//! --example leader`

use std::error::Error;
use std::time::Duration;

use tenure_client::{Candidate, Leadership};

const ELECTION: &str = "counter/leader";
const COUNT: &str = "counter/value";

struct Counter {
    /// How far to count before resigning; for ever if not said.
    steps: u64,
}

impl Candidate for Counter {
    async fn lead(&self, leadership: &Leadership) {
        if let Err(error) = self.count(leadership).await {
            eprintln!("no longer leading: {error}");
        }
    }
}

impl Counter {
    async fn count(&self, leadership: &Leadership) -> Result<(), Box<dyn Error>> {
        let registers = leadership.session().registers();
        let last = registers.get(COUNT).await?.value;
        let last: u64 =
            last.as_deref().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0);
        println!("leading; the count stands at {last}");
        for next in last + 1..=last.saturating_add(self.steps) {
            let permit = leadership.permit()?;
            registers.guarded(&permit).put(COUNT, next.to_string()).await?;
            println!("{next}, under token {}", permit.token());
            drop(permit);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let steps = std::env::args().nth(1).map(|steps| steps.parse()).transpose()?;
    let client = tenure_examples::client()?;
    let election = client.election(ELECTION);
    match steps {
        // A few steps and out, for a look.
        Some(steps) => {
            let leadership = election.campaign().await?;
            Counter { steps }.lead(&leadership).await;
            leadership.resign().await?;
        }
        None => {
            let interrupted = async {
                let _ = tokio::signal::ctrl_c().await;
            };
            election.run(&Counter { steps: u64::MAX }, interrupted).await;
        }
    }
    Ok(())
}
