//! Stages: what may happen in a [`World`](crate::World), and how often. Each is small enough to be explored
//! to the end; together they cover the protocol. A larger number here is more states, never another rule.

/// How things stand when a stage begins. Holder 0 has a TTL of four steps; holder 1's is an hour, so that it
/// is always there to be granted what holder 0 loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Holder 0 holds the resource and holder 1 waits in the queue.
    Held,
    /// Both sessions are open and the resource is free.
    Free,
    /// Holder 1 holds the resource and holder 0 waits in the queue.
    Behind,
    /// Holder 0 holds the resource; holder 1 has yet to open a session, with a TTL of two steps.
    Alone,
    /// Holder 0 has yet to open its session, with a TTL of four steps; holder 1's is open.
    Fresh,
}

/// How holder 0's clock runs, compared with the leaders'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// At the same rate.
    None,
    /// At the same rate all the time, or as slow as rho allows all the time.
    Steady,
    /// At the same rate or slow, in any step as it happens.
    Free,
}

/// How often each thing may be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sends {
    /// Renewals by holder 0.
    pub renewals: u8,
    /// Opens by holder 0: repeated, or the first.
    pub opens: u8,
    /// The first open by holder 1.
    pub opens_other: u8,
    /// Acquires, by holder.
    pub acquires: [u8; 2],
    /// Releases, by holder.
    pub releases: [u8; 2],
    /// Transfers by holder 0.
    pub transfers: u8,
    /// Revocations by notice.
    pub revocations: u8,
    /// Renewals of nobody's, which fill the queue.
    pub noise: u8,
    /// Commands that change nothing.
    pub chatter: u8,
    /// Messages and answers that are delivered and stay in the network, to come again.
    pub repeats: u8,
    /// Elections.
    pub elections: u8,
    /// Faults of the server, in a stage with a healthy holder.
    pub faults: u8,
}

/// What may happen, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its name.
    pub name: &'static str,
    /// How it begins.
    pub start: Start,
    /// How often each thing may be sent.
    pub sends: Sends,
    /// How many renewals, and how many opens, one entry takes.
    pub limit: usize,
    /// How many entries may be under way.
    pub in_flight: usize,
    /// How holder 0's clock runs.
    pub drift: Drift,
    /// A deposed leader that does not know it goes on.
    pub deposed_goes_on: bool,
    /// Holder 0 does everything in time, and whatever goes wrong is the server's fault: it must keep its
    /// session.
    pub healthy: bool,
}

const NOTHING: Sends = Sends {
    renewals: 0,
    opens: 0,
    opens_other: 0,
    acquires: [0; 2],
    releases: [0; 2],
    transfers: 0,
    revocations: 0,
    noise: 0,
    chatter: 0,
    repeats: 0,
    elections: 0,
    faults: 0,
};

const PLAIN: Stage = Stage {
    name: "plain",
    start: Start::Held,
    sends: NOTHING,
    limit: 100,
    in_flight: 1,
    drift: Drift::Steady,
    deposed_goes_on: false,
    healthy: false,
};

impl Stage {
    /// One leader and a holder whose clock drifts as it likes.
    pub const DRIFT: Stage =
        Stage { name: "drift", sends: Sends { renewals: 1, ..NOTHING }, drift: Drift::Free, ..PLAIN };

    /// Messages and answers that come twice, and a repeated open among them.
    pub const REPEATED: Stage =
        Stage { name: "repeated", sends: Sends { renewals: 1, opens: 1, repeats: 1, ..NOTHING }, ..PLAIN };

    /// One leader, and a holder whose renewals are late, lost and overtaken.
    pub const TIME: Stage = Stage { name: "time", sends: Sends { renewals: 2, ..NOTHING }, ..PLAIN };

    /// A session that is opened, by one transmission or another, and asks for the resource.
    pub const OPENING: Stage = Stage {
        name: "opening",
        start: Start::Fresh,
        sends: Sends { opens: 2, acquires: [1, 0], renewals: 1, ..NOTHING },
        ..PLAIN
    };

    /// The same behind a queue that others fill.
    pub const OPENING_CUT: Stage = Stage {
        name: "opening, cut",
        start: Start::Fresh,
        sends: Sends { opens: 1, acquires: [1, 0], noise: 3, ..NOTHING },
        limit: 1,
        ..PLAIN
    };

    /// Entries that take one renewal and one open each, and a queue that others fill.
    pub const CUT: Stage =
        Stage { name: "cut", sends: Sends { renewals: 2, noise: 2, ..NOTHING }, limit: 1, ..PLAIN };

    /// Leaders that follow each other, with entries under way that survive or do not.
    pub const FAILOVER: Stage = Stage {
        name: "failover",
        sends: Sends { renewals: 1, elections: 2, ..NOTHING },
        in_flight: 2,
        ..PLAIN
    };

    /// The same with a cut connection.
    pub const FAILOVER_CUT: Stage = Stage {
        name: "failover, cut",
        sends: Sends { renewals: 1, noise: 2, elections: 2, ..NOTHING },
        limit: 1,
        ..PLAIN
    };

    /// A deposed leader that goes on beside the new one.
    pub const DEPOSED: Stage = Stage {
        name: "deposed",
        sends: Sends { renewals: 1, elections: 1, ..NOTHING },
        deposed_goes_on: true,
        ..PLAIN
    };

    /// A session with a shorter TTL appears while entries are under way, and K shrinks.
    pub const SHRINK: Stage = Stage {
        name: "shrink",
        start: Start::Alone,
        sends: Sends { opens_other: 1, ..NOTHING },
        in_flight: 2,
        ..PLAIN
    };

    /// Notices, releases and transfers, answered or not.
    pub const NOTICE: Stage = Stage {
        name: "notice",
        sends: Sends { renewals: 1, releases: [1, 0], revocations: 1, ..NOTHING },
        ..PLAIN
    };

    /// A notice, and an open that was repeated and is applied after it.
    pub const REOPENED: Stage =
        Stage { name: "reopened", sends: Sends { opens: 1, revocations: 1, ..NOTHING }, ..PLAIN };

    /// Directed transfers, answered or not.
    pub const TRANSFER: Stage =
        Stage { name: "transfer", sends: Sends { renewals: 1, transfers: 1, ..NOTHING }, ..PLAIN };

    /// Acquires that are granted at once, and one that comes while the lease is under notice.
    pub const ACQUIRE: Stage = Stage {
        name: "acquire",
        start: Start::Free,
        sends: Sends { acquires: [1, 1], releases: [1, 0], revocations: 1, ..NOTHING },
        ..PLAIN
    };

    /// A grant after a wait, pushed late, and a notice that may overtake it.
    pub const WAITED: Stage = Stage {
        name: "waited",
        start: Start::Behind,
        sends: Sends { renewals: 1, releases: [0, 1], revocations: 1, ..NOTHING },
        ..PLAIN
    };

    /// A healthy holder, and a server that pauses, loses its quorum, goes deaf and changes leader.
    pub const HEALTHY: Stage = Stage {
        name: "healthy",
        sends: Sends { renewals: u8::MAX, chatter: 2, elections: 2, faults: 2, ..NOTHING },
        drift: Drift::None,
        healthy: true,
        ..PLAIN
    };

    /// All of them.
    pub const ALL: [Stage; 16] = [
        Stage::DRIFT,
        Stage::TIME,
        Stage::REPEATED,
        Stage::OPENING,
        Stage::OPENING_CUT,
        Stage::CUT,
        Stage::FAILOVER,
        Stage::FAILOVER_CUT,
        Stage::DEPOSED,
        Stage::SHRINK,
        Stage::NOTICE,
        Stage::REOPENED,
        Stage::TRANSFER,
        Stage::ACQUIRE,
        Stage::WAITED,
        Stage::HEALTHY,
    ];
}
