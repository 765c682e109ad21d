//! The engine's settings, and the reasons for them.

use crate::config::Config;
use crate::error::StartError;
use openraft::SnapshotPolicy;
use std::time::Duration;

/// The engine's settings for ours.
pub(crate) fn settings(config: &Config) -> Result<openraft::Config, StartError> {
    let timing = config.timing;
    let settings = openraft::Config {
        cluster_name: "tenure".into(),
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timing.election_min),
        election_timeout_max: millis(timing.election_max),
        // A node that was cut off asks before it disturbs a leader that the others can reach.
        enable_pre_vote: Some(true),
        // A restarted leader would lead again in its old term: a term must name one incarnation.
        enable_leader_restore: Some(false),
        // A leader that has lost its quorum falls silent now and then, so that it cannot keep the
        // only node it reaches from voting. Must be at least the lease plus the longest timeout.
        quorum_loss_probe_interval: Some(2 * millis(timing.election_max)),
        // Entries are few and large: what limits a message is its bytes, see the log reader.
        max_payload_entries: 4096,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot.entries_max),
        max_in_snapshot_log_to_keep: config.snapshot.entries_kept,
        purge_batch_size: 1,
        // A follower that far behind gets a snapshot. Where the log still reaches, entries are cheaper.
        replication_lag_threshold: u64::MAX,
        install_snapshot_timeout: 30_000,
        // An unreachable peer is tried again soon: elections are decided within a few of these.
        backoff: "20ms 40ms 80ms ...200ms".into(),
        ..openraft::Config::default()
    };
    settings.validate().map_err(|error| StartError::Configuration(format!("timing: {error}")))
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
