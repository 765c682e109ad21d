//! The five numbers of a lease and what must be true of them: TTL, R, rho, net, sigma.
//!
//! [`Timing`] exists only if every inequality holds, so whoever has one need not check again. This file
//! decides whether numbers fit together and how long a holder may believe; it never reads a clock.
//! Why exactly these inequalities are enough is proved at the head of `proposer.rs`.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::time::Moment;

const MILLION: u128 = 1_000_000;

/// The least sigma: stamps are whole microseconds, and the proof owes one of them to sigma. A thousand
/// times that is still less than any scheduler needs.
const SIGMA_MIN: Duration = Duration::from_millis(1);

/// The five numbers, not yet checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingNumbers {
    /// How long a session lives without a renewal.
    pub ttl: Duration,
    /// R: how long after a renewal the next one is sent.
    pub renew_every: Duration,
    /// rho: the bound on the difference of two clocks' *rates*, in parts per million. Their offset does not matter.
    pub rho_ppm: u32,
    /// net: the bound on one exchange with the store. No safety rule needs it.
    pub net: Duration,
    /// sigma: the slack between checking a deadline and acting on it.
    pub sigma: Duration,
}

impl TimingNumbers {
    /// The usual numbers for a TTL: R a third of it, rho 500 ppm (quartz stays below 200), net 50 ms, sigma 2 % of it and at least
    /// 100 ms.
    pub fn for_ttl(ttl: Duration) -> TimingNumbers {
        TimingNumbers {
            ttl,
            renew_every: ttl / 3,
            rho_ppm: 500,
            net: Duration::from_millis(50),
            sigma: (ttl / 50).max(Duration::from_millis(100)),
        }
    }

    /// The usual numbers where one exchange takes up to `net`, with a sigma that also covers the bound on pauses.
    pub fn for_world(ttl: Duration, net: Duration, bounds: &Bounds) -> TimingNumbers {
        let usual = TimingNumbers::for_ttl(ttl);
        TimingNumbers { net, sigma: usual.sigma.max(bounds.pause), ..usual }
    }

    /// The shortest whole number of milliseconds whose usual numbers fit the bounds, or `None` if no allowed TTL does.
    pub fn shortest(net: Duration, bounds: &Bounds) -> Option<Timing> {
        let fits =
            |ms: u64| TimingNumbers::for_world(Duration::from_millis(ms), net, bounds).checked(bounds).ok();
        // Whatever fits at one TTL fits at every longer one, up to the longest allowed: so halve the range.
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (mut low, mut high) = (0, millis(bounds.ttl_max));
        let mut best = fits(high)?;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match fits(middle) {
                Some(timing) => (best, high) = (timing, middle),
                None => low = middle,
            }
        }
        Some(best)
    }

    /// The numbers as a [`Timing`], or the first inequality that does not hold.
    pub fn checked(self, bounds: &Bounds) -> Result<Timing, BrokenTiming> {
        match self.broken(bounds).into_iter().next() {
            None => Ok(Timing(self)),
            Some(broken) => Err(broken),
        }
    }

    /// Every inequality that does not hold, the most serious first.
    pub fn broken(&self, bounds: &Bounds) -> Vec<BrokenTiming> {
        let TimingNumbers { ttl, renew_every, net, sigma, .. } = *self;
        let drift = self.drift(ttl);
        let sigma_min = bounds.pause.max(SIGMA_MIN);
        let usable = ttl.saturating_sub(sigma.saturating_add(drift));
        let detect = renew_every / 4;
        let renewed = sum(&[renew_every, detect, bounds.reconnect, bounds.retry]);
        let worked = sum(&[renew_every, net, bounds.max_op]);
        let floor = net.saturating_add(bounds.pause).saturating_mul(2);
        let checks = [
            (sigma.saturating_add(drift) < ttl, BrokenTiming::NothingUsable { ttl, sigma, drift }),
            (sigma >= sigma_min, BrokenTiming::SlackTooSmall { sigma, sigma_min }),
            (
                bounds.ttl_min <= ttl && ttl <= bounds.ttl_max,
                BrokenTiming::OutsideLimits { ttl, ttl_min: bounds.ttl_min, ttl_max: bounds.ttl_max },
            ),
            (ttl >= floor, BrokenTiming::BelowFloor { ttl, net, pause: bounds.pause, floor }),
            (!renew_every.is_zero(), BrokenTiming::RenewsWithoutPause),
            (
                renewed < usable,
                BrokenTiming::RenewsTooLate {
                    renew_every,
                    detect,
                    reconnect: bounds.reconnect,
                    retry: bounds.retry,
                    usable,
                },
            ),
            (worked <= usable, BrokenTiming::WorkTooLong { renew_every, net, max_op: bounds.max_op, usable }),
        ];
        checks.into_iter().filter(|(holds, _)| !holds).map(|(_, broken)| broken).collect()
    }

    /// What two clocks may differ by after `length`, rounded up.
    pub(crate) fn drift(&self, length: Duration) -> Duration {
        let nanos = (length.as_nanos() * u128::from(self.rho_ppm)).div_ceil(MILLION);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// What the world is bounded by; the numbers are checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The longest that the process stands still between checking and acting. Longer pauses are what fences are for.
    pub pause: Duration,
    /// How long one more attempt takes once there is a connection.
    pub retry: Duration,
    /// How long a new connection to another endpoint takes.
    pub reconnect: Duration,
    /// The longest operation that is done under one permit.
    pub max_op: Duration,
    /// The shortest TTL that the server allows.
    pub ttl_min: Duration,
    /// The longest TTL that the server allows.
    pub ttl_max: Duration,
}

impl Default for Bounds {
    /// One data centre, an ordinary scheduler, no operation to speak of, the server's usual limits.
    fn default() -> Self {
        Self {
            pause: Duration::from_millis(100),
            retry: Duration::from_millis(50),
            reconnect: Duration::from_millis(100),
            max_op: Duration::ZERO,
            ttl_min: Duration::from_millis(500),
            ttl_max: Duration::from_secs(3600),
        }
    }
}

/// Five numbers that fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing(TimingNumbers);

impl Default for Timing {
    /// A TTL of 10 s and what goes with it.
    fn default() -> Self {
        Timing(TimingNumbers::for_ttl(Duration::from_secs(10)))
    }
}

impl Timing {
    /// The numbers.
    pub fn numbers(&self) -> TimingNumbers {
        self.0
    }

    /// How long a session lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// R, without jitter.
    pub fn renew_every(&self) -> Duration {
        self.0.renew_every
    }

    /// How long after a renewal the next one is sent: R, spread by 10 % either way so that many holders do not
    /// renew in step. `jitter` is drawn evenly from all of `u32`.
    pub fn renew_after(&self, jitter: u32) -> Duration {
        let spread = self.0.renew_every / 5;
        let part = spread.as_nanos() * u128::from(jitter) / u128::from(u32::MAX);
        self.0.renew_every - spread / 2 + Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// How long an attempt may go unanswered before it is repeated elsewhere, and the longest wait between two attempts.
    pub fn detect(&self) -> Duration {
        self.0.renew_every / 4
    }

    /// How long after sending an open or a renewal the holder may act on its answer: ttl (1 - rho) - sigma.
    pub fn usable_ttl(&self) -> Duration {
        self.usable_of(self.0.ttl)
    }

    /// The same for the TTL that an answer named. Zero if nothing of it is usable.
    pub fn usable_of(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(self.0.drift(ttl)).saturating_sub(self.0.sigma)
    }

    /// Until when a holder may act that sent its open or renewal at `sent` and was answered with `ttl`.
    pub fn deadline(&self, sent: Moment, ttl: Duration) -> Deadline {
        // Counted from before the send, not from the answer: the server began counting later than this,
        // so our deadline falls first however slow the network was.
        Deadline { sent, usable: self.usable_of(ttl) }
    }

    /// How far the two clocks of one reading may disagree after `length` before something is wrong with one of them.
    /// Sigma is allowed on top: the two are not read in the same instant.
    pub fn disagreement_max(&self, length: Duration) -> Duration {
        self.0.drift(length).saturating_add(self.0.sigma)
    }

    /// The part of the TTL in which the holder may act.
    pub fn usable_share(&self) -> f64 {
        self.usable_ttl().as_secs_f64() / self.0.ttl.as_secs_f64()
    }

    /// The longest time that a resource stands still after its holder crashed right after sending a renewal: the
    /// renewal travels and waits for the entry before its own, the TTL runs down, and the end waits for an entry and is committed.
    /// A leader change in between adds an election and half of K.
    pub fn crash_gap_worst(&self, commit: Duration) -> Duration {
        sum(&[self.0.net, commit, self.0.ttl, commit, commit])
    }

    /// The gap of a planned change of holder: one commit ends and grants, one message tells the successor.
    pub fn planned_gap(&self, commit: Duration) -> Duration {
        commit.saturating_add(self.0.net)
    }

    /// Renewals per minute and session, to the nearest whole number. Each is one command, and without batching would be one commit.
    pub fn renewals_per_minute(&self) -> u64 {
        let every = self.0.renew_every.as_nanos();
        let minute = Duration::from_secs(60).as_nanos();
        u64::try_from((minute + every / 2) / every).unwrap_or(u64::MAX)
    }

    /// How many renewals would fit before the deadline if a lost one were only made up for by the next.
    pub fn attempts_without_retries(&self) -> u64 {
        attempts(self.usable_ttl(), self.0.renew_every)
    }

    /// How many fit when an unanswered one is repeated after R/4.
    pub fn attempts_with_retries(&self) -> u64 {
        1 + attempts(self.usable_ttl().saturating_sub(self.0.renew_every), self.detect())
    }
}

/// How many multiples of `every` lie before `end`.
fn attempts(end: Duration, every: Duration) -> u64 {
    let many = end.as_nanos().saturating_sub(1) / every.as_nanos().max(1);
    u64::try_from(many).unwrap_or(u64::MAX)
}

fn sum(parts: &[Duration]) -> Duration {
    parts.iter().fold(Duration::ZERO, |total, part| total.saturating_add(*part))
}

/// Until when a holder may act. Kept as the moment of sending and a length, because the holder counts the longer of
/// two clocks, and which one that is shows only when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    sent: Moment,
    usable: Duration,
}

impl Deadline {
    /// What is left at `now`; zero when the holder must have stopped.
    pub fn remaining(&self, now: Moment) -> Duration {
        self.usable.saturating_sub(now.longest_since(self.sent))
    }

    /// When the request that it counts from was sent.
    pub fn sent(&self) -> Moment {
        self.sent
    }

    /// How long after that the holder may act.
    pub fn length(&self) -> Duration {
        self.usable
    }
}

/// An inequality that does not hold, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenTiming {
    /// Safety: sigma + rho * ttl < ttl.
    NothingUsable {
        /// The TTL.
        ttl: Duration,
        /// The slack.
        sigma: Duration,
        /// rho * ttl.
        drift: Duration,
    },
    /// Safety: sigma covers the scheduling bound.
    SlackTooSmall {
        /// The slack.
        sigma: Duration,
        /// What it must cover.
        sigma_min: Duration,
    },
    /// The server's limits.
    OutsideLimits {
        /// The TTL.
        ttl: Duration,
        /// The shortest allowed.
        ttl_min: Duration,
        /// The longest allowed.
        ttl_max: Duration,
    },
    /// Floor: ttl >= 2 * (net + pause).
    BelowFloor {
        /// The TTL.
        ttl: Duration,
        /// The bound on one exchange.
        net: Duration,
        /// The bound on a pause.
        pause: Duration,
        /// The floor.
        floor: Duration,
    },
    /// R is zero.
    RenewsWithoutPause,
    /// Availability: R + detect + reconnect + retry < ttl - sigma - rho * ttl.
    RenewsTooLate {
        /// R.
        renew_every: Duration,
        /// R/4.
        detect: Duration,
        /// The bound on a new connection.
        reconnect: Duration,
        /// The bound on one more attempt.
        retry: Duration,
        /// ttl - sigma - rho * ttl.
        usable: Duration,
    },
    /// Availability: R + net + max_op <= ttl - sigma - rho * ttl.
    WorkTooLong {
        /// R.
        renew_every: Duration,
        /// The bound on one exchange.
        net: Duration,
        /// The longest operation.
        max_op: Duration,
        /// ttl - sigma - rho * ttl.
        usable: Duration,
    },
}

impl fmt::Display for BrokenTiming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokenTiming::NothingUsable { ttl, sigma, drift } => write!(
                f,
                "nothing of the TTL is usable: sigma + rho*ttl < ttl does not hold, {sigma:?} + {drift:?} is not below {ttl:?}; \
                 lengthen the TTL or lower sigma"
            ),
            BrokenTiming::SlackTooSmall { sigma, sigma_min } => write!(
                f,
                "sigma does not cover the scheduling bound: sigma >= pause does not hold, {sigma:?} is below {sigma_min:?}; \
                 raise sigma, or lower the bound if this process never stands still that long"
            ),
            BrokenTiming::OutsideLimits { ttl, ttl_min, ttl_max } => write!(
                f,
                "the TTL is outside the server's limits: {ttl_min:?} <= ttl <= {ttl_max:?} does not hold for {ttl:?}"
            ),
            BrokenTiming::BelowFloor { ttl, net, pause, floor } => write!(
                f,
                "the TTL is below its floor: ttl >= 2*(net + pause) does not hold, {ttl:?} is below 2*({net:?} + {pause:?}) = {floor:?}; \
                 lengthen the TTL"
            ),
            BrokenTiming::RenewsWithoutPause => {
                f.write_str("R is zero: renewals need a length of time between them")
            }
            BrokenTiming::RenewsTooLate { renew_every, detect, reconnect, retry, usable } => write!(
                f,
                "one lost renewal would end the lease: R + detect + reconnect + retry < ttl - sigma - rho*ttl does not hold, \
                 {renew_every:?} + {detect:?} + {reconnect:?} + {retry:?} is not below {usable:?}; renew more often or lengthen the TTL"
            ),
            BrokenTiming::WorkTooLong { renew_every, net, max_op, usable } => write!(
                f,
                "a healthy lease could not cover the longest operation: R + net + max_op <= ttl - sigma - rho*ttl does not hold, \
                 {renew_every:?} + {net:?} + {max_op:?} is above {usable:?}; lengthen the TTL, renew more often or split the operation"
            ),
        }
    }
}

impl core::error::Error for BrokenTiming {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn s(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn at(ms: u64) -> Moment {
        Moment::from_readings(Duration::from_millis(ms), Duration::from_millis(ms))
    }

    fn numbers(ttl: Duration) -> TimingNumbers {
        TimingNumbers::for_ttl(ttl)
    }

    fn timing(ttl: Duration) -> Timing {
        numbers(ttl).checked(&Bounds::default()).unwrap()
    }

    #[test]
    fn the_defaults_hold_over_the_whole_range_of_ttls() {
        for ttl in [ms(500), s(1), s(10), s(30), s(3600)] {
            assert_eq!(numbers(ttl).broken(&Bounds::default()), [], "{ttl:?}");
        }
        assert_eq!(numbers(s(10)).checked(&Bounds::default()), Ok(Timing::default()));
        assert_eq!(timing(s(1)).numbers().sigma, ms(100));
        assert_eq!(timing(s(10)).numbers().sigma, ms(200));
        assert_eq!(timing(s(10)).usable_ttl(), ms(10_000 - 5 - 200));
    }

    #[test]
    fn each_inequality_is_shown_with_its_numbers() {
        let base = numbers(s(10));
        let bounds = Bounds::default();
        let message =
            |numbers: TimingNumbers, bounds: Bounds| numbers.checked(&bounds).unwrap_err().to_string();
        let cases = [
            (message(TimingNumbers { sigma: s(10), ..base }, bounds), "10s + 5ms is not below 10s"),
            (message(TimingNumbers { sigma: ms(99), ..base }, bounds), "99ms is below 100ms"),
            (message(TimingNumbers { ttl: ms(499), ..base }, bounds), "500ms <= ttl <= 3600s"),
            (message(TimingNumbers { net: s(5), ..base }, bounds), "10s is below 2*(5s + 100ms) = 10.2s"),
            (message(TimingNumbers { renew_every: s(0), ..base }, bounds), "R is zero"),
            (
                message(TimingNumbers { renew_every: s(8), ..base }, bounds),
                "8s + 2s + 100ms + 50ms is not below 9.795s",
            ),
            (
                message(TimingNumbers { renew_every: s(3), ..base }, Bounds { max_op: s(7), ..bounds }),
                "3s + 50ms + 7s is above 9.795s",
            ),
        ];
        for (message, expected) in cases {
            assert!(message.contains(expected), "{message:?} should say {expected:?}");
        }
        assert!(matches!(
            TimingNumbers { sigma: Duration::ZERO, ..base }.checked(&Bounds { pause: s(0), ..bounds }),
            Err(BrokenTiming::SlackTooSmall { .. })
        ));
        // Strict where the design says `<`: equality is not enough.
        let tight = TimingNumbers { renew_every: s(4), rho_ppm: 0, sigma: s(1), ttl: s(10), net: ms(1) };
        let exact = Bounds { reconnect: s(2), retry: s(2), ..bounds };
        assert!(matches!(tight.checked(&exact), Err(BrokenTiming::RenewsTooLate { .. })));
        assert!(tight.checked(&Bounds { retry: ms(1_999), ..exact }).is_ok());
    }

    #[test]
    fn w1_a_one_second_lease_costs_180_renewals_per_minute() {
        assert_eq!(timing(s(1)).renewals_per_minute(), 180);
        assert_eq!(100 * timing(s(1)).renewals_per_minute(), 18_000, "which needs a hundred leases");
    }

    #[test]
    fn w2_thirty_seconds_renewed_every_ten_cost_six_per_minute() {
        let timing = timing(s(30));
        assert_eq!(timing.renew_every(), s(10));
        assert_eq!(timing.renewals_per_minute(), 6);
        assert_eq!(ms(6) * timing.renewals_per_minute() as u32, ms(36));
    }

    #[test]
    fn w3_w4_counting_from_the_receipt_claims_too_much() {
        let numbers = TimingNumbers { rho_ppm: 0, sigma: ms(300), ..numbers(s(10)) };
        let timing = numbers.checked(&Bounds::default()).unwrap();
        let (sent, received) = (at(0), at(2_000));
        let server_may_end = at(10_000); // at the earliest: it received the request right after it was sent
        assert_eq!(timing.deadline(sent, s(10)).remaining(server_may_end), Duration::ZERO);
        assert_eq!(timing.deadline(received, s(10)).remaining(server_may_end), ms(1_700), "over-claimed");
    }

    #[test]
    fn w5_only_the_rate_of_a_clock_matters_and_slow_is_the_dangerous_side() {
        let quartz = TimingNumbers { rho_ppm: 200, ..numbers(s(30)) };
        assert_eq!(quartz.drift(s(30)), ms(6));
        let fiction = TimingNumbers { rho_ppm: 200_000, sigma: s(1), ..numbers(s(30)) };
        assert_eq!(Timing(fiction).usable_ttl(), s(23), "200 ms per second and a second of latency");
        // After 10 s of the server's: a fast holder has stopped; one slow by more than rho still believes.
        let deadline = Timing::default().deadline(at(0), s(10));
        assert_eq!(deadline.remaining(at(10_100)), Duration::ZERO);
        assert!(deadline.remaining(at(9_700)) > Duration::ZERO);
        // A different origin of the clock changes nothing.
        let shifted = Timing::default().deadline(at(500_000), s(10));
        assert_eq!(shifted.remaining(at(501_000)), deadline.remaining(at(1_000)));
    }

    #[test]
    fn w6_the_network_is_in_no_safety_rule_but_the_operation_must_fit() {
        let near = TimingNumbers { net: ms(1), ..numbers(s(10)) };
        let far = TimingNumbers { net: ms(900), ..near };
        assert_eq!(Timing(near).usable_ttl(), Timing(far).usable_ttl());
        let long = Bounds { max_op: s(9), ..Bounds::default() };
        assert!(matches!(near.checked(&long), Err(BrokenTiming::WorkTooLong { .. })));
    }

    #[test]
    fn w7_a_third_of_the_ttl_leaves_one_try_and_one_retry_and_retrying_leaves_more() {
        let third = timing(s(10));
        assert_eq!(third.attempts_without_retries(), 2);
        assert_eq!(third.attempts_with_retries(), 8);
        let half = Timing(TimingNumbers { renew_every: s(5), ..numbers(s(10)) });
        assert_eq!(half.attempts_without_retries(), 1);
        // A third is the largest cadence with two attempts, not the smallest.
        let larger = Timing(TimingNumbers { renew_every: ms(4_900), ..numbers(s(10)) });
        assert_eq!(larger.attempts_without_retries(), 1);
    }

    #[test]
    fn w8_other_cadences_are_judged_by_the_inequality_and_not_by_folklore() {
        for (ttl, renew_every) in [(s(15), s(2)), (s(15), ms(7_500)), (s(60), s(30))] {
            let numbers = TimingNumbers { renew_every, ..numbers(ttl) };
            assert!(numbers.checked(&Bounds::default()).is_ok(), "{ttl:?} every {renew_every:?}");
        }
    }

    #[test]
    fn w9_renewing_at_a_third_instead_of_a_half_costs_more() {
        let half = Timing(TimingNumbers { renew_every: s(5), ..numbers(s(10)) });
        assert_eq!(half.renewals_per_minute(), 12);
        assert_eq!(timing(s(10)).renewals_per_minute(), 18);
    }

    #[test]
    fn gaps_are_what_the_timeline_adds_up_to() {
        let timing = timing(s(10));
        assert_eq!(timing.crash_gap_worst(ms(6)), ms(10_000 + 50 + 18));
        assert_eq!(timing.planned_gap(ms(6)), ms(56));
        assert!((timing.usable_share() - 0.9795).abs() < 1e-9);
    }

    #[test]
    fn the_shortest_ttl_fits_and_one_millisecond_less_does_not() {
        for net in [1, 50, 300] {
            let bounds = Bounds { ttl_min: ms(1), ..Bounds::default() };
            let shortest = TimingNumbers::shortest(ms(net), &bounds).unwrap().ttl();
            let shorter = TimingNumbers { net: ms(net), ..numbers(shortest - ms(1)) };
            assert_ne!(shorter.broken(&bounds), []);
        }
        assert_eq!(TimingNumbers::shortest(ms(1), &Bounds::default()).unwrap().ttl(), ms(500));
        assert_eq!(TimingNumbers::shortest(s(3600), &Bounds::default()), None);
    }

    #[test]
    fn jitter_spreads_ten_per_cent_either_way() {
        let timing = timing(s(30));
        assert_eq!(timing.renew_after(0), s(9));
        assert_eq!(timing.renew_after(u32::MAX), s(11));
    }

    #[test]
    fn two_seconds_with_a_sigma_of_0_3_second_by_second() {
        let numbers = TimingNumbers { sigma: ms(300), ..numbers(s(2)) };
        let timing = numbers.checked(&Bounds::default()).unwrap();
        let granted = timing.deadline(at(0), s(2));
        assert_eq!(granted.remaining(at(500)), ms(1_199));
        let renewed = timing.deadline(at(667), s(2));
        assert!(renewed.remaining(at(2_300)) > Duration::ZERO, "renewed, so valid past the first deadline");
        assert_eq!(renewed.remaining(at(667 + 1_699)), Duration::ZERO);
        assert_eq!(renewed.remaining(at(667 + 2_000)), Duration::ZERO, "over before the store may end it");
    }

    #[test]
    fn without_sigma_an_operation_outlives_the_lease() {
        let (store_ends, begun, operation) = (s(2), ms(1_999), ms(5));
        let careless = Timing(TimingNumbers { sigma: Duration::ZERO, rho_ppm: 0, ..numbers(s(2)) });
        assert!(careless.deadline(at(0), s(2)).remaining(at(1_999)) > Duration::ZERO, "it still believes");
        assert!(begun + operation > store_ends, "and acts when the next one may have been granted");
        let careful = Timing(TimingNumbers { sigma: ms(300), ..careless.numbers() });
        assert_eq!(careful.deadline(at(0), s(2)).remaining(at(1_999)), Duration::ZERO);
        assert!(careless.numbers().checked(&Bounds { pause: Duration::ZERO, ..Bounds::default() }).is_err());
    }

    #[test]
    fn absurd_numbers_are_refused_and_never_overflow() {
        let absurd = TimingNumbers {
            ttl: Duration::MAX,
            renew_every: Duration::MAX,
            rho_ppm: u32::MAX,
            net: Duration::MAX,
            sigma: Duration::MAX,
        };
        assert!(!absurd.broken(&Bounds::default()).is_empty());
    }
}
