//! The leader's probe of its own client port: a request to itself through that port's own path (accept,
//! decode, leader loop). A server that cannot receive renewals must not count time against them.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_replica::{Entropy, Network, Stream};
use tenure_tls::ServerTls;
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
    /// TLS of the port, if it speaks that.
    tls: Option<Arc<ServerTls>>,
    address: Arc<str>,
    entropy: Entropy,
    places: Arc<Semaphore>,
    under_way: Arc<Mutex<Vec<u128>>>,
}

impl Prober {
    /// A prober of the client port at `address`.
    pub fn new(
        network: Arc<dyn Network>,
        tls: Option<Arc<ServerTls>>,
        address: String,
        entropy: Entropy,
    ) -> Self {
        let places = Arc::new(Semaphore::new(PROBES_UNDER_WAY_MAX));
        Self { network, tls, address: address.into(), entropy, places, under_way: Arc::default() }
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

    /// Sends one probe; its return is noted in the leader loop, not here.
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
        let stream = self.network.connect(&self.address).await?;
        match &self.tls {
            None => self.ask(stream, number).await,
            // Through all that a client's request goes through.
            Some(tls) => self.ask(tls.dial(stream).await?, number).await,
        }
    }

    async fn ask(&self, mut stream: impl Stream, number: u128) -> std::io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::io;
    use tenure_replica::Listener;
    use tokio::io::{DuplexStream, duplex};
    use tokio::sync::mpsc;

    /// Hands the other end of every connection to the test.
    struct Handed(mpsc::UnboundedSender<DuplexStream>);

    impl Network for Handed {
        fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Stream>>> {
            let (ours, theirs) = duplex(4 << 10);
            self.0.send(theirs).expect("the test listens");
            async move { Ok(Box::new(ours) as Box<dyn Stream>) }.boxed()
        }

        fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listener>>> {
            unreachable!("a prober does not listen")
        }
    }

    fn prober() -> (Prober, mpsc::UnboundedReceiver<DuplexStream>) {
        let (hand, handed) = mpsc::unbounded_channel();
        (Prober::new(Arc::new(Handed(hand)), None, "a:1".into(), Entropy::default()), handed)
    }

    /// Sequential numbers could be guessed.
    #[test]
    fn all_128_bits_of_a_number_are_random() {
        let (prober, _) = prober();
        let (mut set, mut clear) = (0, 0);
        // Each bit is the same in all of them with a chance of 2^-255.
        for number in std::iter::repeat_with(|| prober.draw()).take(256) {
            set |= number;
            clear |= !number;
        }
        assert_eq!((set, clear), (u128::MAX, u128::MAX));
    }

    #[tokio::test]
    async fn only_the_very_number_under_way_counts_and_only_once() {
        let (prober, mut handed) = prober();
        let number = 0x6f3a_0000_0000_0000_0000_0000_0000_0001;
        assert!(!prober.awaits(number), "it is not under way yet");
        prober.send(number);
        let mut arrived = handed.recv().await.expect("a connection");
        let mut line = [0; 47];
        arrived.read_exact(&mut line).await.expect("a request");
        assert_eq!(&line, b"POST /v1/probe/6f3a0000000000000000000000000001");
        for forged in [0, 1, number - 1, number + 1, number ^ 1 << 127, u128::MAX] {
            assert!(!prober.awaits(forged), "{forged:032x} is not under way");
        }
        assert!(prober.awaits(number), "a forged number took the place of the true one");
        assert!(!prober.awaits(number), "it has returned already");
    }

    #[tokio::test]
    async fn what_was_never_answered_is_no_longer_awaited() {
        let (prober, mut handed) = prober();
        prober.send(7);
        drop(handed.recv().await.expect("a connection"));
        // Its place is free when it is over, and all places are free when none is under way.
        let _all = prober.places.acquire_many(PROBES_UNDER_WAY_MAX as u32).await.expect("it is never closed");
        assert!(!prober.awaits(7));
    }
}
