//! How many file descriptors this process may have, and how many of them are for client connections.
//!
//! A node that runs out of descriptors cannot begin its next log segment, and exits. So it takes all that the system
//! allows, and keeps some for everything that is not a client's connection.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listen::{CONNECTIONS_MAX, OWN_RESERVE};

/// For log segments, snapshots being written, sent and received, the data directory, the runtime and the standard
/// streams: about twenty at the most, with room to spare.
const FILES_RESERVE: u64 = 64;
/// For peers: the connections that the peer port accepts, and those to other members.
const PEERS_RESERVE: u64 = 256 + 32;
/// Fewer connections than this serve nobody; a node with so few descriptors starts with these and says so.
const CONNECTIONS_MIN: usize = 16;

/// Raises the soft limit to the hard one, and gives what this process may open; `None` if there is no limit.
pub(crate) fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    // Without the right to raise it the limit stays as it was, and is reckoned with.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current
}

/// How many client connections so many descriptors are enough for.
pub(crate) fn connections_max(descriptors: Option<u64>, in_cluster: bool) -> usize {
    let Some(descriptors) = descriptors else { return CONNECTIONS_MAX };
    let peers = if in_cluster { PEERS_RESERVE } else { 0 };
    let left = descriptors.saturating_sub(FILES_RESERVE + peers + OWN_RESERVE as u64);
    usize::try_from(left).unwrap_or(CONNECTIONS_MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_peers_come_before_clients() {
        for (descriptors, in_cluster, connections) in [
            (None, true, CONNECTIONS_MAX),
            (Some(u64::MAX), true, CONNECTIONS_MAX),
            (Some(1_048_576), true, CONNECTIONS_MAX),
            (Some(1_024), true, 608),
            (Some(1_024), false, 896),
            (Some(256), true, CONNECTIONS_MIN),
        ] {
            let found = connections_max(descriptors, in_cluster);
            assert_eq!(found, connections, "{descriptors:?} in a cluster: {in_cluster}");
        }
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let raised = raise();
        assert_eq!(raised, getrlimit(Resource::Nofile).maximum);
    }
}
