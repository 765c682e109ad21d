//! Who is being served, and how soon something will happen: judged by the last entries, with times passed in.

use super::LowLatency;
use std::time::Duration;
use tokio::time::Instant;

/// The largest append message that a single client's entry causes.
const LONE_APPEND_BYTES_MAX: usize = 256;

/// Who is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Callers {
    /// Several at a time.
    Several,
    /// One at a time, and its last request came after a pause: threads and disks sleep and are slow to wake,
    /// so all of them should be woken as early as possible.
    OneAfterAPause,
    /// One at a time, and its last request came right after the answer to the one before: everything is
    /// awake, and waking another thread only takes time.
    OneBackToBack,
}

/// Detects, on the leader, whether one client at a time is served. The leader loop reports what happens, and
/// asks how long to spin.
pub struct CallerDetector {
    low_latency: LowLatency,
    /// Entries with a single request, none of which came while another was in flight.
    streak: Streak,
    /// Since when the leader loop waits for a request, or for the answer to what is in flight.
    waits_since: Option<Instant>,
    /// How long after the last answer the next request came.
    request_after: Option<Duration>,
    /// How long the last entry took.
    answer_after: Option<Duration>,
}

impl CallerDetector {
    pub(crate) fn new(low_latency: LowLatency) -> CallerDetector {
        let streak = Streak::new(&low_latency);
        let (waits_since, request_after, answer_after) = (None, None, None);
        CallerDetector { low_latency, streak, waits_since, request_after, answer_after }
    }

    /// The leader loop begins to wait: how long to spin, if at all, for the next request or for the answer to
    /// what is in flight.
    pub fn wait(&mut self, in_flight: usize, now: Instant) -> Option<Duration> {
        self.waits_since.get_or_insert(now);
        let last = if in_flight == 0 { self.request_after } else { self.answer_after };
        self.low_latency.spin(self.streak.spin_for(last))
    }

    /// A request arrives while so many entries are in flight. The clock is read only if it matters.
    pub fn request_arrived(&mut self, in_flight: usize, now: impl FnOnce() -> Instant) {
        match in_flight {
            0 => self.request_after = self.waited(now).or(self.request_after),
            _ => self.streak.add(false),
        }
    }

    /// An entry is answered.
    pub fn entry_answered(&mut self, now: impl FnOnce() -> Instant) {
        self.answer_after = self.waited(now).or(self.answer_after);
    }

    /// An entry with so many requests is about to be proposed while so many others are in flight.
    pub fn entry_sealed(&mut self, requests: usize, in_flight: usize) {
        match (requests, in_flight) {
            // An entry without a request only advances time: it says nothing about clients.
            (0, _) => {}
            (1, 0) => self.streak.add(true),
            _ => self.streak.add(false),
        }
        self.low_latency.set_callers(self.callers());
    }

    fn callers(&self) -> Callers {
        match (self.streak.is_on(), self.streak.spin_for(self.request_after)) {
            (false, _) => Callers::Several,
            (true, None) => Callers::OneAfterAPause,
            (true, Some(_)) => Callers::OneBackToBack,
        }
    }

    fn waited(&mut self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.waits_since.take().map(|since| now().saturating_duration_since(since))
    }
}

/// Detects, on a follower, whether small appends come one by one, each after the answer to the one before.
pub(crate) struct AppendStreak {
    low_latency: LowLatency,
    streak: Streak,
    answered_at: Option<Instant>,
}

impl AppendStreak {
    pub fn new(low_latency: LowLatency) -> AppendStreak {
        let streak = Streak::new(&low_latency);
        AppendStreak { low_latency, streak, answered_at: None }
    }

    /// An append was answered: its size, when it arrived, and whether another waits already. How long to spin
    /// for the next one, if at all.
    pub fn answered(
        &mut self,
        bytes: usize,
        arrived: Instant,
        next_waits: bool,
        now: Instant,
    ) -> Option<Duration> {
        let pause = self.answered_at.map(|answered_at| arrived.saturating_duration_since(answered_at));
        self.streak.add(bytes <= LONE_APPEND_BYTES_MAX && !next_waits);
        self.answered_at = Some(now);
        self.low_latency.spin(self.streak.spin_for(pause))
    }
}

/// Whether things come one by one, each after the answer to the one before.
struct Streak {
    alone: u32,
    /// So many make a streak; `None` if low-latency mode is off.
    min: Option<u32>,
    spin_max: Duration,
}

impl Streak {
    fn new(low_latency: &LowLatency) -> Streak {
        let options = low_latency.0.options;
        Streak { alone: 0, min: options.enabled.then_some(options.streak_min), spin_max: options.spin_max }
    }

    /// Something came, alone or not.
    fn add(&mut self, alone: bool) {
        self.alone = if alone { self.alone.saturating_add(1) } else { 0 };
    }

    fn is_on(&self) -> bool {
        self.min.is_some_and(|min| self.alone >= min)
    }

    /// How long to spin for the next thing, if at all: the last one came after this `pause`.
    fn spin_for(&self, pause: Option<Duration>) -> Option<Duration> {
        let soon = pause.is_some_and(|pause| pause <= self.spin_max);
        (self.is_on() && soon).then_some(self.spin_max)
    }
}

#[cfg(test)]
mod tests {
    use super::super::LowLatencyOptions;
    use super::*;
    use crate::config::Execution;

    const SPIN_MAX: Duration = Duration::from_micros(500);
    const TOO_LATE: Duration = Duration::from_nanos(500_001);

    /// A detector, and the time that is passed to it.
    struct Fixture {
        detector: CallerDetector,
        now: Instant,
    }

    impl Fixture {
        fn new(options: LowLatencyOptions, execution: Execution) -> Fixture {
            let detector = CallerDetector::new(LowLatency::new(options, execution));
            Fixture { detector, now: Instant::now() }
        }

        /// One client that comes back as late as is still soon enough.
        fn one_client() -> Fixture {
            let mut fixture = Fixture::new(LowLatencyOptions::default(), Execution::Threads);
            for _ in 0..LowLatencyOptions::default().streak_min {
                assert!(fixture.serves(Callers::Several));
                fixture.request(SPIN_MAX);
            }
            assert!(fixture.serves(Callers::OneBackToBack));
            fixture
        }

        fn serves(&self, callers: Callers) -> bool {
            self.detector.low_latency.serves(callers)
        }

        /// A request comes after this pause, and its entry is proposed.
        fn request(&mut self, pause: Duration) {
            self.detector.wait(0, self.now);
            self.now += pause;
            self.detector.request_arrived(0, || self.now);
            self.detector.entry_sealed(1, 0);
        }

        /// Its answer comes after this long.
        fn answer(&mut self, after: Duration) {
            self.detector.wait(1, self.now);
            self.now += after;
            self.detector.entry_answered(|| self.now);
        }

        /// How long it spins for a request, and for an answer.
        fn spins(&mut self) -> (Option<Duration>, Option<Duration>) {
            let spins = (self.detector.wait(0, self.now), self.detector.wait(1, self.now));
            self.detector.waits_since = None;
            spins
        }
    }

    #[test]
    fn one_client_at_a_time_is_detected_and_two_are_not() {
        let mut ticked = Fixture::one_client();
        ticked.detector.entry_sealed(0, 0);
        assert!(ticked.serves(Callers::OneBackToBack));
        let mut two_in_an_entry = Fixture::one_client();
        two_in_an_entry.detector.entry_sealed(2, 0);
        assert!(two_in_an_entry.serves(Callers::Several));
        let mut two_entries = Fixture::one_client();
        two_entries.detector.entry_sealed(1, 1);
        assert!(two_entries.serves(Callers::Several));
        let mut one_while_another_is_in_flight = Fixture::one_client();
        one_while_another_is_in_flight.detector.request_arrived(1, || unreachable!("no time matters"));
        one_while_another_is_in_flight.detector.entry_sealed(1, 0);
        assert!(one_while_another_is_in_flight.serves(Callers::Several));
    }

    #[test]
    fn there_is_no_spin_wait_for_what_would_not_come_in_time() {
        let mut fixture = Fixture::one_client();
        assert_eq!(fixture.spins(), (Some(SPIN_MAX), None), "no answer has come yet");
        fixture.request(TOO_LATE);
        assert!(fixture.serves(Callers::OneAfterAPause));
        fixture.answer(SPIN_MAX);
        assert_eq!(fixture.spins(), (None, Some(SPIN_MAX)));
        fixture.request(Duration::ZERO);
        assert!(fixture.serves(Callers::OneBackToBack));
        fixture.answer(TOO_LATE);
        assert_eq!(fixture.spins(), (Some(SPIN_MAX), None));
        fixture.detector.entry_sealed(2, 0);
        assert_eq!(fixture.spins(), (None, None));
    }

    /// In simulation the decision is made and counted, but nobody spins. Switched off, nothing is decided.
    #[test]
    fn nobody_spins_in_simulation_or_when_switched_off() {
        for (enabled, decided) in [(true, true), (false, false)] {
            let options = LowLatencyOptions { enabled, ..LowLatencyOptions::default() };
            let mut fixture = Fixture::new(options, Execution::Tasks);
            (0..options.streak_min).for_each(|_| fixture.request(SPIN_MAX));
            assert_eq!(fixture.spins(), (None, None));
            assert_eq!(fixture.serves(Callers::OneBackToBack), decided);
            assert_eq!(fixture.detector.low_latency.status().spins > 0, decided);
        }
    }

    #[test]
    fn a_follower_spins_while_small_appends_come_one_by_one_and_soon() {
        let options = LowLatencyOptions::default();
        let mut appends = AppendStreak::new(LowLatency::new(options, Execution::Threads));
        let mut now = Instant::now();
        let mut append = |bytes, pause, next_waits| {
            now += pause;
            appends.answered(bytes, now, next_waits, now)
        };
        for _ in 1..options.streak_min {
            assert_eq!(append(LONE_APPEND_BYTES_MAX, SPIN_MAX, false), None);
        }
        assert_eq!(append(LONE_APPEND_BYTES_MAX, SPIN_MAX, false), Some(SPIN_MAX));
        assert_eq!(append(LONE_APPEND_BYTES_MAX, TOO_LATE, false), None);
        assert_eq!(append(LONE_APPEND_BYTES_MAX, SPIN_MAX, false), Some(SPIN_MAX));
        assert_eq!(append(LONE_APPEND_BYTES_MAX, SPIN_MAX, true), None, "it is not alone");
        (0..options.streak_min).for_each(|_| {
            append(0, SPIN_MAX, false);
        });
        assert_eq!(append(LONE_APPEND_BYTES_MAX + 1, SPIN_MAX, false), None, "it is not small");
    }
}
