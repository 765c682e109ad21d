//! The clients of a simulated cluster: the shipped client library, in its own processes.
//!
//! Workers hold leases, write under permits into a fenced storage and into guarded registers, and release or
//! are killed. Some are paused between their check and their write for longer than their lease lasts: then
//! only the fence and the guard protect. Onlookers read, and write registers that nothing guards. The auditor
//! starts when all faults are over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_checker::{Call, Outcome, PermitSpan, Response, SessionSpan, Wait};
use tenure_client::{
    AcquireError, Call as Calling, CallError, Client, Code, Effect, Endpoints, Execution, Lease, LeaseEnd,
    Registers, Repeat, Session, Tasks, Transport,
};
use tenure_core::{Register, Revision, Token};
use tenure_wire::proto;
use tokio::time::{sleep, timeout};

use crate::dice::Dice;
use crate::host::ProcessClock;
use crate::net::Port;
use crate::record::Record;
use crate::storage::Storage;

/// The resources that everybody wants, and the guarded register of each.
pub const RESOURCES: [&str; 2] = ["settlement/cron", "shard/7"];
const GUARDED: [&str; 2] = ["settlement/cursor", "shard/7/owner"];
/// Registers that nothing guards.
const PLAIN: [&str; 2] = ["plain/a", "plain/b"];
/// All registers.
pub const REGISTERS: [&str; 4] = [GUARDED[0], GUARDED[1], PLAIN[0], PLAIN[1]];

/// What a process holds at the moment: the resource and the token.
pub type Holds = Arc<Mutex<Option<(Arc<str>, u64)>>>;

/// A process asks to stand still at once, for so many milliseconds.
pub type PauseRequest = Arc<Mutex<Option<u64>>>;

/// How long a holder waits for the storage's word before it goes on with other things.
const WRITE_PATIENCE: Duration = Duration::from_secs(1);

/// The configuration of a client process.
pub struct ClientTask {
    /// Its number.
    pub process: u32,
    /// Its clock, and the truth for the record.
    pub clock: ProcessClock,
    /// Its network.
    pub port: Port,
    /// Where the nodes are, in the order in which it tries them.
    pub endpoints: Endpoints,
    /// Its chance.
    pub dice: Dice,
    /// Where everything is written down.
    pub record: Record,
    /// The storage that it writes to.
    pub storage: Storage,
    /// Its sessions' TTL.
    pub ttl: Duration,
    /// Its clock is wrong beyond what any rule allows for.
    pub clock_is_wrong: bool,
    /// No fault ever touches it.
    pub healthy: bool,
    /// All faults are over: finish.
    pub calm: Arc<AtomicBool>,
    /// Leases have been revoked in this run.
    pub revoked: Arc<AtomicBool>,
    /// What it says may be said again by others: so every write has a number.
    pub repeats: bool,
    /// What it holds, for whoever kills it.
    pub holds: Holds,
    /// How it is made to stand still.
    pub pause_request: PauseRequest,
    /// Set when it has done what it came for.
    pub done: Arc<AtomicBool>,
}

impl ClientTask {
    fn client(&self) -> Client {
        let execution = Execution::Tasks(Tasks::current());
        Client::over(&self.endpoints, Arc::new(self.port.clone()), Arc::new(self.clock.clone()), execution)
    }

    fn calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    fn set_holds(&self, holds: Option<(Arc<str>, u64)>) {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = holds;
    }

    /// Stands still, with everything that this process does.
    async fn stand_still(&mut self, length: u64) {
        *self.pause_request.lock().unwrap_or_else(PoisonError::into_inner) = Some(length);
        self.record.count(|coverage| coverage.late_writers += 1);
        // Longer than a step, at whose end it is stopped.
        sleep(Duration::from_millis(5)).await;
    }

    async fn rest(&mut self, low: u64, high: u64) {
        let length = self.dice.millis(low, high);
        sleep(length).await;
    }

    /// Takes leases and works under them until all is calm.
    pub async fn work(mut self) {
        let client = self.client();
        while !self.calm() {
            let ttl = self.ttl;
            let holder = format!("worker-{}", self.process);
            let within = self.dice.millis(1_000, 6_000);
            let Ok(session) = client.session().holder(holder).ttl(ttl).open_within(within).open().await
            else {
                self.rest(50, 500).await;
                continue;
            };
            let from = self.clock.truth();
            let lost = self.live(&session, &client.registers()).await;
            let span = SessionSpan {
                process: self.process,
                from,
                until: self.clock.truth(),
                healthy: self.healthy,
                lost,
            };
            self.record.note(span.until, format_args!("p{} session over, lost={lost}", self.process));
            self.record.history(|history| history.sessions.push(span));
            if !lost && self.dice.chance(70) {
                let _ = timeout(Duration::from_secs(5), session.close()).await;
            }
        }
        self.done.store(true, Ordering::Relaxed);
    }

    /// One session's life; whether the store ended it.
    async fn live(&mut self, session: &Session, nobody: &Registers) -> bool {
        // A healthy one keeps its session for good: what takes it away is a bug.
        let rounds = if self.healthy { u64::MAX } else { self.dice.within(1, 6) };
        for _ in 0..rounds {
            if self.calm() {
                break;
            }
            let which = usize::from(self.dice.chance(50));
            if self.dice.chance(15) {
                self.read(&session.registers(), GUARDED[which]).await;
            }
            if let Some((lease, token)) = self.acquire(session, RESOURCES[which]).await {
                self.hold(session, nobody, which, lease, token).await;
            }
            if is_over(session) {
                return true;
            }
            self.rest(5, 300).await;
        }
        is_over(session)
    }

    async fn acquire(&mut self, session: &Session, resource: &str) -> Option<(Lease, Token)> {
        let invoked =
            self.record.invoke(self.process, &self.clock, Call::Acquire { resource: resource.into() });
        let request = session.acquire(resource).answer_within(Duration::from_secs(4));
        let request =
            if self.dice.chance(75) { request.wait_for(self.dice.millis(100, 4_000)) } else { request };
        match request.await {
            // A lease that has ended before it could be looked at: its token nobody knows.
            Ok(lease) => match lease.barrier() {
                Ok((_, token)) => {
                    invoked.answered(Response::Granted(token.get()));
                    Some((lease, token))
                }
                Err(_) => None,
            },
            Err(error) => {
                let outcome = match &error {
                    AcquireError::Held(_) => Outcome::Answered(Response::Held),
                    error if error.effect() == Effect::NotApplied => Outcome::Failed,
                    _ => Outcome::Unknown,
                };
                if outcome != Outcome::Unknown {
                    invoked.ended(outcome);
                }
                None
            }
        }
    }

    /// Works under a lease and gives it back.
    async fn hold(
        &mut self,
        session: &Session,
        nobody: &Registers,
        which: usize,
        lease: Lease,
        token: Token,
    ) {
        let resource: Arc<str> = RESOURCES[which].into();
        self.set_holds(Some((resource.clone(), token.get())));
        // Some stop before they have begun, and are overtaken.
        if !self.healthy && !self.calm() && self.dice.chance(4) {
            let length = self.ttl.as_millis() as u64 + self.dice.within(200, 3_500);
            self.stand_still(length).await;
        }
        // The barrier first, then work.
        let at = self.clock.truth() / 1_000 + self.dice.within(2, 20);
        let barrier = self.storage.send(at, resource.clone(), token, true);
        let installed = timeout(Duration::from_secs(1), barrier).await;
        if matches!(installed, Ok(Ok(true))) {
            for _ in 0..self.dice.within(1, 8) {
                if self.calm() || !self.step(session, nobody, which, &lease).await {
                    break;
                }
            }
        }
        self.set_holds(None);
        if self.dice.chance(80) {
            let invoked =
                self.record.invoke(self.process, &self.clock, Call::Release { resource, token: token.get() });
            if let Ok(Ok(end)) = timeout(Duration::from_secs(4), lease.release()).await {
                // It was this call that ended the lease, if nothing else can have: the session lives, so the
                // store has answered the call itself, and nobody revokes. In other cases the holder is told
                // that it is over, and not since when.
                let nothing_else = !is_over(session) && !self.revoked.load(Ordering::Relaxed);
                invoked.answered(Response::Released(nothing_else && end == LeaseEnd::Released));
            }
        }
    }

    /// One piece of work under a permit; false once there is none.
    async fn step(&mut self, session: &Session, nobody: &Registers, which: usize, lease: &Lease) -> bool {
        let resource: Arc<str> = RESOURCES[which].into();
        let from = self.clock.truth();
        let Ok(permit) = lease.permit_for(self.dice.millis(10, 200)) else { return false };
        let deadline = from + self.clock.in_truth(permit.time_left());
        let out = PermitOut {
            record: self.record.clone(),
            clock: self.clock.clone(),
            span: PermitSpan {
                process: self.process,
                resource: resource.clone(),
                token: permit.token().get(),
                from,
                until: deadline,
                excused: self.clock_is_wrong,
            },
        };
        self.record.count(|coverage| coverage.permits += 1);
        // Some stop between check and write, mostly for longer than their lease lives; and do not look again.
        let late = !self.healthy && self.dice.chance(6);
        if late {
            let ttl = self.ttl.as_millis() as u64;
            let length = match self.dice.chance(75) {
                true => ttl + self.dice.within(200, 3_500),
                false => self.dice.within(100, ttl),
            };
            self.stand_still(length).await;
        }
        // Most writes land soon; some wander about for longer than any lease lives.
        let slow = if self.dice.chance(8) { self.dice.within(500, 6_000) } else { self.dice.within(1, 30) };
        let write = self.storage.send(self.clock.truth() / 1_000 + slow, resource, permit.token(), false);
        if late || self.dice.chance(60) {
            let value = self.record.fresh_value();
            let key = GUARDED[which];
            let call = Call::Put { key: key.into(), value, token: Some(permit.token().get()) };
            let invoked = self.record.invoke(self.process, &self.clock, call);
            let guarded = match (late, self.repeats) {
                (false, _) => session.registers().guarded(&permit),
                // The token is all that is left of the lease, and whoever has it writes.
                (true, false) => nobody.unchecked(permit.scope().clone(), permit.token()),
                (true, true) => session.registers().unchecked(permit.scope().clone(), permit.token()),
            };
            let put = guarded.put(key, value.to_string());
            if let Ok(answer) = timeout(self.dice.millis(500, 3_000), put).await {
                end_of_write(invoked, answer.map(Some));
            }
        }
        let accepted = timeout(permit.time_left().min(WRITE_PATIENCE), write).await;
        drop(permit);
        drop(out);
        self.rest(2, 250).await;
        !matches!(accepted, Ok(Ok(false)))
    }

    /// Looks, reads, and writes what nothing guards, until all is calm.
    pub async fn look_on(mut self) {
        let client = self.client();
        let transport = self.transport();
        let mut registers = client.registers();
        let mut numbered: Option<Session> = None;
        let mut seen: [u64; 2] = [0; 2];
        while !self.calm() {
            // Numbers come from a session.
            if self.repeats && numbered.as_ref().is_none_or(is_over) {
                let opening = client.session().holder("onlooker").ttl(self.ttl);
                let Ok(session) = opening.open_within(Duration::from_secs(3)).open().await else {
                    self.rest(50, 500).await;
                    continue;
                };
                registers = session.registers();
                numbered = Some(session);
            }
            let which = usize::from(self.dice.chance(50));
            let key = PLAIN[which];
            match self.dice.within(0, 9) {
                0..=2 => self.look(&transport, RESOURCES[which]).await,
                3 | 4 => {
                    if let Some(revision) = self.read(&registers, key).await {
                        seen[which] = revision;
                    }
                }
                5 => {
                    self.read(&registers, GUARDED[which]).await;
                }
                6 => {
                    let invoked =
                        self.record.invoke(self.process, &self.clock, Call::Delete { key: key.into() });
                    if let Ok(answer) = timeout(Duration::from_secs(3), registers.delete(key)).await {
                        end_of_write(invoked, answer.map(|_| None));
                    }
                }
                7 | 8 => {
                    let value = self.record.fresh_value();
                    let call = Call::PutIf { key: key.into(), value, revision: seen[which] };
                    let invoked = self.record.invoke(self.process, &self.clock, call);
                    let put = registers.put_if(key, value.to_string(), Revision::new(seen[which]));
                    match timeout(Duration::from_secs(3), put).await {
                        Ok(Ok(false)) => invoked.answered(Response::NotEqual),
                        Ok(answer) => end_of_write(invoked, answer.map(|_| None)),
                        Err(_) => {}
                    }
                }
                _ => {
                    let value = self.record.fresh_value();
                    let call = Call::Put { key: key.into(), value, token: None };
                    let invoked = self.record.invoke(self.process, &self.clock, call);
                    if let Ok(answer) =
                        timeout(Duration::from_secs(3), registers.put(key, value.to_string())).await
                    {
                        end_of_write(invoked, answer.map(Some));
                    }
                }
            }
            self.rest(5, 150).await;
        }
        self.done.store(true, Ordering::Relaxed);
    }

    /// Comes when all is calm: everything must be served again, and be as it was acknowledged. `bound` is how
    /// long a resource may take to come free.
    pub async fn audit(mut self, bound: Duration) {
        let client = self.client();
        let transport = self.transport();
        let session = loop {
            match client.session().holder("auditor").ttl(self.ttl).open().await {
                Ok(session) => break session,
                Err(_) => self.rest(100, 200).await,
            }
        };
        for resource in RESOURCES {
            let since = self.clock.truth();
            let call = Call::Acquire { resource: resource.into() };
            let invoked = self.record.invoke(self.process, &self.clock, call);
            let lease = session.acquire(resource).wait_for(2 * bound).await;
            let token = lease.as_ref().ok().and_then(|lease| lease.barrier().ok()).map(|(_, token)| token);
            if let Some(token) = token {
                invoked.answered(Response::Granted(token.get()));
            }
            let wait = Wait {
                process: self.process,
                resource: resource.into(),
                since,
                granted: token.map(|_| self.clock.truth()),
                bound: bound.as_micros() as u64,
            };
            self.record.note(wait.since, format_args!("audit {wait:?}"));
            self.record.history(|history| history.waits.push(wait));
            self.look(&transport, resource).await;
            if let (Ok(lease), Some(token)) = (lease, token) {
                let call = Call::Release { resource: resource.into(), token: token.get() };
                let invoked = self.record.invoke(self.process, &self.clock, call);
                if let Ok(Ok(LeaseEnd::Released)) = timeout(bound, lease.release()).await {
                    // Nobody revokes any more.
                    invoked.answered(Response::Released(!is_over(&session)));
                }
            }
        }
        for key in REGISTERS {
            self.read(&session.registers(), key).await;
        }
        session.close().await;
        self.done.store(true, Ordering::Relaxed);
    }

    fn transport(&self) -> Transport {
        Transport::over(&self.endpoints, Arc::new(self.clock.clone()), Arc::new(self.port.clone()))
    }

    async fn read(&mut self, registers: &Registers, key: &str) -> Option<u64> {
        let invoked = self.record.invoke(self.process, &self.clock, Call::Get { key: key.into() });
        match timeout(Duration::from_secs(4), registers.get(key)).await {
            Ok(Ok(register)) => {
                let read = value_of(&register);
                invoked.answered(Response::Value(read));
                Some(read.map_or(0, |(_, revision)| revision))
            }
            _ => {
                invoked.ended(Outcome::Failed);
                None
            }
        }
    }

    async fn look(&mut self, transport: &Transport, resource: &str) {
        let invoked = self.record.invoke(self.process, &self.clock, Call::Look { resource: resource.into() });
        let call = Calling {
            repeat: Repeat::Read,
            within: Duration::from_secs(3),
            attempt_within: Some(Duration::from_secs(1)),
            persistent: true,
        };
        let question = proto::LeaseGetRequest { resource: resource.into(), stale: false };
        let answer = transport
            .call(call, |channel, _| {
                let question = question.clone();
                async move { proto::leases_client::LeasesClient::new(channel).get(question).await }
            })
            .await;
        match answer {
            Ok(proto::LeaseGetResponse { lease: Some(lease), .. }) => {
                invoked.answered(match lease.holders.first() {
                    Some(holder) => Response::HeldBy(holder.token),
                    None => Response::Free(lease.token),
                });
            }
            Err(CallError::Refused(no)) if no.code == Code::NotFound => {
                invoked.answered(Response::Free(None))
            }
            _ => invoked.ended(Outcome::Failed),
        }
    }
}

/// Whether the session has ended by now.
fn is_over(session: &Session) -> bool {
    let mut ended = std::pin::pin!(session.ended());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    ended.as_mut().poll(&mut context).is_ready()
}

/// What we wrote into a register, and at which revision.
pub fn value_of(register: &Register) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(register.value.as_deref()?).ok()?;
    Some((text.parse().ok()?, register.mod_revision.get()))
}

fn end_of_write(invoked: crate::record::Invoked, answer: Result<Option<Revision>, CallError>) {
    match answer {
        Ok(revision) => invoked.answered(Response::Written(revision.map(Revision::get))),
        Err(CallError::Refused(no)) if matches!(no.code, Code::StaleToken | Code::LeaseEnded) => {
            invoked.answered(Response::Fenced);
        }
        Err(error) if error.effect() == Effect::NotApplied => invoked.ended(Outcome::Failed),
        Err(_) => {}
    }
}

/// A permit that is out; written down when it is over, however that comes.
struct PermitOut {
    record: Record,
    clock: ProcessClock,
    span: PermitSpan,
}

impl Drop for PermitOut {
    fn drop(&mut self) {
        let mut span = self.span.clone();
        span.until = span.until.min(self.clock.truth().max(span.from));
        self.record.note(span.until, format_args!("permit over {span:?}"));
        self.record.history(|history| history.permits.push(span));
    }
}
