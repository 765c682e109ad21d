//! What applications link, on three nodes that die and processes that stop: a healthy holder keeps its lease
//! (`healthy_holder_keeps`), a stopped one stops acting (`permits_never_overlap`), and where a check cannot save the
//! data, the fence does (`fence_never_falls`).

use std::future::Future;
use std::time::{Duration, Instant};

use tenure_client::{Candidate, Client, Code, Endpoints, Leader, Leadership, Lease, LeaseState};
use tenure_e2e::{
    Cluster, Dice, Node, Part, Proxy, alone, alongside, given, listen, monotonic_nanos, playing, say, scale,
    until,
};

/// Only how long a broken build takes to say so.
const SOON: Duration = Duration::from_secs(60);

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

fn endpoints(cluster: &Cluster) -> String {
    (1..=cluster.count()).map(|number| cluster.node(number).endpoint()).collect::<Vec<_>>().join(",")
}

fn client(endpoints: &str) -> Client {
    Client::connect(&endpoints.parse::<Endpoints>().expect("endpoints"))
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

/// The parts that the tests below start in processes of their own; by itself it does nothing.
#[test]
fn part() {
    match playing().as_deref() {
        Some("holder") => run(holder()),
        Some("writer") => run(writer()),
        Some("candidate") => run(candidate()),
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
        if after - last > ttl {
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

/// The leader dies, the node that the client is connected to dies: the lease stays, the line stays, and whoever observes an
/// election hears of leaders and of there being none.
#[test]
fn a_killed_leader_costs_no_holder_its_lease() {
    let _turn = alongside();
    let ttl = Duration::from_secs(5);
    let mut cluster = Cluster::start("library", 3);
    let client = client(&endpoints(&cluster));
    run(async {
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
        let heard = observer.next().await.expect("heard");
        let Leader::Elected { holder, .. } = heard else { panic!("{heard:?}") };
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
        let mut heard = observer.next().await.expect("heard");
        while heard != Leader::None {
            // The value may be told apart from the office.
            heard = observer.next().await.expect("heard");
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
    let settings = [("ENDPOINTS", endpoints(&cluster)), ("TTL_MS", ttl.as_millis().to_string())];
    let holder = Part::start("holder", &settings);
    let mut writer = Part::start("writer", &settings);
    let old: u64 = holder.hear("held", SOON).parse().expect("a token");
    let checked: u64 = writer.hear("checked", SOON).parse().expect("a token");
    holder.pause();
    writer.pause();
    // It reads this when it wakes up, and then sends what it was about to send.
    writer.tell("go on");

    let client = client(&settings[0].1);
    run(async {
        let session = client.session().ttl(ttl).open().await.expect("opened");
        let lease = session.acquire("r").wait().await.expect("granted when the silent one has ended");
        assert!(lease.permit().expect("held").token().get() > old);
        let lease = session.acquire("w").wait().await.expect("granted when the silent one has ended");
        let permit = lease.permit().expect("held");
        assert!(permit.token().get() > checked);
        client.registers().guarded(&permit).put("w/state", "successor").await.expect("the live token");

        holder.resume();
        writer.resume();
        let woke = holder.hear("woke", SOON);
        assert!(woke.starts_with("refused"), "{woke}");
        let ended = holder.hear("ended", SOON);
        assert!(ended.starts_with("Expired"), "it had stopped in time: {ended}");
        assert_eq!(writer.hear("refused", SOON), Code::StaleToken.as_str());
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
    run(async {
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

/// Campaigns for ever, and says when it had a permit: from after it was given until it was dropped, or until its deadline.
async fn candidate() {
    let client = client(&given("ENDPOINTS"));
    let session = client.session().ttl(given_ttl()).holder(given("NAME"));
    client.election("office").session(session).run(&Diligent, std::future::pending()).await;
}

struct Diligent;

impl Candidate for Diligent {
    async fn lead(&self, leadership: &Leadership) {
        loop {
            if let Ok(permit) = leadership.permit_for(Duration::from_millis(20)) {
                let start = monotonic_nanos();
                // Read in this order the sum is never past the true deadline, wherever this is stopped.
                let deadline = start + permit.time_left().as_nanos() as u64;
                tokio::time::sleep(Duration::from_millis(20)).await;
                let end = monotonic_nanos().min(deadline);
                let token = permit.token();
                drop(permit);
                say(format_args!("permit {token} {start} {end}"));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// One permit: its token, and from when to when it was out.
type Interval = (u64, u64, u64);

fn intervals(said: &[String]) -> Vec<Interval> {
    let read = |line: &String| {
        let mut numbers = line.strip_prefix("permit ")?.split(' ').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??, numbers.next()??))
    };
    said.iter().filter_map(read).filter(|(_, start, end)| start < end).collect()
}

/// Two permits of different tokens that overlap, if there are any.
fn overlap(intervals: &[Interval]) -> Option<(Interval, Interval)> {
    let mut sorted = intervals.to_vec();
    sorted.sort_by_key(|(_, start, _)| *start);
    let mut latest: Vec<Interval> = Vec::new();
    for now in sorted {
        if let Some(before) = latest.iter().find(|before| before.0 != now.0 && before.2 > now.1) {
            return Some((*before, now));
        }
        match latest.iter_mut().find(|before| before.0 == now.0) {
            Some(before) if before.2 < now.2 => *before = now,
            Some(_) => {}
            None => latest.push(now),
        }
    }
    None
}

#[test]
fn overlaps_are_found() {
    assert_eq!(overlap(&[(1, 0, 10), (1, 5, 15), (2, 15, 20)]), None);
    assert_eq!(overlap(&[(2, 9, 20), (1, 0, 10)]), Some(((1, 0, 10), (2, 9, 20))));
    assert_eq!(overlap(&[(1, 0, 10), (1, 2, 4), (2, 9, 20)]), Some(((1, 0, 10), (2, 9, 20))));
}

/// One candidate, and its own ways to the nodes.
struct Contender {
    part: Part,
    proxies: Vec<Proxy>,
    name: String,
}

impl Contender {
    fn start(name: String, cluster: &Cluster, ttl: Duration) -> Contender {
        let proxies: Vec<Proxy> =
            (1..=cluster.count()).map(|number| Proxy::to(cluster.node(number).address())).collect();
        let part = Contender::part(&name, &proxies, ttl);
        Contender { part, proxies, name }
    }

    fn part(name: &str, proxies: &[Proxy], ttl: Duration) -> Part {
        let endpoints: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let settings = [
            ("ENDPOINTS", endpoints.join(",")),
            ("TTL_MS", ttl.as_millis().to_string()),
            ("NAME", name.to_owned()),
        ];
        Part::start("candidate", &settings)
    }
}

/// Candidates and nodes are stopped, killed and cut off: no two leaders ever have permits at the same time, and after
/// each fault somebody leads again.
#[test]
fn an_election_under_faults_has_one_leader_at_a_time() {
    let _turn = alone();
    let ttl = Duration::from_secs(2);
    let (rounds, leads_within) = if scale().full { (200, ttl + Duration::from_secs(2)) } else { (5, SOON) };
    let mut dice = Dice::for_test("an_election_under_faults_has_one_leader_at_a_time");
    let mut cluster = Cluster::start("library-election", 3);
    let mut contenders: Vec<Contender> =
        (0..3).map(|number| Contender::start(format!("candidate-{number}"), &cluster, ttl)).collect();
    let mut all: Vec<Interval> = Vec::new();
    let mut longest = Duration::ZERO;
    for round in 0..=rounds {
        // Somebody leads: a permit that was taken after this moment.
        let healed = monotonic_nanos();
        let mut leader = 0;
        until("somebody leads again", leads_within, || {
            for (number, contender) in contenders.iter().enumerate() {
                let new = intervals(&contender.part.overheard());
                if new.iter().any(|(_, start, _)| *start > healed) {
                    leader = number + 1;
                }
                all.extend(new);
            }
            leader > 0
        });
        longest = longest.max(Duration::from_nanos(monotonic_nanos() - healed));
        if round == rounds {
            break;
        }
        // Mostly the one in office: the others are rarely in the way.
        let victim = if dice.once_in(4) { dice.between(0, 3) as usize } else { leader - 1 };
        let node = 1 + dice.between(0, 3) as usize;
        let fault = dice.between(0, 5);
        println!("round {round}: fault {fault}, candidate {victim}, node {node}");
        let length = ttl + Duration::from_millis(dice.between(0, 1_500));
        match fault {
            0 => {
                contenders[victim].part.pause();
                std::thread::sleep(length);
                contenders[victim].part.resume();
            }
            1 => {
                let contender = &mut contenders[victim];
                contender.part.kill();
                all.extend(intervals(&contender.part.overheard()));
                contender.part = Contender::part(&contender.name, &contender.proxies, ttl);
            }
            2 => {
                contenders[victim].proxies.iter().for_each(|proxy| proxy.cut(true));
                std::thread::sleep(length);
                contenders[victim].proxies.iter().for_each(|proxy| proxy.cut(false));
            }
            3 => {
                cluster.node(node).pause();
                std::thread::sleep(length);
                cluster.node(node).resume();
            }
            _ => {
                cluster.node_mut(node).kill();
                std::thread::sleep(length / 2);
                cluster.node_mut(node).restart();
            }
        }
    }
    for contender in &mut contenders {
        contender.part.kill();
        all.extend(intervals(&contender.part.overheard()));
    }
    let tokens: std::collections::BTreeSet<u64> = all.iter().map(|(token, ..)| *token).collect();
    println!(
        "{} permits under {} tokens; after a fault somebody led within {longest:?}",
        all.len(),
        tokens.len()
    );
    assert_eq!(overlap(&all), None, "two leaders had permits at the same time");
}
