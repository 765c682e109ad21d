//! How a command reaches a store that speaks TLS, and as whom.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tenure_clock::SystemClock;
use tenure_tls::{ClientTls, ClientTlsOptions, Root, TlsError};

/// Files, each also named by a variable. With none of them the store is reached without TLS.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// The root of the cluster. Commands sign themselves a certificate with it, as an operator, for ten minutes; `serve`
    /// and the nodes that it starts belong to it
    #[arg(id = "tls_root", long = "root", global = true, env = "TENURE_ROOT", value_name = "FILE")]
    pub root: Option<PathBuf>,
    /// The certificates of the authorities that may sign for the store
    #[arg(id = "tls_ca", long = "ca", global = true, env = "TENURE_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// A certificate to show to the store
    #[arg(
        id = "tls_client_cert",
        long = "cert",
        global = true,
        env = "TENURE_CERT",
        value_name = "FILE",
        requires = "tls_client_key"
    )]
    pub cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(
        id = "tls_client_key",
        long = "key",
        global = true,
        env = "TENURE_KEY",
        value_name = "FILE",
        requires = "tls_client_cert"
    )]
    pub key: Option<PathBuf>,
    /// The name in the store's certificate, if it is not that of the endpoint
    #[arg(
        id = "tls_server_name",
        long = "server-name",
        global = true,
        env = "TENURE_SERVER_NAME",
        value_name = "NAME"
    )]
    pub server_name: Option<String>,
}

impl TlsArgs {
    /// TLS, if any of these were given.
    pub fn client(&self) -> Result<Option<ClientTls>, TlsError> {
        if self.root.is_none() && self.ca.is_none() && self.cert.is_none() {
            return Ok(None);
        }
        let mut options = ClientTlsOptions {
            root: self.root.as_deref().map(Root::read).transpose()?,
            server_name: self.server_name.clone(),
            ..ClientTlsOptions::default()
        };
        if let Some(ca) = &self.ca {
            options = options.authorities_file(ca)?;
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            options = options.certificate_files(cert, key)?;
        }
        ClientTls::new(options, Arc::new(SystemClock)).map(Some)
    }
}
