//! Who is speaking: the first frame in each direction, and who is turned away.
//!
//! Both sides say their node, the identity of their data directory and their cluster. A node that
//! comes back under a number whose directory others remember differently has lost what it promised,
//! so nobody listens to it, and it is told how to come back.

use super::frame::{self, Frame, FrameReader};
use crate::NodeId;
use crate::data_dir::Identity;
use bytes::{Buf, BufMut, Bytes};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

const MAGIC: u64 = u64::from_le_bytes(*b"TENUREPR");
/// The kind of a handshake's frame.
const HELLO: u8 = 0;
/// The oldest and the newest protocol this program speaks. A rolling upgrade needs the ranges of
/// neighbouring releases to overlap.
const VERSION_MIN: u16 = 1;
const VERSION_MAX: u16 = 1;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Asking who is there, before there is a cluster; nothing follows.
    Probe = 1,
    /// Consensus: small and urgent, or appends.
    Consensus = 2,
    /// Snapshots and forwarded requests: large, or slow to answer.
    Bulk = 3,
}

/// What one side says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub purpose: Purpose,
    pub from: Identity,
    /// Whom the speaker believes to be talking to.
    pub to: NodeId,
    /// The identity that the speaker's cluster remembers for `to`.
    pub remembered: Option<u128>,
    /// Why the speaker will not talk, if it will not.
    pub refusal: Option<String>,
    version_min: u16,
    version_max: u16,
}

impl Hello {
    pub fn new(purpose: Purpose, from: Identity, to: NodeId) -> Self {
        let (version_min, version_max) = (VERSION_MIN, VERSION_MAX);
        Self { purpose, from, to, remembered: None, refusal: None, version_min, version_max }
    }

    /// Why we do not talk to whoever said this, if we do not. `remembered` is the identity that our
    /// membership names for that node.
    pub fn objection(&self, ours: Identity, remembered: Option<u128>) -> Option<String> {
        let node = self.from.node;
        if self.version_min > VERSION_MAX || self.version_max < VERSION_MIN {
            return Some(format!(
                "node {node} speaks peer protocol {} to {}, node {} speaks {VERSION_MIN} to {VERSION_MAX}: upgrade one \
                 minor version at a time",
                self.version_min, self.version_max, ours.node
            ));
        }
        if self.to != ours.node {
            return Some(format!(
                "this is node {}, not node {}: look at the peer addresses",
                ours.node, self.to
            ));
        }
        if self.from.cluster.zip(ours.cluster).is_some_and(|(theirs, ours)| theirs != ours) {
            return Some(format!("node {node} belongs to another cluster: look at the peer addresses"));
        }
        // Theirs of us, then ours of them: either side may be the one that was wiped.
        if self.remembered.is_some_and(|remembered| remembered != ours.identity) {
            return Some(forgotten(ours.node));
        }
        remembered.filter(|remembered| *remembered != self.from.identity).map(|_| forgotten(node))
    }

    fn encode(&self) -> Bytes {
        let mut output = Vec::new();
        output.put_u64_le(MAGIC);
        output.put_u16_le(self.version_min);
        output.put_u16_le(self.version_max);
        output.put_u8(self.purpose as u8);
        output.put_u64_le(self.from.node);
        output.put_u128_le(self.from.identity);
        for option in [self.from.cluster, self.remembered] {
            output.put_u8(option.is_some().into());
            output.put_u128_le(option.unwrap_or(0));
        }
        output.put_u64_le(self.to);
        output.put_u8(self.refusal.is_some().into());
        output.extend_from_slice(self.refusal.as_deref().unwrap_or("").as_bytes());
        output.into()
    }

    fn decode(mut input: Bytes) -> Option<Self> {
        if input.try_get_u64_le().ok()? != MAGIC {
            return None;
        }
        let version_min = input.try_get_u16_le().ok()?;
        let version_max = input.try_get_u16_le().ok()?;
        let purpose = match input.try_get_u8().ok()? {
            1 => Purpose::Probe,
            2 => Purpose::Consensus,
            3 => Purpose::Bulk,
            _ => return None,
        };
        let node = input.try_get_u64_le().ok()?;
        let identity = input.try_get_u128_le().ok()?;
        let mut option = || {
            let some = input.try_get_u8().ok()? != 0;
            let value = input.try_get_u128_le().ok()?;
            Some(some.then_some(value))
        };
        let (cluster, remembered) = (option()?, option()?);
        let to = input.try_get_u64_le().ok()?;
        let refused = input.try_get_u8().ok()? != 0;
        let text = String::from_utf8_lossy(&input).into_owned();
        let from = Identity { node, identity, cluster };
        Some(Self {
            purpose,
            from,
            to,
            remembered,
            refusal: refused.then_some(text),
            version_min,
            version_max,
        })
    }

    /// Says this.
    pub async fn send<W: AsyncWrite + Unpin>(&self, stream: &mut W) -> io::Result<()> {
        frame::write(stream, &Frame { kind: HELLO, call: 0, body: self.encode() }).await?;
        stream.flush().await
    }

    /// Hears what the other side says.
    pub async fn receive<R: AsyncRead + Unpin>(reader: &mut FrameReader<R>) -> io::Result<Self> {
        let frame = reader.next().await?;
        let hello = if frame.kind == HELLO { Self::decode(frame.body) } else { None };
        hello.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the other side is no peer of ours"))
    }
}

/// What a node is told whose directory is not the one that its cluster remembers.
pub(crate) fn forgotten(node: NodeId) -> String {
    format!(
        "node {node} is known to the cluster with another data directory, and has forgotten what it promised there. \
         Bring the old directory back; or remove node {node} from the cluster and add this one under a number that was \
         never used"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node: NodeId, identity: u128, cluster: Option<u128>) -> Identity {
        Identity { node, identity, cluster }
    }

    #[test]
    fn what_is_said_is_heard() {
        let mut hello = Hello::new(Purpose::Bulk, identity(3, 1 << 100, Some(9)), 4);
        hello.remembered = Some(5);
        hello.refusal = Some("no".into());
        let bytes = hello.encode();
        assert_eq!(Hello::decode(bytes.clone()), Some(hello));
        for length in 0..bytes.len() - 2 {
            assert_eq!(Hello::decode(bytes.slice(..length)), None, "{length} bytes");
        }
    }

    #[test]
    fn strangers_are_turned_away() {
        let ours = identity(1, 10, Some(7));
        let hello = |theirs, to| Hello::new(Purpose::Consensus, theirs, to);
        assert_eq!(hello(identity(2, 20, Some(7)), 1).objection(ours, Some(20)), None);
        assert_eq!(hello(identity(2, 20, None), 1).objection(ours, None), None);
        let objection = |hello: Hello, remembered| hello.objection(ours, remembered).expect("an objection");
        assert!(objection(hello(identity(2, 20, Some(8)), 1), None).contains("another cluster"));
        assert!(objection(hello(identity(2, 20, Some(7)), 3), None).contains("not node 3"));
        assert!(objection(hello(identity(2, 21, Some(7)), 1), Some(20)).contains("never used"));
        let wiped = Hello { remembered: Some(11), ..hello(identity(2, 20, Some(7)), 1) };
        assert!(objection(wiped, Some(20)).contains("node 1 is known"));
        let newer = Hello { version_min: 2, version_max: 3, ..hello(identity(2, 20, None), 1) };
        assert!(objection(newer, None).contains("one minor version at a time"));
    }
}
