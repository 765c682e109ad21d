//! Past events on this node's own disk: what watchers, `GET /v1/events` and `tenure events export` read when memory no
//! longer has it.
//!
//! Revisions are numbered without a gap, so what is missing is always known: it is what the files do not hold. A gap comes
//! from a snapshot that was installed, from damage, from a disk that failed, or from the bounds; it is named to
//! whoever asks for it and never passed over.
//!
//! Applying an entry only encodes its events into memory. They are written a little later, whole revisions in frames with
//! checksums, and synced when a file is closed and before a snapshot is complete: a node that crashes reads its log from
//! that snapshot on, so what the crash took from the last file is written again.
//! Nothing here can stop a node: files that cannot be read or written are reported, and are a gap.

mod table;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Event, FormatVersion, Revision, WallTime};
use tenure_replica::{Disk, DiskFile, Execution};
use tenure_wire::{
    EVENT_FILE_HEAD_BYTES, EVENT_FRAME_HEAD_BYTES, EventFrame, encode_event, event_file_head,
    read_event_file_head,
};
use tokio::sync::Notify;
use tracing::warn;

use self::table::{Place, Segment, Table};

const DIRECTORY: &str = "events";
/// What a closed file is called: its first and last revision, and when that was.
const CLOSED: &str = "closed";
/// What the file that is being written is called: its first revision.
const OPEN: &str = "open";

/// How long events wait in memory before they are written: long enough that a busy node writes large pieces.
const WRITE_AFTER: Duration = Duration::from_millis(100);
/// A frame is closed once it has this many bytes: the unit in which a reader reads.
const FRAME_BYTES: usize = 64 << 10;
/// Bytes of events that may wait to be written. More than this and the disk has stopped: what comes then is a gap.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// Bytes that a reader reads at once.
const READ_BYTES: usize = 128 << 10;
/// Events in one page, more only to finish a frame.
const PAGE_EVENTS: usize = 2_048;
/// The largest file, and the smallest: a file is what is pruned at once.
const SEGMENT_BYTES_MAX: u64 = 4 << 20;
const SEGMENT_BYTES_MIN: u64 = 16 << 10;
/// Into how many files the bounds are cut, so that pruning takes a small part of what is kept.
const SEGMENTS: u32 = 16;

/// What a node keeps of past events on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFileOptions {
    /// Bytes of all files; zero keeps none.
    pub bytes_max: u64,
    /// How long an event is kept, by the calendar that leaders stamp into events; judged when something is written.
    pub age_max: Duration,
}

impl Default for EventFileOptions {
    /// A few million events, and as long as histories are kept.
    fn default() -> Self {
        Self { bytes_max: 256 << 20, age_max: Duration::from_secs(7 * 24 * 3_600) }
    }
}

/// The event files of this node.
pub struct EventFiles {
    disk: Arc<dyn Disk>,
    options: EventFileOptions,
    pending: Mutex<Pending>,
    /// Locked before `pending` and `table`, never after.
    writer: Mutex<Writer>,
    /// Never locked while a file is read or written.
    table: Mutex<Table>,
    arrived: Notify,
}

/// Encoded events that are not written yet.
#[derive(Default)]
struct Pending {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// The files had this revision and those before it when the node started: its log shows them again.
    written: u64,
    /// The cluster that the files belong to, once it is known.
    cluster: Option<[u8; 16]>,
}

struct Frame {
    format: FormatVersion,
    first: Revision,
    last: Revision,
    wall: WallTime,
    events: Vec<u8>,
}

#[derive(Default)]
struct Writer {
    current: Option<Current>,
    /// It failed, and that was reported.
    failing: bool,
}

/// The file that is being written.
struct Current {
    file: Arc<dyn DiskFile>,
    segment: Segment,
    wall_first: u64,
}

/// Where a reader got to, so that it need not look for its place again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    segment: u64,
    offset: u64,
}

/// What the files answer to a reader.
#[derive(Debug)]
pub(crate) enum FilePage {
    /// Events of whole revisions, the next ones, and where to go on.
    Events(Vec<Event>, Cursor),
    /// These revisions are missing; `None` if the files have nothing later.
    Missing { up_to_before: Option<u64> },
}

impl EventFiles {
    /// Takes over what is on the disk. Whatever cannot be read is left out.
    pub fn open(disk: Arc<dyn Disk>, options: EventFileOptions) -> Arc<EventFiles> {
        let files = EventFiles {
            disk,
            options,
            pending: Mutex::default(),
            writer: Mutex::default(),
            table: Mutex::default(),
            arrived: Notify::new(),
        };
        if options.bytes_max > 0
            && let Err(error) = files.take_over()
        {
            warn!(%error, "past events cannot be read from the data directory; they are a gap");
        }
        Arc::new(files)
    }

    fn take_over(&self) -> io::Result<()> {
        self.disk.create_dir(DIRECTORY)?;
        for name in self.disk.list(DIRECTORY)? {
            match self.take_over_file(&name) {
                Ok(Some((cluster, segment))) => {
                    self.table.lock().put(segment);
                    self.pending.lock().cluster = Some(cluster);
                }
                Ok(None) => {}
                Err(error) => {
                    warn!(file = name, %error, "this file of past events cannot be read; it is a gap")
                }
            }
        }
        self.pending.lock().written = self.table.lock().last();
        self.prune();
        Ok(())
    }

    fn take_over_file(&self, name: &str) -> io::Result<Option<([u8; 16], Segment)>> {
        let path = path(name);
        let Some(named) = parse(name) else { return Ok(None) };
        let file = self.disk.open(&path)?;
        let mut input = Input::new(&*file)?;
        let head = *input.array::<EVENT_FILE_HEAD_BYTES>(0)?;
        let cluster = read_event_file_head(&head).map_err(invalid)?;
        if let Some((first, last, wall_ms)) = named {
            return Ok(Some((cluster, Segment { first, last, wall_ms, bytes: input.length, name: path })));
        }
        // The node ended while it wrote this file. What it has is what passes its checksums, up to the first that does not.
        let mut found: Option<Segment> = None;
        let mut offset = EVENT_FILE_HEAD_BYTES as u64;
        while let Ok(Some(frame)) = input.frame(offset) {
            let next = found.as_ref().map_or(frame.first.get(), |found| found.last + 1);
            if frame.first.get() != next || input.events(offset, &frame).is_err() {
                break;
            }
            offset += EVENT_FRAME_HEAD_BYTES as u64 + u64::from(frame.bytes);
            let segment = found.get_or_insert(Segment {
                first: next,
                last: next,
                wall_ms: 0,
                bytes: 0,
                name: String::new(),
            });
            (segment.last, segment.wall_ms) = (frame.last.get(), frame.wall.as_unix_millis());
        }
        let Some(mut segment) = found else {
            self.disk.remove(&path)?;
            return Ok(None);
        };
        (segment.bytes, segment.name) = (input.length, path);
        // What is believed from here on must still be there after the next crash.
        file.sync_data()?;
        self.close(&mut segment)?;
        Ok(Some((cluster, segment)))
    }

    /// Gives a file that is complete the name that says what is in it.
    fn close(&self, segment: &mut Segment) -> io::Result<()> {
        let name = path(&format!("{:020}-{:020}-{}.{CLOSED}", segment.first, segment.last, segment.wall_ms));
        self.disk.rename(&segment.name, &name)?;
        segment.name = name;
        self.disk.sync_dir(DIRECTORY)
    }

    /// Takes in the events of one entry, in memory: what applying an entry pays for.
    pub fn append(&self, cluster: [u8; 16], format: FormatVersion, events: &[Event]) {
        if self.options.bytes_max == 0 || events.is_empty() {
            return;
        }
        if self.pending.lock().cluster != Some(cluster) {
            self.begin(cluster);
        }
        let mut pending = self.pending.lock();
        let (was_empty, written) = (pending.frames.is_empty(), pending.written);
        for event in events.iter().filter(|event| event.revision.get() > written) {
            pending.push(format, event);
        }
        if was_empty && !pending.frames.is_empty() {
            self.arrived.notify_one();
        }
    }

    /// The files belong to this cluster from now on. What another one left here is no part of its past.
    fn begin(&self, cluster: [u8; 16]) {
        let mut writer = self.writer.lock();
        let mut pending = self.pending.lock();
        // A cluster gets its number with its first settings, and its first events may come before.
        if pending.cluster.is_some_and(|known| known != [0; 16]) {
            warn!("the data directory holds past events of another cluster; they are removed");
            writer.current = None;
            for segment in self.table.lock().clear() {
                let _ = self.disk.remove(&segment.name);
            }
            *pending = Pending::default();
        }
        pending.cluster = Some(cluster);
    }

    /// Writes what waits; with `sync` it is durable when this returns. Blocks.
    pub fn write(&self, sync: bool) {
        if self.options.bytes_max == 0 {
            return;
        }
        let mut writer = self.writer.lock();
        let (frames, cluster) = {
            let mut pending = self.pending.lock();
            pending.bytes = 0;
            (std::mem::take(&mut pending.frames), pending.cluster)
        };
        let Some(cluster) = cluster else { return };
        let written = self.write_frames(&mut writer, cluster, frames).and_then(|()| match &writer.current {
            Some(current) if sync => current.file.sync_data(),
            _ => Ok(()),
        });
        match written {
            Ok(()) => writer.failing = false,
            Err(error) => {
                // Whatever this file holds by now is found out when it is read; the next events begin another.
                writer.current = None;
                if !std::mem::replace(&mut writer.failing, true) {
                    warn!(%error, "past events cannot be written to the data directory; what is not written is a gap");
                }
            }
        }
    }

    fn write_frames(
        &self,
        writer: &mut Writer,
        cluster: [u8; 16],
        frames: VecDeque<Frame>,
    ) -> io::Result<()> {
        let mut bytes: Vec<u8> = Vec::new();
        for frame in frames {
            if writer.current.as_ref().is_some_and(|current| self.is_full(current, bytes.len(), &frame)) {
                self.put_out(writer, &mut bytes)?;
                self.close_current(writer)?;
            }
            if writer.current.is_none() {
                writer.current = Some(self.create(cluster, &frame)?);
            }
            let Frame { format, first, last, wall, events } = frame;
            bytes.extend_from_slice(&EventFrame::new(format, first, last, wall, &events).head());
            bytes.extend_from_slice(&events);
            let current = writer.current.as_mut().expect("just created");
            (current.segment.last, current.segment.wall_ms) = (last.get(), wall.as_unix_millis());
        }
        self.put_out(writer, &mut bytes)
    }

    /// Writes the frames that belong into the present file, and only then shows them to readers.
    fn put_out(&self, writer: &mut Writer, bytes: &mut Vec<u8>) -> io::Result<()> {
        let Some(current) = writer.current.as_mut().filter(|_| !bytes.is_empty()) else { return Ok(()) };
        current.file.write_at(bytes, current.segment.bytes)?;
        current.segment.bytes += bytes.len() as u64;
        bytes.clear();
        self.table.lock().put(current.segment.clone());
        self.prune();
        Ok(())
    }

    /// Whether a frame belongs into another file: this one is large enough, spans enough time, or leaves a gap before it.
    /// `waiting` bytes are about to be written to it.
    fn is_full(&self, current: &Current, waiting: usize, frame: &Frame) -> bool {
        let bytes =
            (self.options.bytes_max / u64::from(SEGMENTS)).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let age = Duration::from_millis(frame.wall.as_unix_millis().saturating_sub(current.wall_first));
        current.segment.bytes + waiting as u64 >= bytes
            || age > self.options.age_max / SEGMENTS
            || frame.first.get() != current.segment.last + 1
    }

    fn create(&self, cluster: [u8; 16], frame: &Frame) -> io::Result<Current> {
        let (first, wall_ms) = (frame.first.get(), frame.wall.as_unix_millis());
        let name = path(&format!("{first:020}.{OPEN}"));
        match self.disk.remove(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.create(&name)?;
        file.write_at(&event_file_head(cluster), 0)?;
        self.disk.sync_dir(DIRECTORY)?;
        let segment = Segment { first, last: first, wall_ms, bytes: EVENT_FILE_HEAD_BYTES as u64, name };
        Ok(Current { file, segment, wall_first: wall_ms })
    }

    fn close_current(&self, writer: &mut Writer) -> io::Result<()> {
        let Some(mut current) = writer.current.take() else { return Ok(()) };
        current.file.sync_data()?;
        self.close(&mut current.segment)?;
        self.table.lock().put(current.segment);
        Ok(())
    }

    fn prune(&self) {
        let gone = self.table.lock().prune(self.options.bytes_max, self.options.age_max);
        for segment in gone {
            if let Err(error) = self.disk.remove(&segment.name) {
                warn!(file = segment.name, %error, "an old file of past events cannot be removed");
            }
        }
    }

    /// Writes what arrives, until it is dropped.
    pub(crate) async fn keep(self: Arc<Self>, execution: Execution) {
        loop {
            self.arrived.notified().await;
            tokio::time::sleep(WRITE_AFTER).await;
            let files = self.clone();
            execution.blocking(move || files.write(false)).await;
        }
    }

    /// The revision after which everything is there, given that memory has everything after `memory`. Blocks.
    pub(crate) fn complete_after(&self, memory: Revision) -> Revision {
        self.write(false);
        Revision::new(self.table.lock().complete_after(memory.get()))
    }

    /// The next events after a revision. Blocks.
    pub(crate) fn read(&self, after: Revision, cursor: Option<Cursor>) -> FilePage {
        let wanted = after.get() + 1;
        if self.table.lock().last() < wanted {
            self.write(false);
        }
        // A file that is closed or pruned meanwhile has another name, or is gone.
        for _ in 0..3 {
            let segment = match self.table.lock().find(wanted) {
                Place::In(segment) => segment,
                Place::Missing { up_to_before } => return FilePage::Missing { up_to_before },
            };
            match self.read_segment(&segment, wanted, cursor) {
                Ok(page) => return page,
                Err(Unreadable::Gone) => {}
                Err(Unreadable::Damaged { last, why }) => self.report_damage(&segment, wanted, last, &why),
            }
        }
        FilePage::Missing { up_to_before: None }
    }

    fn report_damage(&self, segment: &Segment, first: u64, last: u64, why: &str) {
        if self.table.lock().damage(first, last) {
            warn!(
                file = segment.name,
                first,
                last,
                why,
                "a file of past events is damaged: these revisions are missing on this node"
            );
        }
    }

    fn read_segment(
        &self,
        segment: &Segment,
        wanted: u64,
        cursor: Option<Cursor>,
    ) -> Result<FilePage, Unreadable> {
        let rest = |error: io::Error| Unreadable::Damaged { last: segment.last, why: error.to_string() };
        let file = self.disk.open(&segment.name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Unreadable::Gone,
            _ => rest(error),
        })?;
        let mut input = Input::new(&*file).map_err(rest)?;
        let from = cursor.filter(|cursor| cursor.segment == segment.first);
        let mut offset = from.map_or(EVENT_FILE_HEAD_BYTES as u64, |cursor| cursor.offset);
        let mut found: Vec<Event> = Vec::new();
        let (mut next, mut bytes) = (wanted, 0);
        loop {
            let frame = match input.frame(offset) {
                Ok(frame) => frame,
                Err(_) if !found.is_empty() => break,
                Err(error) => return Err(rest(error)),
            };
            let Some(frame) = frame.filter(|_| next <= segment.last) else { break };
            let after = offset + EVENT_FRAME_HEAD_BYTES as u64 + u64::from(frame.bytes);
            if frame.last.get() < next {
                offset = after;
                continue;
            }
            if frame.first.get() > next {
                break;
            }
            match input.events(offset, &frame) {
                Ok(events) => found.extend(events.into_iter().filter(|event| event.revision.get() >= next)),
                Err(_) if !found.is_empty() => break,
                Err(error) => {
                    return Err(Unreadable::Damaged { last: frame.last.get(), why: error.to_string() });
                }
            }
            (offset, next) = (after, frame.last.get() + 1);
            bytes += frame.bytes as usize;
            if found.len() >= PAGE_EVENTS || bytes >= READ_BYTES {
                break;
            }
        }
        if found.is_empty() {
            let why = "revisions that the file should hold are not in it".to_owned();
            return Err(Unreadable::Damaged { last: segment.last, why });
        }
        Ok(FilePage::Events(found, Cursor { segment: segment.first, offset }))
    }

    /// Bytes of all files, and the first and last revision in them, for metrics.
    pub(crate) fn held(&self) -> (u64, u64, u64) {
        let table = self.table.lock();
        (table.bytes(), table.first().unwrap_or_default(), table.last())
    }
}

impl Pending {
    fn push(&mut self, format: FormatVersion, event: &Event) {
        let revision = event.revision;
        let fits = |frame: &&mut Frame| {
            // A revision is never cut.
            let follows =
                frame.last.next() == revision && frame.events.len() < FRAME_BYTES && frame.format == format;
            frame.last == revision || follows
        };
        let frame = match self.frames.back_mut().filter(fits) {
            Some(frame) => frame,
            None if self.bytes >= PENDING_BYTES_MAX => return,
            None => {
                let (first, last, wall) = (revision, revision, event.wall);
                self.frames.push_back(Frame { format, first, last, wall, events: Vec::new() });
                self.frames.back_mut().expect("just put there")
            }
        };
        let before = frame.events.len();
        encode_event(frame.format, event, &mut frame.events);
        (frame.last, frame.wall) = (revision, event.wall);
        self.bytes += frame.events.len() - before;
    }
}

/// Why a page could not be read.
enum Unreadable {
    /// The file has another name by now, or is gone.
    Gone,
    /// The revisions up to this one cannot be read.
    Damaged { last: u64, why: String },
}

/// A file being read from front to back, in large pieces.
struct Input<'a> {
    file: &'a dyn DiskFile,
    length: u64,
    piece: Vec<u8>,
    piece_at: u64,
}

impl<'a> Input<'a> {
    fn new(file: &'a dyn DiskFile) -> io::Result<Self> {
        Ok(Self { file, length: file.len()?, piece: Vec::new(), piece_at: 0 })
    }

    fn bytes(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        let end = offset + count as u64;
        if end > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if offset < self.piece_at || end > self.piece_at + self.piece.len() as u64 {
            let piece = (count.max(READ_BYTES) as u64).min(self.length - offset) as usize;
            self.piece.resize(piece, 0);
            self.piece_at = offset;
            if let Err(error) = self.file.read_at(&mut self.piece, offset) {
                self.piece.clear();
                return Err(error);
            }
        }
        let at = (offset - self.piece_at) as usize;
        Ok(&self.piece[at..at + count])
    }

    fn array<const N: usize>(&mut self, offset: u64) -> io::Result<&[u8; N]> {
        Ok(self.bytes(offset, N)?.try_into().expect("as many as were asked for"))
    }

    /// The head of the frame at this place; `None` at the end of the file.
    fn frame(&mut self, offset: u64) -> io::Result<Option<EventFrame>> {
        if offset == self.length {
            return Ok(None);
        }
        EventFrame::read_head(self.array(offset)?).map(Some).map_err(invalid)
    }

    fn events(&mut self, offset: u64, frame: &EventFrame) -> io::Result<Vec<Event>> {
        let events = self.bytes(offset + EVENT_FRAME_HEAD_BYTES as u64, frame.bytes as usize)?;
        frame.read(events).map_err(invalid)
    }
}

fn invalid(error: tenure_wire::WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn path(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// What a file's name says: for a closed one its first and last revision and their calendar time. `None` for other files.
fn parse(name: &str) -> Option<Option<(u64, u64, u64)>> {
    let (stem, ending) = name.split_once('.')?;
    match ending {
        OPEN => stem.parse::<u64>().ok().map(|_| None),
        CLOSED => {
            let mut numbers = stem.split('-').map(|number| number.parse::<u64>().ok());
            let numbers = (numbers.next()??, numbers.next()??, numbers.next()??);
            (numbers.0 <= numbers.1 && numbers.0 > 0).then_some(Some(numbers))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
