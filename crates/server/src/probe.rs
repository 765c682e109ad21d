//! The leader's probe of its own ears: a request to itself through the client port's own path (accept,
//! decode, desk). A server that cannot hear renewals must not count time against them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_replica::{Entropy, Network};
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
    entropy: Entropy,
    places: Arc<Semaphore>,
    under_way: Arc<Mutex<Vec<u128>>>,
}

impl Prober {
    /// A prober of the client port at `address`.
    pub fn new(network: Arc<dyn Network>, address: String, entropy: Entropy) -> Self {
        let places = Arc::new(Semaphore::new(PROBES_UNDER_WAY_MAX));
        Self { network, address: address.into(), entropy, places, under_way: Arc::default() }
    }

    /// A number for the next probe, which nobody can guess.
    pub fn draw(&self) -> u128 {
        self.entropy.draw()
    }

    /// Whether a probe with this number is under way. Asked before a number is queued, so that forged ones cannot fill
    /// the queue; each number counts once.
    pub fn awaits(&self, number: u128) -> bool {
        let mut under_way = self.under_way.lock();
        let found = under_way.iter().position(|sent| *sent == number);
        found.map(|at| under_way.swap_remove(at)).is_some()
    }

    /// Sends one probe; that it has returned is heard at the desk, not here.
    pub fn send(&self, number: u128) {
        let Ok(place) = self.places.clone().try_acquire_owned() else { return };
        self.under_way.lock().push(number);
        let prober = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(PROBE_TIMEOUT, prober.call(number)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%error, "a probe of our own client port failed"),
                Err(_) => debug!("a probe of our own client port got no answer in time"),
            }
            prober.under_way.lock().retain(|sent| *sent != number);
            drop(place);
        });
    }

    async fn call(&self, number: u128) -> std::io::Result<()> {
        let mut stream = self.network.connect(&self.address).await?;
        let request = format!(
            "POST /v1/probe/{number:032x} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await?;
        // Read to the end, so that the server never sees a connection reset.
        let mut answer = [0; 512];
        while stream.read(&mut answer).await? > 0 {}
        Ok(())
    }
}
