//! One of everything that is stored, with values that tell the fields apart. What the golden files are made of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::state::*;
use tenure_core::*;

fn name<T: std::str::FromStr<Err = InvalidName>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn token(number: u64) -> Token {
    number.try_into().expect("a sample token")
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn time(micros: u64) -> ClusterTime {
    ClusterTime::from_micros(micros)
}

/// 2026-11-15T20:48:49.123Z and so many milliseconds.
pub fn wall(millis: u64) -> WallTime {
    WallTime::from_unix_millis(1_794_775_729_123 + millis)
}

pub fn session_id(number: u64) -> SessionId {
    SessionId { number: SessionNumber::new(number), secret: Secret::new([number as u8; 16]) }
}

fn scope(resource: &str, slot: Option<u32>) -> Scope {
    Scope { resource: name(resource), slot: slot.map(Slot::new) }
}

fn caller(number: u64) -> Caller {
    Caller { session: session_id(7), number: Some(number), lowest_awaited: number - 1 }
}

fn open(nonce: Option<Nonce>) -> Open {
    Open {
        holder: name("node-a:4711"),
        ttl: Duration::from_secs(10),
        nonce,
        secret: Secret::new([0x5e; 16]),
        number: 3,
    }
}

fn all_policies() -> Policies {
    Policies {
        lock_delay: Some(millis(1_500)),
        max_hold: Some(millis(60_000)),
        hard_limit: Some(millis(30_000)),
        priority: -5,
        reentrant: true,
    }
}

fn acquire(by: AcquireBy, mode: Mode, wait: Wait) -> Command {
    Command::Acquire(Box::new(Acquire {
        by,
        resources: vec![name("settlement/cron"), name("ein/schön")],
        mode,
        wait,
        policies: all_policies(),
        fences: vec![name("postgres:orders")],
        transmission: Some(TransmissionId::new([0xa7; 16])),
    }))
}

/// Every command, and every variant inside one.
pub fn commands() -> Vec<Command> {
    let guard = Some(Guard { scope: scope("settlement/cron", Some(2)), token: token(17) });
    let compare = |field, op| Compare { key: name("config"), field, op };
    vec![
        Command::Open(open(Some(Nonce::new([0xa5; 16])))),
        Command::Close { by: Caller::unnumbered(session_id(7)), why: EndReason::Died },
        acquire(AcquireBy::Session(caller(1)), Mode::Exclusive, Wait::No),
        acquire(AcquireBy::Opening(open(None)), Mode::Shared, Wait::For(millis(250))),
        acquire(AcquireBy::Session(caller(2)), Mode::Slots(3), Wait::Forever),
        Command::Cancel { by: caller(4), acquire: 3 },
        Command::Release { by: caller(5), resource: name("a"), token: Some(token(9)), rest: None },
        Command::Transfer { by: caller(6), resource: name("a"), to: SessionNumber::new(8) },
        Command::Revoke {
            resource: name("a"),
            session: Some(SessionNumber::new(8)),
            now: true,
            reason: "maintenance".into(),
        },
        Command::Seen { session: session_id(7), revision: Revision::new(99) },
        Command::Write(Box::new(Write {
            by: Some(caller(7)),
            compares: vec![
                compare(CompareField::CreateRevision(1), CompareOp::Equal),
                compare(CompareField::ModRevision(2), CompareOp::NotEqual),
                compare(CompareField::Version(3), CompareOp::Greater),
                compare(CompareField::Value(Arc::from(&b"\x00\xff"[..])), CompareOp::Less),
            ],
            then: vec![
                Operation::Put {
                    key: name("config"),
                    value: Arc::from(&b"on"[..]),
                    guard: guard.clone(),
                    ephemeral: true,
                },
                Operation::Delete { key: name("old"), guard },
            ],
            otherwise: vec![Operation::Get { key: name("config") }],
        })),
        Command::Barrier { resource: name("a") },
        Command::Arm { scope: scope("a", None), fence: name("postgres:orders"), token: token(17) },
        Command::Refused {
            scope: scope("a", Some(1)),
            fence: name("postgres:orders"),
            presented: token(16),
            seen: token(17),
            count: 40,
        },
        Command::Paused { session: session_id(7), length: Duration::from_nanos(1_234_567_891) },
        Command::RemoveFence { resource: name("a"), fence: name("postgres:orders") },
        Command::SetKind { resource: name("a"), kind: Some(KindSetting::Semaphore(4)) },
        Command::SetKind { resource: name("a"), kind: Some(KindSetting::Lock) },
        Command::Rebind { key: name("config"), guard: Some(scope("a", None)) },
        Command::BecameLeader { node: 2, term: 5 },
        Command::Configure(Box::new(Settings { cluster: [0xc1; 16], limits: limits() })),
        Command::PublishKey { node: 2, kid: "2-1".into(), key: [0xed; 32] },
        Command::WithdrawKey { kid: "2-1".into() },
        Command::Restore {
            backup: Box::new(State {
                last_token: 19,
                settings: Settings { cluster: [0; 16], limits: limits() },
                ..State::default()
            }),
            token_floor: token(1_000),
            holders_stopped: true,
        },
        Command::CancelNonce { nonce: Nonce::new([0xa6; 16]) },
        Command::Undo { session: Some(session_id(7)), transmission: TransmissionId::new([0xa7; 16]) },
    ]
}

/// What only version 2 can say.
pub fn commands_since_v2() -> Vec<Command> {
    let rest = Some(Duration::from_secs(3));
    let limits = Limits { history_bytes_total_max: 64 << 20, ..limits() };
    vec![
        Command::Configure(Box::new(Settings { cluster: [0xc1; 16], limits })),
        Command::Release { by: caller(5), resource: name("a"), token: None, rest },
        Command::Upgrade { to: FormatVersion::V2 },
        Command::Seen {
            session: SessionId { number: SessionNumber::new(7), secret: Secret::hashed([0x5f; 16]) },
            revision: Revision::new(99),
        },
        Command::CancelNonce { nonce: Nonce::hashed([0xa8; 16]) },
        Command::RestoreBegin(Box::new(restore_begin())),
        Command::RestorePiece(Box::new(restore_piece())),
        Command::RestoreCommit { id: restore_begin().id, pieces: 3, records: 8_193, checksum: 1 << 100 },
        attributed(identity()),
        attributed(Identity::Operator),
        attributed(Identity::Node),
        Command::PutCredential(Box::new(PutCredential {
            id: credential_id(),
            name: name("cred/pay-worker"),
            hash: [0x5a; 32],
            expires: Some(wall(90_000)),
        })),
        Command::RevokeCredential { id: credential_id(), now: true },
        Command::PutPolicy(Box::new(PutPolicy { name: name("pay"), policy: policy(), now: true })),
        Command::RemovePolicy { name: name("pay"), now: false },
        Command::SetEnforced { enforced: true },
    ]
}

fn attributed(identity: Identity) -> Command {
    Command::As(Box::new(Attributed { identity, command: Command::Barrier { resource: name("a") } }))
}

pub fn restore_begin() -> RestoreBegin {
    RestoreBegin {
        id: RestoreId::new([0xb7; 16]),
        base: state().backup_base(),
        token_floor: token(1_000),
        holders_stopped: true,
    }
}

/// One of every record that a backup has.
pub fn restore_piece() -> RestorePiece {
    let state = state().without_sessions().expect("its sessions are all there");
    RestorePiece {
        id: restore_begin().id,
        number: 2,
        bytes: 1_048_570,
        checksum: u128::MAX - 1,
        ended: 1,
        records: BackupRecords {
            resources: state.resources.iter().map(|(number, record)| (number, record.clone())).collect(),
            registers: state.registers.iter().map(|(number, record)| (number, record.clone())).collect(),
            used_nonces: state.used_nonces.iter().copied().collect(),
            credentials: vec![(credential_id(), credential())],
            policies: vec![(name("pay"), policy())],
        },
    }
}

/// A restore in the middle.
pub fn staging() -> Staging {
    let state = state().without_sessions().expect("its sessions are all there");
    Staging {
        begin: restore_begin(),
        pieces: 3,
        records: 8_193,
        bytes: 3 << 20,
        ended: 1,
        checksum: 1 << 100,
        kept_until: time(612_345_678),
        resource_last: 66,
        register_last: 65,
        resources: state.resources,
        registers: state.registers,
        used_nonces: state.used_nonces,
        credentials: BTreeMap::from([(credential_id(), credential())]),
        policies: BTreeMap::from([(name("pay"), Arc::new(policy()))]),
    }
}

pub fn credential_id() -> CredentialId {
    CredentialId::new([0xc0, 1, 2, 3, 4, 5, 6, 7])
}

/// A caller with everything that one can have.
pub fn identity() -> Identity {
    Identity::Named { name: name("cred/pay-worker"), credential: Some(credential_id()) }
}

pub fn credential() -> Credential {
    Credential {
        name: name("cred/pay-worker"),
        hash: [0x5a; 32],
        created: wall(0),
        expires: Some(wall(90_000)),
        revoked: true,
    }
}

/// A policy with everything that one can have.
pub fn policy() -> Policy {
    Policy {
        who: vec![name("cred/pay-worker"), name("jwt/kubernetes/*"), name("anyone")],
        on: vec![name("pay/"), name("*")],
        may: Verbs::ALL,
        holder: HolderRule::Own,
        limits: Quotas {
            sessions: Some(1),
            leases: Some(2),
            waiters: Some(3),
            registers: Some(4),
            bytes: Some(5),
            ttl_max: Some(Duration::from_secs(60)),
            priority_max: 7,
        },
    }
}

/// How many kinds of commands there are. A new one does not compile here until it has a sample above.
pub const COMMAND_KINDS: usize = 33;

pub fn kind_of(command: &Command) -> usize {
    match command {
        Command::Open(_) => 0,
        Command::Close { .. } => 1,
        Command::Acquire(_) => 2,
        Command::Cancel { .. } => 3,
        Command::Release { .. } => 4,
        Command::Transfer { .. } => 5,
        Command::Revoke { .. } => 6,
        Command::Seen { .. } => 7,
        Command::Write(_) => 8,
        Command::Barrier { .. } => 9,
        Command::Arm { .. } => 10,
        Command::Refused { .. } => 11,
        Command::Paused { .. } => 12,
        Command::RemoveFence { .. } => 13,
        Command::SetKind { .. } => 14,
        Command::Rebind { .. } => 15,
        Command::BecameLeader { .. } => 16,
        Command::Configure(_) => 17,
        Command::PublishKey { .. } => 18,
        Command::WithdrawKey { .. } => 19,
        Command::Restore { .. } => 20,
        Command::CancelNonce { .. } => 21,
        Command::Undo { .. } => 22,
        Command::Upgrade { .. } => 23,
        Command::RestoreBegin(_) => 24,
        Command::RestorePiece(_) => 25,
        Command::RestoreCommit { .. } => 26,
        Command::As(_) => 27,
        Command::PutCredential(_) => 28,
        Command::RevokeCredential { .. } => 29,
        Command::PutPolicy(_) => 30,
        Command::RemovePolicy { .. } => 31,
        Command::SetEnforced { .. } => 32,
    }
}

/// One entry with every command that the version can say.
pub fn entry(version: FormatVersion) -> Entry {
    let renewal = |session, number| Renewal { session: SessionNumber::new(session), number };
    Entry {
        at: time(12_345_678),
        wall: wall(0),
        renewals: vec![renewal(1_000, 9), renewal(1_001, 9), renewal(7, 300), renewal(2_000_000, 70_000)],
        commands: match version {
            FormatVersion::V1 => commands(),
            _ => [commands(), commands_since_v2()].concat(),
        },
    }
}

pub fn grant() -> Grant {
    Grant {
        resource: name("settlement/cron"),
        session: session_id(7),
        holder: name("node-a"),
        mode: Mode::Slots(3),
        slot: Some(Slot::new(2)),
        token: token(17),
        generation: Generation::new(4),
        remaining: millis(9_999),
        ttl: Duration::from_secs(10),
        waited: millis(250),
        fences: vec![name("postgres:orders")],
    }
}

pub fn holding() -> Holding {
    Holding {
        session: SessionNumber::new(7),
        holder: name("node-a"),
        mode: Mode::Exclusive,
        slot: None,
        token: token(17),
        generation: Generation::new(4),
        remaining: millis(4_200),
        ttl: Duration::from_secs(10),
        held_for: millis(61_000),
        notice: Some(EndReason::Revoked),
        lapsed: true,
        identity: None,
    }
}

pub fn register() -> Register {
    Register {
        key: name("config"),
        value: Some(Arc::from(&b"on"[..])),
        create_revision: Revision::new(3),
        mod_revision: Revision::new(9),
        version: 2,
        session: Some(SessionNumber::new(7)),
        guard: Some(scope("settlement/cron", Some(2))),
    }
}

/// Everything that a command can do.
pub fn dones() -> Vec<Done> {
    vec![
        Done::Nothing,
        Done::Opened {
            session: session_id(7),
            holder: name("node-a"),
            ttl: Duration::from_secs(10),
            number: 3,
        },
        Done::Closed { released: 2 },
        Done::Granted { grants: vec![grant()], opened: Some(3) },
        Done::Queued { session: session_id(7), ttl: Duration::from_secs(10), ahead: 5 },
        Done::Cancelled { released: true },
        Done::Released { released: false },
        Done::Transferred(Box::new(grant())),
        Done::Revoked { holdings: vec![holding()], token: Some(token(18)) },
        Done::Written { succeeded: true, revision: Revision::new(10), results: vec![register()] },
        Done::BarrierTaken { token: token(19) },
        Done::Restored { token_floor: token(1_000), grants_in: Duration::from_secs(3_600) },
    ]
}

/// What only version 2 can answer.
pub fn answers_since_v2() -> Vec<Answer> {
    let not_staged = |next| Err(Refusal::NotStaged { next });
    let denied = |why| {
        let (on, nearest) = ("payroll/x".into(), Some(name("pay")));
        Err(Refusal::Forbidden(Box::new(Denial { identity: identity(), verb: Verb::Hold, on, why, nearest })))
    };
    let over = |policy| {
        let over = OverQuota { identity: identity(), limit: "leases", max: 2, used: 3, policy };
        Err(Refusal::OverQuota(Box::new(over)))
    };
    let held = Refusal::Held {
        resource: name("settlement/cron"),
        by: Some(Box::new(Holding { identity: Some(name("cred/pay-worker")), ..holding() })),
        waited: Duration::ZERO,
    };
    let mut answers = vec![Ok(Done::Staged { pieces: 3 }), not_staged(None), not_staged(Some(7))];
    answers.extend(DenialReason::ALL.map(denied));
    answers.extend([over(None), over(Some(name("pay"))), Err(held)]);
    answers
}

/// Every refusal.
pub fn refusals() -> Vec<Refusal> {
    let resource = || name::<ResourceName>("settlement/cron");
    vec![
        Refusal::Held { resource: resource(), by: Some(Box::new(holding())), waited: Duration::ZERO },
        Refusal::Held { resource: resource(), by: None, waited: millis(300) },
        Refusal::Delayed { resource: resource(), remaining: millis(1_500) },
        Refusal::UnknownSession,
        Refusal::Lapsed,
        Refusal::NotReady { resource: resource(), session: SessionNumber::new(8) },
        Refusal::NotHeld { resource: resource() },
        Refusal::UnderNotice { resource: resource() },
        Refusal::WrongKind { resource: resource(), is: KindSetting::Lock },
        Refusal::WrongKind { resource: resource(), is: KindSetting::Semaphore(3) },
        Refusal::StaleToken { presented: token(1), seen: token(2) },
        Refusal::LeaseEnded { presented: token(2) },
        Refusal::UnknownToken { presented: token(99) },
        Refusal::WrongGuard { key: name("config"), guard: Some(scope("a", Some(1))) },
        Refusal::WrongGuard { key: name("config"), guard: None },
        Refusal::ForgottenNumber { number: 3 },
        Refusal::Cancelled { released: false },
        Refusal::Cancelled { released: true },
        Refusal::NonceUsed,
        Refusal::Limit { limit: "leases_per_session_max", max: 10_000 },
        Refusal::InvalidTtl { ttl: Duration::ZERO, min: millis(500), max: Duration::from_secs(3_600) },
        Refusal::Invalid("an acquire names each resource once"),
        Refusal::InUse { resource: resource() },
        Refusal::NotFound,
        Refusal::Restoring { remaining: Duration::from_secs(3_000) },
        Refusal::FloorTooLow { floor: token(18), issued: 19 },
        Refusal::NotEmpty,
        Refusal::TokensExhausted,
    ]
}

/// A past lease.
pub fn transition() -> Transition {
    Transition {
        token: token(16),
        generation: Generation::new(3),
        session: SessionNumber::new(5),
        holder: name("node-b"),
        mode: Mode::Exclusive,
        slot: None,
        from: time(1_000_000),
        to: time(4_500_000),
        from_wall: wall(0),
        to_wall: wall(3_500),
        why: EndReason::Revoked,
        reason: Some("maintenance".into()),
        identity: None,
    }
}

/// What a history no longer has.
pub fn dropped() -> DroppedLeases {
    let newest =
        NewestDropped { limit: HistoryLimit::Count, max: 1_000, token: token(15), to_wall: wall(500) };
    DroppedLeases { leases: 12, newest: Some(newest) }
}

/// The limits as they were by default when the golden files were written.
fn limits() -> Limits {
    Limits { events_max: 65_536, ..Limits::of(FormatVersion::V1) }
}

/// A fence that has installed tokens and refused writes.
pub fn fence_record() -> FenceRecord {
    FenceRecord {
        armed: BTreeMap::from([(None, token(17)), (Some(Slot::new(2)), token(16))]),
        refused: 40,
        refused_wall: wall(2_000),
        unreported: 3,
        reported_at: Some(time(12_000_000)),
    }
}

/// The state as this version has it: a later one also says what it did not know before.
pub fn state_of(version: FormatVersion) -> State {
    let mut state = State { format: version, ..state() };
    if version >= FormatVersion::V2 {
        state.settings.limits.history_bytes_total_max = 64 << 20;
        let resource = state.resources.get_mut(ResourceNumber(1)).expect("it is in the sample");
        let more = resource.more.as_mut().expect("it has everything");
        more.history.set_dropped(Some(Dropped {
            limit: HistoryLimit::Bytes,
            token: token(15),
            to_wall: wall(500),
        }));
        more.history.push(&Transition { identity: Some(name("cred/pay-worker")), ..transition() });
        let session = state.sessions.get_mut(SessionNumber::new(7)).expect("it is in the sample");
        session.identity = IdentityNumber(1);
        state.authority = Authority {
            enforced: true,
            wall: wall(7),
            credentials: BTreeMap::from([(credential_id(), credential())]),
            policies: BTreeMap::from([(name("pay"), Arc::new(policy()))]),
            identities: BTreeMap::from([
                (IdentityNumber(1), identity()),
                (IdentityNumber(3), Identity::Operator),
            ]),
        };
        state.staging = Some(Box::new(staging()));
        state.restored = Some(Restored {
            id: RestoreId::new([0xb8; 16]),
            token_floor: token(12),
            sessions_opened: 3,
            registers_named: 4,
        });
    }
    state
}

/// A state with every kind of record, each with everything that it can have in every version.
fn state() -> State {
    let answered = |answer| Remembered::Answered(Box::new(answer));
    let mut remembered = vec![
        Remembered::Waiting(WaiterNumber(4)),
        Remembered::Cancelled { released: true },
        Remembered::Granted(vec![RememberedGrant {
            resource: name("settlement/cron"),
            mode: Mode::Slots(3),
            slot: Some(Slot::new(2)),
            token: token(17),
            generation: Generation::new(4),
            remaining: millis(9_999).into(),
            waited: millis(250).into(),
        }]),
    ];
    remembered.extend(dones().into_iter().map(|done| answered(Ok(done))));
    remembered.extend(refusals().into_iter().map(|refusal| answered(Err(refusal))));

    let mut state = State {
        settings: Settings { cluster: [0xc1; 16], limits: limits() },
        time: time(12_345_678),
        wall: wall(0),
        entries: 321,
        revision: Revision::new(120),
        last_token: 19,
        grants_from: time(77),
        sessions_opened: 70,
        resources_named: 66,
        waiters_arrived: 4,
        registers_named: 65,
        keys: BTreeMap::from([("2-1".into(), SigningKey { node: 2, key: [0xed; 32] })]),
        totals: Totals {
            grants: 1,
            ends: [2, 3, 4, 5, 6, 7, 8],
            renewals: 9,
            sessions_expired: 10,
            refused: 11,
            register_refusals: 12,
            pauses: 13,
            leader_changes: 14,
            plain_unrenewed: 15,
        },
        used_nonces: [UsedNonce { nonce: Nonce::new([0xa9; 16]), since: time(4) }].into(),
        ..State::default()
    };

    for number in [7, 70] {
        let key = SessionNumber::new(number);
        let full = number == 7;
        state.pulses.insert(
            key,
            Pulse {
                deadline: time(22_345_678 + number),
                ttl: Duration::from_secs(10).into(),
                number: 300,
                last_lease_revision: Revision::new(118),
                lapsed: full,
                has_events: full,
            },
        );
        let more = SessionMore {
            waiters: BTreeSet::from([WaiterNumber(4)]),
            ephemerals: BTreeSet::from([RegisterNumber(1)]),
            events: VecDeque::from([EndedLease {
                revision: Revision::new(110),
                resource: name("lost"),
                token: token(12),
                why: EndReason::HeldTooLong,
            }]),
            ended_lost: true,
            hard_limit: Some(millis(30_000)),
            pause_reported_at: Some(time(12_000_000)),
        };
        state.sessions.insert(
            key,
            Session {
                secret: Secret::new([number as u8; 16]),
                holder: name("node-a"),
                nonce: full.then(|| Nonce::new([0xa5; 16])),
                identity: IdentityNumber::ANYONE,
                implicit: full,
                plain: full,
                opened_at: time(5),
                leases: Few::from(vec![ResourceNumber(1), ResourceNumber(66)]),
                answers: Answers {
                    floor: 2,
                    remembered: if full { (2..).zip(remembered.clone()).collect() } else { Few::None },
                },
                more: full.then(|| Box::new(more)),
            },
        );
    }

    let hold = Hold {
        session: SessionNumber::new(7),
        token: token(17),
        generation: Generation::new(4),
        mode: Mode::Slots(3),
        slot: Some(Slot::new(2)),
        since: time(11_000_000),
        since_wall: wall(1_000),
        reentered: 1,
        more: Some(Box::new(HoldMore {
            policies: all_policies(),
            notice: Some(Notice {
                why: EndReason::Revoked,
                ends_at: time(22_000_000),
                reason: Some("maintenance".into()),
            }),
            transmissions: vec![TransmissionId::new([0xa7; 16])],
        })),
    };
    let more = ResourceMore {
        queue: BTreeSet::from([Place { rank: std::cmp::Reverse(-5), waiter: WaiterNumber(4) }]),
        delayed_until: Some(time(13_000_000)),
        history: PackedHistory::from_iter([transition()]),
        fences: BTreeMap::from([(name("postgres:orders"), fence_record())]),
        slot_tokens: BTreeMap::from([(Slot::new(2), token(17))]),
        guards: 1,
        kind_set: true,
    };
    state.resources.insert(
        ResourceNumber(1),
        Resource {
            name: name("settlement/cron"),
            kind: Some(KindSetting::Semaphore(3)),
            generation: Generation::new(4),
            last_token: 17,
            holds: Few::One(hold),
            freed_at: Revision::new(100),
            more: Some(Box::new(more)),
        },
    );
    state.resources.insert(
        ResourceNumber(66),
        Resource {
            name: name("never/granted"),
            kind: None,
            generation: Generation::default(),
            last_token: 0,
            holds: Few::None,
            freed_at: Revision::default(),
            more: None,
        },
    );
    state.waiters.insert(
        WaiterNumber(4),
        Waiter {
            session: SessionNumber::new(7),
            number: Some(2),
            resources: vec![ResourceNumber(1)],
            mode: Mode::Slots(3),
            policies: all_policies(),
            fences: vec![name("postgres:orders")],
            since: time(12_000_000),
            until: Some(time(15_000_000)),
            transmissions: vec![TransmissionId::new([0xa8; 16])],
        },
    );
    state.registers.insert(
        RegisterNumber(1),
        RegisterRecord {
            key: name("config"),
            guard: Some(scope("settlement/cron", Some(2))),
            content: Some(Content {
                value: Arc::from(&b"on"[..]),
                create_revision: Revision::new(3),
                mod_revision: Revision::new(9),
                version: 2,
                session: Some(SessionNumber::new(7)),
            }),
        },
    );
    state.registers.insert(
        RegisterNumber(65),
        RegisterRecord { key: name("deleted"), guard: Some(scope("a", None)), content: None },
    );
    state
}

/// Every event.
pub fn events() -> Vec<EventKind> {
    let session = SessionNumber::new(7);
    let holder = || name::<HolderName>("node-a");
    let resource = || name::<ResourceName>("settlement/cron");
    vec![
        EventKind::Opened { session, holder: holder() },
        EventKind::Closed { session, holder: holder(), why: EndReason::Expired },
        EventKind::Lapsed { session, holder: holder() },
        EventKind::Granted {
            resource: resource(),
            session,
            holder: holder(),
            mode: Mode::Exclusive,
            slot: None,
            token: token(17),
            generation: Generation::new(4),
            waited: millis(250),
            number: Some(2),
        },
        EventKind::Ended {
            resource: resource(),
            session,
            holder: holder(),
            slot: Some(Slot::new(2)),
            token: token(17),
            why: EndReason::Revoked,
            held_for: millis(61_000),
            late: Duration::from_micros(1_250),
            reason: Some("maintenance".into()),
        },
        EventKind::Noticed {
            resource: resource(),
            session,
            token: token(17),
            why: EndReason::Revoked,
            remaining: millis(4_200),
            reason: Some("maintenance".into()),
        },
        EventKind::Queued { resource: resource(), session, holder: holder(), number: Some(2) },
        EventKind::Unqueued {
            resource: resource(),
            session,
            holder: holder(),
            number: None,
            why: EndReason::Expired,
        },
        EventKind::Put {
            key: name("config"),
            value: Arc::from(&b"\xff"[..]),
            create_revision: Revision::new(3),
            version: 2,
        },
        EventKind::Deleted { key: RegisterKey::try_from(&b"\xfe"[..]).expect("a sample key") },
        EventKind::Barrier { resource: resource(), token: token(18) },
        EventKind::Armed { scope: scope("a", Some(2)), fence: name("postgres:orders"), token: token(17) },
        EventKind::Refused {
            scope: scope("a", None),
            fence: name("postgres:orders"),
            presented: token(16),
            seen: token(17),
            count: 40,
        },
        EventKind::Paused { session, holder: holder(), length: millis(3_000) },
        EventKind::BecameLeader { node: 2, term: 5 },
        EventKind::Changed { what: "settlement/cron".into(), how: "kind set" },
    ]
}

/// A resource as anybody may see it.
pub fn lease_view() -> LeaseView {
    LeaseView {
        resource: name("settlement/cron"),
        kind: Some(KindSetting::Lock),
        holders: vec![holding()],
        token: Some(token(17)),
        generation: Generation::new(4),
        waiters: vec![WaiterView {
            session: SessionNumber::new(8),
            holder: name("node-b"),
            mode: Mode::Shared,
            priority: 3,
            waited: millis(700),
            remaining: Some(millis(9_300)),
            resources: vec![name("settlement/cron"), name("a")],
            identity: Some(name("cred/pay-worker")),
        }],
        waiting: 1,
        delayed: Some(millis(1_500)),
        fences: vec![fence_view()],
    }
}

/// The fence of `fence_record`, as anybody may see it.
pub fn fence_view() -> FenceView {
    let record = fence_record();
    let armed = record.armed.into_iter();
    FenceView {
        resource: name("settlement/cron"),
        fence: name("postgres:orders"),
        armed: armed.map(|(slot, token)| ArmedView { slot, token, current: slot.is_none() }).collect(),
        refused: record.refused,
        refused_wall: Some(record.refused_wall),
    }
}

pub fn session_view() -> SessionView {
    SessionView {
        session: SessionNumber::new(7),
        holder: name("node-a"),
        ttl: Duration::from_secs(10),
        remaining: millis(9_000),
        open_for: millis(61_000),
        leases: 2,
        waiters: 1,
        lapsed: false,
        identity: Some(name("cred/pay-worker")),
    }
}
