//! What both surfaces can ask of a node, in checked types: one function per call.
//!
//! Handlers decode, ask here, and encode. Nothing here decides anything about leases; it takes a turn, puts
//! the command through the log or looks at the machine, and words refusals and failures.

use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Command, Done, FenceView, Grant, HistoryView, HolderName, Holding, LeaseView,
    Machine, OwnSession, Refusal, Register, RegisterKey, RenewalAnswer, ResourceName, Revision, SessionId,
    SessionNumber, SessionView, Token, Verb, Wait,
};
use tenure_replica::Role;
use tenure_wire::{ApiError, Code, json, words};

use crate::acquire::{Acquired, HangUp};
use crate::call_table::Cost;
use crate::context::CallContext;
use crate::failure::Failure;
use crate::front::Api;
use crate::secrets;
use crate::watching::Remembered;

/// How many items a page of a list has, if the caller does not say, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;
/// Renewals in one request: what a host agent with many processes sends at once.
const RENEWALS_MAX: usize = 20_000;
/// An election takes about this long.
const LEADER_AFTER: Duration = Duration::from_millis(500);

/// A session as its opener sees it.
pub(crate) struct OpenReply {
    pub session: SessionId,
    pub holder: HolderName,
    pub ttl: Duration,
    /// The number of the transmission that this answers.
    pub number: u64,
}

/// All resources asked for are held.
pub(crate) struct Granted {
    pub grants: Vec<Grant>,
    /// Set when the acquire opened its session and counts as its open: the number of that transmission.
    pub opened: Option<u64>,
    /// Undoes a plain acquire if its caller hangs up before the answer has left.
    pub hang_up: Option<HangUp>,
}

/// What an acquire is answered.
pub(crate) enum AcquireOutcome {
    Granted(Granted),
    /// Still queued after the time that the call waits.
    Queued {
        session: SessionId,
        ttl: Duration,
        ahead: u32,
    },
}

/// Leases under notice, or ended.
pub(crate) struct Revoked {
    pub holdings: Vec<Holding>,
    pub token: Option<Token>,
}

/// Registers read and written.
pub(crate) struct Written {
    pub succeeded: bool,
    pub revision: Revision,
    pub results: Vec<Register>,
}

/// How a failure is reported: what the caller may assume, and when to ask again.
pub(crate) fn failed(failure: Failure) -> ApiError {
    match failure {
        Failure::NoLeader { .. } => ApiError::no_leader(LEADER_AFTER),
        Failure::Overloaded { retry_after } => ApiError::overloaded("a queue is full", retry_after),
        Failure::Unknown { reason } => ApiError::unknown_outcome(&reason),
        Failure::Stopping => stopping(),
        Failure::NeedsUpgrade { agreed } => ApiError::new(
            Code::UpgradeNeeded,
            format!(
                "the cluster has agreed on format version {agreed}, which cannot say this; nothing was done"
            ),
        )
        .hint("when every node runs this release, run `tenure cluster upgrade`"),
    }
}

/// This node is going away.
pub(crate) fn stopping() -> ApiError {
    ApiError::new(Code::ShuttingDown, "this node is shutting down; nothing was done")
        .hint("ask another node, or this one again once it is back")
        .retry_after(LEADER_AFTER)
}

/// How many items a page may have.
pub(crate) fn page(limit: Option<u64>) -> Result<usize, ApiError> {
    match limit {
        None => Ok(PAGE_DEFAULT),
        Some(0) => {
            Err(ApiError::invalid("a limit of 0 lists nothing").hint(format!("ask for 1 to {PAGE_MAX}")))
        }
        // More than a page is no mistake: the answer says where to go on.
        Some(limit) => Ok(usize::try_from(limit).unwrap_or(PAGE_MAX).min(PAGE_MAX)),
    }
}

/// The machine answered a command with what belongs to another: a bug of this node.
fn unexpected<T>(done: &Done) -> Result<T, ApiError> {
    tracing::error!(?done, "an answer does not fit its command");
    Err(ApiError::new(Code::Internal, "the answer does not fit the command")
        .hint("this is a bug of the server; its log says more"))
}

/// A number is answered as it was the first time, and the first time it was another command that had it.
fn used_before<T>(done: &Done) -> Result<T, ApiError> {
    tracing::debug!(?done, "the answer to another command of that number");
    Err(ApiError::invalid("another command of this session has had this number; nothing was done").hint(
        "give every command of a session a higher number than all before; the same one only to ask again",
    ))
}

impl Api {
    /// Puts a short command through the log.
    async fn submit(&self, context: &CallContext, command: Command) -> Result<Done, ApiError> {
        context.note(&command);
        let _turn = self.turn(context.row.cost)?;
        Ok(self.node.submit(&context.identity, command).await.map_err(failed)??)
    }

    /// Looks at the machine: at everything acknowledged before, or only at what this node has applied.
    pub async fn look<T>(
        &self,
        context: &CallContext,
        stale: bool,
        look: impl FnOnce(&Machine) -> T + Send,
    ) -> Result<T, ApiError> {
        let _turn = self.turn(context.row.cost)?;
        if stale { Ok(self.node.glance(look)) } else { self.node.read(look).await.map_err(failed) }
    }

    /// For commands that answer with nothing.
    pub async fn submit_without_result(
        &self,
        context: &CallContext,
        command: Command,
    ) -> Result<(), ApiError> {
        match self.submit(context, command).await? {
            Done::Nothing => Ok(()),
            other => used_before(&other),
        }
    }

    // Sessions.

    pub async fn open(&self, context: &CallContext, command: Command) -> Result<OpenReply, ApiError> {
        match self.submit(context, command).await? {
            Done::Opened { session, holder, ttl, number } => Ok(OpenReply { session, holder, ttl, number }),
            other => unexpected(&other),
        }
    }

    /// Renews sessions; answers in order.
    pub async fn renew(
        &self,
        context: &CallContext,
        renewals: Vec<(SessionId, u64)>,
    ) -> Result<Vec<RenewalAnswer>, ApiError> {
        if renewals.len() > RENEWALS_MAX {
            return Err(ApiError::invalid(format!("{} renewals in one request", renewals.len()))
                .hint(format!("send at most {RENEWALS_MAX} at once")));
        }
        let _turn = self.turn(context.row.cost)?;
        self.node.renew(&context.identity, renewals).await.map_err(failed)
    }

    /// Closes a session and says how many leases it gave back.
    pub async fn close(&self, context: &CallContext, command: Command) -> Result<u32, ApiError> {
        match self.submit(context, command).await? {
            Done::Closed { released } => Ok(released),
            other => unexpected(&other),
        }
    }

    pub async fn sessions(
        &self,
        context: &CallContext,
        after: Option<SessionNumber>,
        limit: usize,
    ) -> Result<(Vec<SessionView>, Option<SessionNumber>), ApiError> {
        self.look_as(context, false, |machine, _| {
            let (mut sessions, next) = machine.sessions(after, limit);
            sessions.retain(|session| machine.permits_session(&context.identity, session.identity.as_ref()));
            Ok((sessions, next))
        })
        .await
    }

    /// One's own session: what it is, what it holds and what it waits for.
    pub async fn own_session(&self, context: &CallContext, id: &SessionId) -> Result<OwnSession, ApiError> {
        let own = |machine: &Machine| {
            let id = &secrets::stored_id(*id, machine);
            machine.own_session(id).filter(|_| machine.knows_as(&context.identity, id))
        };
        let found = self.look(context, false, own).await?;
        Ok(found.ok_or(Refusal::UnknownSession)?)
    }

    // Leases.

    /// Acquires, in the queue if asked to. The call is under way until the acquire is granted or refused, or for as
    /// long as `poll_ms` says.
    pub async fn acquire(
        &self,
        context: &CallContext,
        acquire: Acquire,
        poll_ms: Option<u64>,
    ) -> Result<AcquireOutcome, ApiError> {
        let repeatable = match &acquire.by {
            AcquireBy::Session(by) => by.number.is_some(),
            AcquireBy::Opening(open) => open.nonce.is_some(),
        };
        if poll_ms.is_some() && !repeatable {
            return Err(ApiError::invalid("poll_ms is for acquires that can be repeated").hint(
                "give a `number` within a session, or a `nonce`, and repeat the request under the same one",
            ));
        }
        let poll = poll_ms.map(Duration::from_millis);
        if context.subject.is_some() {
            context.note(&Command::Acquire(Box::new(acquire.clone())));
        }
        let acquired = if acquire.wait == Wait::No {
            let _turn = self.turn(Cost::Command)?;
            self.node.acquire(&context.identity, acquire, poll).await
        } else {
            let _turn = self.turn(context.row.cost)?;
            let _counted = self.traffic.waiting();
            tokio::select! {
                biased;
                acquired = self.node.acquire(&context.identity, acquire, poll) => acquired,
                // Whether it was granted at this very moment is not known here.
                () = self.stopping() => Err(Failure::Unknown { reason: "this node is shutting down".into() }),
            }
        };
        match acquired.map_err(failed)? {
            Acquired::Over(answer, hang_up) => match answer? {
                Done::Granted { grants, opened } => {
                    Ok(AcquireOutcome::Granted(Granted { grants, opened, hang_up }))
                }
                Done::Queued { .. } => {
                    Err(ApiError::invalid("this session is queued for it already, by another call")
                        .hint("give wait_ms to wait with that call"))
                }
                other => used_before(&other),
            },
            Acquired::Queued { session, ttl, ahead } => Ok(AcquireOutcome::Queued { session, ttl, ahead }),
        }
    }

    /// Cancels an acquire and says whether it had been granted.
    pub async fn cancel(&self, context: &CallContext, command: Command) -> Result<bool, ApiError> {
        match self.submit(context, command).await? {
            Done::Cancelled { released } => Ok(released),
            other => used_before(&other),
        }
    }

    /// Releases a lease and says whether there was one.
    pub async fn release(&self, context: &CallContext, command: Command) -> Result<bool, ApiError> {
        match self.submit(context, command).await? {
            Done::Released { released } => Ok(released),
            other => used_before(&other),
        }
    }

    pub async fn transfer(&self, context: &CallContext, command: Command) -> Result<Grant, ApiError> {
        match self.submit(context, command).await? {
            Done::Transferred(grant) => Ok(*grant),
            other => used_before(&other),
        }
    }

    pub async fn revoke(&self, context: &CallContext, command: Command) -> Result<Revoked, ApiError> {
        match self.submit(context, command).await? {
            Done::Revoked { holdings, token } => Ok(Revoked { holdings, token }),
            other => unexpected(&other),
        }
    }

    /// Takes a token without a holder.
    pub async fn barrier(&self, context: &CallContext, resource: ResourceName) -> Result<Token, ApiError> {
        match self.submit(context, Command::Barrier { resource }).await? {
            Done::BarrierTaken { token } => Ok(token),
            other => unexpected(&other),
        }
    }

    pub async fn lease(
        &self,
        context: &CallContext,
        name: &ResourceName,
        stale: bool,
    ) -> Result<(LeaseView, Revision), ApiError> {
        let (lease, revision) = self
            .look_as(context, stale, |machine, access| {
                access.check(Verb::Read, name.as_str())?;
                Ok((machine.lease(name), machine.revision()))
            })
            .await?;
        Ok((lease.ok_or_else(|| ApiError::not_found("resource", name.as_str()))?, revision))
    }

    pub async fn leases(
        &self,
        context: &CallContext,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
        stale: bool,
    ) -> Result<(Vec<LeaseView>, Option<ResourceName>, Revision), ApiError> {
        self.look_as(context, stale, |machine, access| {
            let (mut leases, next) = machine.leases(prefix, after, limit);
            leases.retain(|lease| access.reads_resource(&lease.resource));
            Ok((leases, next, machine.revision()))
        })
        .await
    }

    /// The present and past leases of a resource.
    pub async fn history(&self, context: &CallContext, name: &ResourceName) -> Result<HistoryView, ApiError> {
        let found = self
            .look_as(context, false, |machine, access| {
                access.check(Verb::Read, name.as_str())?;
                Ok(machine.history(name))
            })
            .await?;
        found.ok_or_else(|| ApiError::not_found("resource", name.as_str()))
    }

    /// The present and past leases of many resources.
    pub async fn histories(
        &self,
        context: &CallContext,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
        stale: bool,
    ) -> Result<(Vec<HistoryView>, Option<ResourceName>), ApiError> {
        self.look_as(context, stale, |machine, access| {
            let (mut histories, next) = machine.histories(prefix, after, limit);
            histories.retain(|history| access.reads_resource(&history.resource));
            Ok((histories, next))
        })
        .await
    }

    /// What is remembered of what happened, from revision `from` on or from the oldest: about `limit` events, a revision
    /// always whole.
    pub async fn events(
        &self,
        context: &CallContext,
        prefix: &str,
        from: Option<u64>,
        limit: usize,
        stale: bool,
    ) -> Result<Remembered, ApiError> {
        let _turn = self.turn(context.row.cost)?;
        if !stale {
            self.node.ready().await.map_err(failed)?;
        }
        Remembered::page(&self.node, &context.identity, prefix, from, limit).await
    }

    // Registers.

    pub async fn write(&self, context: &CallContext, command: Command) -> Result<Written, ApiError> {
        match self.submit(context, command).await? {
            Done::Written { succeeded, revision, results } => Ok(Written { succeeded, revision, results }),
            other => used_before(&other),
        }
    }

    pub async fn register(
        &self,
        context: &CallContext,
        key: &RegisterKey,
        stale: bool,
    ) -> Result<(Register, Revision), ApiError> {
        self.look_as(context, stale, |machine, access| {
            access.check(Verb::Read, key.as_bytes())?;
            Ok((machine.register(key), machine.revision()))
        })
        .await
    }

    pub async fn registers(
        &self,
        context: &CallContext,
        prefix: &[u8],
        after: Option<&RegisterKey>,
        limit: usize,
        stale: bool,
    ) -> Result<(Vec<Register>, Option<RegisterKey>, Revision), ApiError> {
        self.look_as(context, stale, |machine, access| {
            let (mut registers, next) = machine.registers(prefix, after, limit);
            registers.retain(|register| access.reads_register(&register.key));
            Ok((registers, next, machine.revision()))
        })
        .await
    }

    // Fences.

    /// The fences of the resources whose names begin with `prefix`, after `after`; and where to go on. `limit` counts
    /// resources.
    pub async fn fences(
        &self,
        context: &CallContext,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<(Vec<FenceView>, Option<ResourceName>), ApiError> {
        self.look_as(context, false, |machine, access| {
            let (mut fences, next) = machine.fences(prefix, after, limit);
            fences.retain(|fence| access.reads_resource(&fence.resource));
            Ok((fences, next))
        })
        .await
    }

    // The node.

    /// Whether a leader is known and serves.
    pub async fn ready(&self) -> Result<(), ApiError> {
        self.node.ready().await.map_err(failed)
    }
}

/// A node whose state comes from a snapshot can tell the state's log index only if nothing is applied meanwhile: on a
/// busy node that takes a few attempts.
const HASH_ATTEMPTS: usize = 16;

impl Api {
    /// The cluster as this node sees it. Not a decision, so it may be stale, and it is there without a leader.
    pub async fn cluster(
        &self,
        context: &CallContext,
        with_state_hash: bool,
    ) -> Result<json::ClusterStatus, ApiError> {
        let _turn = self.turn(context.row.cost)?;
        let status = self.node.status().replica;
        let mut applied = status.applied;
        let mut state_hash = None;
        if with_state_hash {
            let state = (0..HASH_ATTEMPTS).find_map(|_| self.node.state_with_index());
            if let Some((index, state)) = state {
                applied = Some(index);
                let hash = tokio::task::spawn_blocking(move || state.state_hash()).await;
                state_hash = hash.ok().map(|hash| words::hex(&hash.to_be_bytes()));
            }
        }
        let everybody = self.node.everybody().await;
        // Until another is elected the engine names the last leader, dead or alive. One that does not answer leads
        // nobody who asks here.
        let leader = status
            .leader
            .filter(|leader| everybody.iter().any(|node| node.node == *leader && node.reachable));
        let format = self.node.format();
        let format_next = crate::upgrade::possible(format, &everybody).map(|next| next.get().into());
        let nodes = everybody.iter().map(Into::into);
        Ok(self.node.glance(|machine| {
            let counts = machine.counts();
            let restoring = machine.grants_in();
            json::ClusterStatus {
                cluster: words::hex(&machine.settings().cluster),
                leader,
                term: status.term,
                nodes: nodes.collect(),
                node: status.node,
                applied: applied.unwrap_or(0),
                committed: status.committed.unwrap_or(0),
                revision: machine.revision().get(),
                last_token: machine.last_token().map_or(0, Token::get),
                cluster_time_us: machine.time().as_micros(),
                sessions: counts.sessions as u64,
                leases: counts.leases as u64,
                waiters: counts.waiters as u64,
                state_hash,
                fault_tolerant: status.voters.len() > 2 && !status.changing,
                restoring_ms: (!restoring.is_zero()).then(|| words::millis(restoring)),
                staging: machine.staging().map(|staging| json::RestoreStaging {
                    pieces: staging.pieces,
                    records: staging.records,
                    bytes: staging.bytes,
                    discarded_in_ms: words::millis(staging.kept_for),
                }),
                format: format.get().into(),
                format_next,
                insecure: self.traffic.is_insecure(),
                plain_sessions: Some(machine.plain_sessions() as u64).filter(|plain| *plain > 0),
            }
        }))
    }
}

/// What a node is to the others.
pub(crate) fn role_in_words(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Stopped => "stopped",
    }
}
