//! What a restore in pieces must not do: show anything before its commit, restore less or other than the
//! backup holds, forget that somebody used the cluster meanwhile, or depend on when a replica loaded a
//! snapshot.

mod random;

use std::time::Duration;

use random::{Generator, for_every_seed};
use tenure_core::state::{RegisterNumber, Resource, ResourceNumber, State};
use tenure_core::*;

const FLOOR: u64 = 1_000_000;

fn apply_at(machine: &mut Machine, time: Duration, command: Command) -> Answer {
    let time = machine.time().plus(time);
    let (wall, renewals) = (WallTime::default(), Vec::new());
    let applied = machine.apply(Entry { at: time, wall, renewals, commands: vec![command] });
    machine.check_everything();
    applied.answers.into_iter().next().expect("one command, one answer")
}

fn apply(machine: &mut Machine, command: Command) -> Answer {
    apply_at(machine, Duration::ZERO, command)
}

fn token(number: u64) -> Token {
    number.try_into().expect("it is a token")
}

fn name(text: &str) -> ResourceName {
    text.parse().expect("it is a name")
}

/// A backup as its sender has it: how it begins, its pieces, and what commits it.
#[derive(Clone, Debug)]
struct Sent {
    begin: RestoreBegin,
    pieces: Vec<RestorePiece>,
}

impl Sent {
    /// Pieces of so many records.
    fn of(state: &State, id: u8, piece_records: usize) -> Sent {
        let id = RestoreId::new([id; 16]);
        let state = state.clone().without_sessions().expect("a machine made it");
        let resources = state.resources.iter().map(|(number, resource)| BackupRecords {
            resources: vec![(number, resource.clone())],
            ..BackupRecords::default()
        });
        let registers = state.registers.iter().map(|(number, register)| BackupRecords {
            registers: vec![(number, register.clone())],
            ..BackupRecords::default()
        });
        let nonces = state
            .used_nonces
            .iter()
            .map(|used| BackupRecords { used_nonces: vec![*used], ..BackupRecords::default() });
        let records: Vec<BackupRecords> = resources.chain(registers).chain(nonces).collect();
        let pieces = records.chunks(piece_records).enumerate().map(|(number, records)| {
            let mut all = BackupRecords::default();
            for records in records.iter().cloned() {
                all.resources.extend(records.resources);
                all.registers.extend(records.registers);
                all.used_nonces.extend(records.used_nonces);
            }
            let (number, bytes) = (number as u64, 100);
            RestorePiece { id, number, bytes, checksum: u128::from(number) + 7, ended: 0, records: all }
        });
        let begin =
            RestoreBegin { id, base: state.backup_base(), token_floor: token(FLOOR), holders_stopped: true };
        Sent { begin, pieces: pieces.collect() }
    }

    fn begin(&self) -> Command {
        Command::RestoreBegin(Box::new(self.begin.clone()))
    }

    fn piece(&self, number: usize) -> Command {
        Command::RestorePiece(Box::new(self.pieces[number].clone()))
    }

    fn commit(&self) -> Command {
        Command::RestoreCommit {
            id: self.begin.id,
            pieces: self.pieces.len() as u64,
            records: self.pieces.iter().map(|piece| piece.records.len() as u64).sum(),
            checksum: self.pieces.iter().fold(0, |before, piece| piece.chain(before)),
        }
    }

    /// All commands, in order.
    fn commands(&self) -> Vec<Command> {
        let pieces = (0..self.pieces.len()).map(|number| self.piece(number));
        [self.begin()].into_iter().chain(pieces).chain([self.commit()]).collect()
    }

    fn stage_all(&self, machine: &mut Machine) {
        for command in &self.commands()[..self.pieces.len() + 1] {
            apply(machine, command.clone()).expect("it is staged");
        }
    }
}

fn staged(pieces: u64) -> Answer {
    Ok(Done::Staged { pieces })
}

fn restored() -> Answer {
    Ok(Done::Restored { token_floor: token(FLOOR), grants_in: Duration::ZERO })
}

fn put(key: &str, guard: Option<Guard>) -> Command {
    let key = key.parse().expect("it is a key");
    let operation = Operation::Put { key, value: b"value"[..].into(), guard, ephemeral: false };
    Command::Write(Box::new(Write { by: None, compares: vec![], then: vec![operation], otherwise: vec![] }))
}

fn open() -> Open {
    let holder = "web-1".parse().expect("it is a name");
    Open { holder, ttl: Duration::from_secs(10), nonce: None, secret: Secret::new([7; 16]), number: 1 }
}

fn acquire(machine: &mut Machine, resource: &str) -> Result<Token, Refusal> {
    let acquire = Acquire {
        by: AcquireBy::Opening(open()),
        resources: vec![name(resource)],
        mode: Mode::Exclusive,
        wait: Wait::No,
        policies: Policies::default(),
        fences: Vec::new(),
        transmission: None,
    };
    match apply(machine, Command::Acquire(Box::new(acquire)))? {
        Done::Granted { grants, .. } => Ok(grants[0].token),
        other => panic!("{other:?}"),
    }
}

/// Three resources, two of them held, and registers, one of them guarded.
fn backed_up() -> State {
    let mut machine = Machine::default();
    for resource in ["a", "b", "c"] {
        acquire(&mut machine, resource).expect("it is free");
    }
    let guard = Guard { scope: Scope { resource: name("c"), slot: None }, token: token(3) };
    for (key, guard) in [("x", None), ("y", None), ("z", Some(guard))] {
        apply(&mut machine, put(key, guard)).expect("it is written");
    }
    apply(
        &mut machine,
        Command::Revoke { resource: name("a"), session: None, now: true, reason: "test".into() },
    )
    .expect("it is held");
    machine.capture()
}

#[test]
fn nothing_is_visible_before_the_commit_and_everything_after_it() {
    let sent = Sent::of(&backed_up(), 1, 1);
    let mut machine = Machine::default();
    let before = machine.capture();
    assert_eq!(apply(&mut machine, sent.begin()), staged(0));
    for number in 0..sent.pieces.len() {
        assert_eq!(apply(&mut machine, sent.piece(number)), staged(number as u64 + 1));
        let state = machine.capture();
        assert_eq!((state.last_token, state.registers.len(), state.resources.len()), (0, 0, 0));
        assert_eq!((machine.revision(), &state.settings), (before.revision, &before.settings));
        assert_eq!(machine.staging().map(|staging| staging.pieces), Some(number as u64 + 1));
    }
    assert_eq!(apply(&mut machine, sent.commit()), restored());
    assert_eq!((machine.capture().registers.len(), machine.staging()), (3, None));
    assert_eq!(acquire(&mut machine, "b"), Ok(token(FLOOR + 1)), "its old holder's session has ended");
    assert_eq!(apply(&mut machine, put("z", None)).expect_err("it is guarded"), {
        let guard = Some(Scope { resource: name("c"), slot: None });
        Refusal::WrongGuard { key: "z".parse().expect("it is a key"), guard }
    });
}

/// The restore in pieces means what the restore in one command has always meant, wherever the pieces are cut
/// and whenever a replica loads a snapshot.
#[test]
fn in_pieces_is_the_same_as_at_once() {
    for_every_seed("in_pieces_is_the_same_as_at_once", 0..200, make, |entries| {
        let mut backup = Machine::default();
        for entry in entries {
            backup.apply(entry.clone());
        }
        let (backup, holders_stopped) = (backup.capture(), entries.len() % 2 == 0);
        // A backup is restored only into a cluster that has agreed on its version.
        let agreed = || {
            let mut machine = Machine::default();
            apply(&mut machine, Command::Upgrade { to: backup.format }).expect("it is known");
            machine
        };
        let mut at_once = agreed();
        let token_floor = token(FLOOR);
        let whole = Command::Restore { backup: Box::new(backup.clone()), token_floor, holders_stopped };
        apply(&mut at_once, whole).map_err(|refusal| format!("at once: {refusal:?}"))?;
        let mut expected = at_once.capture();

        let mut sent = Sent::of(&backup, 1, 1 + entries.len() % 5);
        sent.begin.holders_stopped = holders_stopped;
        let mut machine = agreed();
        for (at, command) in sent.commands().into_iter().enumerate() {
            apply(&mut machine, command).map_err(|refusal| format!("step {at}: {refusal:?}"))?;
            if at % 4 == entries.len() % 4 {
                machine = Machine::from_state(machine.capture()).map_err(|error| error.to_string())?;
            }
        }
        let mut state = machine.capture();
        assert!(state.restored.take().is_some());
        (expected.entries, state.entries) = (0, 0);
        assert_eq!(state, expected);
        // The indexes are those of the same state: made again, they answer alike.
        let mut again = Machine::from_state(machine.capture()).map_err(|error| error.to_string())?;
        assert_eq!(machine.counts(), again.counts());
        for name in ["one", "two", "three", "x"] {
            assert_eq!(acquire(&mut machine, name), acquire(&mut again, name));
        }
        assert_eq!(machine.capture(), again.capture());
        Ok(())
    });
}

/// Some entries, with free resources that are soon too many to be remembered.
fn make(seed: u64, entries: &mut Vec<Entry>) {
    let mut machine = Machine::default();
    let mut limits = machine.settings().limits.clone();
    limits.free_resources_max = 2;
    let configure = Command::Configure(Box::new(Settings { limits, ..machine.settings().clone() }));
    let (at, wall, renewals) = (machine.time(), WallTime::default(), vec![]);
    let entry = Entry { at, wall, renewals, commands: vec![configure] };
    entries.push(entry.clone());
    machine.apply(entry);
    let mut generator = Generator::new(seed);
    for _ in 0..40 + seed % 20 {
        generator.step(&mut machine, entries);
    }
}

#[test]
fn a_step_whose_answer_was_lost_is_repeated_safely() {
    let sent = Sent::of(&backed_up(), 1, 2);
    let mut machine = Machine::default();
    for (at, command) in sent.commands().into_iter().enumerate() {
        let answer = apply(&mut machine, command.clone());
        let state = machine.capture();
        assert_eq!(apply(&mut machine, command), answer, "step {at} again");
        assert_eq!(
            State { entries: state.entries, ..machine.capture() },
            state,
            "and nothing is there twice"
        );
    }
    // The whole command again, by an operator who saw no answer: until somebody uses the cluster.
    assert_eq!(apply(&mut machine, sent.begin()), restored());
    let mut other_floor = sent.clone();
    other_floor.begin.token_floor = token(FLOOR + 1);
    assert_eq!(apply(&mut machine, other_floor.begin()), Err(Refusal::NotEmpty));
    apply(&mut machine, put("new", None)).expect("it is written");
    assert_eq!(apply(&mut machine, sent.begin()), Err(Refusal::NotEmpty));
    assert_eq!(apply(&mut machine, sent.commit()), Err(Refusal::NotEmpty));
}

#[test]
fn an_interrupted_restore_goes_on_at_the_missing_piece() {
    let sent = Sent::of(&backed_up(), 1, 1);
    let mut machine = Machine::default();
    apply(&mut machine, sent.begin()).expect("it is empty");
    apply(&mut machine, sent.piece(0)).expect("it is the first");
    let missing = Err(Refusal::NotStaged { next: Some(1) });
    assert_eq!(apply(&mut machine, sent.piece(2)), missing, "a piece is left out");
    assert_eq!(apply(&mut machine, sent.commit()), missing, "the rest is");
    assert_eq!(apply(&mut machine, sent.begin()), staged(1), "who begins again learns where to go on");
    for number in 1..sent.pieces.len() {
        apply(&mut machine, sent.piece(number)).expect("it is the next");
    }
    assert_eq!(apply(&mut machine, sent.commit()), restored());
}

#[test]
fn another_begin_discards_what_is_staged() {
    let (old, new) = (Sent::of(&backed_up(), 1, 1), Sent::of(&backed_up(), 2, 2));
    let mut machine = Machine::default();
    old.stage_all(&mut machine);
    assert_eq!(apply(&mut machine, new.begin()), staged(0));
    assert!(machine.take_discarded().is_some(), "its memory is freed by the driver");
    let discarded = Err(Refusal::NotStaged { next: None });
    assert_eq!(apply(&mut machine, old.piece(1)), discarded);
    assert_eq!(apply(&mut machine, old.commit()), discarded);
    // The same backup with another floor is another restore, too.
    let mut other_floor = new.clone();
    other_floor.begin.token_floor = token(FLOOR + 1);
    apply(&mut machine, new.piece(0)).expect("it is the first");
    assert_eq!(apply(&mut machine, other_floor.begin()), staged(0));
    assert_eq!(apply(&mut machine, new.begin()), staged(0));
    new.stage_all(&mut machine);
    assert_eq!(apply(&mut machine, new.commit()), restored());
}

#[test]
fn an_abandoned_restore_is_discarded_in_cluster_time() {
    let sent = Sent::of(&backed_up(), 1, 1);
    let mut machine = Machine::default();
    apply(&mut machine, sent.begin()).expect("it is empty");
    let almost = RESTORE_KEPT_FOR - Duration::from_millis(1);
    apply_at(&mut machine, almost, sent.piece(0)).expect("it is still staged");
    assert_eq!(machine.earliest_deadline(), Some(machine.time().plus(RESTORE_KEPT_FOR)), "counted anew");
    assert_eq!(apply_at(&mut machine, almost, sent.piece(1)), staged(2));
    let mut loaded = Machine::from_state(machine.capture()).expect("a snapshot loads");
    for machine in [&mut machine, &mut loaded] {
        let too_late = apply_at(machine, RESTORE_KEPT_FOR, sent.piece(2));
        assert_eq!(too_late, Err(Refusal::NotStaged { next: None }));
        assert_eq!((machine.staging(), machine.earliest_deadline()), (None, None));
        assert!(machine.take_discarded().is_some());
        assert_eq!(apply(machine, sent.begin()), staged(0), "it begins again");
    }
}

#[test]
fn a_cluster_that_was_used_meanwhile_keeps_what_it_has() {
    let used: &[fn() -> Command] =
        &[|| put("own", None), || Command::Open(open()), || Command::Barrier { resource: name("own") }];
    for used in used {
        let sent = Sent::of(&backed_up(), 1, 1);
        let mut machine = Machine::default();
        sent.stage_all(&mut machine);
        apply(&mut machine, used()).expect("it is served meanwhile");
        let before = machine.capture();
        assert_eq!(apply(&mut machine, sent.commit()), Err(Refusal::NotEmpty));
        let after = machine.capture();
        assert_eq!((after.last_token, after.sessions_opened), (before.last_token, before.sessions_opened));
        assert_eq!(after.registers, before.registers);
        assert_eq!(machine.staging(), None, "and what can never be restored is discarded");
        assert_eq!(apply(&mut machine, sent.begin()), Err(Refusal::NotEmpty));
    }
}

#[test]
fn other_pieces_than_those_of_the_backup_are_not_restored() {
    let sent = Sent::of(&backed_up(), 1, 1);
    let changes: &[fn(&mut Command)] = &[
        |commit| match commit {
            Command::RestoreCommit { checksum, .. } => *checksum ^= 1,
            _ => unreachable!(),
        },
        |commit| match commit {
            Command::RestoreCommit { records, .. } => *records += 1,
            _ => unreachable!(),
        },
        |commit| match commit {
            Command::RestoreCommit { pieces, .. } => *pieces -= 1,
            _ => unreachable!(),
        },
    ];
    for change in changes {
        let mut machine = Machine::default();
        sent.stage_all(&mut machine);
        let mut commit = sent.commit();
        change(&mut commit);
        assert!(matches!(apply(&mut machine, commit), Err(Refusal::Invalid(_))));
        assert_eq!((machine.staging(), machine.capture().last_token), (None, 0));
    }
    let [first, second, ..] = &sent.pieces[..] else { panic!("two pieces") };
    assert_ne!(second.chain(first.chain(0)), first.chain(second.chain(0)), "order counts");
}

#[test]
fn a_restore_is_refused_before_anything_is_sent() {
    let sent = Sent::of(&backed_up(), 1, 1);
    let begin_with = |change: &dyn Fn(&mut RestoreBegin)| {
        let mut begin = sent.begin.clone();
        change(&mut begin);
        let mut machine = Machine::default();
        let answer = apply(&mut machine, Command::RestoreBegin(Box::new(begin)));
        assert_eq!(machine.staging(), None);
        answer.expect_err("it is refused")
    };
    let low = begin_with(&|begin| begin.token_floor = token(begin.base.last_token));
    assert!(matches!(low, Refusal::FloorTooLow { .. }), "{low:?}");
    let newer = begin_with(&|begin| begin.base.format = FormatVersion::NEWEST);
    assert!(matches!(newer, Refusal::Invalid(why) if why.contains("upgrade")), "{newer:?}");
    let broken = begin_with(&|begin| begin.base.limits.ttl_min = Duration::ZERO);
    assert!(matches!(broken, Refusal::Invalid(_)), "{broken:?}");
}

/// A piece that could make the machine panic would take down every replica, again at each start.
#[test]
fn broken_pieces_take_nobody_down() {
    fn resource(piece: &mut RestorePiece) -> &mut Resource {
        &mut piece.records.resources[0].1
    }
    let state = backed_up();
    let held = state.resources.iter().find(|(_, resource)| !resource.holds.is_empty());
    let held = held.expect("somebody holds something").1.clone();
    let whole = Sent::of(&state, 1, 100);
    type Break = Box<dyn Fn(&mut RestorePiece)>;
    let breaks: Vec<Break> = vec![
        Box::new(|piece| piece.records.resources.reverse()),
        Box::new(|piece| piece.records.registers.reverse()),
        Box::new(|piece| piece.records.resources[1].0 = piece.records.resources[0].0),
        Box::new(|piece| piece.records.resources[0].0 = ResourceNumber(0)),
        Box::new(|piece| piece.records.registers[2].0 = RegisterNumber(99)),
        Box::new(|piece| piece.records.resources[2].0 = ResourceNumber(99)),
        Box::new(|piece| piece.records.resources[1].1.name = piece.records.resources[0].1.name.clone()),
        Box::new(|piece| piece.records.registers[1].1.key = piece.records.registers[0].1.key.clone()),
        Box::new(|piece| resource(piece).last_token = 99),
        Box::new(|piece| resource(piece).generation = Generation::new(u64::MAX)),
        Box::new(move |piece| resource(piece).holds = held.holds.clone()),
        Box::new(|piece| piece.records.registers[0].1.content = None),
        Box::new(|piece| {
            piece.records.registers[0].1.content.as_mut().expect("it has one").session =
                Some(SessionNumber::new(1));
        }),
        Box::new(|piece| {
            piece.records.registers[0].1.content.as_mut().expect("it has one").version = u64::MAX;
        }),
        // A guard without its resource, a resource with too few and one with too many guards.
        Box::new(|piece| drop(piece.records.resources.pop())),
        Box::new(|piece| piece.records.registers[0].1.guard = piece.records.registers[2].1.guard.clone()),
        Box::new(|piece| piece.records.registers[2].1.guard = None),
        Box::new(|piece| {
            let used = state::UsedNonce { nonce: Nonce::new([1; 16]), since: ClusterTime::ZERO };
            piece.records.used_nonces = vec![used, used];
        }),
        Box::new(|piece| {
            let used = |bits, since| state::UsedNonce {
                nonce: Nonce::new([bits; 16]),
                since: ClusterTime::from_micros(since),
            };
            piece.records.used_nonces = vec![used(1, 2), used(2, 1)];
        }),
    ];
    for (at, break_it) in breaks.iter().enumerate() {
        let mut sent = whole.clone();
        break_it(&mut sent.pieces[0]);
        let mut machine = Machine::default();
        apply(&mut machine, sent.begin()).expect("it is empty");
        let answer = apply(&mut machine, sent.piece(0)).and_then(|_| apply(&mut machine, sent.commit()));
        assert!(matches!(answer, Err(Refusal::Invalid(_))), "break {at}: {answer:?}");
        assert_eq!((machine.staging(), machine.capture().last_token), (None, 0), "break {at}");
    }
}

#[test]
fn what_is_staged_is_bounded_like_the_cluster_that_it_becomes() {
    let limited = |change: &dyn Fn(&mut Limits)| {
        let mut sent = Sent::of(&backed_up(), 1, 100);
        change(&mut sent.begin.base.limits);
        let mut machine = Machine::default();
        apply(&mut machine, sent.begin()).expect("it is empty");
        let answer = apply(&mut machine, sent.piece(0));
        (answer, apply(&mut machine, sent.commit()), machine.capture())
    };
    let refusal = |limit, max| Err(Refusal::Limit { limit, max });
    assert_eq!(limited(&|limits| limits.registers_max = 2).0, refusal("registers_max", 2));
    assert_eq!(limited(&|limits| limits.value_bytes_total_max = 14).0, refusal("value_bytes_total_max", 14));
    assert_eq!(limited(&|limits| limits.pinned_resources_max = 0).0, refusal("pinned_resources_max", 0));
    let (staged_all, committed, state) = limited(&|limits| limits.free_resources_max = 1);
    assert_eq!((staged_all, committed), (staged(1), restored()));
    let names: Vec<&str> = state.resources.iter().map(|(_, resource)| resource.name.as_str()).collect();
    assert_eq!(names, ["a", "c"], "the one that was free for longest is forgotten, the guarded one never");

    let mut sent = Sent::of(&backed_up(), 1, 100);
    let register = sent.pieces[0].records.registers[0].clone();
    sent.pieces[0].records.registers = vec![register; RESTORE_PIECE_RECORDS_MAX + 1];
    let mut machine = Machine::default();
    apply(&mut machine, sent.begin()).expect("it is empty");
    assert!(matches!(apply(&mut machine, sent.piece(0)), Err(Refusal::Invalid(_))));
}

/// The commit must not take longer for a larger backup: it would be one long entry again.
#[test]
fn a_commit_moves_and_does_not_copy() {
    let mut machine = Machine::default();
    for number in 0..20_000 {
        let _ = apply_quickly(&mut machine, put(&format!("register/{number}"), None));
    }
    let sent = Sent::of(&machine.capture(), 1, RESTORE_PIECE_RECORDS_MAX);
    let mut machine = Machine::default();
    sent.stage_all(&mut machine);
    let staged = machine.capture().staging.expect("it is staged");
    apply(&mut machine, sent.commit()).expect("it is restored");
    let restored = machine.capture();
    for ((_, before), (_, after)) in staged.registers.iter().zip(restored.registers.iter()) {
        assert!(std::ptr::eq(before, after), "the records stand where they stood");
    }
}

fn apply_quickly(machine: &mut Machine, command: Command) -> Answer {
    let (at, wall, renewals) = (machine.time(), WallTime::default(), Vec::new());
    machine.apply(Entry { at, wall, renewals, commands: vec![command] }).answers.remove(0)
}
