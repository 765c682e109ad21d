//! Whether the other voters reach this node's peer port while it leads.
//!
//! A leader needs only its own connections: appends go out on them and the answers come back. Followers need
//! the leader's port, because they forward their clients' requests to it. A leader whose port receives
//! nothing would lead on for ever and serve no client of a follower. So it asks the followers, on its own
//! connections, whether they reach it; if a majority of all voters says no for long enough, one of those
//! takes over. They are a majority without this node, so they can elect it.
//!
//! [`Reach`] decides, [`watch`] asks and carries out.

use super::link::Links;
use crate::NodeId;
use crate::config::RaftTiming;
use crate::engine::{Engine, Member, Types};
use crate::leadership::{LeaderTerm, Leadership};
use futures_util::future::join_all;
use openraft::alias::VoteOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

/// A busy machine may miss one answer or two. So many in a row …
const TIMES_MIN: u32 = 3;
/// … over so many of the longest election timeouts is a port that receives nothing.
const LASTING: u32 = 5;
/// After a leader has given way for this reason it does not do so again for so long, or a network in which
/// nobody reaches anybody would have a new leader every second.
const REST: Duration = Duration::from_secs(10);

/// What the followers say of this node's port.
pub(crate) struct Reach {
    lasting: Duration,
    complaints: BTreeMap<NodeId, Complaint>,
    rests_until: Option<Instant>,
}

struct Complaint {
    since: Instant,
    times: u32,
}

impl Reach {
    pub fn new(timing: &RaftTiming) -> Self {
        Self { lasting: LASTING * timing.election_max, complaints: BTreeMap::new(), rests_until: None }
    }

    /// Takes in what a follower says: whether it reaches this node. One that does not answer, or cannot say,
    /// does not complain.
    pub fn said(&mut self, node: NodeId, reaches_us: Option<bool>, now: Instant) {
        match reaches_us {
            Some(false) => {
                let complaint = self.complaints.entry(node).or_insert(Complaint { since: now, times: 0 });
                complaint.times += 1;
            }
            Some(true) | None => drop(self.complaints.remove(&node)),
        }
    }

    /// Forgets everything that was said: another term has begun.
    pub fn forget(&mut self) {
        self.complaints.clear();
    }

    /// Who should lead instead of this node, if anybody should. `voters` are all of them with how far their
    /// logs have come, this node included.
    pub fn successor(&mut self, voters: &[(NodeId, Option<u64>)], now: Instant) -> Option<NodeId> {
        if self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        let complains = |node: NodeId| {
            self.complaints.get(&node).is_some_and(|complaint| {
                complaint.times >= TIMES_MIN && now.duration_since(complaint.since) >= self.lasting
            })
        };
        let complaining: Vec<_> = voters.iter().filter(|(node, _)| complains(*node)).collect();
        if 2 * complaining.len() <= voters.len() {
            return None;
        }
        self.rests_until = Some(now + REST);
        complaining.into_iter().max_by_key(|(_, matched)| *matched).map(|(node, _)| *node)
    }
}

/// Asks the followers for as long as this node leads, and hands leadership on if it has to. Ends with the
/// engine.
pub(crate) async fn watch(
    engine: Engine,
    links: Links,
    mut leadership: Receiver<Leadership>,
    timing: RaftTiming,
    own: NodeId,
) {
    let mut reach = Reach::new(&timing);
    loop {
        reach.forget();
        let Ok(leader_term) = leadership
            .wait_for(|leadership| leadership.leader_term().is_some())
            .await
            .map(|l| l.leader_term())
        else {
            return;
        };
        while leadership.borrow().leader_term() == leader_term {
            let voters = voters(&engine);
            let others = voters.iter().filter(|(node, ..)| *node != own);
            let asked = others.map(|(node, member, _)| async {
                (*node, links.is_reached_by(*node, member, 3 * timing.election_max).await)
            });
            let answers = join_all(asked).await;
            let now = Instant::now();
            for (node, said) in &answers {
                reach.said(*node, said.map(|(reaches_us, _)| reaches_us), now);
            }
            if let Some(vote) =
                newer_leader(answers.into_iter().filter_map(|(_, said)| Some(said?.1)), leader_term)
            {
                follow(&engine, vote).await;
            }
            let progress: Vec<_> = voters.iter().map(|(node, _, matched)| (*node, *matched)).collect();
            let still_leads = leadership.borrow().leader_term() == leader_term;
            if let Some(to) = reach.successor(&progress, now).filter(|_| still_leads) {
                tracing::warn!(
                    to,
                    "most members cannot reach the peer port of this node, so requests of their clients do not arrive: \
                     handing leadership on. Look at the firewall and the peer address of this node"
                );
                if engine.trigger().transfer_leader(to).await.is_err() {
                    return;
                }
            }
            tokio::time::sleep(timing.election_max).await;
        }
    }
}

/// A leader of a later term, if one of these votes names it.
fn newer_leader(
    votes: impl Iterator<Item = VoteOf<Types>>,
    leader_term: Option<LeaderTerm>,
) -> Option<VoteOf<Types>> {
    let term = leader_term?.term;
    votes.filter(|vote| vote.committed && vote.leader_id.term > term).max_by_key(|vote| vote.leader_id.term)
}

/// Takes the word of a follower that another node was elected. That node cannot say so itself, because
/// nothing arrives at this node's port, and this one would go on believing that it leads. What the engine
/// gets is the new leader's heartbeat, without entries: a majority has elected it, whoever says so.
async fn follow(engine: &Engine, vote: VoteOf<Types>) {
    let heartbeat =
        AppendEntriesRequest { vote, prev_log_id: None, entries: Vec::new(), leader_commit: None };
    if let Err(error) = engine.append_entries(heartbeat).await {
        tracing::debug!(%error, "the engine did not take in that another node leads");
    }
}

/// All voters, with how far their logs have come.
fn voters(engine: &Engine) -> Vec<(NodeId, Member, Option<u64>)> {
    let metrics = engine.metrics();
    let metrics = metrics.borrow_watched();
    let membership = metrics.membership_config.membership();
    let matched = |node: &NodeId| {
        let progress = metrics.replication.as_ref()?.get(node)?.as_ref();
        progress.map(|id| id.index())
    };
    let voters = membership.voter_ids();
    voters.filter_map(|node| Some((node, membership.get_node(&node)?.clone(), matched(&node)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTERS: [(NodeId, Option<u64>); 3] = [(1, Some(9)), (2, Some(7)), (3, Some(8))];
    const STEP: Duration = Duration::from_millis(300);

    /// Rounds of answers of nodes 2 and 3 to node 1, which leads; the successor after each.
    fn rounds(reach: &mut Reach, start: Instant, said: &[[Option<bool>; 2]]) -> Vec<Option<NodeId>> {
        let round = |(number, said): (usize, &[Option<bool>; 2])| {
            let now = start + STEP * number as u32;
            reach.said(2, said[0], now);
            reach.said(3, said[1], now);
            reach.successor(&VOTERS, now)
        };
        said.iter().enumerate().map(round).collect()
    }

    #[test]
    fn a_leader_that_most_do_not_reach_gives_way_to_the_most_advanced_of_them() {
        let mut reach = Reach::new(&RaftTiming::default());
        let start = Instant::now();
        let successors = rounds(&mut reach, start, &[[Some(false); 2]; 8]);
        assert_eq!(successors[..5], [None; 5], "not for a moment's silence");
        assert_eq!(successors[5], Some(3), "1.5 s later, and 3 is ahead of 2");
        assert_eq!(successors[6..], [None; 2], "once, and then it rests");
        reach.forget();
        let later = rounds(&mut reach, start + REST + 6 * STEP, &[[Some(false); 2]; 6]);
        assert_eq!(later[5], Some(3), "and again if it has come back to lead and nothing is better");
    }

    #[test]
    fn a_minority_deposes_nobody() {
        let mut reach = Reach::new(&RaftTiming::default());
        let start = Instant::now();
        assert_eq!(rounds(&mut reach, start, &[[Some(false), Some(true)]; 20]), [None; 20]);
        assert_eq!(
            rounds(&mut reach, start, &[[Some(false), None]; 20]),
            [None; 20],
            "who is down says nothing"
        );
        let mut two = Reach::new(&RaftTiming::default());
        for number in 0..20 {
            two.said(2, Some(false), start + STEP * number);
            assert_eq!(
                two.successor(&VOTERS[..2], start + STEP * number),
                None,
                "of two, one is no majority"
            );
        }
    }

    #[test]
    fn one_good_answer_begins_the_count_anew() {
        let mut reach = Reach::new(&RaftTiming::default());
        let mut said = [[Some(false); 2]; 10];
        said[4] = [Some(true), Some(false)];
        let successors = rounds(&mut reach, Instant::now(), &said);
        assert_eq!(successors, [None; 10], "node 2 complains again since round 5");
    }

    #[test]
    fn a_slow_clock_of_questions_needs_several_answers() {
        let mut reach = Reach::new(&RaftTiming::default());
        let start = Instant::now();
        reach.said(2, Some(false), start);
        reach.said(3, Some(false), start);
        reach.said(2, Some(false), start + 20 * STEP);
        reach.said(3, Some(false), start + 20 * STEP);
        assert_eq!(reach.successor(&VOTERS, start + 20 * STEP), None);
    }
}
