//! The holder's side against a real node on this machine, over real connections.

mod common;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use common::poll_times;
use tenure_client::{
    AcquireError, Client, Code, Effect, Endpoints, LeaseEnd, LeaseState, PermitError, Session, TimeBase,
};
use tenure_server::{Config, Server};

const TTL: Duration = Duration::from_secs(2);
/// Everything here happens in milliseconds; this is only how long a broken build takes to say so.
const SOON: Duration = Duration::from_secs(20);

/// A node that runs on a runtime of its own, as another process would.
struct Node {
    runtime: Option<tokio::runtime::Runtime>,
    server: Option<Server>,
    address: std::net::SocketAddr,
    data: tempfile::TempDir,
}

impl Node {
    fn start() -> Node {
        let data = tempfile::tempdir().expect("a temporary folder");
        Node::start_at("127.0.0.1:0".parse().expect("an address"), data)
    }

    fn start_at(listen: std::net::SocketAddr, data: tempfile::TempDir) -> Node {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let config = Config::single(listen, data.path().to_owned());
        // From a thread of its own: a runtime cannot be driven from inside another.
        let (runtime, server) = std::thread::spawn(move || {
            let server = runtime.block_on(Server::start(config)).expect("the node starts");
            (runtime, server)
        })
        .join()
        .expect("the node starts");
        let address = server.address();
        Node { runtime: Some(runtime), server: Some(server), address, data }
    }

    fn client(&self) -> Client {
        Client::connect(&self.address.to_string().parse::<Endpoints>().expect("an endpoint"))
    }

    /// Stops the node and starts it again on the same data and the same address.
    fn restart(mut self) -> Node {
        let data = std::mem::replace(&mut self.data, tempfile::tempdir().expect("a temporary folder"));
        let address = self.address;
        drop(self);
        Node::start_at(address, data)
    }

    fn counts(&self) -> tenure_core::Counts {
        let server = self.server.as_ref().expect("the node runs");
        server.node().glance(|machine| machine.counts())
    }

    fn holders(&self, resource: &str) -> usize {
        let (server, name) =
            (self.server.as_ref().expect("the node runs"), resource.parse().expect("a name"));
        server.node().glance(|machine| machine.lease(&name).map_or(0, |lease| lease.holders.len()))
    }

    /// How many watches the node serves, as its metrics say.
    fn watchers(&self) -> u64 {
        let mut connection = std::net::TcpStream::connect(self.address).expect("the node listens");
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        connection.write_all(request.as_bytes()).expect("asked");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("answered");
        let line = answer.lines().find_map(|line| line.strip_prefix("tenure_watchers "));
        line.expect("it is counted").trim().parse().expect("a number")
    }

    async fn left_with(&self, sessions: usize, waiters: usize) {
        let seen = async {
            while (self.counts().sessions, self.counts().waiters) != (sessions, waiters) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(SOON, seen).await.is_err() {
            panic!("expected {sessions} sessions and {waiters} waiters, there are {:?}", self.counts());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let (Some(runtime), Some(server)) = (self.runtime.take(), self.server.take()) {
            let stop = std::thread::spawn(move || {
                runtime.block_on(server.stop());
                runtime.shutdown_background();
            });
            let _ = stop.join();
        }
    }
}

#[tokio::test]
async fn a_lease_is_acquired_used_and_given_back() {
    let node = Node::start();
    let client = node.client();
    assert_eq!(client.time_base(), TimeBase::ClusterTime);
    let session = client.session().holder("a").ttl(TTL).open().await.expect("opened");
    let lease = session.acquire("settlement/cron").await.expect("granted");
    assert_eq!(lease.status().state, LeaseState::Held);
    let permit = lease.permit().expect("it is held");
    assert!(permit.time_left() > TTL / 2);
    let token = permit.token();

    let other = client.session().holder("b").ttl(TTL).open().await.expect("opened");
    let refused = other.acquire("settlement/cron").await.expect_err("it is held");
    let AcquireError::Held(refused) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.about.holder.as_deref(), Some("a"));

    // Released only after the permit is dropped.
    let release = tokio::spawn(lease.release());
    assert!(other.acquire("settlement/cron").await.is_err());
    drop(permit);
    assert_eq!(release.await.expect("no panic").expect("released"), LeaseEnd::Released);

    let next = other.acquire("settlement/cron").await.expect("it is free");
    assert!(next.permit().expect("it is held").token() > token);
    session.close().await;
    drop((next, other));
    node.left_with(0, 0).await;
}

#[tokio::test]
async fn waiters_are_notified_at_once() {
    let node = Node::start();
    let client = node.client();
    let first = client.session().ttl(TTL).open().await.expect("opened");
    let second = client.session().ttl(TTL).open().await.expect("opened");
    let lease = first.acquire("r").await.expect("granted");
    let waiting = tokio::spawn({
        let request = second.acquire("r").wait();
        async move { request.await }
    });
    node.left_with(2, 1).await;
    let released = Instant::now();
    lease.release().await.expect("released");
    let lease = waiting.await.expect("no panic").expect("granted in turn");
    assert!(released.elapsed() < TTL / 4, "the grant is pushed, not found by a renewal");
    drop(lease.permit().expect("a waited grant is usable at once"));
}

#[tokio::test]
async fn a_dropped_wait_leaves_the_queue() {
    let node = Node::start();
    let client = node.client();
    let first = client.session().ttl(TTL).open().await.expect("opened");
    let second = client.session().ttl(TTL).open().await.expect("opened");
    let lease = first.acquire("r").await.expect("granted");
    let waiting = tokio::spawn({
        let request = second.acquire("r").wait();
        async move { request.await.map(drop) }
    });
    node.left_with(2, 1).await;
    waiting.abort();
    node.left_with(2, 0).await;
    drop(lease);
}

#[tokio::test]
async fn a_wait_that_times_out_says_who_has_it() {
    let node = Node::start();
    let client = node.client();
    let first = client.session().holder("first").ttl(TTL).open().await.expect("opened");
    let second = client.session().ttl(TTL).open().await.expect("opened");
    let _lease = first.acquire("r").await.expect("granted");
    let refused = second.acquire("r").wait_for(Duration::from_millis(300)).await.expect_err("held");
    let AcquireError::Held(refused) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.about.holder.as_deref(), Some("first"));
    assert!(refused.about.waited_ms >= Some(300));
}

/// The promise of the renewer: renewals need nothing of the application's.
#[test]
fn a_blocked_runtime_keeps_its_lease() {
    let node = Node::start();
    let ttl = Duration::from_secs(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        // Made in here, where a renewer that ran wherever it was started would be the application's.
        let client = node.client();
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let token = lease.permit().expect("held").token();
        // The only thread of the application's only runtime spins for five TTLs.
        let start = Instant::now();
        while start.elapsed() < ttl * 5 {
            std::hint::spin_loop();
        }
        let permit = lease.permit().expect("the lease was kept meanwhile");
        assert_eq!(permit.token(), token);
        assert!(permit.time_left() > ttl / 4, "and it was renewed all the time");
    });
}

#[tokio::test]
async fn leases_and_commands_survive_a_restart_of_the_node() {
    let node = Node::start();
    let client = node.client();
    let ttl = Duration::from_secs(10);
    let session = client.session().ttl(ttl).open().await.expect("opened");
    let lease = session.acquire("r").await.expect("granted");
    let waiter = client.session().ttl(ttl).open().await.expect("opened");
    let waiting = tokio::spawn({
        let request = waiter.acquire("r").wait();
        async move { request.await }
    });
    node.left_with(2, 1).await;
    let node = node.restart();
    drop(lease.permit().expect("a restart of the node costs nothing"));
    // Over a new stream: the release is carried out, and the waiter is notified of its turn.
    assert_eq!(lease.release().await.expect("released"), LeaseEnd::Released);
    let lease = tokio::time::timeout(SOON, waiting).await.expect("in time").expect("no panic");
    drop(lease.expect("granted in turn").permit().expect("usable"));
    drop((session, waiter));
    node.left_with(0, 0).await;
}

#[tokio::test]
async fn an_ended_session_is_distinguished() {
    let node = Node::start();
    let client = node.client();
    let session = client.session().ttl(TTL).open().await.expect("opened");
    let lease = session.acquire("r").await.expect("granted");
    let mut changes = lease.changes();
    // Another process closes it, by its id.
    let transport = tenure_client::Transport::new(&node.address.to_string().parse().expect("an endpoint"));
    let call = tenure_client::Call {
        repeat: tenure_client::Repeat::Harmless,
        within: SOON,
        attempt_within: Some(SOON),
        persistent: true,
    };
    let caller = tenure_client::proto::Caller { session: session.id().to_string(), ..Default::default() };
    let request = tenure_client::proto::SessionCloseRequest { caller: Some(caller), died: true };
    transport
        .call(call, |channel, _| {
            let request = request.clone();
            async move {
                tenure_client::proto::sessions_client::SessionsClient::new(channel).close(request).await
            }
        })
        .await
        .expect("closed");
    let ended = tokio::time::timeout(SOON, async {
        loop {
            let status = changes.next().await.expect("the lease is still ours to ask about");
            if let LeaseState::Ended(end) = status.state {
                return end;
            }
        }
    });
    let end = ended.await.expect("in time");
    assert!(matches!(end, LeaseEnd::Lost { .. }), "it could have been acting: {end:?}");
    assert!(matches!(lease.permit(), Err(PermitError::Refused(_))));
    // What is sent before the client knows of the end is in doubt; what is asked for afterwards is not sent
    // at all.
    tokio::time::timeout(SOON, session.ended()).await.expect("in time");
    let refused = session.acquire("s").await.expect_err("the session has ended");
    let AcquireError::Call(tenure_client::CallError::Refused(refused)) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!((refused.code, refused.effect), (Code::UnknownSession, Effect::NotApplied));
}

#[tokio::test]
async fn no_node_is_an_error_that_says_so() {
    let client = Client::connect(&"127.0.0.1:1".parse().expect("an endpoint"));
    let refused =
        client.session().open_within(Duration::from_millis(300)).open().await.err().expect("nobody");
    assert_eq!(refused.effect(), Effect::NotApplied, "{refused}");
}

#[tokio::test]
async fn a_working_endpoint_is_found_among_dead_ones() {
    let node = Node::start();
    let endpoints = format!("127.0.0.1:1,127.0.0.1:2,{}", node.address);
    let client = Client::connect(&endpoints.parse().expect("endpoints"));
    let session = client.session().ttl(TTL).open().await.expect("opened");
    session.acquire("r").await.expect("granted").release().await.expect("released");
}

#[tokio::test]
async fn a_guarded_register_refuses_what_has_been_overtaken() {
    let node = Node::start();
    let client = node.client();
    let first = client.session().ttl(TTL).open().await.expect("opened");
    let second = client.session().ttl(TTL).open().await.expect("opened");
    let lease = first.acquire("r").await.expect("granted");
    let stale = tenure_core::Permit::new(
        lease.scope().clone(),
        lease.permit().expect("held").token(),
        lease.generation(),
        tenure_core::Moment::from_readings(Duration::ZERO, Duration::ZERO),
        // Whoever holds it believes that its time is not over.
        Duration::from_secs(1 << 32),
        &tenure_core::PermitCount::default(),
    );
    first.registers().guarded(&stale).put("r/state", "1").await.expect("the live token");
    lease.release().await.expect("released");
    let next = second.acquire("r").await.expect("granted");
    second.registers().guarded(&next.permit().expect("held")).put("r/state", "2").await.expect("live");
    let refused = first.registers().guarded(&stale).put("r/state", "3").await.expect_err("overtaken");
    let tenure_client::CallError::Refused(refused) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.code, Code::StaleToken);
    assert!(refused.about.seen > refused.about.presented);
    assert_eq!(client.registers().get("r/state").await.expect("read").value.as_deref(), Some(&b"2"[..]));
}

/// So long that nothing ends by itself while a test looks.
const FOR_EVER: Duration = Duration::from_secs(600);

/// Drops `step` at each of its await points, and waits until the node has nothing left of it but the session
/// that was there before, with its one lease.
async fn cancelled_anywhere<F, T>(node: &Node, what: &str, step: impl Fn(Client, Session) -> F)
where
    F: Future<Output = T>,
{
    for times in 0.. {
        // A client of its own, so that connecting is among the things that are interrupted.
        let client = node.client();
        let session = client.session().ttl(FOR_EVER).open().await.expect("opened");
        let done = poll_times(step(client, session), times).await;
        let finished = done.is_some();
        drop(done);
        node.left_with(1, 0).await;
        let holders = ["held", "r", "slots"].map(|resource| node.holders(resource));
        assert_eq!(holders, [1, 0, 0], "{what} dropped after {times} polls");
        if finished {
            assert!(times > 1, "{what} has await points to be dropped at");
            return;
        }
    }
}

#[tokio::test]
async fn dropping_any_future_anywhere_leaves_nothing_on_the_node() {
    let node = Node::start();
    let client = node.client();
    let standing = client.session().ttl(FOR_EVER).open().await.expect("opened");
    let held = standing.acquire("held").await.expect("granted");
    let (briefly, long) = (Duration::from_millis(30), FOR_EVER);
    cancelled_anywhere(&node, "open", |client, _| async move {
        drop(client.session().ttl(FOR_EVER).open().await.expect("opened"));
    })
    .await;
    cancelled_anywhere(&node, "acquire", |_, session| async move {
        drop(session.acquire("r").await.expect("granted"));
    })
    .await;
    cancelled_anywhere(&node, "wait", |_, session| async move {
        drop(session.acquire("held").wait_for(briefly).await.expect_err("held"));
    })
    .await;
    cancelled_anywhere(&node, "release", |_, session| async move {
        session.acquire("r").await.expect("granted").release().await.expect("released");
    })
    .await;
    cancelled_anywhere(&node, "drain", |_, session| async move {
        session.acquire("r").await.expect("granted").drain(long).await.expect("released");
    })
    .await;
    cancelled_anywhere(&node, "close", |_, session| async move { session.close().await }).await;
    cancelled_anywhere(&node, "several that wait", |_, session| async move {
        drop(session.acquire_all(["r", "held"]).wait_for(briefly).await.expect_err("one is held"));
    })
    .await;
    cancelled_anywhere(&node, "semaphore", |_, session| async move {
        drop(session.semaphore("slots", 2).acquire().await.expect("granted"));
    })
    .await;
    cancelled_anywhere(&node, "read", |_, session| async move {
        drop(session.rw_lease("r").read().await.expect("granted"));
    })
    .await;
    cancelled_anywhere(&node, "guarded write", |_, session| async move {
        let lease = session.acquire("r").await.expect("granted");
        let permit = lease.permit().expect("held");
        session.registers().guarded(&permit).ephemeral().put("r/state", "v").await.expect("written");
        session.registers().get("r/state").await.expect("read");
    })
    .await;
    cancelled_anywhere(&node, "sequencer", |_, session| async move {
        session.acquire("r").await.expect("granted").sequencer().await.expect("signed");
    })
    .await;
    cancelled_anywhere(&node, "hand over", |_, session| async move {
        let lease = session.acquire("r").await.expect("granted");
        lease.hand_over(long, briefly).await.expect("drained");
    })
    .await;
    cancelled_anywhere(&node, "campaign", |client, _| async move {
        let election = client.election("r").value("v").session(client.session().ttl(FOR_EVER));
        election.campaign().await.expect("elected").resign().await.expect("resigned");
    })
    .await;
    cancelled_anywhere(&node, "observe and watch", |client, session| async move {
        let mut observer = client.election("r").observe().expect("a name");
        observer.next().await.expect("seen");
        let mut changes = client.watch("r");
        changes.next().await.expect("begun").expect("begun");
        drop(session.acquire("r").await.expect("granted"));
        changes.next().await.expect("told").expect("granted");
    })
    .await;
    let until = Instant::now() + SOON;
    while node.watchers() > 0 {
        assert!(Instant::now() < until, "{} watches are left on the node", node.watchers());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(held.permit().expect("what others have is not touched"));
}

/// The caller of a plain acquire, with neither nonce nor number, that hangs up while it is queued, however
/// early: also between the moment in which it is queued and the answer that says so.
#[tokio::test]
async fn a_caller_that_hangs_up_leaves_the_queue() {
    let node = Node::start();
    let client = node.client();
    let standing = client.session().ttl(FOR_EVER).open().await.expect("opened");
    let mut kept = vec![standing.acquire("held").await.expect("granted")];
    let acquire = |number: u8| tenure_core::Acquire {
        by: tenure_core::AcquireBy::Opening(tenure_core::Open {
            holder: "caller".parse().expect("a name"),
            ttl: FOR_EVER,
            nonce: None,
            secret: tenure_core::Secret::new([number; 16]),
            number: 1,
        }),
        resources: vec!["held".parse().expect("a name")],
        mode: tenure_core::Mode::Exclusive,
        wait: tenure_core::Wait::For(FOR_EVER),
        policies: tenure_core::Policies::default(),
        fences: Vec::new(),
        transmission: None,
    };
    for times in 1..4 {
        let server = node.server.as_ref().expect("the node runs");
        let hung_up = poll_times(
            server.node().acquire(&tenure_core::Identity::Anyone, acquire(times), None),
            usize::from(times),
        )
        .await;
        assert!(hung_up.is_none(), "it is queued");
        // Commands are carried out in their order: what was under way when the caller left has been, when
        // this is.
        kept.push(standing.acquire(format!("after/{times}")).await.expect("granted"));
        node.left_with(1, 0).await;
    }
}

/// Whoever has waited in vain is told for whom, and why: it used to be "the store did not answer ()".
#[tokio::test]
async fn an_error_names_the_endpoint_and_the_reason() {
    let within = Duration::from_secs(2);
    // Nobody listens at the first, and whoever listens at the second says nothing.
    let closed = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port is free").local_addr();
    let closed = closed.expect("a bound listener has an address");
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let silent_at = silent.local_addr().expect("a bound listener has an address");
    let endpoints: Endpoints = format!("{closed},{silent_at}").parse().expect("endpoints");
    let opened = Client::connect(&endpoints).session().ttl(TTL).open_within(within).open().await;
    let Err(error) = opened else { panic!("nobody is there") };
    let text = error.to_string();
    assert!(text.contains(&format!("{closed}: Connection refused")), "{text}");
    assert!(text.contains(&format!("{silent_at}: ")), "{text}");

    // A node that is gone while somebody waits for an answer.
    let node = Node::start();
    let address = node.address;
    let session = node.client().session().ttl(Duration::from_secs(30)).open().await.expect("opened");
    drop(session.acquire("r").await.expect("granted"));
    drop(node);
    let error = session.acquire("q").answer_within(within).await.expect_err("nobody is there");
    assert_eq!(error.effect(), Effect::Unknown);
    let text = error.to_string();
    assert!(text.contains(&format!("{address}: Connection refused")), "{text}");
}
