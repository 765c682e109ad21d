//! Roots, and clients that speak TLS: as they should, and as they should not.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_core::WallTime;
use tenure_tls::{ClientTls, ClientTlsOptions, Issued, Protocol, Root};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::program::tenure_binary;
use crate::scratch::Scratch;

/// How long one exchange may take; a test that runs into it has failed.
const EXCHANGED_WITHIN: Duration = Duration::from_secs(30);

/// A root in a file, as `tenure cluster new-root` makes it.
#[derive(Debug)]
pub struct RootFile {
    scratch: Scratch,
    root: Root,
}

impl RootFile {
    /// A new one.
    pub fn new(name: &str) -> RootFile {
        let scratch = Scratch::new(name);
        let path = scratch.path().join("root.pem");
        let file = File::create(&path).expect("a file can be made");
        let mut command = Command::new(tenure_binary());
        command.args(["cluster", "new-root"]).stdin(Stdio::null()).stdout(file);
        assert!(command.status().expect("the tenure binary can be started").success());
        let root = Root::read(&path).expect("it is a root that nobody else can read");
        RootFile { scratch, root }
    }

    /// Where it is.
    pub fn path(&self) -> String {
        self.file("root.pem").display().to_string()
    }

    /// Another file beside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// The root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Its certificates in a file of their own, as applications get it.
    pub fn authority(&self) -> String {
        let text = fs::read_to_string(self.path()).expect("it can be read");
        let end = "-----END CERTIFICATE-----\n";
        let certificate = text.split_inclusive(end).next().expect("a certificate");
        let path = self.file("ca.pem");
        fs::write(&path, certificate).expect("a file can be written");
        path.display().to_string()
    }

    /// A client that believes this root and shows what it is given.
    pub fn client(&self, certificate: Option<Issued>) -> Tls {
        let authorities = self.root.certificates().to_vec();
        let options = ClientTlsOptions { authorities, certificate, ..ClientTlsOptions::default() };
        Tls(ClientTls::new(options, Arc::new(SystemClock)).expect("a client"))
    }

    /// So long ago.
    pub fn ago(by: Duration) -> WallTime {
        WallTime::from_unix_millis(SystemClock.wall().as_unix_millis() - by.as_millis() as u64)
    }
}

/// A client that speaks TLS.
#[derive(Clone, Debug)]
pub struct Tls(pub ClientTls);

impl Tls {
    /// Sends bytes inside of TLS, and returns all that comes back until the server hangs up.
    pub async fn exchange(
        &self,
        address: SocketAddr,
        host: &str,
        protocol: Protocol,
        bytes: &[u8],
    ) -> io::Result<Vec<u8>> {
        let exchange = async {
            let stream = TcpStream::connect(address).await?;
            let mut stream = self.0.connect(host, stream, protocol).await?;
            stream.write_all(bytes).await?;
            stream.flush().await?;
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer).await {
                Ok(_) => Ok(answer),
                Err(_) if !answer.is_empty() => Ok(answer),
                Err(error) => Err(error),
            }
        };
        tokio::time::timeout(EXCHANGED_WITHIN, exchange).await.expect("the exchange ends")
    }

    /// One GET over HTTP/1.1: the whole answer.
    pub async fn get(&self, address: SocketAddr, path: &str) -> io::Result<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let answer = self.exchange(address, "127.0.0.1", Protocol::Http1, request.as_bytes()).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}
