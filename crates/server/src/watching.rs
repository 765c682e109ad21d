//! One watcher's place in the event log of the machine.
//!
//! A watcher pulls: it is notified that the revision rose and reads the machine's own bounded log of events at its
//! own pace. There is no queue per watcher, so a slow one costs nothing, and one that falls too far behind is
//! told where to begin again. A revision is delivered whole or not at all.

use std::sync::Arc;

use tenure_core::{Event, EventKind, Machine, Revision, WallTime};
use tenure_wire::ApiError;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::calls::failed;
use crate::front::Api;
use crate::metrics::UnderWay;

/// Events looked at in one go, more only to finish a revision: the machine is locked meanwhile.
const LOOK_MAX: usize = 2_048;
/// Bytes of register values taken in one go, more only to finish a revision.
const TAKE_BYTES_MAX: usize = 256 << 10;

/// One watcher.
pub(crate) struct Watching {
    api: Arc<Api>,
    prefix: String,
    /// Everything up to here has been sent, or does not concern this watcher.
    after: Revision,
    revisions: watch::Receiver<Revision>,
    _turn: OwnedSemaphorePermit,
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
    pub async fn begin(api: &Arc<Api>, prefix: String, from: Option<u64>) -> Result<Watching, ApiError> {
        let turn = api.watch_turn()?;
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
        let watching =
            Watching { api: api.clone(), prefix, after, revisions, _turn: turn, _counted: counted };
        watching
            .api
            .node
            .glance(|machine| machine.events_after(after).map(|_| ()))
            .map_err(too_old(after))?;
        Ok(watching)
    }

    /// Everything up to this revision has been sent.
    pub fn sent_up_to(&self) -> Revision {
        self.after
    }

    /// What comes next: one or more whole revisions, in order; `None` when the node stops.
    pub async fn next(&mut self) -> Result<Option<Vec<Batch>>, ApiError> {
        loop {
            self.revisions.mark_unchanged();
            let batches = self.pull()?;
            if !batches.is_empty() {
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
    fn pull(&mut self) -> Result<Vec<Batch>, ApiError> {
        loop {
            let (batches, after, more) = self.look()?;
            self.after = after;
            if !batches.is_empty() || !more {
                return Ok(batches);
            }
        }
    }

    fn look(&self) -> Result<(Vec<Batch>, Revision, bool), ApiError> {
        self.api.node.glance(|machine| look(machine, &self.prefix, self.after, LOOK_MAX))
    }
}

/// Looks once, at `look_max` events or so: what was found, up to which revision, and whether there is more.
fn look(
    machine: &Machine,
    prefix: &str,
    begin_after: Revision,
    look_max: usize,
) -> Result<(Vec<Batch>, Revision, bool), ApiError> {
    let events = machine.events_after(begin_after).map_err(too_old(begin_after))?;
    let mut batches: Vec<Batch> = Vec::new();
    let (mut looked, mut bytes, mut after) = (0, 0, begin_after);
    for event in events {
        if (looked >= look_max || bytes >= TAKE_BYTES_MAX) && event.revision != after {
            return Ok((batches, after, true));
        }
        looked += 1;
        after = event.revision;
        if !concerns(&event.kind, prefix) {
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
    Ok((batches, after, false))
}

/// A page of the events that are still remembered: for those who ask what happened, not what happens.
pub(crate) struct Remembered {
    pub events: Vec<Event>,
    pub complete_from: Revision,
    pub revision: Revision,
    pub next: Option<Revision>,
}

impl Remembered {
    /// The page that begins with revision `from`, or with the oldest.
    pub fn page(
        machine: &Machine,
        prefix: &str,
        from: Option<u64>,
        limit: usize,
    ) -> Result<Remembered, ApiError> {
        let complete_after = machine.events_after(Revision::default()).err().unwrap_or_default();
        let after = from.map_or(complete_after, |from| Revision::new(from.saturating_sub(1)));
        let (batches, after, more) = look(machine, prefix, after, limit)?;
        Ok(Remembered {
            events: batches.into_iter().flat_map(|batch| batch.events).collect(),
            complete_from: complete_after.next(),
            revision: machine.revision(),
            next: more.then(|| after.next()),
        })
    }
}

fn too_old(after: Revision) -> impl Fn(Revision) -> ApiError {
    // A watch that begins with this revision misses nothing that is still remembered.
    move |complete_after| ApiError::too_old(after.next().get(), complete_after.next().get())
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
