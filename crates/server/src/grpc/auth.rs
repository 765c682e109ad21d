//! `tenure.v1.Auth`.

use std::sync::Arc;

use tenure_core::Command;
use tenure_wire::{ApiError, grpc, json, proto};

use crate::calls::page;
use crate::context::CallContext;
use crate::front::Api;

pub(crate) async fn put_credential(
    api: Arc<Api>,
    context: CallContext,
    request: proto::PutCredentialRequest,
) -> Result<proto::PutCredentialResponse, ApiError> {
    api.submit_without_result(&context, json::IssueCredential::from(request).command()?).await?;
    Ok(proto::PutCredentialResponse {})
}

pub(crate) async fn revoke_credential(
    api: Arc<Api>,
    context: CallContext,
    request: proto::RevokeCredentialRequest,
) -> Result<proto::RevokeCredentialResponse, ApiError> {
    let command = Command::RevokeCredential { id: request.id.parse()?, now: request.now };
    api.submit_without_result(&context, command).await?;
    Ok(proto::RevokeCredentialResponse {})
}

pub(crate) async fn credentials(
    api: Arc<Api>,
    context: CallContext,
    request: proto::CredentialListRequest,
) -> Result<proto::CredentialListResponse, ApiError> {
    let after = if request.after.is_empty() { None } else { Some(request.after.parse()?) };
    api.credentials(&context, after, page(request.limit)?).await.map(Into::into)
}

pub(crate) async fn put_policy(
    api: Arc<Api>,
    context: CallContext,
    request: proto::PutPolicyRequest,
) -> Result<proto::PutPolicyResponse, ApiError> {
    let (name, put) = grpc::put_policy(request)?;
    api.submit_without_result(&context, put.command(name.parse()?)?).await?;
    Ok(proto::PutPolicyResponse {})
}

pub(crate) async fn remove_policy(
    api: Arc<Api>,
    context: CallContext,
    request: proto::RemovePolicyRequest,
) -> Result<proto::RemovePolicyResponse, ApiError> {
    let command = Command::RemovePolicy { name: request.name.parse()?, now: request.now };
    api.submit_without_result(&context, command).await?;
    Ok(proto::RemovePolicyResponse {})
}

pub(crate) async fn policies(
    api: Arc<Api>,
    context: CallContext,
    _: proto::PolicyListRequest,
) -> Result<proto::PolicyListResponse, ApiError> {
    api.policies(&context).await.map(Into::into)
}

pub(crate) async fn enforce(
    api: Arc<Api>,
    context: CallContext,
    request: proto::EnforceRequest,
) -> Result<proto::EnforceResponse, ApiError> {
    api.submit_without_result(&context, Command::SetEnforced { enforced: request.enforced }).await?;
    Ok(proto::EnforceResponse {})
}

pub(crate) async fn who_am_i(
    api: Arc<Api>,
    context: CallContext,
    _: proto::WhoAmIRequest,
) -> Result<proto::WhoAmIResponse, ApiError> {
    api.who_am_i(&context).await.map(Into::into)
}

pub(crate) async fn explain(
    api: Arc<Api>,
    context: CallContext,
    request: proto::ExplainRequest,
) -> Result<proto::ExplainResponse, ApiError> {
    api.explain_access(&context, &request.into()).await.map(Into::into)
}
