//! The comparison that every fence makes, for adapters that make it in Rust: `tenure-core`'s, with this crate's types.
//! Those that must make it inside the storage (SQL, Lua) repeat it there, and the suite holds
//! all of them to the same answers.

use tenure_core::{Fenced, Progress, Scope, Token};

use crate::{FenceError, Stale};

/// What a presented token is to the highest one seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)] // which adapters are compiled in decides what is used
pub(crate) enum Standing {
    /// Equal: the holder that put the mark there.
    Current,
    /// Higher, or the first ever: accepted, and the mark must rise in the same step.
    Raises,
}

/// Accepts `presented` if it is not below `seen`.
#[allow(dead_code)]
pub(crate) fn judge(scope: &Scope, presented: Token, seen: Option<Token>) -> Result<Standing, FenceError> {
    let mut mark = tenure_core::Mark::kept(seen, Progress::default());
    match mark.write(presented) {
        Ok(()) if seen == mark.token() => Ok(Standing::Current),
        Ok(()) => Ok(Standing::Raises),
        Err(Fenced::Stale { presented, seen }) => {
            Err(FenceError::Stale(Stale { scope: scope.clone(), presented, seen }))
        }
        Err(refused @ Fenced::NotInstalled { .. }) => Err(FenceError::refused(refused)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_token_is_current_and_only_a_smaller_one_is_stale() {
        let scope: Scope = "a/b".parse().unwrap();
        let token = |n: u64| Token::try_from(n).unwrap();
        assert_eq!(judge(&scope, token(5), None).unwrap(), Standing::Raises);
        assert_eq!(judge(&scope, token(5), Some(token(4))).unwrap(), Standing::Raises);
        assert_eq!(judge(&scope, token(5), Some(token(5))).unwrap(), Standing::Current);
        let refused = judge(&scope, token(5), Some(token(6))).unwrap_err();
        assert!(matches!(refused, FenceError::Stale(Stale { presented, seen, .. })
            if presented == token(5) && seen == token(6)));
    }
}
