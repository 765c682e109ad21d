//! Calls of operators: cluster status, step down, add a node, remove one, back up. Restores: `restore.rs`.
//!
//! Only the leader changes the membership, one change at a time, so a follower forwards such a request to it over
//! the peer port; a backup is taken by the node that gets the call. This file decides what is refused because it would
//! cost the cluster its quorum or mix up two nodes; how a membership changes safely is the replica's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use prost::Message;
use tenure_replica::{Leadership, MembershipError, Newcomer, NodeId, PeerStatus, Replica, Status};
use tenure_wire::{ApiError, Captured, Code, proto};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::calls::{failed, role_in_words};
use crate::failure::Failure;
use crate::node::{Node, Route};
use crate::replicated::Replicated;
use crate::restore::RESTORES_MAX;

/// How long a peer may take to say who it is. A status is asked for when something is wrong, so it must not
/// wait for what is wrong.
const WHOIS_WITHIN: Duration = Duration::from_millis(500);
/// How long a change of membership may take: a new node has to receive the whole state first.
const CHANGE_WITHIN: Duration = Duration::from_secs(120);
/// How long a new leader may take to show after the old one has stepped down.
const LEADER_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of a backup in one message.
const PIECE_BYTES: usize = 64 << 10;
/// Messages of a backup that may wait for a slow reader.
const PIECES_WAITING_MAX: usize = 8;

/// What a node remembers for its operators.
pub(crate) struct Admin {
    /// Held while the membership changes.
    changing: tokio::sync::Mutex<()>,
    /// What other nodes last said of themselves: an address is worth knowing most when its node is silent.
    known: Mutex<BTreeMap<NodeId, proto::NodeStatus>>,
    /// Where clients reach the members.
    pub(crate) members: watch::Sender<Vec<String>>,
    /// Turns for restores that this node reads.
    pub(crate) restores: Semaphore,
}

impl Default for Admin {
    fn default() -> Self {
        Admin {
            changing: Default::default(),
            known: Default::default(),
            members: Default::default(),
            restores: Semaphore::new(RESTORES_MAX),
        }
    }
}

/// What an operator asks of the leader, or one node of another.
pub(crate) enum Request {
    Whois,
    StepDown(proto::StepDownRequest),
    Add(proto::NodeAddRequest),
    Remove(proto::NodeRemoveRequest),
    /// Publish the key that you sign with; if it is the one named, another one.
    ShowKey {
        instead_of: String,
    },
    /// Raise the agreed format version.
    Upgrade,
}

/// What travels: a tag, then a message of the public interface.
mod tag {
    pub const WHOIS: u8 = 1;
    pub const STEP_DOWN: u8 = 2;
    pub const ADD: u8 = 3;
    pub const REMOVE: u8 = 4;
    pub const SHOW_KEY: u8 = 5;
    pub const UPGRADE: u8 = 6;

    pub const DONE: u8 = 0;
    pub const REFUSED: u8 = 1;
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let tagged = |tag: u8, message: Vec<u8>| [vec![tag], message].concat();
        match self {
            Request::Whois => vec![tag::WHOIS],
            Request::Upgrade => vec![tag::UPGRADE],
            Request::StepDown(request) => tagged(tag::STEP_DOWN, request.encode_to_vec()),
            Request::Add(request) => tagged(tag::ADD, request.encode_to_vec()),
            Request::Remove(request) => tagged(tag::REMOVE, request.encode_to_vec()),
            Request::ShowKey { instead_of } => tagged(tag::SHOW_KEY, instead_of.encode_to_vec()),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Request, ApiError> {
        let unreadable = || ApiError::new(Code::NoSuchCall, "this node does not know that request");
        let (tag, message) = bytes.split_first().ok_or_else(unreadable)?;
        let read = match *tag {
            tag::WHOIS => Ok(Request::Whois),
            tag::UPGRADE => Ok(Request::Upgrade),
            tag::STEP_DOWN => proto::StepDownRequest::decode(message).map(Request::StepDown),
            tag::ADD => proto::NodeAddRequest::decode(message).map(Request::Add),
            tag::REMOVE => proto::NodeRemoveRequest::decode(message).map(Request::Remove),
            tag::SHOW_KEY => String::decode(message).map(|instead_of| Request::ShowKey { instead_of }),
            _ => return Err(unreadable()),
        };
        read.map_err(|_| unreadable())
    }
}

impl Node {
    /// Hands leadership on, wherever it is.
    pub(crate) async fn step_down(
        &self,
        request: proto::StepDownRequest,
    ) -> Result<proto::StepDownResponse, ApiError> {
        self.administer(Request::StepDown(request)).await
    }

    /// Adds nodes: learners until all have caught up, then voters, in one change.
    pub(crate) async fn add_nodes(
        &self,
        request: proto::NodeAddRequest,
    ) -> Result<proto::NodeAddResponse, ApiError> {
        self.administer(Request::Add(request)).await
    }

    /// Removes a node.
    pub(crate) async fn remove_node(
        &self,
        request: proto::NodeRemoveRequest,
    ) -> Result<proto::NodeRemoveResponse, ApiError> {
        self.administer(Request::Remove(request)).await
    }

    /// Raises the agreed format version.
    pub(crate) async fn upgrade(
        &self,
        _request: proto::UpgradeRequest,
    ) -> Result<proto::UpgradeResponse, ApiError> {
        self.administer(Request::Upgrade).await
    }

    /// Has the leader do it, here or over there.
    async fn administer<A: Message + Default>(&self, request: Request) -> Result<A, ApiError> {
        let reply = match self.leader() {
            Route::Here => self.administer_here(&request.encode()).await,
            Route::To(leader) => self.administer_at(leader, &request).await?,
            Route::Nowhere => return Err(failed(Failure::NoLeader { leader: None })),
        };
        answer_in(&reply)
    }

    async fn administer_at(&self, node: NodeId, request: &Request) -> Result<Vec<u8>, ApiError> {
        let asked = self.forwarder().administer(node, request.encode(), CHANGE_WITHIN);
        asked.await.map_err(failed)
    }

    /// Does what was asked, here, and gives the answer as it travels.
    pub(crate) async fn administer_here(&self, request: &[u8]) -> Vec<u8> {
        let done = match Request::decode(request) {
            Ok(Request::Whois) => Ok(self.whois().encode_to_vec()),
            Ok(Request::Upgrade) => self.upgrade_here().await.map(|done| done.encode_to_vec()),
            Ok(Request::StepDown(request)) => {
                self.step_down_here(request.to).await.map(|done| done.encode_to_vec())
            }
            Ok(Request::Add(request)) => self.add_here(request).await.map(|added| added.encode_to_vec()),
            Ok(Request::Remove(request)) => {
                self.remove_here(request.node).await.map(|()| proto::NodeRemoveResponse {}.encode_to_vec())
            }
            Ok(Request::ShowKey { instead_of }) => self.show_key(&instead_of).await.map(|()| Vec::new()),
            Err(error) => Err(error),
        };
        match done {
            Ok(message) => [vec![tag::DONE], message].concat(),
            Err(error) => [vec![tag::REFUSED], proto::Error::from(error).encode_to_vec()].concat(),
        }
    }

    async fn step_down_here(&self, to: Option<NodeId>) -> Result<proto::StepDownResponse, ApiError> {
        let own = self.replica().node();
        if to.is_some_and(|to| to != own && !self.replica().status().voters.contains(&to)) {
            return Err(unknown_node(to.unwrap_or_default()));
        }
        if to == Some(own) {
            return Err(ApiError::new(Code::InvalidArgument, format!("node {own} leads already")));
        }
        self.replica().transfer_leadership(to).await.map_err(not_changed)?;
        let leader = self.next_leader().await?;
        Ok(proto::StepDownResponse { leader, term: self.replica().status().term })
    }

    /// Who leads now that this node does not.
    async fn next_leader(&self) -> Result<NodeId, ApiError> {
        let own = self.replica().node();
        let mut leadership = self.replica().leadership();
        let other = |leadership: &Leadership| leadership.leader().is_some_and(|leader| leader != own);
        let seen = tokio::time::timeout(LEADER_WITHIN, leadership.wait_for(other)).await;
        let leader = seen.ok().and_then(|seen| seen.ok().and_then(|leadership| leadership.leader()));
        leader.ok_or_else(|| failed(Failure::Unknown { reason: "nobody has taken over yet".into() }))
    }

    async fn add_here(&self, request: proto::NodeAddRequest) -> Result<proto::NodeAddResponse, ApiError> {
        let _changing = self.admin().changing.try_lock().map_err(|_| in_progress())?;
        let two_voters = request.two_voters;
        let wanted = newcomers_in(request)?;
        let status = self.replica().status();
        for (node, address) in &wanted {
            check_newcomer(&status, self.replica(), *node, address)?;
        }
        let nodes: Vec<NodeId> = wanted.keys().copied().collect();
        check_voters(&status.voters, &wanted, two_voters)?;
        // Those that vote already were asked for again because the first answer was lost; but they are done
        // only when the change that made voters of them is.
        let missing = wanted.into_iter().filter(|(node, _)| !status.voters.contains(node));
        let mut newcomers = Vec::new();
        for (node, address) in missing {
            let identity = self.replica().identity_of(node, &address).await.map_err(not_changed)?;
            newcomers.push(Newcomer { node, address, identity });
        }
        if newcomers.is_empty() && !status.changing {
            return Ok(proto::NodeAddResponse { voters: status.voters });
        }
        let added = async {
            if !newcomers.is_empty() {
                self.replica().add_learners(newcomers).await?;
            }
            self.replica().promote(nodes.clone()).await
        };
        match tokio::time::timeout(CHANGE_WITHIN, added).await {
            Ok(added) => added.map_err(not_changed)?,
            Err(_) => return Err(not_yet(&self.replica().status(), &nodes)),
        }
        tracing::info!(?nodes, "nodes were added");
        Ok(proto::NodeAddResponse { voters: self.replica().status().voters })
    }

    async fn remove_here(&self, node: NodeId) -> Result<(), ApiError> {
        let replica = self.replica();
        if node == replica.node() {
            // A leader that removes itself would leave the cluster to an election; one that has handed over does not.
            may_leave(&replica.status(), node, &self.answering().await)?;
            replica.transfer_leadership(None).await.map_err(not_changed)?;
            let leader = self.next_leader().await?;
            let request = Request::Remove(proto::NodeRemoveRequest { node });
            let reply = self.administer_at(leader, &request).await?;
            return answer_in::<proto::NodeRemoveResponse>(&reply).map(|_| ());
        }
        let _changing = self.admin().changing.try_lock().map_err(|_| in_progress())?;
        let status = replica.status();
        if status.learners.contains(&node) {
            replica.remove_learners(vec![node]).await.map_err(not_changed)?;
        } else {
            may_leave(&status, node, &self.answering().await)?;
            let voters = status.voters.into_iter().filter(|voter| *voter != node).collect();
            replica.change_membership(voters).await.map_err(not_changed)?;
        }
        self.admin().known.lock().remove(&node);
        tracing::info!(node, "a node was removed");
        Ok(())
    }

    /// What this node says of itself.
    pub(crate) fn whois(&self) -> proto::NodeStatus {
        let status = self.replica().status();
        proto::NodeStatus {
            node: status.node,
            peer_address: self.replica().peer_address().to_owned(),
            client_address: self.client_address().to_owned(),
            role: role_in_words(status.role).into(),
            reachable: true,
            last_log: status.last_log_index,
            version: env!("CARGO_PKG_VERSION").into(),
            identity: status.identity,
            format_newest: status.format_newest.into(),
        }
    }

    /// Everybody, by asking everybody at once. Who does not answer is shown as it was last known.
    pub(crate) async fn everybody(&self) -> Vec<proto::NodeStatus> {
        let status = self.replica().status();
        let asked = status.peers.iter().map(|peer| async {
            let reply = self.forwarder().administer(peer.node, Request::Whois.encode(), WHOIS_WITHIN).await;
            let said = reply.ok().and_then(|reply| answer_in::<proto::NodeStatus>(&reply).ok());
            self.described(peer, said.filter(|said| said.node == peer.node))
        });
        let mut nodes = join_all(asked).await;
        nodes.push(self.whois());
        nodes.sort_by_key(|node| node.node);
        nodes
    }

    /// Has another node publish the key that it signs with, if it answers; whoever does not is asked again another time.
    pub(crate) async fn ask_for_key(&self, node: NodeId, instead_of: &str) {
        let request = Request::ShowKey { instead_of: instead_of.to_owned() };
        let reply = self.forwarder().administer(node, request.encode(), WHOIS_WITHIN).await;
        if let Err(error) = reply.map_err(failed).and_then(|reply| answer_in::<()>(&reply)) {
            tracing::debug!(node, %error, "a node has not published its key for sequencers");
        }
    }

    /// Who answers right now, this node among them.
    async fn answering(&self) -> BTreeSet<NodeId> {
        let everybody = self.everybody().await;
        everybody.iter().filter(|node| node.reachable).map(|node| node.node).collect()
    }

    fn described(&self, peer: &PeerStatus, said: Option<proto::NodeStatus>) -> proto::NodeStatus {
        let mut known = self.admin().known.lock();
        let last_known = match said {
            Some(said) => {
                known.insert(peer.node, said.clone());
                return said;
            }
            None => known.get(&peer.node).cloned().unwrap_or_default(),
        };
        let role = if peer.voter { "follower" } else { "learner" };
        proto::NodeStatus {
            node: peer.node,
            peer_address: peer.address.clone(),
            role: role.into(),
            reachable: false,
            last_log: peer.matched.or(last_known.last_log),
            ..last_known
        }
    }

    /// A backup of everything acknowledged before this call, piece by piece; or, where a majority is lost, of what
    /// this node has applied.
    pub(crate) async fn backup(&self, stale: bool) -> Result<mpsc::Receiver<io::Result<Vec<u8>>>, ApiError> {
        let state = match stale {
            true => self.glance(Captured::of),
            false => self.read(Captured::of).await.map_err(failed)?,
        };
        let (pieces, receiver) = mpsc::channel(PIECES_WAITING_MAX);
        // A thread of its own: encoding is work, and a slow reader holds it up, not the node.
        tokio::task::spawn_blocking(move || {
            let mut pieces = Pieces { to: pieces, filled: Vec::with_capacity(PIECE_BYTES) };
            if let Err(error) = state.write_backup(&mut pieces) {
                let _ = pieces.to.blocking_send(Err(error));
            }
        });
        Ok(receiver)
    }
}

/// Reads an answer as it travels.
fn answer_in<A: Message + Default>(reply: &[u8]) -> Result<A, ApiError> {
    let unreadable = || failed(Failure::Unknown { reason: "the leader's answer cannot be read".into() });
    match reply.split_first() {
        Some((&tag::DONE, message)) => A::decode(message).map_err(|_| unreadable()),
        Some((&tag::REFUSED, error)) => Err(proto::Error::decode(error).map_err(|_| unreadable())?.into()),
        _ => Err(unreadable()),
    }
}

/// The nodes in a request, with their addresses.
fn newcomers_in(request: proto::NodeAddRequest) -> Result<BTreeMap<NodeId, String>, ApiError> {
    let invalid = |message: String| Err(ApiError::new(Code::InvalidArgument, message));
    let mut nodes = request.nodes;
    if request.node != 0 || !request.peer_address.is_empty() || nodes.is_empty() {
        nodes.push(proto::NewNode { node: request.node, peer_address: request.peer_address });
    }
    let mut wanted: BTreeMap<NodeId, String> = BTreeMap::new();
    for proto::NewNode { node, peer_address } in nodes {
        if node == 0 || peer_address.is_empty() {
            return invalid("a node has a number above zero and an address for peers".into());
        }
        if let Some((other, _)) = wanted.iter().find(|(_, address)| **address == peer_address) {
            return invalid(format!("nodes {other} and {node} cannot share {peer_address}"));
        }
        if wanted.insert(node, peer_address).is_some() {
            return invalid(format!("node {node} is named twice"));
        }
    }
    Ok(wanted)
}

/// Whether the cluster would be better off with these voters, or whoever asks says that it does not matter.
/// Two voters stop when either is lost, so a second one makes a single node less available. Any other even
/// number is as good as the odd one below it: a node that is being replaced leads to it.
fn check_voters(now: &[NodeId], wanted: &BTreeMap<NodeId, String>, two_voters: bool) -> Result<(), ApiError> {
    let then: BTreeSet<NodeId> = now.iter().chain(wanted.keys()).copied().collect();
    if two_voters || then.len() != 2 || now.len() == 2 {
        return Ok(());
    }
    Err(ApiError::new(
        Code::InvalidArgument,
        "there would be two voters, and the cluster would stop as soon as either is lost",
    )
    .hint("add two nodes at once, as in `tenure cluster add 2=HOST:PORT 3=HOST:PORT`; or say --two-voters"))
}

/// Whether a node may come in under this number and address.
fn check_newcomer(
    status: &Status,
    replica: &Replica<Replicated>,
    node: NodeId,
    address: &str,
) -> Result<(), ApiError> {
    let invalid = |message: String| ApiError::new(Code::InvalidArgument, message);
    let own = status.node;
    if replica.is_alone() {
        return Err(invalid("this node was started alone and has no port for peers".into()).hint(format!(
            "restart it with --node {own} --peers {own}=HOST:PORT, where the new nodes can reach it: it keeps its data and \
             its sessions; then add them"
        )));
    }
    match (node == own, address == replica.peer_address()) {
        // Asked for again, and meanwhile it leads.
        (true, true) => return Ok(()),
        (true, false) => {
            return Err(invalid(format!("node {node} is a member already, at {}", replica.peer_address())));
        }
        (false, true) => return Err(invalid(format!("{address} is the address of node {own}"))),
        (false, false) => {}
    }
    if status.removed.contains(&node) {
        return Err(invalid(format!("node {node} was removed from this cluster"))
            .hint("numbers are never used again: give the new node another one"));
    }
    for peer in &status.peers {
        let same = (peer.node == node, peer.address == address);
        match same {
            (true, false) => {
                return Err(invalid(format!("node {node} is a member already, at {}", peer.address)).hint(format!(
                    "numbers are never used again: give the new node another one; and a member that has moved to another \
                     address is replaced by a new node, too: add that, then `tenure cluster remove {node}`"
                )));
            }
            (false, true) => {
                return Err(invalid(format!("{address} is the address of node {}", peer.node)));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether the voters that remain could decide anything without this one.
fn may_leave(status: &Status, node: NodeId, answering: &BTreeSet<NodeId>) -> Result<(), ApiError> {
    if !status.voters.contains(&node) {
        return Err(unknown_node(node));
    }
    let remaining: Vec<NodeId> = status.voters.iter().copied().filter(|voter| *voter != node).collect();
    if remaining.is_empty() {
        return Err(ApiError::new(Code::InvalidArgument, format!("node {node} is the last one")));
    }
    let there = remaining.iter().filter(|voter| answering.contains(voter)).count();
    if 2 * there > remaining.len() {
        return Ok(());
    }
    Err(ApiError::new(
        Code::NotReady,
        format!(
            "without node {node} there would be {} voters and only {there} of them answer: the cluster would stop",
            remaining.len()
        ),
    )
    .hint("bring the silent nodes back, or remove those instead"))
}

/// What is said when the newcomers took too long.
fn not_yet(status: &Status, nodes: &[NodeId]) -> ApiError {
    let learners: Vec<String> =
        nodes.iter().filter(|node| status.learners.contains(node)).map(NodeId::to_string).collect();
    match learners.is_empty() {
        true => ApiError::unknown_outcome("the change of voters has not ended yet")
            .hint("it ends by itself when a majority of the voters answers; ask again to wait for it"),
        false => ApiError::unknown_outcome(&format!("not all have caught up yet: {}", learners.join(", ")))
            .hint("they stay learners and go on catching up; ask again to make them voters"),
    }
}

fn unknown_node(node: NodeId) -> ApiError {
    ApiError::new(Code::UnknownNode, format!("this cluster has no voter {node}"))
        .hint("see who is there with `tenure cluster status`")
}

fn in_progress() -> ApiError {
    ApiError::new(Code::ChangeInProgress, "another change of membership has not ended yet")
        .hint("one at a time: ask again when it is done")
}

fn not_changed(error: MembershipError) -> ApiError {
    match error {
        MembershipError::NotLeader { leader } => failed(Failure::NoLeader { leader }),
        MembershipError::InProgress => in_progress(),
        MembershipError::Absent(message) => ApiError::new(Code::UnknownNode, message)
            .hint("start it first, with --node, --peers (the present members and itself) and an empty data directory"),
        MembershipError::Refused(message) => ApiError::new(Code::InvalidArgument, message),
        MembershipError::Unknown(reason) => failed(Failure::Unknown { reason }),
    }
}

/// Bytes on their way out, cut into messages.
struct Pieces {
    to: mpsc::Sender<io::Result<Vec<u8>>>,
    filled: Vec<u8>,
}

impl Pieces {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.filled, Vec::with_capacity(PIECE_BYTES));
        // Whoever asked may have gone away; then the rest is not worth encoding.
        self.to.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(PIECE_BYTES - self.filled.len());
        self.filled.extend_from_slice(&bytes[..taken]);
        if self.filled.len() == PIECE_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.filled.is_empty() { Ok(()) } else { self.send() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(node: NodeId, address: &str) -> proto::NewNode {
        proto::NewNode { node, peer_address: address.into() }
    }

    fn request(node: NodeId, address: &str, nodes: Vec<proto::NewNode>) -> proto::NodeAddRequest {
        proto::NodeAddRequest { node, peer_address: address.into(), nodes, two_voters: false }
    }

    #[test]
    fn nodes_are_named_once_each_wherever_they_stand_in_the_request() {
        let one = BTreeMap::from([(4, "a:1".to_owned())]);
        assert_eq!(newcomers_in(request(4, "a:1", vec![])).unwrap(), one);
        assert_eq!(newcomers_in(request(0, "", vec![new(4, "a:1")])).unwrap(), one);
        assert_eq!(newcomers_in(request(4, "a:1", vec![new(5, "b:1")])).unwrap().len(), 2);
        for (wrong, why) in [
            (request(0, "", vec![]), "above zero"),
            (request(4, "", vec![]), "above zero"),
            (request(0, "", vec![new(0, "a:1")]), "above zero"),
            (request(0, "", vec![new(4, "a:1"), new(4, "b:1")]), "twice"),
            (request(0, "", vec![new(4, "a:1"), new(5, "a:1")]), "share"),
        ] {
            let error = newcomers_in(wrong).unwrap_err();
            assert!(error.message.contains(why), "{error:?}");
        }
    }

    #[test]
    fn two_voters_are_asked_for_or_refused() {
        let wanted = |nodes: &[NodeId]| -> BTreeMap<NodeId, String> {
            nodes.iter().map(|node| (*node, format!("host-{node}:1"))).collect()
        };
        assert!(check_voters(&[1], &wanted(&[2]), false).unwrap_err().hint.contains("--two-voters"));
        for (now, wanted, two_voters) in [
            (&[1][..], wanted(&[2]), true),
            (&[1], wanted(&[2, 3]), false),
            // There are two already, or a node is being replaced.
            (&[1, 2], wanted(&[2]), false),
            (&[1, 2], wanted(&[3]), false),
            (&[1, 2, 3], wanted(&[4]), false),
        ] {
            assert!(check_voters(now, &wanted, two_voters).is_ok(), "{now:?} and {wanted:?}");
        }
    }
}
