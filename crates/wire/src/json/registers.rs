//! Bodies about registers: requests with the commands that they become, and answers.

use serde::{Deserialize, Serialize};
use tenure_core::{
    Caller, Command, CompareField, CompareOp, Guard, RegisterKey, Revision, Scope, Slot, Token,
};

use super::{bytes_of, key_of, of_session, text_or_base64};
use crate::error::{About, ApiError, Code};

of_session!(PutRegister, DeleteRegister, WriteRegisters);

/// `PUT /v1/registers/{key}`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutRegister {
    /// The value, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The value in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// The resource that guards it; or the header `Tenure-Token: resource=token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The slot of it, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The token of a live exclusive grant of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The register disappears with the session: the guard's, or else `session`.
    #[serde(default)]
    pub ephemeral: bool,
    /// Only if it has been written this often since it was created; zero: only if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
    /// Only if this revision last changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_mod_revision: Option<u64>,
    /// The session's whole id, for numbered writes and for ephemeral registers without a guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The command's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
}

impl PutRegister {
    /// The command; `header` is the guard of the header, if there was one. If the condition does not hold, the
    /// register as it is comes back instead.
    pub fn command(self, key: RegisterKey, header: Option<Guard>) -> Result<Command, ApiError> {
        let value = bytes_of("value", self.value, self.value_base64)?
            .ok_or_else(|| ApiError::invalid("value is missing").hint("give `value`, or `value_base64`"))?;
        let guard = guard(self.resource, self.slot, self.token, header)?;
        let put = tenure_core::Operation::Put {
            key: key.clone(),
            value: value.into(),
            guard,
            ephemeral: self.ephemeral,
        };
        let by = write_caller(self.session, self.number, self.lowest_awaited)?;
        Ok(conditional(by, key, self.if_version, self.if_mod_revision, put))
    }
}

/// `DELETE /v1/registers/{key}`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DeleteRegister {
    /// The resource that guards it; or the header `Tenure-Token: resource=token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The slot of it, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The token of a live exclusive grant of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Only if it has been written this often since it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
    /// Only if this revision last changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_mod_revision: Option<u64>,
    /// The session's whole id, for numbered writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The command's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
}

impl DeleteRegister {
    /// The command; `header` is the guard of the header, if there was one.
    pub fn command(self, key: RegisterKey, header: Option<Guard>) -> Result<Command, ApiError> {
        let guard = guard(self.resource, self.slot, self.token, header)?;
        let by = write_caller(self.session, self.number, self.lowest_awaited)?;
        let delete = tenure_core::Operation::Delete { key: key.clone(), guard };
        Ok(conditional(by, key, self.if_version, self.if_mod_revision, delete))
    }
}

/// Reads the header `Tenure-Token: resource=token`, or `resource#slot=token`.
pub fn guard_from_header(text: &str) -> Result<Guard, ApiError> {
    let malformed = || {
        ApiError::invalid("the header Tenure-Token is not `resource=token`")
            .hint("such as `Tenure-Token: settlement/cron=17`; a slot is written `resource#slot=token`")
    };
    let (scope, token) = text.trim().rsplit_once('=').ok_or_else(malformed)?;
    let token: u64 = token.trim().parse().map_err(|_| malformed())?;
    Ok(Guard { scope: scope.trim().parse()?, token: Token::try_from(token)? })
}

fn guard(
    resource: Option<String>,
    slot: Option<u32>,
    token: Option<u64>,
    header: Option<Guard>,
) -> Result<Option<Guard>, ApiError> {
    match (resource, token, header) {
        (None, None, header) if slot.is_none() => Ok(header),
        (Some(resource), Some(token), None) => Ok(Some(Guard {
            scope: Scope { resource: resource.try_into()?, slot: slot.map(Slot::new) },
            token: token.try_into()?,
        })),
        (_, _, Some(_)) => Err(ApiError::invalid("the guard is given twice")
            .hint("give it in the body or in the header Tenure-Token")),
        _ => Err(ApiError::invalid("a guarded write needs both resource and token")
            .hint("present the token of the lease that guards the register")),
    }
}

fn write_caller(
    session: Option<String>,
    number: Option<u64>,
    lowest_awaited: Option<u64>,
) -> Result<Option<Caller>, ApiError> {
    match session {
        Some(session) => Ok(Some(Caller {
            session: session.parse()?,
            number,
            lowest_awaited: lowest_awaited.unwrap_or_default(),
        })),
        None if number.is_some() => {
            Err(ApiError::invalid("a number belongs to a session, and session is missing"))
        }
        None => Ok(None),
    }
}

/// One operation under conditions; when they do not hold, the register is read instead.
fn conditional(
    by: Option<Caller>,
    key: RegisterKey,
    version: Option<u64>,
    mod_revision: Option<u64>,
    operation: tenure_core::Operation,
) -> Command {
    let fields = [version.map(CompareField::Version), mod_revision.map(CompareField::ModRevision)];
    let compares: Vec<_> = fields
        .into_iter()
        .flatten()
        .map(|field| tenure_core::Compare { key: key.clone(), field, op: CompareOp::Equal })
        .collect();
    let otherwise = if compares.is_empty() { Vec::new() } else { vec![tenure_core::Operation::Get { key }] };
    Command::Write(Box::new(tenure_core::Write { by, compares, then: vec![operation], otherwise }))
}

/// `POST /v1/registers:write`: several comparisons and operations as one step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WriteRegisters {
    /// The session's whole id, for numbered writes and for ephemeral registers without a guard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The command's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The lowest number whose answer is still awaited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest_awaited: Option<u64>,
    /// All must hold for `then` to be done; otherwise `otherwise` is.
    #[serde(default)]
    pub compares: Vec<Compare>,
    /// What to do when all comparisons hold.
    #[serde(default)]
    pub then: Vec<Operation>,
    /// What to do when one does not.
    #[serde(default)]
    pub otherwise: Vec<Operation>,
}

impl WriteRegisters {
    /// The command.
    pub fn command(self) -> Result<Command, ApiError> {
        let operations = |operations: Vec<Operation>| -> Result<Vec<_>, ApiError> {
            operations.into_iter().map(Operation::operation).collect()
        };
        Ok(Command::Write(Box::new(tenure_core::Write {
            by: write_caller(self.session, self.number, self.lowest_awaited)?,
            compares: self.compares.into_iter().map(Compare::compare).collect::<Result<_, _>>()?,
            then: operations(self.then)?,
            otherwise: operations(self.otherwise)?,
        })))
    }
}

/// One comparison: exactly one of the fields after `op`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// The register, if its key is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The register's key in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// `=` without it; or `!=`, `>`, `<`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The revision that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_revision: Option<u64>,
    /// The revision that last changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mod_revision: Option<u64>,
    /// How often it was written since it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Its value, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its value, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

impl Compare {
    fn compare(self) -> Result<tenure_core::Compare, ApiError> {
        let op = match self.op.as_deref() {
            None | Some("=") => CompareOp::Equal,
            Some("!=") => CompareOp::NotEqual,
            Some(">") => CompareOp::Greater,
            Some("<") => CompareOp::Less,
            Some(other) => {
                return Err(
                    ApiError::invalid(format!("{other:?} compares nothing")).hint("op is =, !=, > or <")
                );
            }
        };
        let value =
            bytes_of("value", self.value, self.value_base64)?.map(|bytes| CompareField::Value(bytes.into()));
        let fields = [
            self.create_revision.map(CompareField::CreateRevision),
            self.mod_revision.map(CompareField::ModRevision),
            self.version.map(CompareField::Version),
            value,
        ];
        let mut fields = fields.into_iter().flatten();
        match (fields.next(), fields.next()) {
            (Some(field), None) => {
                Ok(tenure_core::Compare { key: key_of(self.key, self.key_base64)?, field, op })
            }
            _ => Err(ApiError::invalid("a comparison has exactly one operand")
                .hint("give one of create_revision, mod_revision, version, value, value_base64")),
        }
    }
}

/// One operation: `{"put":{…}}`, `{"delete":{…}}` or `{"get":{…}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Writes a value.
    Put(OnRegister),
    /// Removes a register; its guard stays.
    Delete(OnRegister),
    /// Reads a register.
    Get(OnRegister),
}

/// What an operation is about; only a put has a value, and only a put or delete has a guard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OnRegister {
    /// The register, if its key is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The register's key in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The value, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The value in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// The resource that guards it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The slot of it, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// The token of a live exclusive grant of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The register disappears with the session.
    #[serde(default)]
    pub ephemeral: bool,
}

impl Operation {
    fn operation(self) -> Result<tenure_core::Operation, ApiError> {
        let (Operation::Put(on) | Operation::Delete(on) | Operation::Get(on)) = &self;
        if !matches!(self, Operation::Put(_))
            && (on.value.is_some() || on.value_base64.is_some() || on.ephemeral)
        {
            return Err(ApiError::invalid("only a put has a value, and only a put can be ephemeral"));
        }
        if matches!(self, Operation::Get(_)) && (on.resource.is_some() || on.token.is_some()) {
            return Err(ApiError::invalid("a get needs no guard"));
        }
        match self {
            Operation::Put(on) => {
                let value = bytes_of("value", on.value, on.value_base64)?;
                Ok(tenure_core::Operation::Put {
                    key: key_of(on.key, on.key_base64)?,
                    value: value.ok_or_else(|| ApiError::invalid("a put without a value"))?.into(),
                    guard: guard(on.resource, on.slot, on.token, None)?,
                    ephemeral: on.ephemeral,
                })
            }
            Operation::Delete(on) => Ok(tenure_core::Operation::Delete {
                key: key_of(on.key, on.key_base64)?,
                guard: guard(on.resource, on.slot, on.token, None)?,
            }),
            Operation::Get(on) => Ok(tenure_core::Operation::Get { key: key_of(on.key, on.key_base64)? }),
        }
    }
}

/// `POST /v1/registers/{key}:rebind`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rebind {
    /// The new guard; without it, none.
    #[serde(default)]
    pub resource: Option<String>,
    /// The slot of it, for a semaphore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
}

impl Rebind {
    /// The command.
    pub fn command(self, key: RegisterKey) -> Result<Command, ApiError> {
        let guard = match self.resource {
            Some(resource) => Some(Scope { resource: resource.try_into()?, slot: self.slot.map(Slot::new) }),
            None if self.slot.is_some() => return Err(ApiError::invalid("a slot of which resource?")),
            None => None,
        };
        Ok(Command::Rebind { key, guard })
    }
}

/// One register; without a value it does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Register {
    /// Its key, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its key in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Its value, if it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Its value in base64, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// The revision that created it; zero if it does not exist.
    pub create_revision: u64,
    /// The revision that last changed it; zero if it does not exist.
    pub mod_revision: u64,
    /// How often it was written since it was created.
    pub version: u64,
    /// The public number of the session with which it disappears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_number: Option<u64>,
    /// What guards it: `resource` or `resource#slot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<String>,
}

impl From<&tenure_core::Register> for Register {
    fn from(register: &tenure_core::Register) -> Register {
        let (key, key_base64) = text_or_base64(register.key.as_bytes());
        let (value, value_base64) = register.value.as_deref().map(text_or_base64).unwrap_or_default();
        Register {
            key,
            key_base64,
            value,
            value_base64,
            create_revision: register.create_revision.get(),
            mod_revision: register.mod_revision.get(),
            version: register.version,
            session_number: register.session.map(|session| session.get()),
            guard: register.guard.as_ref().map(ToString::to_string),
        }
    }
}

/// Registers, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Registers {
    /// One page of them.
    pub registers: Vec<Register>,
    /// The `after` of the next page.
    pub next: Option<String>,
    /// The revision at which they were read.
    pub revision: u64,
}

/// One register was written or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Written {
    /// The revision of the write.
    pub revision: u64,
    /// The register as it is now.
    #[serde(flatten)]
    pub register: Register,
}

impl Written {
    /// The body for a write of one register; a condition that did not hold is an error.
    pub fn new(
        succeeded: bool,
        revision: Revision,
        results: &[tenure_core::Register],
    ) -> Result<Written, ApiError> {
        let register =
            results.first().ok_or_else(|| ApiError::new(Code::Internal, "a write answered nothing"))?;
        if succeeded {
            return Ok(Written { revision: revision.get(), register: register.into() });
        }
        let message = format!(
            "register {} is at version {}, last changed by revision {}",
            register.key, register.version, register.mod_revision
        );
        Err(ApiError::new(Code::CompareFailed, message)
            .hint("read it again, decide again, and write under the new version")
            .about(About {
                resource: Some(register.key.to_string()),
                revision: Some(register.mod_revision.get()),
                ..About::default()
            }))
    }
}

/// Several registers were read and written as one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WrittenMany {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The revision of the write, or the present one if it changed nothing.
    pub revision: u64,
    /// One per operation done, in order.
    pub results: Vec<Register>,
}
