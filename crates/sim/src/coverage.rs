//! What happened in a run. A run in which nothing happened proves nothing, so the tests assert on these
//! counts.

use std::fmt;

use tenure_replica::Wreck;

macro_rules! coverage {
    ($($(#[$doc:meta])* $name:ident: $word:literal,)*) => {
        /// How often each thing happened.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Coverage {
            /// Adds another run's.
            pub fn add(&mut self, other: &Coverage) {
                $(self.$name += other.$name;)*
            }

            /// What never happened.
            pub fn missing(&self) -> Vec<&'static str> {
                let mut missing = Vec::new();
                $(if self.$name == 0 { missing.push($word); })*
                missing
            }
        }

        impl fmt::Display for Coverage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                $(
                    write!(f, "{separator}{} {}", self.$name, $word)?;
                    separator = ", ";
                )*
                Ok(())
            }
        }
    };
}

impl Coverage {
    /// A machine lost its power, and with it what was not synced.
    pub fn power_loss(&mut self, wreck: &Wreck) {
        self.power_losses += 1;
        self.lost_tails += u64::from(wreck.sectors_lost > 0);
        self.torn_writes += u64::from(wreck.files_torn > 0);
    }
}

coverage! {
    /// Leases granted, by the replicated state.
    grants: "grants",
    /// Sessions that ended for want of a renewal.
    expiries: "sessions expired",
    /// How often a node became leader after the first.
    failovers: "leader changes",
    /// Permits taken.
    permits: "permits",
    /// Writes that a storage accepted.
    fenced_writes: "fenced writes",
    /// Writes that a storage refused as stale.
    stale_writes: "stale writes refused",
    /// Barriers that a storage refused as stale: a holder that took over, and was overtaken before it could
    /// begin.
    stale_barriers: "stale barriers refused",
    /// Guarded writes that the registers refused, by the replicated state.
    register_refusals: "guarded writes refused",
    /// Writers that stood still between their check and their write.
    late_writers: "writers stopped between check and write",
    /// Operations of clients.
    operations: "operations",
    /// Operations whose outcome stayed unknown.
    unknown: "of them unknown",
    /// Processes of nodes that were killed.
    kills: "nodes killed",
    /// Machines of nodes that lost their power, with what was not synced.
    power_losses: "power losses",
    /// Power losses that took something unsynced with them.
    lost_tails: "unsynced tails lost",
    /// Power losses that left a file with some of its unsynced sectors, and without others.
    torn_writes: "torn writes",
    /// Nodes that were stopped and went on.
    pauses: "nodes paused",
    /// Nodes whose machine was suspended and went on.
    suspends: "nodes suspended",
    /// Clients that were stopped and went on.
    client_pauses: "clients paused",
    /// Clients whose machine was suspended and went on.
    client_suspends: "clients suspended",
    /// Clients that were killed.
    client_kills: "clients killed",
    /// Nodes split from each other, both ways.
    cuts: "partitions",
    /// Two nodes that cannot reach each other, and both reach the rest.
    bridges: "bridges",
    /// Clients cut off from some or all nodes.
    client_cuts: "clients cut off",
    /// Links cut one way, of nodes or of clients.
    one_way_cuts: "one-way cuts",
    /// Links slowed down.
    slow_links: "slow links",
    /// Streams said again, from their beginning: what was sent comes twice, and after what was sent later.
    repeated: "streams repeated",
    /// Disks slowed down.
    slow_disks: "slow disks",
    /// Disks that were full.
    full_disks: "full disks",
    /// Disks that failed to sync.
    failed_syncs: "failing syncs",
    /// Nodes that ended by themselves, because of their disk.
    gave_up: "nodes that gave up on their disk",
    /// Snapshots taken.
    snapshots: "snapshots",
    /// Snapshots from another node that were installed: the log that was missing was gone.
    installed: "snapshots installed",
    /// Low-latency mode: waits that would have begun with a spin.
    spin_waits: "spin waits",
    /// Low-latency mode: appends held back from a follower that the majority did not need.
    held_back: "appends held back",
    /// Low-latency mode: appends that a leader wrote in place.
    leader_in_place: "writes in place by leaders",
    /// Low-latency mode: appends that a follower wrote in place.
    follower_in_place: "writes in place by followers",
    /// Leaders asked to step down.
    step_downs: "step-downs",
    /// Leases revoked by notice.
    revoked: "revocations",
    /// Nodes added.
    added: "nodes added",
    /// Voters in good health that were removed.
    removed: "voters removed",
    /// Voters whose disk was lost, removed and replaced.
    wiped: "voters wiped",
    /// Nodes that were killed and whose files were damaged before they were started again.
    damaged: "nodes damaged",
    /// Of them, those that refused to start.
    damage_refused: "of them refused",
    /// Processes whose clock ran within rho of all others.
    clocks_within: "clocks within rho",
    /// Clients whose clock ran beyond rho.
    clocks_beyond: "clocks beyond rho",
    /// Dead holders whose lease was seen to end.
    deaths: "deaths seen through",
}
