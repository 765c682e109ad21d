//! The agent's connections to the nodes. Decides which node is used: the one that answered last, until it
//! fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_client::{Channel, Endpoint, Endpoints};
use tenure_wire::ApiError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::no_node;

/// How long one node may take to accept a connection before the next is tried.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How often a connection is probed, and how long the probe may take.
const PROBE_EVERY: Duration = Duration::from_secs(2);
const PROBE_WITHIN: Duration = Duration::from_secs(3);

pub struct Connections {
    connections: Vec<NodeConnection>,
    /// How they are reached.
    endpoints: Endpoints,
    /// The index of the node that is asked.
    preferred: AtomicUsize,
}

struct NodeConnection {
    endpoint: Endpoint,
    channel: Mutex<Option<Channel>>,
}

impl Connections {
    pub fn new(endpoints: &Endpoints) -> Connections {
        let connection =
            |endpoint: &Endpoint| NodeConnection { endpoint: endpoint.clone(), channel: Mutex::new(None) };
        // An agent that asked itself would go round in a circle.
        let nodes = endpoints.as_slice().iter().filter(|endpoint| endpoint.socket().is_none());
        Connections {
            connections: nodes.map(connection).collect(),
            endpoints: endpoints.clone(),
            preferred: AtomicUsize::new(0),
        }
    }

    /// A connection, and which one it is. Made before anything is sent: so a failure here proves that nothing
    /// was.
    pub async fn connected(&self) -> Result<(usize, Channel), ApiError> {
        let first = self.preferred.load(Ordering::Relaxed);
        let mut why = String::from("it was given none");
        for index in (0..self.connections.len()).map(|step| (first + step) % self.connections.len()) {
            match self.connections[index].connected(&self.endpoints).await {
                Ok(channel) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok((index, channel));
                }
                Err(error) => why = format!("{}: {error}", self.connections[index].endpoint),
            }
        }
        Err(no_node(&why))
    }

    /// A call over this connection has failed. If it was the connection and not the store that said so, the
    /// next node is asked from now on.
    pub fn failed(&self, index: usize, status: &tonic::Status) {
        if status.details().is_empty() {
            self.leave(index);
        }
    }

    /// Asks the next node from now on.
    pub fn leave(&self, index: usize) {
        if let Ok(mut channel) = self.connections[index].channel.try_lock() {
            *channel = None;
        }
        let next = (index + 1) % self.connections.len();
        let _ = self.preferred.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl NodeConnection {
    async fn connected(&self, endpoints: &Endpoints) -> Result<Channel, String> {
        let mut channel = self.channel.lock().await;
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        let endpoint = tonic::transport::Endpoint::from_shared(self.endpoint.uri())
            .map_err(|error| error.to_string())?
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PROBE_EVERY)
            .keep_alive_timeout(PROBE_WITHIN)
            .keep_alive_while_idle(true);
        // Without a credential: what a client presents is passed on with its calls.
        let made = match timeout(CONNECT_WITHIN, endpoints.connect(endpoint)).await {
            // The agent presents nothing of its own: what a client presents is passed on with its calls.
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no connection within {CONNECT_WITHIN:?}")),
        };
        *channel = Some(made.clone());
        Ok(made)
    }
}
