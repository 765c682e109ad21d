//! How many file descriptors this process may have, and how many of them are for client connections.
//!
//! A node that runs out of descriptors cannot begin its next log segment, and exits. So it takes all that the system
//! allows, and keeps some for everything that is not a client's connection.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use tracing::warn;

use crate::handshakes::HANDSHAKES_MAX;
use crate::listen::{CONNECTIONS_MAX, OWN_RESERVE};

/// For log segments, snapshots being written, sent and received, the data directory, the runtime and the standard
/// streams: about twenty at the most, with room to spare.
const FILES_RESERVE: u64 = 64;
/// For peers: the connections that the peer port accepts, and those to other members.
const PEERS_RESERVE: u64 = 256 + 32;
/// Fewer connections than this serve nobody; a node with so few descriptors starts with these and says so.
const CONNECTIONS_MIN: usize = 16;

/// Raises the soft limit to the hard one, and gives what this process may open; `None` if there is no limit.
fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    // Without the right to raise it the limit stays as it was, and is reckoned with.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current
}

/// How many client connections this process has room for, if so many are asked for: raises the limit first.
pub(crate) fn fit(asked: Option<usize>, in_cluster: bool, tls: bool) -> usize {
    let descriptors = raise();
    let derived = connections_max(descriptors, in_cluster, tls);
    if derived < asked.unwrap_or(CONNECTIONS_MAX) {
        warn!(?descriptors, connections_max = derived, "the limit of open files allows no more connections");
    }
    asked.map_or(derived, |asked| asked.min(derived))
}

/// How many client connections so many descriptors are enough for.
fn connections_max(descriptors: Option<u64>, in_cluster: bool, tls: bool) -> usize {
    let Some(descriptors) = descriptors else { return CONNECTIONS_MAX };
    let peers = if in_cluster { PEERS_RESERVE } else { 0 };
    let left = descriptors.saturating_sub(FILES_RESERVE + peers + OWN_RESERVE as u64);
    // Handshakes under way are no connections yet, and take descriptors all the same (`HandshakeLimits::beside`).
    let handshakes = if tls { (2 * HANDSHAKES_MAX as u64).min(left / 4) } else { 0 };
    let left = left - handshakes;
    usize::try_from(left).unwrap_or(CONNECTIONS_MAX).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshakes::HandshakeLimits;

    #[test]
    fn files_and_peers_come_before_clients() {
        for (descriptors, in_cluster, tls, connections) in [
            (None, true, true, CONNECTIONS_MAX),
            (Some(u64::MAX), true, true, CONNECTIONS_MAX),
            (Some(1_048_576), true, true, CONNECTIONS_MAX),
            (Some(1_024), true, false, 608),
            (Some(1_024), true, true, 456),
            (Some(1_024), false, false, 896),
            (Some(256), true, false, CONNECTIONS_MIN),
        ] {
            let found = connections_max(descriptors, in_cluster, tls);
            assert_eq!(found, connections, "{descriptors:?} in a cluster: {in_cluster}, with TLS: {tls}");
        }
        // What is left beside the connections is enough for the handshakes.
        assert!(608 - 456 >= 2 * HandshakeLimits::beside(456).at_once_max);
    }

    /// One test, because the limit is the whole process's.
    #[test]
    fn the_soft_limit_is_raised_and_no_more_connections_are_taken_than_it_allows() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // One less than it may be: a limit that is at its maximum already shows nothing. Other tests do not miss one.
        let current = Some(maximum.unwrap_or(1 << 20) - 1);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a soft limit may always be lowered");
        assert_eq!(raise(), maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
        let derived = connections_max(maximum, true, false);
        assert_eq!(fit(None, true, false), derived);
        assert_eq!(fit(Some(usize::MAX), true, false), derived);
        assert_eq!(fit(Some(3), true, false), 3, "fewer are as good");
    }
}
