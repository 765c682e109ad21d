//! Elections under faults: candidates and nodes are stopped, killed and cut off, one or two at a time. No two leaders ever have
//! permits that overlap (`permits_never_overlap`), and whenever the faults are over somebody leads soon (`waiters_move`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tenure_client::{Candidate, Leadership};
use tenure_e2e::{
    Cluster, Dice, Lan, Part, Proxy, SOON, Side, alone, block_on, client, given, monotonic_nanos, percentile,
    playing, say, scale, until,
};

/// The part that the tests below start in processes of their own; by itself it does nothing.
#[test]
fn part() {
    if playing().is_some() {
        block_on(candidate());
    }
}

/// Campaigns for ever, and says when it had a permit: from after it was given until it was dropped, or until its deadline.
async fn candidate() {
    let client = client(&given("ENDPOINTS"));
    let ttl = Duration::from_millis(given("TTL_MS").parse().expect("milliseconds"));
    let session = client.session().ttl(ttl).holder(given("NAME"));
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
    fn start(name: String, cluster: &Cluster) -> Contender {
        let proxies: Vec<Proxy> =
            (1..=cluster.count()).map(|number| Proxy::to(cluster.node(number).address())).collect();
        let part = Contender::part(&name, &proxies);
        Contender { part, proxies, name }
    }

    fn part(name: &str, proxies: &[Proxy]) -> Part {
        let endpoints: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let settings = [
            ("ENDPOINTS", endpoints.join(",")),
            ("TTL_MS", TTL.as_millis().to_string()),
            ("NAME", name.to_owned()),
        ];
        Part::start("candidate", &settings)
    }

    fn cut(&self, cut: bool) {
        self.proxies.iter().for_each(|proxy| proxy.cut(cut));
    }
}

const TTL: Duration = Duration::from_secs(2);
const CONTENDERS: usize = 3;
const NODES: usize = 3;

/// What is done to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    CandidateStopped,
    CandidateKilled,
    CandidateCutOff,
    NodeStopped,
    NodeKilled,
    NodeWithoutPeers,
    NodeWithoutClients,
}

impl Fault {
    const OF_CANDIDATES: [Fault; 3] =
        [Fault::CandidateStopped, Fault::CandidateKilled, Fault::CandidateCutOff];
    /// The last two need a network of their own.
    const OF_NODES: [Fault; 4] =
        [Fault::NodeStopped, Fault::NodeKilled, Fault::NodeWithoutPeers, Fault::NodeWithoutClients];
}

/// The cluster, the candidates, and what they have said so far.
struct Scene {
    cluster: Cluster,
    lan: bool,
    contenders: Vec<Contender>,
    all: Vec<Interval>,
}

impl Scene {
    fn start() -> Scene {
        let lan = Lan::if_possible(NODES);
        let partitions = lan.is_some();
        let cluster = match lan {
            Some(lan) => Cluster::start_in("election", lan),
            None => Cluster::start("election", NODES),
        };
        let contender = |number| Contender::start(format!("candidate-{number}"), &cluster);
        let contenders = (0..CONTENDERS).map(contender).collect();
        Scene { cluster, lan: partitions, contenders, all: Vec::new() }
    }

    /// Waits until somebody has taken a permit after this call: who, and how long that took.
    fn leader(&mut self, within: Duration) -> (usize, Duration) {
        let (healed, mut leader) = (monotonic_nanos(), None);
        until("somebody leads", within, || {
            for (number, contender) in self.contenders.iter().enumerate() {
                let new = intervals(&contender.part.received_lines());
                if new.iter().any(|(_, start, _)| *start > healed) {
                    leader = Some(number);
                }
                self.all.extend(new);
            }
            leader.is_some()
        });
        (leader.expect("it was awaited"), Duration::from_nanos(monotonic_nanos() - healed))
    }

    fn draw(&self, dice: &mut Dice, leader: usize) -> Vec<(Fault, usize)> {
        let mut one = |faults: &[Fault]| faults[dice.between(0, faults.len() as u64) as usize];
        let of_candidate = one(&Fault::OF_CANDIDATES);
        let of_node = one(if self.lan { &Fault::OF_NODES[..] } else { &Fault::OF_NODES[..2] });
        // Mostly the one that leads: the others are rarely in the way.
        let victim = if dice.once_in(4) { dice.between(0, CONTENDERS as u64) as usize } else { leader };
        let node = 1 + dice.between(0, NODES as u64) as usize;
        match dice.between(0, 5) {
            0 | 1 => vec![(of_candidate, victim)],
            2 | 3 => vec![(of_node, node)],
            _ => vec![(of_candidate, victim), (of_node, node)],
        }
    }

    fn begin(&mut self, fault: Fault, whom: usize) {
        match fault {
            Fault::CandidateStopped => self.contenders[whom].part.pause(),
            Fault::CandidateKilled => {
                let said = self.contenders[whom].part.last_words();
                self.all.extend(intervals(&said));
            }
            Fault::CandidateCutOff => self.contenders[whom].cut(true),
            Fault::NodeStopped => self.cluster.node(whom).pause(),
            Fault::NodeKilled => self.cluster.node_mut(whom).kill(),
            Fault::NodeWithoutPeers => self.cluster.lan().cut(whom, Side::Peers),
            Fault::NodeWithoutClients => self.cluster.lan().cut(whom, Side::Clients),
        }
    }

    fn end(&mut self, fault: Fault, whom: usize) {
        match fault {
            Fault::CandidateStopped => self.contenders[whom].part.resume(),
            Fault::CandidateKilled => {
                let contender = &mut self.contenders[whom];
                contender.part = Contender::part(&contender.name, &contender.proxies);
            }
            Fault::CandidateCutOff => self.contenders[whom].cut(false),
            Fault::NodeStopped => self.cluster.node(whom).resume(),
            Fault::NodeKilled => self.cluster.node_mut(whom).restart(),
            Fault::NodeWithoutPeers | Fault::NodeWithoutClients => self.cluster.lan().heal(whom),
        }
    }
}

#[test]
fn an_election_under_faults_has_one_leader_at_a_time() {
    let _turn = alone();
    let (lasts, leads_within) = if scale().full {
        (Duration::from_secs(20 * 60), TTL + Duration::from_secs(2))
    } else {
        (Duration::from_secs(20), SOON)
    };
    let mut dice = Dice::for_test("an_election_under_faults_has_one_leader_at_a_time");
    let mut scene = Scene::start();
    let (mut leader, _) = scene.leader(SOON);
    let (began, mut waits, mut faults) = (Instant::now(), Vec::new(), BTreeMap::new());
    while began.elapsed() < lasts {
        let drawn = scene.draw(&mut dice, leader);
        let length = Duration::from_millis(dice.between(100, 2 * TTL.as_millis() as u64));
        for (fault, whom) in &drawn {
            scene.begin(*fault, *whom);
            *faults.entry(*fault).or_insert(0) += 1;
        }
        std::thread::sleep(length);
        for (fault, whom) in &drawn {
            scene.end(*fault, *whom);
        }
        let took;
        (leader, took) = scene.leader(leads_within);
        waits.push(took);
    }
    for contender in &mut scene.contenders {
        scene.all.extend(intervals(&contender.part.last_words()));
    }
    let tokens: BTreeSet<u64> = scene.all.iter().map(|(token, ..)| *token).collect();
    println!(
        "{:?}: {} rounds of {faults:?}; {} permits under {} tokens; healed, somebody led within {:?} (half of them {:?})",
        began.elapsed(),
        waits.len(),
        scene.all.len(),
        tokens.len(),
        percentile(&mut waits, 1.0),
        percentile(&mut waits, 0.5),
    );
    assert_eq!(overlap(&scene.all), None, "two leaders had permits at the same time");
}
