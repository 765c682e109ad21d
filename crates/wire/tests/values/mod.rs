//! Random values of everything that is stored, for the property tests.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::{btree_map, btree_set, vec, vec_deque};
use proptest::option::of;
use proptest::prelude::*;
use tenure_core::state::*;
use tenure_core::*;

pub fn resource() -> impl Strategy<Value = ResourceName> {
    "[a-zä:]{1,5}(/[a-z#0-9.]{1,4}x){0,2}".prop_map(|text| text.parse().unwrap())
}

pub fn holder() -> impl Strategy<Value = HolderName> {
    "[a-z ü:0-9]{1,12}".prop_map(|text| text.parse().unwrap())
}

pub fn fence() -> impl Strategy<Value = FenceName> {
    "[a-z:]{1,9}".prop_map(|text| text.parse().unwrap())
}

pub fn key() -> impl Strategy<Value = RegisterKey> {
    vec(any::<u8>(), 1..12).prop_map(|bytes| bytes.as_slice().try_into().unwrap())
}

pub fn text() -> impl Strategy<Value = Arc<str>> {
    "\\PC{0,12}".prop_map(Arc::from)
}

pub fn value() -> impl Strategy<Value = Arc<[u8]>> {
    vec(any::<u8>(), 0..20).prop_map(Arc::from)
}

/// Numbers of every width, small ones often.
pub fn number() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(bits, shift)| bits >> shift)
}

pub fn token() -> impl Strategy<Value = Token> {
    (1..=Token::MAX.get(), 0..53u32)
        .prop_map(|(number, shift)| Token::try_from((number >> shift).max(1)).unwrap())
}

pub fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        4 => (0..100_000u64).prop_map(Duration::from_millis),
        2 => number().prop_map(Duration::from_micros),
        1 => number().prop_map(Duration::from_nanos),
        1 => Just(Duration::MAX),
    ]
}

pub fn session() -> impl Strategy<Value = SessionNumber> {
    number().prop_map(SessionNumber::new)
}

pub fn revision() -> impl Strategy<Value = Revision> {
    number().prop_map(Revision::new)
}

pub fn generation() -> impl Strategy<Value = Generation> {
    number().prop_map(Generation::new)
}

pub fn time() -> impl Strategy<Value = ClusterTime> {
    number().prop_map(ClusterTime::from_micros)
}

pub fn wall() -> impl Strategy<Value = WallTime> {
    number().prop_map(WallTime::from_unix_millis)
}

pub fn slot() -> impl Strategy<Value = Slot> {
    any::<u32>().prop_map(Slot::new)
}

pub fn secret() -> impl Strategy<Value = Secret> {
    any::<[u8; 16]>().prop_map(Secret::new)
}

pub fn nonce() -> impl Strategy<Value = Nonce> {
    any::<[u8; 16]>().prop_map(Nonce::new)
}

pub fn transmission() -> impl Strategy<Value = TransmissionId> {
    any::<[u8; 16]>().prop_map(TransmissionId::new)
}

pub fn session_id() -> impl Strategy<Value = SessionId> {
    (session(), secret()).prop_map(|(number, secret)| SessionId { number, secret })
}

pub fn scope() -> impl Strategy<Value = Scope> {
    (resource(), of(slot())).prop_map(|(resource, slot)| Scope { resource, slot })
}

pub fn caller() -> impl Strategy<Value = Caller> {
    (session_id(), of(number()), number()).prop_map(|(session, number, lowest_awaited)| Caller {
        session,
        number,
        lowest_awaited,
    })
}

pub fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), any::<u32>().prop_map(Mode::Slots)]
}

pub fn kind() -> impl Strategy<Value = KindSetting> {
    prop_oneof![Just(KindSetting::Lock), any::<u32>().prop_map(KindSetting::Semaphore)]
}

pub fn why() -> impl Strategy<Value = EndReason> {
    prop::sample::select(EndReason::ALL.to_vec())
}

pub fn policies() -> impl Strategy<Value = Policies> {
    (of(duration()), of(duration()), of(duration()), any::<i32>(), any::<bool>()).prop_map(
        |(lock_delay, max_hold, hard_limit, priority, reentrant)| Policies {
            lock_delay,
            max_hold,
            hard_limit,
            priority,
            reentrant,
        },
    )
}

pub fn open() -> impl Strategy<Value = Open> {
    (holder(), duration(), of(nonce()), secret(), number())
        .prop_map(|(holder, ttl, nonce, secret, number)| Open { holder, ttl, nonce, secret, number })
}

pub fn acquire() -> impl Strategy<Value = Acquire> {
    let by = prop_oneof![caller().prop_map(AcquireBy::Session), open().prop_map(AcquireBy::Opening)];
    let wait = prop_oneof![Just(Wait::No), duration().prop_map(Wait::For), Just(Wait::Forever)];
    (by, vec(resource(), 1..4), mode(), wait, policies(), vec(fence(), 0..3), of(transmission())).prop_map(
        |(by, resources, mode, wait, policies, fences, transmission)| Acquire {
            by,
            resources,
            mode,
            wait,
            policies,
            fences,
            transmission,
        },
    )
}

pub fn write() -> impl Strategy<Value = Write> {
    let guard = || of((scope(), token()).prop_map(|(scope, token)| Guard { scope, token }));
    let field = prop_oneof![
        number().prop_map(CompareField::CreateRevision),
        number().prop_map(CompareField::ModRevision),
        number().prop_map(CompareField::Version),
        value().prop_map(CompareField::Value),
    ];
    let op = prop::sample::select(vec![
        CompareOp::Equal,
        CompareOp::NotEqual,
        CompareOp::Greater,
        CompareOp::Less,
    ]);
    let compare = (key(), field, op).prop_map(|(key, field, op)| Compare { key, field, op });
    let operation =
        prop_oneof![
            (key(), value(), guard(), any::<bool>())
                .prop_map(|(key, value, guard, ephemeral)| Operation::Put { key, value, guard, ephemeral }),
            (key(), guard()).prop_map(|(key, guard)| Operation::Delete { key, guard }),
            key().prop_map(|key| Operation::Get { key }),
        ]
        .boxed();
    (of(caller()), vec(compare, 0..3), vec(operation.clone(), 0..3), vec(operation, 0..3))
        .prop_map(|(by, compares, then, otherwise)| Write { by, compares, then, otherwise })
}

pub fn command() -> BoxedStrategy<Command> {
    prop_oneof![
        open().prop_map(Command::Open),
        (caller(), why()).prop_map(|(by, why)| Command::Close { by, why }),
        acquire().prop_map(|acquire| Command::Acquire(Box::new(acquire))),
        (caller(), number()).prop_map(|(by, acquire)| Command::Cancel { by, acquire }),
        nonce().prop_map(|nonce| Command::CancelNonce { nonce }),
        (of(session_id()), transmission())
            .prop_map(|(session, transmission)| Command::Undo { session, transmission }),
        (caller(), resource(), of(token()), of(duration()))
            .prop_map(|(by, resource, token, rest)| { Command::Release { by, resource, token, rest } }),
        Just(Command::Upgrade { to: FormatVersion::NEWEST }),
        (any::<[u8; 16]>(), number(), number(), any::<u128>()).prop_map(|(id, pieces, records, checksum)| {
            Command::RestoreCommit { id: RestoreId::new(id), pieces, records, checksum }
        }),
        (caller(), resource(), session()).prop_map(|(by, resource, to)| Command::Transfer {
            by,
            resource,
            to
        }),
        (resource(), of(session()), any::<bool>(), text()).prop_map(|(resource, session, now, reason)| {
            Command::Revoke { resource, session, now, reason }
        }),
        (session_id(), revision()).prop_map(|(session, revision)| Command::Seen { session, revision }),
        write().prop_map(|write| Command::Write(Box::new(write))),
        (scope(), fence(), token(), token(), any::<u32>()).prop_map(
            |(scope, fence, presented, seen, count)| Command::Refused {
                scope,
                fence,
                presented,
                seen,
                count
            }
        ),
        (scope(), fence(), token()).prop_map(|(scope, fence, token)| Command::Arm { scope, fence, token }),
        (session_id(), duration()).prop_map(|(session, length)| Command::Paused { session, length }),
        (resource(), of(kind())).prop_map(|(resource, kind)| Command::SetKind { resource, kind }),
        (key(), of(scope())).prop_map(|(key, guard)| Command::Rebind { key, guard }),
        (number(), text(), any::<[u8; 32]>()).prop_map(|(node, kid, key)| Command::PublishKey {
            node,
            kid,
            key
        }),
    ]
    .boxed()
}

pub fn identity() -> impl Strategy<Value = Identity> {
    let named =
        ("(cred|cert|jwt|host)/[a-z:/.]{1,12}", of(any::<[u8; 8]>())).prop_map(|(name, credential)| {
            Identity::Named { name: name.parse().unwrap(), credential: credential.map(CredentialId::new) }
        });
    prop_oneof![Just(Identity::Anyone), Just(Identity::Node), Just(Identity::Operator), named]
}

pub fn policy() -> impl Strategy<Value = Policy> {
    let who =
        prop_oneof!["cred/[a-z]{1,5}", "jwt/[a-z]{0,5}[*]", Just("*".to_owned()), Just("anyone".to_owned())];
    let who = vec(who.prop_map(|text| text.parse().unwrap()), 0..3);
    let on = prop_oneof!["[a-z]{1,4}(/[a-z]{1,4}){0,2}", Just("*".to_owned())];
    let on = vec(on.prop_map(|text| text.parse().unwrap()), 0..3);
    let may =
        vec(prop::sample::select(Verb::ALL.to_vec()), 0..4).prop_map(|verbs| verbs.into_iter().collect());
    let holder = prop_oneof![Just(HolderRule::Any), Just(HolderRule::Own)];
    let counts = (of(any::<u32>()), of(any::<u32>()), of(any::<u32>()), of(any::<u32>()));
    let limits = (counts, of(number()), of(duration()), any::<i32>()).prop_map(
        |((sessions, leases, waiters, registers), bytes, ttl_max, priority_max)| Quotas {
            sessions,
            leases,
            waiters,
            registers,
            bytes,
            ttl_max,
            priority_max,
        },
    );
    (who, on, may, holder, limits).prop_map(|(who, on, may, holder, limits)| Policy {
        who,
        on,
        may,
        holder,
        limits,
    })
}

fn policy_name() -> impl Strategy<Value = PolicyName> {
    "[a-z.-]{1,9}".prop_map(|text| text.parse().unwrap())
}

/// Commands that only version 2 can say, of callers that it knows.
pub fn authority_command() -> impl Strategy<Value = Command> {
    let credential = (any::<[u8; 8]>(), any::<[u8; 32]>(), of(wall())).prop_map(|(id, hash, expires)| {
        let name = "cred/a".parse().unwrap();
        Command::PutCredential(Box::new(PutCredential { id: CredentialId::new(id), name, hash, expires }))
    });
    let put = (policy_name(), policy(), any::<bool>())
        .prop_map(|(name, policy, now)| Command::PutPolicy(Box::new(PutPolicy { name, policy, now })));
    let of_caller = (identity(), command())
        .prop_map(|(identity, command)| Command::As(Box::new(Attributed { identity, command })));
    prop_oneof![
        credential,
        put,
        of_caller,
        (any::<[u8; 8]>(), any::<bool>())
            .prop_map(|(id, now)| Command::RevokeCredential { id: CredentialId::new(id), now }),
        (policy_name(), any::<bool>()).prop_map(|(name, now)| Command::RemovePolicy { name, now }),
        any::<bool>().prop_map(|enforced| Command::SetEnforced { enforced }),
    ]
}

fn authority() -> impl Strategy<Value = Authority> {
    let policies = btree_map(policy_name(), policy().prop_map(Arc::new), 0..4);
    let credential = (any::<[u8; 32]>(), wall(), of(wall()), any::<bool>()).prop_map(
        |(hash, created, expires, revoked)| Credential {
            name: "cred/a".parse().unwrap(),
            hash,
            created,
            expires,
            revoked,
        },
    );
    let credentials = btree_map(any::<[u8; 8]>().prop_map(CredentialId::new), credential, 0..4);
    let identities = btree_map(any::<u32>().prop_map(IdentityNumber), identity(), 0..4);
    (any::<bool>(), wall(), credentials, policies, identities).prop_map(
        |(enforced, wall, credentials, policies, identities)| Authority {
            enforced,
            wall,
            credentials,
            policies,
            identities,
        },
    )
}

pub fn renewal() -> impl Strategy<Value = Renewal> {
    (session(), number()).prop_map(|(session, number)| Renewal { session, number })
}

pub fn entry() -> impl Strategy<Value = Entry> {
    (time(), wall(), vec(renewal(), 0..40), vec(prop_oneof![3 => command(), 1 => authority_command()], 0..6))
        .prop_map(|(at, wall, renewals, commands)| Entry { at, wall, renewals, commands })
}

pub fn grant() -> impl Strategy<Value = Grant> {
    let first = (resource(), session_id(), holder(), mode(), of(slot()));
    let second = (token(), generation(), duration(), duration(), duration(), vec(fence(), 0..3));
    (first, second).prop_map(
        |((resource, session, holder, mode, slot), (token, generation, remaining, ttl, waited, fences))| {
            Grant { resource, session, holder, mode, slot, token, generation, remaining, ttl, waited, fences }
        },
    )
}

pub fn holding() -> impl Strategy<Value = Holding> {
    let first = (session(), holder(), mode(), of(slot()), token(), generation());
    let second = (duration(), duration(), duration(), of(why()), any::<bool>());
    (first, second).prop_map(
        |((session, holder, mode, slot, token, generation), (remaining, ttl, held_for, notice, lapsed))| {
            Holding {
                session,
                holder,
                mode,
                slot,
                token,
                generation,
                remaining,
                ttl,
                held_for,
                notice,
                lapsed,
                identity: None,
            }
        },
    )
}

pub fn register() -> impl Strategy<Value = Register> {
    (key(), of(value()), revision(), revision(), number(), of(session()), of(scope())).prop_map(
        |(key, value, create_revision, mod_revision, version, session, guard)| Register {
            key,
            value,
            create_revision,
            mod_revision,
            version,
            session,
            guard,
        },
    )
}

pub fn done() -> BoxedStrategy<Done> {
    prop_oneof![
        Just(Done::Nothing),
        (session_id(), holder(), duration(), number())
            .prop_map(|(session, holder, ttl, number)| Done::Opened { session, holder, ttl, number }),
        any::<u32>().prop_map(|released| Done::Closed { released }),
        (vec(grant(), 1..3), of(number())).prop_map(|(grants, opened)| Done::Granted { grants, opened }),
        (session_id(), duration(), any::<u32>()).prop_map(|(session, ttl, ahead)| Done::Queued {
            session,
            ttl,
            ahead
        }),
        any::<bool>().prop_map(|released| Done::Cancelled { released }),
        any::<bool>().prop_map(|released| Done::Released { released }),
        grant().prop_map(|grant| Done::Transferred(Box::new(grant))),
        (vec(holding(), 0..3), of(token())).prop_map(|(holdings, token)| Done::Revoked { holdings, token }),
        (any::<bool>(), revision(), vec(register(), 0..3))
            .prop_map(|(succeeded, revision, results)| { Done::Written { succeeded, revision, results } }),
        token().prop_map(|token| Done::BarrierTaken { token }),
    ]
    .boxed()
}

pub fn refusal() -> BoxedStrategy<Refusal> {
    prop_oneof![
        (resource(), of(holding().prop_map(Box::new)), duration())
            .prop_map(|(resource, by, waited)| Refusal::Held { resource, by, waited }),
        (resource(), duration()).prop_map(|(resource, remaining)| Refusal::Delayed { resource, remaining }),
        Just(Refusal::UnknownSession),
        Just(Refusal::Lapsed),
        (resource(), session()).prop_map(|(resource, session)| Refusal::NotReady { resource, session }),
        resource().prop_map(|resource| Refusal::NotHeld { resource }),
        resource().prop_map(|resource| Refusal::UnderNotice { resource }),
        (resource(), kind()).prop_map(|(resource, is)| Refusal::WrongKind { resource, is }),
        (token(), token()).prop_map(|(presented, seen)| Refusal::StaleToken { presented, seen }),
        token().prop_map(|presented| Refusal::LeaseEnded { presented }),
        token().prop_map(|presented| Refusal::UnknownToken { presented }),
        (key(), of(scope())).prop_map(|(key, guard)| Refusal::WrongGuard { key, guard }),
        number().prop_map(|number| Refusal::ForgottenNumber { number }),
        any::<bool>().prop_map(|released| Refusal::Cancelled { released }),
        Just(Refusal::NonceUsed),
        number().prop_map(|max| Refusal::Limit { limit: "sessions_max", max }),
        (duration(), duration(), duration()).prop_map(|(ttl, min, max)| Refusal::InvalidTtl {
            ttl,
            min,
            max
        }),
        Just(Refusal::Invalid("a text of our own")),
        resource().prop_map(|resource| Refusal::InUse { resource }),
        Just(Refusal::NotFound),
        duration().prop_map(|remaining| Refusal::Restoring { remaining }),
        Just(Refusal::TokensExhausted),
    ]
    .boxed()
}

fn pulse() -> impl Strategy<Value = Pulse> {
    (time(), duration(), number(), revision(), any::<bool>(), any::<bool>()).prop_map(
        |(deadline, ttl, number, last_lease_revision, lapsed, has_events)| Pulse {
            deadline,
            ttl: ttl.into(),
            number,
            last_lease_revision,
            lapsed,
            has_events,
        },
    )
}

fn remembered() -> impl Strategy<Value = Remembered> {
    let grant = (resource(), mode(), of(slot()), token(), generation(), duration(), duration()).prop_map(
        |(resource, mode, slot, token, generation, remaining, waited)| RememberedGrant {
            resource,
            mode,
            slot,
            token,
            generation,
            remaining: remaining.into(),
            waited: waited.into(),
        },
    );
    let answer = prop_oneof![done().prop_map(Ok), refusal().prop_map(Err)];
    prop_oneof![
        number().prop_map(|number| Remembered::Waiting(WaiterNumber(number))),
        any::<bool>().prop_map(|released| Remembered::Cancelled { released }),
        vec(grant, 1..3).prop_map(Remembered::Granted),
        answer.prop_map(|answer| Remembered::Answered(Box::new(answer))),
    ]
}

fn session_record() -> impl Strategy<Value = Session> {
    let events = (revision(), resource(), token(), why())
        .prop_map(|(revision, resource, token, why)| EndedLease { revision, resource, token, why });
    let more = (
        btree_set(number().prop_map(WaiterNumber), 0..3),
        btree_set(number().prop_map(RegisterNumber), 0..3),
        vec_deque(events, 0..3),
        any::<bool>(),
        of(duration()),
        of(time()),
    )
        .prop_map(|(waiters, ephemerals, events, ended_lost, hard_limit, pause_reported_at)| {
            SessionMore { waiters, ephemerals, events, ended_lost, hard_limit, pause_reported_at }
        });
    let answers = (number(), vec((number(), remembered()), 0..3))
        .prop_map(|(floor, remembered)| Answers { floor, remembered: remembered.into() });
    (
        secret(),
        holder(),
        of(nonce()),
        (any::<bool>(), any::<bool>()),
        time(),
        vec(number().prop_map(ResourceNumber), 0..4),
        answers,
        of(more.prop_map(Box::new)),
    )
        .prop_map(|(secret, holder, nonce, (implicit, plain), opened_at, leases, answers, more)| {
            Session {
                secret,
                holder,
                nonce,
                identity: IdentityNumber::ANYONE,
                implicit,
                plain,
                opened_at,
                leases: leases.into(),
                answers,
                more,
            }
        })
}

fn hold() -> impl Strategy<Value = Hold> {
    let notice =
        (why(), time(), of(text())).prop_map(|(why, ends_at, reason)| Notice { why, ends_at, reason });
    let more = (policies(), of(notice), vec(transmission(), 0..3))
        .prop_map(|(policies, notice, transmissions)| HoldMore { policies, notice, transmissions });
    (
        session(),
        token(),
        generation(),
        mode(),
        of(slot()),
        time(),
        wall(),
        any::<u32>(),
        of(more.prop_map(Box::new)),
    )
        .prop_map(|(session, token, generation, mode, slot, since, since_wall, reentered, more)| Hold {
            session,
            token,
            generation,
            mode,
            slot,
            since,
            since_wall,
            reentered,
            more,
        })
}

fn resource_record() -> impl Strategy<Value = Resource> {
    let place = (any::<i32>(), number())
        .prop_map(|(rank, waiter)| Place { rank: Reverse(rank), waiter: WaiterNumber(waiter) });
    let transition = (
        (token(), generation(), session(), holder(), mode(), of(slot())),
        (time(), time(), wall(), wall(), why(), of(text())),
    )
        .prop_map(
            |(
                (token, generation, session, holder, mode, slot),
                (from, to, from_wall, to_wall, why, reason),
            )| {
                Transition {
                    token,
                    generation,
                    session,
                    holder,
                    mode,
                    slot,
                    from,
                    to,
                    from_wall,
                    to_wall,
                    why,
                    reason,
                    identity: None,
                }
            },
        );
    let fence_record = (btree_map(of(slot()), token(), 0..3), number(), wall(), number(), of(time()))
        .prop_map(|(armed, refused, refused_wall, unreported, reported_at)| FenceRecord {
            armed,
            refused,
            refused_wall,
            unreported,
            reported_at,
        });
    let more = (
        btree_set(place, 0..3),
        of(time()),
        vec(transition, 0..3).prop_map(PackedHistory::from_iter),
        btree_map(fence(), fence_record, 0..3),
        btree_map(slot(), token(), 0..3),
        any::<u32>(),
        any::<bool>(),
    )
        .prop_map(|(queue, delayed_until, history, fences, slot_tokens, guards, kind_set)| {
            ResourceMore { queue, delayed_until, history, fences, slot_tokens, guards, kind_set }
        });
    (
        resource(),
        of(kind()),
        generation(),
        number(),
        vec(hold(), 0..3),
        revision(),
        of(more.prop_map(Box::new)),
    )
        .prop_map(|(name, kind, generation, last_token, holds, freed_at, more)| Resource {
            name,
            kind,
            generation,
            last_token,
            holds: holds.into(),
            freed_at,
            more,
        })
}

fn waiter_record() -> impl Strategy<Value = Waiter> {
    (
        session(),
        of(number()),
        vec(number().prop_map(ResourceNumber), 0..3),
        mode(),
        policies(),
        vec(fence(), 0..2),
        time(),
        of(time()),
        vec(transmission(), 0..3),
    )
        .prop_map(|(session, number, resources, mode, policies, fences, since, until, transmissions)| {
            Waiter { session, number, resources, mode, policies, fences, since, until, transmissions }
        })
}

fn register_record() -> impl Strategy<Value = RegisterRecord> {
    let content = (value(), revision(), revision(), number(), of(session())).prop_map(
        |(value, create_revision, mod_revision, version, session)| Content {
            value,
            create_revision,
            mod_revision,
            version,
            session,
        },
    );
    (key(), of(scope()), of(content)).prop_map(|(key, guard, content)| RegisterRecord { key, guard, content })
}

/// Records under keys, spread so that several fall on one board and several do not.
fn map<K: Key + std::fmt::Debug, T: Clone + std::fmt::Debug>(
    record: impl Strategy<Value = T>,
) -> impl Strategy<Value = CowMap<K, T>> {
    btree_map(0..500u64, record, 0..5).prop_map(filled)
}

fn filled<K: Key, T: Clone>(records: BTreeMap<u64, T>) -> CowMap<K, T> {
    let mut map = CowMap::default();
    records.into_iter().for_each(|(key, record)| map.insert(K::from_number(key), record));
    map
}

pub fn state() -> impl Strategy<Value = State> {
    let numbers = (any::<[u8; 16]>(), time(), wall(), revision(), number(), time());
    let maps = (
        btree_map(0..500u64, (pulse(), session_record()), 0..5),
        map(resource_record()),
        map(waiter_record()),
        map(register_record()),
    );
    let keys = btree_map(
        text(),
        (number(), any::<[u8; 32]>()).prop_map(|(node, key)| SigningKey { node, key }),
        0..3,
    );
    let totals = (number(), any::<[u64; 7]>()).prop_map(|(grants, ends)| Totals {
        grants,
        ends,
        renewals: grants / 2,
        sessions_expired: 3,
        refused: 4,
        register_refusals: 5,
        pauses: 6,
        leader_changes: 7,
        plain_unrenewed: 8,
    });
    let used_nonces =
        vec_deque((nonce(), time()).prop_map(|(nonce, since)| UsedNonce { nonce, since }), 0..3);
    (numbers, maps, keys, used_nonces, totals, authority()).prop_map(
        |(
            (cluster, time, wall, revision, last_token, grants_from),
            maps,
            keys,
            used_nonces,
            totals,
            authority,
        )| {
            let (sessions, resources, waiters, registers) = maps;
            let (pulses, sessions): (BTreeMap<_, _>, BTreeMap<_, _>) =
                sessions.into_iter().map(|(key, (pulse, session))| ((key, pulse), (key, session))).unzip();
            let format = if last_token % 2 == 0 { FormatVersion::V1 } else { FormatVersion::V2 };
            let resources = with_drops(resources, format);
            State {
                format,
                settings: Settings { cluster, limits: Limits::of(format) },
                time,
                wall,
                entries: last_token / 3,
                revision,
                last_token,
                grants_from,
                sessions_opened: 500,
                resources_named: 501,
                waiters_arrived: 502,
                registers_named: 503,
                pulses: filled(pulses),
                sessions: filled(sessions),
                resources,
                waiters,
                registers,
                keys,
                used_nonces,
                totals,
                staging: None,
                restored: None,
                authority: if format >= FormatVersion::V2 { authority } else { Authority::default() },
            }
        },
    )
}

/// Some histories note what was dropped, where the version can say so.
fn with_drops(
    resources: CowMap<ResourceNumber, Resource>,
    format: FormatVersion,
) -> CowMap<ResourceNumber, Resource> {
    let mut noted = CowMap::default();
    for (number, resource) in resources.iter() {
        let mut resource = resource.clone();
        if let Some(more) = resource.more.as_mut().filter(|_| format >= FormatVersion::V2) {
            let limits = [HistoryLimit::Count, HistoryLimit::Age, HistoryLimit::Bytes];
            more.history.set_dropped(limits.get(number.0 as usize % 4).map(|limit| Dropped {
                limit: *limit,
                token: Token::try_from(number.0 + 1).unwrap(),
                to_wall: WallTime::from_unix_millis(number.0),
            }));
        }
        noted.insert(number, resource);
    }
    noted
}

/// A state has no equality of its own; its parts have.
pub fn assert_equal(a: &State, b: &State) {
    fn same<K: Key + std::fmt::Debug + PartialEq, T: Clone + PartialEq + std::fmt::Debug>(
        a: &CowMap<K, T>,
        b: &CowMap<K, T>,
    ) {
        assert_eq!(a.iter().collect::<Vec<_>>(), b.iter().collect::<Vec<_>>());
        assert_eq!(a.len(), b.len());
    }
    assert_eq!(a.settings, b.settings);
    assert_eq!((a.time, a.wall, a.revision, a.last_token), (b.time, b.wall, b.revision, b.last_token));
    assert_eq!((a.grants_from, a.entries), (b.grants_from, b.entries));
    assert_eq!(
        (a.sessions_opened, a.resources_named, a.waiters_arrived, a.registers_named),
        (b.sessions_opened, b.resources_named, b.waiters_arrived, b.registers_named)
    );
    same(&a.pulses, &b.pulses);
    same(&a.sessions, &b.sessions);
    same(&a.resources, &b.resources);
    same(&a.waiters, &b.waiters);
    same(&a.registers, &b.registers);
    assert_eq!((&a.keys, &a.used_nonces, a.totals), (&b.keys, &b.used_nonces, b.totals));
}

/// Takes leases away whose sessions are not there: no machine has such, and no backup of one.
pub fn drop_unknown_holders(state: &mut State) {
    let numbers: Vec<ResourceNumber> = state.resources.iter().map(|(number, _)| number).collect();
    for number in numbers {
        let sessions = &state.sessions;
        let resource = state.resources.get_mut(number).expect("just listed");
        let known =
            |hold: &&Hold| sessions.get(hold.session).is_some_and(|session| !session.leases.is_empty());
        let mut holds = Few::default();
        resource.holds.iter().filter(known).for_each(|hold| holds.push(hold.clone()));
        resource.holds = holds;
    }
}
