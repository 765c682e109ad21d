//! Raising the agreed format version: by an operator, or by a node that was started to do it by itself.
//!
//! Only the leader raises, by one version at a time, and only after every voter and learner has just answered that it
//! knows the next version. A silent member blocks the raise: it may run an older release, or return to one. What a raise
//! does is the machine's; when `--auto-upgrade` acts is [`AutoUpgrade`]'s.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Clock;
use tenure_core::{AutoUpgrade, FormatVersion, Identity};
use tenure_wire::{ApiError, Code, proto};

use crate::calls::failed;
use crate::node::{Node, Route, Submission};

/// How often a node that upgrades by itself asks the members.
const ASKED_EVERY: Duration = Duration::from_secs(5);

/// The version after the agreed one, if all of these nodes know it.
pub(crate) fn possible(agreed: FormatVersion, members: &[proto::NodeStatus]) -> Option<FormatVersion> {
    let knows = |node: &proto::NodeStatus, next: FormatVersion| {
        node.reachable && node.format_newest >= u32::from(next.get())
    };
    agreed.next().filter(|next| members.iter().all(|node| knows(node, *next)))
}

impl Node {
    /// Raises the agreed version here, on the leader. Proposed in the term in which everybody was received: a
    /// leader that was replaced meanwhile proposes nothing.
    pub(crate) async fn upgrade_here(&self) -> Result<proto::UpgradeResponse, ApiError> {
        let from = self.read(|machine| machine.format()).await.map_err(failed)?;
        let everybody = self.everybody().await;
        let Some(to) = possible(from, &everybody) else { return Err(not_possible(from, &everybody)) };
        self.answer_to(&Identity::Anyone, Submission::Raise(to)).await.map_err(failed)??;
        tracing::info!(%from, %to, "the format version was raised");
        Ok(proto::UpgradeResponse { from: from.get().into(), to: to.get().into() })
    }

    /// Once the version that hashes secrets was agreed on, takes what was written before off this node's disk.
    pub(crate) async fn keep_concealed(self) {
        self.stage().raised().await;
        match self.replica().compact().await {
            Ok(()) => tracing::info!("what was logged before the raise was replaced by a snapshot"),
            Err(error) => tracing::warn!(%error, "what was logged before the raise is still on the disk"),
        }
    }

    /// Raises the agreed version by itself, while this node leads and once a raise has been possible for so long.
    pub(crate) async fn keep_upgraded(self, after: Duration, clock: Arc<dyn Clock>) {
        let mut upgrade = AutoUpgrade::new(after);
        loop {
            tokio::time::sleep(ASKED_EVERY.min(after.max(Duration::from_millis(100)))).await;
            let leads = matches!(self.leader(), Route::Here);
            let possible = leads && possible(self.format(), &self.everybody().await).is_some();
            if upgrade.observe(possible, clock.now())
                && let Err(error) = self.upgrade_here().await
            {
                tracing::warn!(%error, "the format version was not raised; it is tried again");
            }
        }
    }
}

fn not_possible(agreed: FormatVersion, members: &[proto::NodeStatus]) -> ApiError {
    let Some(next) = agreed.next() else {
        return ApiError::new(
            Code::UpgradeNeeded,
            format!("the cluster has agreed on format version {agreed}, the newest that this node knows"),
        )
        .hint("to go further, start a newer release on every node first");
    };
    let silent = |node: &&proto::NodeStatus| !node.reachable;
    let list = |nodes: Vec<&proto::NodeStatus>| {
        nodes.iter().map(|node| format!("node {}", node.node)).collect::<Vec<_>>().join(", ")
    };
    if let missing @ [_, ..] = &members.iter().filter(silent).collect::<Vec<_>>()[..] {
        return ApiError::new(
            Code::UpgradeNeeded,
            format!("{} does not answer: it might not know format version {next}", list(missing.to_vec())),
        )
        .hint("bring it back, or remove it from the cluster");
    }
    let older = members.iter().filter(|node| node.format_newest < u32::from(next.get())).collect();
    ApiError::new(Code::UpgradeNeeded, format!("{} does not know format version {next}", list(older)))
        .hint("start the newer release there first")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: u64, reachable: bool, format_newest: u32) -> proto::NodeStatus {
        proto::NodeStatus { node, reachable, format_newest, ..proto::NodeStatus::default() }
    }

    #[test]
    fn a_silent_or_older_member_blocks_the_raise_and_is_named() {
        let (old, new) = (FormatVersion::V1, FormatVersion::V2);
        let all = [node(1, true, 2), node(2, true, 2), node(3, true, 3)];
        assert_eq!(possible(old, &all), Some(new));
        assert_eq!(possible(new, &all), None, "this build knows no further");
        let silent = [node(1, true, 2), node(2, false, 2)];
        assert_eq!(possible(old, &silent), None);
        assert!(not_possible(old, &silent).to_string().contains("node 2 does not answer"));
        let older = [node(1, true, 2), node(2, true, 0)];
        assert_eq!(possible(old, &older), None);
        assert!(not_possible(old, &older).to_string().contains("node 2 does not know format version 2"));
        assert!(not_possible(new, &all).to_string().contains("newest that this node knows"));
    }
}
