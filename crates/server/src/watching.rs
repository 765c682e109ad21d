//! One watcher's place among the events.
//!
//! A watcher pulls: it is notified that the revision rose and reads the machine's own bounded log of events at its
//! own pace, and the event files of this node where that log no longer reaches. There is no queue per watcher, so
//! a slow one costs nothing, and one that asks for what is missing learns which revisions, and where to begin
//! again. A revision is delivered whole or not at all. Files are read without the machine's lock.

use std::sync::Arc;

use tenure_core::{Event, EventKind, Identity, Machine, Revision, WallTime};
use tenure_wire::ApiError;
use tokio::sync::watch;

use crate::access::Access;
use crate::calls::failed;
use crate::context::CallContext;
use crate::event_files::{Cursor, FilePage};
use crate::front::{Api, Turn};
use crate::metrics::UnderWay;
use crate::node::Node;

/// Events looked at in one go, more only to finish a revision: the machine is locked meanwhile.
const LOOK_MAX: usize = 2_048;
/// Bytes of register values taken in one go, more only to finish a revision.
const TAKE_BYTES_MAX: usize = 256 << 10;

/// One watcher.
pub(crate) struct Watching {
    api: Arc<Api>,
    /// Who watches: what it may not read is left out, by the policies of the moment.
    identity: Identity,
    prefix: String,
    /// Everything up to here has been sent, or does not concern this watcher.
    after: Revision,
    /// Where this watcher is in the event files, while it reads those.
    cursor: Option<Cursor>,
    /// What was found when the watch began.
    begun_with: Vec<Batch>,
    /// Whether it has reached the present once, or was started there.
    caught_up: bool,
    revisions: watch::Receiver<Revision>,
    _turn: Turn,
    _counted: UnderWay,
}

/// Everything of one revision that concerns a watcher.
pub(crate) struct Batch {
    pub revision: Revision,
    pub wall: WallTime,
    pub events: Vec<Event>,
}

impl Watching {
    /// Begins a watch of everything whose name begins with `prefix`, with revision `from`; or with the next
    /// one, counted from everything that was acknowledged before this call.
    pub async fn begin(
        api: &Arc<Api>,
        context: &CallContext,
        prefix: String,
        from: Option<u64>,
    ) -> Result<Watching, ApiError> {
        let turn = api.turn(context.row.cost)?;
        let revisions = api.node.event_hub().revision();
        let present = api.node.read(|machine| machine.revision()).await.map_err(failed)?;
        let after = match from {
            None => present,
            Some(from) if from > present.get().saturating_add(1) => {
                return Err(ApiError::invalid(format!(
                    "revision {from} is not there yet: the present one is {present}"
                ))
                .hint("leave `from` out to begin with the next change"));
            }
            Some(from) => Revision::new(from.saturating_sub(1)),
        };
        let counted = api.traffic.watching();
        let mut watching = Watching {
            api: api.clone(),
            identity: context.identity.clone(),
            prefix,
            after,
            cursor: None,
            begun_with: Vec::new(),
            caught_up: after == present,
            revisions,
            _turn: turn,
            _counted: counted,
        };
        // What is missing is refused here, where it can still be the answer.
        watching.begun_with = watching.look().await?.0;
        Ok(watching)
    }

    /// Everything up to this revision has been sent.
    pub fn sent_up_to(&self) -> Revision {
        self.begun_with.first().map_or(self.after, |first| Revision::new(first.revision.get() - 1))
    }

    /// What comes next: one or more whole revisions, in order; `None` when the node stops. One that began in the past
    /// gets an empty list once, when it has reached the present.
    pub async fn next(&mut self) -> Result<Option<Vec<Batch>>, ApiError> {
        if !self.begun_with.is_empty() {
            return Ok(Some(std::mem::take(&mut self.begun_with)));
        }
        loop {
            self.revisions.mark_unchanged();
            let batches = self.pull().await?;
            if !batches.is_empty() || !std::mem::replace(&mut self.caught_up, true) {
                return Ok(Some(batches));
            }
            tokio::select! {
                biased;
                () = self.api.stopping() => return Ok(None),
                changed = self.revisions.changed() => {
                    if changed.is_err() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Looks until something is found or nothing is left.
    async fn pull(&mut self) -> Result<Vec<Batch>, ApiError> {
        loop {
            let (batches, more) = self.look().await?;
            if !batches.is_empty() || !more {
                return Ok(batches);
            }
        }
    }

    async fn look(&mut self) -> Result<(Vec<Batch>, bool), ApiError> {
        let found =
            look(&self.api.node, (&self.identity, &self.prefix), self.after, self.cursor.take(), LOOK_MAX)
                .await?;
        (self.after, self.cursor) = (found.after, found.cursor);
        Ok((found.batches, found.more))
    }
}

/// What was found in one look.
struct Found {
    batches: Vec<Batch>,
    /// Everything up to here was looked at.
    after: Revision,
    /// Whether there is more.
    more: bool,
    cursor: Option<Cursor>,
}

/// Looks once, at `look_max` events or so: in memory, or in the event files where memory does not reach.
async fn look(
    node: &Node,
    (identity, prefix): (&Identity, &str),
    after: Revision,
    cursor: Option<Cursor>,
    look_max: usize,
) -> Result<Found, ApiError> {
    let in_memory = |machine: &Machine, events: &mut dyn Iterator<Item = &Event>| {
        let access = Access::new(machine, identity);
        let (batches, after, more) = gather(events, (access, prefix), after, look_max);
        Found { batches, after, more, cursor: None }
    };
    let look_in_memory = || {
        node.glance(|machine| machine.events_after(after).map(|mut events| in_memory(machine, &mut events)))
    };
    let memory_after = match look_in_memory() {
        Ok(found) => return Ok(found),
        Err(memory_after) => memory_after,
    };
    match node.past_events().read(after, cursor).await {
        FilePage::Events(events, cursor) => {
            // A watcher takes the whole page, so that it goes on where that ends.
            let look_max = if look_max >= LOOK_MAX { usize::MAX } else { look_max };
            let (batches, after, _) = node.glance(|machine| {
                gather(&mut events.iter(), (Access::new(machine, identity), prefix), after, look_max)
            });
            let cut = events.last().is_some_and(|last| last.revision > after);
            Ok(Found { batches, after, more: true, cursor: Some(cursor).filter(|_| !cut) })
        }
        FilePage::Missing { up_to_before } => {
            let restart = up_to_before.map_or(memory_after.next(), Revision::new).min(memory_after.next());
            Err(ApiError::too_old(after.next().get(), restart.get()))
        }
    }
}

/// Whole revisions out of a row of events, about `look_max` events: up to which revision, and whether there is more.
fn gather(
    events: &mut dyn Iterator<Item = &Event>,
    (access, prefix): (Access<'_>, &str),
    begin_after: Revision,
    look_max: usize,
) -> (Vec<Batch>, Revision, bool) {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut looked, mut bytes, mut after) = (0, 0, begin_after);
    for event in events {
        if (looked >= look_max || bytes >= TAKE_BYTES_MAX) && event.revision != after {
            return (batches, after, true);
        }
        looked += 1;
        after = event.revision;
        if !concerns(&event.kind, prefix) || !access.sees(event) {
            continue;
        }
        if let EventKind::Put { value, .. } = &event.kind {
            bytes += value.len();
        }
        match batches.last_mut() {
            Some(batch) if batch.revision == event.revision => batch.events.push(event.clone()),
            _ => batches.push(Batch {
                revision: event.revision,
                wall: event.wall,
                events: vec![event.clone()],
            }),
        }
    }
    (batches, after, false)
}

/// A page of the events that are still there: for those who ask what happened, not what happens.
pub(crate) struct Remembered {
    pub events: Vec<Event>,
    pub complete_from: Revision,
    pub revision: Revision,
    pub next: Option<Revision>,
}

impl Remembered {
    /// The page that begins with revision `from`, or with the oldest from which on none is missing.
    pub async fn page(
        node: &Node,
        identity: &Identity,
        prefix: &str,
        from: Option<u64>,
        limit: usize,
    ) -> Result<Remembered, ApiError> {
        let in_memory =
            node.glance(|machine| machine.events_after(Revision::default()).err().unwrap_or_default());
        let complete_after = node.past_events().complete_after(in_memory).await;
        let after = from.map_or(complete_after, |from| Revision::new(from.saturating_sub(1)));
        let found = look(node, (identity, prefix), after, None, limit).await?;
        let revision = node.glance(Machine::revision);
        Ok(Remembered {
            events: found.batches.into_iter().flat_map(|batch| batch.events).collect(),
            complete_from: complete_after.next(),
            revision,
            next: (found.more && found.after < revision).then(|| found.after.next()),
        })
    }
}

/// Whether an event is about something whose name begins with `prefix`. What has no such name (sessions,
/// leaders) concerns only those who watch everything.
fn concerns(kind: &EventKind, prefix: &str) -> bool {
    if prefix.is_empty() {
        return true;
    }
    match kind {
        EventKind::Granted { resource, .. }
        | EventKind::Ended { resource, .. }
        | EventKind::Noticed { resource, .. }
        | EventKind::Queued { resource, .. }
        | EventKind::Unqueued { resource, .. }
        | EventKind::Barrier { resource, .. } => resource.as_str().starts_with(prefix),
        EventKind::Put { key, .. } | EventKind::Deleted { key } => {
            key.as_bytes().starts_with(prefix.as_bytes())
        }
        EventKind::Armed { scope, .. } | EventKind::Refused { scope, .. } => {
            scope.resource.as_str().starts_with(prefix)
        }
        EventKind::Changed { what, .. } => what.starts_with(prefix),
        EventKind::Opened { .. }
        | EventKind::Closed { .. }
        | EventKind::Lapsed { .. }
        | EventKind::Paused { .. }
        | EventKind::BecameLeader { .. } => false,
    }
}
