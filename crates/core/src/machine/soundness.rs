//! Whether a state that comes from outside could have been made by a machine: every record that another names is
//! there and names it back. The machine relies on that everywhere, so a state that breaks it must be turned
//! away before anything is built on it: a restore is a command in the log, and one that made the machine panic
//! would take down every replica, again at each start.
//!
//! It decides nothing about what the records mean; the rules with names are in `invariants.rs`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Contradiction;
use super::state::{
    BackupBase, RegisterRecord, Remembered, Resource, ResourceNumber, Session, State, Waiter, WaiterNumber,
};
use crate::command::{KindSetting, Mode};
use crate::names::ResourceName;
use crate::numbers::{SessionNumber, Token};

/// No cluster comes this far by counting, and what counts on from here cannot overflow.
const COUNTER_MAX: u64 = 1 << 62;

pub(super) type Sound = Result<(), Contradiction>;

pub(super) fn check(holds: bool, otherwise: &'static str) -> Sound {
    if holds { Ok(()) } else { Err(Contradiction(otherwise)) }
}

/// Checks all of it.
pub(super) fn check_state(state: &State) -> Sound {
    check_counters(state)?;
    check(state.used_nonces.iter().is_sorted_by_key(|used| used.since), "its used nonces are out of order")?;
    for (number, session) in state.sessions.iter() {
        check_session(state, number, session)?;
    }
    for (number, resource) in state.resources.iter() {
        check_resource(state, number, resource)?;
    }
    // Every hold is in its session's list, and no list has a resource twice: with as many of the one as of the
    // other, nothing is listed that is not held. Looking for each among a resource's many sharers would be slow.
    let listed: usize = state.sessions.iter().map(|(_, session)| session.leases.len()).sum();
    let held: usize = state.resources.iter().map(|(_, resource)| resource.holds.len()).sum();
    check(listed == held, "a session lists what it does not hold")?;
    for (number, waiter) in state.waiters.iter() {
        check_waiter(state, number, waiter)?;
    }
    check_registers(state)
}

fn check_counters(state: &State) -> Sound {
    check_count(state.entries)?;
    check_base(&state.backup_base())?;
    state.resources.iter().try_for_each(|(_, resource)| check_resource_counters(resource))?;
    state.registers.iter().try_for_each(|(_, register)| check_register_counters(register))
}

fn check_count(count: u64) -> Sound {
    check(count <= COUNTER_MAX, "one of its counters is used up")
}

/// Checks what a state or a backup says about the whole cluster.
pub(super) fn check_base(base: &BackupBase) -> Sound {
    let limits = &base.limits;
    check(!limits.ttl_min.is_zero() && limits.ttl_min <= limits.ttl_max, "its limits allow no TTL")?;
    check(base.last_token <= Token::MAX.get(), "its last token is none")?;
    let totals = &base.totals;
    let counters = [
        base.revision.get(),
        base.sessions_opened,
        base.resources_named,
        base.waiters_arrived,
        base.registers_named,
        totals.grants,
        totals.renewals,
        totals.sessions_expired,
        totals.refused,
        totals.register_refusals,
        totals.pauses,
        totals.leader_changes,
        totals.plain_unrenewed,
    ];
    counters.into_iter().chain(totals.ends).try_for_each(check_count)
}

pub(super) fn check_resource_counters(resource: &Resource) -> Sound {
    check_count(resource.generation.get())?;
    let fences = resource.more.iter().flat_map(|more| more.fences.values());
    fences.map(|fence| fence.refused.max(fence.unreported)).try_for_each(check_count)
}

pub(super) fn check_register_counters(register: &RegisterRecord) -> Sound {
    register.content.as_ref().map_or(Ok(()), |content| check_count(content.version))
}

fn check_session(state: &State, number: SessionNumber, session: &Session) -> Sound {
    check(session.leases.is_sorted_by(|a, b| a < b), "a session's leases are out of order")?;
    let answers = &session.answers.remembered;
    check(answers.is_sorted_by(|a, b| a.0 < b.0), "a session's answers are out of order")?;
    for (_, remembered) in answers {
        match remembered {
            Remembered::Waiting(waiter) => {
                let waits = state.waiters.get(*waiter).is_some_and(|waiter| waiter.session == number);
                check(waits, "an answer is about nobody in the queue")?;
            }
            Remembered::Holding(resource, _) => {
                let resource = state.resources.get(*resource);
                let holds = resource.is_some_and(|resource| resource.hold_of(number).is_some());
                check(holds, "an answer is about a lease that there is not")?;
            }
            _ => {}
        }
    }
    let Some(more) = &session.more else { return Ok(()) };
    for waiter in &more.waiters {
        let own = state.waiters.get(*waiter).is_some_and(|waiter| waiter.session == number);
        check(own, "a session lists a waiter that is not its own")?;
    }
    for register in &more.ephemerals {
        let content = state.registers.get(*register).and_then(|register| register.content.as_ref());
        let own = content.is_some_and(|content| content.session == Some(number));
        check(own, "a session lists a register that does not end with it")?;
    }
    Ok(())
}

fn check_resource(state: &State, number: ResourceNumber, resource: &Resource) -> Sound {
    let holds = &resource.holds;
    let mut sessions: Vec<SessionNumber> = holds.iter().map(|hold| hold.session).collect();
    sessions.sort_unstable();
    check(sessions.is_sorted_by(|a, b| a < b), "a session holds one resource twice")?;
    for hold in holds {
        let session =
            state.sessions.get(hold.session).ok_or(Contradiction("a lease belongs to no session"))?;
        check(session.leases.binary_search(&number).is_ok(), "a session does not list what it holds")?;
        check(hold.token.get() <= resource.last_token, "a resource has forgotten a token")?;
        check(Some(hold.mode.kind()) == resource.kind, "a lease is of another kind than its resource")?;
    }
    let exclusive = holds.iter().any(|hold| hold.mode == Mode::Exclusive);
    check(!exclusive || holds.len() == 1, "a resource is held exclusively and by others")?;
    if let Some(KindSetting::Semaphore(slots)) = resource.kind {
        check(holds.len() <= slots as usize, "a resource has more holders than slots")?;
        check(holds.is_sorted_by(|a, b| a.slot < b.slot), "a slot is held twice")?;
    }
    check(resource.last_token <= state.last_token, "a resource has a token that was not issued")?;
    for place in resource.more.iter().flat_map(|more| &more.queue) {
        let waiter = state.waiters.get(place.waiter);
        let stands = waiter
            .is_some_and(|waiter| waiter.place(place.waiter) == *place && waiter.resources.contains(&number));
        check(stands, "somebody stands in a line without waiting for it")?;
    }
    Ok(())
}

fn check_waiter(state: &State, number: WaiterNumber, waiter: &Waiter) -> Sound {
    let session =
        state.sessions.get(waiter.session).ok_or(Contradiction("a waiter belongs to no session"))?;
    let listed = session.more.as_ref().is_some_and(|more| more.waiters.contains(&number));
    check(listed, "a session does not list its waiter")?;
    check(!waiter.resources.is_empty(), "a waiter waits for nothing")?;
    let place = waiter.place(number);
    for resource in &waiter.resources {
        let more = state.resources.get(*resource).and_then(|resource| resource.more.as_ref());
        check(more.is_some_and(|more| more.queue.contains(&place)), "a waiter is in no queue")?;
    }
    Ok(())
}

fn check_registers(state: &State) -> Sound {
    let mut guards: BTreeMap<&ResourceName, u32> = BTreeMap::new();
    for (number, register) in state.registers.iter() {
        if let Some(guard) = &register.guard {
            *guards.entry(&guard.resource).or_default() += 1;
        }
        let owner = register.content.as_ref().and_then(|content| content.session);
        let listed = owner.is_none_or(|owner| {
            let more = state.sessions.get(owner).and_then(|session| session.more.as_ref());
            more.is_some_and(|more| more.ephemerals.contains(&number))
        });
        check(listed, "a register ends with a session that does not list it")?;
    }
    for (_, resource) in state.resources.iter() {
        let counted = resource.more.as_ref().map_or(0, |more| more.guards);
        let bound = guards.remove(&resource.name).unwrap_or_default();
        check(counted == bound, "a resource miscounts the registers that it guards")?;
    }
    check(guards.is_empty(), "a register is guarded by a resource that is not there")
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::vec;

    use super::super::state::{RegisterNumber, SessionMore};
    use super::super::{Machine, State};
    use super::*;
    use crate::answer::{Done, Refusal};
    use crate::command::*;
    use crate::numbers::{Secret, SessionId};
    use crate::time::{ClusterTime, WallTime};

    fn entry(commands: Vec<Command>) -> Entry {
        Entry { at: ClusterTime::ZERO, wall: WallTime::default(), renewals: vec![], commands }
    }

    fn acquire(session: SessionId, resource: &str) -> Command {
        Command::Acquire(Box::new(Acquire {
            by: AcquireBy::Session(Caller { session, number: Some(1), lowest_awaited: 0 }),
            resources: vec![resource.parse().expect("a good name")],
            mode: Mode::Exclusive,
            wait: Wait::Forever,
            policies: Policies::default(),
            fences: vec![],
            transmission: None,
        }))
    }

    /// One holds `x` and guards a register with it, another waits for it and has an ephemeral register.
    fn state() -> State {
        let mut machine = Machine::default();
        let mut open = |bits: u8| {
            let open = Open {
                holder: "a".parse().expect("a good name"),
                ttl: core::time::Duration::from_secs(10),
                nonce: None,
                secret: Secret::new([bits; 16]),
                number: 1,
            };
            match machine.apply(entry(vec![Command::Open(open)])).answers.remove(0) {
                Ok(Done::Opened { session, .. }) => session,
                other => panic!("{other:?}"),
            }
        };
        let (one, other) = (open(1), open(2));
        let guard = Guard {
            scope: crate::names::Scope { resource: "x".parse().expect("a good name"), slot: None },
            token: Token::FIRST,
        };
        let put = |key: &str, guard, ephemeral| {
            let key = key.parse().expect("a good key");
            let operation = Operation::Put { key, value: b"v"[..].into(), guard, ephemeral };
            let by = ephemeral.then_some(Caller::unnumbered(other));
            Command::Write(Box::new(Write { by, compares: vec![], then: vec![operation], otherwise: vec![] }))
        };
        let commands = vec![
            acquire(one, "x"),
            acquire(other, "x"),
            put("guarded", Some(guard), false),
            put("ephemeral", None, true),
        ];
        let answers = machine.apply(entry(commands)).answers;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        machine.capture()
    }

    fn more(state: &mut State, session: u64) -> &mut SessionMore {
        let session = state.sessions.get_mut(SessionNumber::new(session)).expect("opened above");
        session.more.get_or_insert_default()
    }

    fn resource(state: &mut State) -> &mut Resource {
        state.resources.get_mut(ResourceNumber(1)).expect("named above")
    }

    /// A backup passed every checksum and named a waiter that was not in it: each replica that applied the restore
    /// panicked, and did so again at each start.
    #[test]
    fn broken_backup_takes_nobody_down() {
        let breaks: &[fn(&mut State)] = &[
            |state| state.settings.limits.ttl_min = core::time::Duration::ZERO,
            |state| state.last_token = u64::MAX,
            |state| state.entries = u64::MAX,
            |state| state.totals.ends[3] = u64::MAX,
            |state| drop(state.sessions.remove(SessionNumber::new(1))),
            |state| drop(state.resources.remove(ResourceNumber(1))),
            |state| drop(state.waiters.remove(WaiterNumber(1))),
            |state| drop(state.registers.remove(RegisterNumber(2))),
            |state| more(state, 1).waiters.extend([WaiterNumber(1)]),
            |state| more(state, 1).ephemerals.extend([RegisterNumber(1)]),
            |state| more(state, 2).waiters.clear(),
            |state| more(state, 2).ephemerals.clear(),
            |state| resource(state).holds.clear(),
            |state| resource(state).kind = None,
            |state| resource(state).last_token = 0,
            |state| resource(state).last_token = 9,
            |state| resource(state).more_mut().queue.clear(),
            |state| resource(state).more_mut().guards = 0,
            |state| resource(state).name = "y".parse().expect("a good name"),
            |state| {
                for session in [1, 2].map(SessionNumber::new) {
                    let session = state.sessions.get_mut(session).expect("opened above");
                    session.nonce = Some(crate::Nonce::new([7; 16]));
                }
            },
            |state| {
                let twice = resource(state).holds[0].clone();
                resource(state).holds.push(twice);
            },
        ];
        Machine::from_state(state()).expect("unbroken, it is sound");
        for (number, break_it) in breaks.iter().enumerate() {
            let mut backup = state();
            break_it(&mut backup);
            let contradiction = Machine::from_state(backup.clone()).err();
            assert!(contradiction.is_some(), "break {number} was not noticed");
            let restore =
                Command::Restore { backup: Box::new(backup), token_floor: Token::MAX, holders_stopped: true };
            let answer = Machine::default().apply(entry(vec![restore])).answers.remove(0);
            let refused = matches!(answer, Err(Refusal::Invalid(_) | Refusal::FloorTooLow { .. }));
            assert!(refused, "break {number}: {answer:?}");
        }
    }
}
