//! What a caller may see, and whether a call may be tried at all.
//!
//! Commands are judged when they are applied, on every node alike; here is what has no command: reads, what is done to
//! the cluster itself, and views of who may do what. Each is judged by the state that the answer comes from, after the
//! read index. Nothing here holds a rule: it asks the machine.

use tenure_core::{
    CredentialId, Event, EventKind, Identity, Machine, RegisterKey, ResourceName, Scope, Verb, Verdict,
};
use tenure_wire::{ApiError, json};

use crate::calls::failed;
use crate::context::CallContext;
use crate::front::Api;
use crate::node::Node;

/// What concerns the whole cluster.
pub(crate) const EVERYTHING: &str = "*";

/// A caller before the machine that judges it.
#[derive(Clone, Copy)]
pub(crate) struct Access<'a> {
    machine: &'a Machine,
    identity: &'a Identity,
}

impl<'a> Access<'a> {
    pub fn new(machine: &'a Machine, identity: &'a Identity) -> Access<'a> {
        Access { machine, identity }
    }

    /// Refuses what this caller may not do, in the words of the machine.
    pub fn check(&self, verb: Verb, on: impl AsRef<[u8]>) -> Result<(), ApiError> {
        match self.machine.permits(self.identity, verb, on.as_ref()) {
            Verdict::Allowed { .. } => Ok(()),
            Verdict::Denied { .. } => Err((&self.machine.denial(self.identity, verb, on)).into()),
        }
    }

    /// Refuses a caller that may do this nowhere.
    pub fn check_somewhere(&self, verb: Verb) -> Result<(), ApiError> {
        match self.machine.permits_somewhere(self.identity, verb) {
            true => Ok(()),
            false => Err((&self.machine.denial(self.identity, verb, EVERYTHING)).into()),
        }
    }

    pub fn reads(&self, name: impl AsRef<[u8]>) -> bool {
        self.machine.permits(self.identity, Verb::Read, name).is_allowed()
    }

    pub fn reads_resource(&self, name: &ResourceName) -> bool {
        self.reads(name.as_str())
    }

    pub fn reads_register(&self, key: &RegisterKey) -> bool {
        self.reads(key.as_bytes())
    }

    /// Whether this caller may see this event. What happens to sessions is seen by their own identities, and by those
    /// who may read everything; so is what happens to the cluster.
    pub fn sees(&self, event: &Event) -> bool {
        if !self.machine.enforced() {
            return true;
        }
        let reads_scope = |scope: &Scope| self.reads_resource(&scope.resource);
        match &event.kind {
            EventKind::Granted { resource, .. }
            | EventKind::Ended { resource, .. }
            | EventKind::Noticed { resource, .. }
            | EventKind::Queued { resource, .. }
            | EventKind::Unqueued { resource, .. }
            | EventKind::Barrier { resource, .. } => self.reads_resource(resource),
            EventKind::Put { key, .. } | EventKind::Deleted { key } => self.reads_register(key),
            EventKind::Armed { scope, .. } | EventKind::Refused { scope, .. } => reads_scope(scope),
            EventKind::Opened { .. }
            | EventKind::Closed { .. }
            | EventKind::Lapsed { .. }
            | EventKind::Paused { .. } => {
                self.machine.permits_session(self.identity, event.identity.as_ref())
            }
            EventKind::BecameLeader { .. } => true,
            // A resource, a register, a key, a policy: whoever reads what has that name.
            EventKind::Changed { what, .. } => self.reads(&**what),
        }
    }
}

/// Whether the call may be tried at all. What it names is judged later: when the command is applied, or when the answer
/// to a read is made. What changes the cluster itself names nothing, so it is judged here, by a confirmed reading.
pub(crate) async fn may_call(node: &Node, context: &CallContext) -> Result<(), ApiError> {
    let (identity, verb) = (&context.identity, context.row.verb);
    let judge = |machine: &Machine| {
        let access = Access::new(machine, identity);
        match verb {
            Verb::Public => Ok(()),
            Verb::Operate => access.check(verb, EVERYTHING),
            _ => access.check_somewhere(verb),
        }
    };
    match verb {
        Verb::Public => Ok(()),
        // What this node shows of itself must be there without a leader.
        Verb::Observe => node.glance(judge),
        Verb::Operate => match node.read(judge).await {
            Ok(judged) => judged,
            // Without a leader only what this node knows can be judged; what needs the leader fails by itself.
            Err(_) => node.glance(judge),
        },
        _ => match node.glance(judge) {
            Ok(()) => Ok(()),
            // This node may be behind: only a confirmed reading may refuse.
            Err(_) => node.read(judge).await.map_err(failed)?,
        },
    }
}

impl Api {
    /// Looks at the machine, with who is looking.
    pub async fn look_as<T: Send>(
        &self,
        context: &CallContext,
        stale: bool,
        look: impl FnOnce(&Machine, Access<'_>) -> Result<T, ApiError> + Send,
    ) -> Result<T, ApiError> {
        self.look(context, stale, |machine| look(machine, Access::new(machine, &context.identity))).await?
    }

    /// The credentials after this one, for those who may grant.
    pub async fn credentials(
        &self,
        context: &CallContext,
        after: Option<CredentialId>,
        limit: usize,
    ) -> Result<json::Credentials, ApiError> {
        self.look_as(context, false, |machine, access| {
            access.check_somewhere(Verb::Grant)?;
            let wall = machine.authority_wall();
            let mut rest = machine.credentials().filter(|(id, _)| after.is_none_or(|after| *id > after));
            let page =
                rest.by_ref().take(limit).map(|(id, credential)| json::Credential::of(id, credential, wall));
            let credentials: Vec<_> = page.collect();
            let next = rest.next().and_then(|_| credentials.last().map(|last| last.id.clone()));
            Ok(json::Credentials { credentials, next })
        })
        .await
    }

    /// All policies, for those who may grant.
    pub async fn policies(&self, context: &CallContext) -> Result<json::PolicyList, ApiError> {
        self.look_as(context, false, |machine, access| {
            access.check_somewhere(Verb::Grant)?;
            let policies = machine.policies().map(|(name, policy)| json::NamedPolicy::of(name, policy));
            Ok(json::PolicyList { enforced: machine.enforced(), policies: policies.collect() })
        })
        .await
    }

    /// Who the caller is, and what it may do.
    pub async fn who_am_i(&self, context: &CallContext) -> Result<json::WhoAmI, ApiError> {
        let identity = &context.identity;
        self.look_as(context, false, |machine, _| {
            let policies =
                machine.policies_of(identity).map(|(name, policy)| json::NamedPolicy::of(name, policy));
            let used = machine.used_by(identity).map(|(policy, leases, waiters)| json::Used {
                policy: policy.to_string(),
                leases,
                waiters,
            });
            Ok(json::WhoAmI {
                identity: identity.to_string(),
                credential: identity.credential().map(|id| id.to_string()),
                standing: json::standing(machine.standing(identity)).into(),
                enforced: machine.enforced(),
                operator: *identity == Identity::Operator,
                policies: policies.collect(),
                sessions: machine.sessions_of(identity),
                used: used.collect(),
            })
        })
        .await
    }

    /// Whether somebody may do something, and by which policy. About others only those are told who may grant.
    pub async fn explain_access(
        &self,
        context: &CallContext,
        asked: &json::ExplainAccess,
    ) -> Result<json::Explained, ApiError> {
        let verb: Verb = asked.verb.parse()?;
        let about = asked.about()?;
        self.look_as(context, false, |machine, access| {
            let others = about.as_ref().filter(|about| !about.is_same(&context.identity));
            if others.is_some() {
                access.check_somewhere(Verb::Grant)?;
            }
            let identity = others.unwrap_or(&context.identity);
            let (allowed, policy, nearest) = match machine.judge(identity, verb, asked.on.as_str()) {
                Verdict::Allowed { by } => (true, by, None),
                Verdict::Denied { nearest } => (false, None, nearest),
            };
            Ok(json::Explained {
                identity: identity.to_string(),
                verb: verb.to_string(),
                on: asked.on.clone(),
                allowed,
                policy: policy.map(|name| name.to_string()),
                nearest: nearest.map(|name| name.to_string()),
                enforced: machine.enforced(),
            })
        })
        .await
    }
}
