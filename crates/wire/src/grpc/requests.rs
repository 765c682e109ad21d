//! Requests as commands, and commands as requests: both directions of each in one place.
//!
//! A request has whole milliseconds. A length that is not one is rounded down, but a wait never to nothing.

use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Caller, Command, Compare, CompareField, CompareOp, EndReason, FenceName, Guard,
    HolderName, KindSetting, Mode, Nonce, Open, Operation, Policies, RegisterKey, ResourceName, Revision,
    Scope, Secret, SessionId, SessionNumber, Slot, Token, Wait, Write,
};

use crate::error::ApiError;
use crate::json::checked_reason;
use crate::proto;
use crate::words::{millis, nonce};

/// A resource's name.
pub fn resource(name: String) -> Result<ResourceName, ApiError> {
    Ok(ResourceName::try_from(name)?)
}

/// The resource after which a page begins; none for the first page.
pub fn after_resource(name: String) -> Result<Option<ResourceName>, ApiError> {
    if name.is_empty() { Ok(None) } else { resource(name).map(Some) }
}

/// A register's key.
pub fn key(bytes: &[u8]) -> Result<RegisterKey, ApiError> {
    Ok(RegisterKey::try_from(bytes)?)
}

/// `Sessions.Open`; `secret` is drawn by the proposer.
pub fn open(request: proto::SessionOpenRequest, secret: Secret) -> Result<Command, ApiError> {
    let proto::SessionOpenRequest { holder, ttl_ms, nonce, number } = request;
    open_session(holder, ttl_ms, &nonce, number, secret).map(Command::Open)
}

/// `Sessions.Open`, asked. The session's secret is the server's to draw.
pub fn open_request(
    holder: &HolderName,
    ttl: Duration,
    nonce: Option<Nonce>,
    number: u64,
) -> proto::SessionOpenRequest {
    proto::SessionOpenRequest {
        holder: holder.to_string(),
        ttl_ms: millis(ttl),
        nonce: nonce.map(|nonce| nonce.as_bytes().to_vec()).unwrap_or_default(),
        number,
    }
}

pub(super) fn open_session(
    holder: String,
    ttl_ms: u64,
    nonce_bytes: &[u8],
    number: u64,
    secret: Secret,
) -> Result<Open, ApiError> {
    Ok(Open {
        holder: HolderName::try_from(holder)?,
        ttl: Duration::from_millis(ttl_ms),
        nonce: if nonce_bytes.is_empty() { None } else { Some(nonce(nonce_bytes)?) },
        secret,
        number,
    })
}

/// `Sessions.Close`
pub fn close(request: proto::SessionCloseRequest) -> Result<Command, ApiError> {
    let why = if request.died { EndReason::Died } else { EndReason::Released };
    Ok(Command::Close { by: caller(request.caller)?, why })
}

/// `Sessions.Close`, asked.
pub fn close_request(by: &Caller, why: EndReason) -> proto::SessionCloseRequest {
    proto::SessionCloseRequest { caller: Some(by.into()), died: why == EndReason::Died }
}

/// `Sessions.Seen`
pub fn seen(request: &proto::SessionSeenRequest) -> Result<Command, ApiError> {
    Ok(Command::Seen { session: request.session.parse()?, revision: Revision::new(request.revision) })
}

/// `Sessions.ReportPause`
pub fn report_pause(request: &proto::ReportPauseRequest) -> Result<Command, ApiError> {
    Ok(Command::Paused {
        session: request.session.parse()?,
        length: Duration::from_millis(request.paused_ms),
    })
}

/// `Leases.Acquire`; `secret` is drawn by the proposer in case this opens a session.
pub fn acquire(request: proto::AcquireRequest, secret: Secret) -> Result<Acquire, ApiError> {
    use proto::acquire_request::By;
    let by = match request.by {
        Some(By::Caller(by)) => AcquireBy::Session(caller(Some(by))?),
        Some(By::Opening(proto::Opening { holder, ttl_ms, nonce, number })) => {
            AcquireBy::Opening(open_session(holder, ttl_ms, &nonce, number, secret)?)
        }
        None => {
            return Err(ApiError::invalid("nobody acquires")
                .hint("set `caller` to a session, or `opening` for one that the acquire opens"));
        }
    };
    acquire_of(by, request.resources, request.mode, request.wait, request.policies, request.fences)
}

/// `Leases.Acquire`, asked.
impl From<&Acquire> for proto::AcquireRequest {
    fn from(acquire: &Acquire) -> proto::AcquireRequest {
        use proto::acquire_request::By;
        let by = match &acquire.by {
            AcquireBy::Session(by) => By::Caller(by.into()),
            AcquireBy::Opening(open) => {
                let proto::SessionOpenRequest { holder, ttl_ms, nonce, number } =
                    open_request(&open.holder, open.ttl, open.nonce, open.number);
                By::Opening(proto::Opening { holder, ttl_ms, nonce, number })
            }
        };
        let proto::StreamAcquire { resources, mode, wait, policies, fences } = acquire.into();
        proto::AcquireRequest { by: Some(by), resources, mode, wait, policies, fences, poll_ms: None }
    }
}

/// An acquire on a stream, which names the session beside it.
impl From<&Acquire> for proto::StreamAcquire {
    fn from(acquire: &Acquire) -> proto::StreamAcquire {
        proto::StreamAcquire {
            resources: acquire.resources.iter().map(ToString::to_string).collect(),
            mode: Some(acquire.mode.into()),
            wait: wait_request(acquire.wait),
            policies: Some((&acquire.policies).into()),
            fences: acquire.fences.iter().map(ToString::to_string).collect(),
        }
    }
}

pub(super) fn acquire_of(
    by: AcquireBy,
    resources: Vec<String>,
    mode_asked: Option<proto::Mode>,
    wait_asked: Option<proto::Wait>,
    policies_asked: Option<proto::Policies>,
    fences: Vec<String>,
) -> Result<Acquire, ApiError> {
    Ok(Acquire {
        by,
        resources: resources.into_iter().map(resource).collect::<Result<_, _>>()?,
        mode: mode(mode_asked)?,
        wait: wait(wait_asked),
        policies: policies(policies_asked.unwrap_or_default()),
        fences: fences.into_iter().map(FenceName::try_from).collect::<Result<_, _>>()?,
        transmission: None,
    })
}

/// `Leases.Cancel`
pub fn cancel(request: proto::CancelRequest) -> Result<Command, ApiError> {
    if request.caller.is_none() && !request.nonce.is_empty() {
        return Ok(Command::CancelNonce { nonce: nonce(&request.nonce)? });
    }
    Ok(Command::Cancel { by: caller(request.caller)?, acquire: request.acquire })
}

/// `Leases.Cancel`, asked, of an acquire that opened its session.
pub fn cancel_nonce_request(nonce: Nonce) -> proto::CancelRequest {
    proto::CancelRequest { nonce: nonce.as_bytes().to_vec(), ..proto::CancelRequest::default() }
}

/// `Leases.Release`
pub fn release(request: proto::ReleaseRequest) -> Result<Command, ApiError> {
    Ok(Command::Release {
        by: caller(request.caller)?,
        resource: resource(request.resource)?,
        token: request.token.map(Token::try_from).transpose()?,
        rest: request.rest_ms.map(Duration::from_millis),
    })
}

/// `Leases.Release`, asked.
pub fn release_request(
    by: &Caller,
    resource: &ResourceName,
    token: Option<Token>,
    rest: Option<Duration>,
) -> proto::ReleaseRequest {
    proto::ReleaseRequest {
        caller: Some(by.into()),
        resource: resource.to_string(),
        token: token.map(Token::get),
        rest_ms: rest.map(millis),
    }
}

/// `Leases.Transfer`
pub fn transfer(request: proto::TransferRequest) -> Result<Command, ApiError> {
    Ok(Command::Transfer {
        by: caller(request.caller)?,
        resource: resource(request.resource)?,
        to: SessionNumber::new(request.to),
    })
}

/// `Leases.Transfer`, asked.
pub fn transfer_request(by: &Caller, resource: &ResourceName, to: SessionNumber) -> proto::TransferRequest {
    proto::TransferRequest { caller: Some(by.into()), resource: resource.to_string(), to: to.get() }
}

/// `Leases.Revoke`
pub fn revoke(request: proto::RevokeRequest) -> Result<Command, ApiError> {
    Ok(Command::Revoke {
        resource: resource(request.resource)?,
        session: request.session_number.map(SessionNumber::new),
        now: request.now,
        reason: checked_reason(&request.reason)?,
    })
}

/// `Leases.Revoke`, asked.
pub fn revoke_request(
    resource: &ResourceName,
    session: Option<SessionNumber>,
    now: bool,
    reason: &str,
) -> proto::RevokeRequest {
    proto::RevokeRequest {
        resource: resource.to_string(),
        session_number: session.map(SessionNumber::get),
        now,
        reason: reason.to_owned(),
    }
}

/// `Leases.Barrier`
pub fn barrier(request: proto::BarrierRequest) -> Result<Command, ApiError> {
    Ok(Command::Barrier { resource: resource(request.resource)? })
}

/// `Registers.Write`
pub fn write(request: proto::WriteRequest) -> Result<Command, ApiError> {
    let by = request.caller.map(|by| caller(Some(by))).transpose()?;
    write_of(by, request.compares, request.then, request.otherwise)
}

/// `Registers.Write`, asked.
impl From<&Write> for proto::WriteRequest {
    fn from(write: &Write) -> proto::WriteRequest {
        let proto::StreamWrite { compares, then, otherwise } = write.into();
        proto::WriteRequest { caller: write.by.as_ref().map(Into::into), compares, then, otherwise }
    }
}

/// A write on a stream, which names the session beside it.
impl From<&Write> for proto::StreamWrite {
    fn from(write: &Write) -> proto::StreamWrite {
        proto::StreamWrite {
            compares: write.compares.iter().map(Into::into).collect(),
            then: write.then.iter().map(Into::into).collect(),
            otherwise: write.otherwise.iter().map(Into::into).collect(),
        }
    }
}

pub(super) fn write_of(
    by: Option<Caller>,
    compares: Vec<proto::Compare>,
    then: Vec<proto::Operation>,
    otherwise: Vec<proto::Operation>,
) -> Result<Command, ApiError> {
    Ok(Command::Write(Box::new(Write {
        by,
        compares: compares.into_iter().map(compare).collect::<Result<_, _>>()?,
        then: then.into_iter().map(operation).collect::<Result<_, _>>()?,
        otherwise: otherwise.into_iter().map(operation).collect::<Result<_, _>>()?,
    })))
}

/// `Fences.Arm`
pub fn arm(request: proto::ArmRequest) -> Result<Command, ApiError> {
    Ok(Command::Arm {
        scope: scope(request.scope)?,
        fence: request.fence.try_into()?,
        token: request.token.try_into()?,
    })
}

/// `Fences.ReportRefused`
pub fn report_refused(request: proto::ReportRefusedRequest) -> Result<Command, ApiError> {
    Ok(Command::Refused {
        scope: scope(request.scope)?,
        fence: request.fence.try_into()?,
        presented: request.presented.try_into()?,
        seen: request.seen.try_into()?,
        count: request.count,
    })
}

/// `Fences.Remove`
pub fn remove_fence(request: proto::FenceRemoveRequest) -> Result<Command, ApiError> {
    Ok(Command::RemoveFence { resource: resource(request.resource)?, fence: request.fence.try_into()? })
}

/// `Sessions.Renew`: the sessions and the numbers of the transmissions.
pub fn renewals(request: &proto::SessionRenewRequest) -> Result<Vec<(SessionId, u64)>, ApiError> {
    let renewal = |renewal: &proto::SessionRenewal| Ok((renewal.session.parse()?, renewal.number));
    request.renewals.iter().map(renewal).collect()
}

/// `Cluster.SetKind`
pub fn set_kind(request: proto::SetKindRequest) -> Result<Command, ApiError> {
    let kind = match proto::ResourceKind::try_from(request.kind) {
        Ok(proto::ResourceKind::Unspecified) => None,
        Ok(proto::ResourceKind::Lock) => Some(KindSetting::Lock),
        Ok(proto::ResourceKind::Semaphore) => Some(KindSetting::Semaphore(request.slots)),
        Err(_) => return Err(ApiError::invalid(format!("{} is no kind of resource", request.kind))),
    };
    Ok(Command::SetKind { resource: resource(request.resource)?, kind })
}

/// `Cluster.Rebind`
pub fn rebind(request: proto::RebindRequest) -> Result<Command, ApiError> {
    let guard = request.guard.map(|guard| scope(Some(guard))).transpose()?;
    Ok(Command::Rebind { key: key(&request.key)?, guard })
}

fn caller(caller: Option<proto::Caller>) -> Result<Caller, ApiError> {
    let caller = caller.ok_or_else(|| ApiError::invalid("caller is missing").hint("name the session"))?;
    Ok(Caller {
        session: caller.session.parse()?,
        number: caller.number,
        lowest_awaited: caller.lowest_awaited,
    })
}

impl From<&Caller> for proto::Caller {
    fn from(by: &Caller) -> proto::Caller {
        proto::Caller {
            session: by.session.to_string(),
            number: by.number,
            lowest_awaited: by.lowest_awaited,
        }
    }
}

fn mode(mode: Option<proto::Mode>) -> Result<Mode, ApiError> {
    let Some(mode) = mode else { return Ok(Mode::Exclusive) };
    let kind = proto::ModeKind::try_from(mode.kind)
        .map_err(|_| ApiError::invalid(format!("{} is no mode of holding", mode.kind)))?;
    match kind {
        proto::ModeKind::Slots => Ok(Mode::Slots(mode.slots)),
        _ if mode.slots != 0 => Err(ApiError::invalid("slots belong to MODE_KIND_SLOTS alone")),
        proto::ModeKind::Shared => Ok(Mode::Shared),
        proto::ModeKind::Unspecified | proto::ModeKind::Exclusive => Ok(Mode::Exclusive),
    }
}

fn wait(wait: Option<proto::Wait>) -> Wait {
    use proto::wait::Wait as Asked;
    match wait.and_then(|wait| wait.wait) {
        None | Some(Asked::AtMostMs(0) | Asked::ForEver(false)) => Wait::No,
        Some(Asked::AtMostMs(millis)) => Wait::For(Duration::from_millis(millis)),
        Some(Asked::ForEver(true)) => Wait::Forever,
    }
}

/// A wait, asked; nothing for none.
pub fn wait_request(wait: Wait) -> Option<proto::Wait> {
    use proto::wait::Wait as Asked;
    let asked = match wait {
        Wait::No => return None,
        // A wait below a millisecond is still a wait.
        Wait::For(length) => Asked::AtMostMs(millis(length).max(1)),
        Wait::Forever => Asked::ForEver(true),
    };
    Some(proto::Wait { wait: Some(asked) })
}

impl From<&Policies> for proto::Policies {
    fn from(policies: &Policies) -> proto::Policies {
        proto::Policies {
            lock_delay_ms: policies.lock_delay.map(millis),
            max_hold_ms: policies.max_hold.map(millis),
            hard_limit_ms: policies.hard_limit.map(millis),
            priority: policies.priority,
            reentrant: policies.reentrant,
        }
    }
}

fn policies(policies: proto::Policies) -> Policies {
    let proto::Policies { lock_delay_ms, max_hold_ms, hard_limit_ms, priority, reentrant } = policies;
    Policies {
        lock_delay: lock_delay_ms.map(Duration::from_millis),
        max_hold: max_hold_ms.map(Duration::from_millis),
        hard_limit: hard_limit_ms.map(Duration::from_millis),
        priority,
        reentrant,
    }
}

/// The scope that a message names.
pub fn scope(scope: Option<proto::Scope>) -> Result<Scope, ApiError> {
    let scope = scope.ok_or_else(|| ApiError::invalid("scope is missing").hint("name the resource"))?;
    Ok(Scope { resource: resource(scope.resource)?, slot: scope.slot.map(Slot::new) })
}

fn guard(guard: Option<proto::Guard>) -> Result<Option<Guard>, ApiError> {
    guard.map(|guard| Ok(Guard { scope: scope(guard.scope)?, token: guard.token.try_into()? })).transpose()
}

impl From<&Guard> for proto::Guard {
    fn from(guard: &Guard) -> proto::Guard {
        proto::Guard { scope: Some((&guard.scope).into()), token: guard.token.get() }
    }
}

impl From<&Compare> for proto::Compare {
    fn from(compare: &Compare) -> proto::Compare {
        use proto::compare::Field;
        let op = match compare.op {
            CompareOp::Equal => proto::CompareOp::Equal,
            CompareOp::NotEqual => proto::CompareOp::NotEqual,
            CompareOp::Greater => proto::CompareOp::Greater,
            CompareOp::Less => proto::CompareOp::Less,
        };
        let field = match &compare.field {
            CompareField::CreateRevision(revision) => Field::CreateRevision(*revision),
            CompareField::ModRevision(revision) => Field::ModRevision(*revision),
            CompareField::Version(version) => Field::Version(*version),
            CompareField::Value(value) => Field::Value(value.to_vec()),
        };
        proto::Compare { key: compare.key.as_bytes().to_vec(), op: op.into(), field: Some(field) }
    }
}

fn compare(compare: proto::Compare) -> Result<Compare, ApiError> {
    use proto::compare::Field;
    let op = match proto::CompareOp::try_from(compare.op) {
        Ok(proto::CompareOp::Unspecified | proto::CompareOp::Equal) => CompareOp::Equal,
        Ok(proto::CompareOp::NotEqual) => CompareOp::NotEqual,
        Ok(proto::CompareOp::Greater) => CompareOp::Greater,
        Ok(proto::CompareOp::Less) => CompareOp::Less,
        Err(_) => return Err(ApiError::invalid(format!("{} compares nothing", compare.op))),
    };
    let field = match compare.field {
        Some(Field::CreateRevision(revision)) => CompareField::CreateRevision(revision),
        Some(Field::ModRevision(revision)) => CompareField::ModRevision(revision),
        Some(Field::Version(version)) => CompareField::Version(version),
        Some(Field::Value(value)) => CompareField::Value(value.into()),
        None => return Err(ApiError::invalid("a comparison has exactly one operand")),
    };
    Ok(Compare { key: key(&compare.key)?, field, op })
}

impl From<&Operation> for proto::Operation {
    fn from(operation: &Operation) -> proto::Operation {
        use proto::operation::Operation as Asked;
        let asked = match operation {
            Operation::Put { key, value, guard, ephemeral } => Asked::Put(proto::Put {
                key: key.as_bytes().to_vec(),
                value: value.to_vec(),
                guard: guard.as_ref().map(Into::into),
                ephemeral: *ephemeral,
            }),
            Operation::Delete { key, guard } => Asked::Delete(proto::Delete {
                key: key.as_bytes().to_vec(),
                guard: guard.as_ref().map(Into::into),
            }),
            Operation::Get { key } => Asked::Get(proto::Read { key: key.as_bytes().to_vec() }),
        };
        proto::Operation { operation: Some(asked) }
    }
}

fn operation(operation: proto::Operation) -> Result<Operation, ApiError> {
    use proto::operation::Operation as Asked;
    match operation.operation {
        Some(Asked::Put(put)) => Ok(Operation::Put {
            key: key(&put.key)?,
            value: put.value.into(),
            guard: guard(put.guard)?,
            ephemeral: put.ephemeral,
        }),
        Some(Asked::Delete(delete)) => {
            Ok(Operation::Delete { key: key(&delete.key)?, guard: guard(delete.guard)? })
        }
        Some(Asked::Get(get)) => Ok(Operation::Get { key: key(&get.key)? }),
        None => Err(ApiError::invalid("an operation is a put, a delete or a get")),
    }
}
