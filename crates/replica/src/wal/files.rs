//! Creates and removes segment files without blocking the writer.
//!
//! Filling a new segment with zeros takes longer than a heartbeat interval. A helper thread does it while the
//! segment before is still being written, and removes what a purge has left behind. In simulation, where
//! files cost nothing, the same happens inline.

use super::segment::{self, Segment};
use crate::config::Execution;
use crate::disk::Disk;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// See the module.
pub(crate) struct Files {
    maker: Maker,
    /// Segments that were ready when the log was opened.
    ready: VecDeque<Segment>,
    helper: Option<Helper>,
}

#[derive(Clone)]
struct Maker {
    disk: Arc<dyn Disk>,
    salt: u64,
    segment_bytes: u64,
}

struct Helper {
    orders: Option<mpsc::Sender<Order>>,
    made: mpsc::Receiver<io::Result<Segment>>,
    /// Whether a segment was ordered and not taken yet.
    ordered: bool,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Prepare(u64),
    Remove(u64),
}

impl Maker {
    fn prepare(&self, number: u64, bytes_min: u64) -> io::Result<Segment> {
        segment::prepare(&*self.disk, self.salt, number, self.segment_bytes.max(bytes_min))
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        self.disk.remove(&segment::name(number))?;
        // One by one, oldest first: a crash may undo a removal, but never leaves a gap behind.
        self.disk.sync_dir(super::DIRECTORY)
    }
}

impl Files {
    pub fn new(
        disk: Arc<dyn Disk>,
        salt: u64,
        segment_bytes: u64,
        ready: VecDeque<Segment>,
        execution: Execution,
    ) -> io::Result<Self> {
        let maker = Maker { disk, salt, segment_bytes };
        let helper = match execution {
            Execution::Threads => Some(Helper::start(maker.clone())?),
            Execution::Tasks => None,
        };
        Ok(Self { maker, ready, helper })
    }

    /// The next segments, with `after` as the number before them. The last one has room for
    /// `bytes_min`; any in front of it turned out too small and stay empty.
    pub fn next(&mut self, after: u64, bytes_min: u64) -> io::Result<Vec<Segment>> {
        let mut segments = Vec::new();
        let mut number = after + 1;
        loop {
            let segment = self.take(number, bytes_min)?;
            assert_eq!(segment.number, number, "segments must follow each other");
            number += 1;
            let fits = segment.bytes >= bytes_min;
            segments.push(segment);
            if fits {
                break;
            }
        }
        self.order(number);
        Ok(segments)
    }

    fn take(&mut self, number: u64, bytes_min: u64) -> io::Result<Segment> {
        if let Some(segment) = self.ready.pop_front() {
            return Ok(segment);
        }
        if let Some(helper) = self.helper.as_mut().filter(|helper| helper.ordered) {
            helper.ordered = false;
            match helper.made.recv().expect("the helper must answer every order") {
                Ok(segment) => return Ok(segment),
                Err(error) => {
                    tracing::warn!(%error, number, "no log segment could be prepared; trying once more")
                }
            }
        }
        self.maker.prepare(number, bytes_min)
    }

    /// Has segment `number` prepared, if nothing else is ready.
    pub fn order(&mut self, number: u64) {
        if let Some(helper) = self.helper.as_mut().filter(|helper| self.ready.is_empty() && !helper.ordered) {
            helper.ordered = helper.send(Order::Prepare(number));
        }
    }

    /// Removes a segment, sooner or later, and after all that were handed in before.
    pub fn remove(&mut self, number: u64) -> io::Result<()> {
        match &self.helper {
            Some(helper) => {
                helper.send(Order::Remove(number));
                Ok(())
            }
            None => self.maker.remove(number),
        }
    }
}

impl Helper {
    fn start(maker: Maker) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let (outbox, made) = mpsc::channel();
        let work = move || {
            for order in inbox {
                match order {
                    Order::Prepare(number) => {
                        if outbox.send(maker.prepare(number, 0)).is_err() {
                            return;
                        }
                    }
                    // A file that stays costs space and nothing else; the next start removes it.
                    Order::Remove(number) => {
                        if let Err(error) = maker.remove(number) {
                            tracing::warn!(%error, number, "a purged log segment could not be removed");
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("tenure-wal-files".into()).spawn(work)?;
        Ok(Self { orders: Some(orders), made, ordered: false, thread: Some(thread) })
    }

    fn send(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }
}

impl Drop for Helper {
    /// Waits for the files in the making: nothing may touch the directory once its lock is gone.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
