//! Running the writer: on a thread of its own, or as a task where threads are not allowed.

use super::record::LogId;
use super::writer::{Job, Writer};
use crate::config::Execution;
use crate::disk::Disk;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

/// How many jobs are taken at once. Their bytes are limited by the frame, not here.
const JOBS_MAX: usize = 4096;

/// The way to the writer. What is queued is bounded by what the engine keeps in flight; the writer
/// ends with [`Job::Close`], or when all clones are gone.
#[derive(Clone)]
pub(crate) struct Queue {
    jobs: UnboundedSender<Letter>,
    committed: Arc<Mutex<Option<LogId>>>,
}

/// A job, and what was committed when it was queued if that is news: it is written before the job.
type Letter = (Option<LogId>, Job);

impl Queue {
    /// Starts the writer. `lock` guards the data directory and is kept until the last write is done;
    /// then the receiver is closed.
    pub fn start(
        writer: Writer,
        disk: Arc<dyn Disk>,
        execution: Execution,
        lock: Box<dyn Send + Sync>,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let (sender, jobs) = mpsc::unbounded_channel();
        let (ended, end) = oneshot::channel();
        match execution {
            Execution::Threads => {
                let thread = std::thread::Builder::new().name("tenure-wal".into());
                thread.spawn(move || {
                    write_on_thread(writer, jobs);
                    drop(lock);
                    drop(ended);
                })?;
            }
            Execution::Tasks => {
                tokio::spawn(async move {
                    write_as_task(writer, jobs, disk).await;
                    drop(lock);
                    drop(ended);
                });
            }
        }
        Ok((Self { jobs: sender, committed: Arc::default() }, end))
    }

    /// Queues a job. An error means that the writer has ended.
    pub fn push(&self, job: Job) -> io::Result<()> {
        // Sent under the lock, so that no job overtakes what it goes out with.
        let mut committed = self.committed.lock();
        self.jobs.send((committed.take(), job)).map_err(|_| io::Error::other("the log is closed"))
    }

    /// Notes what is committed. It goes with the next job: it only saves time after a restart, and waking the writer
    /// for it would hold up the very answers that it is about.
    pub fn note_committed(&self, id: LogId) {
        *self.committed.lock() = Some(id);
    }
}

fn write_on_thread(mut writer: Writer, mut jobs: UnboundedReceiver<Letter>) {
    let mut batch = VecDeque::new();
    while let Some(letter) = jobs.blocking_recv() {
        unpack(letter, &mut batch);
        fill(&mut batch, &mut jobs);
        if !writer.carry_out(&mut batch) {
            break;
        }
    }
}

async fn write_as_task(mut writer: Writer, mut jobs: UnboundedReceiver<Letter>, disk: Arc<dyn Disk>) {
    let mut batch = VecDeque::new();
    while let Some(letter) = jobs.recv().await {
        unpack(letter, &mut batch);
        let delay = disk.sync_delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        fill(&mut batch, &mut jobs);
        if !writer.carry_out(&mut batch) {
            break;
        }
    }
}

fn fill(batch: &mut VecDeque<Job>, jobs: &mut UnboundedReceiver<Letter>) {
    while batch.len() < JOBS_MAX {
        let Ok(letter) = jobs.try_recv() else { break };
        unpack(letter, batch);
    }
}

fn unpack((committed, job): Letter, batch: &mut VecDeque<Job>) {
    batch.extend(committed.map(Job::Committed));
    batch.push_back(job);
}

#[cfg(test)]
mod tests {
    use super::super::record::{EntryKind, LogEntry};
    use super::super::rig::Rig;
    use super::super::writer::Done;
    use super::*;
    use crate::config::LogOptions;
    use crate::disk::SimDisk;

    /// Nobody is woken for a commit, and yet it is not lost: a restart finds it.
    #[tokio::test]
    async fn what_is_committed_goes_with_the_next_job() {
        let disk = SimDisk::new();
        let rig = Rig::open(&disk, LogOptions::default()).unwrap();
        let (log, meter) = (rig.log.clone(), rig.meter.clone());
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let (queue, closed) = Queue::start(rig.writer, shared, Execution::Tasks, Box::new(())).unwrap();
        let append = async |index: u64| {
            let id = LogId { term: 1, index };
            let entry = LogEntry { id, kind: EntryKind::Normal, body: b"x".to_vec().into() };
            assert!(log.lock().append(&entry));
            let (told, done) = oneshot::channel();
            let done_with = Done::new(|result| drop(told.send(result)));
            queue.push(Job::Append(vec![entry], done_with)).unwrap();
            done.await.unwrap().unwrap();
            id
        };
        let first = append(0).await;
        let records = || meter.status().records;
        let before = records();
        queue.note_committed(first);
        append(1).await;
        assert_eq!(records(), before + 2);
        queue.push(Job::Close(Done::new(|_| ()))).unwrap();
        assert!(closed.await.is_err(), "closed by being dropped");
        assert_eq!(Rig::open(&disk, LogOptions::default()).unwrap().log.lock().committed, Some(first));
    }
}
