//! The operator of a simulated cluster: makes leaders step down, revokes leases, and replaces nodes that are
//! lost or old. It uses the same calls as the command line, and repeats a step that failed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_client::{Call, CallError, Repeat, Transport};
use tenure_replica::SimDisk;
use tenure_wire::proto::cluster_client::ClusterClient;
use tenure_wire::proto::leases_client::LeasesClient;
use tenure_wire::proto::{
    ClusterStatusRequest, ClusterStatusResponse, NodeAddRequest, NodeRemoveRequest, RevokeRequest,
    StepDownRequest, UpgradeRequest,
};

use crate::cluster::{Member, peer_address};
use crate::low_latency;
use crate::net::Tick;
use crate::run::{Run, drift};

/// One attempt, for what an operator types.
const ONCE: Call = Call {
    repeat: Repeat::Never,
    within: Duration::from_secs(2),
    attempt_within: Some(Duration::from_secs(2)),
    persistent: false,
};

/// One node is being replaced by another.
pub struct Exchange {
    /// The node that goes.
    pub old: u64,
    done: Arc<AtomicBool>,
}

impl Exchange {
    /// Whether the cluster is without the old one and with the new one.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

impl Run {
    /// Asks the leader to hand leadership on.
    pub fn step_down(&mut self, now: Tick) {
        let (operate, record) = (self.operate.clone(), self.record.clone());
        record.count(|coverage| coverage.step_downs += 1);
        self.operator.spawn(async move {
            let answer = operate
                .call(ONCE, |channel, _| async move {
                    ClusterClient::new(channel).step_down(StepDownRequest { to: None }).await
                })
                .await;
            record.note(now * 1_000, format_args!("stepped down: {}", answer.is_ok()));
        });
    }

    /// Asks for the next format version; `raised` is set once that was acknowledged.
    pub fn ask_for_upgrade(&mut self, now: Tick, raised: Arc<AtomicBool>) {
        let (operate, record) = (self.operate_at(|member| !member.leaving), self.record.clone());
        self.operator.spawn(async move {
            let answer = operate.call(ONCE, |channel, _| async move {
                ClusterClient::new(channel).upgrade(UpgradeRequest {}).await
            });
            let answer = answer.await;
            record.note(now * 1_000, format_args!("asked for an upgrade: {}", answer.is_ok()));
            if answer.is_ok() {
                raised.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Revokes whatever lease of a resource there is, by notice.
    pub fn revoke(&mut self, resource: &'static str, now: Tick) {
        let (operate, record, revoked) = (self.operate.clone(), self.record.clone(), self.revoked.clone());
        revoked.store(true, Ordering::Relaxed);
        self.operator.spawn(async move {
            let answer = operate
                .call(ONCE, |channel, _| async move {
                    let question = RevokeRequest {
                        resource: resource.into(),
                        session_number: None,
                        now: false,
                        reason: "maintenance".into(),
                    };
                    LeasesClient::new(channel).revoke(question).await
                })
                .await;
            let touched = answer.map_or(0, |answer| answer.holdings.len());
            record.note(now * 1_000, format_args!("revoked {resource}: {touched}"));
            record.count(|coverage| coverage.revoked += touched as u64);
        });
    }

    /// A voter loses its disk. It is refused as often as it comes back; the operator removes it, and adds a
    /// new node.
    pub fn wipe(&mut self, node: u64, now: Tick) {
        let Some(new) = self.newcomer(now) else { return };
        self.record
            .note(now * 1_000, format_args!("fault: node {node} loses its disk, node {new} replaces it"));
        self.record.count(|coverage| coverage.wiped += 1);
        let seed = self.dice.draw();
        let wiped = self.members.get_mut(&node).expect("it is a member");
        wiped.end(now, &self.net, Some(seed), Some(now + self.dice.within(100, 1_000)));
        wiped.disk = SimDisk::new();
        wiped.wiped = true;
        self.exchange(node, new, Order::RemoveFirst);
    }

    /// A voter is killed and its files are damaged as `damage` says; with `power`, what was not synced may go
    /// first. It is started again, and replaced whether it starts or not.
    pub fn damage(
        &mut self,
        node: u64,
        now: Tick,
        power: Option<u64>,
        damage: impl FnOnce(&SimDisk) -> String,
    ) {
        let Some(new) = self.newcomer(now) else { return };
        let restart_at = now + self.dice.within(100, 1_000);
        let member = self.members.get_mut(&node).expect("it is a member");
        let applied = member.look(|node| node.status().replica.applied).flatten();
        member.end(now, &self.net, power, Some(restart_at));
        let what = damage(&member.disk);
        self.record.note(
            now * 1_000,
            format_args!("fault: node {node} is killed and loses {what}, node {new} replaces it"),
        );
        self.record.count(|coverage| coverage.damaged += 1);
        member.damaged = Some((applied, what));
        self.exchange(node, new, Order::RemoveFirst);
    }

    /// A voter in good health makes room for a new node: the new one is added, then the old one removed and
    /// stopped.
    pub fn retire(&mut self, node: u64, now: Tick) {
        let Some(new) = self.newcomer(now) else { return };
        self.record.note(now * 1_000, format_args!("fault: node {node} makes room for node {new}"));
        self.record.count(|coverage| coverage.removed += 1);
        self.exchange(node, new, Order::AddFirst);
    }

    /// A new, empty node; none while another is on its way in.
    fn newcomer(&mut self, now: Tick) -> Option<u64> {
        if self.exchanges.iter().any(|exchange| !exchange.is_done()) {
            return None;
        }
        let new = self.members.keys().max().expect("there are nodes") + 1;
        let peers: BTreeMap<u64, String> =
            self.members.keys().chain([&new]).map(|node| (*node, peer_address(*node))).collect();
        let ppm = drift(&mut self.dice);
        let mut member = Member::new(new, peers, self.snapshot, low_latency::options(self.seed, new), ppm);
        member.restart_at = Some(now + self.dice.within(100, 1_000));
        self.members.insert(new, member);
        Some(new)
    }

    fn exchange(&mut self, old: u64, new: u64, order: Order) {
        self.members.get_mut(&old).expect("it is a member").leaving = true;
        let done = Arc::new(AtomicBool::new(false));
        self.exchanges.push(Exchange { old, done: done.clone() });
        // Whoever has lost its disk, was removed or is not in yet says what it knows of the cluster, which is
        // nothing.
        let operate = self.operate_at(|member| !member.leaving && member.node != new);
        let record = self.record.clone();
        self.operator.spawn(async move {
            while !step(&operate, old, new, order).await {
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
            record.count(|coverage| coverage.added += 1);
            done.store(true, Ordering::Relaxed);
        });
    }

    /// Stops nodes that have been replaced: whoever removes a node takes it out of service.
    pub(crate) fn stop_the_retired(&mut self, now: Tick) {
        for exchange in self.exchanges.iter().filter(|exchange| exchange.is_done()) {
            let old = self.members.get_mut(&exchange.old).expect("members are never forgotten");
            if old.process.is_some() || old.restart_at.is_some() {
                self.record.note(now * 1_000, format_args!("node {} is taken out of service", old.node));
                old.end(now, &self.net, None, None);
            }
        }
    }
}

/// Which comes first when a node is replaced.
#[derive(Clone, Copy)]
enum Order {
    /// A lost voter counts towards the quorum for as long as it is a member.
    RemoveFirst,
    /// Nobody wants to be one short.
    AddFirst,
}

/// One step towards a cluster without `old` and with `new`; whether it is there.
async fn step(operate: &Transport, old: u64, new: u64, order: Order) -> bool {
    let status = operate
        .call(ONCE, |channel, _| async move {
            ClusterClient::new(channel).status(ClusterStatusRequest { with_state_hash: false }).await
        })
        .await;
    let Ok(status) = status else { return false };
    if status.leader.is_none() {
        return false;
    }
    let gone = !status.nodes.iter().any(|node| node.node == old);
    let there = votes(&status, new);
    // What came of it the next look at the cluster says.
    let _: Result<(), CallError> = match (gone, there, order) {
        (true, true, _) => return true,
        (false, false, Order::RemoveFirst) | (false, true, _) => remove(operate, old).await,
        (false, false, Order::AddFirst) | (true, false, _) => add(operate, new).await,
    };
    false
}

fn votes(status: &ClusterStatusResponse, wanted: u64) -> bool {
    let there = |role: &str| matches!(role, "leader" | "follower" | "candidate");
    status.nodes.iter().any(|node| node.node == wanted && there(&node.role))
}

async fn remove(operate: &Transport, node: u64) -> Result<(), CallError> {
    let answer = operate.call(ONCE, |channel, _| async move {
        ClusterClient::new(channel).remove(NodeRemoveRequest { node }).await
    });
    answer.await.map(drop)
}

async fn add(operate: &Transport, node: u64) -> Result<(), CallError> {
    let answer = operate.call(ONCE, |channel, _| async move {
        let question = NodeAddRequest { node, peer_address: peer_address(node), ..Default::default() };
        ClusterClient::new(channel).add(question).await
    });
    answer.await.map(drop)
}
