//! Properties of the machine on random sequences of entries. A failure names its seed and shows the fewest
//! entries that still fail; `SEED=n` runs one seed alone, `SEEDS=n` runs more of them.

mod random;
mod reference;

use random::{Generator, KEYS, RESOURCES, for_every_seed, key, resource};
use reference::Model;
use tenure_core::*;

const STEPS: usize = 120;

fn seeds(usual: u64) -> std::ops::Range<u64> {
    0..std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

fn make(seed: u64, entries: &mut Vec<Entry>) {
    let mut machine = Machine::default();
    let mut generator = Generator::new(seed);
    for _ in 0..STEPS {
        generator.step(&mut machine, entries);
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, at: usize, machine: &T, model: &T) -> Result<(), String> {
    if machine == model {
        return Ok(());
    }
    Err(format!("entry {at}: {what} differs\n  machine    {machine:?}\n  reference  {model:?}"))
}

/// The machine answers what the plainest possible reading of the design answers, and shows the same.
#[test]
fn machine_equals_the_reference() {
    for_every_seed("machine_equals_the_reference", seeds(2_500), make, |entries| {
        let (mut machine, mut model) = (Machine::default(), Model::new());
        for (at, entry) in entries.iter().enumerate() {
            let applied = machine.apply(entry.clone());
            let (renewals, answers) = model.apply(entry);
            same("the renewals' answers", at, &applied.renewals, &renewals)?;
            same("the answers", at, &applied.answers, &answers)?;
            same("the waits that ended", at, &applied.resolved, &model.resolved)?;
            same("the revision", at, &machine.revision().get(), &model.revision)?;
            same("the last token", at, &machine.last_token().map_or(0, Token::get), &model.last_token)?;
            same("the sessions", at, &machine.sessions(None, usize::MAX).0, &model.session_views())?;
            for name in RESOURCES.map(resource) {
                same("a lease", at, &machine.lease(&name), &model.lease_view(&name))?;
                let mut history = machine.history(&name).map(|history| history.past);
                history.iter_mut().flatten().for_each(|past| past.reason = None);
                same("a history", at, &history, &model.history(&name))?;
            }
            for key in KEYS.map(key) {
                same("a register", at, &machine.register(&key), &model.register_view(&key))?;
            }
        }
        Ok(())
    });
}

/// The same as `make`, with clearing cut into small portions, so that much is ended and not cleared away.
fn make_in_portions(seed: u64, entries: &mut Vec<Entry>) {
    let mut machine = Machine::default();
    let mut limits = machine.settings().limits.clone();
    limits.cleared_per_entry_max = 1 + (seed % 2) as u32;
    limits.free_resources_max = 2;
    limits.ended_per_session_max = 2;
    limits.history_per_resource_max = 3;
    let mut commands = vec![];
    // Every other history is bounded by bytes as well, which is new in format version 2.
    if seed.is_multiple_of(2) {
        commands.push(Command::Upgrade { to: FormatVersion::V2 });
        limits.history_bytes_total_max = 100 + seed % 300;
    }
    commands.push(Command::Configure(Box::new(Settings { limits, ..machine.settings().clone() })));
    let entry = Entry { at: machine.time(), wall: WallTime::default(), renewals: vec![], commands };
    entries.push(entry.clone());
    machine.apply(entry);
    let mut generator = Generator::new(seed);
    for _ in 0..STEPS {
        generator.step(&mut machine, entries);
    }
}

/// Everything that decides, as text: all but the count of entries, which says only how they were cut.
fn state(machine: &Machine) -> String {
    let text = format!("{:?}", machine.capture());
    let Some((before, rest)) = text.split_once("entries: ") else { return text };
    format!("{before}{}", rest.split_once(',').map_or("", |(_, after)| after))
}

/// A replica that was restored from a snapshot at any point goes on exactly like one that was not.
#[test]
fn restored_replica_goes_on_alike() {
    for_every_seed("restored_replica_goes_on_alike", seeds(700), make_in_portions, |entries| {
        let mut machine = Machine::default();
        let mut restored: Option<Machine> = None;
        for (at, entry) in entries.iter().enumerate() {
            let applied = machine.apply(entry.clone());
            if let Some(other) = &mut restored {
                same("what was applied", at, &other.apply(entry.clone()), &applied)?;
            }
            if at % 7 == 3 {
                if let Some(restored) = &restored {
                    same("the state", at, &state(restored), &state(&machine))?;
                }
                let again = Machine::from_state(machine.capture()).map_err(|error| error.to_string())?;
                restored = Some(again);
            }
        }
        Ok(())
    });
}

/// What every step must keep: tokens rise, one holder, one revision for each command that changes something.
#[test]
fn every_step_keeps_the_invariants() {
    for_every_seed("every_step_keeps_the_invariants", seeds(700), make_in_portions, |entries| {
        let mut machine = Machine::default();
        let mut newest = 0;
        for (at, entry) in entries.iter().enumerate() {
            let before = machine.revision().get();
            machine.apply(entry.clone());
            machine.check_everything();
            for event in machine.fresh_events() {
                if let EventKind::Granted { token, .. } | EventKind::Barrier { token, .. } = &event.kind {
                    if token.get() <= newest {
                        return Err(format!("entry {at}: token {token} after {newest}"));
                    }
                    newest = token.get();
                }
            }
            let mut revisions: Vec<u64> =
                machine.fresh_events().iter().map(|event| event.revision.get()).collect();
            revisions.dedup();
            let raised: Vec<u64> = (before + 1..=machine.revision().get()).collect();
            same("the revisions of the events", at, &revisions, &raised)?;
            if raised.len() > entry.commands.len() + 1 {
                return Err(format!("entry {at}: more revisions than commands"));
            }
            let past = RESOURCES.map(resource).map(|name| machine.history(&name).map(|history| history.past));
            let bytes = past.iter().flatten().flatten().map(|past| {
                let reason = past.reason.as_ref().map_or(0, |reason| reason.len());
                HISTORY_LEASE_BYTES + (past.holder.as_str().len() + reason) as u64
            });
            let bytes: u64 = bytes.sum();
            let bytes_max = machine.settings().limits.history_bytes_total_max;
            if machine.format() >= FormatVersion::V2 && bytes > bytes_max {
                return Err(format!("entry {at}: {bytes} bytes of history, and {bytes_max} are allowed"));
            }
            for name in RESOURCES.map(resource) {
                let Some(view) = machine.lease(&name) else { continue };
                let exclusive = view.holders.iter().any(|holding| holding.mode == Mode::Exclusive);
                if exclusive && view.holders.len() > 1 {
                    return Err(format!("entry {at}: one_holder: {view:?}"));
                }
            }
        }
        Ok(())
    });
}

/// An entry is no transaction: its commands one by one, under the same stamp, do the same.
#[test]
fn entry_split_into_many_does_the_same() {
    for_every_seed("entry_split_into_many_does_the_same", seeds(200), make, |entries| {
        let (mut whole, mut split) = (Machine::default(), Machine::default());
        for (at, entry) in entries.iter().enumerate() {
            let applied = whole.apply(entry.clone());
            let first = Entry { commands: vec![], ..entry.clone() };
            split.apply(first);
            let mut events = split.fresh_events().to_vec();
            let mut answers = Vec::new();
            for command in &entry.commands {
                let one = Entry { renewals: vec![], commands: vec![command.clone()], ..entry.clone() };
                let mut applied = split.apply(one);
                events.extend_from_slice(split.fresh_events());
                answers.append(&mut applied.answers);
            }
            same("the answers", at, &answers, &applied.answers)?;
            same("the events", at, &events, &whole.fresh_events().to_vec())?;
            same("the state", at, &state(&split), &state(&whole))?;
        }
        Ok(())
    });
}

/// Every answer dropped once: the same command again, at once and at the end, gives the first answer and
/// changes nothing.
#[test]
fn retries_are_harmless() {
    for_every_seed("retries_are_harmless", seeds(200), make, |entries| {
        let mut machine = Machine::default();
        for (at, entry) in entries.iter().enumerate() {
            let none = Entry { renewals: vec![], commands: vec![], ..entry.clone() };
            machine.apply(Entry { renewals: entry.renewals.clone(), ..none.clone() });
            let mut answered: Vec<(Command, Answer)> = Vec::new();
            for command in &entry.commands {
                let send = |machine: &mut Machine, command: &Command| {
                    let one = Entry { commands: vec![command.clone()], ..none.clone() };
                    machine.apply(one).answers.remove(0)
                };
                let first = send(&mut machine, command);
                if is_numbered(command) && machine.knows(&caller(command).session) {
                    let before = state(&machine);
                    let again = send(&mut machine, command);
                    same("the answer to a retry", at, &again, &first)?;
                    same("the state after a retry", at, &state(&machine), &before)?;
                    answered.push((command.clone(), first));
                }
                // Late copies of everything before in this entry, too, unless it became something else since.
                for (command, first) in &answered {
                    if !machine.knows(&caller(command).session) || !is_final(first) {
                        continue;
                    }
                    let before = state(&machine);
                    let again = send(&mut machine, command);
                    let forgotten =
                        matches!(again, Err(Refusal::ForgottenNumber { .. } | Refusal::Cancelled { .. }));
                    if !forgotten {
                        same(
                            "the answer to a late copy",
                            at,
                            &but_fences(again),
                            &but_fences(first.clone()),
                        )?;
                    }
                    same("the state after a late copy", at, &state(&machine), &before)?;
                }
            }
        }
        Ok(())
    });
}

/// An answer without the fence set of its grants: that is given as it is now, because a fence that was added
/// meanwhile wants the token, too.
fn but_fences(mut answer: Answer) -> Answer {
    if let Ok(Done::Granted { grants, .. }) = &mut answer {
        grants.iter_mut().for_each(|grant| grant.fences.clear());
    }
    answer
}

/// Whoever queues is granted or leaves, once holders stop renewing: nobody waits for ever on what is free.
#[test]
fn waiters_move_when_holders_fall_silent() {
    for_every_seed("waiters_move_when_holders_fall_silent", seeds(400), make_in_portions, |entries| {
        let mut machine = Machine::default();
        for entry in entries {
            machine.apply(entry.clone());
        }
        // Those who wait and hold nothing go on renewing; everybody else falls silent.
        for _ in 0..2_000 {
            if machine.counts().waiters == 0 {
                return Ok(());
            }
            let (sessions, _) = machine.sessions(None, usize::MAX);
            let renewals = sessions
                .iter()
                .filter(|session| session.waiters > 0 && session.leases == 0)
                .map(|session| Renewal { session: session.session, number: 0 })
                .collect();
            let at = machine.time().plus(std::time::Duration::from_millis(500));
            machine.apply(Entry { at, wall: WallTime::default(), renewals, commands: vec![] });
            machine.check_everything();
        }
        Err(format!("somebody still waits: {:?}", RESOURCES.map(|name| machine.lease(&resource(name)))))
    });
}

fn caller(command: &Command) -> Caller {
    match command {
        Command::Cancel { by, .. } | Command::Release { by, .. } | Command::Transfer { by, .. } => *by,
        Command::Acquire(acquire) => match &acquire.by {
            AcquireBy::Session(by) => *by,
            AcquireBy::Opening(_) => Caller::unnumbered(nobody()),
        },
        Command::Write(write) => write.by.unwrap_or(Caller::unnumbered(nobody())),
        // A close has no retry: it ends the memory of its session with it.
        _ => Caller::unnumbered(nobody()),
    }
}

fn nobody() -> SessionId {
    SessionId { number: SessionNumber::new(0), secret: Secret::new([0; 16]) }
}

fn is_numbered(command: &Command) -> bool {
    caller(command).number.is_some()
}

/// Whether an answer stays what it is: a place in the queue does not.
fn is_final(answer: &Answer) -> bool {
    !matches!(answer, Ok(Done::Queued { .. }))
}
