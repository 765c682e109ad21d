//! What applications link, on three nodes that die and processes that stop: a healthy holder keeps its lease
//! (`healthy_holder_keeps`), a stopped one stops acting (`permits_never_overlap`), and where a check cannot save the
//! data, the fence does (`fence_never_falls`).

use std::time::{Duration, Instant};

use tenure_client::{Code, Leader, LeaseState};
use tenure_e2e::{
    Cluster, Node, Part, Proxy, SOON, alongside, block_on, client, given, listen, playing, renewed,
    run_tenure, say, until,
};

/// The parts that the tests below start in processes of their own; by itself it does nothing.
#[test]
fn part() {
    match playing().as_deref() {
        Some("holder") => block_on(holder()),
        Some("writer") => block_on(writer()),
        Some(other) => panic!("there is no part {other}"),
        None => {}
    }
}

fn given_ttl() -> Duration {
    Duration::from_millis(given("TTL_MS").parse().expect("milliseconds"))
}

/// Holds a lease, asks for a permit all the time, and says what the first answer after a stop was and how the lease ended.
async fn holder() {
    let ttl = given_ttl();
    let client = client(&given("ENDPOINTS"));
    let session = client.session().ttl(ttl).open().await.expect("opened");
    let lease = session.acquire("r").wait().await.expect("granted");
    say(format_args!("held {}", lease.permit().expect("held").token()));
    let mut last = Instant::now();
    let first = loop {
        let before = Instant::now();
        let asked = lease.permit().map(drop);
        let after = Instant::now();
        if after - before > ttl / 2 {
            // Stopped within these lines: whether the answer is from before or after, nobody can say.
            break lease.permit().map(drop);
        }
        if after - last > ttl / 2 {
            break asked;
        }
        last = after;
        std::thread::sleep(Duration::from_millis(1));
    };
    match first {
        Ok(()) => say("woke with a permit"),
        Err(why) => say(format_args!("woke refused: {why}")),
    }
    let end = loop {
        if let LeaseState::Ended(end) = lease.status().state {
            break end;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    say(format_args!("ended {end:?}"));
}

/// Takes a permit, and is stopped before it sends the write that the permit was taken for.
async fn writer() {
    let client = client(&given("ENDPOINTS"));
    let session = client.session().ttl(given_ttl()).open().await.expect("opened");
    let lease = session.acquire("w").await.expect("granted");
    let permit = lease.permit().expect("held");
    client.registers().guarded(&permit).put("w/state", "early").await.expect("the live token");
    say(format_args!("checked {}", permit.token()));
    listen();
    // Checked before the pause: nobody but the store can stop it now.
    let unchecked = client.registers().unchecked(permit.scope().clone(), permit.token());
    match unchecked.put("w/state", "late").await {
        Ok(_) => say("written"),
        Err(tenure_client::CallError::Refused(no)) => say(format_args!("refused {}", no.code)),
        Err(other) => say(format_args!("failed {other}")),
    }
}

/// The leader dies, the node that the client is connected to dies: the lease stays, the queue stays, and
/// whoever observes an election is notified of leaders and of there being none.
#[test]
fn a_killed_leader_costs_no_holder_its_lease() {
    let _turn = alongside();
    let ttl = Duration::from_secs(5);
    let mut cluster = Cluster::start("library", 3);
    let client = client(&cluster.endpoints());
    block_on(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let token = lease.permit().expect("held").token().get();
        let waiter = client.session().ttl(ttl).open().await.expect("opened");
        let waiting = tokio::spawn({
            let request = waiter.acquire("r").wait();
            async move { request.await }
        });
        let mut observer = client.election("e").observe().expect("a name");
        assert_eq!(observer.next().await.expect("looked up"), Leader::None);
        let election = client.election("e").value("here").session(client.session().ttl(ttl).holder("a"));
        let leadership = election.campaign().await.expect("elected");
        let seen = observer.next().await.expect("heard");
        let Leader::Elected { holder, .. } = seen else { panic!("{seen:?}") };
        assert_eq!(holder.to_string(), "a");

        for _ in 0..2 {
            let leader = cluster.leader();
            cluster.node_mut(leader).kill();
            cluster.leader_among(&cluster.others(leader));
            assert_eq!(renewed(&lease, ttl), token, "a killed leader ends nothing");
            assert_eq!(renewed(&leadership, ttl), leadership.permit().expect("held").token().get());
            cluster.node_mut(leader).restart();
        }

        leadership.resign().await.expect("resigned");
        let mut seen = observer.next().await.expect("heard");
        while seen != Leader::None {
            // The value may arrive apart from the leadership.
            seen = observer.next().await.expect("heard");
        }
        lease.release().await.expect("released");
        let next = waiting.await.expect("no panic").expect("granted in turn, on whichever node");
        assert!(next.permit().expect("usable at once").token().get() > token);
    });
}

/// A stopped process loses its lease, learns it before it gets another permit, and says so correctly. Stopped between
/// check and send it cannot know: there the fence refuses what the permit let pass.
#[test]
fn a_stopped_holder_wakes_up_to_no_permit_and_a_fence() {
    let _turn = alongside();
    let ttl = Duration::from_secs(2);
    let cluster = Cluster::start("library-stopped", 3);
    let settings = [("ENDPOINTS", cluster.endpoints()), ("TTL_MS", ttl.as_millis().to_string())];
    let holder = Part::start("holder", &settings);
    let mut writer = Part::start("writer", &settings);
    let old: u64 = holder.receive("held", SOON).parse().expect("a token");
    let checked: u64 = writer.receive("checked", SOON).parse().expect("a token");
    holder.pause();
    writer.pause();
    // It reads this when it wakes up, and then sends what it was about to send.
    writer.tell("go on");

    let client = client(&settings[0].1);
    block_on(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").wait().await.expect("granted when the silent one has ended");
        assert!(lease.permit().expect("held").token().get() > old);
        let lease = session.acquire("w").wait().await.expect("granted when the silent one has ended");
        let permit = lease.permit().expect("held");
        assert!(permit.token().get() > checked);
        client.registers().guarded(&permit).put("w/state", "successor").await.expect("the live token");

        holder.resume();
        writer.resume();
        let woke = holder.receive("woke", SOON);
        assert!(woke.starts_with("refused"), "{woke}");
        let ended = holder.receive("ended", SOON);
        assert!(ended.starts_with("Expired"), "it had stopped in time: {ended}");
        assert_eq!(writer.receive("refused", SOON), Code::StaleToken.as_str());
        let state = client.registers().get("w/state").await.expect("read").value;
        assert_eq!(state.as_deref(), Some(&b"successor"[..]), "the late write did not land");
    });
}

/// Renewals arrive and their answers do not: the holder stops at its own deadline while the store still has the lease for
/// it, and goes on under the same token when answers come through again.
#[test]
fn a_renewal_without_an_answer_neither_overstays_nor_loses() {
    let _turn = alongside();
    let ttl = Duration::from_secs(6);
    let node = Node::start("library-unanswered");
    let proxy = Proxy::to(node.address());
    let client = client(&proxy.address().to_string());
    block_on(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let token = renewed(&lease, ttl);
        proxy.swallow_answers(true);
        until("the holder stops by itself", SOON, || lease.permit().is_err());
        let at_store = node.http().get("/v1/leases/r").expect(200);
        proxy.swallow_answers(false);
        // The last renewal that arrived was sent a good while after the last one that was answered.
        assert_eq!(at_store["token"].as_u64(), Some(token), "{at_store}");
        assert_eq!(at_store["state"], "held", "the store kept it all the time: {at_store}");
        assert_eq!(renewed(&lease, ttl), token, "and it is held again");
    });
}

/// All three nodes are replaced by others, one after the other. A client that was told of the first three only keeps its lease,
/// its place in the queue and its watch: it is told who the members are, and follows them.
#[test]
fn a_client_follows_the_members_when_every_node_is_replaced() {
    let _turn = alongside();
    let ttl = Duration::from_secs(10);
    let mut cluster = Cluster::start("library-replaced", 3);
    let client = client(&cluster.endpoints());
    block_on(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").await.expect("granted");
        let token = renewed(&lease, ttl);
        let waiter = client.session().ttl(ttl).open().await.expect("opened");
        let waiting = tokio::spawn({
            let request = waiter.acquire("r").wait();
            async move { request.await }
        });
        for old in 1..=3 {
            let (number, peer) = cluster.prepare_another();
            cluster.node_mut(number).spawn();
            until("the new node says that it waits", SOON, || {
                cluster.node(number).log().contains(&format!("tenure cluster add {number}="))
            });
            let endpoint = cluster.node(old + 1).endpoint();
            let added = run_tenure(&endpoint, &["cluster", "add", &peer]);
            assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
            cluster.node_mut(number).wait_ready();
            assert_eq!(renewed(&lease, ttl), token, "with node {number}");
            let removed = run_tenure(&endpoint, &["cluster", "remove", &old.to_string()]);
            assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
            cluster.node_mut(old).kill();
            assert_eq!(renewed(&lease, ttl), token, "without node {old}");
        }
        // None of the nodes is left that it was told of in the beginning.
        session.registers().put("k", "v").await.expect("written");
        assert_eq!(client.registers().get("k").await.expect("read").value.as_deref(), Some(&b"v"[..]));
        lease.release().await.expect("released");
        let next = waiting.await.expect("no panic").expect("granted in turn");
        assert!(next.permit().expect("usable at once").token().get() > token);
    });
}
