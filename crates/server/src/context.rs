//! What every handler knows about the call that it serves, whichever surface it came through.

use std::sync::Arc;

use tenure_core::Identity;

use crate::call_table::{Call, CallRow};
use crate::connections::RequestGuard;
use crate::in_flight::InFlight;

/// Who calls, and what.
#[derive(Clone, Debug)]
pub(crate) struct CallContext {
    /// Who it is from.
    pub identity: Identity,
    /// The call's row in the table.
    pub row: &'static CallRow,
    /// The request on its connection; tests hand requests over without one.
    pub connection: Option<Arc<RequestGuard>>,
    /// Where a session stream counts what it has in flight.
    pub in_flight: Option<Arc<InFlight>>,
}

impl CallContext {
    /// Where this stream counts what it has in flight.
    pub fn stream(&self) -> Arc<InFlight> {
        self.in_flight.clone().expect("the row of a stream has the cost of one")
    }

    /// The same caller, for another call that this one includes.
    pub fn within(&self, call: Call) -> CallContext {
        CallContext { row: call.row(), ..self.clone() }
    }
}
