//! A holder: a process of its own that takes leases with the client library, writes under permits into a fenced storage and
//! into a guarded register, and tells everything on its standard output, one line each, as it happens. Whoever stops or
//! kills it reads what it had begun and never ended.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_client::{AcquireError, CallError, Client, Code, Effect, Endpoints, Lease, Session};

use crate::time::now;

/// What a holder is told on its command line.
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// Where the nodes are.
    pub endpoints: Endpoints,
    /// Where the storage listens.
    pub storage: String,
    /// Its chance.
    pub seed: u64,
}

/// The resources that everybody wants, and the guarded register of each.
pub const RESOURCES: [&str; 2] = ["settlement/cron", "shard/7"];
const REGISTERS: [&str; 2] = ["settlement/cursor", "shard/7/owner"];
const TTL: Duration = Duration::from_secs(3);

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Tells one line. A reader that has gone ends the run anyway.
fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Tells that an operation begins; its number.
fn begin(what: &str) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    tell(&format!("begin {number} {} {what}", now()));
    number
}

fn end(number: u64, outcome: &str) {
    tell(&format!("end {number} {} {outcome}", now()));
}

impl Holder {
    /// Works until it is killed.
    pub fn run(mut self) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| format!("no runtime: {error}"))?;
        runtime.block_on(self.work())
    }

    async fn work(&mut self) -> Result<(), String> {
        let client = Client::connect(&self.endpoints);
        loop {
            let holder = format!("holder-{}", self.process);
            match client.session().holder(holder).ttl(TTL).open().await {
                Ok(session) => {
                    let from = now();
                    let lost = self.live(&session).await?;
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
    async fn live(&mut self, session: &Session) -> Result<bool, String> {
        for _ in 0..50 {
            let which = (self.draw() % 2) as usize;
            let number = begin(&format!("acquire {}", RESOURCES[which]));
            match session.acquire(RESOURCES[which]).wait_for(Duration::from_secs(5)).await {
                Ok(lease) => {
                    if let Ok((_, token)) = lease.barrier() {
                        end(number, &format!("granted {token}"));
                        self.hold(session, which, lease, token.get()).await?;
                    }
                }
                Err(AcquireError::Held(_)) => end(number, "held"),
                Err(error) if error.effect() == Effect::NotApplied => end(number, "failed"),
                Err(_) => {}
            }
            if is_over(session) {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(self.draw() % 40)).await;
        }
        Ok(false)
    }

    async fn hold(
        &mut self,
        session: &Session,
        which: usize,
        lease: Lease,
        token: u64,
    ) -> Result<(), String> {
        if self.storage("barrier", which, token)? {
            for _ in 0..self.draw() % 12 + 1 {
                let from = now();
                let Ok(permit) = lease.permit_for(Duration::from_millis(50)) else { break };
                let until = now() + permit.time_left().as_micros() as u64;
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                tell(&format!("permit {number} {from} {until} {} {token}", RESOURCES[which]));
                let accepted = self.storage("write", which, token)?;
                let value = (u64::from(self.process) << 40) | NEXT.fetch_add(1, Ordering::Relaxed);
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
                tell(&format!("permitend {number} {}", now()));
                if !accepted {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(self.draw() % 60)).await;
            }
        }
        let number = begin(&format!("release {} {token}", RESOURCES[which]));
        if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(5), lease.release()).await {
            end(number, "over");
        }
        Ok(())
    }

    /// Asks the storage to accept something under a token.
    fn storage(&self, what: &str, which: usize, token: u64) -> Result<bool, String> {
        let failed = |error: std::io::Error| format!("the storage is gone: {error}");
        let mut stream = UnixStream::connect(&self.storage).map_err(failed)?;
        writeln!(stream, "{what} {} {token}", RESOURCES[which]).map_err(failed)?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).map_err(failed)?;
        Ok(answer.trim() == "accepted")
    }

    fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed >> 33
    }
}

/// Whether the session has ended by now.
fn is_over(session: &Session) -> bool {
    let mut ended = std::pin::pin!(session.ended());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    ended.as_mut().poll(&mut context).is_ready()
}
