//! Names that people choose: resources, holders, registers, fences. Checked once, at the edge; after
//! that the type is the proof.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::numbers::Slot;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName {
    what: &'static str,
    why: String,
}

impl InvalidName {
    pub(crate) fn new(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, why: why.into() }
    }

    /// What kind of name was refused: `resource`, `holder`, `key`, `fence`, `identity`, `policy` and so on.
    pub fn what(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid {} name: {}", self.what, self.why)
    }
}

impl core::error::Error for InvalidName {}

fn check_text(what: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::new(what, "it is empty"));
    }
    if text.len() > bytes_max {
        return Err(InvalidName::new(
            what,
            alloc::format!("it has {} bytes, {bytes_max} are allowed", text.len()),
        ));
    }
    // Nearly all names are plain, and that can be checked many bytes at a time.
    let plain = text.bytes().fold(true, |plain, byte| plain & matches!(byte, b' '..=b'~'));
    if !plain && let Some(at) = text.find(char::is_control) {
        return Err(InvalidName::new(what, alloc::format!("it has a control character at byte {at}")));
    }
    Ok(())
}

/// Implements what all text names share: a checked way in, and the text as the way out.
macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                $check(text)?;
                Ok(Self(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }

        // Ordered maps of names are searched by plain text: the order of the name is the order of its text.
        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

text_name!(
    /// The name of what is protected, such as `settlement/cron`: 1 to 512 bytes of UTF-8, segments split
    /// by `/`, none of them empty, `.` or `..`, no control characters.
    ResourceName, "resource", check_resource
);

text_name!(
    /// A human-readable name of a process, 1 to 256 bytes. Information, never identity.
    HolderName, "holder", check_holder
);

text_name!(
    /// The name under which a resource knows one of its fences, such as `postgres:orders`: 1 to 128 bytes.
    FenceName, "fence", check_fence
);

text_name!(
    /// Who a caller has proved to be, 1 to 256 bytes: where the proof comes from, and the name there, so that none
    /// collide: `cred/NAME`, `cert/NAME`, `jwt/ISSUER/SUBJECT`, `host/HOST/uid/NUMBER`.
    IdentityName, "identity", check_identity
);

text_name!(
    /// The name of a policy: 1 to 128 letters, digits, `-`, `_` and `.`.
    PolicyName, "policy", check_policy
);

impl IdentityName {
    /// Where an identity can come from.
    pub const SOURCES: [&'static str; 4] = ["cred", "cert", "jwt", "host"];

    /// The name without its source.
    pub fn within_source(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

fn check_identity(text: &str) -> Result<(), InvalidName> {
    check_text("identity", text, 256)?;
    match text.split_once('/') {
        Some((source, name)) if IdentityName::SOURCES.contains(&source) && !name.is_empty() => Ok(()),
        _ => Err(InvalidName::new(
            "identity",
            "it begins with cred/, cert/, jwt/ or host/, and a name follows",
        )),
    }
}

fn check_policy(text: &str) -> Result<(), InvalidName> {
    check_text("policy", text, 128)?;
    match text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        true => Ok(()),
        false => Err(InvalidName::new("policy", "it has letters, digits, `-`, `_` and `.` only")),
    }
}

fn check_resource(text: &str) -> Result<(), InvalidName> {
    check_text("resource", text, 512)?;
    // By bytes, because every command is checked again wherever it is read.
    for segment in text.as_bytes().split(|byte| *byte == b'/') {
        let why = match segment {
            b"" => "it has an empty segment (a leading, trailing or double `/`)",
            b"." => "the segment `.` is not allowed",
            b".." => "the segment `..` is not allowed",
            _ => continue,
        };
        return Err(InvalidName::new("resource", why));
    }
    Ok(())
}

fn check_holder(text: &str) -> Result<(), InvalidName> {
    check_text("holder", text, 256)
}

fn check_fence(text: &str) -> Result<(), InvalidName> {
    check_text("fence", text, 128)
}

/// The key of a register: 1 to 1024 bytes, any bytes, ordered as bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisterKey(Arc<[u8]>);

impl RegisterKey {
    /// The longest key, in bytes.
    pub const BYTES_MAX: usize = 1024;

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl core::borrow::Borrow<[u8]> for RegisterKey {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&[u8]> for RegisterKey {
    type Error = InvalidName;
    fn try_from(bytes: &[u8]) -> Result<Self, InvalidName> {
        if bytes.is_empty() {
            return Err(InvalidName::new("key", "it is empty"));
        }
        if bytes.len() > Self::BYTES_MAX {
            return Err(InvalidName::new(
                "key",
                alloc::format!("it has {} bytes, {} are allowed", bytes.len(), Self::BYTES_MAX),
            ));
        }
        Ok(Self(bytes.into()))
    }
}

impl FromStr for RegisterKey {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        text.as_bytes().try_into()
    }
}

impl fmt::Display for RegisterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for RegisterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

/// What one fence guards: a resource, or one slot of a semaphore. Written `resource` or `resource#slot`.
///
/// Live holders of different slots never fence each other out, because each slot is a scope of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The resource.
    pub resource: ResourceName,
    /// The slot, for a semaphore.
    pub slot: Option<Slot>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            None => write!(f, "{}", self.resource),
            Some(slot) => write!(f, "{}#{}", self.resource, slot),
        }
    }
}

impl FromStr for Scope {
    type Err = InvalidName;
    /// A trailing `#digits` is read as a slot; a resource whose own name ends like that cannot be written as text scope.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if let Some((resource, digits)) = text.rsplit_once('#')
            && let Ok(slot) = digits.parse::<u32>()
        {
            return Ok(Scope { resource: resource.parse()?, slot: Some(Slot::new(slot)) });
        }
        Ok(Scope { resource: text.to_owned().try_into()?, slot: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_are_checked_segment_by_segment() {
        for good in ["a", "settlement/cron", "a/b/c", "ein/schön", "a:b", "...", "a/.hidden"] {
            assert!(good.parse::<ResourceName>().is_ok(), "{good}");
        }
        for bad in ["", "/", "/a", "a/", "a//b", "a/./b", "..", "a/..", "a\nb", "a\u{7f}"] {
            assert!(bad.parse::<ResourceName>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(512).parse::<ResourceName>().is_ok());
        assert!("x".repeat(513).parse::<ResourceName>().is_err());
    }

    #[test]
    fn identities_name_their_source() {
        for good in ["cred/a", "cert/spiffe://x/y", "jwt/https://issuer/sub", "host/h/uid/0"] {
            assert!(good.parse::<IdentityName>().is_ok(), "{good}");
        }
        for bad in ["", "a", "cred", "cred/", "/a", "Cred/a", "anyone", "operator", "node", "cred/a\n"] {
            assert!(bad.parse::<IdentityName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_scope_reads_what_it_writes() {
        for text in ["a/b", "a/b#3"] {
            assert_eq!(alloc::format!("{}", text.parse::<Scope>().unwrap()), text);
        }
    }
}
