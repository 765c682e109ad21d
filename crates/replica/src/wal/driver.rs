//! Running the writer: on a thread of its own, or as a task where threads are not allowed.

use super::writer::{Job, Writer};
use crate::config::Execution;
use crate::disk::Disk;
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
pub(crate) struct Queue(UnboundedSender<Job>);

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
        Ok((Self(sender), end))
    }

    /// Queues a job. An error means that the writer has ended.
    pub fn push(&self, job: Job) -> io::Result<()> {
        self.0.send(job).map_err(|_| io::Error::other("the log is closed"))
    }
}

fn write_on_thread(mut writer: Writer, mut jobs: UnboundedReceiver<Job>) {
    let mut batch = VecDeque::new();
    while let Some(job) = jobs.blocking_recv() {
        batch.push_back(job);
        fill(&mut batch, &mut jobs);
        if !writer.carry_out(&mut batch) {
            break;
        }
    }
}

async fn write_as_task(mut writer: Writer, mut jobs: UnboundedReceiver<Job>, disk: Arc<dyn Disk>) {
    let mut batch = VecDeque::new();
    while let Some(job) = jobs.recv().await {
        batch.push_back(job);
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

fn fill(batch: &mut VecDeque<Job>, jobs: &mut UnboundedReceiver<Job>) {
    while batch.len() < JOBS_MAX {
        let Ok(job) = jobs.try_recv() else { break };
        batch.push_back(job);
    }
}
