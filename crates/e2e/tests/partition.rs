//! A leader that is cut off: from its peers it acknowledges nothing more, from its clients it loses nothing
//! (`acknowledged_is_kept`, `tokens_rise`), and service goes on or comes back.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure_e2e::{
    Cluster, Http, Lan, Promised, Renewer, Side, Workers, alone, assert_kept, block_on, client, scale, until,
};

/// How long a call may take: longer than an election, shorter than anybody's patience.
const CALL_WITHIN: Duration = Duration::from_secs(1);

/// How long the client library stays with a node that answers nothing, and when this test stops waiting for it.
const LIBRARY_PATIENCE: Duration = Duration::from_millis(3_500);
const COMMAND_GIVEN_UP_AFTER: Duration = Duration::from_secs(30);

/// How long the others may take to serve, and everybody after the network is whole again. The measure is that of the
/// full run; a machine that compiles at the same time is given more.
fn service_within() -> Duration {
    Duration::from_secs(if scale().full { 2 } else { 10 })
}

fn cut_for() -> Duration {
    Duration::from_secs(if scale().full { 20 } else { 4 })
}

fn served(http: &mut Http, resource: &str) -> bool {
    let body = json!({"holder": "prober", "ttl_ms": 60_000});
    http.call("POST", &format!("/v1/leases/{resource}:acquire"), Some(&body))
        .is_ok_and(|reply| reply.status == 200)
}

/// Waits until this caller is served; how long it took.
fn service(http: &mut Http, name: &str) -> Duration {
    let started = Instant::now();
    let mut attempt = 0;
    until(&format!("{name} is served"), Duration::from_secs(30), || {
        attempt += 1;
        served(http, &format!("probe/{name}/{attempt}"))
    });
    started.elapsed()
}

/// A cluster in a network of its own, with load at every node and a holder who renews at whichever answers.
struct Scene {
    cluster: Cluster,
    leader: usize,
    workers: Workers,
    renewer: Renewer,
}

impl Scene {
    fn start(name: &str) -> Self {
        let cluster = Cluster::start_in(name, Lan::new(3));
        let leader = cluster.leader();
        let ttl = Duration::from_secs(5);
        let body = json!({"holder": "holder", "ttl_ms": ttl.as_millis() as u64});
        let grant = cluster.node(leader).http().post("/v1/leases/held/throughout:acquire", &body).expect(200);
        let session = grant["session"].as_str().expect("an id").to_string();
        let renewer = Renewer::start_at(&cluster.addresses(), vec![session], ttl / 10);
        // Each stays with its node, so that the one who is cut off keeps being asked.
        let workers = Workers::start(cluster.addresses().into_iter().map(|address| vec![address]).collect());
        until("the load is felt", Duration::from_secs(30), || workers.promised() > 30);
        Self { cluster, leader, workers, renewer }
    }

    fn follower(&self) -> usize {
        self.cluster.others(self.leader)[0]
    }

    fn http(&self, node: usize) -> Http {
        self.cluster.node(node).http().with_limit(CALL_WITHIN)
    }

    /// All that was promised is there, wherever one looks, and the holder who kept renewing holds.
    fn judge(self) -> Vec<Promised> {
        let (promised, _) = self.workers.stop();
        for node in 1..=3 {
            let mut http = self.cluster.node(node).http();
            // Everything at one node; at the others the last, which is the one that could be missing.
            let from = if node == self.leader { 0 } else { promised.len().saturating_sub(50) };
            assert_kept(&mut http, &promised[from..]);
            let lease = http.get("/v1/leases/held/throughout").expect(200);
            assert_eq!((&lease["state"], &lease["generation"]), (&json!("held"), &json!(1)), "{lease}");
        }
        let report = self.renewer.stop();
        assert!(report.lost.is_empty(), "a holder that renewed lost its session: {report:?}");
        promised
    }
}

/// Cut off from its peers, but not from its clients: it must not promise anything, nor show what is no longer true.
#[test]
fn a_leader_without_peers_promises_nothing() {
    if Lan::missing("a_leader_without_peers_promises_nothing") {
        return;
    }
    let _turn = alone();
    let scene = Scene::start("alone");
    let (leader, follower) = (scene.leader, scene.follower());
    scene.cluster.lan().cut(leader, Side::Peers);
    let elsewhere = service(&mut scene.http(follower), "elsewhere");

    // From here on another leads. The old one is asked all the time, and must not tell the old story.
    scene.http(follower).put("/v1/registers/story", &json!({"value": "new"})).expect(200);
    let (mut asked, mut wrong) = (0, Vec::new());
    let until_healed = Instant::now() + cut_for();
    while Instant::now() < until_healed {
        asked += 1;
        if let Ok(reply) = scene.http(leader).call("GET", "/v1/registers/story", None)
            && reply.status == 200
        {
            wrong.push(reply.json());
        }
        if served(&mut scene.http(leader), &format!("alone/{asked}")) {
            wrong.push(json!("a grant"));
        }
    }
    assert!(wrong.is_empty(), "told by a node that cannot know: {wrong:?}");
    scene.cluster.lan().heal(leader);
    let healed = service(&mut scene.http(leader), "healed");
    let many = scene.judge().len();
    println!(
        "leader without peers: others served after {elsewhere:?}, itself {healed:?} after healing; {many} grants kept"
    );
    assert!(elsewhere < service_within(), "without service for {elsewhere:?}");
    assert!(healed < service_within(), "not served for {healed:?} after healing");
}

/// The client library has its stream at the leader, which refuses nothing and answers nothing: commands must not wait
/// there for as long as the cut lasts, which here is until they are answered.
#[test]
fn a_leader_without_peers_does_not_keep_commands() {
    if Lan::missing("a_leader_without_peers_does_not_keep_commands") {
        return;
    }
    let _turn = alone();
    let cluster = Cluster::start_in("kept", Lan::new(3));
    let leader = cluster.leader();
    let leader_first: Vec<String> =
        cluster.addresses_from(leader - 1).iter().map(ToString::to_string).collect();
    let (granted, released) = block_on(async {
        let client = client(&leader_first.join(","));
        let session = client.session().ttl(Duration::from_secs(30)).open().await.expect("opened");
        let before = session.acquire("before").await.expect("granted");
        cluster.lan().cut(leader, Side::Peers);
        let started = Instant::now();
        let lease = tokio::time::timeout(COMMAND_GIVEN_UP_AFTER, session.acquire("meanwhile")).await;
        lease.expect("another node is asked").expect("granted").permit().map(drop).expect("held");
        let granted = started.elapsed();
        before.release().await.expect("released");
        (granted, started.elapsed() - granted)
    });
    println!(
        "leader without peers: a command was answered elsewhere after {granted:?}, the next after {released:?}"
    );
    assert!(granted < LIBRARY_PATIENCE + service_within(), "a command waited for {granted:?}");
    assert!(released < service_within(), "the next one waited for {released:?}");
}

/// Its own connections work both ways, so its appends go out and are answered; but nothing arrives at its peer port, where
/// followers bring what their clients ask. It must give way, or no client of a follower is served for as long as it lasts.
#[test]
fn a_leader_with_a_deaf_peer_port_gives_way() {
    if Lan::missing("a_leader_with_a_deaf_peer_port_gives_way") {
        return;
    }
    let _turn = alone();
    let scene = Scene::start("deaf");
    let (leader, follower) = (scene.leader, scene.follower());
    let port = scene.cluster.peer_address(leader).port();
    scene.cluster.lan().drop_incoming(leader, &format!("tcp dport {port}"));
    let elsewhere = service(&mut scene.http(follower), "elsewhere");
    let next = scene.cluster.leader_among(&scene.cluster.others(leader));
    scene.cluster.lan().mend(leader);
    let mended = service(&mut scene.http(leader), "mended");
    scene.cluster.leader();
    let many = scene.judge().len();
    println!(
        "leader {leader} with a deaf peer port: clients of a follower served by {next} after {elsewhere:?}, its own \
         {mended:?} after mending; {many} grants kept"
    );
    // Some two seconds until it is sure, and the time of a handover.
    let within = Duration::from_secs(2) + service_within();
    assert!(elsewhere < within, "without service for {elsewhere:?}");
    assert!(mended < service_within(), "not served for {mended:?} after mending");
}

/// Cut off from its clients, but not from its peers: it goes on leading, and the others serve through it.
#[test]
fn a_leader_without_clients_leads_on() {
    if Lan::missing("a_leader_without_clients_leads_on") {
        return;
    }
    let _turn = alone();
    let scene = Scene::start("unheard");
    let (leader, follower) = (scene.leader, scene.follower());
    scene.cluster.lan().cut(leader, Side::Clients);
    let elsewhere = service(&mut scene.http(follower), "elsewhere");
    let before = scene.workers.promised();
    let until_healed = Instant::now() + cut_for();
    while Instant::now() < until_healed {
        assert!(!served(&mut scene.http(leader), "unheard/lease"), "the wire is cut");
    }
    let meanwhile = scene.workers.promised() - before;
    assert!(meanwhile > 20, "only {meanwhile} grants at the others");
    scene.cluster.lan().heal(leader);
    let healed = service(&mut scene.http(leader), "healed");
    assert_eq!(scene.cluster.leader(), leader, "nobody had a reason to elect another");
    let many = scene.judge().len();
    println!(
        "leader without clients: others served after {elsewhere:?}, itself {healed:?} after healing; {many} grants kept"
    );
    assert!(elsewhere < service_within(), "without service for {elsewhere:?}");
    assert!(healed < service_within(), "not served for {healed:?} after healing");
}

/// A queued wait whose node is cut off from the leader: the lease may be granted yet, so the answer must be that the
/// outcome is unknown. It was `no_leader` with the effect `not_applied`; a caller that believed it and went on lost the
/// lease that it was granted meanwhile.
#[test]
fn a_wait_that_loses_its_leader_is_answered_unknown() {
    if Lan::missing("a_wait_that_loses_its_leader_is_answered_unknown") {
        return;
    }
    let _turn = alone();
    let cluster = Cluster::start_in("lost-touch", Lan::new(3));
    let leader = cluster.leader();
    let follower = cluster.others(leader)[0];
    let mut http = cluster.node(leader).http();
    let path = "/v1/leases/cut/one:acquire";
    let holder = http.post(path, &json!({"holder": "holder", "ttl_ms": 60_000})).expect(200);
    let open = |http: &mut Http| {
        http.post("/v1/sessions", &json!({"holder": "patient", "ttl_ms": 60_000})).expect(200)["session"]
            .clone()
    };
    let repeatable = json!({"session": open(&mut http), "number": 1, "wait_ms": 60_000});
    let bodies = [
        repeatable.clone(),
        json!({"session": open(&mut http), "wait_ms": 60_000}),
        json!({"holder": "passing", "ttl_ms": 60_000, "wait_ms": 60_000}),
    ];
    let replies = std::thread::scope(|scope| {
        // One after the other: the one that can be repeated is the first in the queue. A plain wait before it would be
        // granted the lease, and nobody could give it back before its TTL is over.
        let mut waits = Vec::new();
        for body in &bodies {
            waits.push(scope.spawn(|| cluster.node(follower).http().post(path, body)));
            let queued =
                |http: &mut Http| http.get("/v1/leases/cut/one").expect(200)["waiting"] == waits.len();
            until("it is queued", Duration::from_secs(10), || queued(&mut http));
        }
        cluster.lan().cut(follower, Side::Peers);
        waits.into_iter().map(|wait| wait.join().expect("no panic")).collect::<Vec<_>>()
    });
    for (reply, body) in replies.iter().zip(&bodies) {
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["code"]), (504, &json!("unknown_outcome")), "{body}: {error}");
        assert_eq!(error["effect"], "unknown", "{body}");
    }
    // Word for word: the one that can be repeated is queued still, and is granted at another node.
    http.post("/v1/leases/cut/one:release", &json!({"session": holder["session"]})).expect(200);
    let other = cluster.others(leader)[1];
    assert_eq!(cluster.node(other).http().post(path, &repeatable).expect(200)["holder"], "patient");
    cluster.lan().heal(follower);
}
