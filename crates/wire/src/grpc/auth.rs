//! Between the messages of `tenure.v1.Auth` and their JSON twins, which check them and make the commands.

use crate::error::ApiError;
use crate::json::{
    Credential, Credentials, ExplainAccess, Explained, IssueCredential, NamedPolicy, Policy, PolicyLimits,
    PolicyList, PutPolicy, Used, WhoAmI,
};
use crate::proto;

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl From<proto::PutCredentialRequest> for IssueCredential {
    fn from(request: proto::PutCredentialRequest) -> IssueCredential {
        let proto::PutCredentialRequest { id, name, hash, expires_unix_ms } = request;
        IssueCredential { id, name, hash, expires_unix_ms }
    }
}

impl From<IssueCredential> for proto::PutCredentialRequest {
    fn from(credential: IssueCredential) -> proto::PutCredentialRequest {
        let IssueCredential { id, name, hash, expires_unix_ms } = credential;
        proto::PutCredentialRequest { id, name, hash, expires_unix_ms }
    }
}

impl From<Credential> for proto::CredentialView {
    fn from(credential: Credential) -> proto::CredentialView {
        let Credential { id, name, created, expires, standing, revoked } = credential;
        proto::CredentialView { id, name, created, expires: expires.unwrap_or_default(), standing, revoked }
    }
}

impl From<Credentials> for proto::CredentialListResponse {
    fn from(credentials: Credentials) -> proto::CredentialListResponse {
        proto::CredentialListResponse {
            credentials: credentials.credentials.into_iter().map(Into::into).collect(),
            next: credentials.next.unwrap_or_default(),
        }
    }
}

impl From<proto::CredentialListResponse> for Credentials {
    fn from(response: proto::CredentialListResponse) -> Credentials {
        let credential = |view: proto::CredentialView| {
            let proto::CredentialView { id, name, created, expires, standing, revoked } = view;
            Credential { id, name, created, expires: some(expires), standing, revoked }
        };
        Credentials {
            credentials: response.credentials.into_iter().map(credential).collect(),
            next: some(response.next),
        }
    }
}

impl From<NamedPolicy> for proto::Policy {
    fn from(named: NamedPolicy) -> proto::Policy {
        let NamedPolicy { name, policy: Policy { who, on, may, holder, limits } } = named;
        let PolicyLimits { sessions, leases, waiters, registers, bytes, ttl_max_ms, priority_max } = limits;
        proto::Policy {
            name,
            who,
            on,
            may,
            holder: holder.unwrap_or_default(),
            sessions,
            leases,
            waiters,
            registers,
            bytes,
            ttl_max_ms,
            priority_max,
        }
    }
}

impl From<proto::Policy> for NamedPolicy {
    fn from(policy: proto::Policy) -> NamedPolicy {
        let proto::Policy {
            name,
            who,
            on,
            may,
            holder,
            sessions,
            leases,
            waiters,
            registers,
            bytes,
            ttl_max_ms,
            priority_max,
        } = policy;
        let limits = PolicyLimits { sessions, leases, waiters, registers, bytes, ttl_max_ms, priority_max };
        NamedPolicy { name, policy: Policy { who, on, may, holder: some(holder), limits } }
    }
}

/// The policy of a request, and its name.
pub fn put_policy(request: proto::PutPolicyRequest) -> Result<(String, PutPolicy), ApiError> {
    let policy = request.policy.ok_or_else(|| ApiError::invalid("the policy is missing"))?;
    let NamedPolicy { name, policy } = policy.into();
    Ok((name, PutPolicy { policy, now: request.now }))
}

impl From<PolicyList> for proto::PolicyListResponse {
    fn from(list: PolicyList) -> proto::PolicyListResponse {
        let policies = list.policies.into_iter().map(Into::into).collect();
        proto::PolicyListResponse { enforced: list.enforced, policies }
    }
}

impl From<proto::PolicyListResponse> for PolicyList {
    fn from(response: proto::PolicyListResponse) -> PolicyList {
        let policies = response.policies.into_iter().map(Into::into).collect();
        PolicyList { enforced: response.enforced, policies }
    }
}

impl From<WhoAmI> for proto::WhoAmIResponse {
    fn from(who: WhoAmI) -> proto::WhoAmIResponse {
        let WhoAmI { identity, credential, standing, enforced, operator, policies, sessions, used } = who;
        let used = used.into_iter().map(|used| {
            let Used { policy, leases, waiters } = used;
            proto::PolicyUse { policy, leases, waiters }
        });
        proto::WhoAmIResponse {
            identity,
            credential: credential.unwrap_or_default(),
            standing,
            enforced,
            operator,
            policies: policies.into_iter().map(Into::into).collect(),
            sessions,
            used: used.collect(),
        }
    }
}

impl From<proto::WhoAmIResponse> for WhoAmI {
    fn from(response: proto::WhoAmIResponse) -> WhoAmI {
        let proto::WhoAmIResponse {
            identity,
            credential,
            standing,
            enforced,
            operator,
            policies,
            sessions,
            used,
        } = response;
        let used = used.into_iter().map(|used| {
            let proto::PolicyUse { policy, leases, waiters } = used;
            Used { policy, leases, waiters }
        });
        WhoAmI {
            identity,
            credential: some(credential),
            standing,
            enforced,
            operator,
            policies: policies.into_iter().map(Into::into).collect(),
            sessions,
            used: used.collect(),
        }
    }
}

impl From<proto::ExplainRequest> for ExplainAccess {
    fn from(request: proto::ExplainRequest) -> ExplainAccess {
        let proto::ExplainRequest { r#as, verb, on } = request;
        ExplainAccess { identity: some(r#as), verb, on }
    }
}

impl From<Explained> for proto::ExplainResponse {
    fn from(explained: Explained) -> proto::ExplainResponse {
        let Explained { identity, verb, on, allowed, policy, nearest, enforced } = explained;
        proto::ExplainResponse {
            identity,
            verb,
            on,
            allowed,
            policy: policy.unwrap_or_default(),
            nearest: nearest.unwrap_or_default(),
            enforced,
        }
    }
}

impl From<proto::ExplainResponse> for Explained {
    fn from(response: proto::ExplainResponse) -> Explained {
        let proto::ExplainResponse { identity, verb, on, allowed, policy, nearest, enforced } = response;
        Explained { identity, verb, on, allowed, policy: some(policy), nearest: some(nearest), enforced }
    }
}
