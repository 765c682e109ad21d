//! Credentials and policies as JSON: what `/v1/auth` takes and answers. A credential's secret is in none of these: who
//! makes one keeps it, and sends its hash.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{
    Command, Credential as CoreCredential, CredentialId, HolderRule, Identity, Policy as CorePolicy,
    PolicyName, PutCredential, PutPolicy as CorePutPolicy, Quotas, Verb, Verbs, WallTime,
};

use crate::error::ApiError;
use crate::words::{calendar, hex, millis};

/// A policy: what those in `who` may do on what lies under `on`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Whom it is for: identities (`cred/pay-worker`), all that begin alike (`jwt/kubernetes/*`), `*` for everybody who
    /// has proved who they are, or `anyone`.
    pub who: Vec<String>,
    /// What it is about: prefixes that end at segments (`pay/`), or `*`.
    pub on: Vec<String>,
    /// What they may do: `read`, `hold`, `write`, `manage`, `observe`, `operate`, `grant`.
    pub may: Vec<String>,
    /// `self` binds the holder's name to the identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How much of it.
    #[serde(default, skip_serializing_if = "PolicyLimits::is_none")]
    pub limits: PolicyLimits,
}

/// How much a policy allows; without a number as much as the cluster takes, and no priority above 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyLimits {
    /// Sessions of one identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u32>,
    /// Leases of one identity under the prefixes, with those that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u32>,
    /// Places in queues of one identity under the prefixes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiters: Option<u32>,
    /// Registers under the prefixes, of everybody together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Bytes of their values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The longest TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_max_ms: Option<u64>,
    /// The highest priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_max: Option<i32>,
}

impl PolicyLimits {
    fn is_none(&self) -> bool {
        *self == PolicyLimits::default()
    }
}

impl Policy {
    /// The policy, checked.
    pub fn checked(&self) -> Result<CorePolicy, ApiError> {
        let Policy { who, on, may, holder, limits } = self;
        let verbs = may.iter().map(|verb| Ok(verb.parse()?)).collect::<Result<Vec<Verb>, ApiError>>()?;
        if verbs.contains(&Verb::Public) {
            return Err(ApiError::invalid("`public` needs no right, so no policy gives it"));
        }
        let holder = match holder.as_deref() {
            None => HolderRule::Any,
            Some("self") => HolderRule::Own,
            Some(other) => {
                return Err(ApiError::invalid(format!("the holder rule {other} is not known"))
                    .hint("leave `holder` out, or write `self`"));
            }
        };
        Ok(CorePolicy {
            who: who.iter().map(|who| who.parse()).collect::<Result<_, _>>()?,
            on: on.iter().map(|on| on.parse()).collect::<Result<_, _>>()?,
            may: verbs.into_iter().collect::<Verbs>(),
            holder,
            limits: Quotas {
                sessions: limits.sessions,
                leases: limits.leases,
                waiters: limits.waiters,
                registers: limits.registers,
                bytes: limits.bytes,
                ttl_max: limits.ttl_max_ms.map(Duration::from_millis),
                priority_max: limits.priority_max.unwrap_or_default(),
            },
        })
    }
}

impl From<&CorePolicy> for Policy {
    fn from(policy: &CorePolicy) -> Policy {
        let CorePolicy { who, on, may, holder, limits } = policy;
        let Quotas { sessions, leases, waiters, registers, bytes, ttl_max, priority_max } = *limits;
        Policy {
            who: who.iter().map(ToString::to_string).collect(),
            on: on.iter().map(ToString::to_string).collect(),
            may: may.iter().map(|verb| verb.to_string()).collect(),
            holder: (*holder == HolderRule::Own).then(|| "self".to_owned()),
            limits: PolicyLimits {
                sessions,
                leases,
                waiters,
                registers,
                bytes,
                ttl_max_ms: ttl_max.map(millis),
                priority_max: (priority_max != 0).then_some(priority_max),
            },
        }
    }
}

/// A policy and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NamedPolicy {
    /// Its name.
    pub name: String,
    /// What it allows.
    #[serde(flatten)]
    pub policy: Policy,
}

impl NamedPolicy {
    /// The policy of this name.
    pub fn of(name: &PolicyName, policy: &CorePolicy) -> NamedPolicy {
        NamedPolicy { name: name.to_string(), policy: policy.into() }
    }
}

/// Policies, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolicyList {
    /// Whether they count.
    pub enforced: bool,
    /// All of them.
    pub policies: Vec<NamedPolicy>,
}

/// `PUT /v1/auth/policies/{policy}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutPolicy {
    /// What it allows.
    pub policy: Policy,
    /// Leases that nothing allows any more end at once, where only fences protect, instead of by notice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub now: bool,
}

impl PutPolicy {
    /// The command.
    pub fn command(&self, name: PolicyName) -> Result<Command, ApiError> {
        Ok(Command::PutPolicy(Box::new(CorePutPolicy {
            name,
            policy: self.policy.checked()?,
            now: self.now,
        })))
    }
}

/// `DELETE /v1/auth/policies/{policy}` and `DELETE /v1/auth/credentials/{credential}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TakeAway {
    /// Leases that nothing allows any more end at once, where only fences protect, instead of by notice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub now: bool,
}

/// `POST /v1/auth/credentials`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IssueCredential {
    /// Its public half: 16 hexadecimal digits, drawn at random.
    pub id: String,
    /// Whom it makes its bearer: `cred/NAME`.
    pub name: String,
    /// The SHA-256 of its secret half: 64 hexadecimal digits.
    pub hash: String,
    /// When it expires, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_unix_ms: Option<u64>,
}

impl IssueCredential {
    /// The command.
    pub fn command(&self) -> Result<Command, ApiError> {
        let put = PutCredential {
            id: self.id.parse()?,
            name: self.name.parse()?,
            hash: hash(&self.hash)?,
            expires: self.expires_unix_ms.map(WallTime::from_unix_millis),
        };
        Ok(Command::PutCredential(Box::new(put)))
    }
}

fn hash(text: &str) -> Result<[u8; 32], ApiError> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let bytes: Option<Vec<u8>> = digits.map(|digits| {
        digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).copied().unwrap_or_default()).collect()
    });
    let bytes = bytes.filter(|_| text.len() == 64).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| {
        ApiError::invalid("the hash of a credential is 64 hexadecimal digits")
            .hint("send the SHA-256 of its secret")
    })
}

/// A credential as those who manage credentials see it: never its secret, nor its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Credential {
    /// Its public half.
    pub id: String,
    /// Whom it makes its bearer.
    pub name: String,
    /// When it was issued, for people.
    pub created: String,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// `good`, `expired` (keeps what it has for a day) or `ended`.
    pub standing: String,
    /// It was ended before it expired.
    pub revoked: bool,
}

impl Credential {
    /// The credential of this id, at this calendar time.
    pub fn of(id: CredentialId, credential: &CoreCredential, wall: WallTime) -> Credential {
        Credential {
            id: id.to_string(),
            name: credential.name.to_string(),
            created: calendar(credential.created),
            expires: credential.expires.map(calendar),
            standing: standing(credential.standing(wall)).into(),
            revoked: credential.revoked,
        }
    }
}

/// The word for what a credential is good for.
pub fn standing(standing: tenure_core::Standing) -> &'static str {
    match standing {
        tenure_core::Standing::Good => "good",
        tenure_core::Standing::Expired => "expired",
        tenure_core::Standing::Ended => "ended",
    }
}

/// Credentials, in the order of their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Credentials {
    /// One page of them.
    pub credentials: Vec<Credential>,
    /// The `after` of the next page.
    pub next: Option<String>,
}

/// `POST /v1/auth:enforce`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Enforce {
    /// Whether the policies count from now on.
    pub enforced: bool,
}

/// Who the node takes the caller for, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WhoAmI {
    /// Who.
    pub identity: String,
    /// The public half of the credential that proved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// `good`, `expired` or `ended`.
    pub standing: String,
    /// Whether policies count; if not, everybody may do everything.
    pub enforced: bool,
    /// May do everything, whatever the policies say.
    pub operator: bool,
    /// The policies for this identity.
    pub policies: Vec<NamedPolicy>,
    /// How many sessions it has.
    pub sessions: u64,
    /// How much it uses of policies that count.
    pub used: Vec<Used>,
}

/// How much of a policy an identity uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Used {
    /// The policy.
    pub policy: String,
    /// Leases under its prefixes.
    pub leases: u64,
    /// Places in queues under its prefixes.
    pub waiters: u64,
}

/// `POST /v1/auth:explain`: may somebody do this, and by which policy?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ExplainAccess {
    /// Who: an identity's name, `anyone`, or left out for the caller. About others only those are told who may grant.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The right.
    pub verb: String,
    /// The resource or register; `*` for what concerns the whole cluster.
    pub on: String,
}

impl ExplainAccess {
    /// Whom it is about, unless the caller.
    pub fn about(&self) -> Result<Option<Identity>, ApiError> {
        match self.identity.as_deref() {
            None => Ok(None),
            Some("anyone") => Ok(Some(Identity::Anyone)),
            Some(name) => Ok(Some(Identity::named(name.parse()?))),
        }
    }
}

/// What the policies say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explained {
    /// Who.
    pub identity: String,
    /// The right.
    pub verb: String,
    /// On what.
    pub on: String,
    /// Whether the policies allow it.
    pub allowed: bool,
    /// The policy that does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// If none does, the identity's own policy that comes nearest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// Whether the policies count; if not, everybody may do everything.
    pub enforced: bool,
}

/// The hash of a credential as `POST /v1/auth/credentials` takes it.
pub fn credential_hash(hash: &[u8; 32]) -> String {
    hex(hash)
}
