//! Who a speaker is to this node: what this node shows it, and what it may do.
//!
//! Pure. The membership decides. Without TLS a speaker proves itself only by the identity of its data directory and by
//! the cluster's id, which are therefore shown to members alone; a node that waits for its cluster shows its identity to
//! whom it was started with, because founding needs it.
//! With TLS a speaker has also proved a number and a key: the number
//! must be the one that it speaks under, and the key that of the membership, once that names one.

use super::handshake::Hello;
use crate::NodeId;
use crate::data_dir::Identity;
use crate::engine::was_removed;
use tenure_tls::{KeyHash, PeerProof};

/// How far the term of a peer may be ahead of ours. No cluster gets there by elections, and a term never goes back.
const TERM_JUMP_MAX: u64 = 1 << 32;

/// What this node knows of a number when somebody comes under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The identity that the membership names for it.
    pub remembered: Option<u128>,
    /// The key that the membership names for it.
    pub key: Option<KeyHash>,
    /// Whether it was a member and is none any more.
    pub removed: bool,
    /// Whether this node has no membership yet.
    pub forming: bool,
    /// Whether this node was started with its address.
    pub named: bool,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The membership names this number with this identity.
    Member,
    /// The membership names this number with another identity.
    OtherDirectory,
    /// The membership names this number with another key.
    OtherKey,
    /// Its certificate is that of another number.
    OtherNumber,
    /// This number was removed.
    Removed,
    /// There is no membership yet, and this node was started with the number: it may be who founds the cluster, or
    /// its leader.
    Expected,
    /// There is no membership yet, and nobody has spoken of this number.
    Unexpected,
    /// The membership does not name this number, but that of a member does: this node was away.
    Vouched,
    /// The membership does not name this number.
    Stranger,
}

impl Standing {
    /// Of one that has said who it is, and has proved something if there is TLS.
    pub fn of(from: Identity, proof: Option<PeerProof>, known: Known) -> Self {
        if proof.is_some_and(|proof| proof.node != from.node) {
            return Self::OtherNumber;
        }
        if known.key.zip(proof).is_some_and(|(key, proof)| key != proof.key) {
            return Self::OtherKey;
        }
        match known {
            Known { remembered: Some(remembered), .. } if remembered == from.identity => Self::Member,
            Known { remembered: Some(_), .. } => Self::OtherDirectory,
            Known { removed: true, .. } => Self::Removed,
            Known { forming: true, named: true, .. } => Self::Expected,
            Known { forming: true, named: false, .. } => Self::Unexpected,
            _ => Self::Stranger,
        }
    }

    /// Whether it may take part in consensus.
    pub fn may_speak(self) -> bool {
        matches!(self, Self::Member | Self::Vouched | Self::Expected)
    }

    /// Whether it may ask on behalf of clients.
    pub fn may_forward(self) -> bool {
        self == Self::Member
    }

    /// What this node says of itself. Others learn that there is a cluster, and nothing else.
    pub fn identity_shown(self, ours: Identity) -> Identity {
        match self {
            Self::Member | Self::Vouched | Self::Expected => ours,
            _ => Identity { identity: 0, cluster: ours.cluster.map(|_| 0), ..ours },
        }
    }

    /// The identity that it learns to be its own in the membership. Who comes with another one learns that it is
    /// another one, not which.
    pub fn own_identity_shown(self, from: Identity) -> Option<u128> {
        match self {
            Self::Member => Some(from.identity),
            Self::OtherDirectory => Some(!from.identity),
            _ => None,
        }
    }

    /// Why it is refused, if it is for this reason.
    pub fn refusal(self, hello: &Hello, ours: NodeId, probe: bool) -> Option<String> {
        let node = hello.from.node;
        match self {
            Self::Removed => Some(was_removed(node)),
            Self::OtherKey => Some(other_key(node)),
            Self::OtherNumber => Some(format!(
                "the certificate is that of another node than node {node}: each node is started with a number of its own, and \
                 its certificate names that"
            )),
            Self::Unexpected => Some(format!(
                "node {ours} waits for its cluster and was not started with the address of node {node}: start it again with \
                 the addresses of all members in --peers"
            )),
            // Asking who is there is how a node finds out that it has to be added.
            Self::Stranger if !probe => Some(format!(
                "node {node} is not in the membership that node {ours} knows: add it first, with `tenure cluster add \
                 {node}=HOST:PORT`. If it is a member, and node {ours} was away until all members that it knew were gone, \
                 remove node {ours} and add it again under a new number with an empty data directory"
            )),
            _ => None,
        }
    }
}

/// What a node is told whose key is not the one that its cluster knows.
pub(crate) fn other_key(node: NodeId) -> String {
    format!(
        "node {node} is known to the cluster with another key. Bring the file node.key of its data directory back; or \
         remove node {node} from the cluster and add it again with an empty data directory under a number that was never \
         used"
    )
}

/// Whether a term can be true, `ours` being our own.
pub(crate) fn is_plausible(term: u64, ours: u64) -> bool {
    term <= ours.saturating_add(TERM_JUMP_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Purpose, Versions};
    use super::*;

    const OURS: Identity = Identity { node: 1, identity: 10, cluster: Some(7) };
    const FROM: Identity = Identity { node: 2, identity: 20, cluster: Some(7) };

    fn standing(known: Known) -> Standing {
        Standing::of(FROM, None, known)
    }

    #[test]
    fn the_membership_decides_before_everything_else() {
        let known = Known { removed: true, forming: true, named: true, ..Known::default() };
        assert_eq!(standing(Known { remembered: Some(20), ..known }), Standing::Member);
        assert_eq!(standing(Known { remembered: Some(21), ..known }), Standing::OtherDirectory);
        assert_eq!(standing(known), Standing::Removed);
        assert_eq!(standing(Known { removed: false, ..known }), Standing::Expected);
        assert_eq!(standing(Known { forming: true, ..Known::default() }), Standing::Unexpected);
        assert_eq!(standing(Known { named: true, ..Known::default() }), Standing::Stranger);
    }

    #[test]
    fn a_key_that_is_known_is_required_and_a_number_is_never_borrowed() {
        let (ours, other) = (KeyHash([1; 32]), KeyHash([2; 32]));
        let proves = |node, key| Some(PeerProof { node, key });
        let known = Known { remembered: Some(20), key: Some(ours), ..Known::default() };
        assert_eq!(Standing::of(FROM, proves(2, ours), known), Standing::Member);
        assert_eq!(Standing::of(FROM, proves(2, other), known), Standing::OtherKey);
        assert_eq!(Standing::of(FROM, proves(3, ours), known), Standing::OtherNumber);
        let unknown_key = Known { key: None, ..known };
        assert_eq!(
            Standing::of(FROM, proves(2, other), unknown_key),
            Standing::Member,
            "it has proved none yet"
        );
        let wiped = Known { remembered: Some(21), ..known };
        assert_eq!(Standing::of(FROM, proves(2, ours), wiped), Standing::OtherDirectory);
        let removed = Known { removed: true, ..Known::default() };
        assert_eq!(
            Standing::of(FROM, proves(2, ours), removed),
            Standing::Removed,
            "the root's word is not enough"
        );
        let forming = Known { forming: true, named: true, ..Known::default() };
        assert_eq!(Standing::of(FROM, proves(3, ours), forming), Standing::OtherNumber);
        assert_eq!(Standing::of(FROM, proves(2, ours), forming), Standing::Expected);
    }

    #[test]
    fn only_members_forward_and_only_who_may_belong_speaks() {
        let all = [
            (Standing::Member, true, true),
            (Standing::Vouched, true, false),
            (Standing::Expected, true, false),
            (Standing::OtherDirectory, false, false),
            (Standing::OtherKey, false, false),
            (Standing::OtherNumber, false, false),
            (Standing::Removed, false, false),
            (Standing::Unexpected, false, false),
            (Standing::Stranger, false, false),
        ];
        for (standing, speaks, forwards) in all {
            assert_eq!((standing.may_speak(), standing.may_forward()), (speaks, forwards), "{standing:?}");
            let shown = standing.identity_shown(OURS);
            assert_eq!(shown == OURS, speaks, "{standing:?}");
            assert!(shown.cluster.is_some(), "that there is a cluster is no secret: {standing:?}");
            if !speaks {
                assert_eq!((shown.identity, shown.cluster), (0, Some(0)));
            }
            assert_ne!(standing.own_identity_shown(FROM), Some(OURS.identity));
        }
        assert_eq!(Standing::Member.own_identity_shown(FROM), Some(20));
        assert_eq!(Standing::OtherDirectory.own_identity_shown(FROM), Some(!20), "not which one it is");
    }

    #[test]
    fn who_does_not_belong_is_told_what_to_do() {
        let hello = Hello::new(Purpose::Consensus, FROM, 1, Versions::default());
        let refusal = |standing: Standing, probe| standing.refusal(&hello, 1, probe);
        assert!(refusal(Standing::Stranger, false).unwrap().contains("tenure cluster add 2=HOST:PORT"));
        assert_eq!(refusal(Standing::Stranger, true), None);
        assert!(refusal(Standing::Unexpected, true).unwrap().contains("--peers"));
        assert!(refusal(Standing::Removed, true).unwrap().contains("was removed"));
        for standing in [Standing::Member, Standing::Vouched, Standing::Expected] {
            assert_eq!(refusal(standing, false), None);
        }
    }

    #[test]
    fn a_term_that_no_cluster_reaches_is_not_believed() {
        assert!(is_plausible(3, 5), "an older one is for the engine to judge");
        assert!(is_plausible(5 + TERM_JUMP_MAX, 5));
        assert!(!is_plausible(6 + TERM_JUMP_MAX, 5));
        assert!(!is_plausible(u64::MAX, 0));
        assert!(is_plausible(u64::MAX, u64::MAX - 1), "no overflow");
    }
}
