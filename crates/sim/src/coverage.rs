//! What a run has seen. A run in which nothing happened proves nothing, so whoever runs seeds asserts on this.

use std::fmt;

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

coverage! {
    /// Leases granted, by the replicated state.
    grants: "grants",
    /// Sessions that ended for want of a renewal.
    expiries: "sessions expired",
    /// Leaders that took office after the first.
    failovers: "leader changes",
    /// Permits taken.
    permits: "permits",
    /// Writes that a storage accepted.
    fenced_writes: "fenced writes",
    /// Writes that a storage refused as stale.
    stale_writes: "stale writes refused",
    /// Guarded writes that the registers refused.
    register_refusals: "guarded writes refused",
    /// Operations of clients.
    operations: "operations",
    /// Operations whose outcome stayed unknown.
    unknown: "of them unknown",
    /// Processes of nodes that were killed.
    kills: "nodes killed",
    /// Machines of nodes that lost their power, with what was not synced.
    power_losses: "power losses",
    /// Nodes that were stopped and went on.
    pauses: "nodes paused",
    /// Clients that were stopped and went on.
    client_pauses: "clients paused",
    /// Clients that were killed.
    client_kills: "clients killed",
    /// Links cut both ways.
    cuts: "partitions",
    /// Links cut one way.
    one_way_cuts: "one-way cuts",
    /// Links slowed down.
    slow_links: "slow links",
    /// Disks slowed down.
    slow_disks: "slow disks",
    /// Disks that were full or failed to sync.
    failed_disks: "failed disks",
    /// Snapshots installed or restored from.
    snapshots: "snapshots",
    /// Leaders asked to step down.
    step_downs: "step-downs",
    /// Nodes added.
    added: "nodes added",
    /// Voters whose disk was lost, removed and replaced.
    wiped: "voters wiped",
    /// Dead holders whose lease was seen to end.
    deaths: "deaths seen through",
}
