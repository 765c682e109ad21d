//! How the words of the protocol are stored: the part that log entries and snapshots share.
//!
//! Tags are given for good. A new variant takes the next free number, a new field stands last; each says since
//! which format version it exists. Once a version was released, nothing is added to it.

use std::cmp::Reverse;

use tenure_core::{
    Acquire, AcquireBy, Attributed, BackupRecords, Caller, ClusterTime, Command, Compare, CompareField,
    CompareOp, Credential, CredentialId, Denial, DenialReason, Done, EndReason, FenceName, FormatVersion,
    Generation, Grant, Guard, HolderName, HolderRule, Holding, Identity, IdentityName, KindSetting, Limits,
    Mode, Nonce, Open, Operation, OverQuota, Policies, Policy, PolicyName, Prefix, PutCredential, PutPolicy,
    Quotas, Refusal, Register, RegisterKey, ResourceName, RestoreBegin, RestoreId, RestorePiece, Revision,
    Scope, Secret, SecretForm, SessionId, SessionNumber, Settings, Slot, Token, TransmissionId, Verb, Verbs,
    Wait, WallTime, Who, Write,
};

use crate::codec::{Coded, Output, Reader, WireError, choice, put_bytes, put_varint, record, token_of};

/// Implements a wrapped number by its plain one.
macro_rules! number {
    ($($type:ident: $make:path, $plain:ident;)*) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Output) {
                self.$plain().put(out);
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok($make(Coded::take(input)?))
            }
        }
    )*};
}

number! {
    Generation: Generation::new, get;
    Revision: Revision::new, get;
    SessionNumber: SessionNumber::new, get;
    ClusterTime: ClusterTime::from_micros, as_micros;
    WallTime: WallTime::from_unix_millis, as_unix_millis;
}

impl Coded for FormatVersion {
    fn put(&self, out: &mut Output) {
        out.push(self.get());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let number = input.byte()?;
        FormatVersion::known(number)
            .ok_or_else(|| input.corrupt(format!("there is no format version {number}")))
    }
}

impl Coded for Slot {
    fn put(&self, out: &mut Output) {
        self.get().put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let number = u32::take(input)?;
        // Not the nearest that there is: equal bytes for equal values, and nothing else.
        Some(Slot::new(number))
            .filter(|slot| slot.get() == number)
            .ok_or_else(|| input.corrupt("there is no slot of that number"))
    }
}

impl Coded for Token {
    fn put(&self, out: &mut Output) {
        put_varint(self.get(), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let number = input.varint()?;
        token_of(input, number)
    }
}

/// Implements bits that are stored as they are known or as a hash. Version 1 has no hashes, and does not say so.
macro_rules! concealed {
    ($($type:ident),*) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Output) {
                self.as_bytes().put(out);
                if out.version >= FormatVersion::V2 {
                    self.form().put(out);
                }
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                let bits = input.array()?;
                let hashed = input.version >= FormatVersion::V2 && SecretForm::take(input)? == SecretForm::Hashed;
                Ok(if hashed { $type::hashed(bits) } else { $type::new(bits) })
            }
            fn fits(&self, version: FormatVersion) -> bool {
                version >= FormatVersion::V2 || self.form() == SecretForm::Plain
            }
        }
    )*};
}

concealed!(Secret, Nonce);

impl Coded for RestoreId {
    fn put(&self, out: &mut Output) {
        self.as_bytes().put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(RestoreId::new(input.array()?))
    }
}

impl Coded for TransmissionId {
    fn put(&self, out: &mut Output) {
        self.as_bytes().put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(TransmissionId::new(input.array()?))
    }
}

/// Implements a text name: checked again on the way in, because names only exist checked.
macro_rules! name {
    ($($type:ident),*) => {$(
        impl Coded for $type {
            fn put(&self, out: &mut Output) {
                put_bytes(self.as_str().as_bytes(), out);
            }
            fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
                input.name()
            }
        }
    )*};
}

name!(ResourceName, HolderName, FenceName, IdentityName, PolicyName, Who, Prefix);

impl Coded for CredentialId {
    fn put(&self, out: &mut Output) {
        self.as_bytes().put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(CredentialId::new(input.array()?))
    }
}

impl Coded for Verbs {
    fn put(&self, out: &mut Output) {
        out.push(self.bits());
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let bits = input.byte()?;
        Verbs::from_bits(bits).ok_or_else(|| input.corrupt("a policy allows what there is not"))
    }
}

impl Coded for Attributed {
    fn put(&self, out: &mut Output) {
        let Attributed { identity, command } = self;
        identity.put(out);
        command.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let identity = Identity::take(input)?;
        // Looked at before it is read: one inside the other, without end, would overflow the stack.
        if input.peek() == Some(ATTRIBUTED) {
            return Err(input.corrupt("a command is from two callers"));
        }
        Ok(Attributed { identity, command: Command::take(input)? })
    }
    fn fits(&self, version: FormatVersion) -> bool {
        self.command.fits(version)
    }
}

/// The tag of a command that says who it is from.
pub(crate) const ATTRIBUTED: u8 = 28;

impl Coded for RegisterKey {
    fn put(&self, out: &mut Output) {
        put_bytes(self.as_bytes(), out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        let length = input.length(1)?;
        RegisterKey::try_from(input.bytes(length)?).map_err(|error| input.corrupt(error.to_string()))
    }
}

impl Coded for Reverse<i32> {
    fn put(&self, out: &mut Output) {
        self.0.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, WireError> {
        i32::take(input).map(Reverse)
    }
}

record!(SessionId { number, secret });
record!(Scope { resource, slot });
record!(Caller { session, number, lowest_awaited });
record!(Open { holder, ttl, nonce, secret, number });
record!(Acquire { by, resources, mode, wait, policies, fences, transmission });
record!(Policies { lock_delay, max_hold, hard_limit, priority, reentrant });
record!(Write { by, compares, then, otherwise });
record!(Compare { key, field, op });
record!(Guard { scope, token });
record!(Settings { cluster, limits });
record!(RestoreBegin { id, base, token_floor, holders_stopped });
record!(RestorePiece { id, number, bytes, checksum, ended, records });
record!(BackupRecords { resources, registers, used_nonces, credentials since 2, policies since 2 });
record!(PutCredential { id, name, hash, expires });
record!(PutPolicy { name, policy, now });
record!(Policy { who, on, may, holder, limits });
record!(Quotas { sessions, leases, waiters, registers, bytes, ttl_max, priority_max });
record!(Credential { name, hash, created, expires, revoked });
record!(Denial { identity, verb, on, why, nearest });
record!(OverQuota { identity, limit, max, used, policy });
record!(Limits {
    ttl_min,
    ttl_max,
    sessions_max,
    leases_per_session_max,
    waiters_max,
    waiters_per_session_max,
    resources_per_acquire_max,
    sharers_max,
    slots_max,
    answers_per_session_max,
    answer_bytes_total_max,
    registers_max,
    value_bytes_max,
    value_bytes_total_max,
    operations_per_write_max,
    ephemerals_per_session_max,
    free_resources_max,
    pinned_resources_max,
    history_per_resource_max,
    history_age_max,
    fences_per_resource_max,
    ended_per_session_max,
    events_max,
    event_bytes_max,
    cleared_per_entry_max,
    keys_max,
    history_bytes_total_max since 2,
});
record!(Grant { resource, session, holder, mode, slot, token, generation, remaining, ttl, waited, fences });
record!(Register { key, value, create_revision, mod_revision, version, session, guard });
record!(Holding { session, holder, mode, slot, token, generation, remaining, ttl, held_for, notice, lapsed, identity since 2 });

choice!(Command {
    1 => Open(open),
    2 => Close { by, why },
    3 => Acquire(acquire),
    4 => Cancel { by, acquire },
    5 => Release { by, resource, token, rest since 2 },
    6 => Transfer { by, resource, to },
    7 => Revoke { resource, session, now, reason },
    8 => Seen { session, revision },
    9 => Write(write),
    10 => Barrier { resource },
    11 => Arm { scope, fence, token },
    12 => Refused { scope, fence, presented, seen, count },
    13 => Paused { session, length },
    14 => RemoveFence { resource, fence },
    15 => SetKind { resource, kind },
    16 => Rebind { key, guard },
    17 => BecameLeader { node, term },
    18 => Configure(settings),
    19 => PublishKey { node, kid, key },
    20 => WithdrawKey { kid },
    21 => Restore { backup, token_floor, holders_stopped },
    22 => CancelNonce { nonce },
    23 => Undo { session, transmission },
    24 since 2 => Upgrade { to },
    25 since 2 => RestoreBegin(begin),
    26 since 2 => RestorePiece(piece),
    27 since 2 => RestoreCommit { id, pieces, records, checksum },
    28 since 2 => As(attributed),
    29 since 2 => PutCredential(credential),
    30 since 2 => RevokeCredential { id, now },
    31 since 2 => PutPolicy(policy),
    32 since 2 => RemovePolicy { name, now },
    33 since 2 => SetEnforced { enforced },
});

choice!(Identity { 1 => Anyone, 2 => Node, 3 => Operator, 4 => Named { name, credential } });
choice!(Verb {
    1 => Public,
    2 => Read,
    3 => Hold,
    4 => Write,
    5 => Manage,
    6 => Observe,
    7 => Operate,
    8 => Grant,
});
choice!(HolderRule { 1 => Any, 2 => Own });
choice!(DenialReason {
    1 => NoPolicy,
    2 => Expired,
    3 => Revoked,
    4 => OtherSession,
    5 => OtherHolder,
    6 => HolderName,
    7 => BeyondOwn,
});

choice!(SecretForm { 1 => Plain, 2 => Hashed });
choice!(AcquireBy { 1 => Session(caller), 2 => Opening(open) });
choice!(Mode { 1 => Exclusive, 2 => Shared, 3 => Slots(slots) });
choice!(KindSetting { 1 => Lock, 2 => Semaphore(slots) });
choice!(Wait { 1 => No, 2 => For(longest), 3 => Forever });
choice!(CompareField { 1 => CreateRevision(number), 2 => ModRevision(number), 3 => Version(number), 4 => Value(value) });
choice!(CompareOp { 1 => Equal, 2 => NotEqual, 3 => Greater, 4 => Less });
choice!(Operation {
    1 => Put { key, value, guard, ephemeral },
    2 => Delete { key, guard },
    3 => Get { key },
});
choice!(EndReason {
    1 => Released,
    2 => Expired,
    3 => Revoked,
    4 => Transferred,
    5 => HeldTooLong,
    6 => TakenOver,
    7 => Died,
});

choice!(Done {
    1 => Nothing,
    2 => Opened { session, holder, ttl, number },
    3 => Closed { released },
    4 => Granted { grants, opened },
    5 => Queued { session, ttl, ahead },
    6 => Cancelled { released },
    7 => Released { released },
    8 => Transferred(grant),
    9 => Revoked { holdings, token },
    10 => Written { succeeded, revision, results },
    11 => BarrierTaken { token },
    12 => Restored { token_floor, grants_in },
    13 since 2 => Staged { pieces },
});

choice!(Refusal {
    1 => Held { resource, by, waited },
    2 => Delayed { resource, remaining },
    3 => UnknownSession,
    4 => NotHeld { resource },
    5 => UnderNotice { resource },
    6 => WrongKind { resource, is },
    7 => StaleToken { presented, seen },
    8 => LeaseEnded { presented },
    9 => UnknownToken { presented },
    10 => WrongGuard { key, guard },
    11 => ForgottenNumber { number },
    12 => Cancelled { released },
    13 => Limit { limit, max },
    14 => InvalidTtl { ttl, min, max },
    15 => Invalid(text),
    16 => InUse { resource },
    17 => NotFound,
    18 => Restoring { remaining },
    19 => TokensExhausted,
    20 => Lapsed,
    21 => NotReady { resource, session },
    22 => FloorTooLow { floor, issued },
    23 => NotEmpty,
    24 => NonceUsed,
    25 since 2 => NotStaged { next },
    26 since 2 => Forbidden(denial),
    27 since 2 => OverQuota(over),
});
