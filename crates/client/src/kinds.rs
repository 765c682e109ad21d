//! The other kinds of leases: semaphores and reader-writer leases. Both are commands of the store; this file
//! only gives them an API.

use std::sync::Arc;

use crate::acquire::AcquireRequest;
use crate::lease::Lease;
use crate::session::{Handle, Session};

/// A resource with `n` slots. Each holder has one slot, with a token and a fence scope of its own
/// (`resource#slot`), so that live holders never fence each other out.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure_client::Client::embedded();
/// let (a, b, c) = (client.session().open().await?, client.session().open().await?, client.session().open().await?);
/// let slot_a = a.semaphore("exports", 2).acquire().await?;
/// let slot_b = b.semaphore("exports", 2).acquire().await?;
/// assert_ne!(slot_a.scope(), slot_b.scope());
/// assert!(c.semaphore("exports", 2).acquire().await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: Arc<Handle>,
    resource: String,
    slots: u32,
}

impl Semaphore {
    /// Asks for a slot.
    pub fn acquire(&self) -> AcquireRequest<Lease> {
        AcquireRequest::new(self.handle.clone(), [&self.resource]).slots(self.slots)
    }
}

/// A resource that many may read or one may write.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = tenure_client::Client::embedded();
/// let (a, b) = (client.session().open().await?, client.session().open().await?);
/// let (reader, other_reader) = (a.rw_lease("catalogue").read().await?, b.rw_lease("catalogue").read().await?);
/// reader.read_permit()?;
/// assert!(reader.permit().is_err(), "readers have no token to write with");
/// assert!(b.rw_lease("catalogue").write().await.is_err());
/// # drop(other_reader);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RwLease {
    handle: Arc<Handle>,
    resource: String,
}

impl RwLease {
    /// Asks to read, together with other readers. Gives [read permits](Lease::read_permit) only.
    pub fn read(&self) -> AcquireRequest<Lease> {
        AcquireRequest::new(self.handle.clone(), [&self.resource]).shared()
    }

    /// Asks to write, alone.
    pub fn write(&self) -> AcquireRequest<Lease> {
        AcquireRequest::new(self.handle.clone(), [&self.resource])
    }
}

impl Session {
    /// A resource of `slots` slots.
    pub fn semaphore(&self, resource: impl Into<String>, slots: u32) -> Semaphore {
        Semaphore { handle: self.handle().clone(), resource: resource.into(), slots }
    }

    /// A resource that many may read or one may write.
    pub fn rw_lease(&self, resource: impl Into<String>) -> RwLease {
        RwLease { handle: self.handle().clone(), resource: resource.into() }
    }
}
