//! A lease ends when its time is over: not before, not much later (`no_lingering_lease`), however many end
//! at once.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Http, Node, alone, percentile, scale, until};

/// Counted from before the silent holder's call was sent until its successor was notified of the grant: more
/// than what the server was late.
#[test]
fn a_single_expiry_is_prompt_and_never_early() {
    let _turn = alone();
    let node = Node::start("prompt");
    let ttl = Duration::from_millis(600);
    let mut late: Vec<Duration> = Vec::new();
    let mut http = node.http();
    let body = json!({"holder": "successor", "ttl_ms": 3_600_000});
    let session = http.post("/v1/sessions", &body).expect(200)["session"].clone();
    for round in 0..scale().expiries {
        let path = format!("/v1/leases/prompt/{round}:acquire");
        let sent = Instant::now();
        http.post(&path, &json!({"holder": "silent", "ttl_ms": ttl.as_millis() as u64})).expect(200);
        let answered = Instant::now();
        let grant = http.post(&path, &json!({"session": session, "wait_ms": 10_000})).expect(200);
        assert_eq!(grant["generation"], 2);
        // The server counted from after `sent`, and our clocks are the same.
        assert!(sent.elapsed() >= ttl - Duration::from_millis(1), "ended early, after {:?}", sent.elapsed());
        late.push(sent.elapsed().saturating_sub(ttl));
        println!("round {round}: late by {:?} (grant took {:?})", late[round], answered - sent);
    }
    let median = percentile(&mut late, 0.5);
    let worst = percentile(&mut late, 1.0);
    println!("single expiry: median {median:?}, worst {worst:?}");
    // On a machine that does nothing else the full measure holds; beside other tests only a stall would show.
    let slack = if scale().full { 1 } else { 10 };
    assert!(median < slack * Duration::from_millis(25), "median {median:?}");
    assert!(worst < slack * Duration::from_millis(75), "worst {worst:?}");
}

const THREADS: usize = 8;

/// Opens its share of the sessions, renewing those it has so that none ends before all are there.
fn open_share(http: &mut Http, thread: usize, count: usize, ttl: Duration) -> Vec<Value> {
    let mut sessions = Vec::new();
    let mut renewed = Instant::now();
    for number in (0..count).filter(|number| number % THREADS == thread) {
        let body = json!({"holder": format!("h{number}"), "ttl_ms": ttl.as_millis() as u64});
        let grant = http.post(&format!("/v1/leases/mass/{number}:acquire"), &body).expect(200);
        sessions.push(grant["session"].clone());
        if renewed.elapsed() > ttl / 4 {
            renew(http, &sessions);
            renewed = Instant::now();
        }
    }
    sessions
}

fn renew(http: &mut Http, sessions: &[Value]) {
    for batch in sessions.chunks(1_000) {
        let renewals: Vec<Value> = batch.iter().map(|session| json!({ "session": session })).collect();
        let body = http.post("/v1/sessions:renew", &json!({ "renewals": renewals })).expect(200);
        let answers = body["answers"].as_array().expect("a list of answers");
        assert!(answers.iter().all(|answer| answer["error"].is_null()), "a session ended too early");
    }
}

/// Thousands of leases with one deadline end within a second of it, and nobody else notices.
#[test]
fn a_mass_expiry_is_prompt_and_disturbs_nobody() {
    let _turn = alone();
    let node = Node::start("mass");
    let address = node.address();
    let count = scale().mass_expiry;
    let ttl = Duration::from_secs(if scale().full { 30 } else { 10 });

    let shares: Vec<Vec<Value>> = std::thread::scope(|scope| {
        let openers: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || open_share(&mut Http::new(address), thread, count, ttl)))
            .collect();
        openers.into_iter().map(|opener| opener.join().expect("opening does not panic")).collect()
    });
    // One deadline for all, as nearly as renewals sent at the same moment can make it.
    std::thread::scope(|scope| {
        for share in &shares {
            scope.spawn(|| renew(&mut Http::new(address), share));
        }
    });
    let deadline = Instant::now() + ttl;

    let over = AtomicBool::new(false);
    let (last_gone, mut probes) = std::thread::scope(|scope| {
        let prober = scope.spawn(|| probe(address, deadline - Duration::from_secs(1), &over));
        std::thread::sleep((deadline - Duration::from_millis(200)).saturating_duration_since(Instant::now()));
        let mut http = node.http();
        until("the last of all leases is gone", Duration::from_secs(60), || {
            // The records are gone too, not only hidden; what is left are the prober's own.
            let sessions = http.get("/v1/cluster").expect(200)["sessions"].as_u64().expect("a count");
            let listed = http.get("/v1/leases?prefix=mass/&limit=1").expect(200);
            sessions < 300 && listed["leases"].as_array().expect("a list of leases").is_empty()
        });
        let last_gone = Instant::now();
        over.store(true, Ordering::Relaxed);
        (last_gone, prober.join().expect("probing does not panic"))
    });

    let late = last_gone.saturating_duration_since(deadline);
    let p99 = percentile(&mut probes, 0.99);
    println!("{count} expiries: the last {late:?} after its TTL; {} probes, p99 {p99:?}", probes.len());
    let slack = if scale().full { 1 } else { 10 };
    assert!(late < slack * Duration::from_secs(1), "the last of {count} leases was gone {late:?} late");
    assert!(p99 < slack * Duration::from_millis(100), "p99 of the others' acquires: {p99:?}");
    let last = shares[0].last().expect("a share is not empty").as_str().expect("an id").to_string();
    let renewed = node.http().own(&last, "POST", "/v1/session:renew", None);
    assert_eq!(renewed.code(), "unknown_session");
}

/// Callers who take turns, so that a slow answer does not keep the next call from being made when it is due.
const PROBERS: usize = 32;
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// Acquires something else every 10 ms from `start` until told that it is over; how long each took, counted
/// from when it was due.
fn probe(address: SocketAddr, start: Instant, over: &AtomicBool) -> Vec<Duration> {
    let prober = |first: usize| {
        let mut http = Http::new(address);
        let mut took = Vec::new();
        for number in (first..).step_by(PROBERS) {
            let due = start + PROBE_EVERY * number as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if over.load(Ordering::Relaxed) {
                break;
            }
            let body = json!({"holder": "probe", "ttl_ms": 1000});
            http.post(&format!("/v1/leases/probe/{number}:acquire"), &body).expect(200);
            took.push(due.elapsed());
        }
        took
    };
    std::thread::scope(|scope| {
        let probers: Vec<_> = (0..PROBERS).map(|first| scope.spawn(move || prober(first))).collect();
        probers.into_iter().flat_map(|prober| prober.join().expect("probing does not panic")).collect()
    })
}
