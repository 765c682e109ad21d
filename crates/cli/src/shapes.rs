//! What only the command line shows: who leads an election, and values on their way to `--json`. Everything else is
//! in the shapes of the JSON interface (`tenure_wire::json`), so the command line and HTTP cannot drift apart.

use serde::Serialize;
use serde_json::Value;
use tenure_client::proto;
use tenure_wire::json;

/// Any shape as a value.
pub fn value(shape: &impl Serialize) -> Value {
    serde_json::to_value(shape).expect("shapes have text keys and numbers that JSON can say")
}

/// A lease that has not ended, in the shape of those that have.
pub fn present(holder: &json::Holder) -> Value {
    let mut shape = value(holder);
    shape["to"] = Value::Null;
    shape["why"] = Value::Null;
    shape
}

/// Who leads an election.
#[derive(Serialize)]
pub struct Leadership {
    /// Its name.
    pub election: String,
    /// Who leads; none if nobody does.
    pub leader: Option<json::Holder>,
    /// What the leader has published, if it is text.
    pub value: Option<String>,
    /// The same, if it is not.
    pub value_base64: Option<String>,
    /// How many wait in the queue.
    pub candidates: u64,
    /// For how long nobody can be elected, after an unclean end.
    pub delayed_ms: Option<u64>,
}

impl Leadership {
    /// What makes another leadership of it: time that passes and candidates that come do not.
    pub fn identity(&self) -> (Option<u64>, Option<String>, Option<String>) {
        let token = self.leader.as_ref().map(|leader| leader.token);
        (token, self.value.clone(), self.value_base64.clone())
    }
}

/// Who leads, from the lease and the register that leaders publish in.
pub fn leadership(election: &str, lease: &proto::Lease, published: &proto::Register) -> Leadership {
    let leader = lease.holders.iter().max_by_key(|holding| holding.token);
    // Only what this very session has published: the last leader's value may not be cleared away yet.
    let ours = leader.is_some_and(|leader| published.session_number == Some(leader.session_number));
    let published = ours.then(|| json::Register::from(published));
    Leadership {
        election: election.to_owned(),
        leader: leader.map(Into::into),
        value: published.as_ref().and_then(|register| register.value.clone()),
        value_base64: published.and_then(|register| register.value_base64),
        candidates: u64::from(lease.waiting).max(lease.waiters.len() as u64),
        delayed_ms: lease.delayed_ms,
    }
}
