use alloc::format;
use alloc::string::{String, ToString};

use super::*;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn numbers(ttl: Duration) -> TimingNumbers {
    TimingNumbers::for_ttl(ttl)
}

fn timing(numbers: TimingNumbers) -> Timing {
    numbers.checked(&Bounds::default()).expect("they fit")
}

fn spread(median: Duration, longest: Duration) -> Spread {
    Spread { count: 1_000, median, p99: longest, p999: longest, longest }
}

#[test]
fn w1_w2_w35_the_load_figures_as_they_really_come_out() {
    let per_minute = |ttl, renew_every, sessions| {
        let load = Load { sessions, ..Load::default() };
        timing(TimingNumbers { renew_every, ..numbers(ttl) }).consequences(&load)
    };
    let one_second = per_minute(s(1), s(1) / 3, 1);
    assert_eq!(one_second.renewals_per_minute, 180, "not 18,000");
    assert_eq!(per_minute(s(1), s(1) / 3, 100).renewals_per_minute, 18_000, "which takes a hundred leases");
    let thirty = per_minute(s(30), s(10), 1);
    assert_eq!((thirty.renewals_per_minute, thirty.committing_per_minute), (6, ms(36)), "not 3 and 18 ms");
    assert_eq!(per_minute(s(5), s(5) / 3, 1_000).renewals_per_minute / 60, 600);
    assert_eq!(
        per_minute(s(10), s(10) / 3, 10_000).renewals_per_minute / 60,
        3_000,
        "at 10 s, which was not said"
    );
}

#[test]
fn w5_the_guard_period_of_the_articles_and_the_real_one() {
    let bounds = Bounds::default();
    let fiction = TimingNumbers { rho_ppm: 200_000, sigma: s(1), ..numbers(s(30)) };
    let found = fiction.checked(&bounds).expect("it fits").consequences(&Load::default());
    assert_eq!((found.drift, found.guard, found.usable), (s(6), s(7), s(23)));
    let quartz = TimingNumbers { rho_ppm: 200, ..fiction };
    let found = quartz.checked(&bounds).expect("it fits").consequences(&Load::default());
    assert_eq!((found.drift, found.guard), (ms(6), ms(1_006)), "a thousandth of it");
}

#[test]
fn w7_w9_a_shorter_cadence_costs_more_and_retries_buy_more_than_any_cadence() {
    let load = Load::default();
    let of = |cadence: &Timing| {
        let found = cadence.consequences(&load);
        (found.renewals_per_minute, found.attempts_without_retries, found.attempts_with_retries)
    };
    let ten = timing(numbers(s(10)));
    let found: Vec<_> = ten.cadences(&Bounds::default()).iter().map(of).collect();
    assert_eq!(found, [(12, 1, 4), (18, 2, 8), (24, 3, 12)]);
    assert!(found[0].2 > found[2].1, "a half with retries has more attempts than a quarter without");
}

#[test]
fn every_change_that_is_advised_mends_and_one_millisecond_less_does_not() {
    let base = numbers(s(10));
    let bounds = Bounds::default();
    let cases = [
        (TimingNumbers { sigma: s(10), ..base }, bounds),
        (TimingNumbers { sigma: ms(20), ..base }, bounds),
        (TimingNumbers { ttl: ms(300), renew_every: ms(50), ..base }, bounds),
        (TimingNumbers { ttl: s(7_200), ..base }, bounds),
        (TimingNumbers { net: s(5), ..base }, bounds),
        (TimingNumbers { renew_every: s(0), ..base }, bounds),
        (TimingNumbers { renew_every: s(9), ..base }, bounds),
        (base, Bounds { max_op: s(8), ..bounds }),
    ];
    let step = ms(1);
    for (numbers, bounds) in cases {
        for broken in numbers.broken(&bounds) {
            let same =
                |other: &BrokenTiming| core::mem::discriminant(other) == core::mem::discriminant(&broken);
            let holds = |numbers: TimingNumbers, bounds: Bounds| !numbers.broken(&bounds).iter().any(same);
            let changes = numbers.changes(&broken, &bounds);
            assert_ne!(changes, [], "nothing is advised against: {broken}");
            for change in changes {
                let with = |ttl| TimingNumbers { ttl, ..numbers };
                let (mended, missed) = match change {
                    Change::TtlAtLeast(ttl) => (holds(with(ttl), bounds), holds(with(ttl - step), bounds)),
                    Change::TtlAtMost(ttl) => (holds(with(ttl), bounds), holds(with(ttl + step), bounds)),
                    Change::RenewAtMostEvery(every) => {
                        let with = |renew_every| TimingNumbers { renew_every, ..numbers };
                        // Where R is zero, a third of the TTL is only a proposal.
                        let missed = !numbers.renew_every.is_zero() && holds(with(every + step), bounds);
                        (holds(with(every), bounds), missed)
                    }
                    Change::SigmaAtLeast(sigma) => {
                        let with = |sigma| TimingNumbers { sigma, ..numbers };
                        (holds(with(sigma), bounds), holds(with(sigma - step), bounds))
                    }
                    Change::SigmaAtMost(sigma) => {
                        let with = |sigma| TimingNumbers { sigma, ..numbers };
                        (holds(with(sigma), bounds), holds(with(sigma + step), bounds))
                    }
                    Change::OperationAtMost(max_op) => {
                        let with = |max_op| Bounds { max_op, ..bounds };
                        (holds(numbers, with(max_op)), holds(numbers, with(max_op + step)))
                    }
                };
                assert!(mended && !missed, "{change:?} against: {broken}");
            }
        }
    }
}

#[test]
fn what_is_mended_fits_and_keeps_the_ttl_where_it_can() {
    let bounds = Bounds::default();
    let late = TimingNumbers { renew_every: s(9), ..numbers(s(10)) };
    assert_eq!(late.mended(&bounds).map(|timing| timing.numbers()), Some(numbers(s(10))));
    let short = TimingNumbers { net: s(2), ..numbers(s(1)) };
    let mended = short.mended(&bounds).expect("something fits");
    assert_eq!(mended, TimingNumbers::shortest(s(2), &bounds).expect("something fits"));
    assert_eq!(short.mended(&Bounds { pause: s(4_000), ..bounds }), None);
}

#[test]
fn a_spread_is_reported_by_rank() {
    let samples: Vec<Duration> = (1..=2_000).rev().map(Duration::from_micros).collect();
    let us = Duration::from_micros;
    let found = Spread::of(&samples).expect("there are samples");
    let expected =
        Spread { count: 2_000, median: us(1_000), p99: us(1_980), p999: us(1_998), longest: us(2_000) };
    assert_eq!(found, expected);
    let one = Spread::of(&[us(7)]).expect("there is one");
    assert_eq!((one.median, one.p999), (us(7), us(7)));
    assert_eq!(Spread::of(&[]), None);
}

#[test]
fn advice_fits_what_was_measured_with_room_to_spare() {
    let given = Bounds::default();
    let near = Measured {
        round_trip: spread(Duration::from_micros(300), ms(2)),
        renewal: spread(ms(3), ms(12)),
        gap: spread(Duration::from_micros(60), ms(8)),
    };
    let advice = Advice::on(&near, &given).expect("something fits");
    assert_eq!((advice.timing.ttl(), advice.timing.numbers().sigma), (s(10), ms(200)));
    assert_eq!(near.commit(), Duration::from_micros(2_700));
    assert_eq!((near.net(), advice.bounds.pause), (ms(24), ms(16)));
    assert_eq!(advice.shortest.ttl(), given.ttl_min);

    // Another continent and a process that stands still for a second and a half.
    let far = Measured {
        round_trip: spread(ms(180), ms(310)),
        renewal: spread(ms(200), ms(420)),
        gap: spread(ms(1), ms(1_500)),
    };
    let advice = Advice::on(&far, &given).expect("something fits");
    assert!(advice.shortest.ttl() >= 2 * (far.net() + advice.bounds.pause));
    assert!(advice.timing.ttl() >= Advice::ROOM * advice.shortest.ttl());
    assert!(advice.timing.numbers().sigma >= advice.bounds.pause);

    let hopeless = Measured { gap: spread(s(1), s(3_600)), ..far };
    assert_eq!(Advice::on(&hopeless, &given), None);
}

#[test]
fn the_curve_rises_on_one_side_and_falls_on_the_other() {
    let bounds = Bounds::default();
    let load = Load::default();
    let curve = timing(numbers(s(10))).trade_off(&bounds);
    let found: Vec<Consequences> = curve.iter().map(|point| point.consequences(&load)).collect();
    assert!(found.windows(2).all(|pair| pair[0].crash_gap_worst < pair[1].crash_gap_worst));
    assert!(found.windows(2).all(|pair| pair[0].renewals_per_minute >= pair[1].renewals_per_minute));
    let rows: Vec<String> = curve.iter().map(|point| format!("{:?}", point.ttl())).collect();
    assert_eq!(rows.join(" "), "500ms 1s 2s 3s 5s 10s 15s 30s 60s 300s".to_string());
    let between = timing(numbers(s(7))).trade_off(&bounds);
    assert!(between.iter().any(|point| point.ttl() == s(7)));
}
