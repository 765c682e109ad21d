//! The stores that can be driven, behind one small interface. Each implements a lock as its own documentation
//! recommends. A store reports what it does not support.

mod connections;
mod etcd;
mod pipelined;
mod redis;
mod tenure;
mod zookeeper;

use std::future::Future;
use std::time::Duration;

pub use self::etcd::Etcd;
pub use self::redis::Redis;
pub use self::tenure::Tenure;
pub use self::zookeeper::ZooKeeper;

use crate::error::BenchError;
use crate::plan::Plan;

pub type Result<T> = std::result::Result<T, BenchError>;

/// A store under load.
pub trait Store: Send + Sync + Sized + 'static {
    /// One client's session.
    type Session: Session;
    /// Many sessions on one stream.
    type Fleet: Fleet;

    /// Connects.
    fn reach(plan: &Plan) -> impl Future<Output = Result<Self>> + Send;

    /// Opens a session over the connection with this number; clients with the same number share one if the
    /// store lets them. A connection that broke is made anew, at the next endpoint.
    fn open(&self, way: usize, ttl: Duration) -> impl Future<Output = Result<Self::Session>> + Send;

    /// Opens many sessions over a stream of their own, each with one lease on a resource of its own.
    fn fleet(&self, fleet: &Ask) -> impl Future<Output = Result<Self::Fleet>> + Send;

    /// How many leases there are whose resources begin with this.
    fn leases(&self, prefix: &str) -> impl Future<Output = Result<u64>> + Send;

    /// Hands leadership on.
    fn step_down(&self) -> impl Future<Output = Result<()>> + Send;

    /// Reports every grant and end below a prefix, as it arrives: the name of the resource.
    fn watch(
        &self,
        way: usize,
        prefix: &str,
    ) -> impl Future<Output = Result<tokio::sync::mpsc::UnboundedReceiver<String>>> + Send;
}

/// Many sessions that are wanted.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The number of the stream.
    pub way: usize,
    /// The number of the first session; their resources are numbered on from there.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Their TTL.
    pub ttl: Duration,
    /// What their resources' names begin with.
    pub prefix: String,
    /// Whether each gets a lease.
    pub leases: bool,
}

impl Ask {
    /// The resource of the session with this number.
    pub fn resource(&self, number: usize) -> String {
        format!("{}/{number}", self.prefix)
    }
}

/// One client's session.
pub trait Session: Send + 'static {
    /// A place in the queue, or a lease.
    type Place: Send;

    /// Asks for a resource and waits in the queue for it if it is taken; returns when the store has confirmed
    /// the place.
    fn queue(&mut self, resource: &str) -> impl Future<Output = Result<Self::Place>> + Send;

    /// Waits until the place is a lease.
    fn granted(&mut self, place: &mut Self::Place) -> impl Future<Output = Result<()>> + Send;

    /// Gives the lease back.
    fn release(&mut self, place: Self::Place) -> impl Future<Output = Result<()>> + Send;

    /// Gives back whatever an acquire of this resource may have left, after a failure of unknown outcome.
    fn clear(&mut self, resource: &str) -> impl Future<Output = Result<()>> + Send;

    /// Renews the session once.
    fn renew(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Ends the session as a supervisor does who knows that its holder is dead.
    fn died(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Stops talking without a word, as a process that was killed.
    fn fall_silent(&mut self);

    /// Whether its connection still stands.
    fn connected(&self) -> bool;
}

/// Many sessions on one stream.
pub trait Fleet: Send + 'static {
    /// Renews each once; says how many the store has acknowledged.
    fn renew_all(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

/// What a store does not have.
fn has_not<T>(store: &str, what: &str) -> Result<T> {
    Err(BenchError::new(format!("{store} has no {what}")))
}

/// Random bits, for names that nobody else has.
pub fn draw() -> u128 {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).expect("the system gives random bits");
    u128::from_le_bytes(bits)
}
