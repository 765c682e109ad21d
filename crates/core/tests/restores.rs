//! What a restore must not do: put a backup into a cluster that has been used, begin at or below a token that is out, or
//! grant before the holders of the old cluster are done.

use std::time::Duration;

use tenure_core::*;

const TTL: Duration = Duration::from_secs(10);

fn at(time: Duration, command: Command) -> Entry {
    Entry {
        at: ClusterTime::from_micros(time.as_micros() as u64),
        wall: WallTime::default(),
        renewals: Vec::new(),
        commands: vec![command],
    }
}

fn tell(machine: &mut Machine, time: Duration, command: Command) -> Answer {
    let applied = machine.apply(at(time, command));
    machine.check_everything();
    applied.answers.into_iter().next().expect("one command, one answer")
}

fn acquire(machine: &mut Machine, time: Duration, resource: &str) -> Result<Token, Refusal> {
    let open = Open {
        holder: "web-1".parse().expect("it is a name"),
        ttl: TTL,
        nonce: None,
        secret: Secret::new([7; 16]),
        number: 1,
    };
    let acquire = Acquire {
        by: AcquireBy::Opening(open),
        resources: vec![resource.parse().expect("it is a name")],
        mode: Mode::Exclusive,
        wait: Wait::No,
        policies: Policies::default(),
        fences: Vec::new(),
        transmission: None,
    };
    match tell(machine, time, Command::Acquire(Box::new(acquire)))? {
        Done::Granted { grants, .. } => Ok(grants[0].token),
        other => panic!("{other:?}"),
    }
}

fn restore(machine: &mut Machine, backup: &Machine, floor: u64, holders_stopped: bool) -> Answer {
    let command =
        Command::Restore { backup: Box::new(backup.capture()), token_floor: token(floor), holders_stopped };
    tell(machine, Duration::ZERO, command)
}

fn token(number: u64) -> Token {
    number.try_into().expect("it is a token")
}

/// A cluster that has granted three tokens, the last of them to somebody who still holds it.
fn backed_up() -> Machine {
    let mut machine = Machine::default();
    for (number, resource) in (1..=3).zip(["a", "b", "c"]) {
        assert_eq!(acquire(&mut machine, Duration::ZERO, resource), Ok(token(number)));
    }
    machine
}

#[test]
fn a_backup_is_restored_into_a_new_cluster_only_and_once() {
    let backup = backed_up();
    let mut used = Machine::default();
    acquire(&mut used, Duration::ZERO, "a").expect("it is free");
    let before = used.capture();
    assert_eq!(restore(&mut used, &backup, 100, true), Err(Refusal::NotEmpty));
    assert_eq!(used.capture().last_token, before.last_token, "what it issued is not forgotten");

    let mut new = Machine::default();
    restore(&mut new, &backup, 100, true).expect("it is empty");
    assert_eq!(restore(&mut new, &backup, 100, true), Err(Refusal::NotEmpty), "the same again");
    assert_eq!(acquire(&mut new, Duration::ZERO, "a"), Ok(token(101)));
    assert_eq!(restore(&mut new, &backup, 100, true), Err(Refusal::NotEmpty), "or 101 would be issued twice");
    assert_eq!(acquire(&mut new, Duration::ZERO, "b"), Ok(token(102)));
}

#[test]
fn a_restore_begins_above_every_token_of_the_backup() {
    let backup = backed_up();
    let mut new = Machine::default();
    for floor in 1..=3 {
        let refused = Refusal::FloorTooLow { floor: token(floor), issued: 3 };
        assert_eq!(restore(&mut new, &backup, floor, true), Err(refused));
    }
    restore(&mut new, &backup, 4, true).expect("it is above them all");
    assert_eq!(acquire(&mut new, Duration::ZERO, "c"), Ok(token(5)), "its old holder's session has ended");
}

#[test]
fn a_restored_cluster_waits_for_the_longest_lease_of_the_old_one() {
    let backup = backed_up();
    let longest = backup.settings().limits.ttl_max;
    let mut new = Machine::default();
    let restored = restore(&mut new, &backup, 100, false);
    assert_eq!(restored, Ok(Done::Restored { token_floor: token(100), grants_in: longest }));
    let just_before = longest - Duration::from_micros(1);
    let refused = Refusal::Restoring { remaining: Duration::from_micros(1) };
    assert_eq!(acquire(&mut new, just_before, "a"), Err(refused));
    assert_eq!(acquire(&mut new, longest, "a"), Ok(token(101)));

    let mut vouched_for = Machine::default();
    restore(&mut vouched_for, &backup, 100, true).expect("it is empty");
    assert_eq!(acquire(&mut vouched_for, Duration::ZERO, "a"), Ok(token(101)));
}
