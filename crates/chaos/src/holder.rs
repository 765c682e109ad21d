//! A holder: a separate process that takes leases with the client library, takes over its fence, and writes
//! under permits into the ledger and into a guarded register. Sometimes it deliberately writes with the token
//! of a lease that it has released or lost: the ledger must refuse that once a successor's barrier is
//! installed.

use std::time::Duration;

use tenure_client::{AcquireError, CallError, Client, Code, Effect, Endpoints, Lease, Session};
use tenure_core::{Scope, Token};
use tenure_e2e::Dice;

use crate::emit::{begin, end, number, tell, wrote};
use crate::ledger::{FENCE, Ledger, bare};
use crate::time::now;

/// The command line of a holder.
pub struct Holder {
    /// Its number, which no other process of the run has.
    pub process: u32,
    /// Where the nodes are, or the agent and then the nodes.
    pub endpoints: Endpoints,
    /// Where the ledger is.
    pub ledger: String,
    /// Its chance.
    pub dice: Dice,
}

/// The resources that everybody wants, and the guarded register of each.
pub const RESOURCES: [&str; 2] = ["settlement/cron", "shard/7"];
const REGISTERS: [&str; 2] = ["settlement/cursor", "shard/7/owner"];
/// What the prober writes and reads.
const PROBED: &str = "probe/register";
/// How long a lease lives without a renewal. Short, so that a fault of seconds outlives it.
pub const TTL: Duration = Duration::from_secs(3);
/// How long a holder waits for any answer before it counts the outcome as unknown.
const PATIENCE: Duration = Duration::from_secs(5);

impl Holder {
    /// Works until it is killed.
    pub fn run(self) -> Result<(), String> {
        runtime()?.block_on(self.work())
    }

    async fn work(mut self) -> Result<(), String> {
        let client = Client::connect(&self.endpoints);
        let mut ledger = Ledger::open(&self.ledger).await?;
        loop {
            let holder = format!("holder-{}", self.process);
            let from = now();
            match client.session().holder(holder).ttl(TTL).open().await {
                Ok(session) => {
                    let lost = self.live(&session, &mut ledger).await?;
                    tell(&format!("session {from} {} {lost}", now()));
                    if !lost {
                        session.close().await;
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// One session's life; whether the store ended it.
    async fn live(&mut self, session: &Session, ledger: &mut Ledger) -> Result<bool, String> {
        for _ in 0..self.dice.between(5, 20) {
            let which = self.dice.between(0, 2) as usize;
            read(session, REGISTERS[which]).await;
            let asked = begin(&format!("acquire {}", RESOURCES[which]));
            let acquiring = session.acquire(RESOURCES[which]).fences([FENCE]).wait_for(PATIENCE);
            match acquiring.await {
                Ok(lease) => {
                    if let Ok((scope, token)) = lease.barrier() {
                        end(asked, &format!("granted {token}"));
                        self.hold(session, which, lease, ledger).await;
                        if is_over(session) || self.dice.once_in(3) {
                            zombie(self.id(), ledger, &scope, token).await;
                        }
                    }
                }
                Err(AcquireError::Held(_)) => end(asked, "held"),
                Err(error) if error.effect() == Effect::NotApplied => end(asked, "failed"),
                Err(_) => {}
            }
            if is_over(session) {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(self.dice.between(0, 60))).await;
        }
        Ok(false)
    }

    /// Takes over, works, gives back.
    async fn hold(&mut self, session: &Session, which: usize, lease: Lease, ledger: &mut Ledger) {
        let Ok((_, token)) = lease.barrier() else { return };
        if lease.take_over(&[(FENCE, ledger.fence())]).await.is_ok() {
            let mut cut = false;
            for _ in 0..self.dice.between(1, 12) {
                let from = now();
                let Ok(permit) = lease.permit_for(Duration::from_millis(50)) else { break };
                let until = now() + permit.time_left().as_micros() as u64;
                let numbered = number();
                tell(&format!("permit {numbered} {from} {until} {} {token}", RESOURCES[which]));
                if !cut {
                    cut = ledger.cut(&*permit).await.is_ok();
                }
                let id = self.id();
                let came = ledger.write(&*permit, id).await;
                let go_on = wrote(RESOURCES[which], token.get(), id, &came);
                if let Err(error) = &came
                    && let Ok(fence) = FENCE.parse()
                {
                    lease.report_refused(&fence, error);
                }
                let value = self.id();
                let put = begin(&format!("put {} {value} {token}", REGISTERS[which]));
                let writing = session.registers().guarded(&permit).put(REGISTERS[which], value.to_string());
                match tokio::time::timeout(permit.time_left(), writing).await {
                    Ok(Ok(revision)) => end(put, &format!("written {}", revision.get())),
                    Ok(Err(CallError::Refused(no)))
                        if matches!(no.code, Code::StaleToken | Code::LeaseEnded) =>
                    {
                        end(put, "fenced");
                    }
                    Ok(Err(error)) if error.effect() == Effect::NotApplied => end(put, "failed"),
                    _ => {}
                }
                drop(permit);
                tell(&format!("permitend {numbered} {}", now()));
                if !go_on {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(self.dice.between(0, 60))).await;
            }
        }
        let released = begin(&format!("release {} {token}", RESOURCES[which]));
        if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, lease.release()).await {
            end(released, "over");
        }
    }

    /// A number for a row or a value that nobody else in the run uses.
    fn id(&self) -> u64 {
        (u64::from(self.process) << 32) | number()
    }
}

/// Writes with a token whose lease is over, past all permits.
async fn zombie(id: u64, ledger: &mut Ledger, scope: &Scope, token: Token) {
    let came = ledger.write(&bare(scope, token), id).await;
    wrote(scope.resource.as_str(), token.get(), id, &came);
}

/// A linearizable read of a register.
async fn read(session: &Session, key: &str) {
    let asked = begin(&format!("get {key}"));
    match tokio::time::timeout(PATIENCE, session.registers().get(key)).await {
        Ok(Ok(found)) => end(asked, &value_of(&found)),
        Ok(Err(error)) if error.effect() == Effect::NotApplied => end(asked, "failed"),
        _ => {}
    }
}

fn value_of(found: &tenure_core::Register) -> String {
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse::<u64>().ok();
    match found.value.as_deref().and_then(number) {
        Some(value) => format!("value {value} {}", found.mod_revision.get()),
        None => "none".to_owned(),
    }
}

/// Writes and reads one register without pause, and holds nothing: how long it goes unanswered is how long
/// the store is away.
pub fn probe(process: u32, endpoints: &Endpoints) -> Result<(), String> {
    runtime()?.block_on(async {
        let registers = Client::connect(endpoints).registers();
        loop {
            let value = (u64::from(process) << 32) | number();
            let put = begin(&format!("put {PROBED} {value}"));
            match tokio::time::timeout(PATIENCE, registers.put(PROBED, value.to_string())).await {
                Ok(Ok(revision)) => end(put, &format!("written {}", revision.get())),
                Ok(Err(error)) if error.effect() == Effect::NotApplied => end(put, "failed"),
                _ => {}
            }
            let get = begin(&format!("get {PROBED}"));
            match tokio::time::timeout(PATIENCE, registers.get(PROBED)).await {
                Ok(Ok(found)) => end(get, &value_of(&found)),
                Ok(Err(error)) if error.effect() == Effect::NotApplied => end(get, "failed"),
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

/// The runtime of a process's own work.
pub fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("no runtime: {error}"))
}

/// Whether the session has ended by now.
fn is_over(session: &Session) -> bool {
    let mut ended = std::pin::pin!(session.ended());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    ended.as_mut().poll(&mut context).is_ready()
}
