//! A connection to a store, and everything that is kept alive over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenure_clock::{Clock, SystemClock};
use tenure_core::Nonce;
use tenure_tls::{ClientTls, ClientTlsOptions, TlsError};
use tokio::sync::mpsc;

use crate::changes::Changes;
use crate::credential::{Credential, CredentialError};
use crate::dial::{Dial, Dialer};
use crate::embedded::Embedded;
use crate::endpoints::{Endpoint, Endpoints, InvalidEndpoint};
use crate::execution::{Execution, Work};
use crate::fences::Refusals;
use crate::net::Network;
use crate::registers::Registers;
use crate::renewer::{Renewer, ToRenewer};
use crate::session::SessionRequest;
use crate::session_driver::{KeepOptions, SessionDriver};
use crate::store::{Store, TimeBase};
use crate::transport::random_nonce;

/// What all sessions of a client share.
pub(crate) struct Shared {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub execution: Execution,
    pub refusals: Refusals,
    pub renewer: mpsc::UnboundedSender<ToRenewer>,
    /// Sessions that the store let run out before their deadlines.
    pub early_ends: AtomicU64,
}

/// Why no client can be made of what the environment says.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// An endpoint is none.
    #[error(transparent)]
    Endpoint(#[from] InvalidEndpoint),
    /// There is no credential where one is said to be.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// TLS cannot be used as it is asked for.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A client of one store. Cheap to clone; clones share their connections and their renewer.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure_client::Client;
///
/// // With a cluster: Client::connect(&"db-1:7400,db-2:7400".parse()?)
/// let client = Client::embedded();
/// let session = client.session().holder("settlement").open().await?;
/// let lease = session.acquire("settlement/cron").wait().await?;
/// let permit = lease.permit()?;
/// assert!(permit.time_left() > std::time::Duration::from_secs(5));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<Shared>);

impl Client {
    /// A client of the cluster behind these endpoints; any one of them is enough, and one may be the host's
    /// agent. Nothing is connected yet, and the application's runtime is never needed for it.
    ///
    /// While it has sessions the nodes send it the list of members, and it follows them: the nodes of a
    /// cluster can all be replaced, one after the other. The endpoints given here are never dropped. An
    /// address that a node names is used once a node of the same cluster has answered there.
    pub fn connect(endpoints: &Endpoints) -> Client {
        Client::connected(endpoints, Arc::new(SystemClock), Dialer::of(endpoints), Execution::Threads)
    }

    /// A client of a cluster over a network of the caller's own, living by any clock, running anywhere: for
    /// simulation.
    pub fn over(
        endpoints: &Endpoints,
        dial: Arc<dyn Dial>,
        clock: Arc<dyn Clock>,
        execution: Execution,
    ) -> Client {
        Client::connected(endpoints, clock, Dialer::over(dial, endpoints), execution)
    }

    fn connected(
        endpoints: &Endpoints,
        clock: Arc<dyn Clock>,
        dialer: Dialer,
        execution: Execution,
    ) -> Client {
        let store = Network::new(endpoints, clock.clone(), dialer, &execution);
        Client::with(Arc::new(store), clock, execution)
    }

    /// A client of the cluster that the environment names: `TENURE_ENDPOINTS` (else what the credential names, else
    /// a node on this machine), with the credential in the file `TENURE_CREDENTIAL` if that is set, asked through the
    /// agent at `TENURE_AGENT` if that is set (`unix:/run/tenure.sock`, or just the path). Over TLS if the credential
    /// has the certificate of the cluster's root, or `TENURE_CA` names a file with the certificates of authorities;
    /// with the certificate in `TENURE_CERT` and its key in `TENURE_KEY`, if these are set, and the name in
    /// `TENURE_SERVER_NAME` if the nodes' certificates have another one than the endpoints.
    pub fn from_environment() -> Result<Client, EnvironmentError> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let credential = set("TENURE_CREDENTIAL").map(Credential::load).transpose()?;
        let mut nodes: Endpoints = match set("TENURE_ENDPOINTS") {
            Some(list) => list.parse()?,
            None => credential.as_ref().and_then(Credential::endpoints).unwrap_or_default(),
        };
        if let Some(authorities) = set("TENURE_CA") {
            let options = ClientTlsOptions { server_name, ..ClientTlsOptions::default() };
            let mut options = options.authorities_file(authorities.as_ref())?;
            if let (Some(certificate), Some(key)) = (set("TENURE_CERT"), set("TENURE_KEY")) {
                options = options.certificate_files(certificate.as_ref(), key.as_ref())?;
            }
            nodes = nodes.secured(ClientTls::new(options, Arc::new(SystemClock))?);
        } else if let Some(credential) = &credential
            && let Some(tls) = credential.tls(set("TENURE_SERVER_NAME"))?
        {
            nodes = nodes.secured(tls);
        }
        if let Some(credential) = credential {
            nodes = nodes.with_credential(credential);
        }
        let agent = set("TENURE_AGENT").map(|agent| match agent.strip_prefix('/') {
            Some(_) => Ok(Endpoint::agent(agent)),
            None => agent.parse(),
        });
        Ok(Client::connect(&match agent {
            Some(agent) => nodes.through(agent?),
            None => nodes,
        }))
    }

    /// A client of a new store inside this process: for tests, examples, and programs whose contenders are
    /// threads.
    pub fn embedded() -> Client {
        Client::with(Arc::new(Embedded::new()), Arc::new(SystemClock), Execution::Threads)
    }

    /// A client of any store, living by any clock, running anywhere: for simulation, and for other stores.
    pub fn with(store: Arc<dyn Store>, clock: Arc<dyn Clock>, execution: Execution) -> Client {
        let (renewer, inbox) = mpsc::unbounded_channel();
        let beating = Renewer::new(store.clone(), clock.clone(), inbox, renewer.downgrade());
        execution.spawn(Work::Renewer, beating.run());
        let (refusals, early_ends) = (Refusals::default(), AtomicU64::new(0));
        Client(Arc::new(Shared { store, clock, execution, refusals, renewer, early_ends }))
    }

    /// How a new session is to be opened.
    pub fn session(&self) -> SessionRequest {
        SessionRequest::new(self.clone())
    }

    /// Reads registers, and writes them without a session: at least once.
    pub fn registers(&self) -> Registers {
        Registers::of_nobody(self.clone())
    }

    /// Changes under a prefix of resources and registers, from now on.
    pub fn watch(&self, prefix: impl Into<String>) -> Changes {
        Changes::begin(&self.0, prefix.into(), None)
    }

    /// By what the store counts the life of a session.
    pub fn time_base(&self) -> TimeBase {
        self.0.store.time_base()
    }

    /// How many sessions of this client [ended early](crate::Session::ended_early). For a metric, and an
    /// alert above zero: the leader's clock runs faster than rho allows, or this machine's slower, and then
    /// only fences protect.
    pub fn early_ends(&self) -> u64 {
        self.0.early_ends.load(Ordering::Relaxed)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    pub(crate) fn keep(&self, options: KeepOptions) -> Arc<SessionDriver> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        let driver = SessionDriver::new(key, self.0.clone(), options, Nonce::new(random_nonce()));
        // The renewer lives as long as any client or session of it, and this is one.
        let _ = self.0.renewer.send(ToRenewer::Join(driver.clone()));
        driver
    }
}
