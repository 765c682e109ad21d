//! Snapshots as bytes: the whole replicated state, record by record.
//!
//! A snapshot is a magic word, a format version and blocks. A block holds records of one kind: a tag, how
//! many records, how many bytes, the records. Blocks come in the order of their tags, records in the order
//! of their keys, and a closing block says how many records there were, so that a lost block is noticed.
//! Writing needs memory for one block, reading for one block and the state.
//!
//! Equal states give equal bytes, wherever and whenever they were written: blocks are cut by their content
//! alone. So [`state_hash`] is a hash over these bytes, and two nodes that disagree about it have diverged.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use tenure_core::state::{
    Answers, Authority, BackupBase, Content, CowMap, Dropped, EndedLease, FenceRecord, HistoryLimit, Hold,
    HoldMore, IdentityNumber, Key, Notice, PackedHistory, Place, Pulse, RegisterNumber, RegisterRecord,
    Remembered, RememberedGrant, Resource, ResourceMore, ResourceNumber, Restored, Session, SessionMore,
    SigningKey, Staging, State, Totals, Transition, UsedNonce, Waiter, WaiterNumber,
};
use tenure_core::{FormatVersion, Policy};
use xxhash_rust::xxh3::Xxh3Default;

use crate::codec::{
    Coded, Output, Reader, WireError, choice, field, put_bytes, put_varint, record, version_of,
};

const SNAPSHOT: &str = "snapshot";
pub(crate) const MAGIC: [u8; 8] = *b"TNRSNAP\0";
/// A block is closed once it has this many bytes: large enough that calls cost nothing, small enough to keep
/// in a cache.
const BLOCK_BYTES: usize = 64 * 1024;

/// What the records of a block are.
pub(crate) mod tag {
    pub const BASE: u8 = 1;
    pub const PULSES: u8 = 2;
    pub const SESSIONS: u8 = 3;
    pub const RESOURCES: u8 = 4;
    pub const WAITERS: u8 = 5;
    pub const REGISTERS: u8 = 6;
    pub const KEYS: u8 = 7;
    pub const USED_NONCES: u8 = 8;
    // Since format version 2.
    pub const STAGING: u8 = 9;
    pub const STAGED_RESOURCES: u8 = 10;
    pub const STAGED_REGISTERS: u8 = 11;
    pub const STAGED_NONCES: u8 = 12;
    pub const CREDENTIALS: u8 = 13;
    pub const POLICIES: u8 = 14;
    pub const IDENTITIES: u8 = 15;
    pub const STAGED_CREDENTIALS: u8 = 16;
    pub const STAGED_POLICIES: u8 = 17;
    pub const END: u8 = 255;
}

/// Writes the state, in the format version that it has agreed on. The same state always gives the same bytes.
pub fn write_snapshot(state: &State, out: &mut dyn Write) -> io::Result<()> {
    // Taken apart without `..`, so that a new part of the state cannot be forgotten here.
    let State {
        format,
        settings,
        time,
        wall,
        entries,
        revision,
        last_token,
        grants_from,
        sessions_opened,
        resources_named,
        waiters_arrived,
        registers_named,
        pulses,
        sessions,
        resources,
        waiters,
        registers,
        keys,
        used_nonces,
        totals,
        staging,
        restored,
        authority,
    } = state;
    let Authority { enforced, wall: latest_wall, credentials, policies, identities } = authority;

    out.write_all(&MAGIC)?;
    out.write_all(&[format.get()])?;
    let mut blocks = Blocks { out, tag: tag::BASE, count: 0, bytes: Output::new(*format), records: 0 };
    blocks.record(|bytes| {
        settings.put(bytes);
        time.put(bytes);
        wall.put(bytes);
        entries.put(bytes);
        revision.put(bytes);
        last_token.put(bytes);
        grants_from.put(bytes);
        sessions_opened.put(bytes);
        resources_named.put(bytes);
        waiters_arrived.put(bytes);
        registers_named.put(bytes);
        totals.put(bytes);
        field!(put restored, bytes, 2);
        field!(put enforced, bytes, 2);
        field!(put latest_wall, bytes, 2);
    })?;
    blocks.map(tag::PULSES, pulses)?;
    blocks.records(tag::SESSIONS, sessions, |number, session, bytes| {
        state.spelled_out(number, session).put(bytes)
    })?;
    blocks.map(tag::RESOURCES, resources)?;
    blocks.map(tag::WAITERS, waiters)?;
    blocks.map(tag::REGISTERS, registers)?;
    blocks.section(tag::KEYS)?;
    for (kid, key) in keys {
        blocks.record(|bytes| {
            kid.put(bytes);
            key.put(bytes);
        })?;
    }
    blocks.section(tag::USED_NONCES)?;
    for used in used_nonces {
        blocks.record(|bytes| used.put(bytes))?;
    }
    if let Some(staging) = staging {
        blocks.staging(staging)?;
    }
    blocks.entries(tag::CREDENTIALS, credentials)?;
    blocks.entries(tag::POLICIES, policies.iter().map(|(name, policy)| (name, &**policy)))?;
    blocks.entries(tag::IDENTITIES, identities)?;
    if let Some(staging) = staging {
        blocks.entries(tag::STAGED_CREDENTIALS, &staging.credentials)?;
        let policies = staging.policies.iter().map(|(name, policy)| (name, &**policy));
        blocks.entries(tag::STAGED_POLICIES, policies)?;
    }
    blocks.finish()
}

/// A state inside a log entry: its snapshot, after the snapshot's length.
impl Coded for State {
    fn put(&self, out: &mut Output) {
        let mut bytes = Vec::new();
        write_snapshot(self, &mut bytes).expect("writing to memory does not fail");
        put_bytes(&bytes, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = input.length(1)?;
        let mut bytes = input.bytes(length)?;
        // Written in a version of its own, which is none that the entry around it does not know.
        let state = read_snapshot(input.version, &mut bytes)?;
        if !bytes.is_empty() {
            return Err(input.corrupt("something follows the snapshot inside it"));
        }
        Ok(state)
    }
    fn fits(&self, version: FormatVersion) -> bool {
        self.format <= version
    }
}

/// Reads a state, and not a byte more than [`write_snapshot`] wrote of it. A version above `newest` is
/// refused.
pub fn read_snapshot(newest: FormatVersion, input: &mut dyn Read) -> Result<State, WireError> {
    let mut head = [0; MAGIC.len() + 1];
    read_exact(input, &mut head)?;
    let (magic, version) = head.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(WireError::corrupt(SNAPSHOT, "it does not begin like one"));
    }
    let format = version_of(SNAPSHOT, version[0], newest)?;

    let mut state = State { format, ..State::default() };
    let mut records = 0u64;
    let mut last_tag = 0;
    // The lowest key that the next record of the present section may have.
    let mut next_key = 0u64;
    let mut bytes = Vec::new();
    loop {
        let (block_tag, count) = read_block(input, &mut bytes)?;
        if block_tag < last_tag || (last_tag == 0) != (block_tag == tag::BASE) {
            return Err(WireError::corrupt(SNAPSHOT, "its blocks are out of order"));
        }
        if block_tag != last_tag {
            next_key = 0;
        }
        last_tag = block_tag;
        let mut block = Reader::new(SNAPSHOT, format, &bytes);
        if block_tag == tag::END {
            if block.varint()? != records {
                return Err(WireError::corrupt(SNAPSHOT, "a block of it is missing"));
            }
            block.finish()?;
            break;
        }
        for _ in 0..count {
            match block_tag {
                tag::BASE => take_base(&mut block, &mut state)?,
                tag::PULSES => take_record(&mut block, &mut next_key, &mut state.pulses)?,
                tag::SESSIONS => take_record(&mut block, &mut next_key, &mut state.sessions)?,
                tag::RESOURCES => take_record(&mut block, &mut next_key, &mut state.resources)?,
                tag::WAITERS => take_record(&mut block, &mut next_key, &mut state.waiters)?,
                tag::REGISTERS => take_record(&mut block, &mut next_key, &mut state.registers)?,
                tag::KEYS => {
                    let (kid, key) = Coded::take(&mut block)?;
                    if state.keys.last_key_value().is_some_and(|(last, _)| *last >= kid) {
                        return Err(block.corrupt("its signing keys are out of order"));
                    }
                    state.keys.insert(kid, key);
                }
                tag::USED_NONCES => state.used_nonces.push_back(Coded::take(&mut block)?),
                tag::STAGING if format >= FormatVersion::V2 => {
                    if state.staging.is_some() {
                        return Err(block.corrupt("two restores are staged in it"));
                    }
                    state.staging = Some(Box::new(take_staging(&mut block)?));
                }
                tag::STAGED_RESOURCES => {
                    take_record(&mut block, &mut next_key, &mut staging(&mut state)?.resources)?;
                }
                tag::STAGED_REGISTERS => {
                    take_record(&mut block, &mut next_key, &mut staging(&mut state)?.registers)?;
                }
                tag::STAGED_NONCES => {
                    staging(&mut state)?.used_nonces.push_back(Coded::take(&mut block)?);
                }
                tag::CREDENTIALS if format >= FormatVersion::V2 => {
                    take_entry(&mut block, &mut state.authority.credentials, |credential| credential)?;
                }
                tag::POLICIES if format >= FormatVersion::V2 => {
                    take_entry(&mut block, &mut state.authority.policies, Arc::<Policy>::new)?;
                }
                tag::IDENTITIES if format >= FormatVersion::V2 => {
                    take_entry(&mut block, &mut state.authority.identities, |identity| identity)?;
                }
                tag::STAGED_CREDENTIALS => {
                    take_entry(&mut block, &mut staging(&mut state)?.credentials, |credential| credential)?;
                }
                tag::STAGED_POLICIES => {
                    take_entry(&mut block, &mut staging(&mut state)?.policies, Arc::<Policy>::new)?;
                }
                other => return Err(block.corrupt(format!("there is no block of kind {other}"))),
            }
        }
        block.finish()?;
        records += u64::from(count);
    }
    check(&state)?;
    // As a machine keeps it, so that what was written and what is read are equal.
    state.refer_to_leases();
    Ok(state)
}

/// A hash of everything that the cluster has agreed: the same on every node that has applied the same log.
pub fn state_hash(state: &State) -> u128 {
    let mut hash = Xxh3Default::new();
    write_snapshot(state, &mut hash).expect("a hash takes every write");
    hash.digest128()
}

/// Records on their way out, gathered into blocks.
struct Blocks<'a> {
    out: &'a mut dyn Write,
    tag: u8,
    count: u32,
    bytes: Output,
    records: u64,
}

impl Blocks<'_> {
    /// All records of a map, as a section of their own. A key is stored as its distance from the lowest
    /// that it could be, so keys that do not rise cannot even be written down.
    fn map<K: Key, T: Coded + Clone>(&mut self, tag: u8, map: &CowMap<K, T>) -> io::Result<()> {
        self.records(tag, map, |_, record, bytes| record.put(bytes))
    }

    fn records<K: Key, T: Clone>(
        &mut self,
        tag: u8,
        map: &CowMap<K, T>,
        put: impl Fn(K, &T, &mut Output),
    ) -> io::Result<()> {
        self.section(tag)?;
        let mut next_key = 0;
        for (key, record) in map.iter() {
            self.record(|bytes| {
                put_varint(key.number() - next_key, bytes);
                put(key, record, bytes);
            })?;
            next_key = key.number().wrapping_add(1);
        }
        Ok(())
    }

    /// A restore that is not visible yet. Only clusters that have agreed on version 2 have one.
    fn staging(&mut self, staging: &Staging) -> io::Result<()> {
        // Taken apart without `..`, so that a new part cannot be forgotten here.
        let Staging {
            begin,
            pieces,
            records,
            bytes: staged_bytes,
            ended,
            checksum,
            kept_until,
            resource_last,
            register_last,
            resources,
            registers,
            used_nonces,
            // Behind what the state itself has of these, because blocks come in the order of their tags.
            credentials: _,
            policies: _,
        } = staging;
        self.section(tag::STAGING)?;
        self.record(|bytes| {
            begin.put(bytes);
            pieces.put(bytes);
            records.put(bytes);
            staged_bytes.put(bytes);
            ended.put(bytes);
            checksum.put(bytes);
            kept_until.put(bytes);
            resource_last.put(bytes);
            register_last.put(bytes);
        })?;
        self.map(tag::STAGED_RESOURCES, resources)?;
        self.map(tag::STAGED_REGISTERS, registers)?;
        self.section(tag::STAGED_NONCES)?;
        for used in used_nonces {
            self.record(|bytes| used.put(bytes))?;
        }
        Ok(())
    }

    /// Entries of a map that is not numbered, in the order of their keys.
    fn entries<'a, K: Coded + 'a, T: Coded + 'a>(
        &mut self,
        tag: u8,
        entries: impl IntoIterator<Item = (&'a K, &'a T)>,
    ) -> io::Result<()> {
        self.section(tag)?;
        for (key, record) in entries {
            self.record(|bytes| {
                key.put(bytes);
                record.put(bytes);
            })?;
        }
        Ok(())
    }

    fn section(&mut self, tag: u8) -> io::Result<()> {
        self.flush()?;
        self.tag = tag;
        Ok(())
    }

    fn record(&mut self, put: impl FnOnce(&mut Output)) -> io::Result<()> {
        put(&mut self.bytes);
        self.count += 1;
        self.records += 1;
        if self.bytes.len() >= BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        self.out.write_all(&[self.tag])?;
        self.out.write_all(&self.count.to_le_bytes())?;
        self.out.write_all(&(self.bytes.len() as u64).to_le_bytes())?;
        self.out.write_all(&self.bytes)?;
        self.bytes.clear();
        self.count = 0;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.section(tag::END)?;
        let records = self.records;
        self.record(|bytes| put_varint(records, bytes))?;
        self.flush()
    }
}

fn read_exact(input: &mut dyn Read, bytes: &mut [u8]) -> Result<(), WireError> {
    input.read_exact(bytes).map_err(|error| WireError::io(SNAPSHOT, error))
}

/// Reads one block into `bytes`; returns its tag and how many records it has.
fn read_block(input: &mut dyn Read, bytes: &mut Vec<u8>) -> Result<(u8, u32), WireError> {
    let mut tag = [0; 1];
    let mut count = [0; 4];
    let mut length = [0; 8];
    read_exact(input, &mut tag)?;
    read_exact(input, &mut count)?;
    read_exact(input, &mut length)?;
    let length = u64::from_le_bytes(length);
    bytes.clear();
    // Grows with what really arrives; a claimed length alone allocates nothing.
    let arrived = input.take(length).read_to_end(bytes).map_err(|error| WireError::io(SNAPSHOT, error))?;
    if arrived as u64 != length {
        return Err(WireError::Truncated { what: SNAPSHOT });
    }
    Ok((tag[0], u32::from_le_bytes(count)))
}

fn staging(state: &mut State) -> Result<&mut Staging, WireError> {
    let missing = || WireError::corrupt(SNAPSHOT, "it has records of a restore that is not there");
    state.staging.as_deref_mut().ok_or_else(missing)
}

fn take_staging(input: &mut Reader<'_>) -> Result<Staging, WireError> {
    Ok(Staging {
        begin: Coded::take(input)?,
        pieces: Coded::take(input)?,
        records: Coded::take(input)?,
        bytes: Coded::take(input)?,
        ended: Coded::take(input)?,
        checksum: Coded::take(input)?,
        kept_until: Coded::take(input)?,
        resource_last: Coded::take(input)?,
        register_last: Coded::take(input)?,
        resources: CowMap::default(),
        registers: CowMap::default(),
        used_nonces: Default::default(),
        credentials: BTreeMap::new(),
        policies: BTreeMap::new(),
    })
}

pub(crate) fn take_base(input: &mut Reader<'_>, state: &mut State) -> Result<(), WireError> {
    state.settings = Coded::take(input)?;
    state.time = Coded::take(input)?;
    state.wall = Coded::take(input)?;
    state.entries = Coded::take(input)?;
    state.revision = Coded::take(input)?;
    state.last_token = Coded::take(input)?;
    state.grants_from = Coded::take(input)?;
    state.sessions_opened = Coded::take(input)?;
    state.resources_named = Coded::take(input)?;
    state.waiters_arrived = Coded::take(input)?;
    state.registers_named = Coded::take(input)?;
    state.totals = Coded::take(input)?;
    state.restored = field!(take input, 2);
    state.authority.enforced = field!(take input, 2);
    state.authority.wall = field!(take input, 2);
    Ok(())
}

/// An entry of a map that is not numbered; keys rise.
pub(crate) fn take_entry<K: Coded + Ord, T: Coded, V>(
    input: &mut Reader<'_>,
    map: &mut BTreeMap<K, V>,
    value: impl Fn(T) -> V,
) -> Result<(), WireError> {
    let (key, record) = Coded::take(input)?;
    if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
        return Err(input.corrupt("its records are out of order"));
    }
    map.insert(key, value(record));
    Ok(())
}

/// The number of the next record; numbers rise.
pub(crate) fn take_key(input: &mut Reader<'_>, next_key: &mut u64) -> Result<u64, WireError> {
    let key = next_key
        .checked_add(input.varint()?)
        .filter(|key| *key < u64::MAX)
        .ok_or_else(|| input.corrupt("its record numbers are used up"))?;
    *next_key = key + 1;
    Ok(key)
}

fn take_record<K: Key, T: Coded + Clone>(
    input: &mut Reader<'_>,
    next_key: &mut u64,
    map: &mut CowMap<K, T>,
) -> Result<(), WireError> {
    let key = take_key(input, next_key)?;
    map.insert(K::from_number(key), T::take(input)?);
    Ok(())
}

/// What every state that a machine made satisfies, as far as a look at each record can tell. Damage that
/// passes the checksums below us is caught here or by the machine's own invariants.
pub(crate) fn check(state: &State) -> Result<(), WireError> {
    fn within<K: Key, T: Clone>(what: &str, map: &CowMap<K, T>, last: u64) -> Result<(), WireError> {
        match map.iter().last() {
            Some((key, _)) if key.number() > last => Err(WireError::corrupt(
                SNAPSHOT,
                format!("{what} {} is beyond the last one given, {last}", key.number()),
            )),
            _ => Ok(()),
        }
    }
    within("session", &state.sessions, state.sessions_opened)?;
    within("resource", &state.resources, state.resources_named)?;
    within("waiter", &state.waiters, state.waiters_arrived)?;
    within("register", &state.registers, state.registers_named)?;
    let pulses = state.pulses.iter().map(|(key, _)| key);
    if !pulses.eq(state.sessions.iter().map(|(key, _)| key)) {
        return Err(WireError::corrupt(SNAPSHOT, "its sessions and their pulses do not match"));
    }
    Ok(())
}

/// Implements a record's number, which stands inside other records.
macro_rules! record_number {
    ($($type:ident),*) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Output) {
                put_varint(self.0, out);
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                input.varint().map($type)
            }
        }
    )*};
}

record_number!(ResourceNumber, WaiterNumber, RegisterNumber);

record!(Pulse { deadline, ttl, number, last_lease_revision, lapsed, has_events });
record!(Session { secret, holder, nonce, implicit, plain, opened_at, leases, answers, more, identity since 2 });

impl Coded for IdentityNumber {
    fn put(&self, out: &mut Output) {
        self.0.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        u32::take(input).map(IdentityNumber)
    }
}

record!(SessionMore { waiters, ephemerals, events, ended_lost, hard_limit, pause_reported_at });
record!(EndedLease { revision, resource, token, why });
record!(Answers { floor, remembered });
record!(RememberedGrant { resource, mode, slot, token, generation, remaining, waited });
record!(Resource { name, kind, generation, last_token, holds, freed_at, more });
record!(ResourceMore { queue, delayed_until, history, fences, slot_tokens, guards, kind_set });
record!(Place { rank, waiter });
record!(Hold { session, token, generation, mode, slot, since, since_wall, reentered, more });
// Version 1 has at most one transmission here, written as an option. A list of that length has the same
// bytes.
record!(HoldMore { policies, notice, transmissions });
record!(Notice { why, ends_at, reason });
record!(Transition {
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
    identity since 2,
});
record!(Dropped { limit, token, to_wall });
choice!(HistoryLimit { 1 => Count, 2 => Age, 3 => Bytes });

/// A history as the list of its leases, however it is packed in memory; since version 2 with what was dropped
/// before them.
impl Coded for PackedHistory {
    fn put(&self, out: &mut Output) {
        put_varint(self.len() as u64, out);
        self.iter().for_each(|past| past.put(out));
        if out.version >= FormatVersion::V2 {
            self.dropped().copied().put(out);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut history = PackedHistory::default();
        for _ in 0..input.length(1)? {
            history.push(&Transition::take(input)?);
        }
        if input.version >= FormatVersion::V2 {
            history.set_dropped(Coded::take(input)?);
        }
        Ok(history)
    }
    fn fits(&self, version: FormatVersion) -> bool {
        version >= FormatVersion::V2 || self.dropped().is_none()
    }
}

record!(FenceRecord { armed, refused, refused_wall, unreported, reported_at });
record!(Waiter { session, number, resources, mode, policies, fences, since, until, transmissions });
record!(UsedNonce { nonce, since });
record!(RegisterRecord { key, guard, content });
record!(Content { value, create_revision, mod_revision, version, session });
record!(SigningKey { node, key });
record!(BackupBase {
    format,
    limits,
    time,
    wall,
    revision,
    last_token,
    sessions_opened,
    resources_named,
    waiters_arrived,
    registers_named,
    totals,
    enforced since 2,
});
record!(Restored { id, token_floor, sessions_opened, registers_named });
record!(Totals {
    grants,
    ends,
    renewals,
    sessions_expired,
    refused,
    register_refusals,
    pauses,
    leader_changes,
    plain_unrenewed,
});

choice!(
    Remembered { 1 => Waiting(waiter), 2 => Cancelled { released }, 3 => Granted(grants), 4 => Answered(answer) }
    never Holding: "sessions are written with their answers spelled out"
);

/// Counts of ends, one per reason.
impl<const N: usize> Coded for [u64; N] {
    fn put(&self, out: &mut Output) {
        self.iter().for_each(|count| put_varint(*count, out));
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut counts = [0; N];
        for count in &mut counts {
            *count = input.varint()?;
        }
        Ok(counts)
    }
}
