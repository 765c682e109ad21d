//! The command that runs under `tenure run`, and a child process that it leaves behind. It has a token and no
//! lease: it writes and reports that it is alive as long as it lives. `run` promises that none of it is alive
//! when another holder can be granted the lease; that is judged like a permit.

use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_core::{Scope, Token};
use tenure_e2e::Dice;

use crate::emit::{end, number, tell, wrote};
use crate::holder::runtime;
use crate::ledger::{Ledger, bare};
use crate::time::now;

/// The operation that stands for the acquire of `tenure run`: it was begun by whoever started that.
pub const ACQUIRED: u64 = 0;

/// The command itself: takes over, starts a descendant, works for a while and ends in its own time.
pub fn command(process: u32, ledger: &str, program: &str) -> Result<(), String> {
    let (scope, token) = given()?;
    end(ACQUIRED, &format!("granted {token}"));
    // It lives on when this process ends, in a session of its own, as a daemon would.
    let descendant = Command::new("setsid")
        .args([program, "descendant", &process.to_string(), ledger])
        .stdin(Stdio::null())
        .spawn();
    descendant.map_err(|error| format!("no descendant: {error}"))?;
    let mut dice = Dice::seeded(token.get());
    let until = now() + dice.between(500_000, 4_000_000);
    runtime()?.block_on(async {
        let mut ledger = Ledger::open(ledger).await?;
        if ledger.take_over(&scope, token).await.is_ok() {
            // A failure leaves the descendant's rows without a cut of their own; those of others judge them
            // all the same.
            let _ = ledger.cut(&bare(&scope, token)).await;
        }
        let mut writer = Writer { process, half: 0, scope, token, ledger };
        while now() < until && writer.step().await {
            tokio::time::sleep(Duration::from_millis(dice.between(10, 80))).await;
        }
        Ok(())
    })
}

/// What the command started: works until it is killed.
pub fn descendant(process: u32, ledger: &str) -> Result<(), String> {
    let (scope, token) = given()?;
    runtime()?.block_on(async {
        let mut writer = Writer { process, half: 1 << 31, scope, token, ledger: Ledger::open(ledger).await? };
        loop {
            writer.step().await;
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    })
}

fn given() -> Result<(Scope, Token), String> {
    let word = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let scope = word("TENURE_RESOURCE")?.parse::<Scope>().map_err(|error| format!("{error}"))?;
    let token = word("TENURE_TOKEN")?.parse::<u64>().map_err(|error| error.to_string())?;
    Ok((scope, Token::try_from(token).map_err(|error| error.to_string())?))
}

struct Writer {
    process: u32,
    /// Keeps the numbers of the two processes apart.
    half: u64,
    scope: Scope,
    token: Token,
    ledger: Ledger,
}

impl Writer {
    /// Writes once, and tells that it was alive all the while; whether to go on.
    async fn step(&mut self) -> bool {
        let from = now();
        let id = (u64::from(self.process) << 32) | self.half | number();
        let came = self.ledger.write(&bare(&self.scope, self.token), id).await;
        let (scope, token) = (self.scope.resource.as_str(), self.token.get());
        let go_on = wrote(scope, token, id, &came);
        tell(&format!("alive {from} {} {scope} {token}", now()));
        go_on
    }
}
