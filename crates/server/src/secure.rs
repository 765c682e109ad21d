//! TLS at the client port: what it is given, when it looks for another certificate, and what it tells metrics.

use std::sync::Arc;
use std::time::Duration;

use tenure_replica::Execution;
use tenure_tls::{Reload, ServerTls, VerifiedClient};
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

/// The certificate with which a request's connection has identified itself; in the extensions of the request. It was
/// verified: signed by the root, or by an authority for clients, and valid when the connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate(Arc<VerifiedClient>);

impl ClientCertificate {
    pub(crate) fn new(client: VerifiedClient) -> ClientCertificate {
        ClientCertificate(Arc::new(client))
    }

    /// The certificate itself, without those that have signed it.
    pub fn der(&self) -> &[u8] {
        &self.0.certificate
    }

    /// Whether the root has signed it. Names that begin with `tenure://` mean something only then: an authority for
    /// clients may write any name.
    pub fn is_by_root(&self) -> bool {
        self.0.by_root
    }
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
