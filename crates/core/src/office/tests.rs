//! The office, fear by fear, and the two statements of its proof under random driving.

use super::*;
use alloc::vec;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Letter {
    Renewal(u32),
    NoRenewals,
    Open(u32, usize),
    Other(u32, usize),
}
use Letter::{NoRenewals, Open, Other, Renewal};

impl Message for Letter {
    fn line(&self) -> Line {
        match self {
            Renewal(_) | NoRenewals => Line::Renewal,
            Open(..) => Line::Open,
            Other(..) => Line::Other,
        }
    }
    fn bytes(&self) -> usize {
        match self {
            Renewal(_) | NoRenewals => panic!("the size of a renewal is not asked"),
            Open(_, bytes) | Other(_, bytes) => *bytes,
        }
    }
    fn renewals(&self) -> usize {
        usize::from(*self != NoRenewals)
    }
}

const MS: Duration = Duration::from_millis(1);

fn moment(ms: u64) -> Moment {
    Moment::from_readings(MS * ms as u32, Duration::from_secs(77) + MS * ms as u32)
}

fn time(ms: u64) -> ClusterTime {
    ClusterTime::from_micros(ms * 1_000)
}

/// A machine with a TTL of 4 s (K = 1 s) and a deadline far away.
fn machine(ms: u64) -> MachineTime {
    MachineTime {
        time: time(ms),
        earliest_deadline: Some(time(1_000_000)),
        smallest_ttl: Some(Duration::from_secs(4)),
    }
}

fn office(limits: OfficeLimits) -> Office<Letter> {
    let mut office = Office::new(limits);
    office.take(machine(0), moment(0));
    office
}

/// A probe is sent and returns at once; the moment serves as its number.
fn probe(office: &mut Office<Letter>, ms: u64) {
    office.probe_sent(u128::from(ms), moment(ms));
    office.probe_returned(u128::from(ms));
}

/// Seals at `ms`, and the entry is applied at once and a probe has just returned.
fn seal(office: &mut Office<Letter>, ms: u64) -> Option<Sealed<Letter>> {
    let sealed = office.seal(|| moment(ms))?;
    office.answered(sealed.number);
    probe(office, ms);
    let at = sealed.at.as_micros() / 1_000;
    office.applied(machine(at));
    Some(sealed)
}

#[test]
fn the_stamp_counts_what_the_clock_showed() {
    let mut office = office(OfficeLimits::default());
    office.arrived(Renewal(1)).unwrap();
    assert_eq!(seal(&mut office, 300).unwrap(), Sealed { number: 0, at: time(300), batch: vec![Renewal(1)] });
    office.arrived(Renewal(2)).unwrap();
    assert_eq!(seal(&mut office, 420).unwrap().at, time(420));
    assert_eq!(office.dropped(), Duration::ZERO);
}

#[test]
fn the_shorter_of_the_two_clocks_is_counted() {
    let mut office = office(OfficeLimits::default());
    office.arrived(Renewal(1)).unwrap();
    let suspended = Moment::from_readings(MS * 900, Duration::from_secs(77) + MS * 5);
    assert_eq!(office.seal(|| suspended).unwrap().at, time(5));
}

#[test]
fn a_pause_is_dropped_and_never_owed() {
    let mut office = office(OfficeLimits::default());
    assert_eq!(seal(&mut office, 20_000).unwrap().at, time(1_000), "capped at K beyond what was applied");
    assert_eq!(office.dropped(), MS * 19_000);
    assert_eq!(seal(&mut office, 20_500).unwrap().at, time(1_500), "and what was dropped stays dropped");
}

#[test]
fn an_unapplied_log_stops_the_count() {
    let mut office = office(OfficeLimits { in_flight_max: 10, ..OfficeLimits::default() });
    let stamps: Vec<_> = (1..=6)
        .map(|turn| {
            probe(&mut office, turn * 500);
            office.seal(|| moment(turn * 500)).unwrap().at
        })
        .collect();
    assert_eq!(stamps, [500, 1_000, 1_000, 1_000, 1_000, 1_000].map(time));
}

#[test]
fn a_deaf_leader_counts_no_time_against_renewals() {
    let mut office = office(OfficeLimits::default());
    // Entries are applied all the time, but no probe returns after the one sent at 250 ms.
    probe(&mut office, 250);
    office.probe_sent(500, moment(500));
    for turn in 1..10 {
        let sealed = office.seal(|| moment(turn * 500)).unwrap();
        office.answered(sealed.number);
        office.applied(machine(sealed.at.as_micros() / 1_000));
    }
    office.arrived(Renewal(1)).unwrap();
    assert_eq!(office.seal(|| moment(5_000)).unwrap().at, time(1_250));
}

#[test]
fn a_probe_of_an_earlier_office_proves_nothing() {
    let mut office = office(OfficeLimits::default());
    office.probe_sent(900, moment(900));
    office.leave();
    office.take(machine(0), moment(5_000));
    office.probe_returned(900);
    office.applied(machine(0));
    let sealed = office.seal(|| moment(9_000)).unwrap();
    assert_eq!(sealed.at, time(1_000));
    office.answered(sealed.number);
    office.applied(machine(1_000));
    assert_eq!(office.seal(|| moment(9_500)).unwrap().at, time(1_000), "no probe returned in this office");
}

/// Sequential numbers could be guessed: `POST /v1/probe/N` with a high N made the leader forget every probe under
/// way, cluster time stood still, and a dead holder's lease of 1 s lasted 11 s.
#[test]
fn a_forged_probe_neither_vouches_nor_drowns_the_true_one() {
    let mut office = office(OfficeLimits::default());
    let drawn = 0x6f3a_0000_0000_0000_0000_0000_0000_0001;
    office.probe_sent(drawn, moment(800));
    for forged in [0, 1, drawn - 1, drawn + 1, u128::from(u64::MAX), u128::MAX] {
        office.probe_returned(forged);
    }
    let applied = |office: &mut Office<Letter>, ms| {
        let sealed = office.seal(|| moment(ms)).unwrap();
        office.answered(sealed.number);
        office.applied(machine(sealed.at.as_micros() / 1_000));
        sealed.at
    };
    assert_eq!(applied(&mut office, 1_000), time(1_000));
    assert_eq!(applied(&mut office, 1_600), time(1_000), "a forged probe has vouched for the port");
    office.probe_returned(drawn);
    assert_eq!(applied(&mut office, 2_200), time(1_600), "the true probe was forgotten");
    office.probe_returned(drawn);
    assert_eq!(
        applied(&mut office, 2_900),
        time(1_800),
        "it vouches for the moment at which it was sent, no later"
    );
}

#[test]
fn the_count_is_never_lowered_when_k_shrinks() {
    let mut office = office(OfficeLimits::default());
    let sealed = office.seal(|| moment(900)).unwrap();
    assert_eq!(sealed.at, time(900));
    office.applied(MachineTime { smallest_ttl: Some(MS * 500), ..machine(0) });
    office.arrived(Renewal(1)).unwrap();
    assert_eq!(office.seal(|| moment(950)).unwrap().at, time(900), "neither lowered nor raised");
}

#[test]
fn a_size_cut_holds_the_stamp_at_the_first_one_left_behind() {
    let limits = OfficeLimits { renewals_per_entry_max: 2, ..OfficeLimits::default() };
    let mut office = office(limits);
    (1..=5).for_each(|n| office.arrived(Renewal(n)).unwrap());
    let first = seal(&mut office, 100).unwrap();
    assert_eq!((first.at, first.batch), (time(100), vec![Renewal(1), Renewal(2)]));
    office.arrived(Renewal(6)).unwrap();
    office.arrived(Renewal(7)).unwrap();
    let second = seal(&mut office, 200).unwrap();
    assert_eq!((second.at, second.batch), (time(100), vec![Renewal(3), Renewal(4)]), "5 was received at 100");
    let third = seal(&mut office, 300).unwrap();
    assert_eq!((third.at, third.batch), (time(200), vec![Renewal(5), Renewal(6)]), "7 was received at 200");
    let fourth = seal(&mut office, 400).unwrap();
    assert_eq!((fourth.at, fourth.batch), (time(400), vec![Renewal(7)]));
}

#[test]
fn nothing_that_sets_a_deadline_overtakes_the_first_one_left_behind() {
    let limits = OfficeLimits { opens_per_entry_max: 1, ..OfficeLimits::default() };
    let mut office = office(limits);
    let letters = [Open(1, 10), Open(2, 10), Renewal(3), Other(4, 10)];
    letters.into_iter().for_each(|letter| office.arrived(letter).unwrap());
    let first = seal(&mut office, 100).unwrap();
    assert_eq!(first.batch, [Open(1, 10), Other(4, 10)], "the renewal waits behind the open");
    assert_eq!(seal(&mut office, 200).unwrap().batch, [Open(2, 10), Renewal(3)]);
}

#[test]
fn an_old_office_leaves_neither_count_nor_reading_nor_mail() {
    let mut office = office(OfficeLimits::default());
    office.arrived(Other(1, 1)).unwrap();
    office.arrived(Renewal(2)).unwrap();
    assert_eq!(office.leave(), [Renewal(2), Other(1, 1)]);
    assert_eq!(office.arrived(Renewal(3)), Err((Renewal(3), Turned::NoOffice)));
    assert_eq!(office.next_wake(moment(50)), None);
    assert!(office.seal(|| panic!("a clock is read for nothing")).is_none());
    office.take(machine(7_000), moment(60_000));
    assert_eq!(office.waiting(), Waiting::default());
    assert_eq!(office.seal(|| moment(60_500)).unwrap().at, time(7_500));
}

#[test]
fn what_an_earlier_office_counted_but_nobody_applied_is_not_counted_on() {
    let mut office = office(OfficeLimits::default());
    office.seal(|| moment(900)).unwrap(); // stamped 900 ms, and lost with the office
    office.leave();
    // Another leader brought cluster time to 300 ms meanwhile, and renewed sessions there.
    office.take(machine(300), moment(5_000));
    assert_eq!(office.seal(|| moment(5_500)).unwrap().at, time(800));
}

#[test]
fn an_answer_to_an_earlier_office_frees_no_place_in_this_one() {
    let mut office = office(OfficeLimits::default());
    let old = office.seal(|| moment(600)).unwrap();
    office.leave();
    office.take(machine(600), moment(1_000));
    office.seal(|| moment(1_600)).unwrap();
    office.answered(old.number);
    assert_eq!(office.in_flight(), 1);
}

#[test]
fn at_most_two_entries_are_in_flight() {
    let mut office = office(OfficeLimits::default());
    let numbers: Vec<_> = (1..=2)
        .map(|turn| {
            office.arrived(Renewal(turn)).unwrap();
            office.seal(|| moment(u64::from(turn))).unwrap().number
        })
        .collect();
    office.arrived(Renewal(3)).unwrap();
    assert!(office.seal(|| panic!("a clock is read for nothing")).is_none());
    office.answered(numbers[0]);
    assert_eq!(office.seal(|| moment(3)).unwrap().batch, [Renewal(3)]);
}

#[test]
fn beside_an_entry_goes_only_one_that_is_as_large() {
    let mut office = office(OfficeLimits::default());
    (0..3).for_each(|turn| office.arrived(Other(turn, 9)).unwrap());
    let first = office.seal(|| moment(1)).unwrap();
    office.arrived(Other(3, 9)).unwrap();
    office.arrived(Renewal(4)).unwrap();
    assert_eq!(office.seal(|| moment(2)), None, "two wait for the answer, or for a third");
    office.probe_sent(2, moment(2));
    let wake = office.next_wake(moment(2)).unwrap();
    assert!(wake.longest_since(moment(2)) > MS, "and nobody asks again and again meanwhile");

    office.arrived(Open(5, 9)).unwrap();
    assert_eq!(office.next_wake(moment(3)), Some(moment(3)));
    let second = office.seal(|| moment(3)).unwrap();
    assert_eq!(second.batch.len(), 3);
    office.answered(first.number);
    office.arrived(Other(6, 9)).unwrap();
    assert_eq!(office.seal(|| moment(4)), None);
    office.answered(second.number);
    assert_eq!(
        office.seal(|| moment(5)).unwrap().batch,
        [Other(6, 9)],
        "nothing is under way: nothing to wait for"
    );
}

#[test]
fn a_message_without_a_renewal_is_answered_too() {
    let mut office = office(OfficeLimits::default());
    office.applied(MachineTime { earliest_deadline: None, ..machine(0) });
    office.arrived(NoRenewals).unwrap();
    assert_eq!(office.next_wake(moment(1)), Some(moment(1)));
    assert_eq!(office.seal(|| moment(1)).unwrap().batch, [NoRenewals]);
}

#[test]
fn what_waits_for_company_rides_with_a_tick() {
    let mut office = office(OfficeLimits::default());
    (0..3).for_each(|turn| office.arrived(Renewal(turn)).unwrap());
    office.seal(|| moment(1)).unwrap();
    office.arrived(Renewal(3)).unwrap();
    assert_eq!(office.seal(|| moment(400)), None);
    office.probe_sent(400, moment(400));
    assert_eq!(office.next_wake(moment(400)), Some(moment(501)), "half of K after the last reading");
    let tick = office.seal(|| moment(501)).unwrap();
    assert_eq!(
        (tick.at, tick.batch),
        (time(501), vec![Renewal(3)]),
        "its receipt is not overtaken by a stamp"
    );
}

#[test]
fn with_no_deadline_pending_nothing_is_written() {
    let mut office = Office::<Letter>::new(OfficeLimits::default());
    office.take(MachineTime::default(), moment(0));
    assert_eq!(office.next_wake(moment(0)), None);
    assert!(office.seal(|| moment(100_000)).is_none());
    assert!(!office.probe_due(moment(100_000)));
    office.arrived(Open(1, 1)).unwrap();
    assert_eq!(office.next_wake(moment(100_000)), Some(moment(100_000)));
    office.seal(|| moment(100_000)).unwrap();
    assert_eq!(office.dropped(), Duration::ZERO, "time that nobody waited for is not missed");
}

#[test]
fn a_tick_is_due_every_half_k_and_at_the_earliest_deadline() {
    let mut office = office(OfficeLimits::default());
    probe(&mut office, 0);
    assert_eq!(office.next_wake(moment(0)), Some(moment(250)), "the next probe");
    office.probe_sent(480, moment(480));
    assert_eq!(office.next_wake(moment(480)), Some(moment(500)), "half of K");
    assert!(office.seal(|| moment(499)).is_none());
    assert!(office.seal(|| moment(500)).unwrap().batch.is_empty());
    office.applied(MachineTime { earliest_deadline: Some(time(620)), ..machine(500) });
    assert_eq!(office.next_wake(moment(500)), Some(moment(620)), "the deadline");
    assert!(office.seal(|| moment(619)).is_none());
    assert_eq!(office.seal(|| moment(620)).unwrap().at, time(620));
    assert!(office.seal(|| moment(621)).is_none(), "one entry in flight that reaches the deadline is enough");
}

#[test]
fn what_is_overdue_is_cleared_entry_by_entry_without_a_pause() {
    let mut office = office(OfficeLimits::default());
    let overdue = |ms| MachineTime { earliest_deadline: Some(time(100)), ..machine(ms) };
    office.applied(overdue(120));
    let first = office.seal(|| moment(121)).unwrap();
    assert!(office.seal(|| moment(122)).is_none());
    office.answered(first.number);
    office.applied(overdue(121));
    assert_eq!(office.next_wake(moment(122)), Some(moment(122)));
    assert!(office.seal(|| moment(122)).is_some());
}

#[test]
fn a_flood_turns_away_no_renewal() {
    let limits = OfficeLimits {
        renewals_waiting_max: 2,
        opens_waiting_max: 1,
        commands_waiting_max: 3,
        bytes_waiting_max: 100,
        ..OfficeLimits::default()
    };
    let mut office = office(limits);
    office.arrived(Other(1, 1_000)).unwrap(); // the edge lets it pass, so an empty line takes it
    assert_eq!(office.arrived(Other(2, 1)), Err((Other(2, 1), Turned::Overloaded)), "bytes");
    assert_eq!(office.arrived(Open(3, 1)), Err((Open(3, 1), Turned::Overloaded)), "bytes");
    office.arrived(Renewal(4)).unwrap();
    office.arrived(Renewal(5)).unwrap();
    assert_eq!(office.arrived(Renewal(6)), Err((Renewal(6), Turned::Overloaded)), "their own line is full");
    assert_eq!(seal(&mut office, 1).unwrap().batch.len(), 3);
    assert_eq!(office.waiting(), Waiting::default());
    (1..=3).for_each(|n| office.arrived(Other(n, 1)).unwrap());
    assert_eq!(office.arrived(Other(4, 1)), Err((Other(4, 1), Turned::Overloaded)), "commands");
}

#[test]
fn an_entry_is_cut_by_bytes_but_one_command_always_fits() {
    let limits = OfficeLimits { command_bytes_per_entry_max: 10, ..OfficeLimits::default() };
    let mut office = office(limits);
    [Other(1, 50), Other(2, 6), Other(3, 6)].into_iter().for_each(|letter| office.arrived(letter).unwrap());
    let batches = [1, 2, 3].map(|ms| seal(&mut office, ms).unwrap().batch);
    assert_eq!(batches, [vec![Other(1, 50)], vec![Other(2, 6)], vec![Other(3, 6)]]);
}

#[test]
fn many_seals_lose_no_fraction_of_a_microsecond_each() {
    let mut office = office(OfficeLimits::default());
    let at = |nanos| Moment::from_readings(Duration::from_nanos(nanos), Duration::from_nanos(nanos));
    office.leave();
    office.take(machine(0), at(0));
    let mut stamp = ClusterTime::ZERO;
    for turn in 1..=10_000 {
        office.arrived(Renewal(1)).unwrap();
        let sealed = office.seal(|| at(turn * 1_999)).unwrap();
        stamp = sealed.at;
        office.answered(sealed.number);
        office.recycle(sealed.batch);
    }
    assert_eq!(stamp.as_micros(), 19_990);
}

/// The two numbered statements of the proof, whatever the driver does and when.
#[test]
fn stamps_never_outrun_the_clock_or_the_inbox() {
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let mut office = office(OfficeLimits {
            renewals_per_entry_max: 1 + dice.below(4) as usize,
            opens_per_entry_max: 1 + dice.below(2) as usize,
            ..OfficeLimits::default()
        });
        let mut now = 0;
        let mut flying = VecDeque::new();
        // For each one in the inbox: when it arrived, and the reading that tagged it, once there was one.
        let mut inbox: VecDeque<(u64, Option<u64>)> = VecDeque::new();
        let (mut last_at, mut last_reading) = (0, 0);
        for _ in 0..300 {
            now += dice.below(120);
            match dice.below(4) {
                0 | 1 => {
                    let letter = if dice.below(3) == 0 { Open(0, 1) } else { Renewal(0) };
                    office.arrived(letter).unwrap();
                    inbox.push_back((now, None));
                }
                2 => {
                    let Some(sealed) = office.seal(|| moment(now)) else { continue };
                    inbox.iter_mut().for_each(|(_, tagged)| *tagged = Some(tagged.unwrap_or(now)));
                    let batch: Vec<_> = inbox.drain(..sealed.batch.len()).collect();
                    let reading = inbox.front().map_or(now, |(_, tagged)| tagged.unwrap());
                    let at = sealed.at.as_micros() / 1_000;
                    assert!(batch.iter().all(|(arrived, _)| *arrived <= reading), "seed {seed}: statement 1");
                    assert!(at >= last_at && reading >= last_reading, "seed {seed}: order");
                    assert!(at - last_at <= reading - last_reading, "seed {seed}: statement 2");
                    (last_at, last_reading) = (at, reading);
                    flying.push_back((sealed.number, at));
                }
                _ => {
                    let Some((number, at)) = flying.pop_front() else { continue };
                    office.answered(number);
                    office.applied(machine(at));
                    probe(&mut office, now);
                }
            }
        }
    }
}

/// A tiny deterministic generator (splitmix64), so that a failure names its seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
