//! An old and a new version of one program on one machine, for as long as a deployment takes: the same
//! discipline as between machines. The new one waits in the queue while the old one drains, and what a
//! straggler of the old one still sends is refused.

use tenure_client::{CallError, Client, Code, Lease, Session};
use tenure_core::{Scope, Token};

use super::BoxError;

const RESOURCE: &str = "app/writer";
const VERSION: &str = "app/written-by";

/// A version that is in charge.
pub struct InCharge {
    lease: Lease,
    _session: Session,
    client: Client,
    name: &'static str,
}

/// A write that was checked and is not sent yet: what a thread has in its hands when it is stopped.
pub struct Straggler {
    scope: Scope,
    token: Token,
    client: Client,
    name: &'static str,
}

/// Starts a version: it may warm up as long as it likes, and is in charge when it is its turn.
pub async fn start(client: &Client, name: &'static str) -> Result<InCharge, BoxError> {
    let session = client.session().holder(name).open().await?;
    let lease = session.acquire(RESOURCE).wait().await?;
    Ok(InCharge { lease, _session: session, client: client.clone(), name })
}

impl InCharge {
    /// One write, under a permit of its own.
    pub async fn write(&self) -> Result<(), BoxError> {
        let permit = self.lease.permit()?;
        self.client.registers().guarded(&permit).put(VERSION, self.name).await?;
        Ok(())
    }

    /// A thread that is stopped between its check and its write.
    pub fn straggler(&self) -> Result<Straggler, BoxError> {
        let permit = self.lease.permit()?;
        let (scope, token) = (permit.scope().clone(), permit.token());
        Ok(Straggler { scope, token, client: self.client.clone(), name: self.name })
    }

    /// Lets what is under way end, and gives the lease back; the next version has it before this returns.
    pub async fn drain(self) -> Result<(), BoxError> {
        self.lease.release().await?;
        Ok(())
    }
}

impl Straggler {
    /// It wakes up and sends what it had. True if it was refused for being stale.
    pub async fn wake(self) -> Result<bool, BoxError> {
        let written = self.client.registers().unchecked(self.scope, self.token).put(VERSION, self.name).await;
        match written {
            Ok(_) => Ok(false),
            Err(CallError::Refused(refused)) if refused.code == Code::StaleToken => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Who wrote last.
pub async fn written_by(client: &Client) -> Result<String, BoxError> {
    let value = client.registers().get(VERSION).await?.value;
    Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::testing::Bench;

    #[tokio::test(start_paused = true)]
    async fn two_versions_never_write_over_each_other() {
        let bench = Bench::new();
        let (old, new) = (bench.process(), bench.process());
        let first = start(old.client(), "v1").await.expect("nobody else is there");
        first.write().await.expect("it is in charge");
        let straggler = first.straggler().expect("it is in charge");
        let successor = new.client().clone();
        let queued = tokio::spawn(async move { start(&successor, "v2").await });
        tokio::task::yield_now().await;
        first.drain().await.expect("nothing is out");
        let second = queued.await.expect("no panic").expect("it is its turn");
        second.write().await.expect("it is in charge");
        assert!(straggler.wake().await.expect("it is answered"), "the old version's write was not refused");
        assert_eq!(written_by(new.client()).await.expect("it can be read"), "v2");
    }
}
