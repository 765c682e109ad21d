//! The latest error of each endpoint that has failed or does not answer, for the errors of waiting calls.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::endpoints::Endpoint;
use crate::error::{CallError, Tried};

type Reasons = BTreeMap<Endpoint, Cow<'static, str>>;

/// The latest error of each endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointErrors(Arc<Mutex<Reasons>>);

impl EndpointErrors {
    pub fn note(&self, endpoint: &Endpoint, why: impl Into<Cow<'static, str>>) {
        self.lock().insert(endpoint.clone(), why.into());
    }

    /// The endpoint has answered.
    pub fn clear(&self, endpoint: &Endpoint) {
        self.lock().remove(endpoint);
    }

    /// The endpoint_errors with these endpoints, in their order. Those of others are forgotten.
    pub fn of(&self, endpoints: &[Endpoint]) -> Vec<Tried> {
        let mut reasons = self.lock();
        reasons.retain(|endpoint, _| endpoints.contains(endpoint));
        let tried = |endpoint: &Endpoint| {
            let why = reasons.get(endpoint)?.to_string();
            Some(Tried { endpoint: endpoint.clone(), why })
        };
        endpoints.iter().filter_map(tried).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reasons> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an error of one endpoint says about it.
pub(super) fn reason(error: &CallError) -> String {
    match error {
        CallError::Refused(no) => no.to_string(),
        CallError::Unreachable { tried } | CallError::Unanswered { tried, .. } => {
            tried.first().map_or_else(|| "it did not answer".to_owned(), |tried| tried.why.clone())
        }
    }
}
