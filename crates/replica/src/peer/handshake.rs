//! The handshake: the first frame in each direction, and which nodes are refused.
//!
//! Both sides send their node, the identity of their data directory and their cluster. A node whose number
//! others know with another identity has lost what it promised: it is refused, with an error that says how to
//! replace it. The same holds for a node whose log ends before what its leader saw it acknowledge
//! (`acknowledged`).

use super::acknowledged::{Acknowledged, LogEnd};
use super::frame::{self, Frame, FrameReader};
use crate::NodeId;
use crate::data_dir::Identity;
use crate::wal::LogId;
use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

const MAGIC: u64 = u64::from_le_bytes(*b"TENUREPR");
/// The kind of a handshake's frame.
const HELLO: u8 = 0;
/// The format versions that a program reads and writes: of what is stored, and of the peer protocol. A
/// rolling upgrade needs the ranges of neighbouring releases to overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl Default for Versions {
    /// The first.
    fn default() -> Self {
        Self { oldest: 1, newest: 1 }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

/// The format version that the cluster has agreed on, as far as this node has applied. The state machine sets
/// it, and everything that writes reads it.
#[derive(Clone, Debug)]
pub struct Agreed(Arc<AtomicU16>);

impl Default for Agreed {
    fn default() -> Self {
        Self(Arc::new(AtomicU16::new(1)))
    }
}

impl Agreed {
    /// The version's number.
    pub fn get(&self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes in what was agreed on.
    pub fn set(&self, version: u16) {
        self.0.store(version, Ordering::Relaxed);
    }
}

/// What this node speaks, and what the others said that they speak.
#[derive(Debug, Default)]
pub(crate) struct Spoken {
    own: Versions,
    agreed: Agreed,
    received: Mutex<BTreeMap<NodeId, Versions>>,
}

impl Spoken {
    pub fn new(own: Versions, agreed: Agreed) -> Self {
        Self { own, agreed, received: Mutex::default() }
    }

    /// Why whoever said this cannot take part, because of the version that the cluster has agreed on.
    pub fn disagreement(&self, hello: &Hello) -> Option<String> {
        let (agreed, node, theirs) = (self.agreed.get(), hello.from.node, hello.versions);
        if theirs.newest < agreed {
            return Some(format!(
                "node {node} knows format versions {theirs}, and this cluster has agreed on {agreed}: start it with the \
                 release that the other nodes run"
            ));
        }
        (theirs.oldest > agreed).then(|| {
            format!(
                "node {node} knows format versions {theirs}, and this cluster has agreed on {agreed}: start the release \
                 before it on every node, run `tenure cluster upgrade`, then start this one again"
            )
        })
    }

    pub fn own(&self) -> Versions {
        self.own
    }

    /// Takes in what a peer said. A restarted one may speak something else than before.
    pub fn receive(&self, node: NodeId, versions: Versions) {
        self.received.lock().insert(node, versions);
    }

    /// The newest version that this node and these understand: all that may be used among them. A member that
    /// has not connected yet is taken to understand no more than the oldest.
    pub fn common(&self, others: impl IntoIterator<Item = NodeId>) -> u16 {
        let received = self.received.lock();
        let newest = |node| received.get(&node).map_or(self.own.oldest, |versions| versions.newest);
        others.into_iter().map(newest).fold(self.own.newest, u16::min)
    }
}

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
    /// What the speaker understands.
    pub versions: Versions,
    /// How far the speaker's log reaches; none if it does not say, as older programs and refusals do not.
    pub log: Option<LogEnd>,
    /// What the speaker, as a leader, saw `to` acknowledge in its term.
    pub acknowledged: Option<Acknowledged>,
}

impl Hello {
    pub fn new(purpose: Purpose, from: Identity, to: NodeId, versions: Versions) -> Self {
        Self { purpose, from, to, remembered: None, refusal: None, versions, log: None, acknowledged: None }
    }

    /// Why we do not talk to whoever said this, because one of us has lost what it had acknowledged to the
    /// other: our own log ends at `log`, and we saw the other acknowledge `acknowledged`.
    pub fn loss(&self, ours: Identity, log: LogEnd, acknowledged: Option<Acknowledged>) -> Option<Loss> {
        // A stranger could say anything. Who knows our identity and our cluster's has both from the log.
        let known = self.from.cluster.is_some() && self.from.cluster == ours.cluster;
        let of_us = self.acknowledged.filter(|_| known && self.remembered == Some(ours.identity));
        if let Some(seen) = of_us.filter(|seen| seen.is_lost_by(log)) {
            return Some(Loss::Ours(lost(ours.node, seen, log)));
        }
        let theirs = self.log?;
        let seen = acknowledged.filter(|seen| seen.is_lost_by(theirs))?;
        Some(Loss::Theirs(lost(self.from.node, seen, theirs)))
    }

    /// Why we, who speak `versions`, do not talk to whoever said this, if we do not. `remembered` is the
    /// identity that our membership names for that node.
    pub fn objection(&self, ours: Identity, versions: Versions, remembered: Option<u128>) -> Option<String> {
        let node = self.from.node;
        if self.versions.oldest > versions.newest || self.versions.newest < versions.oldest {
            return Some(format!(
                "node {node} speaks peer protocol {}, node {} speaks {versions}: upgrade one minor version at a time",
                self.versions, ours.node
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
        output.put_u16_le(self.versions.oldest);
        output.put_u16_le(self.versions.newest);
        output.put_u8(self.purpose as u8);
        output.put_u64_le(self.from.node);
        output.put_u128_le(self.from.identity);
        for option in [self.from.cluster, self.remembered] {
            output.put_u8(option.is_some().into());
            output.put_u128_le(option.unwrap_or(0));
        }
        output.put_u64_le(self.to);
        output.put_u8(self.refusal.is_some().into());
        match (&self.refusal, self.log) {
            (Some(refusal), _) => output.extend_from_slice(refusal.as_bytes()),
            // Older programs read nothing behind a flag that says that there is no refusal.
            (None, Some(log)) => {
                put_place(&mut output, log.term, log.last);
                let seen = self.acknowledged;
                put_place(&mut output, seen.map_or(0, |seen| seen.term), seen.map(|seen| seen.last));
            }
            (None, None) => {}
        }
        output.into()
    }

    fn decode(mut input: Bytes) -> Option<Self> {
        if input.try_get_u64_le().ok()? != MAGIC {
            return None;
        }
        let oldest = input.try_get_u16_le().ok()?;
        let newest = input.try_get_u16_le().ok()?;
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
        let versions = Versions { oldest, newest };
        let mut hello = Self::new(purpose, Identity { node, identity, cluster }, to, versions);
        hello.remembered = remembered;
        if refused {
            hello.refusal = Some(String::from_utf8_lossy(&input).into_owned());
        } else if !input.is_empty() {
            let (term, last) = get_place(&mut input)?;
            hello.log = Some(LogEnd { term, last });
            let (term, last) = get_place(&mut input)?;
            hello.acknowledged = last.map(|last| Acknowledged { term, last });
        }
        Some(hello)
    }

    /// Says this.
    pub async fn send<W: AsyncWrite + Unpin>(&self, stream: &mut W) -> io::Result<()> {
        frame::write(stream, &Frame { kind: HELLO, call: 0, body: self.encode() }).await?;
        stream.flush().await
    }

    /// Receives what the other side says.
    pub async fn receive<R: AsyncRead + Unpin>(reader: &mut FrameReader<R>) -> io::Result<Self> {
        let frame = reader.next().await?;
        let hello = if frame.kind == HELLO { Self::decode(frame.body) } else { None };
        hello.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the other side is no peer of ours"))
    }
}

/// Who has lost what it had acknowledged, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// We have. A node that finds this of itself stops.
    Ours(String),
    /// The other side has.
    Theirs(String),
}

/// `term u64 · some u8 · entry's term u64 · entry's index u64`.
fn put_place(output: &mut Vec<u8>, term: u64, last: Option<LogId>) {
    let LogId { term: entry_term, index } = last.unwrap_or(LogId { term: 0, index: 0 });
    output.put_u64_le(term);
    output.put_u8(last.is_some().into());
    output.put_u64_le(entry_term);
    output.put_u64_le(index);
}

fn get_place(input: &mut Bytes) -> Option<(u64, Option<LogId>)> {
    let term = input.try_get_u64_le().ok()?;
    let some = input.try_get_u8().ok()? != 0;
    let last = LogId { term: input.try_get_u64_le().ok()?, index: input.try_get_u64_le().ok()? };
    Some((term, some.then_some(last)))
}

fn lost(node: NodeId, seen: Acknowledged, log: LogEnd) -> String {
    let end = log.last.map_or("holds nothing".into(), |last| format!("ends with entry {}", last.index));
    format!(
        "node {node} has lost what it had acknowledged: the leader of term {} has its word for entry {}, and its log {end} \
         (term {}). Bring the lost data back if it still exists; or remove node {node} from the cluster and add it again \
         with an empty data directory under a number that was never used",
        seen.term, seen.last.index, log.term
    )
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
    fn what_is_sent_is_received() {
        let versions = Versions { oldest: 3, newest: 5 };
        let mut hello = Hello::new(Purpose::Bulk, identity(3, 1 << 100, Some(9)), 4, versions);
        hello.remembered = Some(5);
        hello.refusal = Some("no".into());
        let bytes = hello.encode();
        assert_eq!(Hello::decode(bytes.clone()), Some(hello));
        for length in 0..bytes.len() - 2 {
            assert_eq!(Hello::decode(bytes.slice(..length)), None, "{length} bytes");
        }
    }

    #[test]
    fn a_hello_says_how_far_a_log_reaches_and_an_older_one_does_not() {
        let last = LogId { term: 2, index: 9 };
        let versions = Versions::default();
        let older = Hello::new(Purpose::Consensus, identity(3, 1 << 100, Some(9)), 4, versions);
        assert_eq!(Hello::decode(older.encode()), Some(older.clone()));
        for last in [None, Some(last)] {
            let mut hello = Hello { log: Some(LogEnd { term: 7, last }), ..older.clone() };
            hello.acknowledged = last.map(|last| Acknowledged { term: 7, last });
            let bytes = hello.encode();
            assert_eq!(Hello::decode(bytes.clone()), Some(hello));
            let without = older.encode().len();
            for length in without + 1..bytes.len() {
                assert_eq!(Hello::decode(bytes.slice(..length)), None, "{length} bytes");
            }
            let as_older_programs_read_it = &bytes[..without];
            assert_eq!(as_older_programs_read_it, &older.encode()[..]);
        }
    }

    #[test]
    fn either_side_notices_a_loss_and_a_stranger_is_not_believed() {
        let (leader, follower) = (identity(1, 10, Some(7)), identity(2, 20, Some(7)));
        let seen = Some(Acknowledged { term: 3, last: LogId { term: 3, index: 9 } });
        let reaches = |index| LogEnd { term: 3, last: Some(LogId { term: 3, index }) };
        let versions = Versions::default();
        let mut from_leader = Hello::new(Purpose::Consensus, leader, 2, versions);
        from_leader.remembered = Some(20);
        from_leader.acknowledged = seen;
        assert_eq!(from_leader.loss(follower, reaches(9), None), None);
        let Some(Loss::Ours(said)) = from_leader.loss(follower, reaches(8), None) else {
            panic!("unnoticed")
        };
        assert!(said.contains("node 2 has lost what it had acknowledged") && said.contains("never used"));
        for from in [identity(1, 10, Some(8)), identity(1, 10, None)] {
            assert_eq!(Hello { from, ..from_leader.clone() }.loss(follower, reaches(8), None), None);
        }
        let guessing = Hello { remembered: None, ..from_leader };
        assert_eq!(guessing.loss(follower, reaches(8), None), None);

        let mut from_follower = Hello::new(Purpose::Bulk, follower, 1, versions);
        from_follower.log = Some(reaches(8));
        let Some(Loss::Theirs(said)) = from_follower.loss(leader, reaches(12), seen) else {
            panic!("unnoticed")
        };
        assert!(said.contains("node 2 has lost what it had acknowledged"), "{said}");
        assert_eq!(from_follower.loss(leader, reaches(12), None), None, "nothing is known of it");
        from_follower.log = None;
        assert_eq!(from_follower.loss(leader, reaches(12), seen), None, "an older program does not say");
    }

    #[test]
    fn strangers_are_turned_away() {
        let ours = identity(1, 10, Some(7));
        let versions = Versions::default();
        let hello = |theirs, to| Hello::new(Purpose::Consensus, theirs, to, versions);
        assert_eq!(hello(identity(2, 20, Some(7)), 1).objection(ours, versions, Some(20)), None);
        assert_eq!(hello(identity(2, 20, None), 1).objection(ours, versions, None), None);
        let objection =
            |hello: Hello, remembered| hello.objection(ours, versions, remembered).expect("an objection");
        assert!(objection(hello(identity(2, 20, Some(8)), 1), None).contains("another cluster"));
        assert!(objection(hello(identity(2, 20, Some(7)), 3), None).contains("not node 3"));
        assert!(objection(hello(identity(2, 21, Some(7)), 1), Some(20)).contains("never used"));
        let wiped = Hello { remembered: Some(11), ..hello(identity(2, 20, Some(7)), 1) };
        assert!(objection(wiped, Some(20)).contains("node 1 is known"));
        let newer = Versions { oldest: 2, newest: 3 };
        let newer = Hello { versions: newer, ..hello(identity(2, 20, None), 1) };
        assert!(objection(newer.clone(), None).contains("one minor version at a time"));
        let both = Versions { oldest: 1, newest: 2 };
        assert_eq!(newer.objection(ours, both, None), None, "neighbouring releases understand each other");
    }

    #[test]
    fn who_does_not_know_the_agreed_version_is_refused_and_told_the_command() {
        let agreed = Agreed::default();
        let spoken = Spoken::new(Versions { oldest: 1, newest: 3 }, agreed.clone());
        let says = |oldest, newest| {
            Hello::new(Purpose::Consensus, identity(2, 1, None), 1, Versions { oldest, newest })
        };
        assert_eq!(spoken.disagreement(&says(1, 1)), None, "nothing newer was agreed on");
        let why = spoken.disagreement(&says(2, 3)).expect("it cannot read what is written");
        assert!(why.contains("tenure cluster upgrade"), "{why}");
        agreed.set(2);
        assert_eq!(spoken.disagreement(&says(2, 3)), None);
        let why = spoken.disagreement(&says(1, 1)).expect("it cannot read what is written");
        assert!(why.contains("has agreed on 2") && why.contains("release"), "{why}");
    }

    #[test]
    fn only_what_all_understand_is_used() {
        let spoken = Spoken::new(Versions { oldest: 1, newest: 3 }, Agreed::default());
        assert_eq!(spoken.common([]), 3, "alone");
        assert_eq!(spoken.common([2]), 1, "nobody knows what it speaks");
        let said = |newest| Versions { oldest: 1, newest };
        spoken.receive(2, said(2));
        spoken.receive(3, said(4));
        assert_eq!((spoken.common([2, 3]), spoken.common([3])), (2, 3));
        spoken.receive(2, said(3));
        assert_eq!(spoken.common([2, 3]), 3, "upgraded");
    }
}
