//! The host agent: it coalesces and never vouches, and nobody needs it. Stopped clients are not renewed, dead ones end at
//! once, and an agent that stops or dies costs nobody a lease (`healthy_holder_keeps`, `no_lingering_lease`).

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_client::{Client, Endpoint, Endpoints, Lease};
use tenure_e2e::{Node, Part, Scratch, alone, alongside, given, playing, say, scale, tenure_binary, until};

/// Only how long a broken build takes to say so.
const SOON: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// One `tenure agent`. It is killed when dropped.
struct Agent {
    child: Child,
    socket: PathBuf,
    reports: Receiver<serde_json::Value>,
    _scratch: Scratch,
}

impl Agent {
    fn start(name: &str, node: &Node) -> Agent {
        let scratch = Scratch::new(name);
        let socket = scratch.path().join("agent.sock");
        let mut child = Command::new(tenure_binary())
            .args(["agent", "--json", "--report-every", "100ms", "--tick", "20ms", "--endpoints"])
            .arg(node.endpoint())
            .arg("--socket")
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the agent can be started");
        let lines = BufReader::new(child.stdout.take().expect("its output is ours")).lines();
        let (tell, reports) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let report: serde_json::Value = serde_json::from_str(&line).expect("one object per line");
                if tell.send(report).is_err() {
                    return;
                }
            }
        });
        let greeting = reports.recv_timeout(SOON).expect("the agent says where it listens");
        assert!(greeting["socket"].is_string(), "{greeting}");
        Agent { child, socket, reports, _scratch: scratch }
    }

    /// The nodes, through this agent.
    fn endpoints(&self, node: &Node) -> Endpoints {
        let nodes: Endpoints = node.endpoint().parse().expect("an endpoint");
        nodes.through(Endpoint::agent(&self.socket))
    }

    /// The next report that was made after this call.
    fn report(&self) -> serde_json::Value {
        while self.reports.try_recv().is_ok() {}
        self.reports.recv_timeout(SOON).expect("the agent reports")
    }

    fn count(&self, name: &str) -> u64 {
        self.report()[name].as_u64().expect("a count")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a child can be signalled");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Resident bytes and processor time so far.
    fn cost(&self) -> (u64, Duration) {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let (_, fields) = text.rsplit_once(')').expect("the name is in parentheses");
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |index: usize| fields[index].parse::<u64>().expect("a number");
        (number(21) * 4096, Duration::from_millis((number(11) + number(12)) * 10))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The part that the tests below start in processes of their own; by itself it does nothing.
#[test]
fn part() {
    if playing().is_some() {
        run(holder());
    }
}

/// Holds a lease until it is killed.
async fn holder() {
    let endpoints: Endpoints = given("ENDPOINTS").parse().expect("endpoints");
    let ttl = Duration::from_millis(given("TTL_MS").parse().expect("milliseconds"));
    let session = Client::connect(&endpoints).session().ttl(ttl).open().await.expect("opened");
    let lease = session.acquire("r").await.expect("granted");
    say(format_args!("held {}", lease.permit().expect("held").token()));
    std::future::pending::<()>().await;
}

fn start_holder(agent: &Agent, node: &Node, ttl: Duration) -> (Part, u64) {
    let settings =
        [("ENDPOINTS", agent.endpoints(node).to_string()), ("TTL_MS", ttl.as_millis().to_string())];
    let holder = Part::start("holder", &settings);
    let token = holder.hear("held", SOON).parse().expect("a token");
    (holder, token)
}

/// Waits until the lease has been renewed after this call, and gives its token.
fn renewed(lease: &Lease, ttl: Duration) -> u64 {
    let asked = Instant::now();
    let mut token = 0;
    until("the lease is renewed", SOON, || {
        let Ok(permit) = lease.permit() else { return false };
        token = permit.token().get();
        // More is left than there can be of a renewal that was sent before.
        permit.time_left() + asked.elapsed() > ttl
    });
    token
}

/// Many sessions of several processes' worth of clients ride in one message per tick, and every one of them is kept.
#[test]
fn many_sessions_ride_in_one_message_per_tick() {
    let _turn = alone();
    let sessions = if scale().full { 10_000 } else { 500 };
    let ttl = if scale().full { Duration::from_secs(10) } else { Duration::from_secs(3) };
    let node = Node::start("agent-many");
    let agent = Agent::start("agent-many", &node);
    let clients: Vec<Client> = (0..5).map(|_| Client::connect(&agent.endpoints(&node))).collect();
    run(async {
        let mut open = Vec::new();
        for number in 0..sessions {
            let client = &clients[number % clients.len()];
            open.push(client.session().ttl(ttl).open().await.expect("opened"));
        }
        until("all are renewed through the agent", SOON, || agent.count("sessions") == sessions as u64);
        let (before, began) = (agent.report(), Instant::now());
        let (_, cpu_before) = agent.cost();
        let rounds = if scale().full { 10 } else { 3 };
        let enough = before["renewals"].as_u64().expect("a count") + sessions as u64 * rounds;
        until("everybody has renewed several times", SOON, || agent.count("renewals") >= enough);
        let (after, elapsed) = (agent.report(), began.elapsed());
        let passed =
            |name: &str| after[name].as_u64().expect("a count") - before[name].as_u64().expect("a count");
        let ticks = elapsed.as_millis() as u64 / TICK.as_millis() as u64 + 2;
        assert!(passed("messages") <= ticks, "{} messages in {ticks} ticks", passed("messages"));
        assert_eq!(passed("failed"), 0, "the node answered every message");
        for session in &open {
            assert!(!session.remaining().is_zero(), "every session is kept");
        }
        let (bytes, cpu) = agent.cost();
        println!(
            "{sessions} sessions: {} renewals in {} messages over {elapsed:?} ({ticks} ticks); the agent uses {} bytes and {:?} of processor time a second for each",
            passed("renewals"),
            passed("messages"),
            bytes / sessions as u64,
            (cpu - cpu_before).div_f64(elapsed.as_secs_f64() * sessions as f64),
        );
        // Closed by being dropped; the agent sees nobody die.
        drop(open);
    });
    assert_eq!(agent.count("died"), 0);
}

/// The agent never vouches: a stopped client's lease goes to the next in line although the agent lives.
#[test]
fn a_stopped_client_is_not_renewed() {
    let _turn = alongside();
    let ttl = Duration::from_secs(2);
    let node = Node::start("agent-stopped");
    let agent = Agent::start("agent-stopped", &node);
    let (holder, token) = start_holder(&agent, &node, ttl);
    until("it renews through the agent", SOON, || agent.count("renewals") >= 2);
    holder.pause();
    run(async {
        let session = Client::connect(&agent.endpoints(&node)).session().open().await.expect("opened");
        let lease = session.acquire("r").wait_for(SOON).await.expect("granted when the silent one has ended");
        assert!(lease.permit().expect("held").token().get() > token);
    });
    assert_eq!(agent.count("died"), 0, "a stopped process is not a dead one");
}

/// Proof of death: a killed client costs milliseconds, not a TTL.
#[test]
fn a_killed_client_is_succeeded_at_once() {
    let _turn = alongside();
    let ttl = Duration::from_secs(300);
    let node = Node::start("agent-killed");
    let agent = Agent::start("agent-killed", &node);
    let (mut holder, token) = start_holder(&agent, &node, ttl);
    run(async {
        let session = Client::connect(&agent.endpoints(&node)).session().open().await.expect("opened");
        let killed = Instant::now();
        holder.kill();
        let lease = session.acquire("r").wait_for(SOON).await.expect("granted long before the TTL is over");
        println!("granted {:?} after the kill", killed.elapsed());
        assert!(lease.permit().expect("held").token().get() > token);
        if scale().full {
            assert!(killed.elapsed() < Duration::from_millis(500), "{:?}", killed.elapsed());
        }
    });
    let history = node.http().get("/v1/history/r").expect(200);
    assert_eq!(history["transitions"][0]["why"], "died", "{history}");
}

/// Stopped, killed, started again: clients go on over the network and come back, under the same token all the time.
#[test]
fn nobody_needs_the_agent() {
    let _turn = alongside();
    let ttl = Duration::from_secs(3);
    let node = Node::start("agent-gone");
    let mut agent = Agent::start("agent-gone", &node);
    let client = Client::connect(&agent.endpoints(&node));
    run(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let token = renewed(&lease, ttl);
        assert!(agent.count("renewals") > 0, "it goes through the agent");

        agent.signal(Signal::STOP);
        for _ in 0..3 {
            assert_eq!(renewed(&lease, ttl), token, "a stopped agent ends nothing");
        }
        agent.signal(Signal::CONT);
        let before = agent.count("renewals");
        until("the client comes back to the agent", SOON, || agent.count("renewals") > before + 1);
        assert_eq!(renewed(&lease, ttl), token);

        agent.kill();
        for _ in 0..3 {
            assert_eq!(renewed(&lease, ttl), token, "a killed agent ends nothing");
        }
        assert_eq!(
            lease.release().await.expect("released, over the network"),
            tenure_client::LeaseEnd::Released
        );
    });
}
