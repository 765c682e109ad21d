//! Requests as commands.

use std::time::Duration;

use tenure_core::{
    Acquire, AcquireBy, Caller, Command, Compare, CompareField, CompareOp, EndReason, FenceName, Guard,
    HolderName, KindSetting, Mode, Open, Operation, Policies, RegisterKey, ResourceName, Revision, Scope,
    Secret, SessionNumber, Slot, Token, Wait, Write,
};

use crate::error::ApiError;
use crate::json::checked_reason;
use crate::proto;
use crate::words::nonce;

/// A resource's name.
pub fn resource(name: String) -> Result<ResourceName, ApiError> {
    Ok(ResourceName::try_from(name)?)
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

/// `Leases.Release`
pub fn release(request: proto::ReleaseRequest) -> Result<Command, ApiError> {
    Ok(Command::Release {
        by: caller(request.caller)?,
        resource: resource(request.resource)?,
        token: request.token.map(Token::try_from).transpose()?,
        rest: request.rest_ms.map(Duration::from_millis),
    })
}

/// `Leases.Transfer`
pub fn transfer(request: proto::TransferRequest) -> Result<Command, ApiError> {
    Ok(Command::Transfer {
        by: caller(request.caller)?,
        resource: resource(request.resource)?,
        to: SessionNumber::new(request.to),
    })
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

/// `Registers.Write`
pub fn write(request: proto::WriteRequest) -> Result<Command, ApiError> {
    let by = request.caller.map(|by| caller(Some(by))).transpose()?;
    write_of(by, request.compares, request.then, request.otherwise)
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
