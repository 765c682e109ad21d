//! How long a renewal takes on its way into and out of a log entry, and a session through a snapshot.
//!
//! `cargo run --release -p tenure-wire --example codec_speed`

use std::hint::black_box;
use std::time::{Duration, Instant};

use tenure_core::state::{Answers, Pulse, Session, State};
use tenure_core::{
    ClusterTime, Entry, Few, FormatVersion, Renewal, Revision, Secret, SessionNumber, WallTime,
};
use tenure_wire::{decode_entry, encode_entry, read_snapshot, state_hash, write_snapshot};

const RENEWALS: u64 = 100_000;
const SESSIONS: u64 = 1_000_000;

/// The shortest of several runs, per item: what the work costs when nothing else is in the way.
fn per_item(what: &str, items: u64, mut run: impl FnMut()) {
    let shortest = (0..10)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .min()
        .unwrap_or(Duration::ZERO);
    println!("{what:<28} {:>7.1} ns each", shortest.as_nanos() as f64 / items as f64);
}

fn main() {
    let neighbours = (0..RENEWALS).map(|n| (5_000_000 + n, 70_000));
    renewals("neighbouring sessions", neighbours);
    let mut seed = 7u64;
    let scattered = (0..RENEWALS).map(|_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 44, seed >> 50)
    });
    renewals("scattered sessions", scattered);

    let mut state = State { sessions_opened: SESSIONS, ..State::default() };
    let holder: tenure_core::HolderName = "node-a:4711".parse().expect("a holder");
    for number in 1..=SESSIONS {
        let key = SessionNumber::new(number);
        let pulse = Pulse {
            deadline: ClusterTime::from_micros(number * 1_000),
            ttl: Duration::from_secs(10).into(),
            number: 70_000,
            last_lease_revision: Revision::new(number),
            lapsed: false,
            has_events: false,
        };
        let session = Session {
            secret: Secret::new(u128::from(number).to_le_bytes()),
            holder: holder.clone(),
            nonce: None,
            identity: Default::default(),
            implicit: false,
            plain: false,
            opened_at: ClusterTime::from_micros(number),
            leases: Few::None,
            answers: Answers::default(),
            more: None,
        };
        state.pulses.insert(key, pulse);
        state.sessions.insert(key, session);
    }
    let mut bytes = Vec::new();
    per_item("snapshot written", SESSIONS, || {
        bytes.clear();
        write_snapshot(&state, &mut bytes).expect("a vector takes every write");
    });
    per_item("snapshot read", SESSIONS, || {
        black_box(read_snapshot(FormatVersion::NEWEST, &mut bytes.as_slice()).expect("it was just written"));
    });
    per_item("state hashed", SESSIONS, || {
        black_box(state_hash(&state));
    });
    println!("{:<28} {:>7.1} bytes each", "snapshot", bytes.len() as f64 / SESSIONS as f64);
}

fn renewals(what: &str, renewals: impl Iterator<Item = (u64, u64)>) {
    println!("{what}");
    let renewals: Vec<_> =
        renewals.map(|(session, number)| Renewal { session: SessionNumber::new(session), number }).collect();
    let entry = Entry { at: ClusterTime::ZERO, wall: WallTime::default(), renewals, commands: Vec::new() };
    let mut bytes = Vec::new();
    per_item("  renewal encoded", RENEWALS, || {
        bytes.clear();
        encode_entry(FormatVersion::NEWEST, black_box(&entry), &mut bytes);
    });
    per_item("  renewal decoded", RENEWALS, || {
        black_box(decode_entry(FormatVersion::NEWEST, black_box(&bytes)).expect("it was just encoded"));
    });
    println!("{:<28} {:>7.1} bytes each", "  renewal", bytes.len() as f64 / RENEWALS as f64);
}
