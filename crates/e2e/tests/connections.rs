//! Crowds of connections: expiry and renewals go on when the leader's connection table is full, heads without bodies
//! cost little memory, and silent strangers at the peer port delay no failover (`no_lingering_lease`,
//! `healthy_holder_keeps`, `no_one_takes_us_down`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure_e2e::{Cluster, Http, Node, NodeOptions, Renewer, alone, percentile, scale, until};

/// Strangers that keep so many connections open at a node, and open another for each one that is closed.
struct Crowd {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

/// What strangers say before they fall silent.
type Said = &'static [&'static [u8]];
const HTTP: Said = &[
    b"",
    b"POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-le",
    b"POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
    // An HTTP/2 connection on which nothing is asked.
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

impl Crowd {
    fn gather(address: SocketAddr, many: usize, said: Said) -> Crowd {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), opened.clone());
        let thread = std::thread::spawn(move || {
            let mut crowd: Vec<Option<TcpStream>> = (0..many).map(|_| None).collect();
            while !stopped.load(Ordering::Relaxed) {
                for (number, place) in crowd.iter_mut().enumerate() {
                    if place.as_mut().is_some_and(is_open) {
                        continue;
                    }
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    *place = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok();
                    if let Some(stranger) = place {
                        let _ = stranger.write_all(said[number % said.len()]);
                        stranger.set_nonblocking(true).expect("a socket can be set");
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Crowd { stop, opened, thread }
    }

    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    fn disperse(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the crowd does not panic");
        self.opened.load(Ordering::Relaxed)
    }
}

/// Whether the other side has not hung up.
fn is_open(stranger: &mut TcpStream) -> bool {
    let mut buffer = [0; 256];
    loop {
        match stranger.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect(name))
}

/// The leader's table was full, its probe got no place, cluster time stood still, and no lease in the cluster ended.
///
/// `TENURE_TEST_FULL=1`, or `TENURE_TEST_TABLE=16384 TENURE_TEST_TABLE_SECONDS=60`, for the measure as stated.
#[test]
fn a_full_connection_table_stops_neither_expiry_nor_renewals() {
    const DEFAULT_TABLE: u64 = 16_384;
    const TTL: Duration = Duration::from_secs(2);
    const HOLDERS: usize = 200;
    const HOLDERS_TTL: Duration = Duration::from_secs(10);
    let _turn = alone();
    let full = scale().full;
    let table = from_environment("TENURE_TEST_TABLE").unwrap_or(if full { DEFAULT_TABLE } else { 300 });
    let seconds = from_environment("TENURE_TEST_TABLE_SECONDS").unwrap_or(if full { 60 } else { 8 });
    let arguments = match table < DEFAULT_TABLE {
        true => vec!["--connections-max".to_owned(), table.to_string()],
        false => Vec::new(),
    };
    let mut cluster = Cluster::start_with("table", 3, &arguments);
    let leader = cluster.leader();
    let follower = cluster.others(leader)[0];
    let address = cluster.node(leader).address();

    let mut http = cluster.node(leader).http();
    let sessions: Vec<String> = (0..HOLDERS)
        .map(|number| {
            let body = json!({"holder": format!("h{number}"), "ttl_ms": HOLDERS_TTL.as_millis() as u64});
            let grant = http.post(&format!("/v1/leases/kept/{number}:acquire"), &body).expect(200);
            grant["session"].as_str().expect("an id").to_owned()
        })
        .collect();
    let renewer = {
        let opened = http.post("/v1/sessions", &json!({"holder": "steady", "ttl_ms": 2_000})).expect(200);
        let session = opened["session"].as_str().expect("an id").to_owned();
        Renewer::start(address, vec![session], Duration::from_millis(300))
    };
    drop(http);

    // More than the table and its reserve.
    let crowd = Crowd::gather(address, table as usize + 100, HTTP);
    // Each holder renews at the leader alone, over a new connection each time.
    let stop = Arc::new(AtomicBool::new(false));
    let holders: Vec<JoinHandle<(u64, u64, usize)>> = sessions
        .chunks(HOLDERS / 4)
        .map(|sessions| {
            let (sessions, stop) = (sessions.to_vec(), stop.clone());
            std::thread::spawn(move || {
                let (mut renewed, mut unanswered, mut lost) = (0, 0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let round = Instant::now();
                    for session in &sessions {
                        let mut http = Http::new(address).with_limit(Duration::from_secs(1));
                        match http.call_as(session, "POST", "/v1/session:renew", Some(&json!({}))) {
                            Ok(reply) if reply.status == 200 => renewed += 1,
                            Ok(reply) if reply.status == 404 => lost += 1,
                            _ => unanswered += 1,
                        }
                    }
                    std::thread::sleep((HOLDERS_TTL / 10).saturating_sub(round.elapsed()));
                }
                (renewed, unanswered, lost)
            })
        })
        .collect();
    until("the table is full", Duration::from_secs(300), || crowd.opened() >= table);

    // Holders that die, one after the other; who waits is asked of a follower.
    let started = Instant::now();
    let mut late = Vec::new();
    let mut asked = cluster.node(follower).http();
    for number in 0.. {
        let path = format!("/v1/leases/dead/{number}:acquire");
        let ttl = TTL.as_millis() as u64;
        asked.post(&path, &json!({"holder": "dead", "ttl_ms": ttl})).expect(200);
        let held = Instant::now();
        let wait = json!({"holder": "next", "ttl_ms": ttl, "wait_ms": 20_000});
        asked.post(&path, &wait).expect(200);
        late.push(held.elapsed().saturating_sub(TTL));
        if started.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (mut renewed, mut unanswered, mut lost) = (0, 0, 0);
    for holder in holders {
        let (r, u, l) = holder.join().expect("a holder does not panic");
        (renewed, unanswered, lost) = (renewed + r, unanswered + u, lost + l);
    }
    let opened = crowd.disperse();
    let steady = renewer.stop();
    println!(
        "table of {table} full for {:?}: {} expiries, late by {:?} (median) {:?} (99th) {:?} (most); {HOLDERS} holders over \
         new connections: {renewed} renewals, {unanswered} without an answer, {lost} lost; steady holder: {} renewals, \
         longest gap {:?}; {opened} connections of the crowd",
        started.elapsed(),
        late.len(),
        percentile(&mut late, 0.5),
        percentile(&mut late, 0.99),
        percentile(&mut late, 1.0),
        steady.renewed,
        steady.longest_gap,
    );
    assert!(cluster.node_mut(leader).is_alive(), "the leader has died");
    assert_eq!(cluster.leader(), leader, "the leader was lost");
    assert_eq!(lost, 0, "a holder that renewed lost its session");
    assert!(
        renewed > 0 && steady.renewed > 0 && steady.lost.is_empty(),
        "renewals did not go on: {steady:?}"
    );
    let most = percentile(&mut late, 1.0);
    assert!(most < Duration::from_secs(3), "a dead holder's lease outlived its TTL by {most:?}");
    if full {
        assert!(most < Duration::from_millis(100), "a dead holder's lease outlived its TTL by {most:?}");
    }
    let mut http = cluster.node(leader).http();
    for number in 0..HOLDERS {
        let lease = http.get(&format!("/v1/leases/kept/{number}")).expect(200);
        assert_eq!((&lease["state"], &lease["generation"]), (&json!("held"), &json!(1)), "{lease}");
    }
}

/// A node whose descriptors were used up by connections exited when its log needed the next segment.
#[test]
fn a_full_connection_table_leaves_descriptors_for_the_log() {
    const FILES_MAX: u32 = 256;
    /// What is left of them for connections from this machine: 64 are for files.
    const PLACES: usize = 192;
    let _turn = alone();
    let options = NodeOptions { files_max: Some(FILES_MAX), ..NodeOptions::default() };
    let mut node = Node::start_with("descriptors", options);
    let mut http = node.http();
    http.post("/v1/leases/kept:acquire", &json!({"holder": "h", "ttl_ms": 3_600_000})).expect(200);
    let crowd = Crowd::gather(node.address(), FILES_MAX as usize + 50, HTTP);
    until("the table is full", Duration::from_secs(60), || node.open_files() >= PLACES);

    let files = |node: &Node, part: &str| -> Vec<_> {
        let listed = std::fs::read_dir(node.data_path().join(part)).into_iter().flatten().flatten();
        listed.map(|entry| entry.file_name()).collect()
    };
    let (segments, started) = (files(&node, "log"), Instant::now());
    // A segment has 8 MiB, and a snapshot is due after 64.
    let value = "x".repeat(60_000);
    let mut failed = 0;
    for number in 0..1_300 {
        let (path, body) = (format!("/v1/registers/bulk/{}", number % 50), json!({ "value": value }));
        // A connection may make room for another; it is opened again then.
        until("the node writes", Duration::from_secs(30), || {
            assert!(node.is_alive(), "the node has ended");
            let written = http.call("PUT", &path, Some(&body)).is_ok_and(|reply| reply.status == 200);
            failed += u64::from(!written);
            written
        });
    }
    until("the log has another segment", Duration::from_secs(30), || {
        files(&node, "log").iter().any(|file| !segments.contains(file))
    });
    until("there is a snapshot", Duration::from_secs(60), || !files(&node, "snapshots").is_empty());
    let open = node.open_files();
    let opened = crowd.disperse();
    println!(
        "{FILES_MAX} descriptors, {open} in use, {opened} connections of the crowd: written within {:?}, {failed} writes repeated",
        started.elapsed()
    );
    assert!(node.is_alive(), "the node has ended");
    until("the lease is there", Duration::from_secs(30), || {
        let lease = node.http().call("GET", "/v1/leases/kept", None);
        lease.is_ok_and(|lease| lease.json()["generation"] == 1 && lease.json()["state"] == "held")
    });
}

/// Sixty HTTP/2 connections with a thousand requests each, whose heads are a few bytes on the wire and kilobytes in
/// memory, and whose bodies never come, took 873 MiB.
#[test]
fn a_crowd_of_heads_costs_little_memory() {
    const GROWTH_MAX: u64 = 64 << 20;
    let _turn = alone();
    let mut node = Node::start("heads");
    let before = node.resident_bytes();
    let mut connections = Vec::new();
    for _ in 0..60 {
        let mut connection = node.http().connect().expect("the node accepts connections");
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for request in 0..1_000u32 {
            bytes.extend(head(1 + 2 * request, request == 0));
        }
        // What the node no longer takes it does not need to keep either.
        let _ = connection.write_all(&bytes);
        connections.push(connection);
    }
    // Every connection is read by now if one more request is answered, and the rest of the answers has been sent.
    let mut grown = 0;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        grown = grown.max(node.resident_bytes().saturating_sub(before));
        std::thread::sleep(Duration::from_millis(50));
    }
    node.http().get("/healthz").expect(200);
    println!("60 connections with 1,000 heads each: {} MiB more", grown >> 20);
    assert!(node.is_alive());
    assert!(grown < GROWTH_MAX, "{} MiB more", grown >> 20);
}

/// A HEADERS frame that opens a stream and does not end it: a POST with sixty fields of a hundred bytes. The first
/// request puts the field into the table of its connection, and all others name it with a byte.
fn head(stream: u32, first: bool) -> Vec<u8> {
    // :method POST, :scheme http, :path, and the content type of nothing in particular.
    let mut block = vec![0x83, 0x86, 0x04, 12];
    block.extend(b"/v1/sessions");
    block.extend([0x01, 9]);
    block.extend(b"localhost");
    let mut again = 50;
    if first {
        block.extend([0x40, 1, b'x', 100]);
        block.extend([b'v'; 100]);
        again -= 1;
    }
    block.extend(std::iter::repeat_n(0xbe, again));
    let length = (block.len() as u32).to_be_bytes();
    // The flag says that the head ends here, and not that the request does.
    let mut frame = vec![length[1], length[2], length[3], 0x01, 0x04];
    frame.extend(stream.to_be_bytes());
    frame.extend(block);
    frame
}

/// Silent strangers took all places of the peer port, members could not connect, and an election took ten seconds.
#[test]
fn strangers_at_the_peer_port_delay_no_failover() {
    /// Several times the places that there are.
    const STRANGERS: usize = 400;
    /// Usually half a second; five and more when members had to wait for places.
    const FAILOVER_MAX: Duration = Duration::from_secs(3);
    let _turn = alone();
    let mut cluster = Cluster::start("strangers", 3);
    let leader = cluster.leader();
    let others = cluster.others(leader);
    // After a restart members have no connections yet: the strangers are there before them.
    let crowds: Vec<Crowd> =
        others.iter().map(|node| Crowd::gather(cluster.peer_address(*node), STRANGERS, &[b""])).collect();
    for crowd in &crowds {
        until("the peer ports are full", Duration::from_secs(60), || crowd.opened() >= STRANGERS as u64);
    }
    cluster.node_mut(leader).kill();
    let killed = Instant::now();
    let next = cluster.leader_among(&others);
    let took = killed.elapsed();
    println!("failover with {STRANGERS} strangers at each peer port: {took:?}");
    assert_ne!(next, leader);
    assert!(took < FAILOVER_MAX, "the failover took {took:?}");
    for crowd in crowds {
        crowd.disperse();
    }
}
