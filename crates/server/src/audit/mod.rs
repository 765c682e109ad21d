//! The audit log: who asked for what, and what came of it, one JSON object per line.
//!
//! `record.rs` decides which calls get a line and what it says, `repeats.rs` counts denials that repeat, `files.rs`
//! keeps the files bounded. This file carries lines to a thread of their own, so that no call waits for a disk; a line
//! that finds no room is dropped and counted. Under `--audit-strict` a call that must be recorded is written down
//! before it is done, and refused if that fails.

mod files;
mod record;
mod repeats;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_clock::Clock;
use tenure_core::Identity;
use tenure_wire::{ApiError, Code};
use tokio::sync::oneshot;

use crate::call_table::CallRow;

pub use files::AuditFileLimits;
use files::{AuditFiles, Sink};
pub use record::AuditScope;
use record::{AuditRecord, is_recorded, is_sensitive};
pub(crate) use record::{Subject, Verdict};
use repeats::Repeats;

/// Lines that wait for the disk. Some 250 bytes each.
const WAITING_MAX: usize = 8_192;
/// How often counts of repeated denials are looked at.
const COUNTS_EVERY: Duration = Duration::from_secs(5);
/// How soon a call that could not be recorded may be asked for again.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Where the lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditPlace {
    /// Into files in this folder.
    Folder(PathBuf, AuditFileLimits),
    /// To stderr, among the node's own log.
    Stderr,
}

/// How a node keeps its audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditOptions {
    /// Where the lines go.
    pub place: AuditPlace,
    /// Which calls are recorded.
    pub scope: AuditScope,
    /// Refuse a call that must be recorded and cannot be.
    pub strict: bool,
}

/// The audit log of a node; a node need not have one.
#[derive(Default)]
pub(crate) struct Audit(Option<Log>);

struct Log {
    node: u64,
    clock: Arc<dyn Clock>,
    scope: AuditScope,
    strict: bool,
    repeats: Mutex<Repeats>,
    lines: SyncSender<Line>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
    failing: AtomicBool,
}

/// A line on its way, and who waits for it to be written.
struct Line {
    text: String,
    written: Option<oneshot::Sender<bool>>,
}

/// What one call says of itself.
pub(crate) struct Audited<'a> {
    pub identity: &'a Identity,
    pub source: Option<&'a str>,
    pub row: &'a CallRow,
    pub subject: &'a Subject,
}

impl Audit {
    /// Opens the log; at the start it must be possible to write it.
    pub fn open(options: AuditOptions, node: u64, clock: Arc<dyn Clock>) -> io::Result<Audit> {
        let sink: Box<dyn Sink> = match &options.place {
            AuditPlace::Folder(folder, limits) => Box::new(AuditFiles::open(folder, *limits)?),
            AuditPlace::Stderr => Box::new(io::stderr()),
        };
        Audit::with(sink, options.scope, options.strict, node, clock)
    }

    fn with(
        sink: Box<dyn Sink>,
        scope: AuditScope,
        strict: bool,
        node: u64,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Audit> {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let counts: Arc<Counts> = Arc::default();
        let counted = counts.clone();
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || write(waiting, sink, &counted))?;
        Ok(Audit(Some(Log { node, clock, scope, strict, repeats: Mutex::default(), lines, counts })))
    }

    /// Where a call notes what it is about, if that is recorded.
    pub fn subject(&self) -> Option<Arc<Mutex<Subject>>> {
        self.0.as_ref().map(|_| Arc::default())
    }

    /// Lines written, lines dropped, and whether the last attempt failed; nothing without a log.
    pub fn counts(&self) -> Option<(u64, u64, bool)> {
        let counts = &self.0.as_ref()?.counts;
        Some((counts.written.load(Relaxed), counts.dropped.load(Relaxed), counts.failing.load(Relaxed)))
    }

    /// Before a call is done: under `--audit-strict`, what must be recorded is written down now, or refused.
    pub async fn before(&self, call: &Audited<'_>) -> Result<(), ApiError> {
        let Some(log) = self.0.as_ref().filter(|log| log.strict && is_sensitive(log.scope, call.row)) else {
            return Ok(());
        };
        let record = AuditRecord { verdict: Verdict::Asked, ..log.record(call, None, None) };
        let (written, told) = oneshot::channel();
        let queued = log.lines.try_send(Line { text: record.line(), written: Some(written) });
        if queued.is_ok() && told.await.unwrap_or(false) {
            return Ok(());
        }
        Err(ApiError::new(Code::AuditFailed, "the audit log cannot be written; nothing was done")
            .hint("this node runs with --audit-strict: make room where --audit-log points, then ask again")
            .retry_after(ASK_AGAIN_AFTER))
    }

    /// After a call: its line, if it gets one. `error` is what it was refused or failed with.
    pub fn after(&self, call: &Audited<'_>, code: Option<Code>, policy: Option<&str>) {
        let Some(log) = &self.0 else { return };
        if !is_recorded(log.scope, call.row, Verdict::of(code)) {
            return;
        }
        let record = log.record(call, code, policy);
        if let Some(record) = log.repeats.lock().admit(record, log.clock.now()) {
            log.send(&record);
        }
    }

    /// Writes the counts of repeated denials when their time has come; for as long as the node runs.
    pub async fn keep(self: Arc<Self>) {
        while self.0.is_some() {
            tokio::time::sleep(COUNTS_EVERY).await;
            self.write_counts(false);
        }
    }

    /// Writes what is counted, and waits until everything has been written. At the end.
    pub async fn finish(&self) {
        self.write_counts(true);
        let Some(log) = &self.0 else { return };
        let (written, told) = oneshot::channel();
        if log.lines.try_send(Line { text: String::new(), written: Some(written) }).is_ok() {
            let _ = told.await;
        }
    }

    fn write_counts(&self, all: bool) {
        let Some(log) = &self.0 else { return };
        let due = log.repeats.lock().due(log.clock.now(), all);
        due.iter().for_each(|record| log.send(record));
    }
}

impl Log {
    fn record(&self, call: &Audited<'_>, code: Option<Code>, policy: Option<&str>) -> AuditRecord {
        let Audited { identity, source, row, subject } = call;
        AuditRecord::new(self.clock.wall(), self.node, identity, *source, row, subject, code, policy)
    }

    fn send(&self, record: &AuditRecord) {
        if self.lines.try_send(Line { text: record.line(), written: None }).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Writes lines as they come, those that wait together, until nobody can send any more.
fn write(waiting: Receiver<Line>, mut sink: Box<dyn Sink>, counts: &Counts) {
    while let Ok(first) = waiting.recv() {
        let together: Vec<Line> =
            std::iter::once(first).chain(waiting.try_iter().take(WAITING_MAX)).collect();
        let text: String = together.iter().map(|line| line.text.as_str()).collect();
        let lines = together.iter().filter(|line| !line.text.is_empty()).count() as u64;
        let written = sink.append(text.as_bytes());
        let failed = written.is_err();
        if let Err(error) = written
            && !counts.failing.load(Relaxed)
        {
            tracing::error!(%error, "the audit log cannot be written");
        }
        counts.failing.store(failed, Relaxed);
        (if failed { &counts.dropped } else { &counts.written }).fetch_add(lines, Relaxed);
        for line in together {
            if let Some(told) = line.written {
                let _ = told.send(!failed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_clock::SystemClock;

    use super::*;
    use crate::call_table::Call;

    /// A sink that a test reads, and breaks.
    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<(Vec<u8>, bool)>>);

    impl Sink for Page {
        fn append(&mut self, lines: &[u8]) -> io::Result<()> {
            let mut page = self.0.lock();
            if page.1 {
                return Err(io::Error::other("the disk is full"));
            }
            page.0.extend_from_slice(lines);
            Ok(())
        }
    }

    impl Page {
        fn lines(&self) -> Vec<serde_json::Value> {
            let text = String::from_utf8(self.0.lock().0.clone()).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }

        fn audit(&self, strict: bool) -> Audit {
            let clock = Arc::new(SystemClock);
            Audit::with(Box::new(self.clone()), AuditScope::Sensitive, strict, 3, clock).unwrap()
        }
    }

    fn call(row: &CallRow) -> Audited<'_> {
        static NOTHING: Subject = Subject { name: None, session: None };
        Audited { identity: &Identity::Operator, source: Some("10.0.0.9:1"), row, subject: &NOTHING }
    }

    #[tokio::test]
    async fn denials_and_sensitive_calls_are_written_and_others_are_not() {
        let page = Page::default();
        let audit = page.audit(false);
        let (revoke, get) = (Call::LeasesRevoke.row(), Call::LeasesGet.row());
        audit.before(&call(revoke)).await.unwrap();
        audit.after(&call(revoke), None, None);
        audit.after(&call(get), None, None);
        audit.after(&call(get), Some(Code::NotFound), None);
        for _ in 0..5 {
            audit.after(&call(get), Some(Code::Forbidden), Some("pay-team"));
        }
        audit.finish().await;
        let told: Vec<_> = page
            .lines()
            .iter()
            .map(|line| format!("{} {} {}", line["call"], line["verdict"], line["repeats"]))
            .map(|line| line.replace('"', ""))
            .collect();
        let expected = ["leases.revoke done null", "leases.get denied null", "leases.get denied 4"];
        assert_eq!(told, expected);
        assert_eq!(audit.counts(), Some((3, 0, false)));
    }

    #[tokio::test]
    async fn a_strict_log_that_cannot_be_written_refuses_what_must_be_recorded() {
        let page = Page::default();
        let audit = page.audit(true);
        let (revoke, get) = (Call::LeasesRevoke.row(), Call::LeasesGet.row());
        audit.before(&call(revoke)).await.unwrap();
        assert_eq!(page.lines()[0]["verdict"], "asked");
        page.0.lock().1 = true;
        assert_eq!(audit.before(&call(revoke)).await.unwrap_err().code, Code::AuditFailed);
        // What needs no line is served, and a log that is not strict never refuses.
        audit.before(&call(get)).await.unwrap();
        page.audit(false).before(&call(revoke)).await.unwrap();
        assert_eq!(audit.counts(), Some((1, 1, true)));
        page.0.lock().1 = false;
        audit.before(&call(revoke)).await.unwrap();
        assert_eq!(audit.counts(), Some((2, 1, false)));
    }
}
