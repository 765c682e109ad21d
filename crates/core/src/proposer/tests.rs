//! The proposer, one danger at a time, and the two statements of its proof under random driving.

use super::*;
use alloc::vec;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum TestMessage {
    Renewal(u32),
    NoRenewals,
    Open(u32, usize),
    Other(u32, usize),
}
use TestMessage::{NoRenewals, Open, Other, Renewal};

impl Message for TestMessage {
    fn queue(&self) -> QueueKind {
        match self {
            Renewal(_) | NoRenewals => QueueKind::Renewal,
            Open(..) => QueueKind::Open,
            Other(..) => QueueKind::Other,
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

fn proposer(limits: ProposerLimits) -> Proposer<TestMessage> {
    let mut proposer = Proposer::new(limits);
    proposer.start_term(machine(0), moment(0));
    proposer
}

/// A probe is sent and returns at once; the moment serves as its number.
fn probe(proposer: &mut Proposer<TestMessage>, ms: u64) {
    proposer.probe_sent(u128::from(ms), moment(ms));
    proposer.probe_returned(u128::from(ms));
}

/// Seals at `ms`, and the entry is applied at once and a probe has just returned.
fn seal(proposer: &mut Proposer<TestMessage>, ms: u64) -> Option<Sealed<TestMessage>> {
    let sealed = proposer.seal(|| moment(ms))?;
    proposer.answered(sealed.number);
    probe(proposer, ms);
    let at = sealed.at.as_micros() / 1_000;
    proposer.applied(machine(at));
    Some(sealed)
}

#[test]
fn the_stamp_counts_what_the_clock_showed() {
    let mut proposer = proposer(ProposerLimits::default());
    proposer.arrived(Renewal(1)).unwrap();
    assert_eq!(
        seal(&mut proposer, 300).unwrap(),
        Sealed { number: 0, at: time(300), batch: vec![Renewal(1)] }
    );
    proposer.arrived(Renewal(2)).unwrap();
    assert_eq!(seal(&mut proposer, 420).unwrap().at, time(420));
    assert_eq!(proposer.dropped(), Duration::ZERO);
}

#[test]
fn the_shorter_of_the_two_clocks_is_counted() {
    let mut proposer = proposer(ProposerLimits::default());
    proposer.arrived(Renewal(1)).unwrap();
    let suspended = Moment::from_readings(MS * 900, Duration::from_secs(77) + MS * 5);
    assert_eq!(proposer.seal(|| suspended).unwrap().at, time(5));
}

#[test]
fn a_pause_is_dropped_and_never_owed() {
    let mut proposer = proposer(ProposerLimits::default());
    assert_eq!(seal(&mut proposer, 20_000).unwrap().at, time(1_000), "capped at K beyond what was applied");
    assert_eq!(proposer.dropped(), MS * 19_000);
    assert_eq!(seal(&mut proposer, 20_500).unwrap().at, time(1_500), "and what was dropped stays dropped");
}

#[test]
fn an_unapplied_log_stops_the_count() {
    let mut proposer = proposer(ProposerLimits { in_flight_max: 10, ..ProposerLimits::default() });
    let stamps: Vec<_> = (1..=6)
        .map(|turn| {
            probe(&mut proposer, turn * 500);
            proposer.seal(|| moment(turn * 500)).unwrap().at
        })
        .collect();
    assert_eq!(stamps, [500, 1_000, 1_000, 1_000, 1_000, 1_000].map(time));
}

#[test]
fn a_deaf_leader_counts_no_time_against_renewals() {
    let mut proposer = proposer(ProposerLimits::default());
    // Entries are applied all the time, but no probe returns after the one sent at 250 ms.
    probe(&mut proposer, 250);
    proposer.probe_sent(500, moment(500));
    for turn in 1..10 {
        let sealed = proposer.seal(|| moment(turn * 500)).unwrap();
        proposer.answered(sealed.number);
        proposer.applied(machine(sealed.at.as_micros() / 1_000));
    }
    proposer.arrived(Renewal(1)).unwrap();
    assert_eq!(proposer.seal(|| moment(5_000)).unwrap().at, time(1_250));
}

#[test]
fn a_probe_of_an_earlier_term_proves_nothing() {
    let mut proposer = proposer(ProposerLimits::default());
    proposer.probe_sent(900, moment(900));
    proposer.end_term();
    proposer.start_term(machine(0), moment(5_000));
    proposer.probe_returned(900);
    proposer.applied(machine(0));
    let sealed = proposer.seal(|| moment(9_000)).unwrap();
    assert_eq!(sealed.at, time(1_000));
    proposer.answered(sealed.number);
    proposer.applied(machine(1_000));
    assert_eq!(proposer.seal(|| moment(9_500)).unwrap().at, time(1_000), "no probe returned in this term");
}

/// Sequential numbers could be guessed: `POST /v1/probe/N` with a high N made the leader forget every probe under
/// way, cluster time stood still, and a dead holder's lease of 1 s lasted 11 s.
#[test]
fn a_forged_probe_neither_vouches_nor_drowns_the_true_one() {
    let mut proposer = proposer(ProposerLimits::default());
    let drawn = 0x6f3a_0000_0000_0000_0000_0000_0000_0001;
    proposer.probe_sent(drawn, moment(800));
    for forged in [0, 1, drawn - 1, drawn + 1, u128::from(u64::MAX), u128::MAX] {
        proposer.probe_returned(forged);
    }
    let applied = |proposer: &mut Proposer<TestMessage>, ms| {
        let sealed = proposer.seal(|| moment(ms)).unwrap();
        proposer.answered(sealed.number);
        proposer.applied(machine(sealed.at.as_micros() / 1_000));
        sealed.at
    };
    assert_eq!(applied(&mut proposer, 1_000), time(1_000));
    assert_eq!(applied(&mut proposer, 1_600), time(1_000), "a forged probe has vouched for the port");
    proposer.probe_returned(drawn);
    assert_eq!(applied(&mut proposer, 2_200), time(1_600), "the true probe was forgotten");
    proposer.probe_returned(drawn);
    assert_eq!(
        applied(&mut proposer, 2_900),
        time(1_800),
        "it vouches for the moment at which it was sent, no later"
    );
}

#[test]
fn the_count_is_never_lowered_when_k_shrinks() {
    let mut proposer = proposer(ProposerLimits::default());
    let sealed = proposer.seal(|| moment(900)).unwrap();
    assert_eq!(sealed.at, time(900));
    proposer.applied(MachineTime { smallest_ttl: Some(MS * 500), ..machine(0) });
    proposer.arrived(Renewal(1)).unwrap();
    assert_eq!(proposer.seal(|| moment(950)).unwrap().at, time(900), "neither lowered nor raised");
}

#[test]
fn a_size_cut_holds_the_stamp_at_the_first_one_left_behind() {
    let limits = ProposerLimits { renewals_per_entry_max: 2, ..ProposerLimits::default() };
    let mut proposer = proposer(limits);
    (1..=5).for_each(|n| proposer.arrived(Renewal(n)).unwrap());
    let first = seal(&mut proposer, 100).unwrap();
    assert_eq!((first.at, first.batch), (time(100), vec![Renewal(1), Renewal(2)]));
    proposer.arrived(Renewal(6)).unwrap();
    proposer.arrived(Renewal(7)).unwrap();
    let second = seal(&mut proposer, 200).unwrap();
    assert_eq!((second.at, second.batch), (time(100), vec![Renewal(3), Renewal(4)]), "5 was received at 100");
    let third = seal(&mut proposer, 300).unwrap();
    assert_eq!((third.at, third.batch), (time(200), vec![Renewal(5), Renewal(6)]), "7 was received at 200");
    let fourth = seal(&mut proposer, 400).unwrap();
    assert_eq!((fourth.at, fourth.batch), (time(400), vec![Renewal(7)]));
}

#[test]
fn nothing_that_sets_a_deadline_overtakes_the_first_one_left_behind() {
    let limits = ProposerLimits { opens_per_entry_max: 1, ..ProposerLimits::default() };
    let mut proposer = proposer(limits);
    let messages = [Open(1, 10), Open(2, 10), Renewal(3), Other(4, 10)];
    messages.into_iter().for_each(|message| proposer.arrived(message).unwrap());
    let first = seal(&mut proposer, 100).unwrap();
    assert_eq!(first.batch, [Open(1, 10), Other(4, 10)], "the renewal waits behind the open");
    assert_eq!(seal(&mut proposer, 200).unwrap().batch, [Open(2, 10), Renewal(3)]);
}

#[test]
fn an_old_term_leaves_neither_count_nor_reading_nor_request() {
    let mut proposer = proposer(ProposerLimits::default());
    proposer.arrived(Other(1, 1)).unwrap();
    proposer.arrived(Renewal(2)).unwrap();
    assert_eq!(proposer.end_term(), [Renewal(2), Other(1, 1)]);
    assert_eq!(proposer.arrived(Renewal(3)), Err((Renewal(3), Turned::NotLeader)));
    assert_eq!(proposer.next_wake(moment(50)), None);
    assert!(proposer.seal(|| panic!("a clock is read for nothing")).is_none());
    proposer.start_term(machine(7_000), moment(60_000));
    assert_eq!(proposer.waiting(), Waiting::default());
    assert_eq!(proposer.seal(|| moment(60_500)).unwrap().at, time(7_500));
}

#[test]
fn what_an_earlier_term_counted_but_nobody_applied_is_not_counted_on() {
    let mut proposer = proposer(ProposerLimits::default());
    proposer.seal(|| moment(900)).unwrap(); // stamped 900 ms, and lost with the term
    proposer.end_term();
    // Another leader brought cluster time to 300 ms meanwhile, and renewed sessions there.
    proposer.start_term(machine(300), moment(5_000));
    assert_eq!(proposer.seal(|| moment(5_500)).unwrap().at, time(800));
}

#[test]
fn an_answer_to_an_earlier_term_frees_no_place_in_this_one() {
    let mut proposer = proposer(ProposerLimits::default());
    let old = proposer.seal(|| moment(600)).unwrap();
    proposer.end_term();
    proposer.start_term(machine(600), moment(1_000));
    proposer.seal(|| moment(1_600)).unwrap();
    proposer.answered(old.number);
    assert_eq!(proposer.in_flight(), 1);
}

#[test]
fn at_most_two_entries_are_in_flight() {
    let mut proposer = proposer(ProposerLimits::default());
    let numbers: Vec<_> = (1..=2)
        .map(|turn| {
            proposer.arrived(Renewal(turn)).unwrap();
            proposer.seal(|| moment(u64::from(turn))).unwrap().number
        })
        .collect();
    proposer.arrived(Renewal(3)).unwrap();
    assert!(proposer.seal(|| panic!("a clock is read for nothing")).is_none());
    proposer.answered(numbers[0]);
    assert_eq!(proposer.seal(|| moment(3)).unwrap().batch, [Renewal(3)]);
}

#[test]
fn beside_an_entry_goes_only_one_that_is_as_large() {
    let mut proposer = proposer(ProposerLimits::default());
    (0..3).for_each(|turn| proposer.arrived(Other(turn, 9)).unwrap());
    let first = proposer.seal(|| moment(1)).unwrap();
    proposer.arrived(Other(3, 9)).unwrap();
    proposer.arrived(Renewal(4)).unwrap();
    assert_eq!(proposer.seal(|| moment(2)), None, "two wait for the answer, or for a third");
    proposer.probe_sent(2, moment(2));
    let wake = proposer.next_wake(moment(2)).unwrap();
    assert!(wake.longest_since(moment(2)) > MS, "and nobody asks again and again meanwhile");

    proposer.arrived(Open(5, 9)).unwrap();
    assert_eq!(proposer.next_wake(moment(3)), Some(moment(3)));
    let second = proposer.seal(|| moment(3)).unwrap();
    assert_eq!(second.batch.len(), 3);
    proposer.answered(first.number);
    proposer.arrived(Other(6, 9)).unwrap();
    assert_eq!(proposer.seal(|| moment(4)), None);
    proposer.answered(second.number);
    assert_eq!(
        proposer.seal(|| moment(5)).unwrap().batch,
        [Other(6, 9)],
        "nothing is under way: nothing to wait for"
    );
}

#[test]
fn a_message_without_a_renewal_is_answered_too() {
    let mut proposer = proposer(ProposerLimits::default());
    proposer.applied(MachineTime { earliest_deadline: None, ..machine(0) });
    proposer.arrived(NoRenewals).unwrap();
    assert_eq!(proposer.next_wake(moment(1)), Some(moment(1)));
    assert_eq!(proposer.seal(|| moment(1)).unwrap().batch, [NoRenewals]);
}

#[test]
fn what_waits_for_company_rides_with_a_tick() {
    let mut proposer = proposer(ProposerLimits::default());
    (0..3).for_each(|turn| proposer.arrived(Renewal(turn)).unwrap());
    proposer.seal(|| moment(1)).unwrap();
    proposer.arrived(Renewal(3)).unwrap();
    assert_eq!(proposer.seal(|| moment(400)), None);
    proposer.probe_sent(400, moment(400));
    assert_eq!(proposer.next_wake(moment(400)), Some(moment(501)), "half of K after the last reading");
    let tick = proposer.seal(|| moment(501)).unwrap();
    assert_eq!(
        (tick.at, tick.batch),
        (time(501), vec![Renewal(3)]),
        "its receipt is not overtaken by a stamp"
    );
}

#[test]
fn with_no_deadline_pending_nothing_is_written() {
    let mut proposer = Proposer::<TestMessage>::new(ProposerLimits::default());
    proposer.start_term(MachineTime::default(), moment(0));
    assert_eq!(proposer.next_wake(moment(0)), None);
    assert!(proposer.seal(|| moment(100_000)).is_none());
    assert!(!proposer.probe_due(moment(100_000)));
    proposer.arrived(Open(1, 1)).unwrap();
    assert_eq!(proposer.next_wake(moment(100_000)), Some(moment(100_000)));
    proposer.seal(|| moment(100_000)).unwrap();
    assert_eq!(proposer.dropped(), Duration::ZERO, "time that nobody waited for is not missed");
}

#[test]
fn a_tick_is_due_every_half_k_and_at_the_earliest_deadline() {
    let mut proposer = proposer(ProposerLimits::default());
    probe(&mut proposer, 0);
    assert_eq!(proposer.next_wake(moment(0)), Some(moment(250)), "the next probe");
    proposer.probe_sent(480, moment(480));
    assert_eq!(proposer.next_wake(moment(480)), Some(moment(500)), "half of K");
    assert!(proposer.seal(|| moment(499)).is_none());
    assert!(proposer.seal(|| moment(500)).unwrap().batch.is_empty());
    proposer.applied(MachineTime { earliest_deadline: Some(time(620)), ..machine(500) });
    assert_eq!(proposer.next_wake(moment(500)), Some(moment(620)), "the deadline");
    assert!(proposer.seal(|| moment(619)).is_none());
    assert_eq!(proposer.seal(|| moment(620)).unwrap().at, time(620));
    assert!(
        proposer.seal(|| moment(621)).is_none(),
        "one entry in flight that reaches the deadline is enough"
    );
}

#[test]
fn what_is_overdue_is_cleared_entry_by_entry_without_a_pause() {
    let mut proposer = proposer(ProposerLimits::default());
    let overdue = |ms| MachineTime { earliest_deadline: Some(time(100)), ..machine(ms) };
    proposer.applied(overdue(120));
    let first = proposer.seal(|| moment(121)).unwrap();
    assert!(proposer.seal(|| moment(122)).is_none());
    proposer.answered(first.number);
    proposer.applied(overdue(121));
    assert_eq!(proposer.next_wake(moment(122)), Some(moment(122)));
    assert!(proposer.seal(|| moment(122)).is_some());
}

#[test]
fn a_flood_turns_away_no_renewal() {
    let limits = ProposerLimits {
        renewals_waiting_max: 2,
        opens_waiting_max: 1,
        commands_waiting_max: 3,
        open_bytes_waiting_max: 50,
        command_bytes_waiting_max: 100,
        ..ProposerLimits::default()
    };
    let mut proposer = proposer(limits);
    proposer.arrived(Other(1, 1_000)).unwrap(); // the edge lets it pass, so an empty queue takes it
    assert_eq!(proposer.arrived(Other(2, 1)), Err((Other(2, 1), Turned::Overloaded)), "bytes");
    proposer.arrived(Open(3, 51)).unwrap(); // opens have bytes of their own
    assert_eq!(
        proposer.arrived(Open(7, 1)),
        Err((Open(7, 1), Turned::Overloaded)),
        "their own count is full"
    );
    proposer.arrived(Renewal(4)).unwrap();
    proposer.arrived(Renewal(5)).unwrap();
    assert_eq!(proposer.arrived(Renewal(6)), Err((Renewal(6), Turned::Overloaded)), "their own line is full");
    assert_eq!(seal(&mut proposer, 1).unwrap().batch.len(), 4);
    assert_eq!(proposer.waiting(), Waiting::default());
    (1..=3).for_each(|n| proposer.arrived(Other(n, 1)).unwrap());
    assert_eq!(proposer.arrived(Other(4, 1)), Err((Other(4, 1), Turned::Overloaded)), "commands");
}

#[test]
fn opens_and_other_commands_wait_within_bytes_of_their_own() {
    let limits = ProposerLimits {
        open_bytes_waiting_max: 50,
        command_bytes_waiting_max: 100,
        ..ProposerLimits::default()
    };
    let mut proposer = proposer(limits);
    proposer.arrived(Other(1, 60)).unwrap();
    assert_eq!(proposer.arrived(Other(2, 41)), Err((Other(2, 41), Turned::Overloaded)));
    proposer.arrived(Other(3, 40)).unwrap();
    proposer.arrived(Open(4, 30)).unwrap();
    assert_eq!(proposer.arrived(Open(5, 21)), Err((Open(5, 21), Turned::Overloaded)));
    proposer.arrived(Open(6, 20)).unwrap();
    let waiting = proposer.waiting();
    assert_eq!((waiting.open_bytes, waiting.command_bytes), (50, 100));
    assert_eq!(seal(&mut proposer, 1).unwrap().batch.len(), 4);
    assert_eq!(proposer.waiting(), Waiting::default());
}

#[test]
fn an_entry_is_cut_by_bytes_but_one_command_always_fits() {
    let limits = ProposerLimits { command_bytes_per_entry_max: 10, ..ProposerLimits::default() };
    let mut proposer = proposer(limits);
    [Other(1, 50), Other(2, 6), Other(3, 6)]
        .into_iter()
        .for_each(|message| proposer.arrived(message).unwrap());
    let batches = [1, 2, 3].map(|ms| seal(&mut proposer, ms).unwrap().batch);
    assert_eq!(batches, [vec![Other(1, 50)], vec![Other(2, 6)], vec![Other(3, 6)]]);
}

#[test]
fn many_seals_lose_no_fraction_of_a_microsecond_each() {
    let mut proposer = proposer(ProposerLimits::default());
    let at = |nanos| Moment::from_readings(Duration::from_nanos(nanos), Duration::from_nanos(nanos));
    proposer.end_term();
    proposer.start_term(machine(0), at(0));
    let mut stamp = ClusterTime::ZERO;
    for turn in 1..=10_000 {
        proposer.arrived(Renewal(1)).unwrap();
        let sealed = proposer.seal(|| at(turn * 1_999)).unwrap();
        stamp = sealed.at;
        proposer.answered(sealed.number);
        proposer.recycle(sealed.batch);
    }
    assert_eq!(stamp.as_micros(), 19_990);
}

/// The two numbered statements of the proof, whatever the driver does and when.
#[test]
fn stamps_never_outrun_the_clock_or_the_inbox() {
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let mut proposer = proposer(ProposerLimits {
            renewals_per_entry_max: 1 + dice.below(4) as usize,
            opens_per_entry_max: 1 + dice.below(2) as usize,
            ..ProposerLimits::default()
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
                    let message = if dice.below(3) == 0 { Open(0, 1) } else { Renewal(0) };
                    proposer.arrived(message).unwrap();
                    inbox.push_back((now, None));
                }
                2 => {
                    let Some(sealed) = proposer.seal(|| moment(now)) else { continue };
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
                    proposer.answered(number);
                    proposer.applied(machine(at));
                    probe(&mut proposer, now);
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
