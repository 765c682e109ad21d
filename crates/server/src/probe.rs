//! The leader's probe of its own ears: a request to itself through the client port's own path (accept,
//! decode, desk). A server that cannot hear renewals must not count time against them.

use std::sync::Arc;
use std::time::Duration;

use tenure_replica::Network;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tracing::debug;

/// How long a probe may take; a later one says nothing that a newer one does not say better.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Probes under way at once. When none comes back, more of them would only add to the load.
const PROBES_UNDER_WAY_MAX: usize = 4;

/// Sends probes to this node's own client port.
#[derive(Clone)]
pub struct Prober {
    network: Arc<dyn Network>,
    address: Arc<str>,
    under_way: Arc<Semaphore>,
}

impl Prober {
    /// A prober of the client port at `address`.
    pub fn new(network: Arc<dyn Network>, address: String) -> Self {
        Self { network, address: address.into(), under_way: Arc::new(Semaphore::new(PROBES_UNDER_WAY_MAX)) }
    }

    /// Sends one probe; that it has returned is heard at the desk, not here.
    pub fn send(&self, number: u64) {
        let Ok(place) = self.under_way.clone().try_acquire_owned() else { return };
        let prober = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(PROBE_TIMEOUT, prober.call(number)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "a probe of our own client port failed"),
                Err(_) => debug!("a probe of our own client port got no answer in time"),
            }
            drop(place);
        });
    }

    async fn call(&self, number: u64) -> std::io::Result<()> {
        let mut stream = self.network.connect(&self.address).await?;
        let request = format!(
            "POST /v1/probe/{number} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await?;
        // Read to the end, so that the server never sees a connection reset.
        let mut answer = [0; 512];
        while stream.read(&mut answer).await? > 0 {}
        Ok(())
    }
}
