//! Too much work costs nobody a session (`healthy_holder_keeps`), and no work costs nothing.

use std::io::{BufReader, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure_e2e::{Http, Node, Renewer, alone, scale};

const HOLDERS: usize = 50;
/// Connections of the flood, and requests that each has on its way: far more than a node on two cores
/// can answer as they come.
const FLOODERS: usize = 64;
const IN_FLIGHT: usize = 64;

/// A flood of acquires, many times what the node can do, while holders renew as usual.
#[test]
fn a_flood_of_acquires_costs_nobody_a_session() {
    let _turn = alone();
    let mut node = Node::start("flood");
    let mut http = node.http();
    let ttl = Duration::from_secs(3);
    let renewers: Vec<Renewer> = (0..HOLDERS)
        .map(|number| {
            let body = json!({"holder": format!("holder-{number}"), "ttl_ms": ttl.as_millis() as u64});
            let grant = http.post(&format!("/v1/leases/kept/{number}:acquire"), &body).expect(200);
            let session = grant["session"].as_str().expect("an id").to_string();
            Renewer::start(node.address(), vec![session], ttl / 3)
        })
        .collect();

    let over = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let overloaded = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for flooder in 0..FLOODERS {
            let (over, answered, overloaded) = (&over, &answered, &overloaded);
            let address = node.address();
            scope.spawn(move || flood(address, flooder, over, answered, overloaded));
        }
        std::thread::sleep(Duration::from_secs(scale().flood_seconds));
        over.store(true, Ordering::Relaxed);
    });

    // Checked while the renewers still run: a stopped one is no healthy holder.
    for number in 0..HOLDERS {
        let lease = http.get(&format!("/v1/leases/kept/{number}")).expect(200);
        assert_eq!((&lease["state"], &lease["generation"]), (&json!("held"), &json!(1)), "{lease}");
    }
    let reports: Vec<_> = renewers.into_iter().map(Renewer::stop).collect();
    let gap = reports.iter().map(|report| report.longest_gap).max().unwrap_or_default();
    println!(
        "{} answers, {} of them overloaded; the longest gap between two renewals {gap:?}",
        answered.load(Ordering::Relaxed),
        overloaded.load(Ordering::Relaxed)
    );
    for report in reports {
        assert!(report.lost.is_empty(), "a session was lost in the flood: {report:?}");
        assert!(report.renewed > 0, "nothing of a holder was received at all: {report:?}");
    }
    assert!(answered.load(Ordering::Relaxed) > 0, "the flood was not served at all");
    assert!(node.is_alive());
}

/// Sends blocks of acquires without waiting for any answer in between, and counts what comes back.
fn flood(
    address: SocketAddr,
    flooder: usize,
    over: &AtomicBool,
    answered: &AtomicU64,
    overloaded: &AtomicU64,
) {
    let caller = Http::new(address).with_limit(Duration::from_secs(5));
    let mut number = 0_u64;
    while !over.load(Ordering::Relaxed) {
        let Ok(mut connection) = caller.connect() else { continue };
        let mut requests = Vec::new();
        for round in 0..IN_FLIGHT {
            number += 1;
            let body = json!({"holder": "flood", "ttl_ms": 1_000}).to_string();
            let head = format!(
                "POST /v1/leases/flood/{flooder}/{}:acquire HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n",
                number % 1_000,
                body.len()
            );
            let last = if round + 1 == IN_FLIGHT { "Connection: close\r\n" } else { "" };
            requests.extend(format!("{head}{last}\r\n{body}").bytes());
        }
        // A server in need may hang up; the next connection goes on.
        if connection.write_all(&requests).is_err() || connection.shutdown(std::net::Shutdown::Write).is_err()
        {
            continue;
        }
        let mut answers = Vec::new();
        let _ = BufReader::new(connection).read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers);
        answered.fetch_add(answers.matches("HTTP/1.1 ").count() as u64, Ordering::Relaxed);
        overloaded.fetch_add(answers.matches("HTTP/1.1 429").count() as u64, Ordering::Relaxed);
    }
}

/// With no session alive nothing is written; with ten idle ones a node sleeps nearly all the time.
#[test]
fn an_idle_node_writes_nothing_and_ten_sessions_cost_little() {
    let _turn = alone();
    let node = Node::start("quiet");
    let data = |node: &Node| {
        let files = node.scratch().listing();
        files.into_iter().filter(|(path, ..)| path.starts_with(node.data_path())).collect::<Vec<_>>()
    };
    // What the start itself left to do may still be under way; from then on nothing changes.
    let mut before = data(&node);
    tenure_e2e::until("the node has come to rest", Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_millis(500));
        let now = data(&node);
        let same = now == before;
        before = now;
        same
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(before, data(&node), "an idle node wrote to its data directory");

    let mut http = node.http();
    let ttl = Duration::from_secs(10);
    let sessions: Vec<String> = (0..10)
        .map(|number| {
            let body = json!({"holder": format!("idle-{number}"), "ttl_ms": ttl.as_millis() as u64});
            http.post("/v1/sessions", &body).expect(200)["session"].as_str().expect("an id").to_string()
        })
        .collect();
    let renewers: Vec<Renewer> =
        sessions.into_iter().map(|session| Renewer::start(node.address(), vec![session], ttl / 3)).collect();
    let window = Duration::from_secs(if scale().full { 60 } else { 10 });
    let before = node.processor_time();
    std::thread::sleep(window);
    let used = node.processor_time() - before;
    println!("ten idle sessions: {used:?} of processor time in {window:?}");
    for renewer in renewers {
        assert!(renewer.stop().lost.is_empty());
    }
    let share = if scale().full { 100 } else { 20 };
    assert!(used < window / share, "ten idle sessions used {used:?} of processor time in {window:?}");
}
