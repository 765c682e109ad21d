use super::*;
use expect_test::expect;

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn usual(ttl: Duration) -> Timing {
    TimingNumbers::for_ttl(ttl).checked(&Bounds::default()).expect("they fit")
}

fn rendered(numbers: TimingNumbers, load: Load) -> String {
    let timing = numbers.checked(&Bounds::default()).expect("they fit");
    // Without the tables, which are the same everywhere.
    let text = plan(&timing, &Bounds::default(), &load, Form::Plain);
    text.split("\n\n").take(2).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_usual_numbers() {
    expect![[r#"
        TTL 10s, R 3.33s, rho 500 ppm, net 50ms, sigma 200ms
        good: both inequalities and the floor hold

        usable          9.79s of the TTL (98.0 %); 205ms are given up: sigma, and 5ms for clocks
        crash gap       at worst 10.1s until the next holder is granted
        planned gap     56ms: one commit and one message
        renewals        18 a minute; one after another they would take 108ms of commits, batched they ride in entries that are written anyway
        attempts        8 before the deadline, because an unanswered one is repeated after 833ms; 2 if it were not

             TTL  CRASH GAP                            RENEWALS/MIN                            USABLE
           500ms      568ms  ▇                                  360  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇  80.0 %
              1s      1.07s  ▇                                  180  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇         90.0 %
              2s      2.07s  ▇▇                                  90  ▇▇▇▇▇▇▇▇▇▇▇▇              95.0 %
              3s      3.07s  ▇▇                                  60  ▇▇▇▇▇▇▇▇▇▇                96.6 %
              5s      5.07s  ▇▇▇                                 36  ▇▇▇▇▇▇▇▇                  98.0 %
        *    10s      10.1s  ▇▇▇▇                                18  ▇▇▇▇▇                     98.0 %
             15s      15.1s  ▇▇▇▇▇                               12  ▇▇▇▇                      98.0 %
             30s      30.1s  ▇▇▇▇▇▇▇▇                             6  ▇▇▇                       98.0 %
             60s      60.1s  ▇▇▇▇▇▇▇▇▇▇▇                          3  ▇▇                        98.0 %
              5m         5m  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇             1  ▇                         98.0 %

        R      EVERY  RENEWALS/MIN  ATTEMPTS  WITHOUT RETRIES
        TTL/2     5s            12         4                1
        TTL/3  3.33s            18         8                2
        TTL/4   2.5s            24        12                3
    "#]].assert_eq(&plan(
        &usual(s(10)),
        &Bounds::default(),
        &Load::default(),
        Form::Terminal(Paint::new(false)),
    ));
}

#[test]
fn w1_a_one_second_lease_and_a_hundred_of_them() {
    expect![[r#"
        TTL 1s, R 333ms, rho 500 ppm, net 50ms, sigma 100ms
        good: both inequalities and the floor hold
        usable          900ms of the TTL (90.0 %); 100ms are given up: sigma, and 500us for clocks
        crash gap       at worst 1.07s until the next holder is granted
        planned gap     56ms: one commit and one message
        renewals        180 a minute; one after another they would take 1.08s of commits, batched they ride in entries that are written anyway
        attempts        7 before the deadline, because an unanswered one is repeated after 83.3ms; 2 if it were not"#]].assert_eq(&rendered(TimingNumbers::for_ttl(s(1)), Load::default()));
    let hundred = Load { sessions: 100, ..Load::default() };
    assert!(rendered(TimingNumbers::for_ttl(s(1)), hundred).contains("18,000 a minute of 100 sessions"));
}

#[test]
fn w2_thirty_seconds_renewed_every_ten() {
    let text = rendered(TimingNumbers::for_ttl(s(30)), Load::default());
    assert!(text.contains("6 a minute; one after another they would take 36ms"), "{text}");
}

#[test]
fn w5_the_guard_period() {
    let fiction = TimingNumbers { rho_ppm: 200_000, sigma: s(1), ..TimingNumbers::for_ttl(s(30)) };
    let text = rendered(fiction, Load::default());
    assert!(text.contains("23s of the TTL (76.7 %); 7s are given up: sigma, and 6s for clocks"), "{text}");
    let quartz = rendered(TimingNumbers { rho_ppm: 200, ..fiction }, Load::default());
    assert!(quartz.contains("1.01s are given up: sigma, and 6ms for clocks"), "{quartz}");
}

#[test]
fn what_is_broken_is_said_with_what_would_be_enough() {
    let bounds = Bounds { max_op: s(1), ..Bounds::default() };
    let late = TimingNumbers { renew_every: s(9), sigma: millis(50), ..TimingNumbers::for_ttl(s(10)) };
    expect![[r#"
        TTL 10s, R 9s, rho 500 ppm, net 50ms, sigma 50ms
        broken: sigma does not cover the scheduling bound: sigma >= pause does not hold, 50ms is below 100ms; raise sigma, or lower the bound if this process never stands still that long
          enough would be: --sigma 100ms or longer
        broken: one lost renewal would end the lease: R + detect + reconnect + retry < ttl - sigma - rho*ttl does not hold, 9s + 2.25s + 100ms + 50ms is not below 9.945s; renew more often or lengthen the TTL
          enough would be: --renew-every 7835ms or shorter; or --ttl 11456ms or longer
        broken: a healthy lease could not cover the longest operation: R + net + max_op <= ttl - sigma - rho*ttl does not hold, 9s + 50ms + 1s is above 9.945s; lengthen the TTL, renew more often or split the operation
          enough would be: operations of at most 895ms (--max-op); or --renew-every 8895ms or shorter; or --ttl 10106ms or longer
        these fit: TTL 10s, R 3.33s, rho 500 ppm, net 50ms, sigma 200ms"#]].assert_eq(&broken(&late, &bounds, Form::Plain));
    let hopeless = Bounds { pause: s(4_000), ..bounds };
    assert!(broken(&late, &hopeless, Form::Plain).contains("needs fences"));
}

#[test]
fn a_probe_is_shown_with_what_follows() {
    let spread = |median, longest| Spread {
        count: 400,
        median: Duration::from_micros(median),
        p99: Duration::from_micros(longest / 2),
        p999: Duration::from_micros(longest),
        longest: Duration::from_micros(longest),
    };
    let measured =
        Measured { round_trip: spread(310, 2_100), renewal: spread(3_050, 12_400), gap: spread(61, 8_000) };
    let advice = Advice::on(&measured, &Bounds::default());
    let form = Form::Terminal(Paint::new(false));
    expect![[r#"
        MEASURED       COUNT  MEDIAN     P99   P99.9  LONGEST
        round trip       400   310us  1.05ms   2.1ms    2.1ms
        renewal          400  3.05ms   6.2ms  12.4ms   12.4ms
        woken late by    400    61us     4ms     8ms      8ms

        recommended: TTL 10s, R 3.33s, sigma 200ms (net 25ms, pause 16ms: twice the longest seen)
        the shortest TTL that fits: 500ms; with fences on every write it is a matter of liveness alone
    "#]]
    .assert_eq(&probed(&measured, advice.as_ref(), form));
    let json = probed_json(&measured, advice.as_ref());
    assert_eq!(
        (json["advice"]["ttl_ms"].as_f64(), json["measured"]["commit_ms"].as_f64()),
        (Some(10_000.0), Some(2.74))
    );
}

#[test]
fn json_has_the_plan_and_the_curve() {
    let json = plan_json(&usual(s(10)), &Bounds::default(), &Load::default());
    assert_eq!(json["plan"]["renewals_per_minute"], 18);
    assert_eq!(json["plan"]["usable_ms"], 9_795.0);
    assert_eq!(json["trade_off"].as_array().map(Vec::len), Some(10));
    let late = TimingNumbers { renew_every: s(9), ..TimingNumbers::for_ttl(s(10)) };
    let json = broken_json(&late, &Bounds::default());
    assert_eq!((&json["holds"], &json["mended"]["ttl_ms"]), (&json!(false), &json!(10_000.0)));
}

#[test]
fn lengths_are_short() {
    for (length, text) in
        [(0, "0ms"), (1_500, "1.5ms"), (3_333_333, "3.33s"), (9_796_000, "9.8s"), (600_000_000, "10m")]
    {
        assert_eq!(span(Duration::from_micros(length)), text);
    }
    assert_eq!(grouped(1_234_567), "1,234,567");
}
