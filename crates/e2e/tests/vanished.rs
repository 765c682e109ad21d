//! Clients that vanish without a word while they wait: the node notices, stops renewing the session that it kept alive for
//! them, and the session ends by its TTL (`no_lingering_lease`, `waiters_move`).

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tenure_e2e::{
    Http, Lan, Node, NodeOptions, alone, alongside, find, scale, tenure_binary, until, until_some,
};

/// Of the sessions that wait.
const TTL: Duration = Duration::from_secs(3);
/// After so much silence a client counts as gone.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);
/// What a loaded machine may add.
const SLACK: Duration = Duration::from_secs(4);

/// Somebody holds the resource for longer than the test takes.
fn hold(http: &mut Http, resource: &str) {
    let body = json!({"holder": "first", "ttl_ms": 3_600_000});
    http.post(&format!("/v1/leases/{resource}:acquire"), &body).expect(200);
}

fn is_awaited(http: &mut Http, resource: &str) -> bool {
    let lease = http.get(&format!("/v1/leases/{resource}")).expect(200);
    lease["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty())
}

fn until_awaited(http: &mut Http, resource: &str) {
    until("a client waits", Duration::from_secs(10), || is_awaited(http, resource));
}

/// An acquire over HTTP/1 that opens a session of its own and waits.
fn wait_by_http(address: SocketAddr, resource: &str) -> TcpStream {
    let nonce = "5a".repeat(16);
    let body =
        json!({"holder": "http", "ttl_ms": TTL.as_millis() as u64, "wait_ms": 300_000, "nonce": nonce});
    Http::new(address).send("POST", &format!("/v1/leases/{resource}:acquire"), Some(&body))
}

/// The same over gRPC: `tenure acquire --wait` on a machine of the network. It is killed when dropped.
struct WaitingProcess(Child);

impl WaitingProcess {
    fn start(lan: &Lan, machine: usize, endpoint: &str, resource: &str) -> WaitingProcess {
        let mut command = Command::new(find("ip").expect("the test has asked whether ip is installed"));
        command.args(["netns", "exec", &lan.namespace(machine)]).arg(tenure_binary());
        command.args(["acquire", resource, "--wait", "5m", "--ttl", &format!("{}s", TTL.as_secs())]);
        command.env("TENURE_ENDPOINTS", endpoint).stdout(Stdio::null()).stderr(Stdio::null());
        WaitingProcess(command.spawn().expect("the tenure binary can be started"))
    }

    /// Stops it in its tracks: its machine still acknowledges packets, but nobody reads them.
    fn stop(&self) {
        kill_process(Pid::from_child(&self.0), Signal::STOP).expect("a child can be signalled");
    }
}

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three clients wait and vanish: two of them (HTTP/1 and gRPC) because nothing arrives from their machines any more, which
/// the kernel notices, and one (gRPC) because its process stands still, which only an unanswered ping shows.
///
/// Takes 20 s and more, because the measure is that long: `TENURE_TEST_FULL=1`. What of it can be seen at once is below.
#[test]
fn a_session_that_waits_ends_after_its_client_has_vanished() {
    let test = "a_session_that_waits_ends_after_its_client_has_vanished";
    if !scale().full || Lan::missing(test) {
        return;
    }
    let _turn = alone();
    let lan = Lan::new(2);
    let placed = Some((lan.namespace(1), SocketAddr::new(lan.address(1), 7400)));
    let options = NodeOptions { arguments: vec!["--insecure".into()], placed, ..NodeOptions::default() };
    let node = Node::start_with("vanished", options);
    let mut http = node.http();
    let resources = ["gone/http", "gone/grpc", "gone/stopped"];
    resources.iter().for_each(|resource| hold(&mut http, resource));
    let by_http = wait_by_http(node.address(), "gone/http");
    let by_grpc = WaitingProcess::start(&lan, 2, &node.endpoint(), "gone/grpc");
    // On the machine of the node, so that it is not cut off with the other.
    let stopped = WaitingProcess::start(&lan, 1, &node.endpoint(), "gone/stopped");
    resources.iter().for_each(|resource| until_awaited(&mut http, resource));

    let port = by_http.local_addr().expect("a connection has an address").port();
    let vanished = Instant::now();
    lan.drop_incoming(1, &format!("tcp sport {port}"));
    lan.deafen(1, &[2]);
    stopped.stop();

    let mut ended = [None; 3];
    until("no session that waits is left", NOTICED_WITHIN + TTL + SLACK, || {
        for (resource, ended) in resources.iter().zip(&mut ended) {
            if ended.is_none() && !is_awaited(&mut http, resource) {
                *ended = Some(vanished.elapsed());
                println!("{resource}: ended {ended:?} after its client vanished");
            }
        }
        ended.iter().all(Option::is_some)
    });
    // Otherwise nobody renewed it in the first place.
    assert!(ended.iter().flatten().all(|after| *after > TTL + SLACK), "{ended:?}");
    drop((by_http, by_grpc, stopped));
}

/// The short form of it: the kernel is told to ask a client that waits, after ten seconds of silence at the latest.
#[test]
fn the_kernel_watches_over_a_client_that_waits() {
    let _turn = alongside();
    let node = Node::start("watched");
    let mut http = node.http();
    hold(&mut http, "watched/http");
    let waiting = wait_by_http(node.address(), "watched/http");
    until_awaited(&mut http, "watched/http");
    let port = waiting.local_addr().expect("a connection has an address").port();
    let due = until_some("the kernel has a timer for the connection", Duration::from_secs(5), || {
        keep_alive_due(node.address().port(), port)
    });
    assert!(due <= Duration::from_secs(10), "the client is asked in {due:?}");
}

/// When the kernel will ask whether the other side of a connection is there: timer 2 of its line in `/proc/net/tcp`, in
/// hundredths of a second.
fn keep_alive_due(local: u16, remote: u16) -> Option<Duration> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel lists its connections");
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let port = |index: usize| u16::from_str_radix(fields.get(index)?.rsplit_once(':')?.1, 16).ok();
        if (port(1), port(2)) != (Some(local), Some(remote)) {
            return None;
        }
        let (timer, when) = fields.get(5)?.split_once(':')?;
        let when = u64::from_str_radix(when, 16).ok()?;
        (timer == "02").then(|| Duration::from_millis(when * 10))
    })
}
