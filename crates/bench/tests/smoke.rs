//! Every workload runs against one node for a moment and finds something. No speed is asserted: the machine
//! that runs the tests is busy with the tests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tenure_bench::{Plan, Progress, Report, TargetKind, Workload, run};
use tenure_server::{Config, Server};

/// A node in this process; gone when dropped.
struct Node {
    endpoint: String,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    _data: tempfile::TempDir,
}

impl Node {
    fn start() -> Node {
        let data = tempfile::tempdir().expect("a folder can be made");
        let config = Config::single(([127, 0, 0, 1], 0).into(), data.path().join("data"));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (tell, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime can be made");
            runtime.block_on(async move {
                let server = Server::start(config).await.expect("a node starts");
                tell.send(server.address().to_string()).expect("the test waits for it");
                let _ = server.run_until(async { drop(stopped.await) }).await;
            });
        });
        let endpoint = receiver.recv().expect("the node told where it is");
        until_it_leads(&endpoint);
        Node { endpoint, stop: Some(stop), thread: Some(thread), _data: data }
    }

    fn plan(&self, workload: Workload) -> Plan {
        Plan {
            clients: 4,
            connections: 2,
            sessions: 200,
            streams: 4,
            waiters: 3,
            rounds: 5,
            duration: Duration::from_millis(200),
            warm_up: Duration::from_millis(50),
            server_pids: vec![std::process::id()],
            ..Plan::new(TargetKind::Tenure, vec![self.endpoint.clone()], workload)
        }
    }

    fn run(&self, plan: &Plan) -> Report {
        run(plan, Progress::hidden()).unwrap_or_else(|error| panic!("{}: {error}", plan.workload))
    }
}

/// A node listens before it leads; `/readyz` says when both are true.
fn until_it_leads(endpoint: &str) {
    let asked = std::time::Instant::now();
    loop {
        let mut stream = TcpStream::connect(endpoint).expect("the node listens");
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the node reads");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        if answer.starts_with("HTTP/1.1 200") {
            return;
        }
        assert!(asked.elapsed() < Duration::from_secs(30), "the node does not lead: {answer}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn every_workload_finds_something() {
    let node = Node::start();
    for workload in [Workload::Cycles, Workload::Handover, Workload::HandoverFresh, Workload::Death] {
        let report = node.run(&node.plan(workload));
        assert!(report.operations > 0, "{report:?}");
        assert_eq!(report.errors, 0, "{report:?}");
        assert!(report.latency.p50_ms > 0.0, "{report:?}");
        assert!(report.latency.max_ms >= report.latency.p50_ms, "{report:?}");
    }
    let renewals = node.run(&node.plan(Workload::Renewals));
    assert!(renewals.operations >= 200, "{renewals:?}");
    assert!(renewals.figures.contains_key("memory_per_session_bytes"), "{renewals:?}");
    let received = node.run(&node.plan(Workload::Watchers));
    assert_eq!(received.operations, 4 * 5, "four watchers were notified of five grants: {received:?}");
}

#[test]
fn silence_ends_after_the_ttl_and_not_before() {
    let node = Node::start();
    let ttl = Some(Duration::from_millis(600));
    let crash = node.run(&Plan { ttl, rounds: 3, ..node.plan(Workload::Crash) });
    assert_eq!(crash.operations, 3, "{crash:?}");
    assert_eq!(crash.figures["granted_before_the_ttl"], 0.0, "{crash:?}");
    // A node of its own: what others left there would be counted too.
    let node = Node::start();
    let ttl = Some(Duration::from_secs(3));
    let expiry = node.run(&Plan { ttl, ..node.plan(Workload::Expiry) });
    assert_eq!(expiry.figures["held_shortly_before"], 200.0, "nobody expires early: {expiry:?}");
}

#[test]
fn an_open_loop_keeps_to_its_rate() {
    let node = Node::start();
    let plan = Plan { rate: Some(100.0), ..node.plan(Workload::Cycles) };
    let report = node.run(&plan);
    assert!(report.operations <= 21, "a hundred a second for a fifth of a second: {report:?}");
}

#[test]
fn what_cannot_be_is_said() {
    let node = Node::start();
    let error = run(&node.plan(Workload::LeaderKilled), Progress::hidden()).expect_err("nobody was named");
    assert!(error.to_string().contains("--leader-pid"), "{error}");
    let nowhere = Plan::new(TargetKind::Redis, vec!["127.0.0.1:1".into()], Workload::Cycles);
    assert!(run(&nowhere, Progress::hidden()).expect_err("nobody listens").unreachable);
}
