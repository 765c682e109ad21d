//! What the agent counts, for people and for tests.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// Counters since the start, and two gauges.
#[derive(Debug, Default)]
pub struct Counts {
    clients: AtomicU64,
    sessions: AtomicU64,
    messages: AtomicU64,
    renewals: AtomicU64,
    failed: AtomicU64,
    died: AtomicU64,
    turned_away: AtomicU64,
}

impl Counts {
    /// A client has connected.
    pub fn client_came(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// A client's connection has ended.
    pub fn client_went(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection was refused: another user's, or one too many.
    pub fn turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// So many sessions are renewed through this agent.
    pub fn sessions_are(&self, sessions: usize) {
        self.sessions.store(sessions as u64, Ordering::Relaxed);
    }

    /// One message with so many renewals has left.
    pub fn sent(&self, renewals: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.renewals.fetch_add(renewals as u64, Ordering::Relaxed);
    }

    /// So many messages stayed unanswered because their stream broke.
    pub fn failed(&self, messages: usize) {
        self.failed.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// A session was ended because its process was seen dead.
    pub fn died(&self) {
        self.died.fetch_add(1, Ordering::Relaxed);
    }

    /// All of it, as one object.
    pub fn json(&self) -> Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "clients": read(&self.clients),
            "sessions": read(&self.sessions),
            "messages": read(&self.messages),
            "renewals": read(&self.renewals),
            "failed": read(&self.failed),
            "died": read(&self.died),
            "turned_away": read(&self.turned_away),
        })
    }

    /// The same in words.
    pub fn words(&self) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} clients, {} sessions; {} renewals in {} messages, {} of them unanswered; {} sessions ended with their processes",
            read(&self.clients),
            read(&self.sessions),
            read(&self.renewals),
            read(&self.messages),
            read(&self.failed),
            read(&self.died),
        )
    }
}
