//! Where the members of the cluster are reached by clients: kept up to date for those who are connected, so that they can follow
//! when nodes are replaced.
//!
//! The membership itself names addresses for peers only. Each node says where its clients reach it, when it is asked; so a node asks
//! the others whenever the membership has changed, and now and then.

use std::time::Duration;

use tenure_replica::NodeId;
use tokio::sync::watch;

use crate::node::Node;

/// How often a node looks whether the membership has changed. This costs nothing but the look.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After how many looks it asks the others although nothing has changed: a node may have been restarted at another address.
const ASK_EVERY_LOOKS: u32 = 60;
/// The same while it does not know where somebody is reached.
const ASK_AGAIN_AFTER_LOOKS: u32 = 4;

impl Node {
    /// Where clients reach the members, as far as this node knows.
    pub(crate) fn members(&self) -> watch::Receiver<Vec<String>> {
        self.admin().members.subscribe()
    }

    /// Keeps [`members`](Self::members) up to date, for ever.
    pub(crate) async fn keep_members(self) {
        let mut known: Option<Vec<NodeId>> = None;
        let mut looks_left = 0;
        loop {
            let present = self.member_numbers();
            looks_left = u32::saturating_sub(looks_left, 1);
            if known.as_ref() != Some(&present) || looks_left == 0 {
                let everybody = self.everybody().await;
                let members = everybody.iter().filter(|node| present.contains(&node.node));
                let addresses: Vec<String> =
                    members.map(|node| node.client_address.clone()).filter(|text| !text.is_empty()).collect();
                let all_known = addresses.len() == present.len();
                looks_left = if all_known { ASK_EVERY_LOOKS } else { ASK_AGAIN_AFTER_LOOKS };
                self.admin().members.send_if_modified(|known| {
                    let modified = *known != addresses;
                    *known = addresses;
                    modified
                });
                known = Some(present);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn member_numbers(&self) -> Vec<NodeId> {
        let status = self.replica().status();
        status.voters.into_iter().chain(status.learners).collect()
    }
}
