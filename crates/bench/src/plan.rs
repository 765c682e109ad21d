//! What to measure: the one description shared by the command line, the comparison runs and the tests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tenure_client::{ClientTls, Credential};

/// A store that can be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// This project, over the session stream.
    Tenure,
    /// etcd, over its v3 API: the lock recipe of its own client library (transaction, then watch).
    Etcd,
    /// ZooKeeper: the lock recipe of its documentation (sequential ephemeral nodes).
    ZooKeeper,
    /// Redis: `SET NX PX`, and a script that deletes only one's own. One server, no consensus.
    Redis,
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Every client takes its own resource and gives it back, again and again.
    Cycles,
    /// Many sessions, each with one lease, are renewed over a few streams.
    Renewals,
    /// Waiters are in one queue; each releases as soon as it is granted.
    Handover,
    /// The same with one waiter that has just queued.
    HandoverFresh,
    /// Holders fall silent; how long after the TTL the next one is granted.
    Crash,
    /// A supervisor proves a holder dead; how long until the next one is granted.
    Death,
    /// All sessions fall silent at once; how long after the TTL the last lease is gone.
    Expiry,
    /// The leader is killed under load: the longest time in which nobody got anything done.
    LeaderKilled,
    /// Leadership is handed on under load: the same.
    StepDown,
    /// Resources are taken and given back while others watch; how long until they are notified.
    Watchers,
}

impl Workload {
    /// All, in the order in which they are listed.
    pub const ALL: [Workload; 10] = [
        Workload::Cycles,
        Workload::Renewals,
        Workload::Handover,
        Workload::HandoverFresh,
        Workload::Crash,
        Workload::Death,
        Workload::Expiry,
        Workload::LeaderKilled,
        Workload::StepDown,
        Workload::Watchers,
    ];

    /// Its name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Cycles => "cycles",
            Workload::Renewals => "renewals",
            Workload::Handover => "handover",
            Workload::HandoverFresh => "handover-fresh",
            Workload::Crash => "crash",
            Workload::Death => "death",
            Workload::Expiry => "expiry",
            Workload::LeaderKilled => "leader-killed",
            Workload::StepDown => "step-down",
            Workload::Watchers => "watchers",
        }
    }
}

impl TargetKind {
    /// All, ours first.
    pub const ALL: [TargetKind; 4] =
        [TargetKind::Tenure, TargetKind::Etcd, TargetKind::ZooKeeper, TargetKind::Redis];

    /// Its name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            TargetKind::Tenure => "tenure",
            TargetKind::Etcd => "etcd",
            TargetKind::ZooKeeper => "zookeeper",
            TargetKind::Redis => "redis",
        }
    }
}

macro_rules! named {
    ($type:ty, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|one| one.name()).collect();
                    format!(concat!("there is no ", $what, " `{}`; there are {}"), text, names.join(", "))
                })
            }
        }
    };
}

named!(TargetKind, "target");
named!(Workload, "workload");

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is driven.
    pub target: TargetKind,
    /// Where it is: host:port each. Connections are spread over them in turn.
    pub endpoints: Vec<String>,
    /// What is presented to Tenure.
    pub credential: Option<Credential>,
    /// How Tenure is reached over TLS, if it is.
    pub tls: Option<ClientTls>,
    /// What is done.
    pub workload: Workload,
    /// Clients that work at once, each with a session of its own.
    pub clients: usize,
    /// Connections that they share, where the store lets several clients share one.
    pub connections: usize,
    /// Sessions with one lease each.
    pub sessions: usize,
    /// Streams over which these are renewed.
    pub streams: usize,
    /// Waiters in one queue.
    pub waiters: usize,
    /// Repetitions, where a workload is counted and not timed.
    pub rounds: usize,
    /// The TTL of all sessions; `None` for what suits the workload.
    pub ttl: Option<Duration>,
    /// Operations a second that are due, however slow the store is; `None` for a closed loop.
    pub rate: Option<f64>,
    /// How long is measured.
    pub duration: Duration,
    /// How long the load runs before that.
    pub warm_up: Duration,
    /// The processes of the store, whose processor time and memory are reported.
    pub server_pids: Vec<u32>,
    /// The leader's process, for the workload that kills it.
    pub leader_pid: Option<u32>,
}

impl Plan {
    /// A plan with the defaults.
    pub fn new(target: TargetKind, endpoints: Vec<String>, workload: Workload) -> Plan {
        Plan {
            target,
            endpoints,
            credential: None,
            tls: None,
            workload,
            clients: 256,
            connections: 8,
            sessions: 100_000,
            streams: 256,
            waiters: 10,
            rounds: 200,
            ttl: None,
            rate: None,
            duration: Duration::from_secs(5),
            warm_up: Duration::from_secs(1),
            server_pids: Vec::new(),
            leader_pid: None,
        }
    }
}
