//! Who hears what: events out of apply, to those who wait and to those who watch.
//!
//! Watchers pull: they hear that the revision rose and read the machine's bounded event log at their own
//! pace, so a slow one costs nothing. Sessions that wait for a grant are told directly. Nothing told here
//! is relied on by anybody: whoever missed it finds out by asking.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Applied, EndReason, Event, EventKind, Machine, ResourceName, Revision, SessionNumber};
use tokio::sync::{mpsc, watch};

use crate::tally::Tally;

/// How many events a session's listener may be behind before it is cut off; it then asks.
const LISTENER_EVENTS_MAX: usize = 1_024;

/// Distributes the events of this node's machine.
#[derive(Debug)]
pub struct Hub {
    revision: watch::Sender<Revision>,
    entries: watch::Sender<u64>,
    listeners: Mutex<Listeners>,
    tally: Tally,
}

#[derive(Debug, Default)]
struct Listeners {
    by_session: HashMap<SessionNumber, Vec<(u64, Told)>>,
    next: u64,
}

/// Where the events of a session go, and where it is noted that some could not.
#[derive(Clone, Debug)]
pub struct Told {
    /// One channel may serve many sessions.
    pub events: mpsc::Sender<Event>,
    /// Set when the channel was full and a session was cut off: its owner must ask.
    pub cut_off: Arc<AtomicBool>,
    /// What the owner is releasing itself.
    pub own: OwnReleases,
}

/// Releases that the owner of a channel has under way: it learns of their ends by the answers. Telling it again would cost every
/// release a message more; anybody else who uses the same session is told.
#[derive(Clone, Debug, Default)]
pub struct OwnReleases(Arc<Mutex<HashSet<(SessionNumber, ResourceName)>>>);

impl OwnReleases {
    /// A release is under way.
    pub fn begun(&self, release: (SessionNumber, ResourceName)) {
        self.0.lock().insert(release);
    }

    /// It was answered. Where its entry is applied before that, its end has been passed over by now, or there was none; a node that
    /// applies it later tells of it once too often, which does no harm, where keeping silent about another's release would.
    pub fn answered(&self, release: &(SessionNumber, ResourceName)) {
        self.0.lock().remove(release);
    }

    fn has_ended(&self, session: SessionNumber, resource: &ResourceName) -> bool {
        let mut own = self.0.lock();
        !own.is_empty() && own.remove(&(session, resource.clone()))
    }
}

impl Told {
    fn tell(&self, event: &Event) -> bool {
        if let EventKind::Ended { session, resource, why: EndReason::Released, .. } = &event.kind
            && self.own.has_ended(*session, resource)
        {
            return true;
        }
        let told = self.events.try_send(event.clone()).is_ok();
        if !told {
            self.cut_off.store(true, Ordering::Release);
        }
        told
    }
}

/// What concerns one session, as it happens.
#[derive(Debug)]
pub struct Listener {
    #[expect(dead_code, reason = "kept for its drop")]
    ear: Ear,
    events: mpsc::Receiver<Event>,
}

/// Keeps a sender told of one session; dropping it ends that.
#[derive(Debug)]
pub struct Ear {
    hub: Arc<Hub>,
    session: SessionNumber,
    number: u64,
}

impl Hub {
    /// A hub that nobody listens to yet.
    pub fn new() -> Arc<Hub> {
        Arc::new(Hub {
            revision: watch::Sender::new(Revision::default()),
            entries: watch::Sender::new(0),
            listeners: Mutex::default(),
            tally: Tally::default(),
        })
    }

    /// The revision, as entries are applied.
    pub fn revision(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// How many entries this node has applied.
    pub fn entries(&self) -> watch::Receiver<u64> {
        self.entries.subscribe()
    }

    /// What happens to one session from now on.
    pub fn listen(self: &Arc<Self>, session: SessionNumber) -> Listener {
        let (sender, events) = mpsc::channel(LISTENER_EVENTS_MAX);
        let told = Told { events: sender, cut_off: Arc::default(), own: OwnReleases::default() };
        let ear = self.ear(session, told);
        Listener { ear, events }
    }

    /// Sends what happens to one session from now on to a channel that may serve many sessions, until the ear
    /// is dropped or the channel is full: then it is cut off and its owner must ask.
    pub fn ear(self: &Arc<Self>, session: SessionNumber, told: Told) -> Ear {
        let mut listeners = self.listeners.lock();
        listeners.next += 1;
        let number = listeners.next;
        // Nearly always the only one: room for exactly that, because there may be a million sessions.
        let senders = listeners.by_session.entry(session).or_default();
        senders.reserve_exact(1);
        senders.push((number, told));
        Ear { hub: self.clone(), session, number }
    }

    /// What this node has seen happen, counted.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn publish(&self, applied: &Applied, machine: &Machine) {
        self.tally.applied(applied);
        self.entries.send_replace(machine.entries());
        if applied.events.is_empty() {
            return;
        }
        let mut listeners = self.listeners.lock();
        if !listeners.by_session.is_empty() {
            for event in &applied.events {
                let Some(session) = concerns(&event.kind) else { continue };
                let Some(senders) = listeners.by_session.get_mut(&session) else { continue };
                // A listener that does not keep up is cut off rather than waited for.
                senders.retain(|(_, told)| told.tell(event));
            }
        }
        drop(listeners);
        self.revision.send_replace(machine.revision());
    }

    /// The machine was replaced by a snapshot: everybody must look again.
    pub(crate) fn reset(&self, machine: &Machine) {
        self.listeners.lock().by_session.clear();
        self.entries.send_replace(machine.entries());
        self.revision.send_replace(machine.revision());
    }
}

impl Listener {
    /// The next event; `None` when this listener was cut off and must ask instead.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut listeners = self.hub.listeners.lock();
        if let Some(senders) = listeners.by_session.get_mut(&self.session) {
            senders.retain(|(number, _)| *number != self.number);
            if senders.is_empty() {
                listeners.by_session.remove(&self.session);
            }
        }
    }
}

/// The session that must hear of this. What was granted at once has been answered; only those who waited need to be told.
fn concerns(kind: &EventKind) -> Option<SessionNumber> {
    match kind {
        EventKind::Granted { waited: Duration::ZERO, .. } => None,
        EventKind::Granted { session, .. }
        | EventKind::Ended { session, .. }
        | EventKind::Noticed { session, .. }
        | EventKind::Unqueued { session, .. }
        | EventKind::Lapsed { session, .. }
        | EventKind::Closed { session, .. } => Some(*session),
        _ => None,
    }
}
