//! Three nodes: what a cluster acknowledged survives the loss of any one of them (`acknowledged_is_kept`,
//! `tokens_rise`), time that a cluster could not count is not counted against holders (`healthy_holder_keeps`), and
//! it comes into being exactly once.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_e2e::{Cluster, Http, Renewer, Workers, alone, alongside, assert_kept, scale, until, until_some};

/// How long a call may take before another node is asked.
const CALL_WITHIN: Duration = Duration::from_secs(1);

/// How long a cluster may be without service when its leader dies. The measure is that of the full run; a machine
/// that compiles at the same time is given more.
fn failover_max() -> Duration {
    if scale().full { Duration::from_millis(1_500) } else { Duration::from_secs(5) }
}

fn acquire(http: &mut Http, resource: &str, body: &Value) -> Option<Value> {
    let reply = http.call("POST", &format!("/v1/leases/{resource}:acquire"), Some(body)).ok()?;
    (reply.status == 200).then(|| reply.json())
}

fn open(http: &mut Http, holder: &str, ttl: Duration) -> String {
    let body = json!({"holder": holder, "ttl_ms": ttl.as_millis() as u64});
    http.post("/v1/sessions", &body).expect(200)["session"].as_str().expect("an id").to_string()
}

/// `kill -9` of the leader under load, again and again: what was acknowledged is there, tokens only rise, and the
/// others serve soon.
#[test]
fn a_killed_leader_takes_nothing_with_it() {
    let _turn = alone();
    let mut cluster = Cluster::start("killed", 3);
    let rounds = if scale().full { 20 } else { 5 };
    let ttl = Duration::from_secs(3);
    // Holders who renew wherever somebody answers.
    let renewers: Vec<Renewer> = (0..3)
        .map(|number| {
            let session = open(&mut cluster.node(1).http(), &format!("holder-{number}"), ttl);
            acquire(&mut cluster.node(1).http(), &format!("kept/{number}"), &json!({ "session": session }))
                .expect("nobody else wants it");
            Renewer::start_at(&cluster.addresses_from(number), vec![session], ttl / 6)
        })
        .collect();
    let workers = Workers::start((0..3).map(|name| cluster.addresses_from(name)).collect());
    let mut gaps = Vec::new();
    for round in 0..rounds {
        let leader = cluster.leader();
        let survivors = cluster.others(leader);
        let killed = Instant::now();
        cluster.node_mut(leader).kill();
        let mut callers: Vec<Http> =
            survivors.iter().map(|number| cluster.node(*number).http().with_limit(CALL_WITHIN)).collect();
        let body = json!({"holder": "prober", "ttl_ms": 60_000});
        let mut attempt = 0;
        until("the survivors serve", Duration::from_secs(30), || {
            attempt += 1;
            let resource = format!("probe/{round}/{attempt}");
            acquire(&mut callers[attempt % 2], &resource, &body).is_some()
        });
        gaps.push(killed.elapsed());
        cluster.node_mut(leader).restart();
    }
    let (promised, _) = workers.stop();
    let leader = cluster.leader();
    let mut http = cluster.node(cluster.others(leader)[0]).http();
    assert_kept(&mut http, &promised);
    for number in 0..3 {
        let lease = http.get(&format!("/v1/leases/kept/{number}")).expect(200);
        assert_eq!((&lease["state"], &lease["generation"]), (&json!("held"), &json!(1)), "{lease}");
    }
    for renewer in renewers {
        let report = renewer.stop();
        assert!(report.lost.is_empty(), "a holder that renewed lost its session: {report:?}");
    }
    let many = promised.len();
    assert!(many > 10 * rounds, "only {many} grants: the load was not felt");
    println!("{rounds} leaders killed, {many} grants kept; served again after {gaps:?}");
    let longest = gaps.iter().max().expect("at least one round");
    assert!(*longest < failover_max(), "without service for {longest:?}");
}

/// What was left of a silent lease is what is left of it under the next leader: no more, and no less.
#[test]
fn a_silent_lease_keeps_what_was_left_of_it() {
    let _turn = alone();
    let mut cluster = Cluster::start("silent", 3);
    let (ttl, killed_after) = if scale().full { (20, 15) } else { (6, 4) };
    let (ttl, killed_after) = (Duration::from_secs(ttl), Duration::from_secs(killed_after));
    let leader = cluster.leader();
    let mut http = cluster.node(leader).http();
    let sent = Instant::now();
    let body = json!({"holder": "silent", "ttl_ms": ttl.as_millis() as u64});
    acquire(&mut http, "silent/lease", &body).expect("nobody else wants it");
    std::thread::sleep(killed_after.saturating_sub(sent.elapsed()));
    cluster.node_mut(leader).kill();
    let mut http = cluster.node(cluster.others(leader)[0]).http().with_limit(CALL_WITHIN);
    until("the lease is free", ttl + Duration::from_secs(30), || {
        let reply = http.call("GET", "/v1/leases/silent/lease", None);
        reply.is_ok_and(|reply| reply.status == 200 && reply.json()["state"] == "free")
    });
    let took = sent.elapsed();
    println!("a lease of {ttl:?}, its leader killed after {killed_after:?}: free after {took:?}");
    // A clock may differ by 500 parts in a million.
    assert!(took >= ttl.mul_f64(0.9995), "ended early, after {took:?}");
    // Had the TTL begun again with the new leader it would have taken this much more.
    assert!(took < ttl + killed_after, "the new leader began the TTL again: {took:?}");
}

/// Who is stopped.
#[derive(Clone, Copy, Debug)]
enum Stopped {
    Leader,
    OneFollower,
    /// The quorum is lost: no time passes meanwhile.
    BothFollowers,
}

/// Nodes stop for many TTLs and go on as if nothing had happened: no holder that kept trying has lost.
#[test]
fn stopped_nodes_expire_nobody() {
    let _turn = alone();
    for stopped in [Stopped::Leader, Stopped::OneFollower, Stopped::BothFollowers] {
        stopped_expires_nobody(stopped);
    }
}

fn stopped_expires_nobody(stopped: Stopped) {
    let cluster = Cluster::start("stopped", 3);
    let leader = cluster.leader();
    let ttl = Duration::from_secs(if scale().full { 5 } else { 2 });
    let stopped_for = if scale().full { Duration::from_secs(60) } else { 2 * ttl };
    let body = json!({"holder": "healthy", "ttl_ms": ttl.as_millis() as u64});
    let renewers: Vec<Renewer> = (0..6)
        .map(|number| {
            let mut http = cluster.node(leader).http();
            let grant = acquire(&mut http, &format!("stopped/{number}"), &body).expect("it is free");
            let session = grant["session"].as_str().expect("an id").to_string();
            Renewer::start_at(&cluster.addresses_from(number), vec![session], ttl / 10)
        })
        .collect();
    let followers = cluster.others(leader);
    let nodes = match stopped {
        Stopped::Leader => vec![leader],
        Stopped::OneFollower => vec![followers[0]],
        Stopped::BothFollowers => followers,
    };
    for node in &nodes {
        cluster.node(*node).pause();
    }
    std::thread::sleep(stopped_for);
    for node in &nodes {
        cluster.node(*node).resume();
    }
    let leader = cluster.leader();
    // One more TTL: whoever was going to be expired by the pause would be by then.
    std::thread::sleep(ttl + ttl / 4);
    let mut http = cluster.node(leader).http();
    for number in 0..6 {
        let lease = http.get(&format!("/v1/leases/stopped/{number}")).expect(200);
        let kept = (&lease["state"], &lease["generation"]) == (&json!("held"), &json!(1));
        assert!(kept, "{stopped:?} stopped for {stopped_for:?}: {lease}");
    }
    let reports: Vec<_> = renewers.into_iter().map(Renewer::stop).collect();
    for report in &reports {
        assert!(report.lost.is_empty(), "{stopped:?}: a healthy holder lost its lease: {report:?}");
    }
    let felt: u64 = reports.iter().map(|report| report.unanswered).sum();
    println!("{stopped:?} stopped for {stopped_for:?}: {felt} renewals unanswered, no lease lost");
    assert!(felt > 0, "{stopped:?}: it was not felt");
}

/// Every node has the same state at the same index, whichever of them was asked to change it.
#[test]
fn all_nodes_hash_alike() {
    let _turn = alongside();
    let mut cluster = Cluster::start("alike", 3);
    for number in 1..=3 {
        let mut http = cluster.node(number).http();
        let session = open(&mut http, &format!("at-{number}"), Duration::from_secs(60));
        for step in 0..20 {
            let resource = format!("alike/{number}/{step}");
            acquire(&mut http, &resource, &json!({ "session": session })).expect("nobody else wants it");
            http.put(&format!("/v1/registers/{resource}"), &json!({"value": "x"})).expect(200);
        }
        // A follower that was away for a while has to catch up before it can be compared.
        if number == 1 {
            let follower = cluster.others(cluster.leader())[0];
            cluster.node_mut(follower).kill();
            cluster.node_mut(follower).restart();
        }
        // Without a session no deadline is pending, and an idle cluster writes nothing.
        let mut http = cluster.node(number).http();
        http.own(&session, "DELETE", "/v1/session", None).expect(200);
    }
    let hashed = |number: usize| {
        let status = cluster.node(number).http().get("/v1/cluster?state_hash=true").expect(200);
        let hash = status["state_hash"].as_str().map(str::to_owned);
        Some((status["applied"].as_u64()?, hash?))
    };
    let (applied, _) = until_some("all nodes have applied the same", Duration::from_secs(30), || {
        let all: Option<Vec<_>> = (1..=3).map(hashed).collect();
        let all = all?;
        // Only states of one index can be compared; there they must be equal.
        if all.iter().any(|(applied, _)| *applied != all[0].0) {
            return None;
        }
        assert!(all.iter().all(|(_, hash)| *hash == all[0].1), "the states differ: {all:?}");
        Some(all[0].clone())
    });
    assert!(applied > 60, "all of it was applied, not {applied}");
}

/// A voter that lost its data comes back under its old flags. It is one of the only two that know of a grant, and the
/// third would follow it anywhere: but it is told that it forgot what it promised, and how to come back, and nobody
/// counts its vote.
#[test]
fn a_wiped_node_is_turned_away() {
    let _turn = alone();
    let mut cluster = Cluster::start("wiped", 3);
    let leader = cluster.leader();
    let (wiped, late) = (cluster.others(leader)[0], cluster.others(leader)[1]);
    let body = json!({"holder": "h", "ttl_ms": 3_600_000});
    cluster.node(late).pause();
    let grant = acquire(&mut cluster.node(leader).http(), "wiped/lease", &body).expect("two of three agree");
    cluster.node(leader).pause();
    cluster.node_mut(wiped).kill();
    std::fs::remove_dir_all(cluster.node(wiped).data_path()).expect("data can be removed");
    cluster.node(late).resume();
    cluster.node_mut(wiped).spawn();
    cluster.wait_ended(wiped);
    let log = cluster.node(wiped).log();
    assert!(log.contains("has forgotten what it promised"), "{log}");
    assert!(log.contains("a number that was never used"), "it says what to do: {log}");
    // Alone the third is no quorum: it grants nothing, least of all what is another's.
    let other = json!({"holder": "other", "ttl_ms": 3_600_000});
    let mut http = cluster.node(late).http().with_limit(CALL_WITHIN);
    assert_eq!(acquire(&mut http, "wiped/lease", &other), None, "the promise was forgotten");

    cluster.node(leader).resume();
    cluster.leader_among(&[leader, late]);
    for number in [leader, late] {
        let lease = cluster.node(number).http().get("/v1/leases/wiped/lease").expect(200);
        assert_eq!((&lease["token"], &lease["holder"]), (&grant["token"], &json!("h")), "{lease}");
    }
    acquire(&mut cluster.node(late).http(), "wiped/another", &body).expect("two of three are a quorum");
}

/// Whoever is started first, and however long the others take: one cluster, with everybody in it.
#[test]
fn every_order_of_first_starts_forms_one_cluster() {
    let _turn = alongside();
    let orders = [[1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 3, 2]];
    for (round, order) in orders.iter().enumerate() {
        let mut cluster = Cluster::prepare("formed", 3);
        for number in order {
            cluster.node_mut(*number).spawn();
            if round % 2 == 1 {
                // Slowly: each is up and looking for the others before the next one comes.
                let address = cluster.node(*number).address();
                until("the node listens", Duration::from_secs(30), || Http::new(address).connect().is_ok());
            }
        }
        cluster.wait_ready();
        let leader = cluster.leader();
        let status = |number: usize| cluster.node(number).http().get("/v1/cluster").expect(200);
        let first = status(1);
        assert_eq!(first["nodes"].as_array().map(Vec::len), Some(3), "{order:?}: {first}");
        for number in 2..=3 {
            let other = status(number);
            assert_eq!(other["cluster"], first["cluster"], "{order:?}: two clusters");
            assert_eq!(other["leader"].as_u64(), Some(leader as u64), "{order:?}: {other}");
        }
    }
}

/// Any node takes renewals. One that has to pass them on costs the cluster at most twice as much, because it passes
/// on many at once.
#[test]
fn renewals_through_a_follower_cost_little_more() {
    let _turn = alone();
    let cluster = Cluster::start("passed-on", 3);
    let leader = cluster.leader();
    let follower = cluster.others(leader)[0];
    let many = 1_000;
    let mut http = cluster.node(leader).http();
    let sessions: Vec<String> =
        (0..many).map(|number| open(&mut http, &format!("h{number}"), Duration::from_secs(600))).collect();
    let mut number = 0;
    let mut cost = |node: usize, rounds: usize| {
        let used = || -> Duration { (1..=3).map(|number| cluster.node(number).processor_time()).sum() };
        let mut http = cluster.node(node).http();
        let (before, started) = (used(), Instant::now());
        for _ in 0..rounds {
            number += 1;
            let renewals: Vec<Value> =
                sessions.iter().map(|session| json!({"session": session, "number": number})).collect();
            let answered = http.post("/v1/sessions:renew", &json!({ "renewals": renewals })).expect(200);
            let answers = answered["answers"].as_array().expect("a list of answers");
            assert!(answers.iter().all(|answer| answer["error"].is_null()), "all of them live");
        }
        (used() - before, started.elapsed())
    };
    let rounds = if scale().full { 500 } else { 50 };
    cost(leader, 5);
    cost(follower, 5);
    let ((led, led_in), (passed, passed_in)) = (cost(leader, rounds), cost(follower, rounds));
    let ratio = passed.as_secs_f64() / led.as_secs_f64();
    println!(
        "{} renewals: {led:?} of processor time in {led_in:?} at the leader, {passed:?} in {passed_in:?} at a follower: \
         {ratio:.2} times as much",
        rounds * many
    );
    // Ticks of a hundredth of a second are too coarse for the light run.
    assert!(!scale().full || ratio <= 2.0, "{ratio:.2} times as much");
}
