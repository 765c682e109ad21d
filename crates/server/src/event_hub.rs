//! The event hub: sends the events out of apply to those who wait and to those who watch.
//!
//! Watchers pull: they are notified that the revision rose and read the machine's bounded event log at their
//! own pace, so a slow one costs nothing. Sessions that wait for a grant are notified directly. Nobody relies on
//! what is sent here: whoever missed it finds out by asking.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use tenure_core::{
    Answer, Applied, EndReason, Event, EventKind, Few, Machine, ResourceName, Revision, SessionNumber,
    WaitKey,
};
use tokio::sync::{Notify, oneshot, watch};

use crate::bounded::{BoundedReceiver, BoundedSender, Bounds, bounded};
use crate::tally::Tally;

/// How many events a session's listener may be behind before it is cut off; it then asks.
const LISTENER_EVENTS_MAX: Bounds = Bounds { count_max: 1_024, weight_max: 1 << 20 };

/// Distributes the events of this node's machine.
#[derive(Debug)]
pub struct EventHub {
    revision: watch::Sender<Revision>,
    entries: watch::Sender<u64>,
    /// Nearly every session has one who listens, and there may be a million sessions.
    listeners: Mutex<HashMap<SessionNumber, Few<Arc<Subscriber>>>>,
    /// Calls that wait for the end of a queued acquire.
    waits: Mutex<Waits>,
    /// How many they are.
    waiting: watch::Sender<usize>,
    tally: Tally,
}

/// Calls that wait, by what their acquires are known by. Several may wait for one acquire.
#[derive(Debug, Default)]
struct Waits {
    calls: HashMap<WaitKey, Vec<WaitingCall>>,
    last_id: u64,
    count: usize,
}

#[derive(Debug)]
struct WaitingCall {
    id: u64,
    answer: oneshot::Sender<Answer>,
}

/// The end of a queued acquire, as a future: an error if a snapshot replaced the machine meanwhile. Dropping it ends
/// the waiting.
#[derive(Debug)]
pub struct WaitEnd {
    event_hub: Arc<EventHub>,
    key: WaitKey,
    id: u64,
    answer: oneshot::Receiver<Answer>,
}

/// Where the events of a session go, and where it is noted that some could not.
#[derive(Debug)]
pub struct Subscriber {
    /// One channel may serve many sessions.
    pub events: BoundedSender<Event>,
    /// Stored when the channel missed something: it was full, or a snapshot took the machine's place. Its owner must ask.
    missed: Notify,
    /// What the owner is releasing itself.
    pub own: OwnReleases,
}

/// Releases that the owner of a channel has under way: it learns of their ends by the answers. Sending it again would cost every
/// release a message more; anybody else who uses the same session is notified.
#[derive(Clone, Debug, Default)]
pub struct OwnReleases(Arc<Mutex<HashSet<(SessionNumber, ResourceName)>>>);

impl OwnReleases {
    /// A release is under way.
    pub fn begun(&self, release: (SessionNumber, ResourceName)) {
        self.0.lock().insert(release);
    }

    /// It was answered. Where its entry is applied before that, its end has been passed over by now, or there was none; a node that
    /// applies it later sends it once too often, which does no harm, where keeping silent about another's release would.
    pub fn answered(&self, release: &(SessionNumber, ResourceName)) {
        self.0.lock().remove(release);
    }

    fn has_ended(&self, session: SessionNumber, resource: &ResourceName) -> bool {
        let mut own = self.0.lock();
        !own.is_empty() && own.remove(&(session, resource.clone()))
    }
}

impl Subscriber {
    /// A subscriber without subscriptions.
    pub fn new(events: BoundedSender<Event>) -> Subscriber {
        Subscriber { events, missed: Notify::new(), own: OwnReleases::default() }
    }

    /// Resolves once something was missed: from then on the owner cannot know what happens to its sessions.
    pub async fn cut_off(&self) {
        self.missed.notified().await;
    }

    fn send(&self, event: &Event) -> bool {
        if let EventKind::Ended { session, resource, why: EndReason::Released, .. } = &event.kind
            && self.own.has_ended(*session, resource)
        {
            return true;
        }
        let sent = self.events.try_send(bytes(event), event.clone()).is_ok();
        if !sent {
            self.missed.notify_one();
        }
        sent
    }
}

/// What concerns one session, as it happens.
#[derive(Debug)]
pub struct Listener {
    #[expect(dead_code, reason = "kept for its drop")]
    subscriptions: Subscriptions<()>,
    events: BoundedReceiver<Event>,
}

/// The sessions that one channel is subscribed to, with what its owner keeps of each. Dropping it ends that.
#[derive(Debug)]
pub struct Subscriptions<T> {
    event_hub: Arc<EventHub>,
    /// Weak, so that a channel closes when it has no subscription left.
    subscriber: Weak<Subscriber>,
    kept: HashMap<SessionNumber, T>,
}

impl EventHub {
    /// An event hub without subscribers.
    pub fn new() -> Arc<EventHub> {
        Arc::new(EventHub {
            revision: watch::Sender::new(Revision::default()),
            entries: watch::Sender::new(0),
            listeners: Mutex::default(),
            waits: Mutex::default(),
            waiting: watch::Sender::new(0),
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
        let (sender, events) = bounded(LISTENER_EVENTS_MAX);
        let subscriber = Arc::new(Subscriber::new(sender));
        let mut subscriptions = Subscriptions::new(self.clone(), &subscriber);
        subscriptions.add(&subscriber, session, ());
        Listener { subscriptions, events }
    }

    /// The end of the wait under this key, from now on.
    pub fn await_end(self: &Arc<Self>, key: WaitKey) -> WaitEnd {
        let (sender, answer) = oneshot::channel();
        let mut waits = self.waits.lock();
        waits.last_id += 1;
        waits.count += 1;
        let id = waits.last_id;
        waits.calls.entry(key).or_default().push(WaitingCall { id, answer: sender });
        self.waiting.send_replace(waits.count);
        drop(waits);
        WaitEnd { event_hub: self.clone(), key, id, answer }
    }

    /// How many calls wait for the end of a queued acquire.
    pub fn waiting(&self) -> watch::Receiver<usize> {
        self.waiting.subscribe()
    }

    fn unsubscribe(&self, subscriber: &Weak<Subscriber>, session: SessionNumber) {
        let mut listeners = self.listeners.lock();
        if let Some(all) = listeners.get_mut(&session) {
            if let Some(at) = all.iter().position(|one| std::ptr::eq(Arc::as_ptr(one), subscriber.as_ptr())) {
                all.remove(at);
            }
            if all.is_empty() {
                listeners.remove(&session);
            }
        }
    }

    /// What this node has seen happen, counted.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn publish(&self, applied: &Applied, machine: &Machine) {
        let events = machine.fresh_events();
        self.tally.applied(applied, events);
        self.entries.send_replace(machine.entries());
        if !applied.resolved.is_empty() {
            let mut waits = self.waits.lock();
            for resolved in &applied.resolved {
                let Some(calls) = waits.calls.remove(&resolved.key) else { continue };
                for call in calls {
                    let _ = call.answer.send(resolved.answer.clone());
                }
            }
        }
        if events.is_empty() {
            return;
        }
        let mut listeners = self.listeners.lock();
        if !listeners.is_empty() {
            for event in events {
                let Some(session) = concerns(&event.kind) else { continue };
                let Some(all) = listeners.get_mut(&session) else { continue };
                // A listener that does not keep up is cut off rather than waited for.
                let mut at = 0;
                while let Some(subscriber) = all.get(at) {
                    if subscriber.send(event) {
                        at += 1;
                    } else {
                        all.remove(at);
                    }
                }
            }
        }
        drop(listeners);
        self.revision.send_replace(machine.revision());
    }

    /// The machine was replaced by a snapshot: everybody must look again. Nobody can say what happened in between, so
    /// every listener is cut off and notified; watchers find that the events which they have not seen are too old.
    pub(crate) fn reset(&self, machine: &Machine) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.values().flat_map(|all| all.iter()).for_each(|subscriber| subscriber.missed.notify_one());
        self.waits.lock().calls.clear();
        self.entries.send_replace(machine.entries());
        self.revision.send_replace(machine.revision());
    }
}

impl std::future::Future for WaitEnd {
    type Output = Result<Answer, oneshot::error::RecvError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.answer).poll(context)
    }
}

impl Drop for WaitEnd {
    fn drop(&mut self) {
        let mut waits = self.event_hub.waits.lock();
        waits.count -= 1;
        self.event_hub.waiting.send_replace(waits.count);
        if let Some(calls) = waits.calls.get_mut(&self.key) {
            if let Some(at) = calls.iter().position(|call| call.id == self.id) {
                calls.remove(at);
            }
            if calls.is_empty() {
                waits.calls.remove(&self.key);
            }
        }
    }
}

impl Listener {
    /// The next event; `None` when this listener was cut off and must ask instead.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl<T> Subscriptions<T> {
    /// No subscriptions yet.
    pub fn new(event_hub: Arc<EventHub>, subscriber: &Arc<Subscriber>) -> Self {
        Self { event_hub, subscriber: Arc::downgrade(subscriber), kept: HashMap::new() }
    }

    /// Sends what happens to one session from now on to the channel, until it is removed or the channel is full: then it is cut
    /// off and its owner must ask.
    pub fn add(&mut self, subscriber: &Arc<Subscriber>, session: SessionNumber, kept: T) {
        self.remove(session);
        self.kept.insert(session, kept);
        self.event_hub.listeners.lock().entry(session).or_default().push(subscriber.clone());
    }

    /// Nothing more of this session.
    pub fn remove(&mut self, session: SessionNumber) {
        if self.kept.remove(&session).is_some() {
            self.event_hub.unsubscribe(&self.subscriber, session);
        }
    }

    /// What is kept of a session, if it is listened to.
    pub fn kept(&self, session: SessionNumber) -> Option<&T> {
        self.kept.get(&session)
    }

    /// How many sessions are listened to.
    pub fn len(&self) -> usize {
        self.kept.len()
    }
}

impl<T> Drop for Subscriptions<T> {
    fn drop(&mut self) {
        for session in self.kept.keys() {
            self.event_hub.unsubscribe(&self.subscriber, *session);
        }
    }
}

/// What an event takes in a queue, as far as sessions are notified of it: none of these has a value.
fn bytes(event: &Event) -> usize {
    let name = match &event.kind {
        EventKind::Granted { resource, .. }
        | EventKind::Ended { resource, .. }
        | EventKind::Noticed { resource, .. }
        | EventKind::Unqueued { resource, .. } => resource.as_str().len(),
        _ => 0,
    };
    size_of::<Event>() + name
}

/// The session that must be notified. What was granted at once has been answered; only those who waited need to be notified.
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tenure_core::WallTime;

    fn unqueued(name_bytes: usize) -> Event {
        let kind = EventKind::Unqueued {
            resource: "a".repeat(name_bytes).parse().unwrap(),
            session: SessionNumber::new(1),
            holder: "a".parse().unwrap(),
            number: None,
            why: EndReason::Expired,
        };
        Event { revision: Revision::default(), wall: WallTime::default(), kind, identity: None }
    }

    /// Three events with long names are more than four with short ones.
    #[test]
    fn a_listener_is_cut_off_by_bytes_as_well_as_by_count() {
        let weight_max = 4 * bytes(&unqueued(1));
        let subscriber = |count_max| {
            let (events, receiver) = bounded(Bounds { count_max, weight_max });
            (Subscriber::new(events), receiver)
        };
        let (short, _events) = subscriber(10);
        assert!((0..4).all(|_| short.send(&unqueued(1))));
        assert!(short.cut_off().now_or_never().is_none());
        let (long, _events) = subscriber(10);
        assert!(long.send(&unqueued(200)) && long.send(&unqueued(1)));
        assert!(!long.send(&unqueued(200)));
        assert!(long.cut_off().now_or_never().is_some(), "its owner must ask");
        let (few, _events) = subscriber(1);
        assert!(few.send(&unqueued(1)) && !few.send(&unqueued(1)));
    }
}
