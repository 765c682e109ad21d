//! Which endpoints there are, and in which order they are tried: those that the application configured, and
//! those that the nodes report as members of the cluster. Pure but for the lock around it.
//!
//! Nodes are replaced while clients run, so a client follows the reported members. It never drops a
//! configured endpoint: there may be a proxy or a forwarded port in between, and the address that a node
//! reports may lead nowhere from here, or elsewhere. So a reported address is used only if it can be reached
//! from here in principle ([`Members::advertise`]) and a node of the same cluster has answered there
//! ([`Members::follow`]); and not if it is the node behind a configured endpoint, which is reached as
//! configured ([`Members::is_behind`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::endpoints::{Endpoint, Endpoints};

/// Members that are followed. A cluster has three or five, and a list that is longer is not to be believed.
const ADVERTISED_MAX: usize = 32;

/// The endpoints of one store.
#[derive(Debug)]
pub(crate) struct Members {
    configured: Vec<Endpoint>,
    /// What the nodes said last, as far as it can mean something here.
    advertised: Vec<Endpoint>,
    /// Those of them that are not configured, and have answered.
    followed: BTreeSet<Endpoint>,
    /// Those of them that are being tried out.
    tried_out: BTreeSet<Endpoint>,
    /// Those of them whose node is reached at an endpoint that was configured, and at which.
    behind: BTreeMap<Endpoint, Endpoint>,
    /// The numbers of the nodes that have answered at configured endpoints.
    nodes: BTreeMap<Endpoint, u64>,
}

impl Members {
    fn new(configured: &Endpoints) -> Members {
        Members {
            configured: configured.as_slice().to_vec(),
            advertised: Vec::new(),
            followed: BTreeSet::new(),
            tried_out: BTreeSet::new(),
            behind: BTreeMap::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// The nodes have named the members. Returns the addresses that are to be tried out.
    pub fn advertise(&mut self, addresses: &[String]) -> Vec<Endpoint> {
        let endpoints = addresses.iter().take(ADVERTISED_MAX).filter_map(|text| text.parse().ok());
        self.advertised = endpoints.filter(|endpoint| self.is_of_use(endpoint)).collect();
        let advertised = &self.advertised;
        self.followed.retain(|endpoint| advertised.contains(endpoint));
        self.tried_out.retain(|endpoint| advertised.contains(endpoint));
        self.behind.retain(|endpoint, _| advertised.contains(endpoint));
        let new = self.advertised.iter().filter(|endpoint| {
            !self.configured.contains(endpoint)
                && !self.followed.contains(endpoint)
                && !self.tried_out.contains(endpoint)
                && !self.behind.contains_key(endpoint)
        });
        let new: Vec<Endpoint> = new.cloned().collect();
        self.tried_out.extend(new.iter().cloned());
        new
    }

    /// Whether an advertised address can mean the same here as there: not "every address of this machine",
    /// and not "this machine", unless this client was configured to look for the store on its own machine.
    fn is_of_use(&self, endpoint: &Endpoint) -> bool {
        endpoint.socket().is_none()
            && !endpoint.is_unspecified()
            && (!endpoint.is_loopback() || self.configured.iter().any(Endpoint::is_loopback))
    }

    /// Whether the address is still to be tried out.
    pub fn is_tried_out(&self, endpoint: &Endpoint) -> bool {
        self.tried_out.contains(endpoint)
    }

    /// A node of this cluster has answered at an address that is being tried out.
    pub fn follow(&mut self, endpoint: &Endpoint) {
        if self.tried_out.remove(endpoint) {
            self.followed.insert(endpoint.clone());
        }
    }

    /// This node has answered at an endpoint. Remembered for those that were configured.
    pub fn answered(&mut self, endpoint: &Endpoint, node: u64) {
        if endpoint.socket().is_none() && self.configured.contains(endpoint) {
            self.nodes.insert(endpoint.clone(), node);
        }
    }

    /// The configured endpoints that may be the way to a member under another name, and the node that
    /// answered there, if one has.
    pub fn other_names(&self) -> Vec<(Endpoint, Option<u64>)> {
        let unnamed = self
            .configured
            .iter()
            .filter(|endpoint| endpoint.socket().is_none() && !self.advertised.contains(endpoint));
        unnamed.map(|endpoint| (endpoint.clone(), self.nodes.get(endpoint).copied())).collect()
    }

    /// The node at an address that is being tried out is the one behind a configured endpoint: that one is
    /// used.
    pub fn is_behind(&mut self, endpoint: &Endpoint, configured: Endpoint) {
        if self.tried_out.remove(endpoint) {
            self.behind.insert(endpoint.clone(), configured);
        }
    }

    /// The endpoints that are worth trying first (an agent, and whoever is known to be a member), and then
    /// the rest. If no member is known to be reachable, what was configured is all there is.
    fn parts(&self) -> (Vec<Endpoint>, Vec<Endpoint>) {
        let is_member = |endpoint: &Endpoint| {
            self.advertised.contains(endpoint) || self.behind.values().any(|behind| behind == endpoint)
        };
        if self.followed.is_empty() && !self.configured.iter().any(is_member) {
            return (self.configured.clone(), Vec::new());
        }
        let (mut first, rest): (Vec<Endpoint>, Vec<Endpoint>) = (self.configured.iter().cloned())
            .partition(|endpoint| endpoint.socket().is_some() || is_member(endpoint));
        first.extend(self.followed.iter().cloned());
        (first, rest)
    }

    /// All endpoints, in the order in which they are tried.
    pub fn all(&self) -> Vec<Endpoint> {
        let (mut first, rest) = self.parts();
        first.extend(rest);
        first
    }

    /// The endpoint to try after `last`, when so many have failed in a row. Those that are no members any
    /// more are tried once all members have failed.
    pub fn after(&self, last: &Endpoint, failures: usize) -> Endpoint {
        let (mut among, rest) = self.parts();
        if failures >= among.len() {
            among.extend(rest);
        }
        let next = among.iter().position(|endpoint| endpoint == last).map_or(0, |at| at + 1);
        among[next % among.len()].clone()
    }
}

/// The endpoints of one store, shared by all that connect to it.
#[derive(Clone, Debug)]
pub(crate) struct Directory(Arc<Mutex<Members>>);

/// The same, for whoever must not keep it alive.
pub(crate) struct WeakDirectory(Weak<Mutex<Members>>);

impl Directory {
    pub fn new(configured: &Endpoints) -> Directory {
        Directory(Arc::new(Mutex::new(Members::new(configured))))
    }

    pub fn lock(&self) -> MutexGuard<'_, Members> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The endpoint to begin with.
    pub fn first(&self) -> Endpoint {
        self.lock().configured[0].clone()
    }

    pub fn all(&self) -> Vec<Endpoint> {
        self.lock().all()
    }

    pub fn downgrade(&self) -> WeakDirectory {
        WeakDirectory(Arc::downgrade(&self.0))
    }
}

impl WeakDirectory {
    pub fn upgrade(&self) -> Option<Directory> {
        self.0.upgrade().map(Directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().expect("an endpoint")
    }

    fn members(configured: &str) -> Members {
        Members::new(&configured.parse().expect("endpoints"))
    }

    fn texts(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    fn written(endpoints: &[Endpoint]) -> String {
        endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn new_members_are_followed_once_they_have_answered_and_old_ones_are_kept_for_last() {
        let mut members = members("a:1,b:1,c:1");
        assert_eq!(written(&members.advertise(&texts(&["b:1", "c:1", "d:1"]))), "d:1");
        assert_eq!(written(&members.all()), "b:1 c:1 a:1", "d has not answered, a is no member any more");
        members.follow(&endpoint("d:1"));
        assert_eq!(written(&members.all()), "b:1 c:1 d:1 a:1");
        assert_eq!(written(&members.advertise(&texts(&["d:1", "e:1", "f:1"]))), "e:1 f:1");
        assert_eq!(written(&members.advertise(&texts(&["d:1", "e:1", "f:1"]))), "", "once each");
        members.follow(&endpoint("e:1"));
        members.follow(&endpoint("f:1"));
        assert_eq!(
            written(&members.all()),
            "d:1 e:1 f:1 a:1 b:1 c:1",
            "what was configured is never dropped"
        );
        members.advertise(&texts(&["e:1", "f:1"]));
        assert_eq!(written(&members.all()), "e:1 f:1 a:1 b:1 c:1");
        members.follow(&endpoint("d:1"));
        assert!(!members.all().contains(&endpoint("d:1")), "it is no member any more");
    }

    #[test]
    fn an_address_that_means_something_else_here_is_not_followed() {
        let named = texts(&[
            "0.0.0.0:7400",
            "[::]:7400",
            "127.0.0.1:7401",
            "localhost:7402",
            "[::1]:7403",
            "no endpoint",
        ]);
        let mut far = members("10.0.0.1:7400");
        assert_eq!(far.advertise(&named), []);
        assert_eq!(far.advertise(&texts(&["10.0.0.2:7400"])), [endpoint("10.0.0.2:7400")]);
        let mut near = members("127.0.0.1:7400");
        assert_eq!(written(&near.advertise(&named)), "127.0.0.1:7401 localhost:7402 [::1]:7403");
    }

    /// Behind a proxy no member has an address that is configured, and none of them answers.
    #[test]
    fn what_was_configured_is_all_there_is_until_a_member_answers() {
        let mut members = members("proxy:1,proxy:2");
        members.advertise(&texts(&["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]));
        assert_eq!(written(&members.all()), "proxy:1 proxy:2");
        assert_eq!(members.after(&endpoint("proxy:1"), 1), endpoint("proxy:2"));
        assert_eq!(members.after(&endpoint("proxy:2"), 2), endpoint("proxy:1"));
    }

    #[test]
    fn a_node_behind_a_configured_endpoint_is_reached_there_and_not_past_it() {
        let mut members = members("proxy:1,proxy:2");
        members.answered(&endpoint("proxy:1"), 1);
        members.advertise(&texts(&["10.0.0.1:7400", "10.0.0.3:7400"]));
        let names = [(endpoint("proxy:1"), Some(1)), (endpoint("proxy:2"), None)];
        assert_eq!(members.other_names(), names);
        members.is_behind(&endpoint("10.0.0.1:7400"), endpoint("proxy:1"));
        assert_eq!(
            members.advertise(&texts(&["10.0.0.1:7400", "10.0.0.3:7400"])),
            [],
            "it is not tried again"
        );
        members.follow(&endpoint("10.0.0.3:7400"));
        assert_eq!(written(&members.all()), "proxy:1 10.0.0.3:7400 proxy:2", "it is the way to a member");
    }

    #[test]
    fn those_that_are_no_members_are_tried_when_all_members_have_failed() {
        let mut members = members("a:1,b:1,c:1");
        members.advertise(&texts(&["c:1", "d:1"]));
        members.follow(&endpoint("d:1"));
        let mut at = endpoint("c:1");
        let mut order = Vec::new();
        for failures in 1..=5 {
            at = members.after(&at, failures);
            order.push(at.clone());
        }
        assert_eq!(written(&order), "d:1 a:1 b:1 c:1 d:1");
        assert_eq!(members.after(&endpoint("gone:1"), 1), endpoint("c:1"));
    }
}
