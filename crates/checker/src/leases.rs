//! One exclusive resource as a sequential object. A grant needs a token above all earlier ones. A held
//! resource may become free at any moment, because sessions expire without a call. Other rules check that
//! this is not too early (`permits_never_overlap`, `healthy_holder_keeps`) and not too late
//! (`no_lingering_lease`).

use crate::history::{Call, Operation, Outcome, Response};
use crate::linear::Object;

/// A resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    /// The last token that was returned to anybody.
    last: u64,
    /// Whether a grant that nobody was notified of has come after it.
    hidden: bool,
    held: bool,
}

impl Resource {
    fn free(&self) -> Resource {
        Resource { held: false, ..self.clone() }
    }

    /// The state in which the last grant is known to have had this token, if that can be.
    fn with_last(&self, token: u64) -> Option<Resource> {
        let fits = if self.hidden { token > self.last } else { token == self.last };
        fits.then_some(Resource { last: token, hidden: false, held: self.held })
    }
}

pub(crate) struct LeaseTable;

impl Object for LeaseTable {
    type State = Resource;

    fn initial(&self) -> Resource {
        Resource::default()
    }

    fn prepared(&self, mut operations: Vec<Operation>) -> Vec<Operation> {
        // A look changes nothing, and what a release does may happen at any moment without one: `held` only
        // says that it can be held, and nothing is impossible because of it.
        operations.retain(|operation| {
            operation.outcome != Outcome::Unknown || matches!(operation.call, Call::Acquire { .. })
        });
        operations
    }

    fn after(&self, state: &Resource, operation: &Operation) -> Option<Resource> {
        match (&operation.call, &operation.outcome) {
            (Call::Acquire { .. }, Outcome::Unknown) => {
                Some(Resource { last: state.last, hidden: true, held: true })
            }
            (Call::Acquire { .. }, Outcome::Answered(Response::Granted(token))) => {
                (*token > state.last).then_some(Resource { last: *token, hidden: false, held: true })
            }
            (Call::Acquire { .. }, Outcome::Answered(Response::Held)) => state.held.then(|| state.clone()),
            (Call::Release { token, .. }, Outcome::Answered(Response::Released(true))) => {
                state.held.then(|| state.with_last(*token)).flatten().map(|state| state.free())
            }
            (Call::Release { token, .. }, Outcome::Answered(Response::Released(false))) => {
                let ours = state.held && !state.hidden && state.last == *token;
                Some(if ours { state.free() } else { state.clone() })
            }
            (Call::Look { .. }, Outcome::Answered(Response::HeldBy(token))) => {
                state.held.then(|| state.with_last(*token)).flatten()
            }
            (Call::Look { .. }, Outcome::Answered(Response::Free(last))) => {
                state.free().with_last(last.unwrap_or(0))
            }
            _ => None,
        }
    }

    fn only_looks(&self, state: &Resource, operation: &Operation) -> bool {
        let is_answered = match (&operation.call, &operation.outcome) {
            (Call::Look { .. }, _) | (_, Outcome::Answered(Response::Held)) => true,
            // The lease was another's already, and is for good: tokens rise.
            (Call::Release { token, .. }, Outcome::Answered(Response::Released(false))) => {
                state.last > *token
            }
            _ => false,
        };
        // A look that finds what is known already finds nothing else later: if there is another grant, it has
        // another token.
        is_answered && self.after(state, operation).as_ref() == Some(state)
    }

    fn rank(&self, operation: &Operation) -> Option<u64> {
        // The last token never falls. A grant raises it to its own, so it comes before everybody who saw that
        // token, and after everybody who saw a smaller one or none.
        match (&operation.call, &operation.outcome) {
            (_, Outcome::Answered(Response::Granted(token))) => token.checked_mul(2),
            (Call::Release { token, .. }, Outcome::Answered(Response::Released(true)))
            | (_, Outcome::Answered(Response::HeldBy(token))) => seen(*token),
            (_, Outcome::Answered(Response::Free(last))) => seen(last.unwrap_or(0)),
            _ => None,
        }
    }
}

fn seen(token: u64) -> Option<u64> {
    token.checked_mul(2)?.checked_add(1)
}
