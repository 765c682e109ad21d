//! Somebody at the peer port who speaks the protocol without being a node: bytes made by hand, so that no check of the
//! library stands between an attack and the node.

use std::io;
use std::time::Duration;
use tenure_replica::{Network, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The numbers of purposes and calls on the wire.
pub const PROBE: u8 = 1;
pub const CONSENSUS: u8 = 2;
pub const BULK: u8 = 3;
pub const HEARTBEAT: u8 = 2;
pub const VOTE: u8 = 3;
pub const PRE_VOTE: u8 = 4;
pub const TRANSFER: u8 = 5;
pub const SNAPSHOT_BEGIN: u8 = 6;
pub const FORWARD: u8 = 9;
pub const PING: u8 = 10;
pub const ANSWER: u8 = 64;

/// What one side says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub purpose: u8,
    pub node: u64,
    pub identity: u128,
    pub cluster: Option<u128>,
    pub remembered: Option<u128>,
    pub to: u64,
    /// Only in answers.
    pub refusal: Option<String>,
    /// Whether anything was said of a log: only in answers.
    pub log: bool,
}

impl Greeting {
    pub fn new(purpose: u8, node: u64, to: u64) -> Self {
        Self { purpose, node, identity: 4711, cluster: None, remembered: None, to, refusal: None, log: false }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"TENUREPR".to_vec();
        // Format versions 1 to 2.
        bytes.extend([1, 0, 2, 0, self.purpose]);
        bytes.extend(self.node.to_le_bytes());
        bytes.extend(self.identity.to_le_bytes());
        for option in [self.cluster, self.remembered] {
            bytes.push(option.is_some().into());
            bytes.extend(option.unwrap_or(0).to_le_bytes());
        }
        bytes.extend(self.to.to_le_bytes());
        bytes.push(0);
        bytes
    }

    fn read(bytes: &[u8]) -> Self {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let wide = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().unwrap());
        let option = |at: usize| (bytes[at] != 0).then(|| wide(at + 1));
        let rest = &bytes[80..];
        let refused = bytes[79] != 0;
        Self {
            purpose: bytes[12],
            node: number(13),
            identity: wide(21),
            cluster: option(37),
            remembered: option(54),
            to: number(71),
            refusal: refused.then(|| String::from_utf8_lossy(rest).into_owned()),
            log: !refused && !rest.is_empty(),
        }
    }
}

/// A connection to a peer port.
pub struct Stranger(Box<dyn Stream>);

impl Stranger {
    pub async fn connect(network: &dyn Network, address: &str) -> io::Result<Self> {
        Ok(Self(network.connect(address).await?))
    }

    /// Connects, says who it claims to be, and returns what is answered.
    pub async fn greet(
        network: &dyn Network,
        address: &str,
        greeting: &Greeting,
    ) -> io::Result<(Self, Greeting)> {
        Self::greet_on(network.connect(address).await?, greeting).await
    }

    /// The same on a connection that was made already.
    pub async fn greet_on(stream: Box<dyn Stream>, greeting: &Greeting) -> io::Result<(Self, Greeting)> {
        let mut this = Self(stream);
        this.send(0, 0, &greeting.bytes()).await?;
        let (_, answer) = this.receive().await?;
        Ok((this, Greeting::read(&answer)))
    }

    async fn send(&mut self, kind: u8, call: u64, body: &[u8]) -> io::Result<()> {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend(call.to_le_bytes());
        frame.extend(body);
        self.0.write_all(&frame).await?;
        self.0.flush().await
    }

    async fn receive(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let receive = async {
            let mut header = [0; 13];
            self.0.read_exact(&mut header).await?;
            let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize];
            self.0.read_exact(&mut body).await?;
            io::Result::Ok((header[4], body))
        };
        tokio::time::timeout(Duration::from_secs(5), receive).await.map_err(|_| io::ErrorKind::TimedOut)?
    }

    /// Sends a call; the kind and body of its answer. An error if the connection ends instead.
    pub async fn call(&mut self, kind: u8, body: &[u8]) -> io::Result<(u8, Vec<u8>)> {
        self.send(kind, 1, body).await?;
        self.receive().await
    }
}

/// `term u64 · node u64 · committed u8`.
pub fn vote(term: u64, node: u64, committed: bool) -> Vec<u8> {
    let mut bytes = term.to_le_bytes().to_vec();
    bytes.extend(node.to_le_bytes());
    bytes.push(committed.into());
    bytes
}

const NO_PLACE: [u8; 17] = [0; 17];

/// An append without entries.
pub fn heartbeat(term: u64, node: u64) -> Vec<u8> {
    [&vote(term, node, true)[..], &NO_PLACE, &NO_PLACE, &[0; 4]].concat()
}

/// Asking for a vote, with a log that nobody else has.
pub fn candidacy(term: u64, node: u64) -> Vec<u8> {
    let mut last = vec![1];
    last.extend(u64::MAX.to_le_bytes());
    last.extend(u64::MAX.to_le_bytes());
    // The last byte: leadership is handed over, so that nobody waits for a leader's lease to end.
    [&vote(term, node, false)[..], &last, &[1]].concat()
}

/// Leadership handed to a node.
pub fn handover(term: u64, node: u64) -> Vec<u8> {
    [&vote(term, node, true)[..], &1u64.to_le_bytes(), &NO_PLACE].concat()
}
