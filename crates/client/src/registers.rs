//! Registers: small values in the store itself, and a fence without any setup.
//!
//! A *guarded* register accepts a write only with the token of a live exclusive lease of its resource, and
//! checks that in the same step as it writes: the store is its own fence. [`Registers::guarded`] takes a
//! permit, never a number.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Command, Compare, CompareField, CompareOp, Done, Guard, InvalidName, Moment, Operation, Register,
    RegisterKey, Revision, Scope, Token, Write,
};
use tenure_wire::{ApiError, Code};
use tokio::sync::oneshot;

use crate::client::{Client, Shared};
use crate::error::CallError;
use crate::session::Handle;

/// Reads and writes registers.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure_client::Client::embedded();
/// let session = client.session().open().await?;
/// let lease = session.acquire("settlement/cron").await?;
/// let registers = session.registers();
/// let permit = lease.permit()?;
/// registers.guarded(&permit).put("settlement/cursor", "row 4711").await?;
/// drop(permit);
/// lease.release().await?;
///
/// // The guard stays: without the resource's token nobody writes here any more.
/// let refused = registers.put("settlement/cursor", "row 1").await.expect_err("guarded");
/// assert_eq!(refused.effect(), tenure_client::Effect::NotApplied);
/// assert_eq!(registers.get("settlement/cursor").await?.value.as_deref(), Some(&b"row 4711"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Registers {
    shared: Arc<Shared>,
    session: Option<Arc<Handle>>,
}

impl Registers {
    pub(crate) fn of_session(session: Arc<Handle>) -> Registers {
        Registers { shared: session.driver().shared.clone(), session: Some(session) }
    }

    pub(crate) fn of_nobody(client: Client) -> Registers {
        Registers { shared: client.shared().clone(), session: None }
    }

    /// One register, read linearizably; its value is `None` if it does not exist.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Register, CallError> {
        let key = register_key(key)?;
        let (reply, answer) = oneshot::channel();
        self.shared.store.register(key, Box::new(move |found| drop(reply.send(found))));
        received(answer.await)
    }

    /// Writes a register that nothing guards.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Revision, CallError> {
        self.plain(None).put(key, value).await
    }

    /// Writes a register only if it was last changed at `revision` (zero: if it does not exist). False if it
    /// was not.
    pub async fn put_if(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        revision: Revision,
    ) -> Result<bool, CallError> {
        let key = register_key(key)?;
        let field = CompareField::ModRevision(revision.get());
        let compares = vec![Compare { key: key.clone(), field, op: CompareOp::Equal }];
        let put = Operation::Put { key, value: value.as_ref().into(), guard: None, ephemeral: false };
        let write = Write { by: None, compares, then: vec![put], otherwise: Vec::new() };
        self.write(write).await.map(|(succeeded, _)| succeeded)
    }

    /// Removes a register that nothing guards.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<Revision, CallError> {
        self.plain(None).delete(key).await
    }

    /// Writes under a permit: accepted only while the permit's token is that of a live exclusive lease. The
    /// store checks that in the step in which it writes; here it is only not asked once the permit's own time
    /// is used up.
    ///
    /// No barrier is needed: the grant itself is one, because from then on the store refuses every earlier
    /// token.
    pub fn guarded(&self, permit: &tenure_core::Permit) -> GuardedRegisters {
        let now = self.shared.clock.now();
        let guard = Guard { scope: permit.scope().clone(), token: permit.token() };
        GuardedRegisters { budget: Some((now, permit.remaining(now))), ..self.plain(Some(guard)) }
    }

    /// Writes under a token that came from elsewhere, or was checked long ago: sent however late it is. The
    /// store decides as it does for [`guarded`](Self::guarded).
    pub fn unchecked(&self, scope: Scope, token: Token) -> GuardedRegisters {
        self.plain(Some(Guard { scope, token }))
    }

    fn plain(&self, guard: Option<Guard>) -> GuardedRegisters {
        GuardedRegisters { registers: self.clone(), guard, budget: None, ephemeral: false }
    }

    async fn write(&self, mut write: Write) -> Result<(bool, Revision), CallError> {
        let (reply, answer) = oneshot::channel();
        let callback = move |answer: Result<Done, CallError>| drop(reply.send(answer));
        match &self.session {
            Some(session) => {
                let command = |by| {
                    write.by = Some(by);
                    Command::Write(Box::new(write))
                };
                session.driver().numbered(command, callback);
            }
            None => self.shared.store.submit(Command::Write(Box::new(write)), Box::new(callback)),
        }
        match received(answer.await)? {
            Done::Written { succeeded, revision, .. } => Ok((succeeded, revision)),
            other => Err(CallError::unexpected("a write", &other)),
        }
    }
}

/// Registers written under one permit, or under none.
#[must_use = "nothing is written before `put` or `delete` is called"]
pub struct GuardedRegisters {
    registers: Registers,
    guard: Option<Guard>,
    /// What was left of the permit's time, and when.
    budget: Option<(Moment, Duration)>,
    ephemeral: bool,
}

impl GuardedRegisters {
    /// What is written disappears with the session of the lease.
    pub fn ephemeral(mut self) -> Self {
        self.ephemeral = true;
        self
    }

    /// Writes a register.
    pub async fn put(self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Revision, CallError> {
        self.put_all([(key, value)]).await
    }

    /// Writes several registers in one step, all or none: the work, and how far it has come.
    pub async fn put_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        self,
        writes: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Revision, CallError> {
        let put = |(key, value): (K, V)| -> Result<Operation, CallError> {
            let (guard, ephemeral) = (self.guard.clone(), self.ephemeral);
            Ok(Operation::Put { key: register_key(key)?, value: value.as_ref().into(), guard, ephemeral })
        };
        let puts = writes.into_iter().map(put).collect::<Result<_, CallError>>()?;
        self.write(puts).await
    }

    /// Removes a register; its guard stays.
    pub async fn delete(self, key: impl AsRef<[u8]>) -> Result<Revision, CallError> {
        let delete = Operation::Delete { key: register_key(key)?, guard: self.guard.clone() };
        self.write(vec![delete]).await
    }

    async fn write(&self, then: Vec<Operation>) -> Result<Revision, CallError> {
        let now = self.registers.shared.clock.now();
        if self.budget.is_some_and(|(taken, left)| now.longest_since(taken) >= left) {
            let late = ApiError::new(Code::LeaseEnded, "the permit's time is used up: nothing was sent")
                .hint("take a new permit, which is given only while the lease may be used");
            return Err(CallError::Refused(late));
        }
        let write = Write { by: None, compares: Vec::new(), then, otherwise: Vec::new() };
        self.registers.write(write).await.map(|(_, revision)| revision)
    }
}

fn register_key(key: impl AsRef<[u8]>) -> Result<RegisterKey, CallError> {
    RegisterKey::try_from(key.as_ref()).map_err(|invalid: InvalidName| CallError::Refused(invalid.into()))
}

/// A store that went away without answering: the process is ending.
fn received<T>(answer: Result<Result<T, CallError>, oneshot::error::RecvError>) -> Result<T, CallError> {
    answer.unwrap_or_else(|_| {
        Err(CallError::Refused(ApiError::unknown_outcome("the store went away without answering")))
    })
}
