//! How far a long transfer has come, on stderr: one line that is written over on a terminal, plain lines now
//! and then in a pipe, objects with `--json`. Decides only how often and in which form.

use serde_json::json;

use crate::output::Output;
use crate::render::words::{bytes, grouped};

/// A terminal's line changes after so many bytes.
const LINE_EVERY: u64 = 1 << 20;
/// Other outputs get a line after so many.
const REPORT_EVERY: u64 = 64 << 20;

/// One transfer.
pub struct Progress<'a> {
    output: &'a Output,
    /// What is done, as in `restoring`.
    doing: &'static str,
    total: Option<u64>,
    bytes: u64,
    records: u64,
    shown: bool,
}

impl<'a> Progress<'a> {
    /// Nothing is done yet, of so many bytes if that is known.
    pub fn new(output: &'a Output, doing: &'static str, total: Option<u64>) -> Self {
        Self { output, doing, total, bytes: 0, records: 0, shown: false }
    }

    /// This much is done.
    pub fn reached(&mut self, bytes: u64, records: u64) {
        let every = if self.output.talks_to_terminal() { LINE_EVERY } else { REPORT_EVERY };
        let due = bytes / every != self.bytes / every;
        (self.bytes, self.records) = (bytes, records);
        if due {
            self.show();
        }
    }

    fn show(&mut self) {
        if self.output.is_json() {
            let mut object = json!({"progress": self.doing, "bytes": self.bytes, "records": self.records});
            if let Some(total) = self.total {
                object["bytes_total"] = total.into();
            }
            return self.output.talk_json(&object);
        }
        let of = self.total.map(|total| format!(" of {}", bytes(total))).unwrap_or_default();
        let text = format!("{}: {}{of}, {} records", self.doing, bytes(self.bytes), grouped(self.records));
        self.shown = true;
        self.output.talk_over(&text);
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.shown {
            self.output.talk_over("");
        }
    }
}
