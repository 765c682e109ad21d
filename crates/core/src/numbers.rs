//! Numbers that must not be mixed: each has its own type and speaks its own words.

use core::fmt;
use core::num::{NonZeroU32, NonZeroU64};
use core::str::FromStr;

/// The fencing token: strictly increasing over all grants that the cluster ever makes; below 2^53, so
/// that JSON, Lua and JavaScript keep it exact. Renewal never changes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The largest token, 2^53 - 1. Past it the cluster refuses to grant rather than wrap.
    pub const MAX: Token = Token(NonZeroU64::new((1 << 53) - 1).unwrap());
    /// The first token of a new cluster.
    pub const FIRST: Token = Token(NonZeroU64::MIN);

    /// The token as a number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The token after this one, or `None` when the numbers are used up.
    pub fn next(self) -> Option<Token> {
        Token::try_from(self.get() + 1).ok()
    }
}

/// A number that is no token: zero, or 2^53 and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidToken(pub u64);

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a token: tokens are whole numbers from 1 to {}", self.0, Token::MAX)
    }
}

impl core::error::Error for InvalidToken {}

impl TryFrom<u64> for Token {
    type Error = InvalidToken;
    fn try_from(number: u64) -> Result<Self, InvalidToken> {
        match NonZeroU64::new(number) {
            Some(token) if number <= Token::MAX.get() => Ok(Token(token)),
            _ => Err(InvalidToken(number)),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

/// Implements a counting number: a plain value with an order and a text form.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// Wraps a number.
            pub const fn new(number: $inner) -> Self {
                Self(number)
            }

            /// The plain number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// How often a resource has changed hands: 1, 2, 3 … For people, not for fencing.
    Generation(u64)
);
number!(
    /// The cluster-wide counter of visible changes, raised once per command that changes something visible.
    Revision(u64)
);
number!(
    /// The public number of a session: shown in lists and named by `transfer`, but it opens no door.
    SessionNumber(u64)
);
/// One slot of a semaphore, counted from zero.
// One more than the number, so that none takes as little memory as one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(NonZeroU32);

impl Slot {
    /// The slot of this number. There are far fewer than this can count: the last number is that of the last
    /// but one.
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }

    /// The plain number.
    pub const fn get(self) -> u32 {
        self.0.get() - 1
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.get(), f)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.get())
    }
}

/// How a secret or a nonce stands in the log and in the state. Nothing here makes one form into the other: that is a
/// hash, made where a command comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretForm {
    /// As its owner knows it. Format version 1 has no other form.
    Plain,
    /// A hash of it: whoever reads it from a disk can present nothing. Since format version 2.
    Hashed,
}

/// The part of a session's id that only its opener knows: 128 random bits, or their hash.
#[derive(Clone, Copy, Eq)]
pub struct Secret {
    bits: [u8; 16],
    form: SecretForm,
}

impl Secret {
    /// 128 random bits, as the opener knows them.
    pub const fn new(bits: [u8; 16]) -> Self {
        Self { bits, form: SecretForm::Plain }
    }

    /// The hash of a secret.
    pub const fn hashed(bits: [u8; 16]) -> Self {
        Self { bits, form: SecretForm::Hashed }
    }

    /// The bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.bits
    }

    /// Whether these are the bits that the opener knows, or their hash.
    pub const fn form(&self) -> SecretForm {
        self.form
    }

    /// What one node shows another to renew a session: half of what both have stored of its secret.
    pub const fn proof(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.bits;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl PartialEq for Secret {
    /// Takes equally long wherever they differ: how long a refusal took tells nothing about a secret.
    fn eq(&self, other: &Secret) -> bool {
        let different = u128::from_ne_bytes(self.bits) ^ u128::from_ne_bytes(other.bits);
        (different == 0) & (self.form as u8 == other.form as u8)
    }
}

impl core::hash::Hash for Secret {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.bits.hash(state);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What lets a repeated open find the session that it made: 128 random bits drawn by the client, or their hash.
/// Shorter ones are refused at the edge; longer ones are folded there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce {
    bits: [u8; 16],
    form: SecretForm,
}

impl Nonce {
    /// 128 random bits, as the client knows them.
    pub const fn new(bits: [u8; 16]) -> Self {
        Self { bits, form: SecretForm::Plain }
    }

    /// The hash of a nonce.
    pub const fn hashed(bits: [u8; 16]) -> Self {
        Self { bits, form: SecretForm::Hashed }
    }

    /// The bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.bits
    }

    /// Whether these are the bits that the client knows, or their hash.
    pub const fn form(&self) -> SecretForm {
        self.form
    }
}

impl fmt::Debug for Nonce {
    /// Whoever knows a live session's nonce gets its id, so it is not printed by accident.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce(…)")
    }
}

/// Names one transmission of a plain acquire, one that its caller cannot repeat: 128 random bits drawn by the
/// node that received it. Only this takes back what that transmission did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransmissionId([u8; 16]);

impl TransmissionId {
    /// Stands in a list of transmissions for a caller that hangs up without undoing anything, because it can
    /// repeat its acquire. No node ever draws it, so nothing undoes it.
    pub(crate) const NEVER_UNDONE: Self = Self([0; 16]);

    /// Wraps 128 random bits.
    pub const fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The nonce under which a session that this transmission opens is found again, in the form that the session's
    /// secret has. It is the same bits in both forms: no client can present one that is said to be a hash.
    pub const fn nonce(self, form: SecretForm) -> Nonce {
        Nonce { bits: self.0, form }
    }
}

/// Names one restore: what the sender of a backup knows it by, so that an interrupted restore goes on where
/// it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RestoreId([u8; 16]);

impl RestoreId {
    /// Wraps 128 bits: the backup's checksum, or random ones.
    pub const fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A session's whole id: its public number and its secret. Only this renews, releases and closes.
/// Written `number-hex`, such as `7-9f86d081884c7d659a2feaa0c55ad015`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// The public number.
    pub number: SessionNumber,
    /// The secret half.
    pub secret: Secret,
}

/// A text that is no session id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSessionId;

impl fmt::Display for InvalidSessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a session id: it is a number, a dash and 32 hexadecimal digits, as `acquire` or `session open` printed it")
    }
}

impl core::error::Error for InvalidSessionId {}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-", self.number)?;
        match self.secret.form {
            SecretForm::Plain => self.secret.bits.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            // Not an id that anybody could use.
            SecretForm::Hashed => f.write_str("…"),
        }
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;
    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        let (number, hex) = text.split_once('-').ok_or(InvalidSessionId)?;
        if hex.len() != 32
            || !hex.bytes().all(|b| b.is_ascii_hexdigit())
            || !number.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(InvalidSessionId);
        }
        let number = SessionNumber::new(number.parse().map_err(|_| InvalidSessionId)?);
        let bits = u128::from_str_radix(hex, 16).map_err(|_| InvalidSessionId)?;
        Ok(SessionId { number, secret: Secret::new(bits.to_be_bytes()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_end_below_two_to_the_53() {
        assert_eq!(Token::MAX.get(), 9_007_199_254_740_991);
        assert_eq!(Token::MAX.next(), None);
        assert!(Token::try_from(0).is_err());
        assert_eq!(Token::FIRST.next().unwrap().get(), 2);
    }

    #[test]
    fn a_session_id_reads_what_it_writes() {
        let id = SessionId { number: SessionNumber::new(7), secret: Secret::new([0xab; 16]) };
        assert_eq!(alloc::format!("{id}").parse(), Ok(id));
        for bad in
            ["", "7", "7-", "-ab", "x-abababababababababababababababab", "7-+bababababababababababababababab"]
        {
            assert_eq!(bad.parse::<SessionId>(), Err(InvalidSessionId), "{bad}");
        }
        assert!(!alloc::format!("{id:?}").contains("abab"), "a secret is never printed by accident");
    }

    #[test]
    fn a_hash_is_no_secret_and_neither_prints_itself() {
        let bits = [0xab; 16];
        assert_ne!(Secret::new(bits), Secret::hashed(bits), "presenting the hash must not open anything");
        assert_ne!(Nonce::new(bits), Nonce::hashed(bits));
        for at in 0..16 {
            let mut other = bits;
            other[at] ^= 1;
            assert_ne!(Secret::hashed(bits), Secret::hashed(other));
        }
        let id = SessionId { number: SessionNumber::new(7), secret: Secret::hashed(bits) };
        let nonce = Nonce::new(bits);
        let printed = [alloc::format!("{id}"), alloc::format!("{id:?}"), alloc::format!("{nonce:?}")];
        assert!(printed.iter().all(|text| !text.contains("ab") && !text.contains("171")), "{printed:?}");
    }

    #[test]
    fn forms_cost_no_memory_where_a_nonce_may_be_missing() {
        assert_eq!(size_of::<Option<Nonce>>(), 17);
        assert_eq!(size_of::<SessionId>(), 32);
    }
}
