//! Probes an address that a node has reported as a member's. It is used once a node of the same cluster has
//! answered there: behind a proxy or a forwarded port the address may lead nowhere, or to another cluster.

use std::time::Duration;

use tenure_wire::proto;
use tenure_wire::proto::server_frame::Content;
use tenure_wire::proto::stream_client::StreamClient;
use tokio::sync::mpsc;

use super::{CONNECT_WITHIN, connect, frames};
use crate::dial::Dialer;
use crate::endpoints::Endpoint;
use crate::members::WeakDirectory;
use crate::retry::Backoff;

/// Delays between two attempts. A node that was just added may not serve yet; one that cannot be reached from
/// here is asked for twice a minute and no more.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long a node may take to say who it is.
const WELCOME_WITHIN: Duration = Duration::from_secs(2);

/// Tries the address until a node of this cluster answers there, or it is no member's any more.
pub(super) async fn try_out(endpoint: Endpoint, directory: WeakDirectory, dialer: Dialer, cluster: String) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    loop {
        if let Some(node) = node_at(&endpoint, &dialer, &cluster).await {
            let other_name = other_name(node, &directory, &dialer, &cluster).await;
            let Some(directory) = directory.upgrade() else { return };
            return match other_name {
                Some(configured) => directory.lock().is_behind(&endpoint, configured),
                None => directory.lock().follow(&endpoint),
            };
        }
        // Not kept while waiting: a client that is gone tries nothing out.
        if directory.upgrade().is_none_or(|directory| !directory.lock().is_tried_out(&endpoint)) {
            return;
        }
        backoff.wait().await;
    }
}

/// The configured endpoint at which this node is reached, if there is one.
async fn other_name(
    node: u64,
    directory: &WeakDirectory,
    dialer: &Dialer,
    cluster: &str,
) -> Option<Endpoint> {
    let names = directory.upgrade()?.lock().other_names();
    for (configured, known) in names {
        let found = match known {
            Some(known) => Some(known),
            None => node_at(&configured, dialer, cluster).await,
        };
        if let Some(found) = found {
            directory.upgrade()?.lock().answered(&configured, found);
        }
        if found == Some(node) {
            return Some(configured);
        }
    }
    None
}

/// The number of the node of this cluster that answers there.
async fn node_at(endpoint: &Endpoint, dialer: &Dialer, cluster: &str) -> Option<u64> {
    let channel = connect(endpoint, dialer, CONNECT_WITHIN).await.ok()?;
    let welcome = async {
        // Nothing is said. It is kept until the answer has come, because a stream that is closed may not be
        // answered.
        let (_silent, waiting) = mpsc::channel::<proto::ClientFrames>(1);
        let opened = StreamClient::new(channel).commands(frames::outgoing(waiting)).await.ok()?;
        let first = opened.into_inner().message().await.ok()??;
        first.frames.into_iter().find_map(|frame| match frame.content {
            Some(Content::Welcome(welcome)) if welcome.cluster == cluster => Some(welcome.node),
            _ => None,
        })
    };
    tokio::time::timeout(WELCOME_WITHIN, welcome).await.ok()?
}
