//! A server that could not receive from its holders does not count time against them (`healthy_holder_keeps`).

use std::time::Duration;

use serde_json::json;
use tenure_e2e::{Http, Node, Renewer, Stall, alone, scale, skipped_without};

/// Opens `count` sessions with one lease each, over a few connections.
fn open(node: &Node, prefix: &str, count: usize, ttl: Duration) -> Vec<String> {
    let threads = 8;
    let address = node.address();
    std::thread::scope(|scope| {
        let openers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut http = Http::new(address);
                    let mine = (0..count).filter(|number| number % threads == thread);
                    mine.map(|number| {
                        let body = json!({"holder": format!("h{number}"), "ttl_ms": ttl.as_millis() as u64});
                        let grant =
                            http.post(&format!("/v1/leases/{prefix}/{number}:acquire"), &body).expect(200);
                        grant["session"].as_str().expect("an id").to_string()
                    })
                    .collect::<Vec<_>>()
                })
            })
            .collect();
        openers.into_iter().flat_map(|opener| opener.join().expect("opening does not panic")).collect()
    })
}

/// Stopped for three TTLs while its holders keep trying, the node wakes up to no expiry at all.
#[test]
fn a_stopped_server_expires_nobody_when_it_wakes() {
    let _turn = alone();
    let node = Node::start("stopped");
    let ttl = Duration::from_secs(if scale().full { 5 } else { 2 });
    let sessions = open(&node, "stopped", 20, ttl);
    let renewers: Vec<Renewer> = sessions
        .iter()
        .map(|session| Renewer::start(node.address(), vec![session.clone()], ttl / 4))
        .collect();
    node.pause();
    std::thread::sleep(3 * ttl);
    node.resume();
    // Two more TTLs: whoever was going to be expired by the pause would be by then.
    std::thread::sleep(2 * ttl);
    // Checked while the renewers still run: a stopped one is no healthy holder.
    let mut http = node.http();
    for number in 0..20 {
        let lease = http.get(&format!("/v1/leases/stopped/{number}")).expect(200);
        assert_eq!((&lease["state"], &lease["generation"]), (&json!("held"), &json!(1)), "{lease}");
    }
    for renewer in renewers {
        let report = renewer.stop();
        assert!(report.lost.is_empty(), "a healthy holder lost its lease: {report:?}");
        assert!(report.unanswered > 0, "the pause was not felt: {report:?}");
    }
}

/// A sync that hangs for longer than the TTL, with all renewals queued behind it, expires nobody.
#[test]
fn a_stalled_disk_expires_nobody() {
    if skipped_without("strace", "a_stalled_disk_expires_nobody") {
        return;
    }
    let _turn = alone();
    let node = Node::start("stalled");
    let ttl = Duration::from_secs(3);
    let count = scale().stalled_renewals;
    // Opened in portions that are renewed from then on, so that the stall finds them all alive.
    let portion = (count / 100).max(250);
    let renewers: Vec<Renewer> = (0..count.div_ceil(portion))
        .map(|number| {
            let sessions = open(&node, &format!("stalled/{number}"), portion, ttl);
            Renewer::start(node.address(), sessions, ttl / 3)
        })
        .collect();
    let stall = Stall::start(&node, Duration::from_secs(5));
    stall.wait_until_felt(Duration::from_secs(20));
    drop(stall);
    std::thread::sleep(2 * ttl);
    // Checked while the renewers still run: a stopped one is no healthy holder.
    let listed = node.http().get("/v1/leases?prefix=stalled/&limit=1").expect(200);
    assert_eq!(listed["leases"].as_array().map(Vec::len), Some(1), "{listed}");
    let reports: Vec<_> = renewers.into_iter().map(Renewer::stop).collect();
    let lost: usize = reports.iter().map(|report| report.lost.len()).sum();
    assert_eq!(lost, 0, "sessions lost to a stalled disk");
    assert!(reports.iter().any(|report| report.longest_gap > ttl), "the stall was not felt: {reports:?}");
}
