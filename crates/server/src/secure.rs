//! TLS at the client port: what it is given, when it looks for another certificate, and what it tells metrics.

use std::sync::Arc;
use std::time::Duration;

use tenure_replica::Execution;
use tenure_tls::{Reload, ServerTls};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::metrics::Traffic;

/// How often it is looked whether there is another certificate to present.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// TLS of a client port.
#[derive(Clone, Debug)]
pub struct ClientPortTls {
    /// The certificate, and whose are believed.
    pub tls: Arc<ServerTls>,
    /// Serve plaintext as well, so that clients can change over. The port is as open as without TLS.
    pub plaintext_too: bool,
}

/// Has a port look for another certificate at once.
#[derive(Clone, Debug, Default)]
pub struct Reloader(Arc<Notify>);

impl Reloader {
    /// Now.
    pub fn reload(&self) {
        self.0.notify_one();
    }

    /// Looks now and then, and when asked to, for as long as it is polled.
    pub(crate) async fn keep(self, tls: Arc<ServerTls>, traffic: Arc<Traffic>, execution: Execution) {
        loop {
            traffic.certificate_ends(tls.ends());
            let asked = tokio::select! {
                biased;
                () = self.0.notified() => true,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            let looked = tls.clone();
            match execution.blocking(move || looked.reload(asked)).await {
                Ok(Reload::Unchanged) => {}
                Ok(Reload::Replaced) => info!("another certificate is presented to clients from now on"),
                Err(error) => {
                    traffic.reload_failed();
                    warn!(%error, "the certificate for clients was not replaced; the one before it stays");
                }
            }
        }
    }
}
