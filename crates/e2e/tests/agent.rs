//! The host agent: it coalesces and never vouches, and nobody needs it. Stopped clients are not renewed, dead ones end at
//! once, and an agent that stops or dies costs nobody a lease (`healthy_holder_keeps`, `no_lingering_lease`).

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure_client::{Client, EndReason, Endpoint, Endpoints, LeaseEnd, LeaseState, Session};
use tenure_e2e::{
    Node, Part, SOON, Scratch, alone, alongside, block_on, given, playing, renewed, run_tenure, say, scale,
    tenure_binary, until,
};

const TICK: Duration = Duration::from_millis(20);

/// Opens under way at once: enough for batches, and fewer than a stream takes.
const OPENED_AT_ONCE: usize = 100;

/// What a process costs.
struct Cost {
    resident: u64,
    processor: Duration,
    over: Duration,
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

    /// What it costs over so long from now on.
    fn cost_over(&self, over: Duration) -> Cost {
        let (began, (_, before)) = (Instant::now(), self.resident_and_processor());
        std::thread::sleep(over);
        let (resident, after) = self.resident_and_processor();
        Cost { resident, processor: after - before, over: began.elapsed() }
    }

    /// Resident bytes and processor time so far.
    fn resident_and_processor(&self) -> (u64, Duration) {
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
        block_on(holder());
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
    let token = holder.receive("held", SOON).parse().expect("a token");
    (holder, token)
}

/// Opens so many sessions, some at a time and as many over each client.
async fn open_all(clients: &[Client], sessions: usize, ttl: Duration) -> Vec<Session> {
    let mut open = Vec::with_capacity(sessions);
    while open.len() < sessions {
        let opening: Vec<_> = (open.len()..sessions.min(open.len() + OPENED_AT_ONCE))
            .map(|number| tokio::spawn(clients[number % clients.len()].session().ttl(ttl).open()))
            .collect();
        for opened in opening {
            open.push(opened.await.expect("no panic").expect("opened"));
        }
    }
    open
}

/// Many sessions of several clients ride in one message per tick, and every one of them is kept; but not that of a process which
/// has been stopped among them. Says what a session costs the agent, and what the agent costs without any.
#[test]
fn many_sessions_ride_in_one_message_per_tick() {
    let _turn = alone();
    let full = scale().full;
    let sessions = if full { 10_000 } else { 500 };
    let ttl = Duration::from_secs(if full { 10 } else { 3 });
    let (idle_for, busy_for) = if full {
        (Duration::from_secs(20), Duration::from_secs(60))
    } else {
        (Duration::from_millis(200), ttl + Duration::from_secs(1))
    };
    let node = Node::start("agent-many");
    let agent = Agent::start("agent-many", &node);
    let idle = agent.cost_over(idle_for);
    // As many as it takes for their messages, passed on one by one, to be more than there are ticks.
    let clients: Vec<Client> =
        (0..if full { 5 } else { 100 }).map(|_| Client::connect(&agent.endpoints(&node))).collect();
    block_on(async {
        let open = open_all(&clients, sessions, ttl).await;
        let (stopped, _) = start_holder(&agent, &node, ttl);
        let all = sessions as u64 + 1;
        until("all are renewed through the agent", SOON, || agent.count("sessions") == all);
        stopped.pause();
        let (before, began) = (agent.report(), Instant::now());
        let busy = agent.cost_over(busy_for);
        let (after, elapsed) = (agent.report(), began.elapsed());
        let passed =
            |name: &str| after[name].as_u64().expect("a count") - before[name].as_u64().expect("a count");
        let ticks = elapsed.as_millis() as u64 / TICK.as_millis() as u64 + 2;
        assert!(passed("messages") <= ticks, "{} messages in {ticks} ticks", passed("messages"));
        assert!(passed("renewals") >= sessions as u64, "{} renewals", passed("renewals"));
        assert_eq!(passed("failed"), 0, "the node answered every message");
        for session in &open {
            assert!(!session.remaining().is_zero(), "every session is kept");
        }
        until("the stopped one is succeeded by nobody, and held by nobody", SOON, || {
            node.http().get("/v1/leases/r").expect(200)["state"] == "free"
        });
        let each = |with: f64, without: f64| (with - without) / sessions as f64;
        let seconds = |cost: &Cost| cost.processor.as_secs_f64() / cost.over.as_secs_f64();
        println!(
            "{sessions} sessions, TTL {ttl:?}: {} renewals in {} messages over {elapsed:.1?} ({ticks} ticks). The agent: {} KiB and {:.2} % of a \
             core, without sessions {} KiB and {:.2} %; a session costs {:.0} bytes and {:.2} µs of processor time a second",
            passed("renewals"),
            passed("messages"),
            busy.resident / 1024,
            100.0 * seconds(&busy),
            idle.resident / 1024,
            100.0 * seconds(&idle),
            each(busy.resident as f64, idle.resident as f64),
            1e6 * each(seconds(&busy), seconds(&idle)),
        );
        // Closed by being dropped: nobody has died.
        drop(open);
        assert_eq!(agent.count("died"), 0);
    });
}

/// What the store says of its own accord passes through the agent at once: nobody waits for the next renewal to be notified of an end.
#[test]
fn an_end_arrives_through_the_agent_before_the_next_renewal() {
    let _turn = alongside();
    // The next renewal is minutes away.
    let ttl = Duration::from_secs(1_800);
    let node = Node::start("agent-push");
    let agent = Agent::start("agent-push", &node);
    block_on(async {
        let session =
            Client::connect(&agent.endpoints(&node)).session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let noticed = session.acquire("s").await.expect("granted");
        let renewals = agent.count("renewals");
        let revoke = |arguments: &[&str]| {
            let said = run_tenure(&node.endpoint(), &[&["revoke", "--reason", "a test"], arguments].concat());
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        };
        revoke(&["r", "--now"]);
        revoke(&["s"]);
        until("the end is heard", SOON, || {
            matches!(lease.status().state, LeaseState::Ended(LeaseEnd::Lost { .. }))
        });
        until("the notice is heard", SOON, || noticed.status().notice == Some(EndReason::Revoked));
        assert_eq!(agent.count("renewals"), renewals, "it did not come with a renewal");
    });
}

/// The agent never vouches: a stopped client's lease goes to the next in the queue although the agent lives.
#[test]
fn a_stopped_client_is_not_renewed() {
    let _turn = alongside();
    let ttl = Duration::from_secs(2);
    let node = Node::start("agent-stopped");
    let agent = Agent::start("agent-stopped", &node);
    let (holder, token) = start_holder(&agent, &node, ttl);
    until("it renews through the agent", SOON, || agent.count("renewals") >= 2);
    holder.pause();
    block_on(async {
        let session = Client::connect(&agent.endpoints(&node)).session().open().await.expect("opened");
        let lease = session.acquire("r").wait_for(SOON).await.expect("granted when the silent one has ended");
        assert!(lease.permit().expect("held").token().get() > token);
    });
    assert_eq!(agent.count("died"), 0, "a stopped process is not a dead one");
}

/// The agent never pushes time: what a client believes moves only when a node has answered, whatever the agent does meanwhile.
#[test]
fn an_agent_without_nodes_moves_no_deadline() {
    let _turn = alongside();
    let ttl = Duration::from_secs(2);
    let node = Node::start("agent-alone");
    let agent = Agent::start("agent-alone", &node);
    let client = Client::connect(&agent.endpoints(&node));
    block_on(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let token = renewed(&lease, ttl);
        node.pause();
        until("the holder stops by itself", SOON, || lease.permit().is_err());
        node.resume();
        assert_eq!(renewed(&lease, ttl), token, "a node that paused counts no time against it");
    });
}

/// Proof of death: a killed client costs milliseconds, not a TTL.
#[test]
fn a_killed_client_is_succeeded_at_once() {
    let _turn = alongside();
    let ttl = Duration::from_secs(300);
    let node = Node::start("agent-killed");
    let agent = Agent::start("agent-killed", &node);
    let (mut holder, token) = start_holder(&agent, &node, ttl);
    block_on(async {
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
    // The successor has been dropped by now, and its own end may be there, too.
    let transitions = history["transitions"].as_array().expect("a list");
    let killed = transitions.iter().find(|transition| transition["token"] == token).expect("its end");
    assert_eq!(killed["why"], "died", "{history}");
}

/// Stopped, killed, started again: clients go on over the network and come back, under the same token all the time.
#[test]
fn nobody_needs_the_agent() {
    let _turn = alongside();
    let ttl = Duration::from_secs(3);
    let node = Node::start("agent-gone");
    let mut agent = Agent::start("agent-gone", &node);
    let client = Client::connect(&agent.endpoints(&node));
    block_on(async {
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
        assert_eq!(lease.release().await.expect("released, over the network"), LeaseEnd::Released);
    });
}
