//! One exclusive resource as a sequential object. A grant needs a token above all before it. A held resource may become free
//! at any moment, because sessions end without anybody asking; that it does not happen *too early* is the business of
//! `permits_never_overlap` and `healthy_holder_keeps`, and not too late that of `no_lingering_lease`.

use crate::history::{Answer, Call, Operation, Outcome};
use crate::linear::Object;

/// A resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    /// The last token that anybody was told.
    last: u64,
    /// Whether a grant that nobody was told of has come after it.
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

    fn after(&self, state: &Resource, operation: &Operation) -> Vec<Resource> {
        let one = |state: Option<Resource>| state.into_iter().collect();
        match (&operation.call, &operation.outcome) {
            (Call::Acquire { .. }, Outcome::Unknown) => {
                vec![Resource { last: state.last, hidden: true, held: true }]
            }
            (Call::Acquire { .. }, Outcome::Answered(Answer::Granted(token))) => {
                one((*token > state.last).then_some(Resource { last: *token, hidden: false, held: true }))
            }
            (Call::Acquire { .. }, Outcome::Answered(Answer::Held)) => one(state.held.then(|| state.clone())),
            (Call::Release { token, .. }, Outcome::Unknown) => {
                let ours = state.held && !state.hidden && state.last == *token;
                vec![if ours { state.free() } else { state.clone() }]
            }
            (Call::Release { token, .. }, Outcome::Answered(Answer::Released(true))) => {
                one(state.held.then(|| state.with_last(*token)).flatten().map(|state| state.free()))
            }
            (Call::Release { token, .. }, Outcome::Answered(Answer::Released(false))) => {
                let ours = state.held && !state.hidden && state.last == *token;
                vec![if ours { state.free() } else { state.clone() }]
            }
            (Call::Look { .. }, Outcome::Answered(Answer::HeldBy(token))) => {
                one(state.held.then(|| state.with_last(*token)).flatten())
            }
            (Call::Look { .. }, Outcome::Answered(Answer::Free(last))) => {
                one(state.free().with_last(last.unwrap_or(0)))
            }
            // A look that was not answered changes nothing.
            (Call::Look { .. }, Outcome::Unknown) => vec![state.clone()],
            _ => Vec::new(),
        }
    }

    fn matters(&self, unknown: &Operation) -> bool {
        // A look changes nothing, and what a release does may happen at any moment without one.
        matches!(unknown.call, Call::Acquire { .. })
    }
}
